"""Formulas read in a finite universe: each sort has the elements that are listed, and no others.

A state found there satisfies the formulas as they stand, quantifiers and all, since its functions
stay inside. So it is a witness of the unbounded formulas too; that none is found says nothing.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

Formula = Any


class Universe:
    """Which elements each uninterpreted sort has.

    Args:
        sizes: the number of elements of each sort.

    """

    def __init__(self, sizes: Mapping[Any, int]) -> None:
        self.elements: dict[str, list[Any]] = {
            str(sort): [z3.Const(f"{sort}_{index}", sort) for index in range(size)]
            for sort, size in sizes.items()
        }

        self._restricted: dict[int, tuple[Formula, list[Formula]]] = {}

    def restrict(self, formulas: Iterable[Formula]) -> list[Formula]:
        """Return formulas without quantifiers that are true where the given ones are, in this universe."""
        distinct = [z3.Distinct(*members) for members in self.elements.values() if len(members) > 1]
        return [*distinct, *(it for formula in formulas for it in self._restrict(formula))]

    def _restrict(self, formula: Formula) -> list[Formula]:
        key = formula.get_id()
        if key not in self._restricted:
            expanded = self._expand(formula)
            # The formula is kept, since the id of one that is gone is given to another.
            self._restricted[key] = formula, [expanded, *self._closed(expanded)]
        return self._restricted[key][1]

    def _expand(self, formula: Formula) -> Formula:
        if not _has_quantifier(formula):
            return formula
        if z3.is_quantifier(formula):
            names = [str(formula.var_sort(index)) for index in range(formula.num_vars())]
            if formula.is_lambda() or not all(name in self.elements for name in names):
                raise ValueError(f"a variable of {formula} ranges over no sort of the universe")
            instances = [
                self._expand(z3.substitute_vars(formula.body(), *reversed(values)))
                for values in product(*(self.elements[name] for name in names))
            ]
            return z3.And(*instances) if formula.is_forall() else z3.Or(*instances)
        return formula.decl()(*(self._expand(child) for child in formula.children()))

    def _closed(self, formula: Formula) -> list[Formula]:
        """Return that the value of each term is one of the listed elements of its sort."""
        closed = []
        for term in _terms(formula):
            members = self.elements.get(str(term.sort()))
            is_free = term.decl().kind() == z3.Z3_OP_UNINTERPRETED
            if members is not None and is_free and not any(term.eq(member) for member in members):
                closed.append(z3.Or(*(term == member for member in members)))
        return closed


def _has_quantifier(formula: Formula) -> bool:
    seen: set[int] = set()
    todo = [formula]
    while todo:
        term = todo.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        if z3.is_quantifier(term):
            return True
        todo.extend(term.children())
    return False


def _terms(formula: Formula) -> list[Any]:
    seen: dict[int, Any] = {}
    todo = [formula]
    while todo:
        term = todo.pop()
        if term.get_id() not in seen:
            seen[term.get_id()] = term
            todo.extend(term.children())
    return list(seen.values())
