"""Why a plan in place can be carried out: packed in order, it never comes to a halt.

The relocation model lets a token be copied when its target holds no token that is still to be copied.
Here is shown that, of a plan that packs to the front, the first token that is still to be copied always
may be: its target is not after its slot, and every other such token is after it. So ascending copies
are possible, however many tokens there are. And no token that stays is a target.

Slots are in any total order. That packing moves no token to a later slot is in ``arithmetic``.

Source: paper 3.3.3.
Differs from source: packing in place is ours.
"""

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.finite import Universe
from spec.proofs.invariants import other_token, token
from spec.proofs.plan_transitions import copy, plan_in_place
from spec.proofs.prover import Proof
from spec.proofs.state import BEFORE as S
from spec.proofs.state import Block, Bool, Content, Flight, Formula, Function, Offset, Request, Term, Token
from spec.proofs.transition import every

at_most = z3.Function("at_most", Block, Offset, Block, Offset, Bool)
"""Whether a slot is at or before another one in the order of the block list."""

SMALL = Universe({Block: 2, Offset: 2, Token: 2, Flight: 1, Request: 1, Content: 1})


def proofs() -> list[Proof]:
    """Return the two lemmas."""
    return [_first_may_be_copied(), _who_stays_is_spared()]


def _first_may_be_copied() -> Proof:
    event = copy()
    flight, copied = event.parameters["flight"], event.parameters["tokens"]
    source = (lambda t: S.source_block(flight, t)), (lambda t: S.source_offset(flight, t))
    target = (lambda t: S.target_block(flight, t)), (lambda t: S.target_offset(flight, t))
    first, each = z3.Consts("first each", Token)

    def is_left(t: Term) -> Formula:
        return z3.And(S.moving(flight, t), z3.Not(S.copied(flight, t)))

    comes_first = every(
        each, holds=z3.Implies(is_left(each), at_most(*_place(source, first), *_place(source, each)))
    )
    moving = _packs(source, target, lambda t: S.moving(flight, t))
    return Proof(
        "in_place.first_may_be_copied",
        ("I1", "I9", "VT-COPY-005"),
        z3.And(event.guards["planned"], event.guards["once"], event.guards["spares_the_uncopied"]),
        {
            **_order(),
            **moving,
            "first": z3.And(is_left(first), comes_first),
            "it alone": every(each, holds=copied(each) == (each == first)),
        },
        shown={"its target": target[0](first), "offset": target[1](first)},
        example=z3.Exists([each], z3.And(is_left(each), each != first)),
        universe=SMALL,
    )


def _who_stays_is_spared() -> Proof:
    event = plan_in_place()
    of = event.parameters
    request = of["request"]
    source = (lambda t: S.block(request, t)), (lambda t: S.offset(request, t))

    def is_relocated(t: Term) -> Formula:
        return S.live(request, t)

    def target_block(t: Term) -> Term:
        return z3.If(of["moving"](t), of["target_block"](t), S.block(request, t))

    def target_offset(t: Term) -> Term:
        return z3.If(of["moving"](t), of["target_offset"](t), S.offset(request, t))

    return Proof(
        "in_place.who_stays_is_spared",
        ("I1", "I4"),
        event.guards["targets_spare_who_stays"],
        {
            **_order(),
            **_packs(source, (target_block, target_offset), is_relocated),
            "live": event.guards["live_tokens_move"],
        },
        shown={"the token stays": z3.Not(of["moving"](token)), "the other moves": of["moving"](other_token)},
        example=z3.Exists(
            [token, other_token],
            z3.And(of["moving"](other_token), S.live(request, token), token != other_token),
        ),
        universe=SMALL,
    )


_Place = tuple[Function, Function]


def _place(of: _Place, of_token: Term) -> tuple[Term, Term]:
    return of[0](of_token), of[1](of_token)


def _packs(source: _Place, target: _Place, is_relocated: Function) -> dict[str, Formula]:
    """Return that tokens go to the front in the order in which they are."""
    a, b = z3.Consts("one another", Token)
    both = z3.And(is_relocated(a), is_relocated(b), a != b)
    same_source = z3.And(*(of(a) == of(b) for of in source))
    same_target = z3.And(*(of(a) == of(b) for of in target))
    is_before = at_most(*_place(source, a), *_place(source, b))
    return {
        "one slot each": every(a, b, holds=z3.Implies(both, z3.Not(same_source))),
        "not after": every(
            a, holds=z3.Implies(is_relocated(a), at_most(*_place(target, a), *_place(source, a)))
        ),
        "in order": every(
            a,
            b,
            holds=z3.Implies(
                z3.And(both, is_before),
                z3.And(at_most(*_place(target, a), *_place(target, b)), z3.Not(same_target)),
            ),
        ),
    }


def _order() -> dict[str, Formula]:
    """Return that slots are in a total order."""
    blocks, offsets = z3.Consts("b1 b2 b3", Block), z3.Consts("o1 o2 o3", Offset)
    first, second, third = zip(blocks, offsets, strict=True)
    same = z3.And(first[0] == second[0], first[1] == second[1])
    return {
        "reflexive": every(*first, holds=at_most(*first, *first)),
        "antisymmetric": every(
            *first,
            *second,
            holds=z3.Implies(z3.And(at_most(*first, *second), at_most(*second, *first)), same),
        ),
        "transitive": every(
            *first,
            *second,
            *third,
            holds=z3.Implies(
                z3.And(at_most(*first, *second), at_most(*second, *third)), at_most(*first, *third)
            ),
        ),
        "total": every(*first, *second, holds=z3.Or(at_most(*first, *second), at_most(*second, *first))),
    }
