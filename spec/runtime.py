"""A perfect runtime: makes, from the state of a machine, every event that a correct runtime could emit.

One method an event kind; each gives the events that are possible now as far as a correct runtime
can know, in a fixed order, and an empty list where there is none. What the machine does not know, the
runtime does: the prompts, what is sampled, the content of each token's KV, and where attention reads.
Digests are read back from the ghost memory, so an event tells of memory that was spoiled.

Of blocks that nothing distinguishes, one stands for all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import combinations, product

from vtoken_ref import events as ev
from vtoken_ref.kv_hash import digest
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    blocks_after,
    copy_on_write_moves,
    plan_relocation,
    wholly_dead_blocks,
)
from vtoken_ref.rules import VTokenError
from vtoken_ref.state import PlanInFlight, WorkerRequest
from vtoken_ref.transitions.forwards import recyclable_slots
from vtoken_ref.transitions.messages import is_changed, layout_of
from vtoken_ref.transitions.relocation import PLAN_STRATEGIES, num_reserved_slots

SAMPLED = 90
"""The vocabulary id of every output."""
NBYTES_PER_TOKEN = 16

Epoch = tuple[str, int]
"""A request in one of its epochs."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a client asks for.

    Attributes:
        req_id: name of the request.
        prompt: vocabulary ids.
        num_outputs: tokens to generate, at least 1.
        budget: the most live tokens it keeps, None for no eviction.

    """

    req_id: str
    prompt: tuple[int, ...]
    num_outputs: int = 1
    budget: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed: the prompt, and every output but the last."""
        return len(self.prompt) + self.num_outputs - 1

    def vocab_ids(self, first: int, last: int) -> tuple[int, ...]:
        """Return the vocabulary ids at the positions ``first`` up to ``last``."""
        return (self.prompt + (SAMPLED,) * self.num_outputs)[first:last]


@cache
def content(vocab_ids: tuple[int, ...], is_pure: bool) -> str:
    """Return the fingerprint of the last of these tokens.

    Args:
        vocab_ids: the request's tokens up to this one.
        is_pure: it was computed while no token of its request had been evicted; then requests with
            the same prefix have the same content, which is what sharing rests on.

    """
    text = repr((vocab_ids, is_pure)).encode()
    return blake2b(text, digest_size=8).hexdigest()


class Runtime:
    """A machine and what a runtime around it knows.

    Attributes:
        machine: the state.
        jobs: by request id.
        reads: of the running forward, by request: the slot that attention reads each token at.

    """

    def __init__(self, config: MachineConfig, jobs: Iterable[Job]) -> None:
        self.machine = Machine(config)
        self.jobs = {job.req_id: job for job in jobs}
        self.reads: dict[str, dict[int, int]] = {}

    def copy(self) -> "Runtime":
        """Return an independent runtime in the same state."""
        other = Runtime.__new__(Runtime)
        other.machine, other.jobs = self.machine.copy(), self.jobs
        other.reads = {req_id: dict(slots) for req_id, slots in self.reads.items()}
        return other

    def apply(self, event: ev.Event) -> None:
        """Apply an event to the machine and follow where attention reads.

        Raises:
            VTokenError: the machine refuses the event; nothing has changed.

        """
        self.machine.apply(event)
        if type(event) is ev.Forward:
            self._follow_forward(event)
        elif type(event) is ev.Sync:
            self._follow_sync(event)

    def _follow_forward(self, event: ev.Forward) -> None:
        machine = self.machine
        if event.phase == "end":
            self.reads = {}
        elif event.phase == "start" or not machine.is_async:
            self.reads = {
                read.req_id: {
                    token_id: machine.table.slot(read.req_id, token_id)
                    for token_id in machine.visible_tokens(read.req_id)
                }
                for read in event.reads
            }

    def _follow_sync(self, event: ev.Sync) -> None:
        slots = {
            token_id: slot for token_id, slot in self.reads[event.req_id].items() if slot not in event.slots
        }
        slots.update(enumerate(event.slots, event.first_token_id))
        self.reads[event.req_id] = slots

    # Requests.

    def admits(self, req_id: str) -> list[ev.Event]:
        """The request enters."""
        machine, job = self.machine, self.jobs[req_id]
        if req_id in machine.requests or req_id in machine.ended:
            return []
        return [ev.Admit(req_id, len(job.prompt), job.budget)]

    def preempts(self, req_id: str) -> list[ev.Event]:
        """The scheduler takes all blocks from a request that has any."""
        request = self.machine.requests.get(req_id)
        return [ev.Preempt(req_id, request.epoch)] if request and request.block_ids else []

    def aborts(self, req_id: str) -> list[ev.Event]:
        """The client gives up."""
        request = self.machine.requests.get(req_id)
        return [ev.Abort(req_id, request.epoch)] if request else []

    def finishes(self, req_id: str) -> list[ev.Event]:
        """The request has generated what was asked for."""
        request = self.machine.requests.get(req_id)
        if request is None or request.num_sampled < self.jobs[req_id].num_outputs:
            return []
        return [ev.Finish(req_id, request.epoch, "length")]

    def outputs(self, req_id: str) -> list[ev.Event]:
        """The token that a forward has sampled is told."""
        request = self.machine.requests.get(req_id)
        step, position = self.machine.awaiting_output.get(req_id, (-1, -1))
        if request is None or position != request.num_prompt_tokens + request.num_sampled:
            return []
        return [ev.Output(req_id, request.epoch, step, (SAMPLED,))]

    def end_of_run(self) -> list[ev.Event]:
        """The run is over once every request has ended, and nothing is under way."""
        machine = self.machine
        if self.jobs.keys() - machine.ended or machine.is_over or machine.steps or machine.pool.fences:
            return []
        return [ev.End(machine.num_events, len(machine.ended), len(machine.pool.free_blocks))]

    # The scheduler's blocks.

    def allocs(self, req_id: str) -> list[ev.Event]:
        """One more block, when the next token has no slot in those that there are."""
        if not self.needs_block(req_id):
            return []
        return [ev.Alloc(req_id, (block_id,)) for block_id in self.distinct_free_blocks()]

    def needs_block(self, req_id: str) -> bool:
        """Tell whether a request has a token to compute and no slot for it."""
        request = self.machine.requests.get(req_id)
        if request is None or request.num_tokens >= self.jobs[req_id].num_tokens:
            return False
        return request.length + 1 > len(request.block_ids) * self.machine.config.block_size

    def distinct_free_blocks(self) -> list[int]:
        """Return the first free block that nothing tells from another, and every other free one."""
        special = {*self.machine.pool.cached, *(self._listed_blocks() if self.machine.is_async else ())}
        free = sorted(self.machine.pool.free_blocks)
        plain = [block_id for block_id in free if block_id not in special]
        return plain[:1] + [block_id for block_id in free if block_id in special]

    def _listed_blocks(self) -> Iterator[int]:
        """Yield the blocks of which the worker or a message speaks, though it may be for a dead epoch."""
        for worker in self.machine.workers.values():
            for block_ids in (worker.block_ids, worker.leased, worker.made_for, worker.known_leases):
                yield from block_ids
        for forward in self.machine.forwards.values():
            for message in forward.message.values():
                yield from (*message.new_blocks, *message.new_leases)
        for report in self.machine.reports.values():
            for layout in report.layouts:
                yield from (*layout.made_for, *layout.block_ids, *layout.leased_blocks)

    def leases(self, req_id: str) -> list[ev.Event]:
        """One block as a destination for a plan to come."""
        request = self.machine.requests.get(req_id)
        if request is None or not request.num_tokens:
            return []
        return [ev.Lease(req_id, request.epoch, (block_id,)) for block_id in self.distinct_free_blocks()]

    def shares(self, req_id: str) -> list[ev.Event]:
        """Cached blocks as the first ones of a request that has none, for any length of prefix."""
        request, pool, block_size = self.machine.requests.get(req_id), self.machine.pool, self._block_size
        if request is None or request.block_ids or request.num_tokens or not pool.cached:
            return []
        prompt = self.jobs[req_id].prompt
        found: list[ev.Event] = []
        for num_tokens in range(1, min(len(prompt) + 1, request.num_known)):
            choices = [
                self._holding(prompt[: min(last + block_size, num_tokens)])
                for last in range(0, num_tokens, block_size)
            ]
            for block_ids in product(*choices):
                if not any(block_id in pool.fences for block_id in block_ids):
                    found.append(ev.Share(req_id, request.epoch, block_ids, prompt[:num_tokens]))
        return found

    def _holding(self, vocab_ids: tuple[int, ...]) -> list[int]:
        """Return the cached blocks that hold the end of this prefix."""
        last_block = -(-len(vocab_ids) // self._block_size)
        return [
            block_id
            for block_id, prefix in self.machine.pool.cached.items()
            if prefix.vocab_ids[: len(vocab_ids)] == vocab_ids
            and -(-len(prefix.vocab_ids) // self._block_size) == last_block
        ]

    def caches(self, req_id: str) -> list[ev.Event]:
        """The leading blocks enter the prefix cache, as many as one likes."""
        machine = self.machine
        request = machine.requests.get(req_id)
        if request is None or not machine.is_worked(req_id, request.epoch) or req_id not in machine.table:
            return []
        num_written = len(machine.table.written_blocks(req_id))
        return [
            ev.Cache(req_id, request.epoch, tuple(request.block_ids[:count]))
            for count in range(1, num_written + 1)
            if not all(block_id in machine.pool.cached for block_id in request.block_ids[:count])
        ]

    def uncaches(self) -> list[ev.Event]:
        """A block leaves the prefix cache."""
        return [ev.Uncache((block_id,)) for block_id in sorted(self.machine.pool.cached)]

    def frees(self) -> list[ev.Event]:
        """A fenced block that nothing can touch any more goes back to the free list."""
        hazards = self.machine.hazards()
        fences = self.machine.pool.fences
        return [ev.Free((block_id,)) for block_id in sorted(fences) if not fences[block_id] & hazards]

    # Forwards.

    def most_query(self, req_id: str) -> int:
        """Return the most tokens of a request that the next forward may compute, 0 for none."""
        machine, job = self.machine, self.jobs[req_id]
        request = machine.requests.get(req_id)
        if request is None or self.outputs(req_id):
            return 0
        num_tokens, num_prompt = request.num_tokens, len(job.prompt)
        known = max(request.num_known, num_prompt)
        if machine.is_async:
            known = max(num_prompt, num_tokens + 1) if num_tokens >= num_prompt else num_prompt
        num_slots = len(request.block_ids) * self._block_size - request.length
        most = min(known, job.num_tokens) - num_tokens
        return max(min(most, num_slots, machine.config.max_query if machine.is_async else most), 0)

    def begins(self) -> list[ev.Event]:
        """The scheduler decides a forward: any batch of requests with tokens to compute, one or all of them.

        With async depth 0 a single token may also be announced to be written over a dead one. A step
        without a request is run where no request can go on, or to tell the worker of those that have ended.
        """
        options = {req_id: self._reads(req_id) for req_id in self.jobs}
        ready = [req_id for req_id, reads in options.items() if reads]
        smallest = 0 if self._wants_empty_step(ready) else 1
        return [
            ev.Forward(self.machine.last_step + 1, "begin", reads)
            for size in range(smallest, len(ready) + 1)
            for batch in combinations(ready, size)
            for reads in product(*(options[req_id] for req_id in batch))
        ]

    def _wants_empty_step(self, ready: Sequence[str]) -> bool:
        """Tell whether a step gives the worker something to do: only with one it gets on with reclaiming."""
        machine = self.machine
        is_waiting = bool(machine.requests) and not ready and not machine.steps
        return bool(machine.to_forget) or (
            is_waiting and (machine.is_async or machine.config.reclaim is not None)
        )

    def _reads(self, req_id: str) -> list[ev.Read]:
        machine, most = self.machine, self.most_query(req_id)
        request = machine.requests.get(req_id)
        if request is None:
            return []
        reads = [
            ev.Read(req_id, request.epoch, num_query, request.length + num_query, "")
            for num_query in sorted({1, most} if most else ())
        ]
        if (
            machine.config.strategy in (None, "recycle")
            and not machine.is_async
            and recyclable_slots(machine, req_id)
        ):
            num_known = min(request.num_known, self.jobs[req_id].num_tokens)
            if request.num_tokens < num_known and not self.outputs(req_id):
                reads.append(ev.Read(req_id, request.epoch, 1, request.length, ""))
        return reads

    def starts(self) -> list[ev.Event]:
        """The worker takes the oldest step message once it is done with the step before."""
        machine = self.machine
        waiting = [step for step, forward in machine.forwards.items() if not forward.is_started]
        if not waiting or len(waiting) < len(machine.forwards) or machine.reported is not None:
            return []
        return [ev.Forward(waiting[0], "start", tuple(machine.forwards[waiting[0]].reads.values()))]

    def running(self) -> int | None:
        """Return the step whose forward runs."""
        return next((step for step, forward in self.machine.forwards.items() if forward.is_started), None)

    def syncs(self, req_id: str) -> list[ev.Event]:
        """The forward has written the request's next tokens: the first or all, in the next or a dead slot."""
        machine = self.machine
        worker = machine.workers.get(req_id)
        if worker is None or worker.in_forward is None:
            return []
        num_unwritten = machine.num_unwritten(req_id, worker)
        if not num_unwritten:
            return []
        read = machine.forwards[worker.in_forward].reads[req_id]
        is_announced = not machine.is_async and read.length == machine.length(req_id)
        choices: list[Sequence[int]] = []
        if not is_announced:
            start = machine.length(req_id)
            slots = [
                worker.block_ids[index // self._block_size] * self._block_size + index % self._block_size
                for index in range(start, start + num_unwritten)
            ]
            choices = [slots[:1], slots] if len(slots) > 1 else [slots]
        may_recycle = machine.config.strategy in (None, "recycle") and read.num_query == 1
        if may_recycle and (is_announced or machine.is_async):
            choices += [[slot] for slot in recyclable_slots(machine, req_id)]
        return [self.sync(req_id, worker, slots) for slots in choices]

    def sync(self, req_id: str, worker: WorkerRequest, slots: Sequence[int]) -> ev.Sync:
        """Return the writing of the request's next tokens into these slots."""
        machine, job = self.machine, self.jobs[req_id]
        first = machine.num_tokens(req_id)
        is_pure = machine.num_live(req_id) == first
        positions = range(first, first + len(slots))
        written = tuple(content(job.vocab_ids(0, position + 1), is_pure) for position in positions)
        vocab_ids = job.vocab_ids(first, first + len(slots))
        return ev.Sync(req_id, worker.epoch, first, vocab_ids, tuple(slots), written)

    def ends(self) -> list[ev.Event]:
        """The running forward ends once all its tokens are written, with the digest of what it has read."""
        machine, step = self.machine, self.running()
        if step is None:
            return []
        reads = machine.forwards[step].reads.values()
        for read in reads:
            worker = machine.workers.get(read.req_id)
            if (
                worker is not None
                and worker.in_forward == step
                and machine.num_unwritten(read.req_id, worker)
            ):
                return []
        return [ev.Forward(step, "end", tuple(map(self._read_back, reads)))]

    def _read_back(self, begun: ev.Read) -> ev.Read:
        machine, req_id = self.machine, begun.req_id
        if not machine.is_worked(req_id, begun.epoch):
            return begun
        tokens, slots = machine.visible_tokens(req_id), self.reads[req_id]
        read = [(token_id, slots.get(token_id)) for token_id in tokens]
        return begun._replace(length=len(tokens), digest=self._digest(read))

    def _digest(self, places: Iterable[tuple[int, int | None]]) -> str:
        memory = self.machine.memory
        return digest(
            (token_id, _as_number(memory.get(-1 if slot is None else slot))) for token_id, slot in places
        )

    # Messages.

    def reports(self) -> list[ev.Event]:
        """The worker is done with a step: its plans in place, late copies, and evictions that are due."""
        machine = self.machine
        if machine.reported is None or machine.orphans or not self.is_within_budgets():
            return []
        for worker in machine.workers.values():
            if worker.plan is not None and worker.plan.plan.strategy == "in_place":
                return []
        return [self.report()]

    def is_within_budgets(self) -> bool:
        """Tell whether the worker has evicted what the next step may need evicted."""
        machine = self.machine
        for req_id, worker in machine.workers.items():
            is_decode = machine.num_tokens(req_id) >= worker.num_prompt_tokens
            if is_decode and worker.budget is not None and machine.num_live(req_id) > worker.budget:
                return False
        return True

    def report(self) -> ev.Report:
        """Return the report of the step in the worker's window: what has changed."""
        machine = self.machine
        layouts = tuple(
            layout_of(machine, req_id, worker)
            for req_id, worker in machine.workers.items()
            if is_changed(machine, req_id, worker)
        )
        return ev.Report(-1 if machine.reported is None else machine.reported, layouts)

    def delivers(self) -> list[ev.Event]:
        """The scheduler takes the oldest report, after it has told what the one before has brought."""
        if any(self.outputs(req_id) for req_id in self.jobs):
            return []
        return [ev.Deliver(step) for step in list(self.machine.reports)[:1]]

    # The worker's tokens and plans.

    def _deciding(self, req_id: str) -> WorkerRequest | None:
        """Return what the worker has of a request, if it may decide anything now."""
        if self.machine.is_async and self.machine.reported is None:
            return None
        return self.machine.workers.get(req_id)

    def evicts(self, req_id: str) -> list[ev.Event]:
        """The policy drops one live token, whichever."""
        machine, worker = self.machine, self._deciding(req_id)
        if worker is None or worker.in_forward is not None or req_id not in machine.table:
            return []
        sources = worker.plan.plan.source_blocks if worker.plan else ()
        return [
            ev.Evict(req_id, worker.epoch, (token_id,))
            for token_id in machine.table.live_tokens(req_id)
            if machine.table.slot(req_id, token_id) // self._block_size not in sources
        ]

    def plans(self, req_id: str) -> list[ev.Event]:
        """The planner's plan by each strategy, and the copying of each protected block."""
        machine, worker = self.machine, self._deciding(req_id)
        if worker is None or worker.plan is not None or req_id not in machine.table:
            return []
        return [
            *(
                self.plan(req_id, strategy, relocation)
                for strategy, relocation in self.relocations(req_id, worker.leased)
            ),
            *self._copies_on_write(req_id, worker),
        ]

    def relocations(
        self, req_id: str, leased_blocks: Sequence[int]
    ) -> Iterator[tuple[RelocationStrategy, Relocation]]:
        """Yield what the planner makes of a request by each strategy, with these destinations to be had."""
        machine = self.machine
        for strategy in PLAN_STRATEGIES[machine.config.strategy]:
            if strategy == "copy_on_write" or req_id not in machine.table:
                continue
            relocation = plan_relocation(
                machine.table,
                req_id,
                strategy,
                machine.protection(req_id),
                leased_blocks,
                self._max_source_blocks,
                view=machine.config.view,
                reserve=num_reserved_slots(machine, req_id),
            )
            if relocation is not None:
                yield strategy, relocation

    def _copies_on_write(self, req_id: str, worker: WorkerRequest) -> Iterator[ev.Event]:
        table, is_protected = self.machine.table, self.machine.protection(req_id)
        for source in table.written_blocks(req_id) if worker.leased else ():
            if is_protected(source) and table.live_in_block(req_id, source):
                moves = copy_on_write_moves(table, req_id, source, worker.leased[0])
                yield self.plan(req_id, "copy_on_write", Relocation((source,), (worker.leased[0],), moves))

    def plan(self, req_id: str, strategy: ev.PlanStrategy, relocation: Relocation) -> ev.Plan:
        """Return a relocation as a plan with a number that no other plan of the run has."""
        machine = self.machine
        return ev.Plan(req_id, machine.workers[req_id].epoch, machine.num_events, strategy, *relocation)

    def defers(self, req_id: str) -> list[ev.Event]:
        """A plan out of place that wants more destinations than it has been lent waits for them."""
        machine, worker, headroom = self.machine, self._deciding(req_id), self.machine.config.headroom
        if worker is None or worker.plan is not None or worker.wants or req_id not in machine.table:
            return []
        for num_blocks in range(len(worker.leased) + 1, headroom + 1):
            if self.wants_lease(req_id, num_blocks):
                return [ev.Defer(req_id, worker.epoch, num_blocks)]
        return []

    def wants_lease(self, req_id: str, num_blocks: int) -> bool:
        """Tell whether a request could use so many destinations: to relocate, or for a copy on write."""
        machine = self.machine
        if req_id not in machine.table:
            return False
        written = machine.table.written_blocks(req_id)
        is_protected = machine.protection(req_id)
        if any(is_protected(b) and machine.table.live_in_block(req_id, b) for b in written):
            return True
        taken = [-1 - index for index in range(num_blocks)]
        return any(
            strategy == "out_of_place" and len(relocation.destination_blocks) == num_blocks
            for strategy, relocation in self.relocations(req_id, taken)
        )

    def copies(self, req_id: str) -> list[ev.Event]:
        """One token more of the request's plan is at its destination."""
        worker = self.machine.workers.get(req_id)
        return self._copies(worker.plan) if worker is not None and worker.plan is not None else []

    def late_copies(self) -> list[ev.Event]:
        """One token more of a plan whose epoch has ended is at its destination."""
        return [event for flight in self.machine.orphans.values() for event in self._copies(flight)]

    def _copies(self, flight: PlanInFlight) -> list[ev.Event]:
        """Return the copies that may come next: in place in the order of the slots, otherwise any."""
        plan = flight.plan
        left = [move for move in plan.moves if move.token_id in flight.remaining]
        if plan.strategy == "in_place":
            left = left[:1]
        return [
            ev.Copy(plan.req_id, plan.epoch, plan.plan_id, (move.token_id,), NBYTES_PER_TOKEN)
            for move in left
        ]

    def commits(self, req_id: str) -> list[ev.Event]:
        """A plan whose copies are all complete takes effect."""
        machine = self.machine
        worker = machine.workers.get(req_id)
        if worker is None or worker.plan is None or worker.plan.remaining:
            return []
        return [self.commit(req_id, worker, worker.plan.plan)]

    def commit(self, req_id: str, worker: WorkerRequest, plan: ev.Plan) -> ev.Commit:
        """Return the commit of a plan, with the digests of live tokens before any copy and now."""
        table, sources, destinations = self.machine.table, plan.source_blocks, plan.destination_blocks
        block_ids = blocks_after(worker.block_ids, sources, destinations)
        length = table.length(req_id)
        if plan.strategy != "copy_on_write":
            after = blocks_after(table.block_ids(req_id), sources, destinations)
            try:
                length = table.length_after(req_id, plan.moves, after, self.machine.protection(req_id))
            except VTokenError:
                length = -1  # No table can do these moves any more; no machine will take the commit.
        moved_to = {move.token_id: move.dst_slot for move in plan.moves}
        live = table.live_tokens(req_id)
        after_digest = self._digest(
            (token_id, moved_to.get(token_id, table.slot(req_id, token_id))) for token_id in live
        )
        before = self.machine.live_digest(req_id)
        return ev.Commit(
            req_id, plan.epoch, plan.plan_id, plan.moves, tuple(block_ids), length, before, after_digest
        )

    def cancels(self, req_id: str) -> list[ev.Event]:
        """A plan is given up while all its tokens are where they were."""
        worker = self.machine.workers.get(req_id)
        if worker is None or worker.plan is None:
            return []
        plan = worker.plan.plan
        if plan.strategy == "in_place" and worker.plan.copied:
            return []
        return [ev.Cancel(req_id, plan.epoch, plan.plan_id)]

    def late_cancels(self) -> list[ev.Event]:
        """The copies of a plan whose epoch has ended are stopped."""
        return [
            ev.Cancel(req_id, epoch, flight.plan.plan_id)
            for (req_id, epoch), flight in self.machine.orphans.items()
        ]

    def releases(self, req_id: str) -> list[ev.Event]:
        """A block is given up: a wholly dead one, a source of a committed plan, a lease."""
        machine, worker = self.machine, self._deciding(req_id)
        if worker is None:
            return []
        in_plan = worker.plan.blocks if worker.plan else set()
        given_up = set(worker.leased)
        if not machine.is_async:
            given_up |= machine.pool.held_by(req_id) - set(worker.block_ids)
        if worker.in_forward is None and req_id in machine.table:
            given_up |= set(wholly_dead_blocks(machine.table, req_id, machine.protection(req_id)))
        return [ev.Release(req_id, worker.epoch, (block_id,)) for block_id in sorted(given_up - in_plan)]

    # Inside.

    @property
    def _block_size(self) -> int:
        return self.machine.config.block_size

    @property
    def _max_source_blocks(self) -> int | None:
        reclaim = self.machine.config.reclaim
        return None if reclaim is None else reclaim.max_source_blocks


def _as_number(fingerprint: str | None) -> int:
    """Return a fingerprint as a digest takes it; 0 for a slot that was never or badly written."""
    try:
        return int(fingerprint or "0", 16)
    except ValueError:
        return 0
