"""The worker's side: what it reports is what the kernel did and what memory holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.replay import replay
from conformance.verdict import Verdict
from gpu_impl.fingerprint import fingerprints
from gpu_impl.reclaimer import ForwardRead, Layout, Reclaimer, WorkerReport
from tests.toy_runtime import ToyRuntime, sample_run
from vtoken_ref.events import Copy, Evict, Plan, Read, Sync
from vtoken_ref.kv_hash import fingerprint_hex
from vtoken_ref.policies import RandomEviction, SlidingWindow
from vtoken_ref.policy import Policy, RequestView
from vtoken_ref.reclaim import ReclaimConfig


class Keeping(Reclaimer):
    """Keeps its last report."""

    report: WorkerReport

    def after_forward(self, *arguments: Any) -> WorkerReport:
        self.report = super().after_forward(*arguments)
        return self.report


def prefilled(policy: Policy | None = None, **config: Any) -> tuple[ToyRuntime, Keeping]:
    """A request of 14 tokens at budget 10 after its first forward; blocks of four."""
    toy = ToyRuntime(reclaimer_cls=Keeping, policy=policy)
    toy.reclaimer.config = ReclaimConfig(**{"theta_f": Fraction(0), **config})
    toy.admit("a", 14, budget=10)
    toy.step(["a"])
    assert isinstance(toy.reclaimer, Keeping)
    return toy, toy.reclaimer


def test_a_layout_says_what_it_was_made_for_and_what_is_kept() -> None:
    toy, reclaimer = prefilled()
    assert reclaimer.report.layouts == {"a": Layout("a", 0, (0, 1, 2, 3), (0, 1, 2), 14, 10)}
    toy.step(["a"])
    assert reclaimer.report.layouts == {}, "nothing changed, nothing is reported"


@pytest.mark.parametrize(
    "config", [{"low_watermark": 0}, {"max_source_blocks": 2}, {"theta_f": Fraction(1, 2)}]
)
def test_no_plan_when_it_is_not_eligible_or_frees_nothing(config: dict[str, Any]) -> None:
    toy, _ = prefilled(**config)
    assert any(isinstance(event, Evict) for event in toy.events)
    assert not any(isinstance(event, Plan) for event in toy.events)


def test_a_bounded_plan_leaves_holes_before_its_sources_and_passes(tmp_path: Path) -> None:
    toy = ToyRuntime(policy=RandomEviction(seed=2))
    toy.reclaimer.config = ReclaimConfig(theta_f=Fraction(0), max_source_blocks=3)
    toy.admit("a", 30, budget=20)
    for _ in range(20):
        toy.step(["a"])
    toy.finish("a")
    plans = [event for event in toy.events if isinstance(event, Plan)]
    assert plans and all(len(plan.source_blocks) <= 3 for plan in plans)
    assert replay(toy.write(tmp_path / "trace.jsonl"), paranoid=True).verdict is Verdict.PASS


def test_wholly_dead_blocks_are_released_without_a_plan() -> None:
    _, reclaimer = prefilled(SlidingWindow())
    assert [event.kind for event in reclaimer.report.events] == ["sync", "forward", "evict", "release"]


def test_plans_have_ids_of_their_own_and_no_event_is_about_nothing() -> None:
    events = sample_run(policy=RandomEviction(seed=3)).events
    plan_ids = [event.plan_id for event in events if isinstance(event, Plan)]
    assert len(set(plan_ids)) == len(plan_ids) > 1
    assert all(event.token_ids for event in events if isinstance(event, Evict | Copy))


def test_nothing_is_reported_when_nothing_is_recorded() -> None:
    toy, reclaimer = prefilled()
    reclaimer.recording = False
    for _ in range(8):
        toy.step(["a"])
        assert reclaimer.report.events == []


def test_a_request_that_is_dropped_is_forgotten() -> None:
    toy, reclaimer = prefilled()
    toy.finish("a")
    assert reclaimer.table.requests() == [] and not reclaimer._requests


class Counting(SlidingWindow):
    """Counts, in the state that it is given, how often it was asked."""

    calls = 0

    def select_victims(self, view: RequestView) -> Sequence[int]:
        self.calls = view.state["calls"] = view.state.get("calls", 0) + 1
        return super().select_victims(view)


def test_a_policy_remembers_a_request_until_it_is_preempted() -> None:
    policy = Counting()
    toy, _ = prefilled(policy)
    toy.step(["a"])
    assert policy.calls == 2
    toy.preempt("a")
    toy.step(["a"])
    assert policy.calls == 1


def test_nothing_is_evicted_in_the_middle_of_a_prompt() -> None:
    reclaimer = ToyRuntime().reclaimer
    reclaimer.start("a", 0, "a", budget=4, num_prompt_tokens=8)
    slots = torch.arange(6)
    report = reclaimer.after_forward(0, [ForwardRead("a", 0, tuple(range(6)), slots, slots, (0, 1))], 9)
    assert not any(isinstance(event, Evict) for event in report.events)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda read: replace(read, written_slots=read.written_slots.flip(0)), "VT-MAP-014"),
        (lambda read: replace(read, read_slots=read.read_slots.roll(1)), "VT-KV-003"),
        (lambda read: replace(read, read_slots=read.read_slots[:-1]), "VT-REQ-004"),
    ],
    ids=["writes elsewhere", "reads in another order", "reads one token less"],
)
def test_what_the_kernel_did_is_reported_and_not_what_the_table_says(
    change: Callable[[ForwardRead], ForwardRead], rule: str, tmp_path: Path
) -> None:
    class LyingKernel(ToyRuntime):
        def _forward(self, read: Read) -> ForwardRead:
            return change(super()._forward(read))

    toy = LyingKernel()
    toy.admit("a", 6, None)
    toy.step(["a"])
    (sync,) = [event for event in toy.events if isinstance(event, Sync)]
    written = fingerprints(toy.cache, torch.tensor(sync.slots))
    assert sync.fingerprints == tuple(map(fingerprint_hex, written))
    toy.finish("a")
    assert replay(toy.write(tmp_path / "trace.jsonl")).rule == rule
