"""Events by which blocks change hands: admit, alloc, lease, share, cache, uncache, release, free, and
those that end an epoch.

Source: paper 3.3.2, 3.4, 6.
"""

from collections.abc import Callable
from dataclasses import replace

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.invariants import (
    block,
    flight,
    offset,
    other_block,
    other_request,
    step,
    token,
)
from spec.proofs.state import BEFORE as S
from spec.proofs.state import (
    Block,
    Bool,
    Formula,
    Function,
    Offset,
    Request,
    Term,
    Ticket,
    Token,
)
from spec.proofs.transition import Parameters, Transition, every, is_present, some


def admit() -> Transition:
    """Let a request enter."""
    make = Parameters("admit")
    request = make.constant("request", Request)
    return Transition(
        "admit",
        make.made,
        example=z3.BoolVal(True),
        guards={"not_alive": z3.Not(S.alive(request)), "never_ended": z3.Not(S.ended(request))},
        after=replace(
            S,
            alive=lambda r: z3.Or(S.alive(r), r == request),
            epoch=lambda r: z3.If(r == request, 0, S.epoch(r)),
            listed=lambda r, b: z3.And(S.listed(r, b), r != request),
            has_plan=lambda r: z3.And(S.has_plan(r), r != request),
        ),
        request=request,
    )


def alloc() -> Transition:
    """Append free blocks to a request's list."""
    make = Parameters("alloc")
    request, given = make.constant("request", Request), make.predicate("blocks", Block)
    return Transition(
        "alloc",
        make.made,
        example=some(block, holds=given(block)),
        guards={
            "alive": S.alive(request),
            "free": every(block, holds=z3.Implies(given(block), S.free(block))),
        },
        after=replace(
            S,
            free=lambda b: z3.And(S.free(b), z3.Not(given(b))),
            holds=_or_given(S.holds, request, given),
            listed=_or_given(S.listed, request, given),
            cached=lambda b: z3.And(S.cached(b), z3.Not(given(b))),
        ),
        request=request,
    )


def lease() -> Transition:
    """Lend free blocks to a request."""
    make = Parameters("lease")
    request, epoch = make.subject()
    given, ticket = make.predicate("blocks", Block), make.function("ticket", Block, Ticket)
    is_taken = z3.And(S.leased(other_request, other_block), S.ticket(other_block) == ticket(block))
    is_given_twice = z3.And(given(other_block), ticket(other_block) == ticket(block), other_block != block)
    return Transition(
        "lease",
        make.made,
        example=some(block, holds=given(block)),
        guards={
            **is_present(request, epoch),
            "free": every(block, holds=z3.Implies(given(block), S.free(block))),
            "headroom": every(
                block,
                other_block,
                other_request,
                holds=z3.Implies(
                    given(block),
                    z3.And(S.in_headroom(ticket(block)), z3.Not(is_taken), z3.Not(is_given_twice)),
                ),
            ),
        },
        after=replace(
            S,
            free=lambda b: z3.And(S.free(b), z3.Not(given(b))),
            leased=_or_given(S.leased, request, given),
            ticket=lambda b: z3.If(given(b), ticket(b), S.ticket(b)),
            cached=lambda b: z3.And(S.cached(b), z3.Not(given(b))),
        ),
        request=request,
        epoch=epoch,
    )


def share() -> Transition:
    """Let cached blocks be the first ones of a request."""
    make = Parameters("share")
    request, epoch = make.subject()
    given, tokens = make.predicate("blocks", Block), make.predicate("tokens", Token)
    at_block, at_offset = make.function("block", Token, Block), make.function("offset", Token, Offset)
    place = at_block(token), at_offset(token)

    def is_new(r: Term, t: Term) -> Formula:
        return z3.And(r == request, tokens(t))

    return Transition(
        "share",
        make.made,
        example=some(token, holds=tokens(token)),
        guards={
            **is_present(request, epoch),
            "has_no_block": every(block, holds=z3.Not(S.listed(request, block))),
            "has_no_token": every(token, holds=z3.Not(S.computed(request, token))),
            "cached": every(block, holds=z3.Implies(given(block), S.cached(block))),
            "not_fenced": every(block, holds=z3.Implies(given(block), z3.Not(S.fenced(block)))),
            "same_tokens": every(
                token,
                holds=z3.Implies(
                    tokens(token), z3.And(S.is_cached_at(*place), S.cached_token(*place) == token)
                ),
            ),
        },
        facts={"tokens_are_in_the_blocks": every(token, holds=z3.Implies(tokens(token), given(place[0])))},
        after=replace(
            S,
            free=lambda b: z3.And(S.free(b), z3.Not(given(b))),
            holds=_or_given(S.holds, request, given),
            listed=_or_given(S.listed, request, given),
            computed=lambda r, t: z3.Or(S.computed(r, t), is_new(r, t)),
            resident=lambda r, t: z3.Or(S.resident(r, t), is_new(r, t)),
            live=lambda r, t: z3.Or(S.live(r, t), is_new(r, t)),
            evictions=lambda r, t: z3.If(is_new(r, t), 0, S.evictions(r, t)),
            block=lambda r, t: z3.If(is_new(r, t), at_block(t), S.block(r, t)),
            offset=lambda r, t: z3.If(is_new(r, t), at_offset(t), S.offset(r, t)),
            content=lambda r, t: z3.If(
                is_new(r, t), S.cached_content(at_block(t), at_offset(t)), S.content(r, t)
            ),
        ),
        request=request,
        epoch=epoch,
    )


def cache() -> Transition:
    """Put blocks of a request into the prefix cache."""
    make = Parameters("cache")
    request, epoch = make.subject()
    given = make.predicate("blocks", Block)
    has_token = make.predicate("has_token", Block, Offset)
    token_at = make.function("token_at", Block, Offset, Token)
    held = token_at(block, offset)
    return Transition(
        "cache",
        make.made,
        example=some(block, offset, holds=z3.And(given(block), has_token(block, offset))),
        guards={
            **is_present(request, epoch),
            "no_plan": z3.Not(S.has_plan(request)),
            "not_in_forward": every(step, holds=z3.Not(z3.And(S.running(step), S.in_forward(step, request)))),
            "listed": every(block, holds=z3.Implies(given(block), S.listed(request, block))),
        },
        facts={
            "tokens_are_resident": every(
                block,
                offset,
                holds=z3.Implies(
                    z3.And(given(block), has_token(block, offset)), S.at(request, held, block, offset)
                ),
            ),
            "all_tokens_are_told": every(
                token,
                holds=z3.Implies(
                    z3.And(S.resident(request, token), given(S.block(request, token))),
                    z3.And(
                        has_token(S.block(request, token), S.offset(request, token)),
                        token_at(S.block(request, token), S.offset(request, token)) == token,
                    ),
                ),
            ),
        },
        after=replace(
            S,
            cached=lambda b: z3.Or(S.cached(b), given(b)),
            is_cached_at=lambda b, o: z3.If(given(b), has_token(b, o), S.is_cached_at(b, o)),
            cached_token=lambda b, o: z3.If(given(b), token_at(b, o), S.cached_token(b, o)),
            cached_content=lambda b, o: z3.If(
                given(b), S.content(request, token_at(b, o)), S.cached_content(b, o)
            ),
        ),
        request=request,
        epoch=epoch,
    )


def uncache() -> Transition:
    """Take blocks out of the prefix cache."""
    make = Parameters("uncache")
    given = make.predicate("blocks", Block)
    return Transition(
        "uncache",
        make.made,
        example=some(block, holds=z3.And(given(block), S.cached(block))),
        guards={},
        after=replace(S, cached=lambda b: z3.And(S.cached(b), z3.Not(given(b)))),
    )


def release() -> Transition:
    """Let a request give up blocks."""
    make = Parameters("release")
    request, epoch = make.subject()
    given, reclaimed = make.predicate("blocks", Block), make.predicate("reclaimed", Token)
    flight_now = S.plan_of(request)

    def is_given_up(r: Term, b: Term) -> Formula:
        return z3.And(r == request, given(b))

    def is_fenced_now(b: Term) -> Formula:
        return z3.And(given(b), _loses_its_last(request, b))

    return Transition(
        "release",
        make.made,
        example=some(block, token, holds=z3.And(given(block), reclaimed(token))),
        guards={
            **is_present(request, epoch),
            "had": every(
                block,
                holds=z3.Implies(given(block), z3.Or(S.holds(request, block), S.leased(request, block))),
            ),
            "no_live_token": every(
                token,
                holds=z3.Not(z3.And(S.live(request, token), given(S.block(request, token)))),
            ),
            "not_in_plan": every(
                block,
                holds=z3.Implies(
                    z3.And(S.has_plan(request), given(block)),
                    z3.Not(z3.Or(S.source(flight_now, block), S.destination(flight_now, block))),
                ),
            ),
            "not_in_forward": every(
                step,
                block,
                holds=z3.Not(
                    z3.And(
                        S.running(step),
                        S.in_forward(step, request),
                        given(block),
                        S.listed(request, block),
                    )
                ),
            ),
        },
        facts={
            "reclaimed_are_dead": every(
                token, holds=z3.Not(z3.And(reclaimed(token), S.live(request, token)))
            ),
            "blocks_are_left": every(
                token,
                holds=z3.Implies(
                    z3.And(
                        S.resident(request, token),
                        z3.Not(S.live(request, token)),
                        given(S.block(request, token)),
                    ),
                    reclaimed(token),
                ),
            ),
        },
        after=replace(
            S,
            holds=lambda r, b: z3.And(S.holds(r, b), z3.Not(is_given_up(r, b))),
            leased=lambda r, b: z3.And(S.leased(r, b), z3.Not(is_given_up(r, b))),
            listed=lambda r, b: z3.And(S.listed(r, b), z3.Not(is_given_up(r, b))),
            resident=lambda r, t: z3.And(S.resident(r, t), z3.Not(z3.And(r == request, reclaimed(t)))),
            fenced=lambda b: z3.Or(S.fenced(b), is_fenced_now(b)),
            waits_for_step=lambda b, s: z3.If(is_fenced_now(b), S.running(s), S.waits_for_step(b, s)),
            waits_for_copies=lambda b, f: z3.And(S.waits_for_copies(b, f), z3.Not(is_fenced_now(b))),
        ),
        request=request,
        epoch=epoch,
    )


def free() -> Transition:
    """Return fenced blocks to the free list."""
    make = Parameters("free")
    given = make.predicate("blocks", Block)
    return Transition(
        "free",
        make.made,
        example=some(block, holds=given(block)),
        guards={
            "fenced": every(block, holds=z3.Implies(given(block), S.fenced(block))),
            "steps_are_over": every(
                block,
                step,
                holds=z3.Not(z3.And(given(block), S.waits_for_step(block, step), S.running(step))),
            ),
            "copies_are_over": every(
                block,
                flight,
                holds=z3.Not(z3.And(given(block), S.waits_for_copies(block, flight), S.orphan(flight))),
            ),
        },
        after=replace(
            S,
            free=lambda b: z3.Or(S.free(b), given(b)),
            fenced=lambda b: z3.And(S.fenced(b), z3.Not(given(b))),
        ),
    )


# The end of an epoch.


def preempt() -> Transition:
    """Take everything from a request, which starts over in the next epoch."""
    return _epoch_end(
        "preempt", lambda request: {"epoch": lambda r: z3.If(r == request, S.epoch(r) + 1, S.epoch(r))}
    )


def finish() -> Transition:
    """End a request, which is complete or which its client gave up."""
    return _epoch_end(
        "finish",
        lambda request: {
            "alive": lambda r: z3.And(S.alive(r), r != request),
            "ended": lambda r: z3.Or(S.ended(r), r == request),
        },
    )


def _epoch_end(name: str, changes: Callable[[Term], dict[str, Function]]) -> Transition:
    make = Parameters(name)
    request, epoch = make.subject()
    is_copied, uncopied = make.constant("is_copied", Bool), make.constant("uncopied", Token)
    flight_now = S.plan_of(request)
    is_orphaned = z3.And(S.has_plan(request), z3.Not(is_copied))

    def is_fenced_now(b: Term) -> Formula:
        is_had = z3.Or(S.holds(request, b), S.leased(request, b))
        return z3.And(is_had, _loses_its_last(request, b))

    return Transition(
        name,
        make.made,
        example=z3.And(some(token, holds=S.live(request, token)), is_orphaned),
        guards=is_present(request, epoch),
        facts={
            "copied": z3.Implies(
                z3.And(S.has_plan(request), is_copied),
                every(token, holds=z3.Implies(S.moving(flight_now, token), S.copied(flight_now, token))),
            ),
            "not_copied": z3.Implies(
                is_orphaned,
                z3.And(S.moving(flight_now, uncopied), z3.Not(S.copied(flight_now, uncopied))),
            ),
        },
        after=replace(
            S,
            **changes(request),
            computed=_not_of(S.computed, request),
            resident=_not_of(S.resident, request),
            live=_not_of(S.live, request),
            listed=_not_of(S.listed, request),
            holds=_not_of(S.holds, request),
            leased=_not_of(S.leased, request),
            fenced=lambda b: z3.Or(S.fenced(b), is_fenced_now(b)),
            waits_for_step=lambda b, s: z3.If(is_fenced_now(b), S.running(s), S.waits_for_step(b, s)),
            waits_for_copies=lambda b, f: z3.If(
                is_fenced_now(b), z3.And(is_orphaned, f == flight_now), S.waits_for_copies(b, f)
            ),
            has_plan=_not_of(S.has_plan, request),
            in_flight=lambda f: z3.And(
                S.in_flight(f),
                z3.Not(z3.And(S.has_plan(request), f == flight_now, is_copied)),
            ),
            in_forward=lambda s, r: z3.And(S.in_forward(s, r), r != request),
            will_write=lambda s, r, b, o: z3.And(S.will_write(s, r, b, o), r != request),
            will_recycle=lambda s, r: z3.And(S.will_recycle(s, r), r != request),
            zombie_write=lambda s, b, o: z3.Or(
                S.zombie_write(s, b, o),
                z3.And(S.running(s), S.in_forward(s, request), S.will_write(s, request, b, o)),
            ),
        ),
        request=request,
        epoch=epoch,
    )


# Inside.


def _or_given(has: Function, request: Term, given: Function) -> Function:
    return lambda r, b: z3.Or(has(r, b), z3.And(r == request, given(b)))


def _not_of(has: Function, request: Term) -> Function:
    return lambda r, *rest: z3.And(has(r, *rest), r != request)


def _loses_its_last(request: Term, block: Term) -> Formula:
    """No other request holds a block."""
    return every(other_request, holds=z3.Implies(S.holds(other_request, block), other_request == request))
