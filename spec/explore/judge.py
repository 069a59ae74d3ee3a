"""What must hold of a state, and of a step from one state to the next."""

from collections.abc import Iterator
from typing import NamedTuple

from spec.explore.choices import Node
from spec.runtime import Runtime, content
from vtoken_ref import events as ev
from vtoken_ref.invariants import token_conservation, violations
from vtoken_ref.machine import Machine


class Problem(NamedTuple):
    """What is wrong.

    Attributes:
        aim: the invariant, or ``fact`` for an event that cannot be refused and was.
        text: a sentence.

    """

    aim: str
    text: str


RELOCATING = ("plan", "copy", "commit", "cancel", "release", "lease", "defer", "deliver", "report", "free")
"""Events that must leave the live tokens of every request as they are."""


# States.


def wrong_state(node: Node) -> Iterator[Problem]:
    """Yield what is wrong in a state."""
    runtime = node.runtime
    for rule, text in violations(runtime.machine):
        yield Problem(rule.invariant, text)
    yield from _cached_content(runtime.machine)
    yield from _touched_blocks(runtime)
    yield from _stuck(runtime)


def _cached_content(machine: Machine) -> Iterator[Problem]:
    """I1: what is shared is what the request that shares it would have computed."""
    for block_id, prefix in machine.pool.cached.items():
        for at, found in enumerate(prefix.fingerprints, 1):
            if found != content(prefix.vocab_ids[:at], True):
                yield Problem("I1", f"cached block {block_id} stands for tokens computed after an eviction")


def _touched_blocks(runtime: Runtime) -> Iterator[Problem]:
    """I5: what a forward reads is not given out otherwise, what a dead epoch may still write is fenced.

    With async depth 1 a forward may read a block that the scheduler takes for leased: it has not heard of
    the commit yet.
    """
    machine, block_size = runtime.machine, runtime.machine.config.block_size
    for req_id, slots in runtime.reads.items():
        for block_id in {slot // block_size for slot in slots.values()}:
            is_kept = block_id in machine.pool.holders or block_id in machine.pool.fences
            if not is_kept and machine.pool.leases.get(block_id) != req_id:
                state = machine.pool.state(block_id)
                yield Problem("I5", f"block {block_id} is {state} while a forward reads it for {req_id}")
    late = [slot for forward in machine.forwards.values() for slot in forward.frozen_writes]
    for flight in machine.orphans.values():
        late += [flight.moves[token_id].dst_slot for token_id in flight.remaining]
    for block_id in {slot // block_size for slot in late}:
        if machine.pool.state(block_id) != "fenced":
            state = machine.pool.state(block_id)
            yield Problem("I5", f"block {block_id} is {state} while a dead epoch may write it")


def _stuck(runtime: Runtime) -> Iterator[Problem]:
    """I9: a running forward can write its tokens, and blocks that nothing can touch do not stay fenced."""
    machine = runtime.machine
    for req_id, worker in machine.workers.items():
        if (
            worker.in_forward is not None
            and machine.num_unwritten(req_id, worker)
            and not runtime.syncs(req_id)
        ):
            yield Problem("I9", f"forward {worker.in_forward} has no slot for the next token of {req_id}")
    if (
        machine.requests
        or machine.steps
        or machine.retiring
        or machine.to_forget
        or machine.reported is not None
    ):
        return
    hazards = machine.hazards()
    for block_id, fence in machine.pool.fences.items():
        if fence & hazards:
            yield Problem("I9", f"block {block_id} stays fenced though nothing is under way")


# Steps.


def wrong_step(before: Node, event: ev.Event, after: Node) -> Iterator[Problem]:
    """Yield what an accepted event has done that it must not do."""
    if event.kind in RELOCATING:
        yield from _conservation(before.runtime.machine, after.runtime.machine)
    if isinstance(event, ev.Copy | ev.Sync):
        yield from _overwritten_reads(before.runtime, event)
    elif isinstance(event, ev.Forward) and event.phase != "end":
        yield from _over_budget(before.runtime.machine, event)


def _conservation(before: Machine, after: Machine) -> Iterator[Problem]:
    """I1: relocation keeps the live tokens of each request, and the content of each."""
    for req_id, worker in before.workers.items():
        if req_id not in before.table:
            continue
        other = after.workers.get(req_id)
        if other is None or req_id not in after.table:
            yield Problem("I1", f"the tokens of request {req_id} are gone")
            continue
        live, still = before.table.live_tokens(req_id), after.table.live_tokens(req_id)
        if live == still and worker.fingerprints == other.fingerprints:
            continue
        old = ((token_id, int(worker.fingerprints[token_id], 16)) for token_id in live)
        new = ((token_id, int(other.fingerprints[token_id], 16)) for token_id in still)
        for text in token_conservation(old, new):
            yield Problem("I1", f"request {req_id}: {text}")


def _overwritten_reads(before: Runtime, event: ev.Copy | ev.Sync) -> Iterator[Problem]:
    """I3, I5: nothing that the running forward reads is overwritten, but by its own next token."""
    if isinstance(event, ev.Sync):
        written = set(event.slots)
    else:
        flight = before.machine.orphans.get((event.req_id, event.epoch))
        if flight is None:
            flight = before.machine.workers[event.req_id].plan
        moves = flight.moves if flight is not None else {}
        written = {moves[token_id].dst_slot for token_id in event.token_ids}
    for req_id, slots in before.reads.items():
        if isinstance(event, ev.Sync) and req_id == event.req_id:
            continue
        for slot in written.intersection(slots.values()):
            yield Problem("I5", f"a {event.kind} of {event.req_id} overwrites slot {slot}, read for {req_id}")


def _over_budget(before: Machine, event: ev.Forward) -> Iterator[Problem]:
    """I8: a request that generates is within its budget when its forward starts."""
    if event.phase == "begin" and before.is_async:
        return
    for read in event.reads:
        if not before.is_worked(read.req_id, read.epoch):
            continue
        worker, num_live = before.workers[read.req_id], before.num_live(read.req_id)
        is_decode = before.num_tokens(read.req_id) >= worker.num_prompt_tokens
        if is_decode and worker.budget is not None and num_live > worker.budget:
            yield Problem("I8", f"request {read.req_id} has {num_live} live tokens, budget {worker.budget}")
