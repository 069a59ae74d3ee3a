"""I9: no state where a block is needed, could be won, and nothing leads there.

A state is *pressed* when some request has a token to compute and no slot for it, no such request can be
given a block or write over a dead token now, and blocks could be won: one is fenced, a plan is in flight, a
block is wholly dead or held though listed no more, or the planner finds a plan for some request within
the headroom and, where that is configured, eligible. From a pressed state there must be a way to one that is
not pressed, by nothing but what the runtime does anyway: forwards, copies, messages, plans and all that
belongs to them, releases and frees, and evictions that a budget asks for. Evicting more, preempting and
ending a request are no way out.

States that were not expanded, or in which a limit of the configuration ends such a way, count as not
pressed.
"""

from array import array
from collections.abc import Sequence

from spec.explore.choices import Node
from spec.runtime import Runtime
from vtoken_ref import events as ev
from vtoken_ref.planner import wholly_dead_blocks
from vtoken_ref.reclaim import eligible

WAYS_OUT = (
    *("forward", "sync", "output", "report", "deliver"),
    *("lease", "defer", "plan", "copy", "commit", "cancel", "release", "free"),
)
"""Kinds of events that may lead out of a pressed state."""


class Progress:
    """Collects the pressed states of a search and the ways between states."""

    def __init__(self) -> None:
        self._pressed: set[int] = set()
        self._from, self._to = array("I"), array("I")

    def add(self, number: int, node: Node, taken: Sequence[tuple[ev.Event, int]]) -> None:
        """Take in a state that was expanded, and where its events lead."""
        is_limited = any(count == 0 and kind in WAYS_OUT for kind, count in node.left.items())
        if is_limited or not is_pressed(node.runtime, [event for event, _ in taken]):
            return
        self._pressed.add(number)
        ways_out = WAYS_OUT if node.runtime.is_within_budgets() else (*WAYS_OUT, "evict")
        for event, to in taken:
            if event.kind in ways_out:
                self._from.append(number)
                self._to.append(to)

    def hopeless(self) -> int | None:
        """Return the first pressed state from which no way leads out, if there is one."""
        before: dict[int, list[int]] = {}
        hopeful: list[int] = []
        seen: set[int] = set()
        for start, to in zip(self._from, self._to, strict=True):
            if to in self._pressed:
                before.setdefault(to, []).append(start)
            elif start not in seen:
                seen.add(start)
                hopeful.append(start)
        while hopeful:
            for start in before.get(hopeful.pop(), ()):
                if start not in seen:
                    seen.add(start)
                    hopeful.append(start)
        return min(self._pressed - seen, default=None)


def is_pressed(runtime: Runtime, taken: Sequence[ev.Event]) -> bool:
    """Tell whether blocks are needed, none can be had now, and some could be won."""
    needy = [req_id for req_id in runtime.jobs if runtime.needs_block(req_id)]
    return bool(needy) and not any(_serves(event, needy) for event in taken) and could_win(runtime)


def _serves(event: ev.Event, needy: Sequence[str]) -> bool:
    if isinstance(event, ev.Alloc | ev.Share):
        return event.req_id in needy
    return isinstance(event, ev.Forward) and any(read.req_id in needy for read in event.reads)


def could_win(runtime: Runtime) -> bool:
    """Tell whether some block could be won, whatever has to happen first."""
    machine = runtime.machine
    if machine.pool.fences:
        return True
    for req_id, worker in machine.workers.items():
        if worker.plan is not None:
            return True
        if not machine.is_async and machine.pool.held_by(req_id) - set(worker.block_ids):
            return True
        if req_id not in machine.table:
            continue
        dead = wholly_dead_blocks(machine.table, req_id, machine.protection(req_id))
        if any(machine.pool.refcount(block_id) == 1 for block_id in dead):
            return True
        config = machine.config.reclaim
        ideal = [-1 - index for index in range(machine.config.headroom)]
        is_eligible = config is None or eligible(machine.table, req_id, config)
        if is_eligible and any(runtime.relocations(req_id, ideal)):
            return True
    return False
