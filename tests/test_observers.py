"""The figures and the histories of a small run whose numbers are worked out by hand."""

import pytest

from conformance.history import EpochHistory, QuerySpan, Sampled
from conformance.observers import HistoryRecorder, RunFigures
from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Commit,
    Copy,
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
    Sync,
)
from vtoken_ref.machine import Machine, MachineConfig

PROMPT = (10, 11, 12, 13, 14, 15)


class Script:
    """Events by hand, with the digests that a correct runtime would read back."""

    def __init__(self) -> None:
        self.machine = Machine(MachineConfig(block_size=4, block_ids=range(8), headroom=2))
        self.figures = RunFigures()
        self.history = HistoryRecorder()

    def apply(self, *events: Event) -> None:
        for event in events:
            self.machine.apply(event)
            self.figures.observe(event, self.machine)
            self.history.observe(event, self.machine)

    def begin(self, step: int, length: int, num_query: int, epoch: int = 0) -> None:
        self.apply(Forward(step, "begin", (Read("a", epoch, num_query, length, ""),)))

    def end(self, step: int, length: int, num_query: int, epoch: int = 0) -> None:
        digest = self.machine.visible_digest("a") if "a" in self.machine.requests else ""
        self.apply(Forward(step, "end", (Read("a", epoch, num_query, length, digest),)))

    def write(self, first: int, vocab_ids: tuple[int, ...], slots: tuple[int, ...], epoch: int = 0) -> None:
        written = tuple(f"{slot + 100:016x}" for slot in slots)
        self.apply(Sync("a", epoch, first, vocab_ids, slots, written))

    def prefill(self) -> None:
        """Compute the prompt of six tokens in blocks 0 and 1, and sample 50."""
        self.apply(Admit("a", len(PROMPT), budget=4), Alloc("a", (0, 1)))
        self.begin(0, length=6, num_query=6)
        self.write(0, PROMPT, (0, 1, 2, 3, 4, 5))
        self.end(0, length=6, num_query=6)
        self.apply(Output("a", 0, 0, (50,)))

    def decode(self) -> None:
        """Three decode steps with an eviction before each, a wholly dead block, and a relocation."""
        self.apply(Evict("a", 0, (0, 1, 2)))
        self.begin(1, length=7, num_query=1)
        self.write(6, (50,), (6,))
        self.end(1, length=7, num_query=1)
        self.apply(Output("a", 0, 1, (51,)), Evict("a", 0, (3,)), Release("a", 0, (0,)), Free((0,)))
        self.begin(2, length=4, num_query=1)
        self.write(7, (51,), (7,))
        self.end(2, length=4, num_query=1)
        self.apply(Output("a", 0, 2, (52,)), Alloc("a", (2,)))
        self.begin(3, length=5, num_query=1)
        self.write(8, (52,), (8,))
        self.end(3, length=5, num_query=1)
        self.apply(Output("a", 0, 3, (53,)), Evict("a", 0, (4, 5, 6)))
        moves = (Move(7, 7, 4), Move(8, 8, 5))
        digest = self.machine.live_digest("a")
        self.apply(
            Plan("a", 0, 0, "in_place", (1, 2), (1,), moves),
            Copy("a", 0, 0, (7, 8), nbytes=128),
            Commit("a", 0, 0, moves, (1,), 2, digest, digest),
            Release("a", 0, (2,)),
            Free((2,)),
        )

    def start_over(self) -> None:
        """Lose everything, and compute the prompt and the four outputs again in two forwards."""
        self.apply(Preempt("a", 0), Free((1,)), Alloc("a", (3, 4, 5)))
        self.begin(4, length=6, num_query=6, epoch=1)
        self.write(0, PROMPT, (12, 13, 14, 15, 16, 17), epoch=1)
        self.end(4, length=6, num_query=6, epoch=1)
        self.apply(Evict("a", 1, (0, 5)))
        self.begin(5, length=10, num_query=4, epoch=1)
        self.write(6, (50, 51, 52, 53), (18, 19, 20, 21), epoch=1)
        self.end(5, length=10, num_query=4, epoch=1)
        self.apply(Output("a", 1, 5, (54,)), Finish("a", 1, "length"))


@pytest.fixture
def script() -> Script:
    script = Script()
    script.prefill()
    return script


def test_a_run_without_eviction_has_no_blocks_to_compare(script: Script) -> None:
    assert script.figures.blocks() == {"retained": None, "packed_ideal": None, "no_reclamation": None}
    assert script.figures.tokens_evicted == script.figures.relocations == script.figures.bytes_moved == 0
    assert script.figures.kv_hashes_compared == 1


def test_the_figures_of_a_run_with_eviction(script: Script) -> None:
    script.decode()
    figures = script.figures
    assert figures.tokens_evicted == 3 + 1 + 3
    assert figures.relocations == 1
    assert figures.bytes_moved == 128
    assert figures.blocks_reclaimed == 1 + 1
    assert figures.preemptions == 0
    # Four forwards, and both digests of the commit.
    assert figures.kv_hashes_compared == 4 + 2


def test_the_blocks_of_the_decode_steps_after_the_first_eviction(script: Script) -> None:
    script.decode()
    # Step by step: held 2, 1, 2; ceil of 3/4, 3/4, 4/4 live; ceil of 7/4, 8/4, 9/4 computed.
    assert script.figures.blocks() == {
        "retained": round(5 / 3, 3),
        "packed_ideal": 1.0,
        "no_reclamation": round(7 / 3, 3),
    }


def test_a_preempted_epoch_counts_again_from_its_own_first_eviction(script: Script) -> None:
    script.decode()
    script.start_over()
    figures = script.figures
    assert figures.preemptions == 1
    assert figures.tokens_evicted == 7 + 2
    assert figures.kv_hashes_compared == 6 + 2
    # Only the second forward of the new epoch is after an eviction: held 3, ceil(4/4), ceil(10/4).
    assert figures.blocks() == {"retained": 8 / 4, "packed_ideal": 1.0, "no_reclamation": 10 / 4}


def test_a_forward_of_a_request_that_is_gone_is_not_compared(script: Script) -> None:
    script.apply(Evict("a", 0, (0, 1)))
    script.begin(1, length=7, num_query=1)
    script.write(6, (50,), (6,))
    script.apply(Abort("a", 0))
    script.end(1, length=7, num_query=1)
    assert script.figures.kv_hashes_compared == 1
    assert len(script.history.epochs["a", 0].spans) == 1


def test_the_history_of_an_epoch(script: Script) -> None:
    script.decode()
    assert script.history.epochs == {
        ("a", 0): EpochHistory(
            "a",
            0,
            vocab_ids=[*PROMPT, 50, 51, 52],
            spans=[
                QuerySpan(0, 6, (0, 1, 2, 3, 4, 5)),
                # Dead tokens are visible until they are reclaimed.
                QuerySpan(6, 1, (0, 1, 2, 3, 4, 5, 6)),
                QuerySpan(7, 1, (4, 5, 6, 7)),
                QuerySpan(8, 1, (4, 5, 6, 7, 8)),
            ],
            outputs=[Sampled(5, 50), Sampled(6, 51), Sampled(7, 52), Sampled(8, 53)],
        )
    }


def test_the_history_after_a_preemption_is_an_epoch_of_its_own(script: Script) -> None:
    script.decode()
    script.start_over()
    assert script.history.epochs["a", 1] == EpochHistory(
        "a",
        1,
        vocab_ids=[*PROMPT, 50, 51, 52, 53],
        spans=[QuerySpan(0, 6, (0, 1, 2, 3, 4, 5)), QuerySpan(6, 4, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9))],
        outputs=[Sampled(9, 54)],
    )
    assert script.history.outputs() == {"a": [50, 51, 52, 53, 54]}


def test_a_relocation_leaves_only_live_tokens_visible(script: Script) -> None:
    script.decode()
    script.begin(4, length=3, num_query=1)
    script.write(9, (53,), (6,))
    script.end(4, length=3, num_query=1)
    assert script.history.epochs["a", 0].spans[-1] == QuerySpan(9, 1, (7, 8, 9))


def test_the_tokens_written_by_a_forward_cut_short_are_no_span(script: Script) -> None:
    script.apply(Evict("a", 0, (0, 1)))
    script.begin(1, length=7, num_query=1)
    script.write(6, (50,), (6,))
    script.apply(Preempt("a", 0))
    script.end(1, length=7, num_query=1)
    history = script.history.epochs["a", 0]
    assert history.vocab_ids == [*PROMPT, 50]
    assert history.spans == [QuerySpan(0, 6, (0, 1, 2, 3, 4, 5))]


def test_a_request_that_never_ran_has_no_history(script: Script) -> None:
    script.apply(Admit("b", 3, None), Lease("b", 0, (6,)), Finish("b", 0, "stop"))
    assert set(script.history.epochs) == {("a", 0)}
    assert script.history.outputs() == {"a": [50]}


def test_figures_add_up_over_events() -> None:
    figures, machine = RunFigures(), Machine(MachineConfig(4, range(4)))
    for event in (
        Release("a", 0, (1, 2)),
        Release("a", 0, (3,)),
        Copy("a", 0, 0, (1,), 100),
        Copy("a", 0, 0, (2,), 50),
        Evict("a", 0, (1, 2)),
        Evict("a", 0, (3,)),
        Preempt("a", 0),
        Preempt("a", 1),
    ):
        figures.observe(event, machine)
    assert (figures.blocks_reclaimed, figures.bytes_moved) == (3, 150)
    assert (figures.tokens_evicted, figures.preemptions) == (3, 2)
