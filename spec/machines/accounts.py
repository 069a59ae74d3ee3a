"""Plain accounts of a run: who is alive, who holds what, which steps are under way, what a plan may be.

They follow the events that were accepted, and say in the simplest words what must not have been.
"""

from collections.abc import Iterable

from spec.machines.oracle import Disagreement, Epoch
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig


def demand(is_right: bool, otherwise: str) -> None:
    """Say what is wrong unless it is right.

    Raises:
        Disagreement: it is not.

    """
    if not is_right:
        raise Disagreement(otherwise)


class Accounts:
    """What scheduler and worker have been told and have done.

    Attributes:
        current: the epoch of every request that is alive.
        num_known: by request, its prompt tokens and the outputs that were told.
        admitted: every request as it entered.
        held: by request alive, the blocks that it holds.
        leases: by request alive, blocks lent to it that no plan has used.
        cached: blocks in the prefix cache.
        to_forget: epochs that have ended and that no step has told the worker of.
        deferred: by request, destinations that its plan waits for, oldest first; at depth 0.
        under_way: steps begun and not done: ended at depth 0, delivered at depth 1.
        waiting: steps that the worker has not started.
        window: the step that has ended and is not reported.
        num_attempts: plans and deferrals of the present step.

    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.is_async = config.async_depth > 0
        self.current: dict[str, int] = {}
        self.num_known: dict[str, int] = {}
        self.admitted: dict[str, ev.Admit] = {}
        self.held: dict[str, set[int]] = {}
        self.leases: dict[str, set[int]] = {}
        self.cached: set[int] = set()
        self.to_forget: list[Epoch] = []
        self.deferred: dict[str, int] = {}
        self.under_way: list[int] = []
        self.waiting: list[int] = []
        self.window: int | None = None
        self.reports: dict[int, ev.Report] = {}
        self.num_attempts = 0
        self.num_events = 0
        self.last_step = -1
        self.is_over = False

    def is_current(self, epoch: Epoch) -> bool:
        """Tell whether a request is alive in this epoch."""
        return epoch in self.current.items()

    def num_users(self, block_id: int) -> int:
        """Return how many requests alive hold a block."""
        return sum(block_id in blocks for blocks in self.held.values())

    def is_protected(self, block_id: int) -> bool:
        """Tell whether a block is shared or may be."""
        return block_id in self.cached or self.num_users(block_id) > 1

    def account(self, event: ev.Event) -> None:
        """Enter an event that was accepted.

        Raises:
            Disagreement: it should not have been.

        """
        demand(not self.is_over, f"a {event.kind} follows the end of the run")
        epoch = (getattr(event, "req_id", ""), getattr(event, "epoch", None))
        if not self.is_async and isinstance(
            event, ev.Sync | ev.Evict | ev.Plan | ev.Commit | ev.Release | ev.Defer
        ):
            demand(self.is_current(epoch), f"a {event.kind} is of {epoch}, which is over")  # type: ignore[arg-type]
        getattr(self, f"_enter_{event.kind}", lambda event: None)(event)
        self.num_events += 1

    # Requests.

    def _enter_admit(self, event: ev.Admit) -> None:
        demand(event.req_id not in self.admitted, f"{event.req_id} enters twice")
        self.admitted[event.req_id] = event
        self.num_known[event.req_id] = event.num_prompt_tokens
        self._begin_epoch(event.req_id, 0)

    def _enter_preempt(self, event: ev.Preempt) -> None:
        self._end_epoch(event)
        self._begin_epoch(event.req_id, event.epoch + 1)

    def _end_epoch(self, event: ev.Preempt | ev.Abort | ev.Finish) -> None:
        demand(self.is_current((event.req_id, event.epoch)), f"{event} is of an epoch that is over")
        self.to_forget.append((event.req_id, event.epoch))
        self.deferred.pop(event.req_id, None)

    def _begin_epoch(self, req_id: str, number: int) -> None:
        self.current[req_id] = number
        self.held[req_id], self.leases[req_id] = set(), set()

    def _enter_abort(self, event: ev.Abort | ev.Finish) -> None:
        self._end_epoch(event)
        del self.current[event.req_id], self.held[event.req_id], self.leases[event.req_id]

    _enter_finish = _enter_abort

    def _enter_output(self, event: ev.Output) -> None:
        demand(self.is_current((event.req_id, event.epoch)), f"{event} is of an epoch that is over")
        demand(len(event.vocab_ids) == 1, f"{event} is not one token")
        self.num_known[event.req_id] += 1

    # Blocks.

    def _enter_alloc(self, event: ev.Alloc) -> None:
        self._resist(event.req_id)
        self.held[event.req_id].update(event.block_ids)

    def _enter_share(self, event: ev.Share) -> None:
        self._resist(event.req_id)
        demand(not self.held[event.req_id], f"{event.req_id} shares blocks and has some")
        demand(self.cached.issuperset(event.block_ids), f"{event} shares blocks that are not cached")
        self.held[event.req_id].update(event.block_ids)

    def _resist(self, req_id: str) -> None:
        """No request gets its first blocks while a plan waits for some."""
        is_first = not self.held[req_id]
        demand(not (is_first and self.deferred), f"{req_id} gets its first blocks while a plan waits")

    def _enter_lease(self, event: ev.Lease) -> None:
        demand(self.is_current((event.req_id, event.epoch)), f"{event} is of an epoch that is over")
        oldest = next(iter(self.deferred), event.req_id)
        demand(oldest == event.req_id, f"{event.req_id} is lent blocks before {oldest}")
        self.leases[event.req_id].update(event.block_ids)
        if len(self.leases[event.req_id]) >= self.deferred.get(event.req_id, 0):
            self.deferred.pop(event.req_id, None)

    def _enter_defer(self, event: ev.Defer) -> None:
        self._decide(event)
        demand(event.num_blocks <= self.config.headroom, f"{event} waits for more than the headroom")
        self._attempt(event)
        if not self.is_async:
            leases = self.leases[event.req_id]
            demand(event.num_blocks > len(leases), f"{event} waits for what it has")
            demand(event.req_id not in self.deferred, f"{event.req_id} waits for two plans")
            self.deferred[event.req_id] = event.num_blocks

    def _enter_cache(self, event: ev.Cache) -> None:
        demand(self.is_current((event.req_id, event.epoch)), f"{event} is of an epoch that is over")
        demand(self.held[event.req_id].issuperset(event.block_ids), f"{event} caches blocks of others")
        self.cached.update(event.block_ids)

    def _enter_uncache(self, event: ev.Uncache) -> None:
        demand(self.cached.issuperset(event.block_ids), f"{event} is of blocks that are not cached")
        self.cached -= set(event.block_ids)

    def _enter_release(self, event: ev.Release) -> None:
        self._decide(event)
        demand(len(set(event.block_ids)) == len(event.block_ids), f"{event} names a block twice")
        if self.is_current((event.req_id, event.epoch)):
            had = self.held[event.req_id] | self.leases[event.req_id]
            demand(self.is_async or had.issuperset(event.block_ids), f"{event} is of blocks of others")
            self.leases[event.req_id] -= set(event.block_ids)
            if not self.is_async:
                self.held[event.req_id] -= set(event.block_ids)

    # Steps.

    def _enter_forward(self, event: ev.Forward) -> None:
        {"begin": self._step_begins, "start": self._step_starts, "end": self._step_ends}[event.phase](event)

    def _step_begins(self, event: ev.Forward) -> None:
        demand(event.step > self.last_step, f"step {event.step} begins after {self.last_step}")
        demand(
            len(self.under_way) <= self.config.async_depth,
            f"steps {self.under_way} are under way, one more begins",
        )
        for read in event.reads:
            demand(self.is_current((read.req_id, read.epoch)), f"{read} is of an epoch that is over")
            demand(read.num_query > 0, f"{read} computes nothing")
            most = self.config.max_query if self.is_async else read.num_query
            demand(read.num_query <= most, f"{read} computes more than {most} tokens")
        self.last_step = event.step
        self.under_way.append(event.step)
        self.num_attempts = 0
        if self.is_async:
            self.waiting.append(event.step)

    def _step_starts(self, event: ev.Forward) -> None:
        demand(self.waiting[:1] == [event.step], f"step {event.step} starts, {self.waiting} wait")
        demand(self.window is None, f"step {event.step} starts before {self.window} is reported")
        self.waiting.remove(event.step)

    def _step_ends(self, event: ev.Forward) -> None:
        demand(event.step not in self.waiting, f"step {event.step} ends before it starts")
        if self.is_async:
            self.window = event.step
        else:
            self.under_way.remove(event.step)

    def _enter_report(self, event: ev.Report) -> None:
        demand(event.step == self.window, f"step {event.step} is reported, the worker is at {self.window}")
        self.window = None
        self.reports[event.step] = event

    def _enter_deliver(self, event: ev.Deliver) -> None:
        demand(
            self.under_way[:1] == [event.step],
            f"step {event.step} is delivered, {self.under_way} are under way",
        )
        self.under_way.remove(event.step)
        for layout in self.reports.pop(event.step).layouts:
            if self.is_current((layout.req_id, layout.epoch)):
                self.held[layout.req_id] -= set(layout.made_for)
                self.held[layout.req_id].update(layout.block_ids)

    def _enter_end(self, event: ev.End) -> None:
        demand(not self.current, f"the run ends with {list(self.current)} alive")
        demand(not self.under_way, f"the run ends with {self.under_way} under way")
        counts = (self.num_events, len(self.admitted), len(self.config.block_ids))
        demand(
            (event.num_events, event.num_requests, event.num_free_blocks) == counts,
            f"{event} is not {counts}",
        )
        self.is_over = True

    # What a worker decides.

    def _enter_evict(self, event: ev.Evict) -> None:
        self._decide(event)

    def _enter_plan(self, event: ev.Plan) -> None:
        self._decide(event)
        if event.strategy == "copy_on_write":
            return
        allowed = "in_place" if self.config.strategy == "recycle" else self.config.strategy or event.strategy
        demand(event.strategy == allowed, f"a plan is {event.strategy} in a run of {self.config.strategy}")
        if self.is_current((event.req_id, event.epoch)):
            self.deferred.pop(event.req_id, None)
        count = len(event.destination_blocks)
        demand(count < len(event.source_blocks), f"{event} frees no block")
        self._attempt(event)
        if self.is_current((event.req_id, event.epoch)):
            demand(not any(map(self.is_protected, event.source_blocks)), f"{event} empties a shared block")

    def _attempt(self, event: ev.Plan | ev.Defer) -> None:
        reclaim = self.config.reclaim
        self.num_attempts += 1
        if reclaim is not None:
            most = reclaim.max_attempts or self.num_attempts
            demand(self.num_attempts <= most, f"{event} is attempt {self.num_attempts} of {most}")
            demand(self.last_step % reclaim.check_interval == 0, f"{event} is outside of the checks")

    def _decide(self, event: ev.Evict | ev.Plan | ev.Release | ev.Defer) -> None:
        demand(
            not self.is_async or self.window is not None, f"a {event.kind} is outside of the worker's window"
        )

    def commit(self, event: ev.Commit, plan: ev.Plan) -> None:
        """Enter a commit of this plan: what it was lent is now held."""
        if not self.is_current((event.req_id, event.epoch)):
            return
        lent = self.leases[event.req_id] | (self.held[event.req_id] if plan.strategy == "in_place" else set())
        demand(self.is_async or lent.issuperset(plan.destination_blocks), f"{event} is to blocks of others")
        self.leases[event.req_id] -= set(plan.destination_blocks)
        if not self.is_async:
            self.held[event.req_id].update(plan.destination_blocks)

    def give(self, block_ids: Iterable[int]) -> None:
        """Enter that blocks are given out anew."""
        for block_id in block_ids:
            demand(block_id in self.config.block_ids, f"there is no block {block_id}")
            self.cached.discard(block_id)
