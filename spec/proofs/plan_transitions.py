"""Events of eviction and relocation: evict, plan (three strategies), copy, commit, cancel.

Source: paper 3.3.3, 3.5, 6.
"""

from dataclasses import replace

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.invariants import (
    block,
    offset,
    other_block,
    other_request,
    other_token,
    step,
    token,
)
from spec.proofs.state import BEFORE as S
from spec.proofs.state import Block, Bool, Flight, Formula, Offset, Term, Token
from spec.proofs.transition import Parameters, Transition, every, is_present, some


def evict() -> Transition:
    """Mark tokens dead."""
    make = Parameters("evict")
    request, epoch = make.subject()
    tokens = make.predicate("tokens", Token)

    def is_evicted(r: Term, t: Term) -> Formula:
        return z3.And(r == request, tokens(t))

    return Transition(
        "evict",
        make.made,
        example=some(token, holds=tokens(token)),
        guards={
            **is_present(request, epoch),
            "live": every(token, holds=z3.Implies(tokens(token), S.live(request, token))),
            "not_in_forward": every(
                step,
                token,
                holds=z3.Not(z3.And(tokens(token), S.running(step), S.in_forward(step, request))),
            ),
            "not_in_a_source": every(
                token,
                holds=z3.Not(
                    z3.And(
                        tokens(token),
                        S.has_plan(request),
                        S.source(S.plan_of(request), S.block(request, token)),
                    )
                ),
            ),
        },
        after=replace(
            S,
            live=lambda r, t: z3.And(S.live(r, t), z3.Not(is_evicted(r, t))),
            evictions=lambda r, t: S.evictions(r, t) + z3.If(is_evicted(r, t), 1, 0),
        ),
        request=request,
        epoch=epoch,
    )


# Plans.


class _Plan:
    """What every plan carries, and what it leads to."""

    def __init__(self, name: str) -> None:
        make = self.make = Parameters(name)
        self.name = name
        self.request, self.epoch = make.subject()
        self.flight = make.constant("flight", Flight)
        self.source = make.predicate("source", Block)
        self.destination = make.predicate("destination", Block)
        self.moving = make.predicate("moving", Token)
        self.source_block = make.function("source_block", Token, Block)
        self.source_offset = make.function("source_offset", Token, Offset)
        self.target_block = make.function("target_block", Token, Block)
        self.target_offset = make.function("target_offset", Token, Offset)
        self.moved_to = make.function("moved_to", Block, Offset, Token)
        self.paid_by = make.function("paid_by", Block, Block)
        self.gained = make.constant("gained", Block)

    def transition(
        self, guards: dict[str, Formula], *, in_place: bool = False, copy_on_write: bool = False
    ) -> Transition:
        def new(f: Term, value: Term, old: Term) -> Term:
            return z3.If(f == self.flight, value, old)

        return Transition(
            self.name,
            self.make.made,
            example=some(token, holds=self.moving(token)),
            guards={**is_present(self.request, self.epoch), **self.common_guards(), **guards},
            facts={"new": z3.Not(S.in_flight(self.flight))},
            after=replace(
                S,
                has_plan=lambda r: z3.Or(S.has_plan(r), r == self.request),
                plan_of=lambda r: z3.If(r == self.request, self.flight, S.plan_of(r)),
                in_flight=lambda f: z3.Or(S.in_flight(f), f == self.flight),
                owner=lambda f: new(f, self.request, S.owner(f)),
                plan_epoch=lambda f: new(f, self.epoch, S.plan_epoch(f)),
                in_place=lambda f: new(f, z3.BoolVal(in_place), S.in_place(f)),
                copy_on_write=lambda f: new(f, z3.BoolVal(copy_on_write), S.copy_on_write(f)),
                source=lambda f, b: new(f, self.source(b), S.source(f, b)),
                destination=lambda f, b: new(f, self.destination(b), S.destination(f, b)),
                moving=lambda f, t: new(f, self.moving(t), S.moving(f, t)),
                copied=lambda f, t: new(f, z3.BoolVal(False), S.copied(f, t)),
                source_block=lambda f, t: new(f, self.source_block(t), S.source_block(f, t)),
                source_offset=lambda f, t: new(f, self.source_offset(t), S.source_offset(f, t)),
                target_block=lambda f, t: new(f, self.target_block(t), S.target_block(f, t)),
                target_offset=lambda f, t: new(f, self.target_offset(t), S.target_offset(f, t)),
                moved_to=lambda f, b, o: new(f, self.moved_to(b, o), S.moved_to(f, b, o)),
                paid_by=lambda f, b: new(f, self.paid_by(b), S.paid_by(f, b)),
                gained=lambda f: new(f, self.gained, S.gained(f)),
            ),
            request=self.request,
            epoch=self.epoch,
        )

    def common_guards(self) -> dict[str, Formula]:
        return {
            "no_other_plan": z3.Not(S.has_plan(self.request)),
            "sources_are_listed": self._each_source(holds=S.listed(self.request, block)),
            "clear_of_the_forward": self._each_source(
                step,
                offset,
                holds=z3.Not(
                    z3.And(
                        S.running(step),
                        S.in_forward(step, self.request),
                        S.will_write(step, self.request, block, offset),
                    )
                ),
            ),
            "moves_start_in_sources": self._each_move(holds=self.source(S.block(self.request, token))),
            "moves_start_where_the_token_is": self._each_move(
                holds=S.at(self.request, token, self.source_block(token), self.source_offset(token))
            ),
            "targets_are_in_destinations": self._each_move(holds=self.destination(self.target_block(token))),
            "targets_are_distinct": self._each_move(
                holds=self.moved_to(self.target_block(token), self.target_offset(token)) == token
            ),
        }

    def relocation_guards(self) -> dict[str, Formula]:
        """Return what holds of a plan that is to free blocks."""
        return {
            "sources_are_private": self._each_source(
                other_request,
                holds=z3.And(
                    z3.Not(S.cached(block)),
                    z3.Implies(S.holds(other_request, block), other_request == self.request),
                ),
            ),
            "blocks_are_gained": z3.And(
                self.source(self.gained),
                every(
                    block,
                    other_block,
                    holds=z3.Implies(
                        self.destination(block),
                        z3.And(
                            self.source(self.paid_by(block)),
                            self.paid_by(block) != self.gained,
                            z3.Implies(
                                z3.And(
                                    self.destination(other_block),
                                    self.paid_by(block) == self.paid_by(other_block),
                                ),
                                block == other_block,
                            ),
                        ),
                    ),
                ),
            ),
            "live_tokens_move": self._each_move(holds=S.live(self.request, token)),
        }

    def leased_destinations(self) -> Formula:
        return every(block, holds=z3.Implies(self.destination(block), S.leased(self.request, block)))

    def none_left_behind(self, stays: Formula) -> Formula:
        is_there = z3.And(S.live(self.request, token), self.source(S.block(self.request, token)))
        return every(token, holds=z3.Implies(is_there, z3.Or(self.moving(token), stays)))

    def _each_source(self, *variables: Term, holds: Formula) -> Formula:
        return every(block, *variables, holds=z3.Implies(self.source(block), holds))

    def _each_move(self, *variables: Term, holds: Formula) -> Formula:
        return every(token, *variables, holds=z3.Implies(self.moving(token), holds))


def plan_out_of_place() -> Transition:
    """Begin a relocation to blocks that are leased."""
    plan = _Plan("plan_out_of_place")
    return plan.transition(
        {
            **plan.relocation_guards(),
            "none_is_left_behind": plan.none_left_behind(z3.BoolVal(False)),
            "destinations_are_leased": plan.leased_destinations(),
        }
    )


def plan_in_place() -> Transition:
    """Begin a relocation to the request's own sources."""
    plan = _Plan("plan_in_place")
    stays = plan.destination(S.block(plan.request, token))
    spared = z3.Not(
        z3.And(
            S.live(plan.request, token),
            z3.Not(plan.moving(token)),
            plan.moving(other_token),
            S.block(plan.request, token) == plan.target_block(other_token),
            S.offset(plan.request, token) == plan.target_offset(other_token),
        )
    )
    return plan.transition(
        {
            **plan.relocation_guards(),
            "none_is_left_behind": plan.none_left_behind(stays),
            "destinations_are_sources": every(
                block, holds=z3.Implies(plan.destination(block), plan.source(block))
            ),
            "targets_spare_who_stays": every(token, other_token, holds=spared),
        },
        in_place=True,
    )


def plan_copy_on_write() -> Transition:
    """Begin to copy a shared block, dead tokens and all, to a block of the request's own."""
    plan = _Plan("plan_copy_on_write")
    is_there = z3.And(S.resident(plan.request, token), plan.source(S.block(plan.request, token)))
    return plan.transition(
        {
            "none_is_left_behind": every(token, holds=z3.Implies(is_there, plan.moving(token))),
            "destinations_are_leased": plan.leased_destinations(),
        },
        copy_on_write=True,
    )


def copy() -> Transition:
    """Take note that tokens of a plan are complete at their destinations."""
    make = Parameters("copy")
    flight, tokens = make.constant("flight", Flight), make.predicate("tokens", Token)
    slots, token_at = make.predicate("slots", Block, Offset), make.function("token_at", Block, Offset, Token)
    is_complete, uncopied = make.constant("is_complete", Bool), make.constant("uncopied", Token)
    target = S.target_block(flight, token), S.target_offset(flight, token)
    overwritten = z3.And(
        S.source_block(flight, other_token) == target[0], S.source_offset(flight, other_token) == target[1]
    )

    def is_copied(f: Term, t: Term) -> Formula:
        return z3.Or(S.copied(f, t), z3.And(f == flight, tokens(t)))

    def copied_content(b: Term, o: Term) -> Term:
        moved = token_at(b, o)
        return S.memory(S.source_block(flight, moved), S.source_offset(flight, moved))

    return Transition(
        "copy",
        make.made,
        example=some(token, holds=tokens(token)),
        guards={
            "in_flight": S.in_flight(flight),
            "planned": every(token, holds=z3.Implies(tokens(token), S.moving(flight, token))),
            "once": every(token, holds=z3.Not(z3.And(tokens(token), S.copied(flight, token)))),
            "spares_the_uncopied": every(
                token,
                other_token,
                holds=z3.Not(
                    z3.And(
                        tokens(token),
                        S.moving(flight, other_token),
                        z3.Not(is_copied(flight, other_token)),
                        overwritten,
                    )
                ),
            ),
        },
        facts={
            "slots_of_tokens": every(token, holds=z3.Implies(tokens(token), slots(*target))),
            "tokens_of_slots": every(
                block,
                offset,
                holds=z3.Implies(
                    slots(block, offset),
                    z3.And(
                        tokens(token_at(block, offset)),
                        S.target_block(flight, token_at(block, offset)) == block,
                        S.target_offset(flight, token_at(block, offset)) == offset,
                    ),
                ),
            ),
            "complete": z3.Implies(
                is_complete,
                every(token, holds=z3.Implies(S.moving(flight, token), is_copied(flight, token))),
            ),
            "not_complete": z3.Implies(
                z3.Not(is_complete),
                z3.And(S.moving(flight, uncopied), z3.Not(is_copied(flight, uncopied))),
            ),
        },
        after=replace(
            S,
            copied=is_copied,
            memory=lambda b, o: z3.If(slots(b, o), copied_content(b, o), S.memory(b, o)),
            in_flight=lambda f: z3.And(
                S.in_flight(f),
                z3.Not(z3.And(f == flight, z3.Not(S.present(flight)), is_complete)),
            ),
        ),
    )


def commit() -> Transition:
    """Switch the table to a plan's layout, in one step."""
    make = Parameters("commit")
    flight, reclaimed = make.constant("flight", Flight), make.predicate("reclaimed", Token)
    request = S.owner(flight)

    def is_moved(r: Term, t: Term) -> Formula:
        return z3.And(r == request, S.moving(flight, t))

    is_left = z3.And(
        S.source(flight, S.block(request, token)),
        z3.Not(z3.And(S.in_place(flight), S.destination(flight, S.block(request, token)))),
    )
    is_overwritten = z3.And(
        S.moving(flight, other_token),
        S.target_block(flight, other_token) == S.block(request, token),
        S.target_offset(flight, other_token) == S.offset(request, token),
    )
    return Transition(
        "commit",
        make.made,
        example=some(token, holds=S.moving(flight, token)),
        guards={
            "in_flight": S.in_flight(flight),
            "present_epoch": S.present(flight),
            "all_copied": every(token, holds=z3.Implies(S.moving(flight, token), S.copied(flight, token))),
        },
        facts={
            "reclaimed_are_dead": every(
                token, holds=z3.Not(z3.And(reclaimed(token), S.live(request, token)))
            ),
            "sources_are_left": every(
                token,
                holds=z3.Implies(
                    z3.And(
                        S.resident(request, token),
                        z3.Not(S.live(request, token)),
                        is_left,
                        z3.Not(S.moving(flight, token)),
                    ),
                    reclaimed(token),
                ),
            ),
            "targets_are_taken": every(
                token,
                other_token,
                holds=z3.Implies(
                    z3.And(
                        S.resident(request, token),
                        z3.Not(S.live(request, token)),
                        is_overwritten,
                        token != other_token,
                    ),
                    reclaimed(token),
                ),
            ),
        },
        after=replace(
            S,
            block=lambda r, t: z3.If(is_moved(r, t), S.target_block(flight, t), S.block(r, t)),
            offset=lambda r, t: z3.If(is_moved(r, t), S.target_offset(flight, t), S.offset(r, t)),
            resident=lambda r, t: z3.And(S.resident(r, t), z3.Not(z3.And(r == request, reclaimed(t)))),
            listed=lambda r, b: z3.If(
                r == request,
                z3.Or(z3.And(S.listed(r, b), z3.Not(S.source(flight, b))), S.destination(flight, b)),
                S.listed(r, b),
            ),
            holds=lambda r, b: z3.Or(S.holds(r, b), z3.And(r == request, S.destination(flight, b))),
            leased=lambda r, b: z3.And(
                S.leased(r, b), z3.Not(z3.And(r == request, S.destination(flight, b)))
            ),
            has_plan=lambda r: z3.And(S.has_plan(r), r != request),
            in_flight=lambda f: z3.And(S.in_flight(f), f != flight),
        ),
        request=request,
        epoch=S.plan_epoch(flight),
    )


def cancel() -> Transition:
    """End a plan without a commit."""
    make = Parameters("cancel")
    flight = make.constant("flight", Flight)
    return Transition(
        "cancel",
        make.made,
        example=some(token, holds=S.moving(flight, token)),
        guards={
            "nothing_overwritten": every(
                token,
                holds=z3.Not(
                    z3.And(
                        S.present(flight),
                        S.in_place(flight),
                        S.moving(flight, token),
                        S.copied(flight, token),
                    )
                ),
            ),
        },
        after=replace(
            S,
            has_plan=lambda r: z3.And(
                S.has_plan(r), z3.Not(z3.And(r == S.owner(flight), S.plan_of(r) == flight))
            ),
            in_flight=lambda f: z3.And(S.in_flight(f), f != flight),
        ),
        request=S.owner(flight),
        epoch=S.plan_epoch(flight),
    )
