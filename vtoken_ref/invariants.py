"""The invariants as predicates on whole states: each returns what is wrong, nothing when it holds.

The transitions keep these by their own checks; the predicates are the independent statement that
tests, state machines and ``vtoken replay --paranoid`` evaluate.

Source: paper 3.5.
"""

from collections.abc import Callable, Iterable

from vtoken_ref.events import Strategy
from vtoken_ref.planner import Relocation, check_relocation
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, TokenTable


def token_conservation(before: Iterable[tuple[int, int]], after: Iterable[tuple[int, int]]) -> list[str]:
    """I1: relocation keeps the live token ids and each one's KV content.

    Args:
        before: (token id, fingerprint) of the live tokens before.
        after: the same afterwards.

    """
    old, new = dict(before), dict(after)
    problems = [f"token {token_id} was lost" for token_id in sorted(old.keys() - new.keys())]
    problems += [f"token {token_id} appeared" for token_id in sorted(new.keys() - old.keys())]
    problems += [
        f"the content of token {token_id} changed"
        for token_id in sorted(old.keys() & new.keys())
        if old[token_id] != new[token_id]
    ]
    return problems


def unique_mapping(table: TokenTable, pool: BlockPool) -> list[str]:
    """I2: each live token has exactly one slot, each slot serves at most one token.

    Slots of a shared block may serve the same token id of each of its holders.
    """
    problems: list[str] = []
    owner: dict[int, tuple[str, int]] = {}
    for req_id in table.requests():
        block_ids = table.written_blocks(req_id)
        resident = table.resident_tokens(req_id)
        tokens = [token_id for token_id in resident if token_id != HOLE]
        live = table.live_tokens(req_id)
        if len(set(tokens)) != len(tokens):
            problems.append(f"request {req_id} has a token in two slots")
        if not set(live) <= set(tokens):
            problems.append(f"request {req_id} has a live token without a slot")
        if len(live) != table.num_live(req_id):
            problems.append(f"request {req_id} counts {table.num_live(req_id)} live tokens, has {len(live)}")
        for index, token_id in enumerate(resident):
            if token_id == HOLE:
                continue
            block_id, offset = block_ids[index // table.block_size], index % table.block_size
            slot = block_id * table.block_size + offset
            if _slot(table, req_id, token_id) != slot:
                problems.append(
                    f"token {token_id} of request {req_id} is in slot {slot} and recorded elsewhere"
                )
            other = owner.setdefault(slot, (req_id, token_id))
            same_shared = other[1] == token_id and pool.is_shared(block_id)
            if other != (req_id, token_id) and not same_shared:
                problems.append(f"slot {slot} serves {other} and {(req_id, token_id)}")
    return problems


def _slot(table: TokenTable, req_id: str, token_id: int) -> int | None:
    try:
        return table.slot(req_id, token_id)
    except VTokenError:
        return None


def layout_aware_planning(
    table: TokenTable,
    req_id: str,
    strategy: Strategy,
    relocation: Relocation,
    is_shared: Callable[[int], bool],
    is_leased: Callable[[int], bool],
) -> list[str]:
    """I4: a plan matches the layout, strictly reduces blocks and touches no shared block."""
    try:
        check_relocation(table, req_id, strategy, relocation, is_shared, is_leased)
    except VTokenError as error:
        return [str(error)]
    return []


def pool_accounting(pool: BlockPool) -> list[str]:
    """I6: each block is in exactly one state, totals are constant, headroom is bounded."""
    states = [pool.free_blocks, pool.holders.keys(), pool.leases.keys(), pool.fences.keys()]
    problems = []
    if sum(map(len, states)) != len(pool.block_ids) or set().union(*states) != set(pool.block_ids):
        problems.append("some block is in no state or in two")
    problems += [f"block {block_id} is held by nobody" for block_id, who in pool.holders.items() if not who]
    for block_id, holders in pool.holders.items():
        problems += [
            f"request {req_id} does not know that it holds block {block_id}"
            for req_id in holders
            if block_id not in pool.held_by(req_id)
        ]
    for req_id in pool.requests():
        problems += [
            f"request {req_id} thinks that it holds block {block_id}"
            for block_id in pool.held_by(req_id)
            if req_id not in pool.holders.get(block_id, ())
        ]
    if len(pool.leases) > pool.headroom:
        problems.append(f"{len(pool.leases)} blocks are leased, the headroom is {pool.headroom}")
    return problems


def packed_layout(table: TokenTable, req_id: str) -> list[str]:
    """I7: every index below the resident length holds a token, and they are in logical order."""
    resident = table.resident_tokens(req_id)
    problems = []
    if HOLE in resident:
        problems.append(f"request {req_id} has a hole at index {resident.index(HOLE)}")
    if any(left >= right for left, right in zip(resident, resident[1:], strict=False)):
        problems.append(f"request {req_id} has its tokens out of order")
    return problems
