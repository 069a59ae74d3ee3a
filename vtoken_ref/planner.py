"""What a relocation is, who makes one, and the contract that every one is held to, whoever made it.

A relocation empties the sources of one request and fills the destinations with their tokens. Which
blocks may be sources depends on the view. ``packed``: a kernel that addresses KV by block list and
length can skip no slot, so a relocation packs from the first hole to the end of the request.
``indirect``: any blocks, and the planner is the paper's (``indirect_planner``).

Source: paper 3.3.3, 3.5 (I4), 6 (copy on write).
Differs from source: the packed view is ours; the paper's last destination block may be partly filled
in the middle of a request.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from vtoken_ref.events import Move, PlanStrategy, View
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import HOLE, TokenTable

RelocationStrategy = Literal["out_of_place", "in_place"]


class Relocation(NamedTuple):
    """Sources are emptied, destinations filled; sources are in block-list order."""

    source_blocks: tuple[int, ...]
    destination_blocks: tuple[int, ...]
    moves: tuple[Move, ...]


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return ceil(num_tokens / block_size)."""
    return -(-num_tokens // block_size)


# Planning.


def plan_relocation(
    table: TokenTable,
    req_id: str,
    strategy: RelocationStrategy,
    is_protected: Callable[[int], bool],
    leased_blocks: Sequence[int] = (),
    max_source_blocks: int | None = None,
    *,
    view: View = "packed",
    reserve: int = 0,
) -> Relocation | None:
    """Return the plan that frees the most blocks of one request, or None when none frees any.

    Under ``indirect`` the block in which the next token will be written is left alone: a plan may then
    be in flight over forwards of its request. It becomes a candidate when it is full.

    Args:
        table: where the tokens are.
        req_id: the request; it has no other plan in flight.
        strategy: ``in_place`` fills the request's own first source blocks, ``out_of_place`` the
            ``leased_blocks``.
        is_protected: whether a block has another holder or is cached; such blocks are never sources.
        leased_blocks: destinations that the scheduler has lent.
        max_source_blocks: B, the most source blocks of one round; None for no bound.
        view: how attention addresses KV.
        reserve: unwritten slots that the destinations must have after the last token, for tokens of a
            step in flight; under ``indirect`` the plan changes nothing there.

    Source: paper 3.3.3.
    """
    written = table.written_blocks(req_id)
    max_sources = len(written) if max_source_blocks is None else max_source_blocks
    max_destinations = len(written) if strategy == "in_place" else len(leased_blocks)
    if view == "packed":
        sources = _last_blocks(table, req_id, is_protected, max_sources, max_destinations, reserve)
    else:
        sources = _emptiest_blocks(table, req_id, is_protected, max_sources, max_destinations)
    num_destinations = _num_destinations(table, req_id, sources, view, reserve)
    if not num_live_in(table, req_id, sources) or num_destinations >= len(sources):
        return None
    candidates = sources if strategy == "in_place" else tuple(leased_blocks)
    destinations = candidates[:num_destinations]
    return Relocation(sources, destinations, planned_moves(table, req_id, strategy, sources, destinations))


def wholly_dead_blocks(
    table: TokenTable, req_id: str, is_protected: Callable[[int], bool]
) -> tuple[int, ...]:
    """Return the blocks that the request gives up without a plan: those without a live token of its own.

    A protected block is among them, since its other holders and the prefix cache keep it; it is even
    when the request has nothing written there any more, since it may not write there. An unwritten
    block of its own it keeps for its next tokens.
    """
    num_written = len(table.written_blocks(req_id))
    return tuple(
        block_id
        for index, block_id in enumerate(table.block_ids(req_id))
        if not table.live_in_block(req_id, block_id) and (index < num_written or is_protected(block_id))
    )


# What a relocation consists of.


def planned_moves(
    table: TokenTable,
    req_id: str,
    strategy: RelocationStrategy,
    source_blocks: Sequence[int],
    destination_blocks: Sequence[int],
) -> tuple[Move, ...]:
    """Return the moves that sources and destinations determine.

    The live tokens of the sources go in order to the slots of the destinations, each destination
    filled before the next; a token that is already there does not move. Out of place the order is the
    logical one. In place it is that of the slots, so that copies made in this order never overwrite a
    token that is still to be copied, even where recycled slots have put tokens out of logical order.

    Source: paper 3.3.3.
    """
    tokens = [
        token_id
        for block_id in source_blocks
        for token_id in table.block_tokens(req_id, block_id)
        if table.is_live(req_id, token_id)
    ]
    moves = []
    for index, token_id in enumerate(tokens if strategy == "in_place" else sorted(tokens)):
        block_id = destination_blocks[index // table.block_size]
        dst_slot = block_id * table.block_size + index % table.block_size
        src_slot = table.slot(req_id, token_id)
        if src_slot != dst_slot:
            moves.append(Move(token_id, src_slot, dst_slot))
    return tuple(moves)


def copy_on_write_moves(table: TokenTable, req_id: str, source: int, destination: int) -> tuple[Move, ...]:
    """Return the moves of every resident token of a block, live or dead, to its offset in another block.

    Dead tokens move too: where attention takes whole blocks it reads them until they are reclaimed.
    """
    first_source, first_destination = source * table.block_size, destination * table.block_size
    return tuple(
        Move(token_id, first_source + offset, first_destination + offset)
        for offset, token_id in enumerate(table.block_tokens(req_id, source))
        if token_id != HOLE
    )


def blocks_after(
    block_ids: Sequence[int], source_blocks: Sequence[int], destination_blocks: Sequence[int]
) -> list[int]:
    """Return the block list after a commit: the destinations take the places of the last sources.

    So the last destination, which may be partly filled, is where the request ends when the last
    written block was a source, and the next token is written into it. Anywhere else its free slots
    are holes until a later plan.
    """
    num_leaving = len(source_blocks) - len(destination_blocks)
    place_of = dict(zip(source_blocks[num_leaving:], destination_blocks, strict=True))
    leaving = set(source_blocks[:num_leaving])
    return [place_of.get(block_id, block_id) for block_id in block_ids if block_id not in leaving]


def num_live_in(table: TokenTable, req_id: str, block_ids: Sequence[int]) -> int:
    """Return the live tokens of a request in some of its blocks together."""
    return sum(table.live_in_block(req_id, block_id) for block_id in block_ids)


def open_block(table: TokenTable, req_id: str) -> int | None:
    """Return the last written block if the next token will be written there, None when it is full."""
    is_full = table.length(req_id) % table.block_size == 0
    return None if is_full else table.written_blocks(req_id)[-1]


# The contract.


def check_relocation(
    table: TokenTable,
    req_id: str,
    strategy: PlanStrategy,
    relocation: Relocation,
    is_protected: Callable[[int], bool],
    is_leased: Callable[[int], bool],
    *,
    view: View = "packed",
    reserve: int = 0,
) -> None:
    """Hold a plan, whoever made it, to the contract of its view and strategy.

    Under ``indirect`` the block in which the next token will be written may be a source, which is
    right only while no forward of the request is in flight; the destinations then keep the reserve.

    Raises:
        VTokenError: plan-sources, plan-shared, plan-packed, unknown-token, dead-move, stale-source,
            slot-used-twice, plan-no-gain, plan-destinations, plan-token-lost, plan-order.

    """
    if strategy == "copy_on_write":
        _check_copy_on_write(table, req_id, relocation, is_protected, is_leased)
        return
    sources, destinations, moves = relocation
    _check_sources(table, req_id, sources, is_protected, view)
    table.check_moved_tokens(req_id, moves)
    needed = _num_destinations(table, req_id, sources, view, reserve)
    _check_destinations(req_id, strategy, relocation, needed, is_leased)
    _check_moves(req_id, moves, planned_moves(table, req_id, strategy, sources, destinations))


def _check_sources(
    table: TokenTable, req_id: str, sources: Sequence[int], is_protected: Callable[[int], bool], view: View
) -> None:
    written, chosen = table.written_blocks(req_id), set(sources)
    if list(sources) != [block_id for block_id in written if block_id in chosen]:
        raise VTokenError(
            Rule.PLAN_SOURCES,
            f"{list(sources)} are not distinct written blocks of request {req_id} in block-list order",
        )
    if not num_live_in(table, req_id, sources):
        raise VTokenError(
            Rule.PLAN_SOURCES, f"{list(sources)} of request {req_id} hold no live token and need no plan"
        )
    for block_id in sources:
        if is_protected(block_id):
            raise VTokenError(Rule.PLAN_SHARED, f"source block {block_id} is shared or cached")
        if view == "indirect" and not table.live_in_block(req_id, block_id):
            raise VTokenError(
                Rule.PLAN_SOURCES, f"source block {block_id} holds no live token and needs no plan"
            )
    if view == "packed" and list(sources) != written[-len(sources) :]:
        raise VTokenError(
            Rule.PLAN_PACKED,
            f"sources {list(sources)} are not the last blocks of request {req_id}, {written}",
        )


def _check_destinations(
    req_id: str,
    strategy: RelocationStrategy,
    relocation: Relocation,
    needed: int,
    is_leased: Callable[[int], bool],
) -> None:
    sources, destinations, _ = relocation
    if len(destinations) >= len(sources):
        raise VTokenError(
            Rule.PLAN_NO_GAIN,
            f"{len(sources)} source blocks of request {req_id} would become {len(destinations)}",
        )
    if len(destinations) != needed:
        raise VTokenError(
            Rule.PLAN_DESTINATIONS,
            f"request {req_id} needs {needed} destinations, not {list(destinations)}",
        )
    if strategy == "out_of_place":
        _check_leased(req_id, destinations, is_leased)
    elif destinations != sources[:needed]:
        raise VTokenError(
            Rule.PLAN_DESTINATIONS,
            f"destinations {list(destinations)} are not the first of sources {list(sources)}",
        )


def _check_leased(req_id: str, destinations: Sequence[int], is_leased: Callable[[int], bool]) -> None:
    if len(set(destinations)) != len(destinations) or not all(map(is_leased, destinations)):
        raise VTokenError(
            Rule.PLAN_DESTINATIONS,
            f"{list(destinations)} are not distinct blocks that are leased to request {req_id}",
        )


def _check_moves(req_id: str, moves: Sequence[Move], expected: Sequence[Move]) -> None:
    lost = {move.token_id for move in expected} - {move.token_id for move in moves}
    if lost:
        raise VTokenError(
            Rule.PLAN_TOKEN_LOST, f"token {min(lost)} of request {req_id} is left behind in a source"
        )
    if tuple(moves) != tuple(expected):
        raise VTokenError(
            Rule.PLAN_ORDER, f"the moves of request {req_id} do not fill the destinations in order"
        )


def _check_copy_on_write(
    table: TokenTable,
    req_id: str,
    relocation: Relocation,
    is_protected: Callable[[int], bool],
    is_leased: Callable[[int], bool],
) -> None:
    sources, destinations, moves = relocation
    if len(sources) != 1 or not num_live_in(table, req_id, sources):
        raise VTokenError(
            Rule.PLAN_SOURCES,
            f"{list(sources)} are not one block of request {req_id} with a live token to copy on write",
        )
    if not is_protected(sources[0]):
        raise VTokenError(
            Rule.PLAN_SOURCES, f"block {sources[0]} is neither shared nor cached and needs no copy on write"
        )
    if len(destinations) != 1:
        raise VTokenError(
            Rule.PLAN_DESTINATIONS, f"copy on write needs one destination, not {list(destinations)}"
        )
    _check_leased(req_id, destinations, is_leased)
    table.check_moved_tokens(req_id, [move for move in moves if table.is_live(req_id, move.token_id)])
    _check_moves(req_id, moves, copy_on_write_moves(table, req_id, sources[0], destinations[0]))


# Which blocks are emptied.


def _last_blocks(
    table: TokenTable,
    req_id: str,
    is_protected: Callable[[int], bool],
    max_sources: int,
    max_destinations: int,
    reserve: int,
) -> tuple[int, ...]:
    """Return the blocks from the first hole to the end of the request, fewer where a bound needs it.

    Leading ones are left out then, since the rest must reach the end.
    """
    written = table.written_blocks(req_id)
    first = max(_first_with_hole(table, req_id, is_protected), len(written) - max_sources)
    while first < len(written):
        sources = tuple(written[first:])
        if _num_destinations(table, req_id, sources, "packed", reserve) <= max_destinations:
            return sources
        first += 1
    return ()


def _first_with_hole(table: TokenTable, req_id: str, is_protected: Callable[[int], bool]) -> int:
    """Return the index of the first block with a hole after the last protected one."""
    written = table.written_blocks(req_id)
    index = max((1 + index for index, block_id in enumerate(written) if is_protected(block_id)), default=0)
    while index < len(written) and table.live_in_block(req_id, written[index]) == table.block_size:
        index += 1
    return index


def _emptiest_blocks(
    table: TokenTable,
    req_id: str,
    is_protected: Callable[[int], bool],
    max_sources: int,
    max_destinations: int,
) -> tuple[int, ...]:
    """Return the paper's choice among the private, partly live, completely written blocks."""
    being_written = open_block(table, req_id)
    candidates = [
        block_id
        for block_id in table.written_blocks(req_id)
        if block_id != being_written
        and not is_protected(block_id)
        and 0 < table.live_in_block(req_id, block_id) < table.block_size
    ]
    num_live = [table.live_in_block(req_id, block_id) for block_id in candidates]
    chosen = choose_sources(num_live, table.block_size, max_sources, max_destinations)
    return tuple(candidates[index] for index in chosen)


def _num_destinations(
    table: TokenTable, req_id: str, sources: Sequence[int], view: View, reserve: int
) -> int:
    moves_the_end = view == "packed" or open_block(table, req_id) in sources
    kept = reserve if moves_the_end else 0
    return num_blocks_for(num_live_in(table, req_id, sources) + kept, table.block_size)
