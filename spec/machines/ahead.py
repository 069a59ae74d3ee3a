"""Runs of async depth 1: the scheduler is a step ahead, and every message may be late."""

from hypothesis.stateful import precondition

from spec.machines.rules import Overtaking, Run, configured
from spec.machines.tally import rule


class Ahead(Run):
    """What both views have in common."""

    @precondition(lambda self: self.found("starts"))
    @rule()
    def start(self) -> None:
        """The worker takes the oldest step message."""
        self.offer("starts", 0)

    @precondition(lambda self: self.found("reports"))
    @rule()
    def report(self) -> None:
        """The worker is done with a step."""
        self.offer("reports", 0)

    @precondition(lambda self: self.found("delivers") or self.found("outputs"))
    @rule()
    def deliver(self) -> None:
        """The scheduler takes the oldest report."""
        self.deliver_one()

    def run_step(self, pick: int, mask: int) -> None:
        """Begin a step if one more may be in flight; the worker does a part of what it has to do."""
        self.make_ready(pick)
        if self.may_begin():
            self.begin_large(pick)
        if mask & 1:
            self.offer("starts", 0)
            self.tempt_forward(pick, mask)
            self.write_all(pick)
        if mask & 32:
            self.make_ready(pick)
            if self.may_begin():
                self.begin_large(pick >> 3)
        self.go_on_over(pick, mask)
        if mask & 2:
            self.offer("ends", 0)
        if self.machine.reported is not None:
            for req_id in self.runtime.jobs if mask & 4 else ():
                self.keep_budget(req_id, pick)
            self.decide(pick, mask)
        if mask & 8:
            self.end_orphans(mask)
            self.offer_all("late_copies")
            self.offer("reports", 0)
        if mask & 16:
            if self.machine.reports and len(self.machine.steps) > 1:
                self.happened("delivered late")
            self.deliver_one()

    def run_until_written(self, pick: int) -> None:
        """Let the worker get on to the next forward, and write nothing."""
        if self.machine.reported is not None:
            self.offer("reports", 0)
        self.make_ready(pick)
        if self.may_begin():
            self.begin_large(pick)
        self.offer("starts", 0)


class AheadPacked(Ahead):
    """Dead tokens stay visible until they are reclaimed."""

    configs = (
        configured(2, range(14), headroom=2, async_depth=1, max_query=3),
        configured(2, range(12), headroom=0, async_depth=1, max_query=8, strategy="in_place"),
        configured(2, range(3, 15), headroom=3, async_depth=1, max_query=2, strategy="out_of_place"),
        configured(3, range(8), headroom=1, async_depth=1, max_query=4, strategy="recycle"),
    )


class AheadIndirect(Ahead, Overtaking):
    """A dead token leaves the visible set at once."""

    configs = (
        configured(3, range(11), headroom=3, view="indirect", async_depth=1, max_query=4),
        configured(
            4, range(3, 12), headroom=2, view="indirect", async_depth=1, max_query=8, strategy="out_of_place"
        ),
        configured(2, range(13), headroom=2, view="indirect", async_depth=1, max_query=2),
    )
