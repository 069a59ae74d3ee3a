"""The theorems hold, fail without each premise, and speak of what the planner computes."""

import pytest
import z3  # type: ignore[import-untyped,unused-ignore]
from hypothesis import given
from hypothesis import strategies as st

from spec.proofs import arithmetic
from spec.proofs.prover import Prover
from spec.report import Check, Status
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.planner import num_blocks_for

FAILS_WITHOUT = {
    "block_capacity": {
        "destinations.fit_in_sources",
        "destinations.freed_is_not_negative",
        "sums.live_tokens_fit.step",
        "candidates.dropping_one_gains_nothing",
        "candidates.fewer_free_no_more",
    },
    "filled_in_turn": {"order.is_kept", "order.earlier_destinations_are_full"},
    "slot_order": {"in_place.never_moves_up.step", "in_place.no_uncopied_source_is_overwritten"},
    "drops_a_block": {"candidates.reduction_terminates"},
    "drops_fuller": {"candidates.emptiest_free_most"},
    "unwritten_end": {"packed.freed"},
    "reserve_in_end": {"packed.block_of_dead_tokens_is_a_gain"},
    "reserve": {"packed.reserve_is_kept"},
    "whole_block": {"packed.block_of_dead_tokens_is_a_gain", "eligible.frees_a_block"},
    "retained_in_context": {"capacity.packed_request_is_smaller"},
    "headroom_is_small": {"capacity.packed_is_at_least_native"},
    "headroom_reserved": {"capacity.headroom_is_inside"},
    "headroom_bounds_leases": {"capacity.headroom_is_inside"},
    "less_than_a_block_dead": {"capacity.at_most_one_block_more"},
}
"""By premise left out, the theorems that are then false: exactly these."""


@pytest.fixture(scope="module")
def prover() -> Prover:
    return Prover()


def prove(prover: Prover, without: str | None = None) -> dict[str, Check]:
    checks = [prover.prove(proof) for proof in arithmetic.proofs(without)]
    return {check.name.removeprefix("arithmetic."): check for check in checks}


def test_every_premise_is_known_by_name_and_no_other() -> None:
    assert set(arithmetic.guards()) == set(FAILS_WITHOUT)
    with pytest.raises(ValueError, match="there is no premise of_the_firm"):
        arithmetic.proofs(without="of_the_firm")


def test_the_theorems_hold_for_all_sizes_and_the_papers_numbers_for_themselves(prover: Prover) -> None:
    for name, check in prove(prover).items():
        if name.startswith("paper."):
            assert (check.status, check.detail) == (Status.PROVED_BOUNDED, "the numbers of paper 5.4")
        else:
            assert check.status is Status.PROVED, check


@pytest.mark.parametrize("premise", arithmetic.guards())
def test_without_a_premise_exactly_its_theorems_fail(prover: Prover, premise: str) -> None:
    checks = prove(prover, premise)
    failed = {name for name, check in checks.items() if check.status is Status.REFUTED}
    assert failed == FAILS_WITHOUT[premise]
    assert all("=" in checks[name].detail for name in failed), "the numbers that break it are shown"
    kept = {check.status for name, check in checks.items() if name not in failed}
    assert kept == {Status.PROVED, Status.PROVED_BOUNDED}


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_the_theorems_round_up_as_the_planner_does(number: int, size: int) -> None:
    term = arithmetic.ceil_div(z3.IntVal(number), z3.IntVal(size))
    assert z3.simplify(term).as_long() == num_blocks_for(number, size)


@given(st.lists(st.integers(1, 3), max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_the_paper_planner_frees_what_the_theorems_say(
    num_live: list[int], max_sources: int, max_destinations: int
) -> None:
    chosen = choose_sources(num_live, 4, max_sources, max_destinations)
    holes = 4 * len(chosen) - sum(num_live[index] for index in chosen)
    freed = len(chosen) - num_blocks_for(sum(num_live[index] for index in chosen), 4)
    assert freed == holes // 4
    assert bool(chosen) == (freed > 0)


@pytest.mark.parametrize(
    ("usable", "native", "packed"), [(5427, 5, 10), (11519, 11, 22)], ids=["util_0.35", "util_0.50"]
)
def test_the_paper_concurrency_is_what_its_budgets_allow(usable: int, native: int, packed: int) -> None:
    assert (usable // 1020, usable // 512) == (native, packed)
