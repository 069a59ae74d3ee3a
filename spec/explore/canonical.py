"""The key of a state: equal for two states that differ only in names, and for no others that matter.

Blocks are named by their first appearance in a fixed walk over the requests; those that appear in no
list are sorted by what is known of each, and free ones that are not cached are left out. Requests that
are interchangeable are put into the order that gives the smallest key. Steps count back from the last one
begun, dead epochs of a request are numbered, numbers of plans and counters of events are left out. Of
memory it is kept whether it is right for the tokens, cached prefixes and reads that rely on it.

Every list is written with its length, so that two different states never give the same bytes.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b

from spec.explore.choices import Node
from spec.explore.configurations import Order
from spec.runtime import Epoch, Job, Runtime, content
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine
from vtoken_ref.pool import CachedPrefix
from vtoken_ref.state import PlanInFlight, SchedulerRequest, WorkerRequest
from vtoken_ref.table import HOLE

NONE = 255
KEY_BYTES = 16
STRATEGIES = {"out_of_place": 0, "in_place": 1, "copy_on_write": 2}


def key(node: Node, symmetries: Sequence[Order]) -> bytes:
    """Return the key of a state.

    Args:
        node: the state.
        symmetries: the orders of the jobs that only rename them.

    """
    runtime = node.runtime
    names = _Names(runtime.machine)
    requests = [_Part(runtime, names, job) for job in runtime.jobs.values()]
    if len(symmetries) > 1:
        smallest = min([requests[at].numbers for at in order] for order in symmetries)
        symmetries = [order for order in symmetries if [requests[at].numbers for at in order] == smallest]
    text = min(_text(runtime, names, [requests[at] for at in order]) for order in symmetries)
    return blake2b(bytes([*node.left.values(), *text]), digest_size=KEY_BYTES).digest()


class _Names:
    """Steps and epochs by what distinguishes them."""

    def __init__(self, machine: Machine) -> None:
        self.last_step = machine.last_step
        self._numbers: dict[Epoch, int] = {}
        count: dict[str, int] = {}
        for req_id, epoch in sorted(set(_epochs_named(machine))):
            if not machine.is_current(req_id, epoch):
                count[req_id] = self._numbers[req_id, epoch] = count.get(req_id, 0) + 1

    def ago(self, step: int | None) -> int:
        """Return how many steps ago a step was begun."""
        return NONE if step is None else self.last_step - step

    def epoch(self, req_id: str, epoch: int) -> int:
        """Return 0 for the present epoch, for a dead one its number among those still named."""
        return self._numbers.get((req_id, epoch), 0)


def _epochs_named(machine: Machine) -> Iterable[Epoch]:
    """Yield each request in each epoch that anything refers to."""
    yield from ((req_id, worker.epoch) for req_id, worker in machine.workers.items())
    for forward in machine.forwards.values():
        yield from ((read.req_id, read.epoch) for read in forward.reads.values())
        yield from forward.ended_epochs
    for reads in machine.steps.values():
        yield from ((read.req_id, read.epoch) for read in reads)
    for report in machine.reports.values():
        yield from ((layout.req_id, layout.epoch) for layout in report.layouts)
    yield from machine.retiring
    yield from machine.orphans
    yield from machine.to_forget


class _Part:
    """What is known of one request.

    Attributes:
        req_id: the request.
        numbers: everything but the names of blocks.
        block_ids: the blocks, in the order in which ``numbers`` speaks of them.

    """

    def __init__(self, runtime: Runtime, names: _Names, job: Job) -> None:
        self._runtime, self._machine, self._names = runtime, runtime.machine, names
        self.req_id, self._job = job.req_id, job
        self.numbers: list[int] = []
        self.block_ids: list[int] = []
        machine = runtime.machine
        request, worker = machine.requests.get(job.req_id), machine.workers.get(job.req_id)
        if request is None:
            self.numbers.append(2 if job.req_id in machine.ended else 0)
        else:
            self._scheduler(request)
        if worker is None:
            self.numbers.append(0)
        else:
            self._worker(worker)
        if machine.forwards or machine.steps or machine.reports:
            self._in_flight()
        if machine.retiring or machine.orphans or machine.to_forget:
            self._dead_epochs()

    def _blocks(self, *lists: Sequence[int]) -> None:
        for block_ids in lists:
            self.numbers.append(len(block_ids))
            self.block_ids += block_ids

    def _scheduler(self, request: SchedulerRequest) -> None:
        machine, req_id = self._machine, self.req_id
        _, position = machine.awaiting_output.get(req_id, (-1, -1))
        is_due = position == request.num_prompt_tokens + request.num_sampled
        self.numbers += (
            1,
            request.num_tokens,
            request.length,
            len(request.vocab_ids),
            request.num_sampled,
            len(request.new_shared),
            is_due,
            list(machine.deferred).index(req_id) + 1 if req_id in machine.deferred else 0,
            machine.deferred.get(req_id, 0),
        )
        self._blocks(request.block_ids, request.new_blocks, request.new_leases)

    def _worker(self, worker: WorkerRequest) -> None:
        names = self._names
        self.numbers += (
            1,
            names.epoch(self.req_id, worker.epoch),
            worker.told_length,
            worker.told_wants,
            worker.wants,
            NONE if worker.num_pure is None else worker.num_pure,
            names.ago(worker.in_forward),
            len(worker.fingerprints),
        )
        pure, impure = contents(self._job)
        self.numbers += (
            1 if found == pure[at] else 2 if found == impure[at] else 0
            for at, found in enumerate(worker.fingerprints)
        )
        self._blocks(worker.block_ids, worker.leased, worker.made_for, worker.known_leases)
        if self.req_id in self._machine.table:
            self._table(worker)
        self.numbers.append(NONE)
        if worker.plan is not None:
            self._plan(worker.plan, worker.fingerprints)

    def _table(self, worker: WorkerRequest) -> None:
        machine, table, req_id = self._machine, self._machine.table, self.req_id
        block_ids, block_size = table.block_ids(req_id), table.block_size
        live = set(table.live_tokens(req_id))
        self._blocks(block_ids)
        for block_id in block_ids:
            row = table.block_tokens(req_id, block_id)
            self.numbers.append(len(row))
            for slot, token_id in enumerate(row, block_id * block_size):
                if token_id == HOLE:
                    self.numbers.append(NONE)
                    continue
                is_right = machine.memory.get(slot) == worker.fingerprints[token_id]
                self.numbers += (token_id, (token_id in live) + 2 * is_right)

    def _plan(self, flight: PlanInFlight, fingerprints: Sequence[str] | None) -> None:
        """Write a plan; what it has copied matters only where an epoch alive relies on it."""
        plan, block_size, memory = flight.plan, self._machine.config.block_size, self._machine.memory
        self.numbers += (STRATEGIES[plan.strategy], len(plan.moves))
        self._blocks(plan.source_blocks, plan.destination_blocks)
        for token_id, src_slot, dst_slot in plan.moves:
            is_right = fingerprints is None or memory.get(dst_slot) == fingerprints[token_id]
            is_copied = token_id in flight.copied
            self.numbers += (
                token_id,
                src_slot % block_size,
                dst_slot % block_size,
                is_copied + (is_copied and is_right),
            )
            self.block_ids += (src_slot // block_size, dst_slot // block_size)

    def _in_flight(self) -> None:
        machine, names, req_id = self._machine, self._names, self.req_id
        for step, reads in machine.steps.items():
            self.numbers += (NONE, names.ago(step))
            for read in reads:
                if read.req_id == req_id:
                    self.numbers += (names.epoch(req_id, read.epoch), read.num_query, read.length)
        for forward in machine.forwards.values():
            self._ranks(forward.ended_epochs)
            begun = forward.reads.get(req_id)
            self.numbers.append(NONE if begun is None else 1)
            if begun is None:
                continue
            message = forward.message[req_id]
            self.numbers += (
                names.epoch(req_id, begun.epoch),
                begun.num_query,
                begun.length,
                forward.first_new_token.get(req_id, NONE),
                len(message.shared),
            )
            self._blocks(message.new_blocks, message.new_leases)
        for report in machine.reports.values():
            self.numbers.append(NONE)
            for layout in report.layouts:
                if layout.req_id == req_id:
                    self._layout(layout)
        self._reads()

    def _layout(self, layout: ev.Layout) -> None:
        self.numbers += (
            self._names.epoch(layout.req_id, layout.epoch),
            layout.num_tokens,
            layout.length,
            layout.wants,
        )
        self._blocks(layout.made_for, layout.block_ids, layout.leased_blocks)

    def _reads(self) -> None:
        """Write where the running forward reads; what it finds matters to an epoch that the worker has."""
        machine, req_id = self._machine, self.req_id
        slots, block_size = self._runtime.reads.get(req_id, {}), machine.config.block_size
        worker = machine.workers.get(req_id)
        known = worker.fingerprints if worker is not None and worker.in_forward is not None else None
        self.numbers.append(len(slots))
        for token_id, slot in sorted(slots.items()):
            is_right = known is None or machine.memory.get(slot) == known[token_id]
            self.numbers += (token_id, slot % block_size, is_right)
            self.block_ids.append(slot // block_size)

    def _dead_epochs(self) -> None:
        machine, names, mine = self._machine, self._names, self.req_id
        for (req_id, epoch), told in machine.retiring.items():
            if req_id == mine:
                self.numbers += (names.epoch(req_id, epoch), names.ago(told))
        self.numbers.append(NONE)
        for (req_id, epoch), flight in machine.orphans.items():
            if req_id == mine:
                self.numbers.append(names.epoch(req_id, epoch))
                self._plan(flight, None)
        self.numbers.append(NONE)
        self._ranks(machine.to_forget)

    def _ranks(self, epochs: Iterable[Epoch]) -> None:
        ranks = [self._names.epoch(*pair) for pair in epochs if pair[0] == self.req_id]
        self.numbers += (len(ranks), *sorted(ranks))


def _text(runtime: Runtime, names: _Names, requests: Sequence[_Part]) -> list[int]:
    """Return the whole state with the requests in this order."""
    machine = runtime.machine
    out = _common(machine, names)
    name_of: dict[int, int] = {}
    for request in requests:
        out += request.numbers
        out += (name_of.setdefault(block_id, len(name_of)) for block_id in request.block_ids)
    position = {request.req_id: at for at, request in enumerate(requests)}
    jobs = [runtime.jobs[request.req_id] for request in requests]
    describe = _Blocks(machine, names, position, jobs)
    for block_id in name_of:
        out += describe(block_id)
    out.append(NONE)
    unnamed = [describe(block_id) for block_id in describe.used if block_id not in name_of]
    for description in sorted(unnamed):
        out += description
    return out


def _common(machine: Machine, names: _Names) -> list[int]:
    """Return what names neither a request nor a block."""
    out: list[int] = [machine.is_over]
    for step in machine.steps:
        forward = machine.forwards.get(step)
        is_started = NONE if forward is None else forward.is_started
        out += (names.ago(step), is_started, step in machine.reports, step == machine.reported)
    out.append(NONE)
    reclaim, gate = machine.config.reclaim, machine.gate
    if reclaim is not None:
        num_attempts = 0 if reclaim.max_attempts is None else gate.num_attempts
        since_check = machine.last_step % reclaim.check_interval
        out += (gate.is_pressed, gate.is_check, num_attempts, since_check)
    return out


class _Blocks:
    """Describes blocks without naming them; requests by their positions."""

    def __init__(
        self, machine: Machine, names: _Names, position: dict[str, int], jobs: Sequence[Job]
    ) -> None:
        self._machine, self._pool, self._jobs, self._position = machine, machine.pool, jobs, position
        pool = machine.pool
        self.used = {*pool.holders, *pool.leases, *pool.fences, *pool.cached}
        self._hazards = {
            hazard: (0, names.ago(hazard.step))
            if hazard.kind == "step"
            else (1 + position[hazard.req_id], names.epoch(hazard.req_id, hazard.epoch))
            for hazard in machine.hazards()
        }
        self._frozen: dict[int, list[int]] = {}
        for forward in machine.forwards.values():
            for req_id, slots in forward.frozen_reads.items():
                self._freeze(slots, position[req_id])
            self._freeze(forward.frozen_writes, len(jobs))

    def _freeze(self, slots: Iterable[int], who: int) -> None:
        block_size = self._machine.config.block_size
        for slot in slots:
            block_id, offset = divmod(slot, block_size)
            self._frozen.setdefault(block_id, []).append(who * block_size + offset)

    def __call__(self, block_id: int) -> list[int]:
        pool = self._pool
        out = [
            sum(1 << self._position[req_id] for req_id in pool.holders.get(block_id, ())),
            NONE if block_id not in pool.leases else self._position[pool.leases[block_id]],
        ]
        fence = pool.fences.get(block_id)
        if fence is None:
            out.append(NONE)
        else:
            outstanding = sorted(self._hazards[hazard] for hazard in fence if hazard in self._hazards)
            out.append(len(outstanding))
            for kind, number in outstanding:
                out += (kind, number)
        frozen = self._frozen.get(block_id, ())
        out += (len(frozen), *sorted(frozen))
        prefix = pool.cached.get(block_id)
        if prefix is None:
            out.append(NONE)
        else:
            out += self._cached(block_id, prefix)
        return out

    def _cached(self, block_id: int, prefix: CachedPrefix) -> Iterable[int]:
        block_size, memory = self._machine.config.block_size, self._machine.memory
        first = (len(prefix.fingerprints) - 1) // block_size * block_size
        yield len(prefix.vocab_ids)
        yield prefix.fingerprints[-1] == content(prefix.vocab_ids, True)
        yield sum(
            1 << offset
            for offset, found in enumerate(prefix.fingerprints[first:])
            if memory.get(block_id * block_size + offset) == found
        )
        for job in self._jobs:
            yield num_shared(prefix.vocab_ids, job)


@cache
def contents(job: Job) -> tuple[list[str], list[str]]:
    """Return the content of each token of a job: computed before, and after an eviction."""
    prefixes = [job.vocab_ids(0, count) for count in range(1, job.num_tokens + 2)]
    return [content(prefix, True) for prefix in prefixes], [content(prefix, False) for prefix in prefixes]


@cache
def num_shared(vocab_ids: tuple[int, ...], job: Job) -> int:
    """Return how many of these leading tokens are those of a job."""
    own = job.vocab_ids(0, len(vocab_ids))
    return next(
        (at for at, pair in enumerate(zip(vocab_ids, own, strict=False)) if pair[0] != pair[1]), len(own)
    )
