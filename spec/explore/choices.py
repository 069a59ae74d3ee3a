"""What may happen next in a state.

*Facts* happen whether anybody wants them or not: a forward writes and ends, a copy completes, a message
arrives, a client gives up. The spec must accept every one of them. *Choices* are what the scheduler, the
policy or the worker may decide; one that the spec refuses is just not possible now. *Temptations* are
choices that only a wrong runtime would make; the spec refuses them, or they do no harm.
"""

from collections.abc import Iterator
from typing import NamedTuple

from spec.explore.configurations import Configuration
from spec.explore.temptations import temptations
from spec.runtime import Runtime
from vtoken_ref import events as ev
from vtoken_ref.rules import VTokenError


class Option(NamedTuple):
    """An event, and whether it is a fact."""

    event: ev.Event
    is_fact: bool


class Node:
    """A state of the search.

    Attributes:
        configuration: which is searched.
        runtime: the machine with what a runtime knows.
        left: by limited event kind, how often it may still be chosen.

    """

    __slots__ = ("configuration", "left", "runtime")

    def __init__(self, configuration: Configuration, runtime: Runtime, left: dict[str, int]) -> None:
        self.configuration = configuration
        self.runtime = runtime
        self.left = left

    def copy(self) -> "Node":
        """Return an independent one in the same state."""
        return Node(self.configuration, self.runtime.copy(), dict(self.left))

    def apply(self, event: ev.Event) -> None:
        """Apply an event.

        Raises:
            VTokenError: it is refused, and nothing has changed.

        """
        self.runtime.apply(event)
        if event.kind in self.left:
            self.left[event.kind] -= 1


def root(configuration: Configuration) -> tuple[Node, list[ev.Event]]:
    """Return the state in which the search begins, and the events that have led there."""
    runtime = Runtime(configuration.config, configuration.jobs)
    events: list[ev.Event] = []
    for event in configuration.opening(runtime):
        runtime.apply(event)
        events.append(event)
    return Node(configuration, runtime, dict(configuration.limits)), events


def options(node: Node) -> list[Option]:
    """Return what may happen next, in a fixed order."""
    runtime, left = node.runtime, node.left
    if runtime.machine.is_over:
        return []
    found = [Option(event, True) for event in facts(runtime)]
    found += [Option(event, False) for event in choices(runtime)]
    if node.configuration.is_tempted:
        known = {option.event for option in found}
        found += [Option(event, False) for event in temptations(runtime) if event not in known]
    return [option for option in found if left.get(option.event.kind, 1) > 0]


def facts(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield what physically happens next, or cannot be refused for another reason."""
    machine = runtime.machine
    for req_id in list(machine.workers):
        yield from runtime.syncs(req_id)
        yield from runtime.cancels(req_id)
        if not _is_read(runtime, req_id, ("in_place",)):
            yield from runtime.copies(req_id)
        if not _is_read(runtime, req_id):
            yield from runtime.commits(req_id)
    yield from runtime.late_copies()
    yield from runtime.late_cancels()
    yield from runtime.ends()
    if not _is_waiting_for_plan(runtime):
        yield from runtime.starts()
    yield from runtime.reports()
    yield from runtime.delivers()
    for req_id in runtime.jobs:
        yield from runtime.outputs(req_id)
        yield from runtime.preempts(req_id)
        yield from runtime.finishes(req_id) or runtime.aborts(req_id)
    yield from runtime.end_of_run()


def choices(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield what the scheduler, the policy or the worker may decide."""
    for req_id in runtime.jobs:
        yield from runtime.admits(req_id)
        yield from runtime.allocs(req_id)
        yield from runtime.shares(req_id)
        yield from runtime.caches(req_id)
        yield from runtime.leases(req_id)
        yield from runtime.evicts(req_id)
        yield from runtime.defers(req_id)
        yield from runtime.plans(req_id)
        yield from runtime.releases(req_id)
        if _is_read(runtime, req_id, ("in_place",)):
            yield from runtime.copies(req_id)
        if _is_read(runtime, req_id):
            yield from runtime.commits(req_id)
    yield from runtime.uncaches()
    yield from runtime.frees()
    yield from runtime.begins()
    if _is_waiting_for_plan(runtime):
        yield from runtime.starts()


def _is_read(
    runtime: Runtime, req_id: str, strategies: tuple[str, ...] = ("out_of_place", "in_place", "copy_on_write")
) -> bool:
    """Tell whether a request with such a plan is in a running forward: the worker may have to wait."""
    worker = runtime.machine.workers.get(req_id)
    if worker is None or worker.plan is None or worker.in_forward is None:
        return False
    return worker.plan.plan.strategy in strategies


def _is_waiting_for_plan(runtime: Runtime) -> bool:
    """Tell whether the next step has a request whose plan is in flight: the worker may have to wait."""
    machine = runtime.machine
    for forward in machine.forwards.values():
        if not forward.is_started:
            return any(
                machine.is_worked(read.req_id, read.epoch) and machine.workers[read.req_id].plan is not None
                for read in forward.reads.values()
            )
    return False


def is_accepted(runtime: Runtime, event: ev.Event) -> bool:
    """Tell whether the machine would take an event; change nothing."""
    try:
        runtime.copy().apply(event)
    except VTokenError:
        return False
    return True
