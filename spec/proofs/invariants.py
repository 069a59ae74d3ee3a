"""The inductive invariant of the relocation model, in parts, and I1, I2, I4, I6 as they follow from it.

I1, I2, I4 and I6 alone are not inductive: an arbitrary state that satisfies them may be one step from
a state that does not. Each part below keeps another one up.

Source: paper 3.5.
"""

from collections.abc import Callable
from dataclasses import dataclass

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.state import (
    Block,
    Flight,
    Formula,
    Offset,
    Request,
    State,
    Step,
    Term,
    Token,
)

request, other_request = z3.Consts("request other_request", Request)
token, other_token = z3.Consts("token other_token", Token)
block, other_block = z3.Consts("block other_block", Block)
offset, other_offset = z3.Consts("offset other_offset", Offset)
flight = z3.Const("flight", Flight)
step, other_step = z3.Consts("step other_step", Step)


@dataclass(frozen=True)
class Statement:
    """Something that is true of every state, for all values of its variables.

    Attributes:
        name: unique.
        covers: ids of the invariants that it serves.
        variables: what it speaks of.
        of: the statement about these variables in a state.

    """

    name: str
    covers: tuple[str, ...]
    variables: tuple[Term, ...]
    of: Callable[[State], Formula]

    def closed(self, state: State) -> Formula:
        """Return the statement with its quantifiers."""
        return z3.ForAll(list(self.variables), self.of(state))


def _requests() -> list[Statement]:
    return [
        Statement(
            "ended_is_not_alive",
            ("I6",),
            (request,),
            lambda s: z3.Not(z3.And(s.alive(request), s.ended(request))),
        ),
        Statement(
            "blocks_are_of_the_alive",
            ("I6",),
            (request, block),
            lambda s: z3.Implies(z3.Or(s.holds(request, block), s.leased(request, block)), s.alive(request)),
        ),
        Statement(
            "tokens_are_of_the_alive",
            ("I2",),
            (request, token),
            lambda s: z3.Implies(s.computed(request, token), s.alive(request)),
        ),
        Statement(
            "forwards_are_of_the_alive",
            ("I2",),
            (step, request),
            lambda s: z3.Implies(z3.And(s.running(step), s.in_forward(step, request)), s.alive(request)),
        ),
    ]


def _table() -> list[Statement]:
    return [
        Statement(
            "live_has_a_slot",
            ("I2",),
            (request, token),
            lambda s: z3.Implies(s.live(request, token), s.resident(request, token)),
        ),
        Statement(
            "resident_was_computed",
            ("I2",),
            (request, token),
            lambda s: z3.Implies(s.resident(request, token), s.computed(request, token)),
        ),
        Statement(
            "evicted_once",
            ("I1",),
            (request, token),
            lambda s: z3.Implies(
                s.computed(request, token),
                s.evictions(request, token) == z3.If(s.live(request, token), 0, 1),
            ),
        ),
        Statement(
            "resident_is_listed",
            ("I2",),
            (request, token),
            lambda s: z3.Implies(s.resident(request, token), s.listed(request, s.block(request, token))),
        ),
        Statement(
            "listed_is_held",
            ("I6",),
            (request, block),
            lambda s: z3.Implies(s.listed(request, block), s.holds(request, block)),
        ),
        Statement(
            "same_slot_same_token",
            ("I2",),
            (request, token, other_request, other_token),
            _same_slot_same_token,
        ),
        Statement(
            "memory_is_kept",
            ("I1",),
            (request, token),
            lambda s: z3.Implies(
                z3.And(s.resident(request, token), z3.Not(_is_overwritten(s, request, token))),
                _holds_content(s, request, token),
            ),
        ),
    ]


def _same_slot_same_token(s: State) -> Formula:
    return z3.Implies(
        z3.And(
            s.resident(request, token),
            s.at(other_request, other_token, s.block(request, token), s.offset(request, token)),
        ),
        z3.And(token == other_token, s.content(request, token) == s.content(other_request, other_token)),
    )


def _holds_content(s: State, request: Term, token: Term) -> Formula:
    return s.memory(s.block(request, token), s.offset(request, token)) == s.content(request, token)


def _is_overwritten(s: State, request: Term, token: Term) -> Formula:
    return s.is_overwritten(request, s.block(request, token), s.offset(request, token))


def _pool() -> list[Statement]:
    return [
        Statement(
            "free_is_nothing_else",
            ("I6",),
            (request, block),
            lambda s: z3.Implies(
                s.free(block),
                z3.Not(z3.Or(s.fenced(block), s.holds(request, block), s.leased(request, block))),
            ),
        ),
        Statement(
            "fenced_is_nothing_else",
            ("I6",),
            (request, block),
            lambda s: z3.Implies(
                s.fenced(block), z3.Not(z3.Or(s.holds(request, block), s.leased(request, block)))
            ),
        ),
        Statement(
            "leased_is_not_held",
            ("I6",),
            (request, other_request, block),
            lambda s: z3.Not(z3.And(s.leased(request, block), s.holds(other_request, block))),
        ),
        Statement(
            "leased_to_one",
            ("I6",),
            (request, other_request, block),
            lambda s: z3.Implies(
                z3.And(s.leased(request, block), s.leased(other_request, block)),
                request == other_request,
            ),
        ),
        Statement("no_block_is_lost", ("I6",), (block,), _no_block_is_lost),
        Statement(
            "lease_has_a_ticket",
            ("I6",),
            (request, block),
            lambda s: z3.Implies(s.leased(request, block), s.in_headroom(s.ticket(block))),
        ),
        Statement(
            "tickets_are_distinct",
            ("I6",),
            (request, block, other_request, other_block),
            lambda s: z3.Implies(
                z3.And(
                    s.leased(request, block),
                    s.leased(other_request, other_block),
                    s.ticket(block) == s.ticket(other_block),
                ),
                block == other_block,
            ),
        ),
        Statement(
            "leased_is_not_cached",
            ("I1",),
            (request, block),
            lambda s: z3.Not(z3.And(s.leased(request, block), s.cached(block))),
        ),
        Statement(
            "cache_is_kept",
            ("I1",),
            (block, offset),
            lambda s: z3.Implies(
                z3.And(s.cached(block), s.is_cached_at(block, offset)),
                s.memory(block, offset) == s.cached_content(block, offset),
            ),
        ),
        Statement("cache_agrees", ("I1", "I2"), (request, token), _cache_agrees),
    ]


def _no_block_is_lost(s: State) -> Formula:
    somebody = z3.Const("somebody", Request)
    is_had = z3.Exists([somebody], z3.Or(s.holds(somebody, block), s.leased(somebody, block)))
    return z3.Or(s.free(block), s.fenced(block), is_had)


def _cache_agrees(s: State) -> Formula:
    place = s.block(request, token), s.offset(request, token)
    return z3.Implies(
        z3.And(s.resident(request, token), s.cached(place[0]), s.is_cached_at(*place)),
        z3.And(s.cached_token(*place) == token, s.cached_content(*place) == s.content(request, token)),
    )


def _plans() -> list[Statement]:
    def planned(name: str, *variables: Term, covers: tuple[str, ...] = ("I4",)) -> Callable[..., Statement]:
        """State something of the plan in flight of a request."""

        def make(of: Callable[[State, Term], Formula]) -> Statement:
            return Statement(
                name,
                covers,
                (request, *variables),
                lambda s: z3.Implies(s.has_plan(request), of(s, s.plan_of(request))),
            )

        return make

    return [
        planned("plan_is_in_flight")(
            lambda s, f: z3.And(
                s.in_flight(f),
                s.owner(f) == request,
                s.plan_epoch(f) == s.epoch(request),
                s.alive(request),
            )
        ),
        Statement(
            "one_plan_each",
            ("I4",),
            (flight,),
            lambda s: z3.Implies(
                z3.And(s.in_flight(flight), s.present(flight)),
                z3.And(s.has_plan(s.owner(flight)), s.plan_of(s.owner(flight)) == flight),
            ),
        ),
        Statement(
            "no_plan_of_an_epoch_to_come",
            ("I4",),
            (flight,),
            lambda s: z3.Implies(
                s.in_flight(flight),
                z3.And(
                    s.plan_epoch(flight) <= s.epoch(s.owner(flight)),
                    z3.Or(s.alive(s.owner(flight)), s.ended(s.owner(flight))),
                ),
            ),
        ),
        planned("source_is_listed", block)(
            lambda s, f: z3.Implies(s.source(f, block), s.listed(request, block))
        ),
        planned("source_is_private", block, other_request)(
            lambda s, f: z3.Implies(
                z3.And(s.source(f, block), z3.Not(s.copy_on_write(f))),
                z3.And(
                    z3.Not(s.cached(block)),
                    z3.Implies(s.holds(other_request, block), other_request == request),
                ),
            )
        ),
        planned("destination_is_leased_or_a_source", block)(
            lambda s, f: z3.Implies(
                s.destination(f, block),
                z3.If(s.in_place(f), s.source(f, block), s.leased(request, block)),
            )
        ),
        planned("copy_on_write_is_not_in_place")(
            lambda s, f: z3.Not(z3.And(s.in_place(f), s.copy_on_write(f)))
        ),
        planned("moves_start_in_sources", token)(
            lambda s, f: z3.Implies(
                s.moving(f, token),
                z3.And(s.computed(request, token), s.source(f, s.source_block(f, token))),
            )
        ),
        planned("moves_start_where_the_token_is", token)(
            lambda s, f: z3.Implies(
                z3.And(s.moving(f, token), s.resident(request, token)),
                s.at(request, token, s.source_block(f, token), s.source_offset(f, token)),
            )
        ),
        planned("live_tokens_move", token)(
            lambda s, f: z3.Implies(
                z3.And(s.moving(f, token), z3.Not(s.copy_on_write(f))), s.live(request, token)
            )
        ),
        planned("none_is_left_behind", token)(
            lambda s, f: z3.Implies(
                z3.And(s.live(request, token), s.source(f, s.block(request, token))),
                z3.Or(
                    s.moving(f, token),
                    z3.And(s.in_place(f), s.destination(f, s.block(request, token))),
                ),
            )
        ),
        planned("targets_are_in_destinations", token)(
            lambda s, f: z3.Implies(s.moving(f, token), s.destination(f, s.target_block(f, token)))
        ),
        planned("targets_are_distinct", token)(
            lambda s, f: z3.Implies(
                s.moving(f, token),
                s.moved_to(f, s.target_block(f, token), s.target_offset(f, token)) == token,
            )
        ),
        planned("targets_spare_who_stays", token, other_token)(
            lambda s, f: z3.Implies(
                z3.And(
                    s.live(request, token),
                    z3.Not(s.moving(f, token)),
                    s.moving(f, other_token),
                    s.target_block(f, other_token) == s.block(request, token),
                    s.target_offset(f, other_token) == s.offset(request, token),
                ),
                z3.Not(s.in_place(f)),
            )
        ),
        planned("uncopied_is_spared", token, covers=("I1",))(
            lambda s, f: z3.Implies(
                z3.And(s.moving(f, token), z3.Not(s.copied(f, token)), s.resident(request, token)),
                z3.Not(_is_overwritten(s, request, token)),
            )
        ),
        planned("copied_is_at_its_target", token, covers=("I1",))(
            lambda s, f: z3.Implies(
                z3.And(s.moving(f, token), s.copied(f, token), s.resident(request, token)),
                s.memory(s.target_block(f, token), s.target_offset(f, token)) == s.content(request, token),
            )
        ),
        planned("each_destination_is_paid_for", block)(
            lambda s, f: z3.Implies(
                z3.Not(s.copy_on_write(f)),
                z3.And(
                    s.source(f, s.gained(f)),
                    z3.Implies(
                        s.destination(f, block),
                        z3.And(s.source(f, s.paid_by(f, block)), s.paid_by(f, block) != s.gained(f)),
                    ),
                ),
            )
        ),
        planned("no_source_pays_twice", block, other_block)(
            lambda s, f: z3.Implies(
                z3.And(
                    z3.Not(s.copy_on_write(f)),
                    s.destination(f, block),
                    s.destination(f, other_block),
                    s.paid_by(f, block) == s.paid_by(f, other_block),
                ),
                block == other_block,
            )
        ),
        Statement(
            "late_copies_are_fenced",
            ("I1", "I6"),
            (flight, token),
            lambda s: z3.Implies(
                z3.And(s.orphan(flight), s.moving(flight, token), z3.Not(s.copied(flight, token))),
                z3.And(
                    s.fenced(s.target_block(flight, token)),
                    s.waits_for_copies(s.target_block(flight, token), flight),
                    z3.Not(s.cached(s.target_block(flight, token))),
                ),
            ),
        ),
    ]


def _forwards() -> list[Statement]:
    def writing(name: str, *variables: Term, covers: tuple[str, ...] = ("I2",)) -> Callable[..., Statement]:
        """State something of each slot that a forward has still to write for a request."""

        def make(of: Callable[[State], Formula]) -> Statement:
            return Statement(
                name,
                covers,
                (step, request, block, offset, *variables),
                lambda s: z3.Implies(
                    z3.And(
                        s.running(step),
                        s.in_forward(step, request),
                        s.will_write(step, request, block, offset),
                    ),
                    of(s),
                ),
            )

        return make

    return [
        Statement(
            "one_forward_runs",
            ("I5",),
            (step, other_step),
            lambda s: z3.Implies(z3.And(s.running(step), s.running(other_step)), step == other_step),
        ),
        writing("writes_are_listed")(lambda s: s.listed(request, block)),
        writing("writes_are_private", other_request, covers=("I1",))(
            lambda s: z3.And(
                z3.Not(s.cached(block)),
                z3.Implies(s.holds(other_request, block), other_request == request),
            )
        ),
        writing("written_tokens_are_new")(
            lambda s: z3.Not(s.computed(request, s.written_token(step, request, block, offset)))
        ),
        writing("written_slots_are_empty", token)(lambda s: z3.Not(s.at(request, token, block, offset))),
        writing("writes_or_recycles")(lambda s: z3.Not(s.will_recycle(step, request))),
        writing("a_token_is_written_once", other_block, other_offset)(
            lambda s: z3.Implies(
                z3.And(
                    s.will_write(step, request, other_block, other_offset),
                    s.written_token(step, request, block, offset)
                    == s.written_token(step, request, other_block, other_offset),
                ),
                z3.And(block == other_block, offset == other_offset),
            )
        ),
        writing("writes_are_clear_of_the_plan", covers=("I4",))(
            lambda s: z3.Implies(
                s.has_plan(request),
                z3.Not(
                    z3.Or(
                        s.source(s.plan_of(request), block),
                        s.destination(s.plan_of(request), block),
                    )
                ),
            )
        ),
        Statement(
            "late_writes_are_fenced",
            ("I1", "I6"),
            (step, block, offset),
            lambda s: z3.Implies(
                z3.And(s.running(step), s.zombie_write(step, block, offset)),
                z3.And(s.fenced(block), s.waits_for_step(block, step), z3.Not(s.cached(block))),
            ),
        ),
    ]


def parts() -> list[Statement]:
    """Return the parts of the inductive invariant."""
    return [*_requests(), *_table(), *_pool(), *_plans(), *_forwards()]


def closed(state: State) -> dict[str, Formula]:
    """Return the inductive invariant of a state, its parts by name."""
    return {part.name: part.closed(state) for part in parts()}
