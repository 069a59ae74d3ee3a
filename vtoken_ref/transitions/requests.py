"""Requests enter, lose their blocks, end; the run ends.

Source: paper 3.4.
"""

from vtoken_ref import events as ev
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import SchedulerRequest, State, WorkerRequest


def admit(state: State, event: ev.Admit) -> None:
    """Let a request enter."""
    if event.req_id in state.requests or event.req_id in state.ended:
        raise VTokenError(Rule.REQUEST_EXISTS, f"request {event.req_id} was admitted before")
    if event.num_prompt_tokens < 1 or (event.budget is not None and event.budget < 1):
        raise VTokenError(Rule.TRACE_FIELD, f"request {event.req_id} has no prompt or no budget")

    request = SchedulerRequest(event.num_prompt_tokens, event.budget)
    state.requests[event.req_id] = request
    if not state.is_async:
        state.workers[event.req_id] = WorkerRequest(0, event.num_prompt_tokens, event.budget)


def preempt(state: State, event: ev.Preempt) -> None:
    """Take everything from a request, which starts over in the next epoch."""
    request = state.request(event.req_id, event.epoch)

    _end_epoch(state, event.req_id)
    state.requests[event.req_id] = SchedulerRequest(
        request.num_prompt_tokens,
        request.budget,
        epoch=request.epoch + 1,
        vocab_ids=request.vocab_ids,
        num_sampled=request.num_sampled,
    )
    if not state.is_async:
        state.workers[event.req_id] = WorkerRequest(
            request.epoch + 1, request.num_prompt_tokens, request.budget
        )


def abort(state: State, event: ev.Abort) -> None:
    """End a request that its client gave up."""
    state.request(event.req_id, event.epoch)

    _end_request(state, event.req_id)


def finish(state: State, event: ev.Finish) -> None:
    """End a request that is complete."""
    state.request(event.req_id, event.epoch)

    _end_request(state, event.req_id)


def end(state: State, event: ev.End) -> None:
    """End the run: nothing is left, and what the runtime counted is so."""
    if state.steps:
        raise VTokenError(Rule.STEP_ORDER, f"forward {min(state.steps)} has not ended")
    if state.requests:
        raise VTokenError(Rule.REQUEST_LEFT, f"request {min(state.requests)} has not ended")
    num_free = len(state.pool.free_blocks)
    if num_free != len(state.pool.block_ids):
        lost = next(b for b in state.pool.block_ids if b not in state.pool.free_blocks)
        raise VTokenError(Rule.LEAK, f"block {lost} is {state.pool.state(lost)} at the end")
    counts = (state.num_events, len(state.ended), num_free)
    if (event.num_events, event.num_requests, event.num_free_blocks) != counts:
        raise VTokenError(
            Rule.TRACE_COUNTS,
            f"the end counts {event.num_events} events, {event.num_requests} requests and"
            f" {event.num_free_blocks} free blocks; there are {counts[0]}, {counts[1]} and {counts[2]}",
        )

    state.is_over = True


def forget(state: State, req_id: str) -> None:
    """Let the worker forget a request; what is under way for it goes on as a ghost of itself."""
    worker = state.workers.pop(req_id)
    if worker.in_forward is not None:
        forward = state.forwards[worker.in_forward]
        unwritten = state.num_unwritten(req_id, worker)
        forward.frozen_reads.setdefault(req_id, state.visible_slots(req_id))
        if forward.reads[req_id].length > state.length(req_id):
            forward.frozen_writes += state.table.next_slots(req_id, worker.block_ids, unwritten)
    if worker.plan is not None and worker.plan.remaining:
        state.orphans[req_id, worker.epoch] = worker.plan
    if req_id in state.table:
        state.table.drop(req_id)


def _end_epoch(state: State, req_id: str) -> None:
    """End the present epoch: all that the request has is fenced, also from what is still under way."""
    epoch = state.requests[req_id].epoch
    if not state.is_async:
        forget(state, req_id)
        if (req_id, epoch) in state.orphans:
            state.retiring[req_id, epoch] = None
    elif state.is_worked(req_id, epoch) or state.steps_of(req_id, epoch):
        state.to_forget.append((req_id, epoch))
        if state.pool.leased_to(req_id):
            state.retiring[req_id, epoch] = None
    state.pool.release_all(req_id, state.hazards_of(req_id, epoch))
    state.awaiting_output.pop(req_id, None)
    state.deferred.pop(req_id, None)


def _end_request(state: State, req_id: str) -> None:
    _end_epoch(state, req_id)
    del state.requests[req_id]
    state.ended.add(req_id)
