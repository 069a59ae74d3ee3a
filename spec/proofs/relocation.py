"""The proofs of the relocation model: the invariant holds at first, every event keeps it, and I1, I2,
I4 and I6 follow from it.

There is no bound: any number of requests, tokens, blocks, plans and steps, in any order of events.

Source: paper 3.5.
"""

from collections.abc import Iterator
from functools import cache, partial

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs import forward_transitions, invariants, plan_transitions, pool_transitions, properties
from spec.proofs.finite import Universe
from spec.proofs.invariants import (
    Statement,
    block,
    flight,
    request,
    step,
    token,
)
from spec.proofs.prover import Proof, Prover, prove_all
from spec.proofs.shown import event_terms, state_terms
from spec.proofs.state import BEFORE, Block, Content, Flight, Formula, Offset, Request, Step, Ticket, Token
from spec.proofs.transition import Transition, every
from spec.report import Check, Options, Progress

SMALL = Universe({Request: 2, Token: 3, Block: 3, Offset: 2, Flight: 2, Step: 2, Content: 2, Ticket: 2})
"""A universe that is large enough for every event to do something."""


@cache
def transitions() -> tuple[Transition, ...]:
    """Return every kind of event."""
    return (
        pool_transitions.admit(),
        pool_transitions.alloc(),
        pool_transitions.lease(),
        pool_transitions.share(),
        pool_transitions.cache(),
        pool_transitions.uncache(),
        pool_transitions.release(),
        pool_transitions.free(),
        pool_transitions.preempt(),
        pool_transitions.finish(),
        forward_transitions.begin(),
        forward_transitions.sync(),
        forward_transitions.recycle(),
        forward_transitions.end(),
        plan_transitions.evict(),
        plan_transitions.plan_out_of_place(),
        plan_transitions.plan_in_place(),
        plan_transitions.plan_copy_on_write(),
        plan_transitions.copy(),
        plan_transitions.commit(),
        plan_transitions.cancel(),
    )


def guards() -> list[tuple[str, str]]:
    """Return every guard, with its transition."""
    return [(transition.name, guard) for transition in transitions() for guard in transition.guards]


def proofs(without: tuple[str, str] | None = None) -> list[Proof]:
    """Return the proofs, or with a guard left out those that could notice it.

    Args:
        without: a transition and one of its guards.

    Raises:
        KeyError: there is no such guard.

    """
    if without is not None:
        transition, guard = without
        changed = {each.name: each for each in transitions()}[transition].without(guard)
        return list(_of_event(changed))
    return list(_proofs())


def run(options: Options, progress: Progress, without: tuple[str, str] | None = None) -> list[Check]:
    """Prove everything, or with a guard left out what could notice it."""
    return prove_all(proofs(without), options, progress)


def noticed_by(without: tuple[str, str]) -> Check | None:
    """Return the first proof that fails with a guard left out, None when none does."""
    prover = Prover()
    checks = map(prover.prove, proofs(without))
    return next((check for check in checks if check.status.is_failure), None)


# Inside.


@cache
def _proofs() -> tuple[Proof, ...]:
    events = (proof for transition in transitions() for proof in _of_event(transition))
    return (*_initial(), *events, *_of_states())


def _initial() -> Iterator[Proof]:
    for part in invariants.parts():
        yield Proof(
            f"initial.{part.name}",
            part.covers,
            part.of(BEFORE),
            {"initial": initial()},
            shown=partial(state_terms, part, BEFORE),
            universe=SMALL,
        )


def initial() -> Formula:
    """Return that nothing has happened yet: all blocks are free, no request is there."""
    is_had = z3.Or(BEFORE.holds(request, block), BEFORE.leased(request, block))
    return z3.And(
        every(
            block,
            holds=z3.And(BEFORE.free(block), z3.Not(BEFORE.fenced(block)), z3.Not(BEFORE.cached(block))),
        ),
        every(request, block, holds=z3.Not(z3.Or(is_had, BEFORE.listed(request, block)))),
        every(
            request,
            holds=z3.Not(z3.Or(BEFORE.alive(request), BEFORE.ended(request), BEFORE.has_plan(request))),
        ),
        every(
            request,
            token,
            holds=z3.Not(
                z3.Or(
                    BEFORE.computed(request, token),
                    BEFORE.resident(request, token),
                    BEFORE.live(request, token),
                )
            ),
        ),
        every(flight, holds=z3.Not(BEFORE.in_flight(flight))),
        every(step, holds=z3.Not(BEFORE.running(step))),
    )


def _of_event(transition: Transition) -> Iterator[Proof]:
    """Yield that an event keeps each part of the invariant, and what it leaves alone.

    A part that speaks of nothing that the event changes needs no proof.
    """
    assumptions = {
        **{f"before: {name}": it for name, it in invariants.closed(BEFORE).items()},
        **{f"guard: {name}": it for name, it in transition.guards.items()},
        **{f"fact: {name}": it for name, it in transition.facts.items()},
    }
    kept = [
        Statement(f"inductive.{transition.name}.{part.name}", part.covers, part.variables, part.of)
        for part in invariants.parts()
        if not part.of(transition.after).eq(part.of(BEFORE))
    ]
    for statement in (*kept, *properties.of_event(transition)):
        yield Proof(
            statement.name,
            statement.covers,
            statement.of(transition.after),
            assumptions,
            shown=partial(event_terms, transition, statement),
            example=transition.example,
            universe=SMALL,
        )


def _of_states() -> Iterator[Proof]:
    assumptions = invariants.closed(BEFORE)
    for statement in properties.of_states():
        yield Proof(
            f"follows.{statement.name}",
            statement.covers,
            statement.of(BEFORE),
            assumptions,
            shown=partial(state_terms, statement, BEFORE),
            example=_everything_at_once(),
            universe=SMALL,
        )


def _everything_at_once() -> Formula:
    """Return that a plan is in flight, half copied, while a forward runs and a block is fenced."""
    return z3.And(
        z3.Exists(
            [request, token],
            z3.And(
                BEFORE.has_plan(request),
                BEFORE.moving(BEFORE.plan_of(request), token),
                BEFORE.copied(BEFORE.plan_of(request), token),
            ),
        ),
        z3.Exists([step], BEFORE.running(step)),
        z3.Exists([flight], BEFORE.orphan(flight)),
    )
