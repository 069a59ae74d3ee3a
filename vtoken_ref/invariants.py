"""The invariants as predicates on whole states: each returns what is wrong, nothing when it holds.

The transitions keep these by their own checks; the predicates are the independent statement that
the explorer, the state machines, tests and ``vtoken replay --paranoid`` evaluate.

Source: paper 3.5.
"""

from collections.abc import Callable, Collection, Iterable

from vtoken_ref.events import PlanStrategy
from vtoken_ref.planner import Relocation, check_relocation
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import State
from vtoken_ref.table import HOLE, TokenTable


def violations(state: State) -> list[tuple[Rule, str]]:
    """Evaluate every invariant that is a predicate on a state.

    Returns:
        What is wrong, with the rule under which it is reported.

    """
    dead = [r for r, worker in state.workers.items() if not state.is_current(r, worker.epoch)]
    problems = [(Rule.SLOT_USED_TWICE, text) for text in unique_mapping(state.table, state.pool, dead)]
    problems += [(Rule.KV_CHANGED, text) for text in kv_content(state)]
    problems += [(Rule.LEAK, text) for text in pool_accounting(state.pool)]
    problems += [(Rule.NOT_HELD, text) for text in holding(state)]
    if state.config.view == "packed":
        ordered = state.config.strategy in ("in_place", "out_of_place")
        for req_id in state.table.requests():
            problems += [(Rule.PLAN_PACKED, text) for text in packed_layout(state.table, req_id, ordered)]
        problems += [(Rule.QUERY_NOT_LAST, text) for text in query_last(state)]
    problems += [(Rule.CAPACITY, text) for text in agreement(state)]
    return problems


def kv_content(state: State) -> list[str]:
    """I1: memory holds the KV of every live token, at its old slot until it is copied, then at the new.

    What is shared from the prefix cache is held unchanged as well.
    """
    problems = []
    for req_id, worker in state.workers.items():
        if req_id not in state.table:
            continue
        for token_id in state.visible_tokens(req_id):
            places = [state.table.slot(req_id, token_id)]
            move = worker.plan.moves.get(token_id) if worker.plan else None
            if worker.plan and move and token_id in worker.plan.copied:
                places.append(move.dst_slot)
                if worker.plan.plan.strategy == "in_place":
                    places = [move.dst_slot]
            if worker.plan and worker.plan.copied and not state.table.is_live(req_id, token_id):
                continue
            problems += [
                f"slot {slot} does not hold token {token_id} of request {req_id}"
                for slot in places
                if state.memory.get(slot) != worker.fingerprints[token_id]
            ]
    for block_id, prefix in state.pool.cached.items():
        first = (len(prefix.fingerprints) - 1) // state.config.block_size * state.config.block_size
        for offset, fingerprint in enumerate(prefix.fingerprints[first:]):
            if state.memory.get(block_id * state.config.block_size + offset) != fingerprint:
                problems.append(f"cached block {block_id} has changed at offset {offset}")
    return problems


def holding(state: State) -> list[str]:
    """I6: whoever lists a block holds it; a request's block list and its leases are its own."""
    problems = []
    for req_id, request in state.requests.items():
        held = state.pool.held_by(req_id)
        problems += [
            f"request {req_id} lists block {block_id}, which it does not hold"
            for block_id in request.block_ids
            if block_id not in held
        ]
    for req_id, worker in state.workers.items():
        if not state.is_current(req_id, worker.epoch):
            continue
        held = state.pool.held_by(req_id)
        leased = set(state.pool.leased_to(req_id))
        problems += [
            f"the worker lists block {block_id} for {req_id}, which neither holds nor leases it"
            for block_id in [*worker.block_ids, *worker.leased]
            if block_id not in held and block_id not in leased
        ]
    return problems


def query_last(state: State) -> list[str]:
    """I7: under the packed view the query tokens of a forward are the last ones, in order.

    A single query token may stand anywhere: it sees every other token.
    """
    problems = []
    for req_id, worker in state.workers.items():
        read = state.read_in_flight(req_id, worker)
        if read is None or worker.in_forward is None or read.num_query == 1:
            continue
        first = state.forwards[worker.in_forward].first_new_token[req_id]
        new = list(range(first, state.num_tokens(req_id)))
        if new and state.table.last_tokens(req_id, len(new)) != new:
            problems.append(f"the query tokens of request {req_id} are not the last ones, in order")
    return problems


def agreement(state: State) -> list[str]:
    """I8: what the scheduler has given covers every token under way, whatever the worker does first.

    For each request the worker's blocks and those on their way to it have a slot for each resident
    token and each token of the steps that have begun. When no message is under way, the scheduler has
    what the worker has told.
    """
    problems = []
    for req_id, request in state.requests.items():
        if not state.is_worked(req_id, request.epoch):
            continue
        worker = state.workers[req_id]
        num_new, blocks = state.num_unwritten(req_id, worker), list(worker.block_ids)
        for forward in state.forwards.values():
            read = forward.reads.get(req_id)
            if not forward.is_started and read is not None and read.epoch == request.epoch:
                num_new += read.num_query
                blocks += forward.message[req_id].new_blocks
        is_recycled = worker.in_forward is not None and request.length == state.length(req_id)
        needed = state.length(req_id) + (0 if is_recycled and not state.is_async else num_new)
        if needed > len(blocks) * state.config.block_size:
            problems.append(f"request {req_id} needs {needed} slots and has {len(blocks)} blocks")
        told_blocks, told_length = worker.block_ids, state.length(req_id)
        if state.is_async:
            told_blocks, told_length = worker.made_for, worker.told_length
        if not state.steps and [*told_blocks, *request.new_blocks] != request.block_ids:
            problems.append(f"scheduler and worker do not agree on the blocks of request {req_id}")
        if not state.steps and request.length != told_length:
            problems.append(f"scheduler and worker do not agree on the length of request {req_id}")
    return problems


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


def unique_mapping(table: TokenTable, pool: BlockPool, dead: Collection[str] = ()) -> list[str]:
    """I2: each live token has exactly one slot, each slot serves at most one token.

    Slots of a shared block may serve the same token id of each of its holders. What is left of ``dead``
    requests serves nobody.
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
            if req_id in dead:
                continue
            other = owner.setdefault(slot, (req_id, token_id))
            same_shared = other[1] == token_id and pool.is_protected(block_id)
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
    strategy: PlanStrategy,
    relocation: Relocation,
    is_protected: Callable[[int], bool],
    is_leased: Callable[[int], bool],
) -> list[str]:
    """I4: a plan matches the layout, strictly reduces blocks and touches no shared block."""
    try:
        check_relocation(table, req_id, strategy, relocation, is_protected, is_leased)
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
    problems += [
        f"block {block_id} is cached and {pool.state(block_id)}"
        for block_id in pool.cached
        if block_id in pool.leases or block_id not in pool.block_ids
    ]
    if len(pool.leases) > pool.headroom:
        problems.append(f"{len(pool.leases)} blocks are leased, the headroom is {pool.headroom}")
    return problems


def packed_layout(table: TokenTable, req_id: str, ordered: bool = True) -> list[str]:
    """I7: every index below the resident length holds a token, and unless recycled, in logical order."""
    resident = table.resident_tokens(req_id)
    problems = []
    if HOLE in resident:
        problems.append(f"request {req_id} has a hole at index {resident.index(HOLE)}")
    if ordered and any(left >= right for left, right in zip(resident, resident[1:], strict=False)):
        problems.append(f"request {req_id} has its tokens out of order")
    return problems
