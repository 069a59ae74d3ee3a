"""Forwards: the scheduler decides one, the worker starts it, tokens are written, it ends.

Source: paper 3.4.
"""

from vtoken_ref import events as ev
from vtoken_ref.kv_hash import is_fingerprint
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import OVERWRITTEN, ForwardInFlight, State, StepRequest, WorkerRequest
from vtoken_ref.transitions.prefix_cache import register_shared
from vtoken_ref.transitions.requests import forget


def forward(state: State, event: ev.Forward) -> None:
    """Begin, start or end a forward."""
    {"begin": _begin, "start": _start, "end": _end}[event.phase](state, event)


# The scheduler decides.


def _begin(state: State, event: ev.Forward) -> None:
    is_repeated = len({read.req_id for read in event.reads}) != len(event.reads)
    is_early = event.step <= state.last_step or len(state.steps) > state.config.async_depth
    if is_early or is_repeated:
        raise VTokenError(
            Rule.STEP_ORDER,
            f"forward {event.step} begins after {state.last_step}, in flight {sorted(state.steps)}",
        )
    for read in event.reads:
        _check_scheduled(state, read)
        if not state.is_async:
            _check_start(state, read, state.workers[read.req_id].block_ids, state.length(read.req_id))

    message = {read.req_id: _tell(state, read) for read in event.reads}
    reads = {read.req_id: read for read in event.reads}
    state.forwards[event.step] = ForwardInFlight(reads, message, tuple(state.to_forget))
    state.steps[event.step] = event.reads
    if state.is_async:
        told = (block_id for request in message.values() for block_id in request.new_leases)
        state.told_leases[event.step] = tuple(told)
    state.to_forget.clear()
    state.last_step = event.step
    if state.config.reclaim is not None:
        state.gate.begin_step(state.config.reclaim, event.step, len(state.pool.free_blocks))
    if not state.is_async:
        _run(state, event.step)


def _check_scheduled(state: State, read: ev.Read) -> None:
    """Hold what the scheduler decides to what it knows."""
    request, block_size = state.request(read.req_id, read.epoch), state.config.block_size
    length = request.length + read.num_query
    may_recycle = read.length == request.length and _may_recycle(state, read)
    if read.num_query < 1 or not (read.length == length or may_recycle):
        raise VTokenError(
            Rule.LENGTH_MISMATCH,
            f"request {read.req_id} has {length} tokens with this forward, not {read.length}",
        )
    if read.length > len(request.block_ids) * block_size:
        raise VTokenError(
            Rule.CAPACITY,
            f"request {read.req_id} has {len(request.block_ids)} blocks for {read.length} tokens",
        )
    if state.is_async and read.num_query > state.config.max_query:
        raise VTokenError(
            Rule.TAIL_CAPACITY,
            f"a step computes {read.num_query} tokens of {read.req_id}, at most {state.config.max_query}",
        )
    written = request.block_ids[request.length // block_size : -(-length // block_size)]
    for block_id in () if may_recycle else written:
        if state.pool.is_protected(block_id):
            raise VTokenError(
                Rule.SHARED_WRITE, f"request {read.req_id} would write into block {block_id}, which is shared"
            )


def _may_recycle(state: State, read: ev.Read) -> bool:
    """Tell whether a forward may be announced to write its one token over a dead one."""
    is_allowed = state.config.strategy in (None, "recycle") and not state.is_async
    return is_allowed and read.num_query == 1 and bool(recyclable_slots(state, read.req_id))


def _tell(state: State, read: ev.Read) -> StepRequest:
    """Move what the scheduler has to tell of a request into the step message."""
    request = state.requests[read.req_id]
    message = StepRequest(
        request.num_prompt_tokens,
        request.budget,
        tuple(request.new_blocks),
        tuple(request.new_leases),
        request.new_shared,
    )
    request.new_blocks, request.new_leases, request.new_shared = [], [], ()
    request.num_tokens += read.num_query
    request.length = read.length
    return message


# The worker starts.


def _start(state: State, event: ev.Forward) -> None:
    waiting = [step for step, forward in state.forwards.items() if not forward.is_started]
    is_running = len(waiting) < len(state.forwards) or state.reported is not None
    if not waiting or is_running or event.step != waiting[0]:
        raise VTokenError(
            Rule.MESSAGE_ORDER, f"forward {event.step} starts, waiting are {waiting} and one may be running"
        )
    forward = state.forwards[event.step]
    if event.reads != tuple(forward.reads.values()):
        raise VTokenError(Rule.MESSAGE_ORDER, f"forward {event.step} starts with other reads than it began")
    for read in event.reads:
        is_new = not state.is_worked(read.req_id, read.epoch)
        message = forward.message[read.req_id]
        known = [] if is_new else state.workers[read.req_id].block_ids
        length = len(message.shared) if is_new else state.length(read.req_id)
        _check_start(state, read, [*known, *message.new_blocks], length)

    for req_id, epoch in forward.ended_epochs:
        if state.is_worked(req_id, epoch):
            forget(state, req_id)
        if (req_id, epoch) in state.retiring:
            state.retiring[req_id, epoch] = event.step
    for read in event.reads:
        _hear(state, read, forward.message[read.req_id])
    _run(state, event.step)


def _hear(state: State, read: ev.Read, message: StepRequest) -> None:
    """Take in what a step message tells of one request."""
    if not state.is_worked(read.req_id, read.epoch):
        state.workers[read.req_id] = WorkerRequest(read.epoch, message.num_prompt_tokens, message.budget)
    worker = state.workers[read.req_id]
    worker.block_ids.extend(message.new_blocks)
    worker.made_for.extend(message.new_blocks)
    worker.leased.extend(message.new_leases)
    worker.known_leases.extend(message.new_leases)
    if len(worker.leased) >= worker.wants:
        worker.wants = worker.told_wants = 0
    if message.shared:
        register_shared(state, read.req_id, message.shared)
        worker.told_length = len(message.shared)
    worker.told_length += read.num_query


def _check_start(state: State, read: ev.Read, block_ids: list[int], length: int) -> None:
    """Hold a forward to what the worker knows when it starts."""
    is_worked = state.is_worked(read.req_id, read.epoch)
    worker = state.workers[read.req_id] if is_worked else None
    block_size = state.config.block_size
    if state.is_async and length + read.num_query > len(block_ids) * block_size:
        raise VTokenError(
            Rule.CAPACITY,
            f"the worker has {len(block_ids)} blocks for {length + read.num_query} tokens of {read.req_id}",
        )
    if worker is None:
        return
    is_decode = state.num_tokens(read.req_id) >= worker.num_prompt_tokens
    if is_decode and worker.budget is not None and state.num_live(read.req_id) > worker.budget:
        raise VTokenError(
            Rule.BUDGET_EXCEEDED,
            f"request {read.req_id} has {state.num_live(read.req_id)} live tokens, budget {worker.budget}",
        )
    if worker.plan is None:
        return
    written = block_ids[length // block_size : -(-(length + read.num_query) // block_size)]
    is_overwriting = worker.plan.plan.strategy == "in_place"
    if state.config.view == "packed" or is_overwriting or worker.plan.blocks & set(written):
        raise VTokenError(
            Rule.FORWARD_DURING_PLAN,
            f"a forward of request {read.req_id} begins in the middle of its plan",
        )


def _run(state: State, step: int) -> None:
    forward = state.forwards[step]
    forward.is_started = True
    for req_id in forward.reads:
        forward.first_new_token[req_id] = state.num_tokens(req_id)
        state.workers[req_id].in_forward = step


# Tokens are written.


def sync(state: State, event: ev.Sync) -> None:
    """Register tokens that the running forward has written."""
    worker = state.worker(event.req_id, event.epoch)
    num_new = len(event.vocab_ids)
    if worker.in_forward is None or num_new > state.num_unwritten(event.req_id, worker):
        raise VTokenError(
            Rule.SYNC_OUTSIDE_FORWARD,
            f"request {event.req_id} writes {num_new} tokens that no forward in flight computes",
        )
    first = state.num_tokens(event.req_id)
    if event.first_token_id != first or not num_new == len(event.slots) == len(event.fingerprints):
        raise VTokenError(
            Rule.TOKEN_IDS,
            f"request {event.req_id} writes token {event.first_token_id} and on, the next one is {first}",
        )
    if not all(map(is_fingerprint, event.fingerprints)):
        raise VTokenError(
            Rule.TRACE_FIELD,
            f"request {event.req_id} has a fingerprint that is not 16 hexadecimal digits",
        )
    _check_vocab_ids(state, event)
    is_recycled = _check_slots(state, event, worker)

    if is_recycled:
        state.table.recycle_slot(event.req_id, event.slots[0])
    else:
        state.table.sync_new_tokens(event.req_id, worker.block_ids, first + num_new)
    worker.fingerprints.extend(event.fingerprints)
    state.memory.update(zip(event.slots, event.fingerprints, strict=True))
    if state.is_current(event.req_id, event.epoch):
        known = state.requests[event.req_id].vocab_ids
        known[first:] = [*event.vocab_ids, *known[first + num_new :]]
    if is_recycled:
        worker.resident_entries = None
    elif worker.resident_entries is not None:
        for token_id in range(first, first + num_new):
            worker.resident_entries += state.entry(worker, token_id)


def _check_vocab_ids(state: State, event: ev.Sync) -> None:
    """Hold a forward to the request's prompt and outputs; of a dead epoch nothing is known any more."""
    if not state.is_current(event.req_id, event.epoch):
        return
    request, last = state.requests[event.req_id], event.first_token_id + len(event.vocab_ids)
    known = request.vocab_ids[event.first_token_id : last]
    num_known = request.num_known
    if state.is_async:
        # The output of the step before is sampled on the device and not yet told.
        num_known = request.num_prompt_tokens + request.num_sampled + state.config.async_depth
    if list(event.vocab_ids[: len(known)]) != known or last > num_known:
        raise VTokenError(
            Rule.TOKEN_DIFFERS,
            f"request {event.req_id} computes tokens at {event.first_token_id} that are not its prompt"
            " or its outputs",
        )


def _check_slots(state: State, event: ev.Sync, worker: WorkerRequest) -> bool:
    """Tell whether a token is recycled into a dead slot; otherwise the next slots must be written."""
    is_recycled = len(event.slots) == 1 and _recycles(state, event.req_id, worker)
    if is_recycled and event.req_id in state.table:
        if event.slots[0] in recyclable_slots(state, event.req_id):
            return True
        if event.slots[0] in state.table.dead_slots(event.req_id):
            raise VTokenError(
                Rule.RECYCLE,
                f"slot {event.slots[0]} of {event.req_id} is shared or part of its plan in flight",
            )
    expected = state.table.next_slots(event.req_id, worker.block_ids, len(event.slots))
    if list(event.slots) != expected:
        _reject_slots(state, event, expected)
    _check_announced(state, event, worker)
    return False


def _check_announced(state: State, event: ev.Sync, worker: WorkerRequest) -> None:
    """With async depth 0 a forward that was announced to write over a dead token writes nowhere else."""
    read = state.read_in_flight(event.req_id, worker)
    if read is None or state.is_async:
        return
    length = state.length(event.req_id) + len(event.slots)
    if length > read.length:
        raise VTokenError(
            Rule.LENGTH_MISMATCH,
            f"request {event.req_id} would be {length} long in a forward that is to leave {read.length}",
        )


def _recycles(state: State, req_id: str, worker: WorkerRequest) -> bool:
    """Tell whether the running forward may write its one token over a dead one."""
    read = state.read_in_flight(req_id, worker)
    if read is None:
        return False
    is_allowed = state.config.strategy in (None, "recycle") and read.num_query == 1
    return is_allowed and (state.is_async or read.length == state.length(req_id))


def recyclable_slots(state: State, req_id: str) -> list[int]:
    """Return the dead slots of a request that a new token may be written over."""
    if req_id not in state.table:
        return []
    plan = state.workers[req_id].plan
    in_plan, is_protected = plan.blocks if plan else set(), state.protection(req_id)
    slots = []
    for slot in state.table.dead_slots(req_id):
        block_id = slot // state.config.block_size
        if not is_protected(block_id) and block_id not in in_plan:
            slots.append(slot)
    return slots


def _reject_slots(state: State, event: ev.Sync, expected: list[int]) -> None:
    if len(set(event.slots)) != len(event.slots):
        raise VTokenError(Rule.SLOT_USED_TWICE, f"request {event.req_id} writes one slot twice")
    slot, wanted = next(p for p in zip(event.slots, expected, strict=True) if p[0] != p[1])
    owner = state.table.live_owner(slot)
    if owner is not None:
        raise VTokenError(
            Rule.SLOT_OCCUPIED,
            f"request {event.req_id} writes slot {slot} of live token {owner[1]} of {owner[0]}",
        )
    raise VTokenError(
        Rule.SLOT_MISMATCH, f"request {event.req_id} writes slot {slot}, its next slot is {wanted}"
    )


# The forward ends.


def _end(state: State, event: ev.Forward) -> None:
    forward = state.forwards.get(event.step)
    begun = {(read.req_id, read.epoch) for read in forward.reads.values()} if forward else set()
    ended = [(read.req_id, read.epoch) for read in event.reads]
    if forward is None or not forward.is_started or set(ended) != begun or len(ended) != len(begun):
        raise VTokenError(
            Rule.STEP_ORDER,
            f"forward {event.step} ends, in flight are {sorted(state.forwards)} with other requests",
        )
    worked = [read for read in event.reads if state.is_worked(read.req_id, read.epoch)]
    for read in worked:
        _check_read_end(state, read, forward)

    for slot in forward.frozen_writes:
        state.memory[slot] = OVERWRITTEN
    del state.forwards[event.step]
    for read in worked:
        state.workers[read.req_id].in_forward = None
    if state.is_async:
        state.reported = event.step
        return
    del state.steps[event.step]
    for read in worked:
        state.requests[read.req_id].length = state.length(read.req_id)
        state.awaiting_output[read.req_id] = (event.step, state.num_tokens(read.req_id))


def _check_read_end(state: State, read: ev.Read, forward: ForwardInFlight) -> None:
    begun = forward.reads[read.req_id]
    num_synced = state.num_tokens(read.req_id) - forward.first_new_token[read.req_id]
    is_packed = state.config.view == "packed"
    num_read = state.length(read.req_id) if is_packed else state.num_live(read.req_id)
    if (read.num_query, read.length) != (begun.num_query, num_read) or num_synced != read.num_query:
        raise VTokenError(
            Rule.LENGTH_MISMATCH,
            f"request {read.req_id} ends a forward of {begun.num_query} tokens with {read.num_query} of"
            f" {read.length}, the table has {num_synced} of {num_read}",
        )
    if read.digest != state.visible_digest(read.req_id):
        raise VTokenError(
            Rule.KV_VISIBLE,
            f"attention of request {read.req_id} read {read.digest}, the visible tokens are"
            f" {state.visible_digest(read.req_id)}",
        )


def output(state: State, event: ev.Output) -> None:
    """Take the token that was sampled for a request."""
    request = state.request(event.req_id, event.epoch)
    step, position = state.awaiting_output.get(event.req_id, (-1, -1))
    is_due = step == event.step and position == request.num_prompt_tokens + request.num_sampled
    if not is_due or len(event.vocab_ids) != 1:
        raise VTokenError(
            Rule.OUTPUT_UNKNOWN, f"request {event.req_id} has no output to come from forward {event.step}"
        )
    told = request.vocab_ids[position:]
    if told and told[0] != event.vocab_ids[0]:
        raise VTokenError(
            Rule.TOKEN_DIFFERS,
            f"request {event.req_id} has computed {told[0]} for output {event.vocab_ids[0]}",
        )

    del state.awaiting_output[event.req_id]
    request.num_sampled += 1
    request.vocab_ids[position:] = [*event.vocab_ids, *told[1:]]
