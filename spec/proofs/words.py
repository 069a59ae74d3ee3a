"""Terms whose values are words: how a counterexample tells its schedule."""

from collections.abc import Sequence

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula


def text(*parts: Formula | str) -> Formula:
    """Return a term whose value is the parts one after another."""
    terms = [z3.StringVal(part) if isinstance(part, str) else part for part in parts]
    return terms[0] if len(terms) == 1 else z3.Concat(terms)


def marked(marks: Sequence[Formula]) -> Formula:
    """Return a term whose value is the places that are marked, each after a space, or `` nothing``."""
    places = [z3.If(mark, z3.StringVal(f" {place}"), z3.StringVal("")) for place, mark in enumerate(marks)]
    return z3.If(z3.Or(list(marks)), text(*places), z3.StringVal(" nothing"))
