"""The executable spec and the relocation model agree, and where they do not it is seen."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
import z3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec.proofs import cosimulation, invariants, relocation
from spec.proofs.abstraction import Abstraction, elements_of
from spec.proofs.cosimulate import GUARDS_OF, OUTSIDE, Cosimulation
from spec.proofs.evaluator import evaluator
from spec.proofs.finite import Universe
from spec.proofs.runs import search
from spec.proofs.state import (
    BEFORE,
    SORT_NAMES,
    Block,
    Content,
    Flight,
    Offset,
    Request,
    Step,
    Ticket,
    Token,
)
from spec.proofs.wild_events import CONFIGS, JOBS, MOODS, right_events, wild_event
from spec.report import Check, Options, Status
from spec.runtime import Runtime
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import State
from vtoken_ref.table import TokenTable

NOT_IN_A_MACHINE = ("trace", "policy")
"""What rules serve that no event of a machine breaks."""

ONLY_ASYNC = {
    Rule.MESSAGE_ORDER,
    Rule.REPORT_DIFFERS,
    Rule.REPORT_BASE,
    Rule.WORKER_IDLE,
    Rule.PLAN_UNFINISHED,
    Rule.TAIL_CAPACITY,
}
"""Rules of async depth 1."""

NEVER_FIRST = {Rule.LENGTH_SHRANK, Rule.BLOCK_LIST_CHANGED, Rule.SLOT_OUTSIDE, Rule.QUERY_NOT_LAST}
"""Rules of the token table that an event of a machine cannot break, since others come first."""

INEXPRESSIBLE = {Rule.UNKNOWN_BLOCK}
"""What the model has no word for."""


def silent(label: str, done: int, total: int | None) -> None:
    pass


def run(num_runs: int = 40, without: tuple[str, str] | None = None) -> Check | None:
    """Return the check that found a difference, if any."""
    transitions = [
        each.without(without[1]) if without and each.name == without[0] else each
        for each in relocation.transitions()
    ]
    _, found = search(Cosimulation(transitions), num_runs, silent)
    if found is None:
        return None
    return Check(f"cosimulation.{found.name}", Status.REFUTED, found.problem)


@cache
def checks() -> tuple[Check, ...]:
    return cosimulation.run(Options(quick=True), silent).checks


def test_spec_and_model_agree_on_every_event_tried() -> None:
    assert [
        (check.name, check.status.value, check.detail) for check in checks() if check.status.is_failure
    ] == []


def test_each_transition_is_accepted_and_refused_often_enough_to_say_so() -> None:
    assert {check.status for check in checks()} == {Status.NO_COUNTEREXAMPLE}
    assert {check.name for check in checks()} == set(cosimulation.covers())


def test_the_same_runs_are_made_again() -> None:
    compare = Cosimulation(relocation.transitions())
    assert search(compare, 4, silent) == search(compare, 4, silent)


def test_what_is_not_reached_in_time_is_unknown() -> None:
    section = cosimulation.run(Options(deadline_s=0.0), silent)
    assert {check.status for check in section.checks} == {Status.UNKNOWN}


def test_nothing_is_run_where_nothing_is_wanted() -> None:
    assert cosimulation.run(Options(only=("inductive",)), silent).checks == ()


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_spec_and_model_agree_in_states_of_hypothesis(data: st.DataObject) -> None:
    def choose(values: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(values))

    compare, runtime, mood = (
        Cosimulation(relocation.transitions()),
        Runtime(choose(CONFIGS), JOBS),
        choose(MOODS),
    )
    for _ in range(30):
        is_wild = choose([False, False, True])
        event = (
            wild_event(runtime, choose, mood) if is_wild else next(right_events(runtime, choose, mood), None)
        )
        if event is None:
            continue
        outcome = compare.try_event(runtime.machine, event)
        assert outcome.problem == ""
        if outcome.accepted:
            runtime.apply(event)
    assert compare.broken_invariant(runtime.machine) == ""


# Where they do not agree it is seen.


@pytest.mark.parametrize(
    "without",
    [
        ("admit", "not_alive"),
        ("alloc", "free"),
        ("cache", "not_in_forward"),
        ("begin", "private"),
        ("sync", "where_the_forward_writes"),
        ("evict", "live"),
        ("plan_in_place", "blocks_are_gained"),
        ("copy", "planned"),
    ],
)
def test_a_guard_removed_from_the_model_is_noticed(without: tuple[str, str]) -> None:
    check = run(without=without)
    assert check is not None and check.name.split(".")[1] in (without[0], "recycle")
    assert "none does" in check.detail


def _nothing(*arguments: Any, **named: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (BlockPool, "is_protected", lambda self, block_id: False),
        (BlockPool, "_check_free", _nothing),
        (BlockPool, "_check_held", _nothing),
        (State, "hazards", lambda self: frozenset()),
        (State, "steps_of", lambda self, req_id, epoch: []),
        (TokenTable, "check_live", _nothing),
    ],
)
def test_a_guard_removed_from_the_spec_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, instead)
    assert run() is not None


def test_a_wrong_effect_of_the_spec_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_without_fence(self: BlockPool, req_id: str, block_ids: Sequence[int], hazards: Any) -> None:
        original(self, req_id, block_ids, frozenset())

    original = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", release_without_fence)
    check = run()
    assert check is not None and "waits_for" in check.detail


def test_a_difference_is_a_run_that_can_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "steps_of", lambda self, req_id, epoch: [])
    section = cosimulation.run(Options(quick=True), silent)
    (check,) = [check for check in section.checks if check.status is Status.REFUTED]
    example = check.counterexample
    assert example is not None and example.name == check.name == "cosimulation.cache"
    machine = Machine(example.config)
    for event in example.events:
        machine.apply(event)
    assert isinstance(example.events[-1], ev.Cache)
    assert len(example.events) <= 8


def test_an_event_without_a_word_in_the_model_must_be_refused() -> None:
    compare, machine = Cosimulation(relocation.transitions()), Machine(CONFIGS[0])
    machine.apply(ev.Admit("a", 4, None))
    for event in (ev.Alloc("a", (1, 1)), ev.Alloc("a", (99,)), ev.Deliver(0)):
        outcome = compare.try_event(machine, event)
        assert (outcome.transitions, outcome.accepted, outcome.problem) == ((), False, "")


# What the comparison rests on.


def test_every_rule_is_in_the_model_or_said_to_be_outside() -> None:
    known = {rule for _, rule in GUARDS_OF} | OUTSIDE.keys() | ONLY_ASYNC | NEVER_FIRST | INEXPRESSIBLE
    of_machines = {rule for rule in Rule if rule.invariant not in NOT_IN_A_MACHINE}
    assert of_machines - known == set()


def test_the_guards_that_refusals_are_held_to_exist() -> None:
    named = {(transition, guard) for (transition, _), guards in GUARDS_OF.items() for guard in guards}
    assert named - set(relocation.guards()) == set()


@pytest.mark.parametrize("seed", range(3))
def test_formulas_are_evaluated_as_z3_understands_them(seed: int) -> None:
    """The invariant of a state of the spec, and of one that is spoiled, by both."""
    runtime = Runtime(CONFIGS[0], JOBS)
    choose = Random(seed).choice
    for _ in range(40):
        for event in right_events(runtime, choose, MOODS[0]):
            try:
                runtime.apply(event)
            except VTokenError:
                continue
            break
    elements = elements_of(runtime.machine)
    tickets = {block_id: index for index, block_id in enumerate(runtime.machine.pool.leases)}
    tables = Abstraction(runtime.machine, elements, tickets).tables
    if seed:
        block_id = tables["Block"][0]
        tables["free"][block_id] = tables["fenced"][block_id] = True
    of_z3 = _Told(tables)
    for name in ("free_is_nothing_else", "fenced_is_nothing_else", "live_has_a_slot", "cache_is_kept"):
        part = invariants.closed(BEFORE)[name]
        assert evaluator(part)(tables) == of_z3.holds(part), name


class _Told:
    """A state of tables, told to Z3 value by value."""

    def __init__(self, tables: dict[str, Any]) -> None:
        sorts = (Request, Token, Block, Offset, Flight, Step, Content, Ticket)
        self.universe = Universe({sort: len(tables[str(sort)]) for sort in sorts})
        self.constant_of = {
            str(sort): dict(zip(tables[str(sort)], self.universe.elements[str(sort)], strict=True))
            for sort in sorts
        }
        self.facts: list[Any] = []
        for name in ("free", "fenced", "holds", "leased", "resident", "live", "cached"):
            self._tell(name, tables)
        for name in ("is_cached_at", "cached_content", "memory"):
            self._tell(name, tables)

    def _tell(self, name: str, tables: dict[str, Any]) -> None:
        *domain, of = SORT_NAMES[name]
        for key in product(*(tables[sort] for sort in domain)):
            value = tables[name][key if len(key) > 1 else key[0]]
            arguments = [self.constant_of[sort][element] for sort, element in zip(domain, key, strict=True)]
            told = value if of == "Bool" else self.constant_of[of][value]
            self.facts.append(getattr(BEFORE, name)(*arguments) == told)

    def holds(self, formula: Any) -> bool:
        solver = z3.Solver()
        solver.add(*self.facts, *self.universe.restrict([formula]))
        return bool(solver.check() == z3.sat)
