"""Which terms make a counterexample of the relocation model readable, and what they are called.

A counterexample names what a statement speaks of (this request, that token), what the event carries,
and the value of each thing that the statement mentions, before and after the event.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.invariants import Statement
from spec.proofs.prover import Named
from spec.proofs.state import BEFORE, SIGNATURES, Formula, State, Term
from spec.proofs.transition import Transition


def state_terms(statement: Statement, after: State) -> dict[str, Term]:
    """Return what a statement speaks of, and each thing that it mentions before and after an event."""
    shown = {str(variable): variable for variable in statement.variables}
    for term in _mentioned(statement.of(BEFORE)):
        name = f"{term.decl().name()}({', '.join('{}' for _ in term.children())})"
        shown[str(term)] = Named(name, term, tuple(term.children()))
        changed = _rewritten(term, after)
        if not changed.eq(term):
            arguments = tuple(_rewritten(argument, after) for argument in term.children())
            shown[f"{term} afterwards"] = Named(f"{name} afterwards", changed, arguments)
    return shown


def event_terms(transition: Transition, statement: Statement) -> dict[str, Term]:
    """Return the same and what the event carries, as far as it is of what the statement speaks of."""
    shown = state_terms(statement, transition.after)
    for name, parameter in transition.parameters.items():
        if not isinstance(parameter, z3.FuncDeclRef):
            shown[f"the event's {name}"] = parameter
            continue
        by_sort = [
            [variable for variable in statement.variables if variable.sort() == parameter.domain(index)]
            for index in range(parameter.arity())
        ]
        for arguments in product(*by_sort):
            told = ", ".join(map(str, arguments))
            shown[f"the event's {name}({told})"] = parameter(*arguments)
    return shown


def _mentioned(formula: Formula) -> Iterator[Any]:
    """Yield the terms of a state, outermost last, without variables that are bound."""
    for term in _terms([formula]):
        is_of_state = z3.is_app(term) and term.num_args() > 0 and term.decl().name() in SIGNATURES
        if is_of_state and not _has_bound(term):
            yield term


def _terms(formulas: Iterable[Formula]) -> list[Any]:
    """Return all parts of formulas, those inside before those outside, each once."""
    found: dict[int, Any] = {}

    def visit(term: Any) -> None:
        if term.get_id() not in found:
            for child in term.children():
                visit(child)
            found[term.get_id()] = term

    for formula in formulas:
        visit(formula)
    return list(found.values())


def _has_bound(term: Any) -> bool:
    return any(z3.is_var(part) or z3.is_quantifier(part) for part in _terms([term]))


def _rewritten(term: Any, after: State) -> Any:
    """Return the same thing after an event."""
    if z3.is_const(term):
        return term
    arguments = [_rewritten(argument, after) for argument in term.children()]
    if term.decl().name() in SIGNATURES:
        return getattr(after, term.decl().name())(*arguments)
    return term.decl()(*arguments)
