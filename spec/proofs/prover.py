"""A proof: what is assumed, what follows, and how a solver's answer becomes a word that does not overclaim.

A goal follows from assumptions when no state satisfies the assumptions and not the goal. That says
nothing where no state satisfies the assumptions at all, so this is asked first, and a proof without
such a state is ``vacuous``. Where a solver cannot tell, because the assumptions speak of all of
unboundedly many things, a small finite state is searched for instead: one state is enough.

Source: paper 3.5.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.finite import Universe
from spec.report import Check, Options, Progress, Status

Formula = Any
"""A Z3 formula; Z3 has no types of its own for a type checker."""


class Named(NamedTuple):
    """A term under a name that holds the values of other terms, e.g. ``copied({}, {})``."""

    name: str
    term: Formula
    arguments: tuple[Formula, ...]


Shown = Mapping[str, Formula] | Callable[[], Mapping[str, Formula]]

TIMEOUT_S = 30.0
"""Of one question to the solver."""

SEED = 7


@dataclass(frozen=True, slots=True)
class Proof:
    """One statement to be proved.

    Attributes:
        name: unique, e.g. ``inductive.commit.live_is_held``.
        covers: ids of the rules and invariants that it speaks for.
        goal: what follows. Universally quantified variables are best given as constants, so that a
            counterexample can name them.
        assumptions: by name, what it follows from.
        bounds: in words, what the proof is limited to; empty when it is unbounded.
        shown: by name, the terms whose values make a counterexample readable, or what returns them;
            a ``Named`` term brings a name of its own.
        example: what else is true of the state that is to satisfy the assumptions, so that it is no
            empty one; None for nothing.
        universe: the finite universe in which a state is searched for where the solver cannot tell;
            None to take the solver's word alone.

    """

    name: str
    covers: tuple[str, ...]
    goal: Formula
    assumptions: Mapping[str, Formula] = field(default_factory=dict)
    bounds: str = ""
    shown: Shown = field(default_factory=dict)
    example: Formula | None = None
    universe: Universe | None = None


@dataclass(slots=True)
class Prover:
    """Answers proofs one after another; remembers which assumptions have been found satisfiable.

    Args:
        timeout_s: of one question to the solver.

    """

    timeout_s: float = TIMEOUT_S
    satisfiable: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    theory: "_Theory | None" = None

    def prove(self, proof: Proof) -> Check:
        """Return what the solver says of a proof."""
        begin = time.monotonic()
        spent = _Spent()
        status, detail = self._judge(proof, spent)
        figures = {"rlimit": spent.rlimit}
        return Check(proof.name, status, detail, time.monotonic() - begin, proof.covers, figures)

    def _judge(self, proof: Proof, spent: "_Spent") -> tuple[Status, str]:
        assumed = tuple(proof.assumptions.values())
        wanted = assumed if proof.example is None else (*assumed, proof.example)
        answer, text = self._refute(proof, assumed, spent)
        if answer == z3.sat:
            return Status.REFUTED, text
        possible, reason = self._is_possible(wanted, proof.universe, spent)
        if possible == z3.unsat:
            also = "" if proof.example is None else " in which something happens"
            return Status.VACUOUS, f"no state{also} satisfies the assumptions"
        if answer == z3.unknown:
            return Status.UNKNOWN, f"the solver gave up: {text}"
        if possible == z3.unknown:
            return Status.UNKNOWN, f"no state that satisfies the assumptions was found: {reason}"
        if proof.bounds:
            return Status.PROVED_BOUNDED, proof.bounds
        return Status.PROVED, ""

    def _refute(self, proof: Proof, assumed: tuple[Formula, ...], spent: "_Spent") -> tuple[Any, str]:
        """Search for a state that satisfies the assumptions and not the goal; tell of it in words."""
        if proof.universe is not None and self._follows(proof.goal, assumed, spent):
            return z3.unsat, ""
        formulas = (*assumed, z3.Not(proof.goal))
        answer, found = self._ask(formulas, proof.shown, spent)
        if answer == z3.unknown and proof.universe is not None:
            finite, small = self._ask(proof.universe.restrict(formulas), proof.shown, spent)
            if finite == z3.sat:
                return finite, small
        return answer, found

    def _follows(self, goal: Formula, assumed: tuple[Formula, ...], spent: "_Spent") -> bool:
        """Tell whether a goal is found to follow, from assumptions that are kept for the next goal.

        Many proofs have the same assumptions, and to take these in is most of the work. That a goal
        follows does not depend on what was asked before; anything else is asked again from scratch.
        """
        key = tuple(formula.get_id() for formula in assumed)
        if self.theory is None or self.theory.key != key:
            self.theory = _Theory(key, assumed, self._solver(z3.Context()))
        solver = self.theory.solver
        begin = _rlimit(solver)
        solver.set("timeout", self._timeout_ms())
        solver.push()
        solver.add(z3.Not(goal).translate(solver.ctx))
        answer = solver.check()
        solver.pop()
        spent.rlimit += _rlimit(solver) - begin
        return bool(answer == z3.unsat)

    def _is_possible(
        self, wanted: tuple[Formula, ...], universe: Universe | None, spent: "_Spent"
    ) -> tuple[Any, str]:
        """Tell whether some state satisfies all these."""
        key = tuple(formula.get_id() for formula in wanted)
        if key in self.satisfiable:
            return z3.sat, ""
        answer, reason = z3.unknown, ""
        if universe is not None:
            answer, reason = self._ask(universe.restrict(wanted), {}, spent)
        if answer != z3.sat:
            answer, reason = self._ask(wanted, {}, spent)
        if answer == z3.sat:
            # Kept, since the ids of formulas that are gone are given to others.
            self.satisfiable[key] = wanted
        return answer, reason

    def _ask(self, formulas: Sequence[Formula], shown: Shown, spent: "_Spent") -> tuple[Any, str]:
        """Ask the solver, in a context of its own: what was asked before must not matter."""
        context = z3.Context()
        solver = self._solver(context)
        for formula in formulas:
            solver.add(formula.translate(context))
        answer = solver.check()
        spent.rlimit += _rlimit(solver)
        if answer == z3.sat:
            return answer, _described(solver.model(), shown, context)
        return answer, solver.reason_unknown() if answer == z3.unknown else ""

    def _solver(self, context: Any) -> Any:
        solver = z3.Solver(ctx=context)
        solver.set("timeout", self._timeout_ms())
        solver.set("random_seed", SEED)
        return solver

    def _timeout_ms(self) -> int:
        return max(1, round(self.timeout_s * 1000))


def prove_all(proofs: Iterable[Proof], options: Options, progress: Progress) -> list[Check]:
    """Return what the solver says of each proof that is wanted; what is not reached in time is unknown."""
    wanted = [proof for proof in proofs if options.wants(proof.name)]
    end = None if options.deadline_s is None else time.monotonic() + options.deadline_s
    checks = []
    prover = Prover()
    for index, proof in enumerate(wanted):
        progress(proof.name, index, len(wanted))
        left_s = TIMEOUT_S if end is None else end - time.monotonic()
        if left_s <= 0:
            checks.append(Check(proof.name, Status.UNKNOWN, "out of time", covers=proof.covers))
            continue
        prover.timeout_s = min(TIMEOUT_S, left_s)
        checks.append(prover.prove(proof))
    progress("proofs", len(wanted), len(wanted))
    return checks


# Inside.


@dataclass(slots=True)
class _Spent:
    rlimit: int = 0


class _Theory:
    """Assumptions that a solver has taken in, for one goal after another."""

    def __init__(self, key: tuple[Any, ...], assumed: tuple[Formula, ...], solver: Any) -> None:
        # The formulas are kept, since the ids of those that are gone are given to others.
        self.key, self.assumed, self.solver = key, assumed, solver
        for formula in assumed:
            solver.add(formula.translate(solver.ctx))


def _rlimit(solver: Any) -> int:
    statistics = solver.statistics()
    return int(dict(statistics[index] for index in range(len(statistics))).get("rlimit count", 0))


def _described(model: Any, shown: Shown, context: Any) -> str:
    """Return the named values in a model, short: elements of a sort are numbered as they appear."""
    name_of = _names()

    def value(term: Formula) -> str:
        return name_of(model.eval(term.translate(context), model_completion=True))

    told: dict[str, str] = {}
    for name, term in (shown() if callable(shown) else shown).items():
        if isinstance(term, Named):
            told[term.name.format(*map(value, term.arguments))] = value(term.term)
        else:
            told[name] = value(term)
    return ", ".join(f"{name} = {text}" for name, text in told.items())


def _names() -> Callable[[Any], str]:
    """Return a function that gives readable names to values: ``Block!val!3`` becomes ``Block 0``."""
    given: dict[str, str] = {}
    count: dict[str, int] = {}

    def name_of(value: Any) -> str:
        if value.sort().kind() != z3.Z3_UNINTERPRETED_SORT:
            return str(value).lower() if z3.is_bool(value) else str(value)
        key, sort = str(value), str(value.sort())
        if key not in given:
            given[key] = f"{sort} {count.get(sort, 0)}"
            count[sort] = count.get(sort, 0) + 1
        return given[key]

    return name_of
