"""The proofs of the protocol hold, and fail with a schedule for each guard left out."""

from itertools import product

import pytest
import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs import protocol
from spec.proofs.protocol_actions import Protocol
from spec.proofs.protocol_state import SEQUENCE, Blocks, Report
from spec.proofs.prover import Prover
from spec.report import Check, Status
from vtoken_ref.protocol import merged_block_list

RUN_WITHOUT = {
    "capacity": "run.appended_under_way",
    "max_query": "run.begun_before_relocation",
    "steps_in_flight": "run.without_steps_in_flight",
    "reserve": "run.begun_before_relocation",
    "decide_before_report": "run.without_decide_before_report",
    "messages_in_order": "run.without_messages_in_order",
    "reports_in_order": "run.without_reports_in_order",
    "epoch_grows": "run.preempted_under_way",
    "message_epoch": "run.preempted_under_way",
    "report_epoch": "run.preempted_under_way",
    "report_made_for": "run.appended_under_way",
    "report_blocks": "run.appended_under_way",
    "report_length": "run.appended_under_way",
    "appended_kept": "run.appended_under_way",
    "in_flight_counted": "run.relocated_under_way",
    "length_is_absolute": "agreement.report_repairs_length",
    "fence_at_release": "fences.run.begin",
    "fence_waits_for_steps": "fences.run.begin",
    "fence_waits_for_copies": "fences.run.issue",
}
"""By guard left out, a proof that is refuted with a schedule; drift has none, since no run here drifts."""

PROBLEMS = (
    "the worker's blocks do not cover the step",
    "the block lists differ",
    "the lengths differ",
    "the report was made for another list",
    "then the block is free or may be freed",
    "length reported = ",
)

ONE_STEP_WITHOUT = {
    "capacity": "begin.covered_under_way",
    "max_query": "begin.covered_under_way",
    "steps_in_flight": "begin.covered_under_way",
    "reserve": "relocate.covered_under_way",
    "decide_before_report": "relocate.covered_under_way",
    "messages_in_order": "swap_messages.covered_under_way",
    "reports_in_order": "swap_reports.report_base",
    "epoch_grows": "end_epoch.scheduler_list",
    "message_epoch": "start.report_base",
    "report_epoch": "deliver.scheduler_list_slots",
    "report_made_for": "deliver.scheduler_list_slots",
    "report_blocks": "deliver.scheduler_list",
    "report_length": "deliver.scheduler_length",
    "appended_kept": "deliver.scheduler_list_slots",
    "in_flight_counted": "deliver.scheduler_length",
    "fence_at_release": "fences.release.steps_are_fenced",
    "fence_waits_for_steps": "fences.free.steps_are_fenced",
    "fence_waits_for_copies": "fences.free.copies_are_fenced",
}
"""By guard left out, an invariant that one transition then breaks."""


@pytest.fixture(scope="module")
def prover() -> Prover:
    return Prover()


def prove(prover: Prover, names: set[str], without: str | None = None) -> dict[str, Check]:
    proofs = {proof.name.removeprefix("protocol."): proof for proof in protocol.proofs(without)}
    return {name: prover.prove(proofs[name]) for name in sorted(names)}


def test_every_guard_is_known_by_name_and_no_other() -> None:
    assert set(protocol.guards()) == set(RUN_WITHOUT) == {*ONE_STEP_WITHOUT, "length_is_absolute"}
    with pytest.raises(ValueError, match="there is no guard of_honour"):
        protocol.proofs(without="of_honour")


def test_the_protocol_agrees_and_covers(prover: Prover) -> None:
    checks = [prover.prove(proof) for proof in protocol.proofs()]
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        expected = Status.PROVED_BOUNDED if ".run." in check.name else Status.PROVED
        assert check.status is expected, check
        assert check.covers and check.figures["rlimit"] >= 0


@pytest.mark.parametrize("guard", protocol.guards())
def test_without_a_guard_there_is_a_schedule(prover: Prover, guard: str) -> None:
    name = RUN_WITHOUT[guard]
    broken = {ONE_STEP_WITHOUT[guard]} if guard in ONE_STEP_WITHOUT else set()
    checks = prove(prover, {name, *broken}, guard)
    assert {check.status for check in checks.values()} == {Status.REFUTED}
    assert any(problem in checks[name].detail for problem in PROBLEMS)
    assert "run." not in name or "schedule = " in checks[name].detail


def test_a_schedule_tells_each_action_and_both_sides(prover: Prover) -> None:
    name = "run.begun_before_relocation"
    detail = prove(prover, {name}, "reserve")[name].detail
    for words in ("append", "begin, computing", "relocate to", "scheduler has blocks", "worker has blocks"):
        assert words in detail


def test_the_reserve_is_enough_and_nothing_less_is(prover: Prover) -> None:
    names = {"reserve.is_enough", "reserve.is_needed", "reserve.at_any_depth"}
    assert {check.status for check in prove(prover, names).values()} == {Status.PROVED}
    check = prove(prover, {"reserve.is_enough"}, "reserve")["reserve.is_enough"]
    assert check.status is Status.REFUTED and "slots_after = " in check.detail


def test_the_model_merges_lists_as_the_executable_spec_does() -> None:
    model = Protocol(None)
    lists = [[], [1], [1, 2], [3, 1]]
    for made_for, kept, since in product(lists, repeat=3):
        current = [*made_for, *since]
        report = Report(z3.IntVal(0), _blocks(made_for), _blocks(kept), z3.IntVal(0))
        merged = z3.simplify(model.merged(_blocks(current), report).names)
        assert merged.eq(z3.simplify(_blocks(merged_block_list("r", current, made_for, kept)).names))


def test_the_model_merges_nothing_where_the_executable_spec_refuses(prover: Prover) -> None:
    """What the spec checks, that the list begins with what the report was made for, the model proves."""
    check = prove(prover, {"agreement.report_base"})["agreement.report_base"]
    assert check.status is Status.PROVED and "VT-MSG-003" in check.covers


def _blocks(names: list[int]) -> Blocks:
    sequence = z3.Empty(SEQUENCE)
    for name in names:
        sequence = z3.Concat(sequence, z3.Unit(z3.IntVal(name)))
    return Blocks(sequence, z3.IntVal(len(names)))
