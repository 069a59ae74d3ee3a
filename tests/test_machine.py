"""The executable spec: correct runs are accepted, every illegal event is refused and changes nothing."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from conformance.replay import check_invariants
from tests.toy_runtime import ToyRuntime
from vtoken_ref import events as ev
from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Cache,
    Cancel,
    Commit,
    Copy,
    Defer,
    End,
    Event,
    Evict,
    Finish,
    Forward,
    Free,
    Lease,
    Move,
    Output,
    Plan,
    Preempt,
    Read,
    Release,
    Share,
    Strategy,
    Sync,
)
from vtoken_ref.invariants import violations
from vtoken_ref.kv_hash import digest
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import blocks_after, plan_relocation
from vtoken_ref.policies import RandomEviction, SlidingWindow, StreamingLLM
from vtoken_ref.rules import VTokenError

STRATEGIES: list[Strategy] = ["in_place", "out_of_place"]


def state_of(machine: Machine) -> dict[str, object]:
    for req_id in machine.requests:
        machine.visible_digest(req_id)  # Kept until it changes: not part of the state.
    parts = {"table": vars(machine.table), "pool": vars(machine.pool)}
    return copy.deepcopy({**vars(machine), **parts})


def check_sound(machine: Machine) -> None:
    """What must hold in every state, said without the spec's own checks."""
    check_invariants(machine)
    table, pool = machine.table, machine.pool
    for req_id, request in machine.requests.items():
        worker = machine.workers[req_id]
        assert request.block_ids == worker.block_ids and request.epoch == worker.epoch
        assert set(request.block_ids) <= pool.held_by(req_id)
        listed = table.block_ids(req_id) if req_id in table else []
        assert request.block_ids[: len(listed)] == listed
        if worker.in_forward is not None:
            read = machine.forwards[worker.in_forward].reads[req_id]
            assert read.length <= len(request.block_ids) * machine.config.block_size
        moving = worker.plan.moves if worker.plan else {}
        if worker.plan is None or worker.plan.plan.strategy == "out_of_place":
            tokens = table.live_tokens(req_id) if req_id in table else []
            for token_id in tokens:
                content = machine.memory[table.slot(req_id, token_id)]
                assert content == worker.fingerprints[token_id]
        if worker.plan is not None and worker.plan.plan.strategy == "out_of_place":
            assert all(
                pool.leases.get(block_id) == req_id for block_id in worker.plan.plan.destination_blocks
            )
        for token_id, move in moving.items():
            assert table.slot(req_id, token_id) == move.src_slot


def read_back(machine: Machine, req_id: str) -> str:
    """The digest that attention would read through the block table."""
    request, block_size = machine.requests[req_id], machine.config.block_size
    tokens = machine.table.resident_tokens(req_id) if req_id in machine.table else []
    slots = [
        request.block_ids[index // block_size] * block_size + index % block_size
        for index in range(len(tokens))
    ]
    contents = [int(machine.memory[slot], 16) for slot in slots]
    return digest(zip(tokens, contents, strict=True))


class Hand:
    """Makes, from the state, the events that a correct runtime would emit."""

    def __init__(self, block_size: int = 4, num_blocks: int = 12, headroom: int = 3) -> None:
        self.machine = Machine(MachineConfig(block_size, range(num_blocks), headroom))
        self.num_written = 0
        self.num_plans = 0

    def apply(self, *events: Event) -> "Hand":
        for event in events:
            self.machine.apply(event)
            check_sound(self.machine)
            if isinstance(event, Commit):
                assert event.length == self.machine.table.length(event.req_id)
        return self

    def num_tokens(self, req_id: str) -> int:
        return self.machine.table.num_tokens(req_id) if req_id in self.machine.table else 0

    def length(self, req_id: str) -> int:
        return self.machine.table.length(req_id) if req_id in self.machine.table else 0

    def num_known(self, req_id: str) -> int:
        request = self.machine.requests[req_id]
        return max(request.num_prompt_tokens, len(request.vocab_ids))

    def epoch(self, req_id: str) -> int:
        return self.machine.requests[req_id].epoch

    def num_unwritten(self, req_id: str) -> int:
        """Tokens that the forward in flight has still to write for a request."""
        return self.machine.num_unwritten(req_id, self.machine.workers[req_id])

    # Events, not yet applied.

    def begin(self, step: int | None = None, **num_query: int) -> Forward:
        reads = [
            Read(req_id, self.epoch(req_id), count, self.length(req_id) + count, "")
            for req_id, count in num_query.items()
        ]
        return Forward(self.machine.last_step + 1 if step is None else step, "begin", tuple(reads))

    def sync(self, req_id: str, count: int | None = None) -> Sync:
        request, first = self.machine.requests[req_id], self.num_tokens(req_id)
        count = self.num_unwritten(req_id) if count is None else count
        known = request.vocab_ids[first : first + count]
        vocab_ids = [*known, *range(first + len(known), first + count)]
        slots = self.machine.table.next_slots(req_id, request.block_ids, count)
        written = [f"{self.num_written + index:016x}" for index in range(count)]
        self.num_written += count
        return Sync(req_id, request.epoch, first, tuple(vocab_ids), tuple(slots), tuple(written))

    def end(self) -> Forward:
        (step,) = self.machine.forwards
        return Forward(step, "end", tuple(map(self._read_back, self.machine.forwards[step].reads.values())))

    def _read_back(self, begun: Read) -> Read:
        if not self.machine.is_current(begun.req_id, begun.epoch):
            return begun
        return begun._replace(length=self.length(begun.req_id), digest=read_back(self.machine, begun.req_id))

    def plan(self, req_id: str, strategy: Strategy = "in_place", leased: Sequence[int] = ()) -> Plan:
        machine = self.machine
        relocation = plan_relocation(machine.table, req_id, strategy, machine.pool.is_protected, leased)
        assert relocation is not None
        self.num_plans += 1
        return Plan(req_id, self.epoch(req_id), self.num_plans, strategy, *relocation)

    def copy(self, req_id: str, token_ids: Sequence[int] | None = None) -> Copy:
        plan = self.in_flight(req_id)
        moved = [move.token_id for move in plan.moves] if token_ids is None else token_ids
        return Copy(req_id, plan.epoch, plan.plan_id, tuple(moved), 16 * len(moved))

    def copy_of(self, req_id: str, token_id: int) -> Copy:
        """The copy of one token of the next plan, which is not in flight yet."""
        return Copy(req_id, self.epoch(req_id), self.num_plans + 1, (token_id,), 16)

    def commit(self, req_id: str) -> Commit:
        plan = self.in_flight(req_id)
        blocks = blocks_after(
            self.machine.requests[req_id].block_ids, plan.source_blocks, plan.destination_blocks
        )
        after = self.machine.table.copy()
        if plan.strategy == "copy_on_write":
            after.replace_block(req_id, plan.source_blocks[0], plan.destination_blocks[0])
        else:
            after.apply_moves(req_id, plan.moves, blocks)
        live = self.machine.live_digest(req_id)
        length = after.length(req_id)
        return Commit(req_id, plan.epoch, plan.plan_id, plan.moves, tuple(blocks), length, live, live)

    def in_flight(self, req_id: str) -> Plan:
        flight = self.machine.workers[req_id].plan
        assert flight is not None
        return flight.plan

    # Whole runs of events.

    def admit(
        self, req_id: str, num_prompt_tokens: int, *block_ids: int, budget: int | None = None
    ) -> "Hand":
        return self.apply(Admit(req_id, num_prompt_tokens, budget), Alloc(req_id, block_ids))

    def forward(self, **num_query: int) -> "Hand":
        self.apply(self.begin(**num_query))
        for req_id in num_query:
            self.apply(self.sync(req_id))
        self.apply(self.end())
        for req_id in num_query:
            if self.num_tokens(req_id) == self.num_known(req_id):
                self.apply(Output(req_id, self.epoch(req_id), self.machine.last_step, (70,)))
        return self

    def relocate(self, req_id: str, strategy: Strategy = "in_place", leased: Sequence[int] = ()) -> "Hand":
        self.apply(self.plan(req_id, strategy, leased))
        self.apply(self.copy(req_id))
        return self.apply(self.commit(req_id))

    def end_run(self) -> "Hand":
        for req_id in list(self.machine.requests):
            self.apply(Abort(req_id, self.epoch(req_id)))
        if self.machine.forwards:
            self.apply(self.end())
        self.apply(Free(tuple(self.machine.pool.fences)))
        num_blocks = len(self.machine.config.block_ids)
        return self.apply(End(self.machine.num_events, len(self.machine.ended), num_blocks))


def check_refused(hand: Hand, event: Event, code: str) -> None:
    """The event raises this code, and not one attribute of the machine differs afterwards."""
    before = state_of(hand.machine)
    with pytest.raises(VTokenError) as error:
        hand.machine.apply(event)
    assert error.value.code == code, error.value
    assert state_of(hand.machine) == before


# Known good states. Blocks have four slots.


def fresh() -> Hand:
    return Hand()


def admitted() -> Hand:
    """Request a has a prompt of six tokens and blocks 0 and 1."""
    return Hand().admit("a", 6, 0, 1, budget=8)


def in_forward() -> Hand:
    hand = admitted()
    return hand.apply(hand.begin(a=6))


def written() -> Hand:
    hand = in_forward()
    return hand.apply(hand.sync("a"))


def running() -> Hand:
    """Request a has six tokens in blocks 0 and 1, b two in block 2; both have an output to compute."""
    return admitted().forward(a=6).admit("b", 2, 2).forward(b=2)


def decoding() -> Hand:
    """Requests a and b are in forward 2, nothing is written."""
    hand = running()
    return hand.apply(hand.begin(a=1, b=1))


def scattered() -> Hand:
    """Tokens 0 and 5 of a are live, one block can be won; blocks 8 and 9 are leased to a."""
    return running().apply(Evict("a", 0, (1, 2, 3, 4)), Lease("a", 0, (8, 9)))


def sparse() -> Hand:
    """Tokens 0 and 9 of a are live, in the first and the last of three blocks."""
    return Hand().admit("a", 10, 0, 1, 2).forward(a=10).apply(Evict("a", 0, tuple(range(1, 9))))


def planned() -> Hand:
    """Token 5 of a is to move into block 0, where token 0 stays."""
    hand = scattered()
    return hand.apply(hand.plan("a"))


def copied() -> Hand:
    hand = planned()
    return hand.apply(hand.copy("a"))


def planned_out() -> Hand:
    """Tokens 0 and 5 of a are to move to block 8."""
    hand = scattered()
    return hand.apply(hand.plan("a", "out_of_place", (8,)))


def dead_block() -> Hand:
    """Block 0 of a is wholly dead."""
    return running().apply(Evict("a", 0, (0, 1, 2, 3)))


def aborted_in_forward() -> Hand:
    hand = decoding()
    return hand.apply(Abort("a", 0))


def chunk_done() -> Hand:
    """Four of the six prompt tokens of a are computed."""
    return admitted().forward(a=4)


def over_budget() -> Hand:
    return Hand().admit("a", 6, 0, 1, budget=5).forward(a=6)


def ended() -> Hand:
    return running().apply(Finish("a", 0, "stop"), Abort("b", 0))


def over() -> Hand:
    return running().end_run()


def with_first_read(event: Forward, **changes: Any) -> Forward:
    first, *rest = event.reads
    return replace(event, reads=(first._replace(**changes), *rest))


def counts(hand: Hand, **changes: int) -> End:
    """A right end event but for these fields."""
    right = End(hand.machine.num_events, len(hand.machine.ended), len(hand.machine.pool.free_blocks))
    return replace(right, **changes)


def all_free() -> Hand:
    hand = ended()
    return hand.apply(Free(tuple(hand.machine.pool.fences)))


HUGE = 10**20

# One illegal event in a known good state, and the code that refuses it.
ILLEGAL: list[tuple[Callable[[], Hand], Callable[[Hand], Event], str]] = [
    # admit
    (running, lambda h: Admit("a", 3, None), "request-exists"),
    (ended, lambda h: Admit("a", 3, None), "request-exists"),
    (fresh, lambda h: Admit("a", 0, None), "trace-field"),
    (fresh, lambda h: Admit("a", -1, None), "trace-field"),
    (fresh, lambda h: Admit("a", 3, 0), "trace-field"),
    (fresh, lambda h: Admit("a", 3, -HUGE), "trace-field"),
    # alloc
    (running, lambda h: Alloc("a", (0,)), "not-free"),
    (running, lambda h: Alloc("a", (2,)), "not-free"),
    (scattered, lambda h: Alloc("a", (8,)), "not-free"),
    (ended, lambda h: Alloc("a", (3,)), "unknown-request"),
    (running, lambda h: Alloc("a", (3, 3)), "not-free"),
    (running, lambda h: Alloc("a", (3, 12)), "unknown-block"),
    (running, lambda h: Alloc("a", (-1,)), "unknown-block"),
    # lease
    (running, lambda h: Lease("a", 0, (3, 4, 5, 6)), "headroom"),
    (scattered, lambda h: Lease("b", 0, (3, 4)), "headroom"),
    (running, lambda h: Lease("a", 0, (2,)), "not-free"),
    (scattered, lambda h: Lease("b", 0, (8,)), "not-free"),
    (running, lambda h: Lease("a", 0, (3, 3)), "not-free"),
    (running, lambda h: Lease("a", 0, (HUGE,)), "unknown-block"),
    # forward, begin
    (running, lambda h: h.begin(step=1, a=1), "step-order"),
    (running, lambda h: h.begin(step=-1, a=1), "step-order"),
    (in_forward, lambda h: h.begin(step=1), "step-order"),
    (decoding, lambda h: h.begin(b=1), "step-order"),
    (running, lambda h: replace(h.begin(a=1), reads=h.begin(a=1).reads * 2), "step-order"),
    (running, lambda h: h.begin(a=0), "length-mismatch"),
    (running, lambda h: h.begin(a=-1), "length-mismatch"),
    (running, lambda h: with_first_read(h.begin(a=1), length=8), "length-mismatch"),
    (running, lambda h: with_first_read(h.begin(a=1), num_query=2), "length-mismatch"),
    (running, lambda h: with_first_read(h.begin(a=1), num_query=HUGE, length=HUGE + 6), "capacity"),
    (running, lambda h: h.begin(a=3), "capacity"),
    (running, lambda h: with_first_read(h.begin(a=1), req_id="x"), "unknown-request"),
    (running, lambda h: with_first_read(h.begin(a=1), epoch=1), "stale-epoch"),
    (over_budget, lambda h: h.begin(a=1), "budget-exceeded"),
    (copied, lambda h: h.begin(a=1), "forward-during-plan"),
    # sync
    (running, lambda h: h.sync("a", 1), "sync-outside-forward"),
    (written, lambda h: h.sync("a", 1), "sync-outside-forward"),
    (in_forward, lambda h: h.sync("a", 7), "sync-outside-forward"),
    (in_forward, lambda h: replace(h.sync("a"), first_token_id=1), "token-ids"),
    (in_forward, lambda h: replace(h.sync("a"), first_token_id=-1), "token-ids"),
    (in_forward, lambda h: replace(h.sync("a"), slots=(0,)), "token-ids"),
    (in_forward, lambda h: replace(h.sync("a"), fingerprints=()), "token-ids"),
    (in_forward, lambda h: replace(h.sync("a"), fingerprints=("0" * 15 + "g",) * 6), "trace-field"),
    (in_forward, lambda h: replace(h.sync("a"), fingerprints=("0",) * 6), "trace-field"),
    (in_forward, lambda h: replace(h.sync("a"), fingerprints=("-" + "0" * 15,) * 6), "trace-field"),
    (decoding, lambda h: replace(h.sync("a"), vocab_ids=(71,)), "token-differs"),
    (in_forward, lambda h: replace(h.sync("a"), slots=(0, 1, 2, 3, 4, 4)), "slot-used-twice"),
    (decoding, lambda h: replace(h.sync("a"), slots=(8,)), "slot-occupied"),
    (decoding, lambda h: replace(h.sync("a"), slots=(5,)), "slot-occupied"),
    (decoding, lambda h: replace(h.sync("a"), slots=(7,)), "slot-mismatch"),
    (decoding, lambda h: replace(h.sync("a"), slots=(40,)), "slot-mismatch"),
    (decoding, lambda h: replace(h.sync("a"), slots=(-1,)), "slot-mismatch"),
    (decoding, lambda h: replace(h.sync("a"), slots=(HUGE,)), "slot-mismatch"),
    (
        lambda: (h := running().apply(Evict("a", 0, (0,)))).apply(h.begin(a=1)),
        lambda h: replace(h.sync("a"), slots=(0,)),
        "slot-mismatch",
    ),
    # forward, end
    (running, lambda h: Forward(1, "end", ()), "step-order"),
    (written, lambda h: replace(h.end(), step=1), "step-order"),
    (written, lambda h: replace(h.end(), reads=()), "step-order"),
    (written, lambda h: replace(h.end(), reads=h.end().reads * 2), "step-order"),
    (written, lambda h: with_first_read(h.end(), req_id="x"), "step-order"),
    (written, lambda h: with_first_read(h.end(), epoch=7), "step-order"),
    (aborted_in_forward, lambda h: with_first_read(h.end(), epoch=7), "step-order"),
    (in_forward, lambda h: h.end(), "length-mismatch"),
    (decoding, lambda h: h.end(), "length-mismatch"),
    (written, lambda h: with_first_read(h.end(), length=5), "length-mismatch"),
    (written, lambda h: with_first_read(h.end(), num_query=5), "length-mismatch"),
    (written, lambda h: with_first_read(h.end(), digest=""), "kv-visible"),
    (written, lambda h: with_first_read(h.end(), digest="0" * 32), "kv-visible"),
    # output
    (running, lambda h: Output("a", 0, 1, (70,)), "output-unknown"),
    (running, lambda h: Output("a", 0, 0, (70,)), "output-unknown"),
    (chunk_done, lambda h: Output("a", 0, 0, (70,)), "output-unknown"),
    (written, lambda h: Output("a", 0, 0, (70,)), "output-unknown"),
    (lambda: written().apply(Preempt("a", 0)), lambda h: Output("a", 1, 0, (70,)), "output-unknown"),
    (
        lambda: running().apply(Preempt("a", 0), Free((0, 1)), Alloc("a", (0, 1))).forward(a=6),
        lambda h: Output("a", 1, h.machine.last_step, (70,)),
        "output-unknown",
    ),
    (lambda: (h := decoding()).apply(h.sync("a")), lambda h: Output("a", 0, 0, (70,)), "output-unknown"),
    # evict
    (running, lambda h: Evict("a", 0, (6,)), "unknown-token"),
    (running, lambda h: Evict("a", 0, (0, -1)), "unknown-token"),
    (running, lambda h: Evict("a", 0, (HUGE,)), "unknown-token"),
    (admitted, lambda h: Evict("a", 0, (0,)), "unknown-token"),
    (running, lambda h: Evict("a", 0, (0, 0)), "evicted-twice"),
    (scattered, lambda h: Evict("a", 0, (0, 1)), "evicted-twice"),
    (decoding, lambda h: Evict("a", 0, (0,)), "protected-token"),
    (planned, lambda h: Evict("a", 0, (5,)), "protected-token"),
    (planned, lambda h: Evict("a", 0, (0,)), "protected-token"),
    # plan
    (planned, lambda h: h.plan("a"), "plan-overlap"),
    (scattered, lambda h: replace(h.plan("a"), source_blocks=(0, 3)), "plan-sources"),
    (scattered, lambda h: replace(h.plan("a"), source_blocks=()), "plan-sources"),
    (scattered, lambda h: replace(h.plan("a"), source_blocks=(0, 2)), "plan-sources"),
    (scattered, lambda h: replace(h.plan("a"), source_blocks=(1, 0)), "plan-sources"),
    (sparse, lambda h: replace(h.plan("a"), source_blocks=(0, 1)), "plan-packed"),
    (admitted, lambda h: Plan("a", 0, 0, "in_place", (0, 1), (0,), ()), "plan-sources"),
    (scattered, lambda h: replace(h.plan("a"), destination_blocks=(0, 1)), "plan-no-gain"),
    (scattered, lambda h: replace(h.plan("a"), destination_blocks=()), "plan-destinations"),
    (scattered, lambda h: replace(h.plan("a"), destination_blocks=(8,)), "plan-destinations"),
    (scattered, lambda h: replace(h.plan("a"), strategy="out_of_place"), "plan-destinations"),
    (scattered, lambda h: h.plan("a", "out_of_place", (7,)), "plan-destinations"),
    (scattered, lambda h: replace(h.plan("a"), moves=()), "plan-token-lost"),
    (scattered, lambda h: replace(h.plan("a"), moves=(Move(5, 5, 2),)), "plan-order"),
    (scattered, lambda h: replace(h.plan("a"), moves=(Move(5, 4, 1),)), "stale-source"),
    (scattered, lambda h: replace(h.plan("a"), moves=(Move(1, 1, 1),)), "dead-move"),
    (scattered, lambda h: replace(h.plan("a"), moves=(Move(9, 5, 1),)), "unknown-token"),
    (scattered, lambda h: replace(h.plan("a"), moves=(Move(5, 5, 1),) * 2), "slot-used-twice"),
    (
        lambda: (hand := scattered()).apply(hand.begin(a=1)),
        lambda h: h.plan("a", "out_of_place", (8,)),
        "layout-during-forward",
    ),
    (
        lambda: scattered().apply(Lease("b", 0, (7,))),
        lambda h: h.plan("a", "out_of_place", (7,)),
        "plan-destinations",
    ),
    (sparse, lambda h: replace(h.plan("a"), destination_blocks=(0, 1)), "plan-destinations"),
    # copy
    (scattered, lambda h: Copy("a", 0, 1, (5,), 0), "unknown-plan"),
    (planned, lambda h: replace(h.copy("a"), plan_id=2), "unknown-plan"),
    (planned, lambda h: h.copy("a", (0,)), "copy-not-planned"),
    (planned, lambda h: h.copy("a", (5, 5)), "copy-not-planned"),
    (planned, lambda h: h.copy("a", (5, -1)), "copy-not-planned"),
    (copied, lambda h: h.copy("a"), "copy-not-planned"),
    # commit
    (running, lambda h: Commit("a", 0, 1, (), (0,), 2, "", ""), "unknown-plan"),
    (copied, lambda h: replace(h.commit("a"), plan_id=2), "unknown-plan"),
    (planned, lambda h: h.commit("a"), "commit-before-copy"),
    (copied, lambda h: replace(h.commit("a"), moves=()), "commit-differs"),
    (copied, lambda h: replace(h.commit("a"), moves=(Move(5, 5, 2),)), "commit-differs"),
    (copied, lambda h: replace(h.commit("a"), block_ids=()), "commit-differs"),
    (copied, lambda h: replace(h.commit("a"), block_ids=(0, 1)), "commit-differs"),
    (copied, lambda h: replace(h.commit("a"), block_ids=(0, 0)), "commit-differs"),
    (copied, lambda h: replace(h.commit("a"), length=6), "length-mismatch"),
    (copied, lambda h: replace(h.commit("a"), digest_before=""), "kv-before"),
    (copied, lambda h: replace(h.commit("a"), digest_after=""), "kv-changed"),
    # release
    (running, lambda h: Release("a", 0, (0,)), "block-still-live"),
    (planned, lambda h: Release("a", 0, (0,)), "block-still-live"),
    (lambda: planned_out(), lambda h: Release("a", 0, (8,)), "block-still-live"),
    (running, lambda h: Release("a", 0, (2,)), "not-held"),
    (running, lambda h: Release("a", 0, (3,)), "not-held"),
    (dead_block, lambda h: Release("a", 0, (0, 0)), "not-held"),
    (dead_block, lambda h: Release("a", 0, (0, -1)), "unknown-block"),
    (scattered, lambda h: Release("b", 0, (8,)), "not-held"),
    (
        lambda: (hand := dead_block()).apply(hand.begin(a=1)),
        lambda h: Release("a", 0, (0,)),
        "layout-during-forward",
    ),
    (in_forward, lambda h: Release("a", 0, (1,)), "layout-during-forward"),
    # free
    (running, lambda h: Free((0,)), "not-fenced"),
    (running, lambda h: Free((3,)), "not-fenced"),
    (scattered, lambda h: Free((8,)), "not-fenced"),
    (ended, lambda h: Free((0, 0)), "not-fenced"),
    (ended, lambda h: Free((0, 3)), "not-fenced"),
    (ended, lambda h: Free((0, 12)), "unknown-block"),
    (aborted_in_forward, lambda h: Free((0,)), "fence"),
    # end
    (running, lambda h: counts(h), "request-left"),
    (ended, lambda h: counts(h), "leak"),
    (all_free, lambda h: counts(h, num_events=0), "trace-counts"),
    (all_free, lambda h: counts(h, num_requests=3), "trace-counts"),
    (all_free, lambda h: counts(h, num_free_blocks=11), "trace-counts"),
    (lambda: (hand := all_free()).apply(hand.begin()), lambda h: counts(h), "step-order"),
    (over, lambda h: counts(h), "trace-after-end"),
    (over, lambda h: Admit("c", 1, None), "trace-after-end"),
    (over, lambda h: Free(()), "trace-after-end"),
]


@pytest.mark.parametrize(
    ("state", "event", "code"), ILLEGAL, ids=[f"{at}-{code}" for at, (_, _, code) in enumerate(ILLEGAL)]
)
def test_an_illegal_event_is_refused(
    state: Callable[[], Hand], event: Callable[[Hand], Event], code: str
) -> None:
    hand = state()
    check_refused(hand, event(hand), code)


def test_a_plan_of_another_strategy_than_the_run_is_refused() -> None:
    hand = scattered()
    hand.machine.config = replace(hand.machine.config, strategy="out_of_place")
    check_refused(hand, hand.plan("a"), "plan-strategy")
    hand.apply(hand.plan("a", "out_of_place", (8,)))


def test_a_copy_that_miscounts_its_bytes_is_refused() -> None:
    hand = planned()
    hand.machine.config = replace(hand.machine.config, nbytes_per_token=16)
    for nbytes in (0, 15, 17, 32, -16):
        check_refused(hand, replace(hand.copy("a"), nbytes=nbytes), "copy-bytes")
    hand.apply(replace(hand.copy("a"), nbytes=16))


def sharing() -> Hand:
    """Blocks 0 and 1 of a are cached; b has both, the second in part, and nothing of its own."""
    hand = running().apply(Cache("a", 0, (0, 1)), Admit("c", 8, None))
    return hand.apply(Share("c", 0, (0, 1), tuple(range(6))), Lease("c", 0, (8,)))


def test_a_plan_of_a_shared_block_is_refused() -> None:
    hand = sharing().apply(Evict("a", 0, (1, 2, 3, 4)))
    moves = (Move(5, 5, 1),)
    check_refused(hand, Plan("a", 0, 1, "in_place", (0, 1), (0,), moves), "plan-shared")


def test_who_shares_a_part_of_a_block_writes_into_a_copy_of_it() -> None:
    hand = sharing()
    check_refused(hand, hand.begin(c=2), "shared-write")
    moves = (Move(4, 4, 32), Move(5, 5, 33))
    copies = [hand.copy_of("c", 5), hand.copy_of("c", 4)]
    hand.apply(Plan("c", 0, 1, "copy_on_write", (1,), (8,), moves), *copies)
    hand.apply(hand.commit("c"), Release("c", 0, (1,)))
    assert hand.machine.table.block_ids("c") == [0, 8]
    assert hand.machine.pool.holders[0] == {"a", "c"} and hand.machine.pool.holders[1] == {"a"}
    hand.apply(Alloc("c", (9,))).forward(c=2).end_run()


def test_query_tokens_that_are_not_the_last_ones_break_an_invariant() -> None:
    hand = written()
    hand.machine.table._requests["a"].rows[1].reverse()
    assert [rule.code for rule, _ in violations(hand.machine)].count("query-not-last") == 1


def events_of_every_kind() -> list[tuple[Hand, Event]]:
    return list(_events_of_every_kind())


def _events_of_every_kind() -> Iterator[tuple[Hand, Event]]:
    """A legal event of every kind that names a request, with the state in which it is legal."""
    yield (hand := running()), Alloc("a", (3,))
    yield (hand := running()), Lease("a", 0, (3,))
    yield (hand := in_forward()), hand.sync("a")
    yield (hand := running()), Evict("a", 0, (0,))
    yield (hand := scattered()), hand.plan("a")
    yield (hand := planned()), hand.copy("a")
    yield (hand := copied()), hand.commit("a")
    yield (hand := planned_out()), Cancel("a", 0, 1)
    yield (hand := planned()), Cancel("a", 0, 1)
    yield (hand := running()), Defer("a", 0, 2)
    yield (hand := running()), Cache("a", 0, (0,))
    hand = running().apply(Cache("a", 0, (0,)), Admit("c", 5, None))
    yield hand, Share("c", 0, (0,), (0, 1, 2, 3))
    yield (hand := dead_block()), Release("a", 0, (0,))
    hand = written()
    yield hand.apply(hand.end()), Output("a", 0, 0, (70,))
    yield (hand := running()), Preempt("a", 0)
    yield (hand := running()), Abort("a", 0)
    yield (hand := running()), Finish("a", 0, "stop")


@pytest.mark.parametrize(
    ("hand", "event"), events_of_every_kind(), ids=lambda value: getattr(value, "kind", "")
)
def test_an_event_of_another_request_or_epoch_is_refused(hand: Hand, event: Any) -> None:
    check_refused(hand, replace(event, req_id="x"), "unknown-request")
    check_refused(hand, replace(event, req_id=""), "unknown-request")
    if hasattr(event, "epoch"):
        check_refused(hand, replace(event, epoch=1), "stale-epoch")
        check_refused(hand, replace(event, epoch=-1), "stale-epoch")
    hand.apply(event)


def test_every_kind_of_event_that_names_a_request_is_tried() -> None:
    named = {kind for kind, event_type in ev.EVENT_TYPES.items() if "req_id" in event_type.__slots__}
    assert {event.kind for _, event in events_of_every_kind()} == named - {"admit"}


def test_a_forward_computes_no_token_that_nobody_sampled() -> None:
    hand = running()
    hand.apply(hand.begin(a=2))
    check_refused(hand, hand.sync("a"), "token-differs")
    hand.apply(hand.sync("a", 1))
    check_refused(hand, hand.end(), "length-mismatch")


@pytest.mark.parametrize("vocab_ids", [(), (70, 71)])
def test_a_forward_gives_one_output(vocab_ids: tuple[int, ...]) -> None:
    hand = written()
    hand.apply(hand.end())
    check_refused(hand, Output("a", 0, 0, vocab_ids), "output-unknown")
    hand.apply(Output("a", 0, 0, (70,)))


# Legal runs, by hand.


def test_chunked_prefill_and_gaps_in_the_step_numbers() -> None:
    hand = Hand().admit("a", 6, 0, 1)
    hand.apply(hand.begin(step=3, a=4), hand.sync("a", 1))
    hand.apply(hand.sync("a", 3))
    hand.apply(hand.end())
    hand.forward(a=2).forward(a=1)
    assert hand.machine.last_step == 5
    assert hand.machine.table.live_tokens("a") == list(range(7))
    hand.end_run()


def test_out_of_place_relocation_by_hand() -> None:
    hand = scattered()
    hand.apply(hand.plan("a", "out_of_place", (9, 8)))
    hand.apply(hand.copy("a", (5,)))
    hand.apply(hand.copy("a", (0,)))
    assert hand.machine.table.slot_mapping("a") == [0, 5], "nothing is seen before the commit"
    hand.apply(hand.commit("a"))
    machine = hand.machine
    assert machine.table.slot_mapping("a") == [36, 37]
    assert machine.pool.held_by("a") == {0, 1, 9}
    assert machine.pool.leases == {8: "a"}
    hand.apply(Release("a", 0, (1, 8, 0)), Free((8, 0)), Free((1,)))
    hand.forward(a=1)
    assert machine.table.slot_mapping("a") == [36, 37, 38]
    assert len(machine.pool.free_blocks) == 10
    hand.end_run()


@pytest.mark.parametrize("order", [(2, 3, 5, 7), (3, 2, 5, 7), (5, 3, 2, 7), (7, 5, 3, 2)])
def test_out_of_place_copies_may_come_in_any_order(order: tuple[int, ...]) -> None:
    hand = Hand().admit("a", 8, 0, 1).forward(a=8).apply(Evict("a", 0, (0, 1, 4, 6)), Lease("a", 0, (6,)))
    hand.apply(hand.plan("a", "out_of_place", (6,)))
    for token_id in order:
        hand.apply(hand.copy("a", (token_id,)))
    hand.apply(hand.commit("a"))
    assert hand.machine.table.resident_tokens("a") == [2, 3, 5, 7]


def pack_in_place_by(*copies: tuple[int, ...]) -> Hand:
    """Tokens 2, 3, 5, 7 in slots of their ids go to slots 0 to 3, in these copies."""
    hand = Hand().admit("a", 8, 0, 1).forward(a=8).apply(Evict("a", 0, (0, 1, 4, 6)))
    hand.apply(hand.plan("a"))
    for token_ids in copies:
        hand.apply(hand.copy("a", token_ids))
    return hand


@pytest.mark.parametrize(
    "copies", [((2,), (3,), (5,), (7,)), ((2, 3), (5, 7)), ((7, 5, 3, 2),), ((3,), (2, 5, 7))]
)
def test_in_place_copies_in_ascending_order_or_at_once_keep_the_content(
    copies: tuple[tuple[int, ...], ...],
) -> None:
    hand = pack_in_place_by(*copies)
    hand.apply(hand.commit("a"))
    assert hand.machine.table.resident_tokens("a") == [2, 3, 5, 7]
    hand.apply(Release("a", 0, (1,)), Free((1,))).end_run()


@pytest.mark.parametrize(("copied", "refused"), [((), (5,)), ((), (7,)), ((2,), (5, 7)), ((2,), (7,))])
def test_an_in_place_copy_that_overwrites_a_token_before_its_copy_is_refused(
    copied: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    hand = pack_in_place_by(copied) if copied else pack_in_place_by()
    check_refused(hand, hand.copy("a", refused), "copy-order")


def test_a_plan_that_only_cuts_the_dead_end_needs_no_copy() -> None:
    hand = running().apply(Evict("a", 0, (3, 4, 5)), Alloc("a", (6,)))
    plan = hand.plan("a")
    assert (plan.source_blocks, plan.destination_blocks, plan.moves) == ((0, 1), (0,), ())
    hand.apply(plan).apply(hand.commit("a")).apply(Release("a", 0, (1,)))
    assert hand.machine.table.resident_tokens("a") == [0, 1, 2]
    hand.forward(a=1)
    assert hand.machine.table.slot("a", 6) == 3
    hand.end_run()


def test_blocks_released_in_a_forward_are_fenced_until_it_ends() -> None:
    """Request a is repacked and b is aborted while a forward of b and c is in flight."""
    hand = scattered().admit("c", 1, 3)
    hand.apply(hand.begin(b=1, c=1)).relocate("a", "out_of_place", (8,))
    hand.apply(Release("a", 0, (0, 1, 9)), Abort("b", 0))
    for block_id in (0, 1, 9, 2):
        check_refused(hand, Free((block_id,)), "fence")
    hand.apply(hand.sync("c")).apply(hand.end())
    hand.apply(Free((0, 1, 9, 2)), Alloc("c", (0, 1)))
    hand.end_run()


def test_a_forward_that_began_later_does_not_hold_a_block_back() -> None:
    hand = running().apply(Finish("b", 0, "length"))
    hand.apply(hand.begin(a=1), Free((2,)), Alloc("a", (2,)))
    hand.apply(hand.sync("a"))
    hand.apply(hand.end()).end_run()


@pytest.mark.parametrize("last", [Abort("a", 0), Finish("a", 0, "length"), Preempt("a", 0)])
def test_the_late_end_of_a_forward_is_harmless_to_a_request_that_is_gone(last: Event) -> None:
    hand = decoding()
    hand.apply(hand.sync("a"), hand.sync("b"), last)
    check_refused(hand, with_first_read(hand.end(), req_id="b", epoch=1), "step-order")
    wrong = hand.end()
    wrong = replace(wrong, reads=(wrong.reads[0], wrong.reads[1]._replace(digest="")))
    check_refused(hand, wrong, "kv-visible")
    hand.apply(hand.end(), Output("b", 0, 2, (70,)))
    assert "a" not in hand.machine.awaiting_output
    hand.apply(Free((0, 1))).end_run()


def test_a_preempted_request_starts_over_with_every_token_live() -> None:
    hand = planned_out()
    hand.apply(hand.copy("a", (5,)), Preempt("a", 0))
    machine = hand.machine
    assert machine.requests["a"].epoch == 1 and machine.num_evicted("a") == 0
    assert machine.pool.fences.keys() == {0, 1, 8, 9} and not machine.pool.leases
    check_refused(hand, Copy("a", 1, 1, (0,), 0), "unknown-plan")
    check_refused(hand, Free((8,)), "fence")
    hand.apply(Copy("a", 0, 1, (0,), 0))
    check_refused(hand, Copy("a", 0, 1, (0,), 0), "stale-epoch")
    hand.apply(Free((0, 1, 8, 9)), Alloc("a", (8, 0)), hand.begin(a=7))
    changed = list(hand.sync("a").vocab_ids)
    changed[3] += 1
    check_refused(hand, replace(hand.sync("a"), vocab_ids=tuple(changed)), "token-differs")
    hand.apply(hand.sync("a")).apply(hand.end(), Output("a", 1, 2, (71,)))
    assert machine.table.live_tokens("a") == list(range(7))
    hand.end_run()


def test_a_preemption_in_the_middle_of_a_prefill() -> None:
    hand = chunk_done()
    hand.apply(hand.begin(a=2), hand.sync("a", 1), Preempt("a", 0))
    hand.apply(hand.end(), Free((0, 1)), Alloc("a", (0, 1)))
    hand.forward(a=6).end_run()


def test_a_request_may_end_before_it_runs() -> None:
    hand = Hand().apply(Admit("a", 3, None), Lease("a", 0, (1,)), Finish("a", 0, "error"))
    hand.apply(Admit("b", 3, None), Preempt("b", 0), Abort("b", 1)).end_run()


def test_events_about_nothing_are_accepted_and_change_nothing_else() -> None:
    hand = planned()
    before = state_of(hand.machine)
    nothing: list[Event] = [
        Alloc("a", ()),
        Lease("a", 0, ()),
        Evict("a", 0, ()),
        Copy("a", 0, hand.in_flight("a").plan_id, (), 0),
        Release("a", 0, ()),
        Free(()),
    ]
    hand.apply(*nothing)
    after = state_of(hand.machine)
    assert after.pop("num_events") == before.pop("num_events") + len(nothing)  # type: ignore[operator]
    assert after == before


def test_what_a_report_of_a_violation_shows() -> None:
    hand = planned_out()
    assert hand.machine.snapshot("a") == {
        "num_events": hand.machine.num_events,
        "forwards_in_flight": [],
        "free_blocks": 7,
        "leased_blocks": [8, 9],
        "fenced_blocks": [],
        "cached_blocks": [],
        "request": {
            "req_id": "a",
            "epoch": 0,
            "block_ids": [0, 1],
            "num_tokens": 6,
            "num_live": 2,
            "length": 6,
            "plan_in_flight": 1,
        },
    }
    assert "request" not in hand.machine.snapshot(None)
    assert "request" not in hand.machine.snapshot("x")
    fresh_request = Hand().apply(Admit("c", 1, None)).machine.snapshot("c")["request"]
    assert fresh_request["num_tokens"] == fresh_request["length"] == 0  # type: ignore[index]


# Sequences that a careless spec lets through: each event is refused, or leaves a sound state.


def attempt(hand: Hand, event: Event) -> bool:
    """Apply an event that may be illegal; tell whether it was accepted."""
    before = state_of(hand.machine)
    try:
        hand.apply(event)
    except VTokenError:
        assert state_of(hand.machine) == before
        return False
    return True


def try_every_length(hand: Hand, plan: Plan) -> None:
    """Attempt to commit, right but perhaps for the length."""
    blocks = blocks_after(hand.machine.requests["a"].block_ids, plan.source_blocks, plan.destination_blocks)
    live = hand.machine.live_digest("a")
    for length in range(12):
        if hand.machine.workers["a"].plan is not None:
            attempt(hand, Commit("a", 0, plan.plan_id, plan.moves, tuple(blocks), length, live, live))


def filled(num_tokens: int, *evicted: int) -> Hand:
    """Request a with this many tokens, some evicted, a spare block, and blocks 8 and 9 leased."""
    hand = Hand().admit("a", num_tokens, *range(num_tokens // 4 + 1)).forward(a=num_tokens)
    return hand.apply(Evict("a", 0, evicted), Lease("a", 0, (8, 9)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_tokens", [7, 8])
def test_a_forward_between_plan_and_commit_leaves_no_token_behind(
    strategy: Strategy, num_tokens: int
) -> None:
    """The new token lands in a source, or in the block after the sources."""
    hand = filled(num_tokens, 1, 2, 3, 4, 5)
    plan = hand.plan("a", strategy, (8,))
    hand.apply(plan)
    if attempt(hand, hand.begin(a=1)):
        attempt(hand, hand.sync("a"))
        attempt(hand, hand.end())
    attempt(hand, hand.copy("a"))
    try_every_length(hand, plan)
    hand.end_run()


def test_an_eviction_between_plan_and_commit_does_not_change_the_length_of_the_commit() -> None:
    hand = filled(9, 1, 2, 4, 5, 6, 7)
    hand.apply(hand.plan("a"))
    attempt(hand, Evict("a", 0, (0,)))
    attempt(hand, Evict("a", 0, (3,)))
    hand.apply(hand.copy("a"))
    assert attempt(hand, hand.commit("a"))
    hand.end_run()


def test_the_length_of_a_commit_counts_dead_slots_before_its_sources() -> None:
    hand = Hand().admit("a", 12, 0, 1, 2).forward(a=12).apply(Evict("a", 0, (1, 5, 6, 7, 9, 10, 11)))
    hand.apply(Plan("a", 0, 1, "in_place", (1, 2), (1,), (Move(8, 8, 5),)))
    hand.apply(hand.copy("a")).apply(hand.commit("a"))
    assert hand.machine.table.length("a") == 6


def test_an_empty_evict_before_any_token_is_about_nothing() -> None:
    Hand().apply(Admit("a", 1, None), Evict("a", 0, ()))


def test_a_plan_of_wholly_dead_blocks_and_a_release_before_its_commit() -> None:
    hand = filled(8, *range(8))
    plan = Plan("a", 0, 1, "in_place", (1,), (), ())
    if attempt(hand, plan):
        attempt(hand, Release("a", 0, (0,)))
        try_every_length(hand, plan)
    hand.end_run()


def test_a_plan_of_wholly_dead_blocks_after_a_dead_end() -> None:
    hand = filled(8, 3, 4, 5, 6, 7)
    if attempt(hand, Plan("a", 0, 1, "in_place", (1,), (), ())):
        assert attempt(hand, hand.commit("a"))
    hand.end_run()


def test_a_copy_does_not_read_what_a_forward_in_flight_has_written() -> None:
    hand = filled(6, 1, 2, 3, 4)
    hand.apply(hand.begin(a=1), hand.sync("a"))
    plan = hand.plan("a", "out_of_place", (8,))
    assert not (attempt(hand, plan) and attempt(hand, hand.copy("a")))


def test_a_forward_ends_with_a_lie_about_the_epoch_and_another_begins() -> None:
    hand = written()
    if attempt(hand, with_first_read(hand.end(), epoch=1, digest="")):
        attempt(hand, hand.begin(a=1))
        attempt(hand, hand.sync("a", 1))
    hand.end_run()


# Runs of the toy runtime: real KV memory, the real reclaimer, any schedule.


class ToyRuns(RuleBasedStateMachine):
    """Every event of a correct runtime is accepted, and at the end every block is free."""

    @initialize(
        block_size=st.integers(1, 4),
        policy=st.sampled_from([SlidingWindow(), StreamingLLM(num_sinks=2), RandomEviction(seed=5)]),
        seed=st.integers(0, 9),
    )
    def start(
        self, block_size: int, policy: SlidingWindow | StreamingLLM | RandomEviction, seed: int
    ) -> None:
        self.runtime = ToyRuntime(
            num_blocks=60 // block_size, block_size=block_size, policy=policy, seed=seed
        )
        self.machine = self.runtime.machine()
        self.min_budget = policy.min_budget
        self.num_admitted = 0

    def replay(self) -> None:
        for event in self.runtime.events[self.machine.num_events :]:
            self.machine.apply(event)
            check_sound(self.machine)

    def alive(self) -> list[str]:
        return list(self.runtime.blocks)

    @rule(num_prompt_tokens=st.integers(1, 20), extra=st.one_of(st.integers(0, 8), st.none()))
    def admit(self, num_prompt_tokens: int, extra: int | None) -> None:
        budget = None if extra is None else self.min_budget + extra
        self.runtime.admit(f"r{self.num_admitted}", num_prompt_tokens, budget)
        self.num_admitted += 1
        self.replay()

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), num_steps=st.integers(1, 12))
    def step(self, data: st.DataObject, num_steps: int) -> None:
        wanted = data.draw(st.lists(st.sampled_from(self.alive()), unique=True, min_size=1))
        for _ in range(num_steps):
            batch: list[str] = []
            num_free = len(self.runtime.free_blocks)
            for req_id in wanted:
                num_needed = max(self.runtime.num_needed(req_id), 0)
                if num_needed <= num_free:
                    num_free -= num_needed
                    batch.append(req_id)
            if batch:
                self.runtime.step(batch)
                self.replay()

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), last=st.sampled_from(["preempt", "abort", "finish"]))
    def stop(self, data: st.DataObject, last: str) -> None:
        getattr(self.runtime, last)(data.draw(st.sampled_from(self.alive())))
        self.replay()

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        for req_id in self.alive():
            self.runtime.finish(req_id)
        self.replay()
        num_blocks = len(self.runtime.block_ids)
        self.machine.apply(End(self.machine.num_events, self.num_admitted, num_blocks))
        assert self.machine.pool.free_blocks == set(self.runtime.block_ids)


TestToyRuns = ToyRuns.TestCase
TestToyRuns.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
