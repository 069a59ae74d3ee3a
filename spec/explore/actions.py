"""What is counted: each kind of event with what distinguishes one use of it from another.

An action that no search takes is a failure: then nothing is known about it.
"""

from itertools import product

from spec.runtime import Runtime
from vtoken_ref import events as ev

DEPTHS = (0, 1)
STRATEGIES = ("in_place", "out_of_place", "copy_on_write")


def action(before: Runtime, event: ev.Event) -> str:
    """Return the action that an event is in a state, e.g. ``copy late out_of_place, depth 0``."""
    words = [event.kind, *_details(before, event)]
    return f"{' '.join(words)}, depth {before.machine.config.async_depth}"


def _details(before: Runtime, event: ev.Event) -> list[str]:
    machine = before.machine
    match event:
        case ev.Forward():
            return _forward(before, event)
        case ev.Sync():
            is_next = event.slots[0] == _next_slot(before, event.req_id)
            return ["next" if is_next else "recycled"]
        case ev.Plan():
            return [event.strategy, machine.config.view]
        case ev.Copy() | ev.Commit() | ev.Cancel():
            flight = machine.orphans.get((event.req_id, event.epoch))
            if flight is not None:
                return ["late", flight.plan.strategy]
            worker = machine.workers[event.req_id]
            strategy = worker.plan.plan.strategy if worker.plan else ""
            is_read = worker.in_forward is not None and event.kind == "commit"
            return [strategy, *(["in forward"] if is_read else [])]
        case ev.Share():
            is_partial = len(event.vocab_ids) % machine.config.block_size != 0
            is_held = event.block_ids[-1] in machine.pool.holders
            return ["partial" if is_partial else "full", "held" if is_held else "free"]
        case ev.Cache():
            num_slots = len(event.block_ids) * machine.config.block_size
            return ["partial" if machine.num_tokens(event.req_id) < num_slots else "full"]
        case ev.Release():
            worker = machine.workers[event.req_id]
            block_id = event.block_ids[0]
            if block_id in worker.leased:
                return ["lease"]
            return ["dead block" if block_id in worker.block_ids else "source"]
        case ev.Deliver():
            layouts = machine.reports[event.step].layouts
            is_stale = any(not machine.is_current(layout.req_id, layout.epoch) for layout in layouts)
            return ["stale"] if is_stale else []
        case ev.Preempt() | ev.Abort():
            return ["in forward"] if _is_in_step(before, event.req_id) else []
        case _:
            return []


def _forward(before: Runtime, event: ev.Forward) -> list[str]:
    machine = before.machine
    if event.phase == "begin":
        is_recycling = any(read.length == machine.requests[read.req_id].length for read in event.reads)
        return ["begin recycling"] if is_recycling else ["begin" if event.reads else "begin empty"]
    is_dead = any(not machine.is_current(read.req_id, read.epoch) for read in event.reads)
    return [event.phase, *(["dead"] if is_dead else [])]


def _next_slot(before: Runtime, req_id: str) -> int:
    machine, block_size = before.machine, before.machine.config.block_size
    index, block_ids = machine.length(req_id), machine.workers[req_id].block_ids
    if index >= len(block_ids) * block_size:
        return -1
    return block_ids[index // block_size] * block_size + index % block_size


def _is_in_step(before: Runtime, req_id: str) -> bool:
    machine = before.machine
    return bool(machine.steps_of(req_id, machine.requests[req_id].epoch))


def _actions() -> frozenset[str]:
    both = [
        *("admit", "alloc", "uncache", "lease", "evict", "defer", "free", "output", "finish", "end"),
        *("sync next", "sync recycled", "forward begin", "forward end", "forward end dead"),
        *("preempt", "preempt in forward", "abort", "abort in forward"),
        *("share full held", "share full free", "cache full"),
        *("release lease", "release dead block", "copy late out_of_place", "cancel late out_of_place"),
        *(f"{kind} {strategy}" for kind, strategy in product(("copy", "commit", "cancel"), STRATEGIES)),
        *(f"plan {strategy} {view}" for strategy, view in product(STRATEGIES, ("packed", "indirect"))),
        *("commit out_of_place in forward", "commit copy_on_write in forward"),
    ]
    only = {
        0: [
            *("forward begin recycling", "release source", "cache partial"),
            *("share partial held", "share partial free", "copy late in_place", "cancel late in_place"),
            *("copy late copy_on_write", "cancel late copy_on_write"),
        ],
        1: [
            *("forward begin empty", "forward start", "forward start dead", "report", "deliver"),
            *("deliver stale", "copy late copy_on_write", "cancel late copy_on_write"),
        ],
    }
    return frozenset(f"{name}, depth {depth}" for depth in DEPTHS for name in [*both, *only[depth]])


ACTIONS = _actions()
"""Every action that there is."""
