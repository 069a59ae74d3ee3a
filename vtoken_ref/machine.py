"""The executable spec as a transition system: ``apply`` takes one event or rejects it.

An event is checked whole against the state and then changes it; a rejected event raises
``VTokenError`` and changes nothing. The state has ghost parts that no runtime has: the content of
every slot, and the vocabulary id of every token.

Source: paper 3.2 to 3.5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vtoken_ref import events as ev
from vtoken_ref.kv_hash import digest_entry, digest_of_entries, is_fingerprint
from vtoken_ref.planner import Relocation, blocks_after, check_relocation
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import TokenTable


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What a run's header fixes.

    Attributes:
        block_size: slots per block.
        block_ids: the usable blocks.
        headroom: the most blocks leased at one time.
        strategy: of every plan; None for any.
        nbytes_per_token: KV bytes of one token in all layers; None when it is not known.

    """

    block_size: int
    block_ids: range
    headroom: int = 0
    strategy: ev.Strategy | None = None
    nbytes_per_token: int | None = None


@dataclass(slots=True)
class _PlanInFlight:
    plan: ev.Plan
    moves: dict[int, ev.Move]
    copied: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Request:
    """One request; ``block_ids`` also has the blocks allocated since the table's last sync."""

    num_prompt_tokens: int
    budget: int | None
    epoch: int = 0
    block_ids: list[int] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    vocab_ids: list[int] = field(default_factory=list)
    plan: _PlanInFlight | None = None
    in_forward: int | None = None
    num_evicted: int = 0
    resident_entries: bytearray | None = field(default_factory=bytearray)


@dataclass(slots=True)
class _ForwardInFlight:
    reads: dict[str, ev.Read]
    first_new_token: dict[str, int]


class Machine:
    """The state of a run under the packed view with the scheduler in step with the worker.

    Attributes:
        table: the token table.
        pool: the block pool.
        memory: ghost, the fingerprint of what each slot holds.
        requests: the requests alive.
        num_events: events applied.

    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.table = TokenTable(config.block_size)
        self.pool = BlockPool(config.block_ids, config.headroom)
        self.memory: dict[int, str] = {}
        self.requests: dict[str, _Request] = {}
        self.ended: set[str] = set()
        self.forwards: dict[int, _ForwardInFlight] = {}
        self.last_step = -1
        self.awaiting_output: dict[str, int] = {}
        self.num_events = 0
        self.is_over = False
        self._handlers: Mapping[str, Callable[..., None]] = {
            kind: getattr(self, f"_{kind}") for kind in ev.EVENT_TYPES
        }

    def apply(self, event: ev.Event) -> None:
        """Apply one event.

        Raises:
            VTokenError: the event breaks a rule; the state is as before.

        """
        if self.is_over:
            raise VTokenError(Rule.TRACE_AFTER_END, f"a {event.kind} event follows the end")
        self._handlers[event.kind](event)
        self.num_events += 1

    # Scheduler: requests and blocks.

    def _admit(self, event: ev.Admit) -> None:
        if event.req_id in self.requests or event.req_id in self.ended:
            raise VTokenError(Rule.REQUEST_EXISTS, f"request {event.req_id} was admitted before")
        if event.num_prompt_tokens < 1 or (event.budget is not None and event.budget < 1):
            raise VTokenError(Rule.TRACE_FIELD, f"request {event.req_id} has no prompt or no budget")

        self.requests[event.req_id] = _Request(event.num_prompt_tokens, event.budget)

    def _alloc(self, event: ev.Alloc) -> None:
        request = self._get(event.req_id)
        self.pool.alloc(event.req_id, event.block_ids)

        request.block_ids.extend(event.block_ids)

    def _lease(self, event: ev.Lease) -> None:
        self._get(event.req_id, event.epoch)
        self.pool.lease(event.req_id, event.block_ids)

    def _release(self, event: ev.Release) -> None:
        request = self._get(event.req_id, event.epoch)
        in_plan = self._blocks_in_plan(request)
        for block_id in event.block_ids:
            if block_id in in_plan or self._live_in(event.req_id, block_id):
                raise VTokenError(
                    Rule.BLOCK_STILL_LIVE,
                    f"request {event.req_id} releases block {block_id}, which it still uses",
                )
        if request.in_forward is not None and set(event.block_ids) & set(request.block_ids):
            raise VTokenError(
                Rule.LAYOUT_DURING_FORWARD,
                f"request {event.req_id} releases blocks that forward {request.in_forward} reads",
            )
        self.pool.release(event.req_id, event.block_ids, frozenset(self.forwards))

        request.block_ids = [block_id for block_id in request.block_ids if block_id not in event.block_ids]
        if event.req_id in self.table and self.table.release_blocks(event.req_id, event.block_ids):
            request.resident_entries = None

    def _free(self, event: ev.Free) -> None:
        self.pool.free(event.block_ids, frozenset(self.forwards))

    def _preempt(self, event: ev.Preempt) -> None:
        request = self._get(event.req_id, event.epoch)

        self._end_epoch(event.req_id)
        self.requests[event.req_id] = _Request(
            request.num_prompt_tokens,
            request.budget,
            epoch=request.epoch + 1,
            vocab_ids=request.vocab_ids,
        )

    def _abort(self, event: ev.Abort) -> None:
        self._get(event.req_id, event.epoch)
        self._end_request(event.req_id)

    def _finish(self, event: ev.Finish) -> None:
        self._get(event.req_id, event.epoch)
        self._end_request(event.req_id)

    def _end(self, event: ev.End) -> None:
        if self.forwards:
            raise VTokenError(Rule.STEP_ORDER, f"forward {min(self.forwards)} has not ended")
        if self.requests:
            raise VTokenError(Rule.REQUEST_LEFT, f"request {min(self.requests)} has not ended")
        num_free = len(self.pool.free_blocks)
        if num_free != len(self.pool.block_ids):
            lost = next(b for b in self.pool.block_ids if b not in self.pool.free_blocks)
            raise VTokenError(Rule.LEAK, f"block {lost} is {self.pool.state(lost)} at the end")
        counts = (self.num_events, len(self.ended), num_free)
        if (event.num_events, event.num_requests, event.num_free_blocks) != counts:
            raise VTokenError(
                Rule.TRACE_COUNTS,
                f"the end counts {event.num_events} events, {event.num_requests} requests and"
                f" {event.num_free_blocks} free blocks; there are {counts[0]}, {counts[1]} and {counts[2]}",
            )

        self.is_over = True

    # Forwards: reads, writes, outputs.

    def _forward(self, event: ev.Forward) -> None:
        if event.phase == "begin":
            self._forward_begin(event)
        else:
            self._forward_end(event)

    def _forward_begin(self, event: ev.Forward) -> None:
        is_repeated = len({read.req_id for read in event.reads}) != len(event.reads)
        if event.step <= self.last_step or self.forwards or is_repeated:
            raise VTokenError(
                Rule.STEP_ORDER,
                f"forward {event.step} begins after {self.last_step}, in flight {self._steps()}",
            )
        for read in event.reads:
            self._check_read_begin(read)

        first_new = {read.req_id: self._num_tokens(read.req_id) for read in event.reads}
        self.forwards[event.step] = _ForwardInFlight({read.req_id: read for read in event.reads}, first_new)
        self.last_step = event.step
        for read in event.reads:
            self.requests[read.req_id].in_forward = event.step

    def _check_read_begin(self, read: ev.Read) -> None:
        request = self._get(read.req_id, read.epoch)
        length = self._length(read.req_id) + read.num_query
        if read.num_query < 1 or read.length != length:
            raise VTokenError(
                Rule.LENGTH_MISMATCH,
                f"request {read.req_id} has {length} tokens with this forward, not {read.length}",
            )
        if length > len(request.block_ids) * self.config.block_size:
            raise VTokenError(
                Rule.CAPACITY,
                f"request {read.req_id} has {len(request.block_ids)} blocks for {length} tokens",
            )
        is_decode = self._num_tokens(read.req_id) >= request.num_prompt_tokens
        if is_decode and request.budget is not None:
            num_live = self.table.num_live(read.req_id)
            if num_live > request.budget:
                raise VTokenError(
                    Rule.BUDGET_EXCEEDED,
                    f"request {read.req_id} has {num_live} live tokens, its budget is {request.budget}",
                )
        if request.plan is not None:
            raise VTokenError(
                Rule.FORWARD_DURING_PLAN,
                f"a forward of request {read.req_id} begins in the middle of its plan",
            )

    def _sync(self, event: ev.Sync) -> None:
        request = self._get(event.req_id, event.epoch)
        num_new = len(event.vocab_ids)
        read = self._read_in_flight(event.req_id, request)
        if read is None or num_new > read.num_query - self._num_synced(event.req_id, request):
            raise VTokenError(
                Rule.SYNC_OUTSIDE_FORWARD,
                f"request {event.req_id} writes {num_new} tokens that no forward in flight computes",
            )
        first = self._num_tokens(event.req_id)
        if event.first_token_id != first or not num_new == len(event.slots) == len(event.fingerprints):
            raise VTokenError(
                Rule.TOKEN_IDS,
                f"request {event.req_id} writes token {event.first_token_id} and on, the next one is {first}",
            )
        if not all(map(is_fingerprint, event.fingerprints)):
            raise VTokenError(
                Rule.TRACE_FIELD,
                f"request {event.req_id} has a fingerprint that is not 16 hexadecimal digits",
            )
        self._check_vocab_ids(event, request)
        expected = self.table.next_slots(event.req_id, request.block_ids, num_new)
        if list(event.slots) != expected:
            self._reject_slots(event, expected)

        self.table.sync_new_tokens(event.req_id, request.block_ids, first + num_new)
        request.fingerprints.extend(event.fingerprints)
        request.vocab_ids[first:] = [*event.vocab_ids, *request.vocab_ids[first + num_new :]]
        self.memory.update(zip(event.slots, event.fingerprints, strict=True))
        if request.resident_entries is not None:
            for token_id in range(first, first + num_new):
                request.resident_entries += self._entry(request, token_id)

    def _forward_end(self, event: ev.Forward) -> None:
        forward = self.forwards.get(event.step)
        begun = {(read.req_id, read.epoch) for read in forward.reads.values()} if forward else set()
        ended = [(read.req_id, read.epoch) for read in event.reads]
        if forward is None or set(ended) != begun or len(ended) != len(begun):
            raise VTokenError(
                Rule.STEP_ORDER,
                f"forward {event.step} ends, in flight are {self._steps()} with other requests",
            )
        current = [read for read in event.reads if self.is_current(read.req_id, read.epoch)]
        for read in current:
            self._check_read_end(read, forward)

        del self.forwards[event.step]
        for read in current:
            self.requests[read.req_id].in_forward = None
            self.awaiting_output[read.req_id] = event.step

    def _check_read_end(self, read: ev.Read, forward: _ForwardInFlight) -> None:
        begun = forward.reads[read.req_id]
        num_synced = self._num_tokens(read.req_id) - forward.first_new_token[read.req_id]
        length = self._length(read.req_id)
        if (read.num_query, read.length) != (begun.num_query, length) or num_synced != read.num_query:
            raise VTokenError(
                Rule.LENGTH_MISMATCH,
                f"request {read.req_id} ends a forward of {begun.num_query} tokens with {read.num_query} of"
                f" {read.length}, the table has {num_synced} of {length}",
            )
        first = forward.first_new_token[read.req_id]
        last = self.table.last_tokens(read.req_id, read.num_query)
        if last != list(range(first, first + read.num_query)):
            raise VTokenError(
                Rule.QUERY_NOT_LAST,
                f"the query tokens of request {read.req_id} are not the last ones, in order",
            )
        if read.digest != self.visible_digest(read.req_id):
            raise VTokenError(
                Rule.KV_VISIBLE,
                f"attention of request {read.req_id} read {read.digest}, the visible tokens are"
                f" {self.visible_digest(read.req_id)}",
            )

    def _output(self, event: ev.Output) -> None:
        request = self._get(event.req_id, event.epoch)
        num_known = max(request.num_prompt_tokens, len(request.vocab_ids))
        is_due = self.awaiting_output.get(event.req_id) == event.step
        if not is_due or self._num_tokens(event.req_id) < num_known or len(event.vocab_ids) != 1:
            raise VTokenError(
                Rule.OUTPUT_UNKNOWN, f"request {event.req_id} has no output to come from forward {event.step}"
            )

        del self.awaiting_output[event.req_id]
        request.vocab_ids.extend(event.vocab_ids)

    # Worker: eviction and relocation.

    def _evict(self, event: ev.Evict) -> None:
        request = self._get(event.req_id, event.epoch)
        if event.token_ids and event.req_id not in self.table:
            raise VTokenError(
                Rule.UNKNOWN_TOKEN, f"request {event.req_id} evicts a token before it has computed one"
            )
        if len(set(event.token_ids)) != len(event.token_ids):
            raise VTokenError(Rule.EVICTED_TWICE, f"request {event.req_id} evicts a token twice at once")
        for token_id in event.token_ids:
            self.table.check_live(event.req_id, token_id, Rule.EVICTED_TWICE)
            if request.in_forward is not None or self._is_in_source(event.req_id, request, token_id):
                raise VTokenError(
                    Rule.PROTECTED_TOKEN,
                    f"token {token_id} of request {event.req_id} is evicted while it is moved or read",
                )

        for token_id in event.token_ids:
            self.table.evict_token(event.req_id, token_id)
        request.num_evicted += len(event.token_ids)

    def _plan(self, event: ev.Plan) -> None:
        request = self._get(event.req_id, event.epoch)
        if request.plan is not None:
            raise VTokenError(Rule.PLAN_OVERLAP, f"request {event.req_id} has another plan in flight")
        if self.config.strategy not in (None, event.strategy):
            raise VTokenError(
                Rule.PLAN_STRATEGY, f"the plan of request {event.req_id} is {event.strategy}, the run is not"
            )
        if event.req_id not in self.table:
            raise VTokenError(Rule.PLAN_SOURCES, f"request {event.req_id} has no written blocks to plan for")
        if request.in_forward is not None:
            raise VTokenError(
                Rule.LAYOUT_DURING_FORWARD,
                f"request {event.req_id} is planned for while forward {request.in_forward} writes it",
            )
        relocation = Relocation(event.source_blocks, event.destination_blocks, event.moves)
        check_relocation(
            self.table,
            event.req_id,
            event.strategy,
            relocation,
            self.pool.is_shared,
            lambda block_id: self.pool.leases.get(block_id) == event.req_id,
        )

        request.plan = _PlanInFlight(event, {move.token_id: move for move in event.moves})

    def _copy(self, event: ev.Copy) -> None:
        request = self._get(event.req_id, event.epoch)
        plan = self._plan_in_flight(request, event.plan_id, event.req_id)
        if not set(event.token_ids) <= plan.moves.keys() - plan.copied or len(set(event.token_ids)) != len(
            event.token_ids
        ):
            raise VTokenError(
                Rule.COPY_NOT_PLANNED,
                f"a copy of request {event.req_id} moves tokens that its plan does not, or again",
            )
        nbytes_per_token = self.config.nbytes_per_token
        if nbytes_per_token is not None and event.nbytes != nbytes_per_token * len(event.token_ids):
            raise VTokenError(
                Rule.COPY_BYTES,
                f"{len(event.token_ids)} tokens of {nbytes_per_token} bytes are not {event.nbytes} bytes",
            )

        moves = [plan.moves[token_id] for token_id in event.token_ids]
        contents = [self.memory[move.src_slot] for move in moves]
        for move, content in zip(moves, contents, strict=True):
            self.memory[move.dst_slot] = content
        plan.copied.update(event.token_ids)

    def _commit(self, event: ev.Commit) -> None:
        request = self._get(event.req_id, event.epoch)
        flight = self._plan_in_flight(request, event.plan_id, event.req_id)
        plan = flight.plan
        missing = flight.moves.keys() - flight.copied
        if missing:
            raise VTokenError(
                Rule.COMMIT_BEFORE_COPY,
                f"request {event.req_id} commits before token {min(missing)} is copied",
            )
        expected_blocks = blocks_after(request.block_ids, plan.source_blocks, plan.destination_blocks)
        if event.moves != plan.moves or list(event.block_ids) != expected_blocks:
            raise VTokenError(
                Rule.COMMIT_DIFFERS, f"request {event.req_id} commits other moves or blocks than it planned"
            )
        self._check_content(event, request, flight)

        self.table.apply_moves(event.req_id, event.moves, expected_blocks)
        if plan.strategy == "out_of_place":
            self.pool.adopt(event.req_id, plan.destination_blocks)
        request.block_ids = expected_blocks
        request.plan = None
        request.resident_entries = None

    def _check_content(self, event: ev.Commit, request: _Request, flight: _PlanInFlight) -> None:
        expected = self.live_digest(event.req_id)
        if event.digest_before != expected:
            raise VTokenError(
                Rule.KV_BEFORE,
                f"request {event.req_id} held {event.digest_before} before its commit, not {expected}",
            )
        for move in flight.moves.values():
            if self.memory[move.dst_slot] != request.fingerprints[move.token_id]:
                raise VTokenError(
                    Rule.KV_CHANGED,
                    f"token {move.token_id} of request {event.req_id} was overwritten before it was copied",
                )
        if event.digest_after != expected:
            raise VTokenError(
                Rule.KV_CHANGED,
                f"request {event.req_id} holds {event.digest_after} after its commit, not {expected}",
            )
        live_tail = self._length_after(event.req_id, flight.plan)
        if event.length != live_tail:
            raise VTokenError(
                Rule.LENGTH_MISMATCH,
                f"request {event.req_id} has {live_tail} tokens after its commit, not {event.length}",
            )

    # What the state says.

    def visible_digest(self, req_id: str) -> str:
        """Return the digest of the resident tokens, which is what attention reads."""
        request = self._get(req_id)
        if request.resident_entries is None:
            request.resident_entries = bytearray(
                b"".join(self._entry(request, token_id) for token_id in self.table.resident_tokens(req_id))
            )
        return digest_of_entries(bytes(request.resident_entries))

    def live_digest(self, req_id: str) -> str:
        """Return the digest of the live tokens."""
        request = self._get(req_id)
        entries = [self._entry(request, token_id) for token_id in self.table.live_tokens(req_id)]
        return digest_of_entries(b"".join(entries))

    def num_evicted(self, req_id: str) -> int:
        """Return the tokens evicted from a request in its present epoch."""
        return self._get(req_id).num_evicted

    def is_current(self, req_id: str, epoch: int) -> bool:
        """Tell whether a request is alive in this epoch."""
        request = self.requests.get(req_id)
        return request is not None and request.epoch == epoch

    def snapshot(self, req_id: str | None) -> dict[str, object]:
        """Return the state around a request in plain values, for a report of a violation."""
        state: dict[str, object] = {
            "num_events": self.num_events,
            "forwards_in_flight": self._steps(),
            "free_blocks": len(self.pool.free_blocks),
            "leased_blocks": sorted(self.pool.leases),
            "fenced_blocks": sorted(self.pool.fences),
        }
        request = self.requests.get(req_id or "")
        if req_id is None or request is None:
            return state
        state["request"] = {
            "req_id": req_id,
            "epoch": request.epoch,
            "block_ids": list(request.block_ids),
            "num_tokens": self._num_tokens(req_id),
            "num_live": self.table.num_live(req_id) if req_id in self.table else 0,
            "length": self._length(req_id),
            "plan_in_flight": request.plan.plan.plan_id if request.plan else None,
        }
        return state

    # Inside.

    def _get(self, req_id: str, epoch: int | None = None) -> _Request:
        request = self.requests.get(req_id)
        if request is None:
            raise VTokenError(Rule.UNKNOWN_REQUEST, f"there is no request {req_id}")
        if epoch is not None and epoch != request.epoch:
            raise VTokenError(
                Rule.STALE_EPOCH, f"request {req_id} is in epoch {request.epoch}, the event is of {epoch}"
            )
        return request

    def _plan_in_flight(self, request: _Request, plan_id: int, req_id: str) -> _PlanInFlight:
        if request.plan is None or request.plan.plan.plan_id != plan_id:
            raise VTokenError(Rule.UNKNOWN_PLAN, f"request {req_id} has no plan {plan_id} in flight")
        return request.plan

    def _read_in_flight(self, req_id: str, request: _Request) -> ev.Read | None:
        return None if request.in_forward is None else self.forwards[request.in_forward].reads[req_id]

    def _num_synced(self, req_id: str, request: _Request) -> int:
        """Return how many tokens the forward in flight has already written for a request in it."""
        assert request.in_forward is not None
        return self._num_tokens(req_id) - self.forwards[request.in_forward].first_new_token[req_id]

    def _is_in_source(self, req_id: str, request: _Request, token_id: int) -> bool:
        if request.plan is None:
            return False
        block_id = self.table.slot(req_id, token_id) // self.config.block_size
        return block_id in request.plan.plan.source_blocks

    def _end_epoch(self, req_id: str) -> None:
        self.pool.release_all(req_id, frozenset(self.forwards))
        if req_id in self.table:
            self.table.drop(req_id)
        self.awaiting_output.pop(req_id, None)

    def _end_request(self, req_id: str) -> None:
        self._end_epoch(req_id)
        del self.requests[req_id]
        self.ended.add(req_id)

    def _blocks_in_plan(self, request: _Request) -> set[int]:
        if request.plan is None:
            return set()
        return {*request.plan.plan.source_blocks, *request.plan.plan.destination_blocks}

    def _live_in(self, req_id: str, block_id: int) -> int:
        return self.table.live_in_block(req_id, block_id) if req_id in self.table else 0

    def _num_tokens(self, req_id: str) -> int:
        return self.table.num_tokens(req_id) if req_id in self.table else 0

    def _length(self, req_id: str) -> int:
        return self.table.length(req_id) if req_id in self.table else 0

    def _length_after(self, req_id: str, plan: ev.Plan) -> int:
        """Return the resident length after a commit: whole blocks before the sources, then live tokens."""
        written = self.table.written_blocks(req_id)
        before = written.index(plan.source_blocks[0]) * self.config.block_size
        return before + sum(self.table.live_in_block(req_id, block_id) for block_id in plan.source_blocks)

    def _check_vocab_ids(self, event: ev.Sync, request: _Request) -> None:
        last = event.first_token_id + len(event.vocab_ids)
        known = request.vocab_ids[event.first_token_id : last]
        if list(event.vocab_ids[: len(known)]) != known or last > max(
            request.num_prompt_tokens, len(request.vocab_ids)
        ):
            raise VTokenError(
                Rule.TOKEN_DIFFERS,
                f"request {event.req_id} computes tokens at {event.first_token_id} that are not its prompt"
                " or its outputs",
            )

    def _reject_slots(self, event: ev.Sync, expected: list[int]) -> None:
        if len(set(event.slots)) != len(event.slots):
            raise VTokenError(Rule.SLOT_USED_TWICE, f"request {event.req_id} writes one slot twice")
        slot, wanted = next(p for p in zip(event.slots, expected, strict=True) if p[0] != p[1])
        for req_id in self.pool.holders.get(slot // self.config.block_size, ()):
            tokens = (
                self.table.block_tokens(req_id, slot // self.config.block_size)
                if req_id in self.table
                else []
            )
            offset = slot % self.config.block_size
            if offset < len(tokens) and self.table.is_live(req_id, tokens[offset]):
                raise VTokenError(
                    Rule.SLOT_OCCUPIED,
                    f"request {event.req_id} writes slot {slot} of live token {tokens[offset]} of {req_id}",
                )
        raise VTokenError(
            Rule.SLOT_MISMATCH, f"request {event.req_id} writes slot {slot}, its next slot is {wanted}"
        )

    def _entry(self, request: _Request, token_id: int) -> bytes:
        return digest_entry(token_id, int(request.fingerprints[token_id], 16))

    def _steps(self) -> list[int]:
        return sorted(self.forwards)
