"""Events of forwards: begin, sync, recycle (a sync into a dead slot), end.

Source: paper 3.4.
"""

from dataclasses import replace

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.invariants import (
    block,
    offset,
    other_block,
    other_offset,
    other_request,
    other_step,
    request,
    token,
)
from spec.proofs.state import BEFORE as S
from spec.proofs.state import Block, Content, Formula, Int, Offset, Request, Step, Term, Token
from spec.proofs.transition import Parameters, Transition, every, is_present, some


def begin() -> Transition:
    """Decide a forward, and where it will write."""
    make = Parameters("begin")
    step, computes = make.constant("step", Step), make.predicate("requests", Request)
    epoch = make.function("epoch", Request, Int)
    writes = make.predicate("writes", Request, Block, Offset)
    token_at = make.function("token_at", Request, Block, Offset, Token)
    recycles = make.predicate("recycles", Request)
    is_written = z3.And(computes(request), writes(request, block, offset))
    new_token = token_at(request, block, offset)
    in_plan = z3.Or(S.source(S.plan_of(request), block), S.destination(S.plan_of(request), block))

    def each_write(*variables: Term, holds: Formula) -> Formula:
        return every(request, block, offset, *variables, holds=z3.Implies(is_written, holds))

    return Transition(
        "begin",
        make.made,
        example=some(request, block, offset, holds=is_written),
        guards={
            "none_is_running": every(other_step, holds=z3.Not(S.running(other_step))),
            "present_epoch": every(
                request,
                holds=z3.Implies(
                    computes(request), z3.And(S.alive(request), epoch(request) == S.epoch(request))
                ),
            ),
            "private": each_write(
                other_request,
                holds=z3.And(
                    z3.Not(S.cached(block)),
                    z3.Implies(S.holds(other_request, block), other_request == request),
                ),
            ),
            "clear_of_the_plan": each_write(holds=z3.Not(z3.And(S.has_plan(request), in_plan))),
            "listed": each_write(holds=S.listed(request, block)),
            "empty_slots": each_write(token, holds=z3.Not(S.at(request, token, block, offset))),
            "new_tokens": each_write(holds=z3.Not(S.computed(request, new_token))),
            "writes_or_recycles": each_write(holds=z3.Not(recycles(request))),
            "one_slot_each": each_write(
                other_block,
                other_offset,
                holds=z3.Implies(
                    z3.And(
                        writes(request, other_block, other_offset),
                        token_at(request, other_block, other_offset) == new_token,
                    ),
                    z3.And(block == other_block, offset == other_offset),
                ),
            ),
        },
        after=replace(
            S,
            running=lambda s: z3.Or(S.running(s), s == step),
            in_forward=lambda s, r: z3.If(s == step, computes(r), S.in_forward(s, r)),
            will_write=lambda s, r, b, o: z3.If(
                s == step, z3.And(computes(r), writes(r, b, o)), S.will_write(s, r, b, o)
            ),
            written_token=lambda s, r, b, o: z3.If(s == step, token_at(r, b, o), S.written_token(s, r, b, o)),
            will_recycle=lambda s, r: z3.If(
                s == step, z3.And(computes(r), recycles(r)), S.will_recycle(s, r)
            ),
            zombie_write=lambda s, b, o: z3.And(S.zombie_write(s, b, o), s != step),
        ),
    )


def sync() -> Transition:
    """Register tokens that the forward has written to the slots where it was to write them."""
    make = Parameters("sync")
    subject, epoch = make.subject()
    step, tokens = make.constant("step", Step), make.predicate("tokens", Token)
    at_block, at_offset = make.function("block", Token, Block), make.function("offset", Token, Offset)
    content = make.function("content", Token, Content)
    slots, token_at = make.predicate("slots", Block, Offset), make.function("token_at", Block, Offset, Token)
    place, written = (at_block(token), at_offset(token)), token_at(block, offset)

    def is_new(r: Term, t: Term) -> Formula:
        return z3.And(r == subject, tokens(t))

    return Transition(
        "sync",
        make.made,
        example=some(token, holds=tokens(token)),
        guards={
            **is_present(subject, epoch),
            "in_forward": z3.And(S.running(step), S.in_forward(step, subject)),
            "where_the_forward_writes": every(
                token,
                holds=z3.Implies(
                    tokens(token),
                    z3.And(
                        S.will_write(step, subject, *place),
                        S.written_token(step, subject, *place) == token,
                    ),
                ),
            ),
        },
        facts={
            "slots_of_tokens": every(
                token, holds=z3.Implies(tokens(token), z3.And(slots(*place), token_at(*place) == token))
            ),
            "tokens_of_slots": every(
                block,
                offset,
                holds=z3.Implies(
                    slots(block, offset),
                    z3.And(tokens(written), at_block(written) == block, at_offset(written) == offset),
                ),
            ),
        },
        after=replace(
            S,
            computed=lambda r, t: z3.Or(S.computed(r, t), is_new(r, t)),
            resident=lambda r, t: z3.Or(S.resident(r, t), is_new(r, t)),
            live=lambda r, t: z3.Or(S.live(r, t), is_new(r, t)),
            evictions=lambda r, t: z3.If(is_new(r, t), 0, S.evictions(r, t)),
            block=lambda r, t: z3.If(is_new(r, t), at_block(t), S.block(r, t)),
            offset=lambda r, t: z3.If(is_new(r, t), at_offset(t), S.offset(r, t)),
            content=lambda r, t: z3.If(is_new(r, t), content(t), S.content(r, t)),
            memory=lambda b, o: z3.If(slots(b, o), content(token_at(b, o)), S.memory(b, o)),
            will_write=lambda s, r, b, o: z3.And(
                S.will_write(s, r, b, o), z3.Not(z3.And(s == step, r == subject, slots(b, o)))
            ),
        ),
        request=subject,
        epoch=epoch,
    )


def recycle() -> Transition:
    """Register a token that the forward has written over a dead one."""
    make = Parameters("recycle")
    subject, epoch = make.subject()
    step, new = make.constant("step", Step), make.constant("token", Token)
    at_block, at_offset = make.constant("block", Block), make.constant("offset", Offset)
    content = make.constant("content", Content)
    in_plan = z3.Or(S.source(S.plan_of(subject), at_block), S.destination(S.plan_of(subject), at_block))

    def is_new(r: Term, t: Term) -> Formula:
        return z3.And(r == subject, t == new)

    def is_replaced(r: Term, t: Term) -> Formula:
        return z3.And(r == subject, S.at(r, t, at_block, at_offset))

    return Transition(
        "recycle",
        make.made,
        example=some(token, holds=S.at(subject, token, at_block, at_offset)),
        guards={
            **is_present(subject, epoch),
            "in_forward": z3.And(S.running(step), S.in_forward(step, subject)),
            "announced": S.will_recycle(step, subject),
            "new_token": z3.Not(S.computed(subject, new)),
            "listed": S.listed(subject, at_block),
            "dead_slot": every(
                token,
                holds=z3.Not(z3.And(S.live(subject, token), S.at(subject, token, at_block, at_offset))),
            ),
            "private": z3.And(
                z3.Not(S.cached(at_block)),
                every(
                    other_request,
                    holds=z3.Implies(S.holds(other_request, at_block), other_request == subject),
                ),
            ),
            "clear_of_the_plan": z3.Not(z3.And(S.has_plan(subject), in_plan)),
        },
        after=replace(
            S,
            computed=lambda r, t: z3.Or(S.computed(r, t), is_new(r, t)),
            resident=lambda r, t: z3.Or(is_new(r, t), z3.And(S.resident(r, t), z3.Not(is_replaced(r, t)))),
            live=lambda r, t: z3.Or(S.live(r, t), is_new(r, t)),
            evictions=lambda r, t: z3.If(is_new(r, t), 0, S.evictions(r, t)),
            block=lambda r, t: z3.If(is_new(r, t), at_block, S.block(r, t)),
            offset=lambda r, t: z3.If(is_new(r, t), at_offset, S.offset(r, t)),
            content=lambda r, t: z3.If(is_new(r, t), content, S.content(r, t)),
            memory=lambda b, o: z3.If(z3.And(b == at_block, o == at_offset), content, S.memory(b, o)),
            will_recycle=lambda s, r: z3.And(S.will_recycle(s, r), z3.Not(z3.And(s == step, r == subject))),
        ),
        request=subject,
        epoch=epoch,
    )


def end() -> Transition:
    """End a forward: all its writes are done, also those for requests that are gone."""
    make = Parameters("end")
    step, left = make.constant("step", Step), make.function("left", Block, Offset, Content)
    return Transition(
        "end",
        make.made,
        example=some(block, offset, holds=S.zombie_write(step, block, offset)),
        guards={"running": S.running(step)},
        after=replace(
            S,
            running=lambda s: z3.And(S.running(s), s != step),
            in_forward=lambda s, r: z3.And(S.in_forward(s, r), s != step),
            will_write=lambda s, r, b, o: z3.And(S.will_write(s, r, b, o), s != step),
            will_recycle=lambda s, r: z3.And(S.will_recycle(s, r), s != step),
            memory=lambda b, o: z3.If(S.zombie_write(step, b, o), left(b, o), S.memory(b, o)),
            zombie_write=lambda s, b, o: z3.And(S.zombie_write(s, b, o), s != step),
        ),
    )
