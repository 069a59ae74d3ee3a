"""The state of a run: what the scheduler knows, what the worker knows, what is under way, and ghosts.

The scheduler owns the pool and its own view of each request; the worker owns the token table and the
plans. With async depth 0 the two always agree, and one event changes both. With async depth 1 they
hear of each other by messages, and the scheduler is one step ahead. Ghost parts are what no runtime
has: the content of every slot, and what a forward reads.

Source: paper 3.2 to 3.5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vtoken_ref import events as ev
from vtoken_ref.kv_hash import digest_entry, digest_of_entries
from vtoken_ref.pool import BlockPool, Hazard
from vtoken_ref.reclaim import ReclaimConfig, ReclaimGate
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import TokenTable

OVERWRITTEN = "overwritten"


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What a run's header fixes.

    Attributes:
        block_size: slots per block.
        block_ids: the usable blocks.
        headroom: the most blocks leased at one time.
        strategy: how the run reclaims; None for any way.
        nbytes_per_token: KV bytes of one token in all layers; None when it is not known.
        view: how attention addresses KV. ``packed``: dead tokens stay visible until they are
            reclaimed; ``indirect``: a dead token leaves the visible set at once.
        async_depth: steps that the scheduler is ahead of the worker's reports, 0 or 1.
        max_query: with async depth 1, the most tokens of one request in one step.
        reclaim: when plans may be made; None where that is not checked.

    """

    block_size: int
    block_ids: range
    headroom: int = 0
    strategy: ev.Strategy | None = None
    nbytes_per_token: int | None = None
    view: ev.View = "packed"
    async_depth: int = 0
    max_query: int = 1
    reclaim: ReclaimConfig | None = None


@dataclass(slots=True)
class PlanInFlight:
    """A plan that is neither committed nor cancelled, and which of its moves are complete."""

    plan: ev.Plan
    moves: dict[int, ev.Move]
    copied: set[int] = field(default_factory=set)

    @property
    def remaining(self) -> set[int]:
        """Token ids whose copy is not complete."""
        return self.moves.keys() - self.copied

    @property
    def blocks(self) -> set[int]:
        """Sources and destinations."""
        return {*self.plan.source_blocks, *self.plan.destination_blocks}

    def copy(self) -> "PlanInFlight":
        """Return an independent one in the same state."""
        return PlanInFlight(self.plan, self.moves, set(self.copied))


@dataclass(slots=True)
class SchedulerRequest:
    """What the scheduler knows of one request.

    Attributes:
        num_prompt_tokens, budget: as admitted.
        epoch: grows with each preemption.
        block_ids: its block list.
        length: resident length after all steps begun, as far as reports tell.
        num_tokens: tokens of this epoch after all steps begun.
        vocab_ids: of its tokens, as far as they are known.
        num_sampled: outputs told.
        new_blocks, new_leases, new_shared: what the next step message tells the worker; the
            fingerprints of shared tokens.

    """

    num_prompt_tokens: int
    budget: int | None
    epoch: int = 0
    block_ids: list[int] = field(default_factory=list)
    length: int = 0
    num_tokens: int = 0
    vocab_ids: list[int] = field(default_factory=list)
    num_sampled: int = 0
    new_blocks: list[int] = field(default_factory=list)
    new_leases: list[int] = field(default_factory=list)
    new_shared: tuple[str, ...] = ()

    @property
    def num_known(self) -> int:
        """Tokens that the request has, computed or not: its prompt and its outputs."""
        return max(self.num_prompt_tokens, len(self.vocab_ids))

    def copy(self) -> "SchedulerRequest":
        """Return an independent one in the same state."""
        return SchedulerRequest(
            self.num_prompt_tokens,
            self.budget,
            self.epoch,
            list(self.block_ids),
            self.length,
            self.num_tokens,
            list(self.vocab_ids),
            self.num_sampled,
            list(self.new_blocks),
            list(self.new_leases),
            self.new_shared,
        )


@dataclass(slots=True)
class WorkerRequest:
    """What the worker knows of one request, beside its part of the token table.

    Attributes:
        epoch: of which it is; with async depth 1 the scheduler may have ended it already.
        num_prompt_tokens, budget: as admitted.
        block_ids: its block list; the table learns of a block when a token is written.
        leased: blocks lent to it that it knows of and that are in no list.
        fingerprints: of its tokens, as they were written.
        plan: the plan in flight.
        in_forward: the step that is running with it.
        num_evicted: tokens evicted in this epoch.
        num_pure: leading tokens that were computed before any eviction.
        made_for: the list that the scheduler has, once it has all reports sent so far.
        known_leases, told_length, told_wants: what the scheduler will think of it then.
        wants: destinations that its deferred plan waits for.
        resident_entries: digest entries of the visible tokens, None when they are to be made anew.

    """

    epoch: int
    num_prompt_tokens: int
    budget: int | None
    block_ids: list[int] = field(default_factory=list)
    leased: list[int] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    plan: PlanInFlight | None = None
    in_forward: int | None = None
    num_evicted: int = 0
    num_pure: int | None = None
    made_for: list[int] = field(default_factory=list)
    known_leases: list[int] = field(default_factory=list)
    told_length: int = 0
    told_wants: int = 0
    wants: int = 0
    resident_entries: bytearray | None = field(default_factory=bytearray)

    def copy(self) -> "WorkerRequest":
        """Return an independent one in the same state."""
        return WorkerRequest(
            self.epoch,
            self.num_prompt_tokens,
            self.budget,
            list(self.block_ids),
            list(self.leased),
            list(self.fingerprints),
            None if self.plan is None else self.plan.copy(),
            self.in_forward,
            self.num_evicted,
            self.num_pure,
            list(self.made_for),
            list(self.known_leases),
            self.told_length,
            self.told_wants,
            self.wants,
            None,
        )


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a step message tells the worker of one request."""

    num_prompt_tokens: int
    budget: int | None
    new_blocks: tuple[int, ...]
    new_leases: tuple[int, ...]
    shared: tuple[str, ...]


@dataclass(slots=True)
class ForwardInFlight:
    """A step that has begun and whose forward has not ended.

    Attributes:
        reads: by request, as it began.
        message: what the worker is told of each request.
        ended_epochs: what the worker is told to forget.
        is_started: whether the worker has taken the message.
        first_new_token: by request, the first token that it computes; known when it starts.
        frozen_reads: ghost; slots that the forward still reads though the table has moved on.
        frozen_writes: ghost; slots that it still writes though the request is forgotten.

    """

    reads: dict[str, ev.Read]
    message: dict[str, StepRequest]
    ended_epochs: tuple[tuple[str, int], ...]
    is_started: bool = False
    first_new_token: dict[str, int] = field(default_factory=dict)
    frozen_reads: dict[str, frozenset[int]] = field(default_factory=dict)
    frozen_writes: list[int] = field(default_factory=list)

    def copy(self) -> "ForwardInFlight":
        """Return an independent one in the same state."""
        return ForwardInFlight(
            self.reads,
            self.message,
            self.ended_epochs,
            self.is_started,
            dict(self.first_new_token),
            dict(self.frozen_reads),
            list(self.frozen_writes),
        )


class State:
    """The state of a run.

    Attributes:
        table: the worker's token table.
        pool: the scheduler's block pool.
        memory: ghost, the fingerprint of what each slot holds.
        requests: by id, what the scheduler knows of the requests alive.
        workers: by id, what the worker knows.
        ended: requests that have ended.
        forwards: by step, those that have begun and not ended.
        reported: the step of the worker's window, ended and not reported (async depth 1).
        reports: by step, sent and not delivered.
        steps: what requests have in each step that has begun and, with async depth 1, has not been
            delivered; with depth 0, has not ended.
        told_leases: by step not delivered, the leases that its message told the worker of.
        retiring: dead epochs that the worker may still work for, with the step after whose delivery
            it does not; None while it has not been told.
        orphans: plans of dead epochs whose copies may still run.
        to_forget: dead epochs that the next step message tells the worker of.
        deferred: by request, destinations that its plan waits for, oldest first.
        gate: when attempts to reclaim may be made.
        awaiting_output: by request, the step and the position of the output to come.
        last_step: of the last forward begun.
        num_events: events applied.
        is_over: whether the run has ended.

    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.table = TokenTable(config.block_size)
        self.pool = BlockPool(config.block_ids, config.headroom)
        self.memory: dict[int, str] = {}
        self.requests: dict[str, SchedulerRequest] = {}
        self.workers: dict[str, WorkerRequest] = {}
        self.ended: set[str] = set()
        self.forwards: dict[int, ForwardInFlight] = {}
        self.reported: int | None = None
        self.reports: dict[int, ev.Report] = {}
        self.steps: dict[int, tuple[ev.Read, ...]] = {}
        self.told_leases: dict[int, tuple[int, ...]] = {}
        self.retiring: dict[tuple[str, int], int | None] = {}
        self.orphans: dict[tuple[str, int], PlanInFlight] = {}
        self.to_forget: list[tuple[str, int]] = []
        self.deferred: dict[str, int] = {}
        self.gate = ReclaimGate()
        self.awaiting_output: dict[str, tuple[int, int]] = {}
        self.last_step = -1
        self.num_events = 0
        self.is_over = False

    def copy_into(self, other: "State") -> None:
        """Make another state of the same configuration equal to this one, and independent of it."""
        other.table, other.pool = self.table.copy(), self.pool.copy()
        other.memory = dict(self.memory)
        other.requests = {req_id: request.copy() for req_id, request in self.requests.items()}
        other.workers = {req_id: worker.copy() for req_id, worker in self.workers.items()}
        other.ended = set(self.ended)
        other.forwards = {step: forward.copy() for step, forward in self.forwards.items()}
        other.reported, other.reports = self.reported, dict(self.reports)
        other.steps, other.retiring = dict(self.steps), dict(self.retiring)
        other.told_leases = dict(self.told_leases)
        other.orphans = {key: plan.copy() for key, plan in self.orphans.items()}
        other.to_forget, other.deferred = list(self.to_forget), dict(self.deferred)
        other.gate = ReclaimGate(self.gate.is_pressed, self.gate.is_check, self.gate.num_attempts)
        other.awaiting_output = dict(self.awaiting_output)
        other.last_step, other.num_events = self.last_step, self.num_events
        other.is_over = self.is_over

    # Who is asked for.

    @property
    def is_async(self) -> bool:
        """Whether scheduler and worker hear of each other by messages."""
        return self.config.async_depth > 0

    def request(self, req_id: str, epoch: int | None = None) -> SchedulerRequest:
        """Return what the scheduler knows of a request alive, in this epoch.

        Raises:
            VTokenError: unknown-request, stale-epoch.

        """
        request = self.requests.get(req_id)
        if request is None:
            raise VTokenError(Rule.UNKNOWN_REQUEST, f"there is no request {req_id}")
        _check_epoch(req_id, request.epoch, epoch)
        return request

    def worker(self, req_id: str, epoch: int) -> WorkerRequest:
        """Return what the worker knows of a request, in this epoch.

        Raises:
            VTokenError: unknown-request, stale-epoch.

        """
        worker = self.workers.get(req_id)
        if worker is None:
            raise VTokenError(Rule.UNKNOWN_REQUEST, f"the worker has no request {req_id}")
        _check_epoch(req_id, worker.epoch, epoch)
        return worker

    def is_current(self, req_id: str, epoch: int) -> bool:
        """Tell whether a request is alive in this epoch."""
        request = self.requests.get(req_id)
        return request is not None and request.epoch == epoch

    def is_worked(self, req_id: str, epoch: int) -> bool:
        """Tell whether the worker has a request in this epoch."""
        worker = self.workers.get(req_id)
        return worker is not None and worker.epoch == epoch

    # What the token table says, also of a request without a token.

    def num_tokens(self, req_id: str) -> int:
        """Return the tokens computed in the worker's epoch."""
        return self.table.num_tokens(req_id) if req_id in self.table else 0

    def length(self, req_id: str) -> int:
        """Return the resident length as the worker knows it."""
        return self.table.length(req_id) if req_id in self.table else 0

    def num_live(self, req_id: str) -> int:
        """Return the live tokens."""
        return self.table.num_live(req_id) if req_id in self.table else 0

    def num_evicted(self, req_id: str) -> int:
        """Return the tokens evicted from a request in its present epoch."""
        return self.workers[req_id].num_evicted

    # What attention reads.

    def visible_tokens(self, req_id: str) -> list[int]:
        """Return the tokens that attention reads, in the order in which it reads them."""
        if req_id not in self.table:
            return []
        if self.config.view == "packed":
            return self.table.resident_tokens(req_id)
        return self.table.live_tokens(req_id)

    def visible_digest(self, req_id: str) -> str:
        """Return the digest of the visible tokens, as they were written."""
        worker = self.workers[req_id]
        if worker.resident_entries is None:
            worker.resident_entries = bytearray(self._entries(worker, self.visible_tokens(req_id)))
        return digest_of_entries(bytes(worker.resident_entries))

    def live_digest(self, req_id: str) -> str:
        """Return the digest of the live tokens, as they were written."""
        tokens = self.table.live_tokens(req_id) if req_id in self.table else []
        return digest_of_entries(self._entries(self.workers[req_id], tokens))

    def visible_slots(self, req_id: str) -> frozenset[int]:
        """Return the slots of the visible tokens."""
        return frozenset(self.table.slot(req_id, token_id) for token_id in self.visible_tokens(req_id))

    def slots_read(self, forward: ForwardInFlight) -> Iterator[tuple[str, frozenset[int]]]:
        """Yield, for each request in a forward that runs, the slots that it reads."""
        for req_id, read in forward.reads.items():
            if req_id in forward.frozen_reads:
                yield req_id, forward.frozen_reads[req_id]
            elif self.is_worked(req_id, read.epoch):
                yield req_id, self.visible_slots(req_id)

    def read_in_flight(self, req_id: str, worker: WorkerRequest) -> ev.Read | None:
        """Return what a request has in the forward that runs with it, if any."""
        return None if worker.in_forward is None else self.forwards[worker.in_forward].reads[req_id]

    def num_unwritten(self, req_id: str, worker: WorkerRequest) -> int:
        """Return the tokens that the running forward has still to write for a request."""
        read = self.read_in_flight(req_id, worker)
        if read is None or worker.in_forward is None:
            return 0
        first = self.forwards[worker.in_forward].first_new_token[req_id]
        return read.num_query - (self.num_tokens(req_id) - first)

    # What may be written.

    def protection(self, req_id: str) -> Callable[[int], bool]:
        """Return whether somebody else relies on what a block of a request holds, by block.

        It is cached, or another request has it as well. With async depth 1 that may also be one that has
        ended, and the worker still has it or is about to; and what the worker has may itself be such a one.
        """
        pool, worker = self.pool, self.workers.get(req_id)
        is_alive = worker is not None and self.is_current(req_id, worker.epoch)
        mine = {req_id} if is_alive else set()
        lists = [other.block_ids for other_id, other in self.workers.items() if other_id != req_id]
        for forward in self.forwards.values():
            if not forward.is_started:
                lists += [list(m.new_blocks) for other_id, m in forward.message.items() if other_id != req_id]

        def is_protected(block_id: int) -> bool:
            is_held = bool(pool.holders.get(block_id, mine) - mine)
            return is_held or block_id in pool.cached or any(block_id in block_ids for block_ids in lists)

        return is_protected

    # What may still touch a block.

    def hazards(self) -> frozenset[Hazard]:
        """Return everything that may still touch a block of somebody."""
        epochs = [Hazard("epoch", req_id=req_id, epoch=epoch) for req_id, epoch in self.retiring]
        return frozenset((*self._step_hazards(), *epochs))

    def hazards_of(self, req_id: str, epoch: int) -> frozenset[Hazard]:
        """Return what may still touch a block that this epoch of a request gives up now."""
        steps = self._step_hazards()
        if (req_id, epoch) in self.retiring:
            return frozenset((*steps, Hazard("epoch", req_id=req_id, epoch=epoch)))
        return frozenset(steps)

    def _step_hazards(self) -> list[Hazard]:
        return [Hazard("step", step=step) for step in self.steps]

    def steps_of(self, req_id: str, epoch: int) -> list[ev.Read]:
        """Return what a request has in the steps that the scheduler has not heard the end of."""
        return [
            read
            for reads in self.steps.values()
            for read in reads
            if (read.req_id, read.epoch) == (req_id, epoch)
        ]

    def snapshot(self, req_id: str | None) -> dict[str, object]:
        """Return the state around a request in plain values, for a report of a violation."""
        state: dict[str, object] = {
            "num_events": self.num_events,
            "forwards_in_flight": sorted(self.forwards),
            "free_blocks": len(self.pool.free_blocks),
            "leased_blocks": sorted(self.pool.leases),
            "fenced_blocks": sorted(self.pool.fences),
            "cached_blocks": sorted(self.pool.cached),
        }
        request, worker = self.requests.get(req_id or ""), self.workers.get(req_id or "")
        if req_id is None or request is None:
            return state
        state["request"] = {
            "req_id": req_id,
            "epoch": request.epoch,
            "block_ids": list(request.block_ids),
            "num_tokens": self.num_tokens(req_id),
            "num_live": self.num_live(req_id),
            "length": self.length(req_id),
            "plan_in_flight": worker.plan.plan.plan_id if worker and worker.plan else None,
        }
        return state

    def entry(self, worker: WorkerRequest, token_id: int) -> bytes:
        """Return what one token adds to a digest."""
        return digest_entry(token_id, int(worker.fingerprints[token_id], 16))

    def _entries(self, worker: WorkerRequest, token_ids: list[int]) -> bytes:
        return b"".join(self.entry(worker, token_id) for token_id in token_ids)


def _check_epoch(req_id: str, present: int, epoch: int | None) -> None:
    if epoch is not None and epoch != present:
        raise VTokenError(
            Rule.STALE_EPOCH, f"request {req_id} is in epoch {present}, the event is of {epoch}"
        )
