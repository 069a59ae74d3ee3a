"""The rules that every machine of whole runs has: what a runtime does, what goes wrong, what is illegal."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from spec.machines.alterations import altered
from spec.machines.base import PICK, Driven, choose, subset
from spec.machines.careless import Careless, num_left
from vtoken_ref import events as ev

SOURCES = (
    *("syncs", "ends", "begins", "starts", "copies", "commits", "plans", "evicts", "releases", "late_copies"),
    *("allocs", "leases", "shares", "caches", "uncaches", "frees", "outputs", "cancels", "defers"),
    *("reports", "delivers", "late_cancels", "preempts", "finishes"),
)
"""Events of a correct runtime that are altered."""


class Run(Driven):
    """Runs of any configuration: single events in any order, whole steps, faults, illegal events."""

    def fire(self, name: str, source: str, pick: int) -> bool:
        """Give an event of a correct runtime and count the rule when there was one."""
        if not self.found(source):
            return False
        self.fired(name)
        return self.offer(source, pick)

    # The scheduler.

    @precondition(lambda self: self.found("admits"))
    @rule(pick=PICK)
    def admit(self, pick: int) -> None:
        """A request enters."""
        self.fire("admit", "admits", pick)

    @precondition(lambda self: any(map(self.runtime.needs_block, self.runtime.jobs)))
    @rule(pick=PICK)
    def alloc(self, pick: int) -> None:
        """A request that needs a block gets one; when there is none to be had, somebody is preempted."""
        if not self.fire("alloc", "allocs", pick) and pick & 1 and self.offer("preempts", pick >> 1):
            self.happened("preempted for a block")

    @precondition(lambda self: self.may_lease() and self.found("leases"))
    @rule(pick=PICK)
    def lease(self, pick: int) -> None:
        """A request is lent a block."""
        self.fire("lease", "leases", pick)

    @precondition(lambda self: self.may_begin() and self.found("begins"))
    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """A forward is decided."""
        self.fire("begin", "begins", pick)

    @precondition(lambda self: self.found("frees"))
    @rule(pick=PICK)
    def free(self, pick: int) -> None:
        """A block that nothing touches any more is free again."""
        self.fire("free", "frees", pick)

    @precondition(lambda self: self.found("outputs"))
    @rule(pick=PICK)
    def output(self, pick: int) -> None:
        """A sampled token is told."""
        self.fire("output", "outputs", pick)

    @rule(how=st.sampled_from(("preempts", "aborts", "finishes", "")), pick=PICK)
    def stop(self, how: str, pick: int) -> None:
        """A request is preempted, given up or complete, in the middle of whatever it does."""
        if not how or not self.found(how):
            return
        event = choose(self.found(how), pick)
        assert isinstance(event, ev.Preempt | ev.Abort | ev.Finish)
        epoch = (event.req_id, event.epoch)
        if self.device.streams[epoch].left:
            self.happened(f"{event.kind} during a plan")
        if any(epoch in launches for launches in self.device.running.values()):
            self.happened(f"{event.kind} during a forward")
        self.fire("stop", how, pick)

    # The worker.

    @precondition(lambda self: self.found("syncs"))
    @rule(pick=PICK)
    def sync(self, pick: int) -> None:
        """The running forward has written tokens."""
        self.fire("sync", "syncs", pick)

    @precondition(lambda self: self.found("ends"))
    @rule()
    def end(self) -> None:
        """The running forward ends."""
        self.fire("end", "ends", 0)

    @precondition(lambda self: self.may_decide() and self.found("evicts"))
    @rule(pick=PICK)
    def evict(self, pick: int) -> None:
        """The policy drops a token."""
        self.fire("evict", "evicts", pick)

    @precondition(lambda self: self.may_decide() and self.found("plans"))
    @rule(pick=PICK)
    def plan(self, pick: int) -> None:
        """A relocation begins."""
        self.fire("plan", "plans", pick)

    @precondition(lambda self: self.found("copies"))
    @rule(pick=PICK)
    def copy(self, pick: int) -> None:
        """One token more is at its destination, out of place in any order."""
        self.fire("copy", "copies", pick)

    @precondition(lambda self: self.found("commits"))
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        """A plan takes effect."""
        self.fire("commit", "commits", pick)

    @precondition(lambda self: self.found("cancels"))
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        """A plan is given up."""
        self.fire("cancel", "cancels", pick)

    @precondition(lambda self: self.may_decide() and self.found("releases"))
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        """A block is given up."""
        self.fire("release", "releases", pick)

    @precondition(lambda self: self.may_decide() and self.found("defers"))
    @rule(pick=PICK)
    def defer(self, pick: int) -> None:
        """A plan waits for destinations."""
        self.fire("defer", "defers", pick)

    # Copies of epochs that have ended.

    @precondition(lambda self: self.found("late_copies"))
    @rule(pick=PICK)
    def late_copy(self, pick: int) -> None:
        """A copy of a plan whose epoch has ended is complete after all."""
        self.fire("late_copy", "late_copies", pick)

    @precondition(lambda self: self.found("late_cancels"))
    @rule(pick=PICK)
    def late_cancel(self, pick: int) -> None:
        """The copies of a plan whose epoch has ended have stopped."""
        self.fire("late_cancel", "late_cancels", pick)

    # Many events of a correct runtime at once, so that runs get far.

    @rule(pick=PICK, mask=PICK, count=st.integers(1, 4))
    def step(self, pick: int, mask: int, count: int) -> None:
        """Everybody who can takes part in some steps, the last of which may stop anywhere."""
        self.fired("step")
        for left in reversed(range(count)):
            self.run_step(pick, mask | 31 if left else mask)

    def run_step(self, pick: int, mask: int) -> None:
        """Let what runs end, then run a step; it may stop before its tokens are written, or its end."""
        self.end_running()
        self.make_ready(pick)
        self.offer("begins", -1)
        if mask & 3 == 0:
            return
        self.offer_all("syncs")
        if mask & 7 == 1:
            return
        self.end_running()
        self.decide(pick, mask)

    def decide(self, pick: int, mask: int) -> None:
        """Let the worker win blocks from one of the requests, in some steps."""
        if mask & 64 and self.may_decide() and self.found("evicts"):
            event = choose(self.found("evicts"), pick)
            assert isinstance(event, ev.Evict)
            self.run_reclaim(event.req_id, pick, mask >> 7, mask >> 3 & 7)

    def end_running(self) -> None:
        """Let the forward that runs come to its end, and its outputs be told."""
        self.offer_all("syncs")
        self.offer("ends", 0)
        self.offer_all("outputs")

    def may_lease(self) -> bool:
        """Tell whether there is headroom left."""
        return len(self.machine.pool.leases) < self.machine.config.headroom

    def may_decide(self) -> bool:
        """Tell whether the worker may evict, plan and release now."""
        return not self.machine.is_async or self.machine.reported is not None

    def may_begin(self) -> bool:
        """Tell whether one more forward may be in flight."""
        return len(self.machine.steps) <= self.machine.config.async_depth

    def make_ready(self, pick: int) -> None:
        """Let requests enter, keep them in their budgets, and give them blocks."""
        self.offer_all("admits")
        for req_id in self.runtime.jobs:
            self.keep_budget(req_id, pick)
            while self.runtime.needs_block(req_id) and self.give_block(req_id):
                pass

    def give_block(self, req_id: str) -> bool:
        """Give a request one more block, and tell whether that went well."""
        self.offer("frees", 0)
        pool = self.machine.pool
        return len(pool.free_blocks) > pool.num_reserved and self.try_one(*self.runtime.allocs(req_id)[:1])

    def keep_budget(self, req_id: str, pick: int) -> None:
        """Evict what is over a request's budget."""
        while self.is_over_budget(req_id):
            if not self.try_one(*self._chosen(self.runtime.evicts(req_id), pick)):
                return

    @precondition(lambda self: self.may_decide() and self.found("evicts"))
    @rule(pick=PICK, mask=PICK, how=st.integers(0, 7))
    def reclaim(self, pick: int, mask: int, how: int) -> None:
        """A request loses many tokens, and what can be won is won, or the winning is only begun."""
        self.fired("reclaim")
        event = choose(self.found("evicts"), pick)
        assert isinstance(event, ev.Evict)
        self.run_reclaim(event.req_id, pick, mask, how)

    def run_reclaim(self, req_id: str, pick: int, mask: int, how: int) -> None:
        """Evict, lease, plan, copy, commit, release; ``how`` says where it stops."""
        for event in subset(self.runtime.evicts(req_id), mask):
            if not self.try_one(event):
                return
        while how & 1 and not self.runtime.plans(req_id) and self.may_lease():
            if not self.try_one(*self.runtime.leases(req_id)[:1]):
                break
        if not self.try_one(*self._chosen(self.runtime.plans(req_id), pick)) or how < 2:
            return
        while self.runtime.copies(req_id) and self.try_one(*self._chosen(self.runtime.copies(req_id), pick)):
            if how < 4:
                return
        self.try_one(*self.runtime.commits(req_id))
        while self.runtime.releases(req_id) and self.try_one(self.runtime.releases(req_id)[0]):
            pass

    def _chosen(self, events: Sequence[ev.Event], pick: int) -> list[ev.Event]:
        return [choose(events, pick)] if events else []

    # Illegal events.

    @rule(source=PICK, pick=PICK, how=PICK)
    def alter(self, source: int, pick: int, how: int) -> None:
        """A legal event arrives with one field changed."""
        names = [name for name in SOURCES if self.found(name)]
        if names:
            event = choose(self.found(choose(names, source)), pick)
            self._attempt("alter", choose(altered(event, tuple(self.runtime.jobs)), how))

    @precondition(lambda self: self.offered)
    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """An event arrives again, or much later than it was decided."""
        self._attempt("repeat", choose(self.offered, pick))

    @rule(block=PICK, what=PICK, mask=st.integers(0, 63))
    def careless(self, block: int, what: int, mask: int) -> None:
        """Scheduler or worker does something without looking whether it may."""
        oracle = self.device.oracle
        live = {epoch: [token_id for token_id, _ in oracle.live(epoch)] for epoch in oracle.epochs}
        block_id = choose(self.machine.config.block_ids, block)
        maker = Careless(self.runtime, self.device.streams, live, block_id, mask)
        events = list(maker.scheduler() if mask & 1 else maker.worker())
        if events:
            self._attempt("careless", self.attested(choose(events, what)))

    def _attempt(self, name: str, event: ev.Event) -> None:
        if self._is_impossible(event):
            return
        self.fired(name)
        taken = self.give(event, may_refuse=True)
        self.happened(f"{name} {'taken' if taken else 'refused'}")

    def _is_impossible(self, event: ev.Event) -> bool:
        """Tell whether a forward would begin that no runtime could end: its tokens are nobody's yet."""
        return (
            isinstance(event, ev.Forward)
            and event.phase == "begin"
            and any(
                read.num_query > num_left(self.runtime, read.req_id)
                for read in event.reads
                if read.req_id in self.machine.requests
            )
        )
