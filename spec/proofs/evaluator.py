"""Formulas of the model as Python functions over finite states: what co-simulation evaluates.

A formula is translated once. Evaluated, each of its functions is looked up in a table, and its quantifiers
run over the elements that the state lists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

Tables = Mapping[str, Any]
"""By name: the table of a function, the value of a constant, the elements of a sort."""
Evaluated = Callable[..., Any]

_OPERATORS = {
    z3.Z3_OP_EQ: " == ",
    z3.Z3_OP_ADD: " + ",
    z3.Z3_OP_SUB: " - ",
    z3.Z3_OP_LE: " <= ",
    z3.Z3_OP_GE: " >= ",
    z3.Z3_OP_LT: " < ",
    z3.Z3_OP_GT: " > ",
    z3.Z3_OP_AND: " and ",
    z3.Z3_OP_OR: " or ",
}


def evaluator(formula: Any, variables: Sequence[Any] = ()) -> Evaluated:
    """Return a function of the tables of a state, and of values of these free variables.

    Raises:
        ValueError: the formula has a part that this cannot evaluate.

    """
    names = {str(variable): f"free_{index}" for index, variable in enumerate(variables)}
    text = _text(formula, [], names)
    compiled: Evaluated = eval(f"lambda of, {', '.join(names.values())}: {text}", {})  # noqa: S307
    return compiled


def _text(term: Any, bound: list[str], free: Mapping[str, str]) -> str:
    if z3.is_var(term):
        return bound[-1 - int(z3.get_var_index(term))]
    if z3.is_quantifier(term):
        return _quantified(term, bound, free)
    parts = [_text(child, bound, free) for child in term.children()]
    kind = term.decl().kind()
    if kind in (z3.Z3_OP_AND, z3.Z3_OP_OR) and not parts:
        return str(kind == z3.Z3_OP_AND)
    if kind in _OPERATORS:
        return f"({_OPERATORS[kind].join(parts)})"
    match kind:
        case z3.Z3_OP_TRUE | z3.Z3_OP_FALSE:
            return str(kind == z3.Z3_OP_TRUE)
        case z3.Z3_OP_NOT:
            return f"(not {parts[0]})"
        case z3.Z3_OP_IMPLIES:
            return f"((not {parts[0]}) or {parts[1]})"
        case z3.Z3_OP_ITE:
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        case z3.Z3_OP_DISTINCT:
            return (
                f"({' != '.join(parts)})"
                if len(parts) == 2
                else f"(len({{{', '.join(parts)}}}) == {len(parts)})"
            )
        case z3.Z3_OP_ANUM:
            return str(term)
        case z3.Z3_OP_UNINTERPRETED:
            name = term.decl().name()
            if not parts:
                return free.get(name, f"of[{name!r}]")
            return f"of[{name!r}][{', '.join(parts)}]"
    raise ValueError(f"{term.decl().name()} is nothing that can be evaluated here")


def _quantified(term: Any, bound: list[str], free: Mapping[str, str]) -> str:
    first = len(bound)
    names = [f"bound_{first + index}" for index in range(term.num_vars())]
    loops = " ".join(f"for {name} in of[{str(term.var_sort(index))!r}]" for index, name in enumerate(names))
    body = _text(term.body(), [*bound, *names], free)
    return f"{'all' if term.is_forall() else 'any'}({body} {loops})"
