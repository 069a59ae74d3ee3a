"""The worker reports a step, the scheduler takes the report (async depth 1).

Source: paper 3.4.
Differs from source: the paper does not say how scheduler and worker agree.
"""

from vtoken_ref import events as ev
from vtoken_ref.protocol import given_up, merged_block_list
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import State, WorkerRequest


def report(state: State, event: ev.Report) -> None:
    """Send what a step has changed to the scheduler."""
    if event.step != state.reported:
        raise VTokenError(
            Rule.MESSAGE_ORDER, f"step {event.step} is reported, the worker is at {state.reported}"
        )
    unfinished = [
        req_id for req_id, w in state.workers.items() if w.plan and w.plan.plan.strategy == "in_place"
    ]
    if unfinished or state.orphans:
        late = min([*unfinished, *(req_id for req_id, _ in state.orphans)])
        raise VTokenError(
            Rule.PLAN_UNFINISHED, f"step {event.step} is reported while request {late} is copied"
        )
    told = {layout.req_id: layout for layout in event.layouts}
    if len(told) != len(event.layouts) or not told.keys() <= state.workers.keys():
        raise VTokenError(
            Rule.REPORT_DIFFERS, f"the report of step {event.step} names a request twice or wrongly"
        )
    for req_id, worker in state.workers.items():
        layout = layout_of(state, req_id, worker)
        if req_id in told and told[req_id] != layout:
            raise VTokenError(
                Rule.REPORT_DIFFERS, f"the report says {told[req_id]}, the worker has {layout} of {req_id}"
            )
        if req_id not in told and is_changed(state, req_id, worker):
            raise VTokenError(
                Rule.REPORT_DIFFERS, f"the report of step {event.step} leaves out request {req_id}"
            )

    state.reports[event.step] = event
    state.reported = None
    for req_id in told:
        worker = state.workers[req_id]
        worker.made_for, worker.known_leases = list(worker.block_ids), list(worker.leased)
        worker.told_length, worker.told_wants = state.length(req_id), worker.wants


def layout_of(state: State, req_id: str, worker: WorkerRequest) -> ev.Layout:
    """Return what the worker has to say of a request now."""
    return ev.Layout(
        req_id,
        worker.epoch,
        tuple(worker.made_for),
        tuple(worker.block_ids),
        state.num_tokens(req_id),
        state.length(req_id),
        tuple(worker.leased),
        worker.wants,
    )


def is_changed(state: State, req_id: str, worker: WorkerRequest) -> bool:
    """Tell whether the scheduler would think wrongly of a request if it were not told."""
    return (
        worker.block_ids != worker.made_for
        or worker.leased != worker.known_leases
        or state.length(req_id) != worker.told_length
        or worker.wants != worker.told_wants
    )


def deliver(state: State, event: ev.Deliver) -> None:
    """Take a report: replace lists, take blocks back, lift fences."""
    if event.step not in state.reports or event.step != next(iter(state.steps)):
        raise VTokenError(Rule.MESSAGE_ORDER, f"the report of step {event.step} is not the next one")
    layouts = [
        layout
        for layout in state.reports[event.step].layouts
        if state.is_current(layout.req_id, layout.epoch)
    ]
    merged = {layout.req_id: _merged(state, layout, event.step) for layout in layouts}

    del state.reports[event.step]
    reads = state.steps.pop(event.step)
    del state.told_leases[event.step]
    for layout in layouts:
        _apply(state, layout, merged[layout.req_id])
    for read in reads:
        if state.is_current(read.req_id, read.epoch):
            later = sum(r.num_query for r in state.steps_of(read.req_id, read.epoch))
            position = state.requests[read.req_id].num_tokens - later
            state.awaiting_output[read.req_id] = (event.step, position)
    for key, told in list(state.retiring.items()):
        if told is not None and told <= event.step:
            del state.retiring[key]


def _merged(state: State, layout: ev.Layout, step: int) -> list[int]:
    request = state.requests[layout.req_id]
    later = sum(
        read.num_query
        for at, reads in state.steps.items()
        for read in reads
        if at > step and (read.req_id, read.epoch) == (layout.req_id, layout.epoch)
    )
    if layout.num_tokens != request.num_tokens - later:
        raise VTokenError(
            Rule.REPORT_BASE,
            f"report of {layout.req_id} counts {layout.num_tokens} tokens, not {request.num_tokens - later}",
        )
    return merged_block_list(layout.req_id, request.block_ids, layout.made_for, layout.block_ids)


def _apply(state: State, layout: ev.Layout, merged: list[int]) -> None:
    """Replace what the scheduler thinks of a request; the step of the report is over."""
    request, pool = state.requests[layout.req_id], state.pool
    adopted = tuple(block_id for block_id in layout.block_ids if block_id not in layout.made_for)
    pool.adopt(layout.req_id, adopted)
    not_heard = {*request.new_leases, *(b for told in state.told_leases.values() for b in told)}
    unused = [
        block_id
        for block_id in pool.leased_to(layout.req_id)
        if block_id not in layout.leased_blocks and block_id not in not_heard
    ]
    released = (*given_up(layout.made_for, layout.block_ids), *unused)
    pool.release(layout.req_id, released, state.hazards_of(layout.req_id, layout.epoch))
    request.block_ids = merged
    request.length = layout.length + sum(
        read.num_query for read in state.steps_of(layout.req_id, layout.epoch)
    )
    if layout.wants > len(pool.leased_to(layout.req_id)):
        state.deferred[layout.req_id] = layout.wants
    else:
        state.deferred.pop(layout.req_id, None)
