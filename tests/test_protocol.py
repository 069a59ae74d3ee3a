"""What scheduler and worker make of each other's messages, by example: async depth 1 by hand."""

from collections.abc import Sequence

import pytest

from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Commit,
    Copy,
    Deliver,
    Event,
    Evict,
    Forward,
    Free,
    Layout,
    Output,
    Plan,
    Preempt,
    Read,
    Report,
    Sync,
)
from vtoken_ref.invariants import violations
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import plan_relocation
from vtoken_ref.protocol import given_up, merged_block_list
from vtoken_ref.rules import VTokenError

BLOCK_SIZE = 4


class AsyncRun:
    """One request under the packed view, in place; every event leaves a state without a violation."""

    def __init__(self) -> None:
        self.machine = Machine(
            MachineConfig(BLOCK_SIZE, range(8), strategy="in_place", async_depth=1, max_query=8)
        )

    def apply(self, *events: Event) -> None:
        for event in events:
            self.machine.apply(event)
            assert violations(self.machine) == []

    def refuse(self, event: Event, code: str) -> None:
        with pytest.raises(VTokenError) as error:
            self.machine.apply(event)
        assert error.value.code == code

    def begin(self, step: int, length: int, num_query: int, epoch: int = 0) -> tuple[Read, ...]:
        reads = (Read("a", epoch, num_query, length, ""),)
        self.apply(Forward(step, "begin", reads))
        return reads

    def run(self, step: int, reads: tuple[Read, ...], first: int, vocab_ids: Sequence[int]) -> None:
        """Start, write and end a forward."""
        self.apply(Forward(step, "start", reads))
        blocks = self.machine.workers["a"].block_ids
        slots = tuple(self.machine.table.next_slots("a", blocks, len(vocab_ids)))
        contents = tuple(f"{100 + first + index:016x}" for index in range(len(vocab_ids)))
        self.apply(Sync("a", reads[0].epoch, first, tuple(vocab_ids), slots, contents))
        length, digest = self.machine.length("a"), self.machine.visible_digest("a")
        ended = (reads[0]._replace(length=length, digest=digest),)
        self.apply(Forward(step, "end", ended))

    def prefill(self) -> None:
        """Six prompt tokens in blocks 0 and 1, computed and reported; the output is told."""
        self.apply(Admit("a", 6, None), Alloc("a", (0, 1)))
        self.run(0, self.begin(0, 6, 6), 0, range(6))
        self.apply(Report(0, ()), Deliver(0), Output("a", 0, 0, (50,)))


def test_the_scheduler_is_one_step_ahead_and_no_more() -> None:
    run = AsyncRun()
    run.apply(Admit("a", 6, None), Alloc("a", (0, 1)))
    run.begin(0, 4, 4)
    run.begin(1, 6, 2)
    run.refuse(Forward(2, "begin", ()), "step-order")
    run.refuse(Forward(1, "start", (Read("a", 0, 2, 6, ""),)), "message-order")


def test_a_report_replaces_the_list_it_was_made_for_and_keeps_what_came_since() -> None:
    run = AsyncRun()
    run.prefill()
    ahead = run.begin(1, 7, 1)
    run.run(1, ahead, 6, [50])
    run.apply(Alloc("a", (5,)))
    later = run.begin(2, 8, 1)
    run.apply(Evict("a", 0, (0, 1, 2, 3, 4)))
    relocation = plan_relocation(run.machine.table, "a", "in_place", lambda _: False, reserve=1)
    assert relocation is not None and relocation.destination_blocks == (0,)
    tokens = tuple(move.token_id for move in relocation.moves)
    live = run.machine.live_digest("a")
    run.apply(Plan("a", 0, 0, "in_place", *relocation))
    run.refuse(Report(1, ()), "plan-unfinished")
    run.apply(Copy("a", 0, 0, tokens, 0), Commit("a", 0, 0, relocation.moves, (0,), 2, live, live))
    run.refuse(Report(1, ()), "report-differs")
    run.apply(Report(1, (Layout("a", 0, (0, 1), (0,), 7, 2),)))
    run.run(2, later, 7, [51])
    assert run.machine.workers["a"].block_ids == [0, 5], "the block on its way was not lost"
    assert run.machine.requests["a"].block_ids == [0, 1, 5], "the scheduler has not heard yet"
    run.apply(Deliver(1))
    assert run.machine.requests["a"].block_ids == [0, 5]
    assert run.machine.requests["a"].length == 3, "two resident, and one of the step under way"
    run.refuse(Free((1,)), "fence")
    run.apply(Report(2, ()), Deliver(2), Free((1,)))


def test_a_relocation_keeps_the_slots_that_a_step_under_way_counts_on() -> None:
    run = AsyncRun()
    run.prefill()
    run.run(1, run.begin(1, 7, 1), 6, [50])
    run.begin(2, 8, 1)
    run.apply(Evict("a", 0, (0, 1, 2)))
    relocation = plan_relocation(run.machine.table, "a", "in_place", lambda _: False)
    assert relocation is not None and len(relocation.destination_blocks) == 1, "four live tokens fit exactly"
    run.refuse(Plan("a", 0, 0, "in_place", *relocation), "plan-destinations")


def test_a_report_of_a_dead_epoch_is_dropped() -> None:
    run = AsyncRun()
    run.prefill()
    run.run(1, run.begin(1, 7, 1), 6, [50])
    run.apply(Preempt("a", 0), Alloc("a", (6, 7)))
    run.apply(Report(1, ()), Deliver(1))
    assert run.machine.requests["a"].block_ids == [6, 7]
    assert run.machine.pool.fences.keys() == {0, 1}


def test_the_worker_goes_on_with_a_dead_epoch_until_it_is_told() -> None:
    run = AsyncRun()
    run.prefill()
    reads = run.begin(1, 7, 1)
    run.apply(Abort("a", 0))
    run.run(1, reads, 6, [50])
    run.refuse(Free((0,)), "fence")
    run.apply(Report(1, ()), Deliver(1), Free((0, 1)))
    assert "a" in run.machine.workers
    run.apply(Forward(2, "begin", ()), Forward(2, "start", ()))
    assert "a" not in run.machine.workers


def test_the_worker_decides_only_between_a_forward_and_its_report() -> None:
    run = AsyncRun()
    run.prefill()
    run.refuse(Evict("a", 0, (0,)), "worker-idle")


def test_a_report_made_for_another_list_is_refused() -> None:
    assert merged_block_list("a", [3, 4, 9], [3, 4], [3]) == [3, 9]
    assert given_up([3, 4], [3]) == (4,)
    with pytest.raises(VTokenError) as error:
        merged_block_list("a", [4, 3, 9], [3, 4], [3])
    assert error.value.code == "report-base"
