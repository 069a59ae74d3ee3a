"""The worker evicts, plans, copies, commits, and gives blocks up.

Source: paper 3.3, 3.5.
"""

from vtoken_ref import events as ev
from vtoken_ref.planner import Relocation, blocks_after, check_relocation
from vtoken_ref.reclaim import eligible
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import PlanInFlight, State, WorkerRequest

PLAN_STRATEGIES: dict[ev.Strategy | None, tuple[ev.PlanStrategy, ...]] = {
    None: ("out_of_place", "in_place", "copy_on_write"),
    "out_of_place": ("out_of_place", "copy_on_write"),
    "in_place": ("in_place", "copy_on_write"),
    "recycle": ("in_place", "copy_on_write"),
}


def evict(state: State, event: ev.Evict) -> None:
    """Mark tokens dead."""
    worker = state.worker(event.req_id, event.epoch)
    _check_window(state, event)
    if event.token_ids and event.req_id not in state.table:
        raise VTokenError(
            Rule.UNKNOWN_TOKEN, f"request {event.req_id} evicts a token before it has computed one"
        )
    if len(set(event.token_ids)) != len(event.token_ids):
        raise VTokenError(Rule.EVICTED_TWICE, f"request {event.req_id} evicts a token twice at once")
    sources = worker.plan.plan.source_blocks if worker.plan else ()
    for token_id in event.token_ids:
        state.table.check_live(event.req_id, token_id, Rule.EVICTED_TWICE)
        block_id = state.table.slot(event.req_id, token_id) // state.config.block_size
        if worker.in_forward is not None or block_id in sources:
            raise VTokenError(
                Rule.PROTECTED_TOKEN,
                f"token {token_id} of request {event.req_id} is evicted while it is moved or read",
            )

    for token_id in event.token_ids:
        state.table.evict_token(event.req_id, token_id)
    worker.num_evicted += len(event.token_ids)
    if event.token_ids:
        if worker.num_pure is None:
            worker.num_pure = state.num_tokens(event.req_id)
        if state.config.view == "indirect":
            worker.resident_entries = None


def defer(state: State, event: ev.Defer) -> None:
    """Let a plan wait for destinations."""
    worker = state.worker(event.req_id, event.epoch)
    _check_window(state, event)
    _check_attempt(state, event)
    if worker.plan is not None or worker.wants:
        raise VTokenError(Rule.DEFER, f"request {event.req_id} has another plan in flight or waiting")
    if not len(worker.leased) < event.num_blocks <= state.config.headroom:
        raise VTokenError(
            Rule.DEFER,
            f"request {event.req_id} waits for {event.num_blocks} destinations; it has {len(worker.leased)}"
            f" and the headroom is {state.config.headroom}",
        )

    worker.wants = event.num_blocks
    state.gate.num_attempts += 1
    if not state.is_async:
        state.deferred[event.req_id] = event.num_blocks


def plan(state: State, event: ev.Plan) -> None:
    """Begin a relocation."""
    worker = state.worker(event.req_id, event.epoch)
    _check_window(state, event)
    if worker.plan is not None:
        raise VTokenError(Rule.PLAN_OVERLAP, f"request {event.req_id} has another plan in flight")
    if event.strategy not in PLAN_STRATEGIES[state.config.strategy]:
        raise VTokenError(
            Rule.PLAN_STRATEGY, f"the plan of request {event.req_id} is {event.strategy}, the run is not"
        )
    if event.req_id not in state.table:
        raise VTokenError(Rule.PLAN_SOURCES, f"request {event.req_id} has no written blocks to plan for")
    _check_forward(state, event, worker)
    check_relocation(
        state.table,
        event.req_id,
        event.strategy,
        Relocation(event.source_blocks, event.destination_blocks, event.moves),
        state.protection(event.req_id),
        lambda block_id: block_id in worker.leased,
        view=state.config.view,
        reserve=num_reserved_slots(state, event.req_id),
    )
    if event.strategy != "copy_on_write":
        _check_attempt(state, event)
        _check_eligible(state, event)

    worker.plan = PlanInFlight(event, {move.token_id: move for move in event.moves})
    if event.strategy != "copy_on_write":
        state.gate.num_attempts += 1
        worker.wants = 0
        if not state.is_async:
            state.deferred.pop(event.req_id, None)


def copy(state: State, event: ev.Copy) -> None:
    """Take note that the KV of some tokens of a plan is complete at its destinations.

    A plan of a dead epoch may still be copied: nobody else must notice.
    """
    flight = _plan_in_flight(state, event)
    tokens = set(event.token_ids)
    if not tokens <= flight.remaining or len(tokens) != len(event.token_ids):
        raise VTokenError(
            Rule.COPY_NOT_PLANNED,
            f"a copy of request {event.req_id} moves tokens that its plan does not, or again",
        )
    nbytes_per_token = state.config.nbytes_per_token
    if nbytes_per_token is not None and event.nbytes != nbytes_per_token * len(event.token_ids):
        raise VTokenError(
            Rule.COPY_BYTES,
            f"{len(event.token_ids)} tokens of {nbytes_per_token} bytes are not {event.nbytes} bytes",
        )
    moves = [flight.moves[token_id] for token_id in event.token_ids]
    written = {move.dst_slot for move in moves}
    for token_id in flight.remaining - tokens:
        if flight.moves[token_id].src_slot in written:
            raise VTokenError(
                Rule.COPY_ORDER,
                f"a copy of request {event.req_id} overwrites token {token_id} before it is copied",
            )
    for step, forward in state.forwards.items():
        if forward.is_started:
            for req_id, slots in state.slots_read(forward):
                if slots & written:
                    raise VTokenError(
                        Rule.COPY_OVER_READ,
                        f"a copy of request {event.req_id} overwrites what forward {step} reads of {req_id}",
                    )

    contents = [state.memory[move.src_slot] for move in moves]
    for move, content in zip(moves, contents, strict=True):
        state.memory[move.dst_slot] = content
    flight.copied |= tokens
    if not flight.remaining:
        _retire(state, event.req_id, event.epoch)


def commit(state: State, event: ev.Commit) -> None:
    """Switch the table to a plan's layout, in one step."""
    worker = state.worker(event.req_id, event.epoch)
    flight = _plan_in_flight(state, event)
    plan = flight.plan
    if flight.remaining:
        raise VTokenError(
            Rule.COMMIT_BEFORE_COPY,
            f"request {event.req_id} commits before token {min(flight.remaining)} is copied",
        )
    expected_blocks = blocks_after(worker.block_ids, plan.source_blocks, plan.destination_blocks)
    if event.moves != plan.moves or list(event.block_ids) != expected_blocks:
        raise VTokenError(
            Rule.COMMIT_DIFFERS, f"request {event.req_id} commits other moves or blocks than it planned"
        )
    _check_content(state, event, worker, flight)
    length = _length_after(state, worker, flight)
    if event.length != length:
        raise VTokenError(
            Rule.LENGTH_MISMATCH,
            f"request {event.req_id} has {length} tokens after its commit, not {event.length}",
        )
    num_freed = len(plan.source_blocks) - len(plan.destination_blocks)
    is_moved = length + num_freed * state.config.block_size != state.length(event.req_id)
    if worker.in_forward is not None and (is_moved or _is_recycling(state, event.req_id, worker)):
        raise VTokenError(
            Rule.LAYOUT_DURING_FORWARD,
            f"a commit of request {event.req_id} would move the end that forward {worker.in_forward} writes",
        )

    if worker.in_forward is not None:
        reads = state.forwards[worker.in_forward].frozen_reads
        reads.setdefault(event.req_id, state.visible_slots(event.req_id))
    if plan.strategy == "copy_on_write":
        state.table.replace_block(event.req_id, plan.source_blocks[0], plan.destination_blocks[0])
    else:
        listed = state.table.block_ids(event.req_id)
        after = blocks_after(listed, plan.source_blocks, plan.destination_blocks)
        state.table.apply_moves(event.req_id, event.moves, after, state.protection(event.req_id))
    worker.block_ids = expected_blocks
    worker.leased = [block_id for block_id in worker.leased if block_id not in plan.destination_blocks]
    worker.plan = None
    worker.resident_entries = None
    if not state.is_async:
        if plan.strategy != "in_place":
            state.pool.adopt(event.req_id, plan.destination_blocks)
        _agree(state, event.req_id, worker)


def cancel(state: State, event: ev.Cancel) -> None:
    """End a plan without a commit: none of its copies runs any more."""
    flight = _plan_in_flight(state, event)
    is_orphan = (event.req_id, event.epoch) in state.orphans
    if not is_orphan and flight.plan.strategy == "in_place" and flight.copied:
        raise VTokenError(
            Rule.CANCEL_OVERWRITTEN,
            f"the plan of request {event.req_id} is cancelled after {len(flight.copied)} tokens were moved",
        )

    if not is_orphan:
        state.workers[event.req_id].plan = None
    _retire(state, event.req_id, event.epoch)


def release(state: State, event: ev.Release) -> None:
    """Give up blocks: wholly dead ones, a committed plan's sources, leases that are not used."""
    worker = state.worker(event.req_id, event.epoch)
    _check_window(state, event)
    in_plan = worker.plan.blocks if worker.plan else set()
    for block_id in event.block_ids:
        if block_id in in_plan or _num_live_in(state, event.req_id, block_id):
            raise VTokenError(
                Rule.BLOCK_STILL_LIVE,
                f"request {event.req_id} releases block {block_id}, which it still uses",
            )
    if worker.in_forward is not None and set(event.block_ids) & set(worker.block_ids):
        raise VTokenError(
            Rule.LAYOUT_DURING_FORWARD,
            f"request {event.req_id} releases blocks that forward {worker.in_forward} reads",
        )
    if state.is_async:
        _check_report_of_release(state, event, worker)
    else:
        hazards = state.hazards_of(event.req_id, event.epoch)
        state.pool.release(event.req_id, event.block_ids, hazards)

    worker.block_ids = [block_id for block_id in worker.block_ids if block_id not in event.block_ids]
    worker.leased = [block_id for block_id in worker.leased if block_id not in event.block_ids]
    is_protected = state.protection(event.req_id)
    if event.req_id in state.table and state.table.release_blocks(
        event.req_id, event.block_ids, is_protected
    ):
        worker.resident_entries = None
    if not state.is_async:
        _agree(state, event.req_id, worker)


def num_reserved_slots(state: State, req_id: str) -> int:
    """Return the unwritten slots that the last written block must keep when it is relocated.

    With async depth 1 the scheduler may have counted on unwritten slots for a step under way; those of
    wholly unwritten blocks stay anyway.
    """
    if not state.is_async:
        return 0
    num_blocks = len(state.workers[req_id].block_ids)
    num_written = len(state.table.written_blocks(req_id)) if req_id in state.table else 0
    num_unwritten_slots = (num_blocks - num_written) * state.config.block_size
    return max(_num_tail_slots(state, req_id) - num_unwritten_slots, 0)


def _num_tail_slots(state: State, req_id: str) -> int:
    """Return the unwritten slots at a request's end that a step under way may need."""
    num_slots = len(state.workers[req_id].block_ids) * state.config.block_size
    return min(num_slots - state.length(req_id), state.config.max_query)


# Inside.


def _agree(state: State, req_id: str, worker: WorkerRequest) -> None:
    """Let the scheduler know at once, as it does with async depth 0."""
    request = state.requests[req_id]
    request.block_ids = list(worker.block_ids)
    if worker.in_forward is None:
        request.length = state.length(req_id)


def _check_window(state: State, event: ev.Evict | ev.Defer | ev.Plan | ev.Release) -> None:
    """With async depth 1 the worker decides after a forward and before it reports the step."""
    if state.is_async and state.reported is None:
        raise VTokenError(
            Rule.WORKER_IDLE, f"the {event.kind} of request {event.req_id} is outside the work on any step"
        )


def _check_attempt(state: State, event: ev.Plan | ev.Defer) -> None:
    config = state.config.reclaim
    if config is not None and not state.gate.may_attempt(config):
        raise VTokenError(
            Rule.RATE_LIMIT,
            f"the {event.kind} of request {event.req_id} is one attempt too many in this step",
        )


def _check_eligible(state: State, event: ev.Plan) -> None:
    config = state.config.reclaim
    if config is None:
        return
    if not state.gate.is_pressed or not eligible(state.table, event.req_id, config):
        raise VTokenError(
            Rule.NOT_ELIGIBLE, f"request {event.req_id} is relocated without need or without a block to win"
        )


def _check_forward(state: State, event: ev.Plan, worker: WorkerRequest) -> None:
    """Keep a plan clear of the forward that runs with its request."""
    if worker.in_forward is None:
        return
    is_recycling = _is_recycling(state, event.req_id, worker)
    if state.config.view == "packed" or event.strategy == "in_place" or is_recycling:
        raise VTokenError(
            Rule.LAYOUT_DURING_FORWARD,
            f"request {event.req_id} is planned for while forward {worker.in_forward} writes it",
        )
    first = state.forwards[worker.in_forward].first_new_token[event.req_id]
    unwritten = state.table.next_slots(
        event.req_id, worker.block_ids, state.num_unwritten(event.req_id, worker)
    )
    written = {slot // state.config.block_size for slot in unwritten}
    written |= {
        state.table.slot(event.req_id, token_id) // state.config.block_size
        for token_id in range(first, state.num_tokens(event.req_id))
    }
    if written & {*event.source_blocks, *event.destination_blocks}:
        raise VTokenError(
            Rule.LAYOUT_DURING_FORWARD,
            f"a source of request {event.req_id} is written by forward {worker.in_forward}",
        )


def _is_recycling(state: State, req_id: str, worker: WorkerRequest) -> bool:
    """Tell whether the running forward has still to write its one token over a dead one."""
    read = state.read_in_flight(req_id, worker)
    if read is None:
        return False
    return state.num_unwritten(req_id, worker) > 0 and read.length == state.length(req_id)


def _plan_in_flight(state: State, event: ev.Copy | ev.Commit | ev.Cancel) -> PlanInFlight:
    """Return the plan that an event names, also one of a dead epoch whose copies may still run."""
    flight = state.orphans.get((event.req_id, event.epoch))
    if flight is None:
        flight = state.worker(event.req_id, event.epoch).plan
    if flight is None or flight.plan.plan_id != event.plan_id:
        raise VTokenError(Rule.UNKNOWN_PLAN, f"request {event.req_id} has no plan {event.plan_id} in flight")
    return flight


def _retire(state: State, req_id: str, epoch: int) -> None:
    """Forget a plan of a dead epoch, no copy of which runs any more."""
    if state.orphans.pop((req_id, epoch), None) is not None and not state.is_async:
        del state.retiring[req_id, epoch]


def _check_content(state: State, event: ev.Commit, worker: WorkerRequest, flight: PlanInFlight) -> None:
    expected = state.live_digest(event.req_id)
    if event.digest_before != expected:
        raise VTokenError(
            Rule.KV_BEFORE,
            f"request {event.req_id} held {event.digest_before} before its commit, not {expected}",
        )
    for move in flight.moves.values():
        if state.memory[move.dst_slot] != worker.fingerprints[move.token_id]:
            raise VTokenError(
                Rule.KV_CHANGED,
                f"token {move.token_id} of request {event.req_id} was overwritten before it was copied",
            )
    if event.digest_after != expected:
        raise VTokenError(
            Rule.KV_CHANGED,
            f"request {event.req_id} holds {event.digest_after} after its commit, not {expected}",
        )


def _length_after(state: State, worker: WorkerRequest, flight: PlanInFlight) -> int:
    plan, req_id = flight.plan, flight.plan.req_id
    if plan.strategy == "copy_on_write":
        return state.length(req_id)
    listed = state.table.block_ids(req_id)
    after = blocks_after(listed, plan.source_blocks, plan.destination_blocks)
    return state.table.length_after(req_id, plan.moves, after, state.protection(req_id))


def _check_report_of_release(state: State, event: ev.Release, worker: WorkerRequest) -> None:
    """With async depth 1 the scheduler takes blocks back when it hears of it."""
    for index, block_id in enumerate(event.block_ids):
        is_had = block_id in worker.block_ids or block_id in worker.leased
        if not is_had or block_id in event.block_ids[:index]:
            raise VTokenError(Rule.NOT_HELD, f"the worker has no block {block_id} of request {event.req_id}")
    if event.req_id not in state.table:
        return
    kept = [block_id for block_id in worker.block_ids if block_id not in event.block_ids]
    listed = state.table.block_ids(event.req_id)
    still_listed = [block_id for block_id in listed if block_id in kept]
    length = state.length(event.req_id)
    if still_listed != listed:
        length = state.table.length_after(event.req_id, (), still_listed, state.protection(event.req_id))
    num_left = len(kept) * state.config.block_size - length
    # What a release leaves at the end, a plan in flight may take: it was made with the blocks of before.
    is_counted_on = worker.plan is not None and kept != worker.block_ids
    if is_counted_on or num_left < _num_tail_slots(state, event.req_id):
        raise VTokenError(
            Rule.TAIL_CAPACITY,
            f"{num_left} unwritten slots would be left at the end of {event.req_id}, a step may need more",
        )


def _num_live_in(state: State, req_id: str, block_id: int) -> int:
    return state.table.live_in_block(req_id, block_id) if req_id in state.table else 0
