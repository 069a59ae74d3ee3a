"""The rules that every machine of whole runs has: what a runtime does, what goes wrong, what is illegal."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from spec.machines.alterations import altered
from spec.machines.base import PICK, Driven, choose, subset
from spec.machines.careless import KINDS, Careless, num_left
from spec.machines.tally import rule
from spec.runtime import NBYTES_PER_TOKEN
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig

SOURCES = (
    *("syncs", "ends", "begins", "starts", "copies", "commits", "plans", "evicts", "releases", "late_copies"),
    *("allocs", "leases", "shares", "caches", "uncaches", "frees", "outputs", "cancels", "defers"),
    *("reports", "delivers", "late_cancels", "preempts", "finishes"),
)
"""Events of a correct runtime that are altered."""
GOING_ON = ("copies", "commits", "cancels", "late_copies", "late_cancels")
"""Events of a plan in flight."""
LAST_BATCHES = 2
"""Of all the forwards that could begin, those of the largest batches come last."""


def configured(block_size: int, block_ids: range, **others: Any) -> MachineConfig:
    """Return a configuration in which copies count their bytes."""
    return MachineConfig(block_size, block_ids, nbytes_per_token=NBYTES_PER_TOKEN, **others)


class Run(Driven):
    """Runs of any configuration: single events in any order, whole steps, faults, illegal events."""

    # What may be now, as far as scheduler and worker know.

    def may_begin(self) -> bool:
        """Tell whether one more forward may be in flight."""
        return len(self.machine.steps) <= self.machine.config.async_depth

    def may_lease(self) -> bool:
        """Tell whether there is headroom left."""
        return len(self.machine.pool.leases) < self.machine.config.headroom

    # The scheduler.

    @precondition(lambda self: self.found("admits"))
    @rule(pick=PICK)
    def admit(self, pick: int) -> None:
        """A request enters."""
        self.offer("admits", pick)

    @precondition(lambda self: any(map(self.runtime.needs_block, self.runtime.jobs)))
    @rule(pick=PICK)
    def alloc(self, pick: int) -> None:
        """A request that needs a block gets one; when there is none to be had, somebody is preempted."""
        if not self.offer("allocs", pick) and pick & 1 and self.offer("preempts", pick >> 1):
            self.happened("preempted for a block")

    @precondition(lambda self: self.may_lease() and self.found("leases"))
    @rule(pick=PICK)
    def lease(self, pick: int) -> None:
        """A request is lent a block."""
        self.offer("leases", pick)

    @precondition(lambda self: self.may_begin() and self.found("begins"))
    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """A forward is decided."""
        self.offer("begins", pick)

    @precondition(lambda self: self.found("frees") or self.found("outputs"))
    @rule(pick=PICK)
    def settle_one(self, pick: int) -> None:
        """A block that nothing touches any more is free again, or a sampled token is told."""
        self.try_one(choose(self.found("frees") + self.found("outputs"), pick))

    @rule(how=st.sampled_from(("preempts", "aborts", "finishes", "")), pick=PICK)
    def stop(self, how: str, pick: int) -> None:
        """A request is preempted, given up or complete, in the middle of whatever it does."""
        if how and self.found(how):
            self.stop_one(choose(self.found(how), pick))

    def stop_one(self, event: ev.Event) -> None:
        """End the epoch of a request."""
        assert isinstance(event, ev.Preempt | ev.Abort | ev.Finish)
        epoch = (event.req_id, event.epoch)
        if self.device.streams[epoch].left:
            self.happened(f"{event.kind} during a plan")
        if any(epoch in launches for launches in self.device.running.values()):
            self.happened(f"{event.kind} during a forward")
        self.try_one(event)

    # The worker.

    @precondition(lambda self: self.found("syncs"))
    @rule(pick=PICK)
    def sync(self, pick: int) -> None:
        """The running forward has written tokens."""
        self.offer("syncs", pick)

    @precondition(lambda self: self.found("ends"))
    @rule()
    def end(self) -> None:
        """The running forward ends."""
        self.offer("ends", 0)

    @precondition(lambda self: self.found("evicts"))
    @rule(pick=PICK)
    def evict(self, pick: int) -> None:
        """The policy drops a token."""
        self.offer("evicts", pick)

    @precondition(lambda self: self.found("plans"))
    @rule(pick=PICK)
    def plan(self, pick: int) -> None:
        """A relocation begins."""
        self.offer("plans", pick)

    @precondition(lambda self: self.goes_on())
    @rule(which=PICK, pick=PICK)
    def go_on(self, which: int, pick: int) -> None:
        """A plan goes on, also of a dead epoch: a token more is copied, it commits, it is given up."""
        self.offer(choose(self.goes_on(), which), pick)

    def goes_on(self) -> list[str]:
        """Return the ways in which some plan can go on."""
        return [name for name in GOING_ON if self.found(name)]

    @precondition(lambda self: self.found("releases"))
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        """A block is given up."""
        unused = {block_id for worker in self.machine.workers.values() for block_id in worker.leased}
        found = [
            e for e in self.found("releases") if isinstance(e, ev.Release) and e.block_ids[0] not in unused
        ]
        self.try_one(choose(found if found and pick & 3 else self.found("releases"), pick >> 2))

    # Many events of a correct runtime at once, so that runs get far.

    @rule(pick=PICK, mask=PICK, count=st.integers(1, 4))
    def step(self, pick: int, mask: int, count: int) -> None:
        """Everybody who can takes part in some steps, the last of which may stop anywhere."""
        for left in reversed(range(count)):
            self.run_step(pick, mask | 31 if left else mask)

    def run_step(self, pick: int, mask: int) -> None:
        """Let what runs end, then run a step; it may stop before its tokens are written, or its end."""
        self.end_running(pick)
        self.make_ready(pick)
        self.begin_large(pick)
        self.tempt_forward(pick, mask)
        if mask & 3 == 0:
            return
        self.write_all(pick)
        self.go_on_over(pick, mask)
        if mask & 7 == 1:
            return
        self.end_running(pick)
        self.decide(pick, mask)

    def end_running(self, pick: int) -> None:
        """Let the forward that runs come to its end, and its outputs be told."""
        self.write_all(pick)
        self.offer("ends", 0)
        if pick & 24:
            self.offer_all("outputs")

    def make_ready(self, pick: int) -> None:
        """Let requests enter, keep them in their budgets, and give them blocks."""
        if pick & 4:
            self.offer_all("admits")
        if pick & 96 == 96:
            self.offer("evicts", -1)
        for req_id in self.machine.requests:
            self.keep_budget(req_id, pick)
            while self.runtime.needs_block(req_id) and self.give_block(req_id, pick):
                pass

    def give_block(self, req_id: str, pick: int) -> bool:
        """Give a request one more block, if there is one beside the headroom."""
        self.offer("frees", 0)
        pool = self.machine.pool
        if len(pool.free_blocks) <= pool.num_reserved:
            return False
        return self.try_one(*self.found_for("allocs", req_id)[:1])

    def keep_budget(self, req_id: str, pick: int) -> None:
        """Evict what is over a request's budget."""
        while self.is_over_budget(req_id) and self.try_any("evicts", req_id, pick):
            pass

    def begin_large(self, pick: int) -> None:
        """Begin a forward of as many requests as can take part."""
        found = [event for event in self.found("begins") if pick & 224 == 0 or not self._is_hindered(event)]
        if pick & 3:
            found = [event for event in found if not self._is_recycling(event)]
        if found:
            self.try_one(choose(found[-LAST_BATCHES:], -1 - (pick >> 2)))

    def _is_hindered(self, event: ev.Event) -> bool:
        """Tell whether a forward would have to wait for a plan of one of its requests."""
        reads = event.reads if isinstance(event, ev.Forward) and self.machine.config.view == "packed" else ()
        return any(self.device.streams[read.req_id, read.epoch].plan is not None for read in reads)

    def _is_recycling(self, event: ev.Event) -> bool:
        """Tell whether a forward would write some token over a dead one."""
        reads = event.reads if isinstance(event, ev.Forward) else ()
        return any(read.length == self.machine.requests[read.req_id].length for read in reads)

    def write_all(self, pick: int) -> None:
        """Write the tokens of the running forward, sometimes over dead ones."""
        self.offer_all("syncs", 0 if pick & 3 else pick >> 2)

    def try_any(self, name: str, req_id: str, pick: int) -> bool:
        """Give one of the events of a request, if there is one; tell whether it was taken."""
        found = self.found_for(name, req_id)
        return bool(found) and self.try_one(choose(found, pick))

    def tempt_forward(self, pick: int, mask: int) -> None:
        """While a forward runs, sometimes try what must wait for its end."""
        kind = ("syncs", "tokens", "blocks", "plans", "", "", "", "")[mask >> 12 & 7]
        if kind:
            self.tempt(kind, pick, mask, pick >> 5)

    def go_on_over(self, pick: int, mask: int) -> None:
        """Let a plan go on while a forward runs, in some steps."""
        if mask & 2048 and self.device.running:
            while self.offer("copies", pick) and pick & 1:
                pass
            self.offer("commits", pick)

    def decide(self, pick: int, mask: int) -> None:
        """Let the worker win blocks from one of the requests, in some steps."""
        long = [event for event in self.found("evicts") if mask & 64 and self._is_long(event)]
        if long:
            self.reclaim_from(choose(long, pick), pick, pick >> 2, mask >> 8 & 7)

    def _is_long(self, event: ev.Event) -> bool:
        """Tell whether a request has two blocks that could become one."""
        assert isinstance(event, ev.Evict)
        return self.machine.length(event.req_id) >= 2 * self.machine.config.block_size

    def run_until_written(self, pick: int) -> None:
        """Let what runs end, then let the next forward run, and write nothing."""
        self.end_running(pick)
        self.make_ready(pick)
        self.begin_large(pick)

    @precondition(lambda self: self.found("evicts"))
    @rule(pick=PICK, mask=PICK, how=st.integers(0, 7))
    def reclaim(self, pick: int, mask: int, how: int) -> None:
        """A request loses many tokens, and what can be won is won, or the winning is only begun."""
        self.reclaim_from(choose(self.found("evicts"), pick), pick, mask, how)

    def reclaim_from(self, event: ev.Event, pick: int, mask: int, how: int) -> None:
        """Evict, lease, plan, copy, commit, release; ``how`` says how far.

        A plan that lacks destinations is deferred; one may be cut short by the end of its epoch.
        """
        assert isinstance(event, ev.Evict)
        req_id, stage = event.req_id, how >> 1 & 3
        is_full = 2 * self.machine.num_live(req_id) > self.machine.length(req_id)
        for token in subset(self.found_for("evicts", req_id), mask) if is_full else ():
            self.try_one(token)
        while how & 1 and not self.found_for("plans", req_id) and self.may_lease():
            if not self.try_any("leases", req_id, 0):
                break
        if not self.try_any("plans", req_id, pick):
            self.try_any("defers", req_id, pick)
            return
        self.tempt("plans_in_flight", pick, mask, pick >> 3)
        self.tempt("plans_in_flight", pick, -1 - (mask >> 4 & 1), pick)
        epoch = (req_id, event.epoch)
        if stage == 1 or (stage == 2 and len(self.device.streams[epoch].left) > 1):
            self.try_any("copies", req_id, pick)
        if stage == 2 and self.device.streams[epoch].left:
            if stops := [*self.found_for("preempts", req_id), *self.found_for("aborts", req_id)]:
                self.stop_one(choose(stops, pick))
            self.end_orphans(pick)
        if stage == 3:
            self.finish_plan(req_id, pick, mask)

    def end_orphans(self, pick: int) -> None:
        """Let plans whose epochs have ended come to an end, sometimes, by copies or without."""
        if pick & 256:
            self.offer("late_copies", pick)
        if pick & 512:
            self.offer("late_cancels", pick)

    def finish_plan(self, req_id: str, pick: int, mask: int) -> None:
        """Copy what is left, commit, and give up what comes free."""
        while self.try_any("copies", req_id, pick):
            pass
        self.tempt("plans_in_flight", pick, mask >> 3, pick)
        self.try_any("commits", req_id, 0)
        while self.try_any("releases", req_id, pick):
            pass

    # Illegal events.

    @rule(kind=st.sampled_from(("altered", "repeated", *KINDS)), which=PICK, what=PICK, how=PICK)
    def illegal(self, kind: str, which: int, what: int, how: int) -> None:
        """An event arrives with one field changed, again or much later, or from somebody who never looks."""
        self.illegal_one(kind, which, what, how)

    def illegal_one(self, kind: str, which: int, what: int, how: int) -> None:
        """Give an event that may be illegal."""
        if kind in KINDS:
            self.tempt(kind, which, what, how)
            return
        event = self._altered(which, what, how) if kind == "altered" else self._repeated(which)
        if event is not None and not self._leads_nowhere(event):
            taken = self.give(event, may_refuse=True)
            self.happened(f"{kind} event {'taken' if taken else 'refused'}")

    def tempt(self, kind: str, which: int, what: int, how: int) -> None:
        """Do something without looking whether it may be done."""
        events = Careless(self.runtime, self.device, which, how).events(kind)
        if events and not self._leads_nowhere(choose(events, what)):
            taken = self.give(self.attested(choose(events, what)), may_refuse=True)
            self.happened(f"careless event {'taken' if taken else 'refused'}")

    def _altered(self, which: int, what: int, how: int) -> ev.Event | None:
        """Return a legal event with one field changed."""
        names = [name for name in SOURCES if self.found(name)]
        if not names:
            return None
        event = self.attested(choose(self.found(choose(names, which)), what))
        return choose(altered(event, tuple(self.runtime.jobs)), how)

    def _repeated(self, which: int) -> ev.Event | None:
        """Return an event that was decided before, and perhaps taken."""
        return choose(self.offered, which) if self.offered else None

    def _leads_nowhere(self, event: ev.Event) -> bool:
        """Tell whether an event is illegal in a way that the spec notices only later.

        A forward may be announced of tokens that nobody has; it can never end. A report may be taken
        before the output of the step before is told; that output is never told.
        """
        if isinstance(event, ev.Deliver):
            return bool(self.found("outputs"))
        if not isinstance(event, ev.Forward) or event.phase != "begin":
            return False
        alive = [read for read in event.reads if read.req_id in self.machine.requests]
        return any(read.num_query > num_left(self.runtime, read.req_id) for read in alive)


class Overtaking(Run):
    """Runs in which a plan may go on while a forward of its request runs."""

    def overtakes(self) -> list[str]:
        """Return the requests with a plan that may commit while a forward of them runs."""
        return [
            req_id
            for req_id, worker in self.machine.workers.items()
            if worker.plan is not None and worker.in_forward is None
        ]

    @precondition(lambda self: self.overtakes())
    @rule(pick=PICK)
    def overtake(self, pick: int) -> None:
        """A plan is copied, and perhaps commits, while a forward of its request runs."""
        req_id = choose(self.overtakes(), pick)
        if pick & 8:
            self.try_one(*self.found_for("evicts", req_id)[-1:])
        self.run_until_written(pick)
        while self.try_any("copies", req_id, pick):
            pass
        self.try_any("commits", req_id, 0)
