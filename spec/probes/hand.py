"""Makes, from the state, the events that a correct runtime would emit; a probe then changes one of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vtoken_ref import events as ev
from vtoken_ref.kv_hash import digest
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    blocks_after,
    copy_on_write_moves,
    plan_relocation,
    planned_moves,
)

SAMPLED = 70
"""The vocabulary id of every output."""


class Hand:
    """A machine, and what comes next in a correct run of it.

    Args:
        block_size: slots per block.
        num_blocks: usable blocks.
        headroom: the most blocks leased at one time.
        config: other fields of ``MachineConfig``.

    """

    def __init__(self, block_size: int = 4, num_blocks: int = 12, headroom: int = 3, **config: Any) -> None:
        self.machine = Machine(MachineConfig(block_size, range(num_blocks), headroom, **config))
        self.num_written = 0
        self.num_plans = 0

    def apply(self, *events: ev.Event) -> "Hand":
        """Apply events, which must be legal."""
        for event in events:
            self.machine.apply(event)
        return self

    # What the state says.

    def epoch(self, req_id: str) -> int:
        """Return the present epoch of a request."""
        return self.machine.requests[req_id].epoch

    def num_tokens(self, req_id: str) -> int:
        """Return the tokens that the worker has computed."""
        return self.machine.table.num_tokens(req_id) if req_id in self.machine.table else 0

    def length(self, req_id: str) -> int:
        """Return the resident length that the worker has."""
        return self.machine.table.length(req_id) if req_id in self.machine.table else 0

    def flight(self, req_id: str) -> ev.Plan:
        """Return the plan in flight of a request."""
        plan = self.machine.workers[req_id].plan
        assert plan is not None
        return plan.plan

    def num_unwritten(self, req_id: str) -> int:
        """Return the tokens that the running forward has still to write."""
        step = self.machine.workers[req_id].in_forward
        assert step is not None
        forward = self.machine.forwards[step]
        return forward.reads[req_id].num_query - (self.num_tokens(req_id) - forward.first_new_token[req_id])

    # Events of the scheduler, not yet applied.

    def begin(self, step: int | None = None, **num_query: int) -> ev.Forward:
        """Return the begin of a forward with so many query tokens of each request."""
        reads = [
            ev.Read(req_id, self.epoch(req_id), count, self.machine.requests[req_id].length + count, "")
            for req_id, count in num_query.items()
        ]
        return ev.Forward(self.machine.last_step + 1 if step is None else step, "begin", tuple(reads))

    def recycle(self, req_id: str) -> ev.Forward:
        """Return the begin of a forward that is to write one token over a dead one."""
        begin = self.begin(**{req_id: 1})
        length = self.machine.requests[req_id].length
        return replace(begin, reads=(begin.reads[0]._replace(length=length),))

    def share(self, req_id: str, block_ids: Sequence[int], num_tokens: int) -> ev.Share:
        """Return the sharing of the first tokens that the last of the blocks holds."""
        prefix = self.machine.pool.cached[block_ids[-1]]
        return ev.Share(req_id, self.epoch(req_id), tuple(block_ids), prefix.vocab_ids[:num_tokens])

    def output(self, req_id: str) -> ev.Output:
        """Return the output that is due."""
        step, _ = self.machine.awaiting_output[req_id]
        return ev.Output(req_id, self.epoch(req_id), step, (SAMPLED,))

    def end_of_run(self, **changes: int) -> ev.End:
        """Return the end of the run, right but for these fields."""
        machine = self.machine
        right = ev.End(machine.num_events, len(machine.ended), len(machine.pool.free_blocks))
        return replace(right, **changes)

    # Events of the worker, not yet applied.

    def start(self) -> ev.Forward:
        """Return the start of the next forward."""
        step = next(step for step, forward in self.machine.forwards.items() if not forward.is_started)
        return ev.Forward(step, "start", tuple(self.machine.forwards[step].reads.values()))

    def sync(self, req_id: str, count: int | None = None, slots: Sequence[int] | None = None) -> ev.Sync:
        """Return the writing of the next tokens: all that are due, in the next slots."""
        worker, first = self.machine.workers[req_id], self.num_tokens(req_id)
        if slots is None:
            count = self.num_unwritten(req_id) if count is None else count
            slots = self.machine.table.next_slots(req_id, worker.block_ids, count)
        known = self._known(req_id, worker.epoch)[first : first + len(slots)]
        vocab_ids = [*known, *range(first + len(known), first + len(slots))]
        written = [f"{self.num_written + index:016x}" for index in range(len(slots))]
        self.num_written += len(slots)
        return ev.Sync(req_id, worker.epoch, first, tuple(vocab_ids), tuple(slots), tuple(written))

    def _known(self, req_id: str, epoch: int) -> list[int]:
        return self.machine.requests[req_id].vocab_ids if self.machine.is_current(req_id, epoch) else []

    def end(self) -> ev.Forward:
        """Return the end of the running forward, with what it has read."""
        step = next(step for step, forward in self.machine.forwards.items() if forward.is_started)
        return ev.Forward(
            step, "end", tuple(map(self._read_back, self.machine.forwards[step].reads.values()))
        )

    def _read_back(self, begun: ev.Read) -> ev.Read:
        machine = self.machine
        if not machine.is_worked(begun.req_id, begun.epoch):
            return begun
        tokens = machine.visible_tokens(begun.req_id)
        return begun._replace(length=len(tokens), digest=self._digest(begun.req_id, tokens))

    def _digest(self, req_id: str, token_ids: Sequence[int], moved: dict[int, int] | None = None) -> str:
        """Return the digest of tokens as they are in memory, at their slots or where they were ``moved``."""
        slots = {token_id: self.machine.table.slot(req_id, token_id) for token_id in token_ids} | (
            moved or {}
        )
        return digest(
            (token_id, int(self.machine.memory.get(slots[token_id], "0"), 16)) for token_id in token_ids
        )

    def evict(self, req_id: str, *token_ids: int) -> ev.Evict:
        """Return an eviction in the worker's epoch."""
        return ev.Evict(req_id, self.machine.workers[req_id].epoch, token_ids)

    def plan(
        self,
        req_id: str,
        strategy: RelocationStrategy = "in_place",
        leased: Sequence[int] = (),
        *,
        reserve: int = 0,
        max_source_blocks: int | None = None,
    ) -> ev.Plan:
        """Return the planner's plan."""
        machine = self.machine
        relocation = plan_relocation(
            machine.table,
            req_id,
            strategy,
            machine.pool.is_protected,
            leased,
            max_source_blocks,
            view=machine.config.view,
            reserve=reserve,
        )
        assert relocation is not None
        return self._plan(req_id, strategy, relocation)

    def plan_of(
        self,
        req_id: str,
        sources: Sequence[int],
        destinations: Sequence[int],
        strategy: RelocationStrategy = "out_of_place",
    ) -> ev.Plan:
        """Return the plan of these sources and destinations, allowed or not."""
        moves = planned_moves(self.machine.table, req_id, strategy, sources, destinations)
        return self._plan(req_id, strategy, Relocation(tuple(sources), tuple(destinations), moves))

    def copy_on_write(self, req_id: str, source: int, destination: int) -> ev.Plan:
        """Return a plan that copies a protected block."""
        moves = copy_on_write_moves(self.machine.table, req_id, source, destination)
        return self._plan(req_id, "copy_on_write", Relocation((source,), (destination,), moves))

    def _plan(self, req_id: str, strategy: ev.PlanStrategy, relocation: Relocation) -> ev.Plan:
        self.num_plans += 1
        return ev.Plan(req_id, self.machine.workers[req_id].epoch, self.num_plans, strategy, *relocation)

    def copy(self, req_id: str, *token_ids: int) -> ev.Copy:
        """Return the copies of these tokens, or of all, as complete."""
        plan = self.flight(req_id)
        moved = token_ids or tuple(move.token_id for move in plan.moves)
        return ev.Copy(req_id, plan.epoch, plan.plan_id, moved, 16 * len(moved))

    def commit(self, req_id: str) -> ev.Commit:
        """Return the commit of the plan in flight.

        In place the digest before is of what was read before the copies, which may have overwritten it.
        """
        plan, table = self.flight(req_id), self.machine.table.copy()
        blocks = blocks_after(
            self.machine.workers[req_id].block_ids, plan.source_blocks, plan.destination_blocks
        )
        live = table.live_tokens(req_id)
        before = self._digest(req_id, live)
        moved = {move.token_id: move.dst_slot for move in plan.moves}
        after = self._digest(req_id, live, moved)
        if plan.strategy == "in_place":
            before = after
        if plan.strategy != "copy_on_write":
            listed = table.block_ids(req_id)
            table.apply_moves(
                req_id, plan.moves, blocks_after(listed, plan.source_blocks, plan.destination_blocks)
            )
        length = table.length(req_id)
        return ev.Commit(req_id, plan.epoch, plan.plan_id, plan.moves, tuple(blocks), length, before, after)

    def cancel(self, req_id: str) -> ev.Cancel:
        """Return the end of the plan in flight without a commit."""
        plan = self.flight(req_id)
        return ev.Cancel(req_id, plan.epoch, plan.plan_id)

    def late_copy(self, req_id: str, epoch: int, *token_ids: int) -> ev.Copy:
        """Return copies of a plan of a dead epoch, of these tokens or of all that remain."""
        flight = self.machine.orphans[req_id, epoch]
        moved = token_ids or tuple(sorted(flight.remaining))
        return ev.Copy(req_id, epoch, flight.plan.plan_id, moved, 16 * len(moved))

    def late_cancel(self, req_id: str, epoch: int) -> ev.Cancel:
        """Return the news that no copy of a plan of a dead epoch runs any more."""
        return ev.Cancel(req_id, epoch, self.machine.orphans[req_id, epoch].plan.plan_id)

    def report(self, *req_ids: str) -> ev.Report:
        """Return the report of the step in the worker's window, on these requests."""
        assert self.machine.reported is not None
        return ev.Report(self.machine.reported, tuple(map(self.layout, req_ids)))

    def layout(self, req_id: str) -> ev.Layout:
        """Return what the worker has to tell of a request."""
        worker = self.machine.workers[req_id]
        return ev.Layout(
            req_id,
            worker.epoch,
            tuple(worker.made_for),
            tuple(worker.block_ids),
            self.num_tokens(req_id),
            self.length(req_id),
            tuple(worker.leased),
            worker.wants,
        )

    # Whole runs of events.

    def admit(
        self, req_id: str, num_prompt_tokens: int, *block_ids: int, budget: int | None = None
    ) -> "Hand":
        """Let a request enter and give it blocks."""
        self.apply(ev.Admit(req_id, num_prompt_tokens, budget))
        return self.apply(ev.Alloc(req_id, block_ids)) if block_ids else self

    def write(self, **num_query: int) -> "Hand":
        """Begin a forward, start it, and write its tokens."""
        self.apply(self.begin(**num_query))
        return self.run_begun()

    def run_begun(self) -> "Hand":
        """Start the next forward that has begun, if it is not running, and write its tokens."""
        if self.machine.config.async_depth:
            self.apply(self.start())
        step = next(step for step, forward in self.machine.forwards.items() if forward.is_started)
        for req_id in self.machine.forwards[step].reads:
            self.apply(self.sync(req_id))
        return self

    def forward(self, **num_query: int) -> "Hand":
        """Run a whole forward; with async depth 1 the worker's window stays open."""
        self.write(**num_query).apply(self.end())
        return self if self.machine.config.async_depth else self.outputs(*num_query)

    def outputs(self, *req_ids: str) -> "Hand":
        """Sample for those of the requests that have all their tokens computed."""
        for req_id in req_ids:
            request, (_, position) = self.machine.requests[req_id], self.machine.awaiting_output[req_id]
            if position == request.num_prompt_tokens + request.num_sampled:
                self.apply(self.output(req_id))
        return self

    def hand_over(self, *req_ids: str) -> "Hand":
        """Report the step on these requests, and deliver the report."""
        report = self.report(*req_ids)
        reads = self.machine.steps[report.step]
        self.apply(report, ev.Deliver(report.step))
        alive = [read.req_id for read in reads if self.machine.is_current(read.req_id, read.epoch)]
        return self.outputs(*alive)

    def step(self, **num_query: int) -> "Hand":
        """Run a whole step with async depth 1: the forward, the report, its delivery."""
        return self.forward(**num_query).hand_over()

    def relocate(
        self, req_id: str, strategy: RelocationStrategy = "in_place", leased: Sequence[int] = ()
    ) -> "Hand":
        """Plan, copy and commit."""
        self.apply(self.plan(req_id, strategy, leased))
        self.apply(self.copy(req_id))
        return self.apply(self.commit(req_id))
