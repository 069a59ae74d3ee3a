"""The relocation planner of the packed view: which blocks to empty, and where each token goes.

Source: paper 3.3.3, 3.5 (I4).
Differs from source: the paper's last destination block may be partly filled in the middle of a
request. A kernel that addresses KV by block list and length cannot represent that, so a plan here
packs from the first hole to the end of the request.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vtoken_ref.events import Move, Strategy
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import HOLE, TokenTable


class Relocation(NamedTuple):
    """Sources are emptied, destinations filled; moves are in logical order."""

    source_blocks: tuple[int, ...]
    destination_blocks: tuple[int, ...]
    moves: tuple[Move, ...]


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return ceil(num_tokens / block_size)."""
    return -(-num_tokens // block_size)


def plan_relocation(
    table: TokenTable,
    req_id: str,
    strategy: Strategy,
    is_shared: Callable[[int], bool],
    leased_blocks: Sequence[int] = (),
    max_source_blocks: int | None = None,
) -> Relocation | None:
    """Return the plan that frees the most blocks of one request, or None when none frees any.

    Args:
        table: where the tokens are.
        req_id: the request; it has no other plan in flight.
        strategy: ``in_place`` packs onto the request's own first source blocks, ``out_of_place``
            onto ``leased_blocks``.
        is_shared: whether a block has another holder or is cached; such blocks are never sources.
        leased_blocks: destinations that the scheduler has lent.
        max_source_blocks: B, the most source blocks of one round; None for no bound.

    """
    written = table.written_blocks(req_id)
    first = _first_source(table, req_id, written, is_shared)
    if max_source_blocks is not None:
        first = max(first, len(written) - max_source_blocks)
    if strategy == "out_of_place":
        first = _first_that_fits(table, req_id, written, first, len(leased_blocks))
    sources = tuple(written[first:])
    num_destinations = num_blocks_for(_num_live(table, req_id, sources), table.block_size)
    if not 0 < num_destinations < len(sources):
        return None
    candidates = sources if strategy == "in_place" else tuple(leased_blocks)
    destinations = candidates[:num_destinations]
    return Relocation(sources, destinations, planned_moves(table, req_id, sources, destinations))


def planned_moves(
    table: TokenTable, req_id: str, source_blocks: Sequence[int], destination_blocks: Sequence[int]
) -> tuple[Move, ...]:
    """Return the moves that sources and destinations determine.

    The live tokens of the sources go, in logical order, to the slots of the destinations, each
    destination filled before the next. A token that is already there does not move.
    """
    moves = []
    for index, token_id in enumerate(_live_tokens(table, req_id, source_blocks)):
        block_id = destination_blocks[index // table.block_size]
        dst_slot = block_id * table.block_size + index % table.block_size
        src_slot = table.slot(req_id, token_id)
        if src_slot != dst_slot:
            moves.append(Move(token_id, src_slot, dst_slot))
    return tuple(moves)


def blocks_after(
    block_ids: Sequence[int], source_blocks: Sequence[int], destination_blocks: Sequence[int]
) -> list[int]:
    """Return the block list after a commit: the destinations stand where the sources began."""
    start = block_ids.index(source_blocks[0])
    return [
        *block_ids[:start],
        *destination_blocks,
        *[block_id for block_id in block_ids[start:] if block_id not in source_blocks],
    ]


def wholly_dead_blocks(table: TokenTable, req_id: str, is_shared: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the written private blocks without a live token: they are released without a plan."""
    return tuple(
        block_id
        for block_id in table.written_blocks(req_id)
        if not table.live_in_block(req_id, block_id) and not is_shared(block_id)
    )


def check_relocation(
    table: TokenTable,
    req_id: str,
    strategy: Strategy,
    relocation: Relocation,
    is_shared: Callable[[int], bool],
    is_leased: Callable[[int], bool],
) -> None:
    """Hold a plan, whoever made it, to the contract of the packed view.

    Raises:
        VTokenError: plan-sources, plan-shared, plan-packed, unknown-token, dead-move, stale-source,
            slot-used-twice, plan-no-gain, plan-destinations, plan-token-lost, plan-order.

    """
    sources, destinations, moves = relocation
    written = table.written_blocks(req_id)
    _check_sources(req_id, sources, written, is_shared)
    if not _num_live(table, req_id, sources):
        raise VTokenError(
            Rule.PLAN_SOURCES, f"{list(sources)} of request {req_id} hold no live token and need no plan"
        )
    table.check_moved_tokens(req_id, moves)
    _check_destinations(table, req_id, strategy, relocation, is_leased)
    expected = planned_moves(table, req_id, sources, destinations)
    lost = {move.token_id for move in expected} - {move.token_id for move in moves}
    if lost:
        raise VTokenError(
            Rule.PLAN_TOKEN_LOST, f"live token {min(lost)} of request {req_id} is left behind in a source"
        )
    if tuple(moves) != expected:
        raise VTokenError(
            Rule.PLAN_ORDER,
            f"the moves of request {req_id} do not fill the destinations in logical order",
        )


def _check_sources(
    req_id: str, sources: Sequence[int], written: Sequence[int], is_shared: Callable[[int], bool]
) -> None:
    if not sources or len(set(sources)) != len(sources) or not set(sources) <= set(written):
        raise VTokenError(
            Rule.PLAN_SOURCES, f"{list(sources)} are not distinct written blocks of request {req_id}"
        )
    for block_id in sources:
        if is_shared(block_id):
            raise VTokenError(Rule.PLAN_SHARED, f"source block {block_id} is shared")
    if list(sources) != list(written[-len(sources) :]):
        raise VTokenError(
            Rule.PLAN_PACKED,
            f"sources {list(sources)} are not the last blocks of request {req_id}, {list(written)}",
        )


def _check_destinations(
    table: TokenTable,
    req_id: str,
    strategy: Strategy,
    relocation: Relocation,
    is_leased: Callable[[int], bool],
) -> None:
    sources, destinations, _ = relocation
    if len(destinations) >= len(sources):
        raise VTokenError(
            Rule.PLAN_NO_GAIN,
            f"{len(sources)} source blocks of request {req_id} would become {len(destinations)}",
        )
    needed = num_blocks_for(_num_live(table, req_id, sources), table.block_size)
    if strategy == "in_place":
        fitting = destinations == sources[: len(destinations)]
    else:
        fitting = len(set(destinations)) == len(destinations) and all(map(is_leased, destinations))
    if len(destinations) != needed or not fitting:
        raise VTokenError(
            Rule.PLAN_DESTINATIONS,
            f"request {req_id} needs {needed} {strategy} destinations, not {list(destinations)}",
        )


def _first_source(
    table: TokenTable, req_id: str, written: Sequence[int], is_shared: Callable[[int], bool]
) -> int:
    """Return the index of the first block with a hole after the last shared block."""
    for index, block_id in enumerate(written):
        rest_is_private = not any(map(is_shared, written[index:]))
        if rest_is_private and table.live_in_block(req_id, block_id) < table.block_size:
            return index
    return len(written)


def _first_that_fits(
    table: TokenTable, req_id: str, written: Sequence[int], first: int, num_leased: int
) -> int:
    """Drop leading sources until their live tokens fit into the leased blocks."""
    while first < len(written):
        num_live = _num_live(table, req_id, written[first:])
        if num_blocks_for(num_live, table.block_size) <= num_leased:
            return first
        first += 1
    return first


def _num_live(table: TokenTable, req_id: str, block_ids: Sequence[int]) -> int:
    return sum(table.live_in_block(req_id, block_id) for block_id in block_ids)


def _live_tokens(table: TokenTable, req_id: str, block_ids: Sequence[int]) -> list[int]:
    return sorted(
        token_id
        for block_id in block_ids
        for token_id in table.block_tokens(req_id, block_id)
        if token_id != HOLE and table.is_live(req_id, token_id)
    )
