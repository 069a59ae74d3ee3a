"""The worker's side of vToken: after each forward, evict, plan, copy, commit, and say what happened.

Where tokens are, what may be evicted and what a plan is come from ``vtoken_ref``, so that what is
deployed is what is verified. This file adds the KV memory: what is written to the trace about KV
content is read back from it.

Source: paper 3.3, 3.4, 4 (policy-adapter procedure).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_impl.fingerprint import fingerprints
from gpu_impl.kv_cache import KVCache
from gpu_impl.relocate import relocate
from vtoken_ref.events import Commit, Copy, Event, Evict, Forward, Layout, Move, Plan, Read, Release, Sync
from vtoken_ref.kv_hash import digest, fingerprint_hex
from vtoken_ref.planner import Relocation, blocks_after, plan_relocation, wholly_dead_blocks
from vtoken_ref.policy import Policy, RequestView, ask
from vtoken_ref.reclaim import ReclaimConfig, ReclaimGate, eligible
from vtoken_ref.table import TokenTable


@dataclass(frozen=True, slots=True)
class ForwardRead:
    """What the attention kernel was given for one request in a forward that has ended.

    Attributes:
        req_id: the request.
        num_computed_tokens: tokens computed before this forward, evicted ones included.
        vocab_ids: of the tokens that this forward computed.
        written_slots: int64 [num_query], where the kernel wrote their KV; used only when recording.
        read_slots: int64 [length], every slot up to the length, through the kernel's block table;
            used only when recording.
        block_ids: the request's block list.

    """

    req_id: str
    num_computed_tokens: int
    vocab_ids: tuple[int, ...]
    written_slots: torch.Tensor
    read_slots: torch.Tensor
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class WorkerReport:
    """What one step did: trace events (empty unless recording) and the layouts that changed."""

    step: int
    events: list[Event] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)


@dataclass(slots=True)
class _Request:
    epoch: int
    req_key: str
    budget: int | None
    num_prompt_tokens: int
    state: dict[str, Any] = field(default_factory=dict)


class Reclaimer:
    """Token table, policy and relocation of one worker.

    Args:
        cache: the KV of all layers.
        policy: who chooses the victims.
        config: when and how to reclaim.
        recording: whether to read KV back and report events.

    """

    def __init__(self, cache: KVCache, policy: Policy, config: ReclaimConfig, recording: bool) -> None:
        self.cache = cache
        self.policy = policy
        self.config = config
        self.recording = recording
        self.table = TokenTable(cache.block_size)
        self._requests: dict[str, _Request] = {}
        self._next_plan_id = 0
        self._gate = ReclaimGate()

    def start(
        self, req_id: str, epoch: int, req_key: str, budget: int | None, num_prompt_tokens: int
    ) -> None:
        """Begin an epoch of a request; what an earlier epoch left is dropped."""
        self.drop(req_id)
        self._requests[req_id] = _Request(epoch, req_key, budget, num_prompt_tokens)

    def drop(self, req_id: str) -> None:
        """Forget a request; one that is not known is no error, since it may never have run."""
        self._requests.pop(req_id, None)
        if req_id in self.table:
            self.table.drop(req_id)

    def length(self, req_id: str) -> int:
        """Return how many slots of the request are in use: the physical sequence length."""
        return self.table.length(req_id) if req_id in self.table else 0

    def after_forward(self, step: int, reads: Sequence[ForwardRead], num_free_blocks: int) -> WorkerReport:
        """Do everything that follows a forward whose writes are complete.

        Args:
            step: the forward's number.
            reads: one for each request in it.
            num_free_blocks: free blocks when the scheduler made the step.

        """
        report = WorkerReport(step)
        self._gate.begin_step(self.config, step, num_free_blocks)
        for read in reads:
            self._sync(report, read)
        if self.recording:
            read_back = tuple(self._read_back(read) for read in reads)
            report.events.append(Forward(step, "end", read_back))
        for read in reads:
            if self.table.num_tokens(read.req_id) >= self._requests[read.req_id].num_prompt_tokens:
                self._evict(report, read.req_id)
                self._reclaim(report, read)
        return report

    def _sync(self, report: WorkerReport, read: ForwardRead) -> None:
        total = read.num_computed_tokens + len(read.vocab_ids)
        new_ids = self.table.sync_new_tokens(read.req_id, read.block_ids, total)
        if self.recording:
            slots = tuple(read.written_slots.tolist())
            written = tuple(map(fingerprint_hex, fingerprints(self.cache, read.written_slots)))
            epoch = self._requests[read.req_id].epoch
            report.events.append(Sync(read.req_id, epoch, new_ids.start, read.vocab_ids, slots, written))

    def _read_back(self, read: ForwardRead) -> Read:
        tokens = self.table.resident_tokens(read.req_id)
        read_digest = digest(zip(tokens, fingerprints(self.cache, read.read_slots), strict=False))
        epoch = self._requests[read.req_id].epoch
        return Read(read.req_id, epoch, len(read.vocab_ids), len(read.read_slots), read_digest)

    def _evict(self, report: WorkerReport, req_id: str) -> None:
        request = self._requests[req_id]
        if request.budget is None or self.table.num_live(req_id) <= request.budget:
            return
        view = RequestView(
            req_key=request.req_key,
            live_ids=self.table.live_tokens(req_id),
            num_tokens=self.table.num_tokens(req_id),
            budget=request.budget,
            state=request.state,
        )
        victims = ask(self.policy, view, twice=self.recording)
        for token_id in victims:
            self.table.evict_token(req_id, token_id)
        if victims:
            self._record(report, Evict(req_id, request.epoch, victims))

    def _reclaim(self, report: WorkerReport, read: ForwardRead) -> None:
        req_id = read.req_id
        self._release(report, req_id, wholly_dead_blocks(self.table, req_id, _is_protected))
        if self._is_due(req_id):
            relocation = plan_relocation(
                self.table,
                req_id,
                self.config.plan_strategy,
                _is_protected,
                max_source_blocks=self.config.max_source_blocks,
            )
            if relocation is not None:
                self._gate.num_attempts += 1
                self._relocate(report, req_id, relocation)
        block_ids = tuple(self.table.block_ids(req_id))
        if block_ids != read.block_ids:
            report.layouts[req_id] = Layout(
                req_id,
                self._requests[req_id].epoch,
                read.block_ids,
                block_ids,
                self.table.num_tokens(req_id),
                self.table.length(req_id),
            )

    def _is_due(self, req_id: str) -> bool:
        """Tell whether to attempt a plan now."""
        gate = self._gate
        return gate.is_pressed and gate.may_attempt(self.config) and eligible(self.table, req_id, self.config)

    def _release(self, report: WorkerReport, req_id: str, block_ids: tuple[int, ...]) -> None:
        if not block_ids:
            return
        self.table.release_blocks(req_id, block_ids)
        self._record(report, Release(req_id, self._requests[req_id].epoch, block_ids))

    def _relocate(self, report: WorkerReport, req_id: str, relocation: Relocation) -> None:
        epoch = self._requests[req_id].epoch
        plan_id = self._next_plan_id
        self._next_plan_id += 1
        self._record(report, Plan(req_id, epoch, plan_id, self.config.plan_strategy, *relocation))
        before = self._live_digest(req_id)
        nbytes = self._copy(relocation.moves)
        moved = tuple(move.token_id for move in relocation.moves)
        if moved:
            self._record(report, Copy(req_id, epoch, plan_id, moved, nbytes))
        sources, destinations, moves = relocation
        new_list = blocks_after(self.table.block_ids(req_id), sources, destinations)
        self.table.apply_moves(req_id, moves, new_list)
        commit = Commit(
            req_id,
            epoch,
            plan_id,
            moves,
            tuple(new_list),
            self.table.length(req_id),
            before,
            self._live_digest(req_id),
        )
        self._record(report, commit)
        self._release(report, req_id, tuple(b for b in sources if b not in destinations))

    def _copy(self, moves: Sequence[Move]) -> int:
        """Move KV in memory; return the bytes moved."""
        return relocate(self.cache, moves)

    def _live_digest(self, req_id: str) -> str:
        """Return the digest of the live tokens, read back from memory; empty when not recording."""
        if not self.recording:
            return ""
        slots = torch.tensor(self.table.slot_mapping(req_id), dtype=torch.int64)
        return digest(zip(self.table.live_tokens(req_id), fingerprints(self.cache, slots), strict=True))

    def _record(self, report: WorkerReport, event: Event) -> None:
        if self.recording:
            report.events.append(event)


def _is_protected(block_id: int) -> bool:
    """No block is shared or cached: prefix caching is refused when the engine starts."""
    del block_id
    return False
