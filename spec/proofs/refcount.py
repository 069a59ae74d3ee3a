"""A block's refcount is the number of its holders, however they come and go.

The relocation model has holders and no number. This is what its events mean for the number: each new
holder is one more, each that goes is one less, and what the model says of holders (there is none, there
is only one) is said of the number. Requests are counted in any order; each statement is proved for the
first none of them (``base``) and for one more (``step``), which makes it true of any number.

Source: paper 6.
"""

from collections.abc import Callable, Mapping

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula, Proof

Bool, Int = z3.BoolSort(), z3.IntSort()

before, after = z3.Function("before", Int, Bool), z3.Function("after", Int, Bool)
"""Whether the request at a position holds the block."""
count_before, count_after = z3.Function("count_before", Int, Int), z3.Function("count_after", Int, Int)
"""How many of the first requests hold the block."""
n, changed, other = z3.Ints("n changed other")

INVARIANTS = ("I6",)


def proofs() -> list[Proof]:
    """Return the lemmas."""
    at = z3.Int("at")
    as_before = z3.ForAll([at], z3.Implies(at != changed, after(at) == before(at)))
    comes = {"comes": z3.And(z3.Not(before(changed)), after(changed), as_before, changed >= 0)}
    goes = {"goes": z3.And(before(changed), z3.Not(after(changed)), as_before, changed >= 0)}
    only_one = {"only": z3.ForAll([at], z3.Implies(before(at), at == changed)), "position": changed >= 0}
    two = {"two": z3.And(before(changed), before(other), changed < other, changed >= 0)}
    return [
        *_by_induction("one_more", comes, lambda n: count_after(n) == count_before(n) + _counted(changed, n)),
        *_by_induction("one_less", goes, lambda n: count_after(n) == count_before(n) - _counted(changed, n)),
        *_by_induction("never_below_zero", {}, lambda n: count_before(n) >= 0),
        *_by_induction(
            "zero_is_nobody",
            {},
            lambda n: z3.And(
                count_before(n) >= 0,
                z3.Implies(count_before(n) == 0, z3.Not(z3.And(other >= 0, other < n, before(other)))),
            ),
        ),
        *_by_induction("one_is_alone", only_one, lambda n: count_before(n) <= _counted(changed, n)),
        *_by_induction(
            "two_are_more_than_one",
            two,
            lambda n: count_before(n) >= _counted(changed, n) + _counted(other, n),
        ),
    ]


def _counted(position: Formula, n: Formula) -> Formula:
    """Return 1 when a position is among the first n, else 0."""
    return z3.If(position < n, 1, 0)


def _by_induction(
    name: str, assumptions: Mapping[str, Formula], statement: Callable[[Formula], Formula]
) -> list[Proof]:
    """Return that a statement is true of no request, and of one more whenever it is true of n."""
    shown = {
        "requests": n,
        "count before": count_before(n + 1),
        "count afterwards": count_after(n + 1),
        "holds before": before(n),
        "holds afterwards": after(n),
    }
    none = {"none": z3.And(count_before(0) == 0, count_after(0) == 0)}
    one_more = {
        "requests": n >= 0,
        "so far": statement(n),
        "before": count_before(n + 1) == count_before(n) + z3.If(before(n), 1, 0),
        "after": count_after(n + 1) == count_after(n) + z3.If(after(n), 1, 0),
    }
    return [
        Proof(
            f"refcount.{name}.base", INVARIANTS, statement(z3.IntVal(0)), {**assumptions, **none}, shown=shown
        ),
        Proof(
            f"refcount.{name}.step", INVARIANTS, statement(n + 1), {**assumptions, **one_more}, shown=shown
        ),
    ]
