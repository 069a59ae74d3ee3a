"""The scheduler gives out blocks, lends them, and takes them back.

Source: paper 3.3.2.
"""

from vtoken_ref import events as ev
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import State


def alloc(state: State, event: ev.Alloc) -> None:
    """Append free blocks to a request's list."""
    request = state.request(event.req_id)
    if not request.block_ids:
        check_backpressure(state, event.req_id)
    state.pool.alloc(event.req_id, event.block_ids)

    request.block_ids.extend(event.block_ids)
    if state.is_async:
        request.new_blocks.extend(event.block_ids)
    else:
        state.workers[event.req_id].block_ids.extend(event.block_ids)


def lease(state: State, event: ev.Lease) -> None:
    """Lend free blocks to a request, as destinations of a plan to come."""
    request = state.request(event.req_id, event.epoch)
    oldest = next(iter(state.deferred), event.req_id)
    if oldest != event.req_id:
        raise VTokenError(
            Rule.LEASE_ORDER, f"request {event.req_id} gets a lease before {oldest}, which has waited longer"
        )
    state.pool.lease(event.req_id, event.block_ids)

    if len(state.pool.leased_to(event.req_id)) >= state.deferred.get(event.req_id, 0):
        state.deferred.pop(event.req_id, None)
    if state.is_async:
        request.new_leases.extend(event.block_ids)
    else:
        worker = state.workers[event.req_id]
        worker.leased.extend(event.block_ids)
        worker.wants = state.deferred.get(event.req_id, 0)


def free(state: State, event: ev.Free) -> None:
    """Return fenced blocks, which nothing can touch any more, to the free list."""
    state.pool.free(event.block_ids, state.hazards())


def check_backpressure(state: State, req_id: str) -> None:
    """Refuse a request its first blocks while a plan waits for destinations.

    Raises:
        VTokenError: backpressure.

    """
    if state.deferred:
        oldest = next(iter(state.deferred))
        raise VTokenError(
            Rule.BACKPRESSURE, f"request {req_id} gets its first blocks while the plan of {oldest} waits"
        )
