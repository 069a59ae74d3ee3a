"""The relocation model and its proofs, and that the prover's words say no more than was found."""

from dataclasses import fields
from functools import cache

import pytest
import z3

from spec.proofs import in_place_order, refcount, relocation
from spec.proofs.finite import Universe
from spec.proofs.prover import Proof, Prover, prove_all
from spec.proofs.state import BEFORE, SIGNATURES, Block, Request, State
from spec.report import Check, Options, Status

GUARDS = (
    ("admit", "never_ended"),
    ("alloc", "free"),
    ("lease", "headroom"),
    ("share", "cached"),
    ("share", "has_no_token"),
    ("cache", "no_plan"),
    ("cache", "present_epoch"),
    ("release", "no_live_token"),
    ("free", "steps_are_over"),
    ("free", "copies_are_over"),
    ("begin", "private"),
    ("sync", "where_the_forward_writes"),
    ("recycle", "dead_slot"),
    ("recycle", "clear_of_the_plan"),
    ("end", "running"),
    ("evict", "live"),
    ("evict", "not_in_a_source"),
    ("plan_out_of_place", "no_other_plan"),
    ("plan_out_of_place", "none_is_left_behind"),
    ("plan_in_place", "blocks_are_gained"),
    ("plan_in_place", "targets_spare_who_stays"),
    ("plan_copy_on_write", "destinations_are_leased"),
    ("copy", "spares_the_uncopied"),
    ("commit", "all_copied"),
    ("commit", "present_epoch"),
    ("cancel", "nothing_overwritten"),
)
"""Of every transition that has guards, some whose removal must be noticed."""


def silent(label: str, done: int, total: int | None) -> None:
    pass


@cache
def checks() -> list[Check]:
    return relocation.run(Options(), silent)


def prove(proof: Proof, timeout_s: float = 10.0) -> Check:
    return Prover(timeout_s).prove(proof)


# The model.


def test_everything_is_proved_without_bounds() -> None:
    assert [check.name for check in checks() if check.status is not Status.PROVED] == []


def test_each_invariant_follows_and_each_event_keeps_it() -> None:
    names = [check.name for check in checks()]
    assert len(set(names)) == len(names)
    for invariant in ("I1", "I2", "I4", "I6"):
        assert any(name.startswith(f"follows.{invariant}.") for name in names)
    for transition in relocation.transitions():
        assert any(name.startswith(f"inductive.{transition.name}.") for name in names)
        assert f"step.{transition.name}.tokens_are_kept" in names


def test_a_state_function_has_a_signature() -> None:
    assert list(SIGNATURES) == [field.name for field in fields(State)]


@pytest.mark.parametrize("name", [transition.name for transition in relocation.transitions()])
def test_the_assumptions_of_each_event_are_possible_with_something_happening(name: str) -> None:
    """Proving the absurd from them fails, and not because nothing satisfies them."""
    proof = next(it for it in relocation.proofs() if it.name.startswith(f"inductive.{name}."))
    assumptions = {**proof.assumptions, "example": proof.example}
    check = prove(Proof("absurd", (), z3.BoolVal(False), assumptions, universe=proof.universe))
    assert check.status is Status.REFUTED


@pytest.mark.parametrize(("transition", "guard"), GUARDS)
def test_removing_a_guard_is_noticed_and_told_in_words(transition: str, guard: str) -> None:
    check = relocation.noticed_by((transition, guard))
    assert check is not None and check.status is Status.REFUTED
    assert check.name.split(".")[1] == transition
    assert " = " in check.detail and "!val!" not in check.detail


def test_a_counterexample_names_what_it_is_about() -> None:
    check = relocation.noticed_by(("free", "steps_are_over"))
    assert check is not None and check.name == "inductive.free.late_writes_are_fenced"
    told = ("zombie_write(Step 0, Block 0, Offset 0) = true", "fenced(Block 0) afterwards = false")
    assert all(words in check.detail for words in told)


def test_a_guard_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        relocation.proofs(("commit", "in_good_mood"))


def test_guards_are_listed_with_their_transitions() -> None:
    assert set(GUARDS) <= set(relocation.guards())
    assert {transition for transition, _ in GUARDS} == {name for name, _ in relocation.guards()} - {
        "preempt",
        "finish",
    }


@pytest.mark.parametrize("proofs", [in_place_order.proofs, refcount.proofs])
def test_lemmas_beside_the_model_are_proved(proofs) -> None:
    assert {check.status for check in prove_all(proofs(), Options(), silent)} == {Status.PROVED}


# The prover.

block = z3.Const("block", Block)
request = z3.Const("request", Request)
x, y, w = z3.Ints("x y w")
ALL_FREE = z3.ForAll([block], BEFORE.free(block))


def test_a_goal_that_follows_is_proved() -> None:
    assert prove(Proof("sum", ("I6",), x + y >= x, {"positive": y > 0})).status is Status.PROVED


def test_bounds_are_told() -> None:
    check = prove(Proof("small", (), x < 9, {"small": x < 3}, bounds="x below 3"))
    assert (check.status, check.detail) == (Status.PROVED_BOUNDED, "x below 3")


def test_a_goal_that_does_not_follow_is_refuted_with_named_values() -> None:
    check = prove(Proof("sum", (), x + y > x, {"y": y >= 0, "x": x == 4}, shown={"the sum": x + y, "x": x}))
    assert (check.status, check.detail) == (Status.REFUTED, "the sum = 4, x = 4")


@pytest.mark.parametrize("universe", [None, Universe({Block: 2, Request: 1})])
def test_assumptions_that_nothing_satisfies_prove_nothing(universe: Universe | None) -> None:
    assumptions = {"all": ALL_FREE, "none": z3.ForAll([block], z3.Not(BEFORE.free(block)))}
    check = prove(Proof("vacuous", (), BEFORE.fenced(block), assumptions, universe=universe))
    assert check.status is Status.VACUOUS


def test_assumptions_that_only_an_idle_state_satisfies_prove_nothing() -> None:
    held = z3.Exists([request, block], BEFORE.holds(request, block))
    idle = {"idle": z3.ForAll([request, block], z3.Not(BEFORE.holds(request, block)))}
    proof = Proof(
        "idle", (), BEFORE.free(block), {**idle, "all": ALL_FREE}, example=held, universe=Universe({Block: 2})
    )
    with pytest.raises(ValueError, match="no sort of the universe"):
        prove(proof)
    proof = Proof("idle", (), BEFORE.free(block), {**idle, "all": ALL_FREE}, example=held)
    assert prove(proof).status is Status.VACUOUS


def test_a_question_that_is_too_hard_for_its_time_is_unknown() -> None:
    hard = Proof("fermat", (), x**3 + y**3 != w**3, {"positive": z3.And(x > 0, y > 0, w > 0)})
    check = prove(hard, timeout_s=0.001)
    assert check.status is Status.UNKNOWN and check.status.is_open


def test_what_is_not_reached_in_time_is_unknown() -> None:
    (check,) = prove_all([Proof("late", (), x == x)], Options(deadline_s=0.0), silent)
    assert (check.status, check.detail) == (Status.UNKNOWN, "out of time")


def test_only_what_is_wanted_is_proved() -> None:
    proofs = [Proof("one.a", (), x == x), Proof("two.a", (), x == x)]
    assert [check.name for check in prove_all(proofs, Options(only=("two",)), silent)] == ["two.a"]


def test_the_same_proof_costs_the_same() -> None:
    proof = relocation.proofs()[100]
    assert prove(proof).figures == prove(proof).figures


def test_a_small_universe_finds_a_state_that_has_all_of_a_sort_in_it() -> None:
    """In two blocks with one free, some block is not free; a solver is told so without quantifiers."""
    universe = Universe({Block: 2})
    other = z3.Const("other", Block)
    one_is_free = z3.Exists([block], z3.And(BEFORE.free(block), z3.ForAll([other], _only(other))))
    solver = z3.Solver()
    solver.add(*universe.restrict([one_is_free]))
    assert solver.check() == z3.sat
    solver.add(*universe.restrict([ALL_FREE]))
    assert solver.check() == z3.unsat


def _only(other: z3.ExprRef) -> z3.ExprRef:
    return z3.Implies(BEFORE.free(other), other == block)
