"""I1, I2, I4 and I6 in the words of the relocation model, and what every event leaves alone.

Source: paper 3.5.
"""

from collections.abc import Callable
from dataclasses import replace

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.invariants import (
    Statement,
    block,
    flight,
    other_block,
    other_request,
    other_token,
    request,
    step,
    token,
)
from spec.proofs.state import BEFORE, Flight, Formula, State, Term
from spec.proofs.transition import Transition

other_flight = z3.Const("other_flight", Flight)


def of_states() -> list[Statement]:
    """Return what follows of every state from the inductive invariant."""
    return [
        Statement("I1.content_is_in_memory", ("I1",), (request, token), _content_is_in_memory),
        Statement(
            "I2.one_slot",
            ("I2",),
            (request, token),
            lambda s: z3.Implies(
                s.live(request, token),
                z3.And(
                    s.resident(request, token),
                    s.listed(request, s.block(request, token)),
                    s.holds(request, s.block(request, token)),
                ),
            ),
        ),
        Statement(
            "I2.one_token_in_a_slot",
            ("I2",),
            (request, token, other_request, other_token),
            _one_token_in_a_slot,
        ),
        Statement(
            "I4.plans_do_not_overlap",
            ("I4",),
            (flight, other_flight),
            lambda s: z3.Implies(
                z3.And(
                    s.in_flight(flight),
                    s.present(flight),
                    s.in_flight(other_flight),
                    s.present(other_flight),
                    s.owner(flight) == s.owner(other_flight),
                ),
                flight == other_flight,
            ),
        ),
        Statement("I4.blocks_are_its_own", ("I4",), (flight, block, other_flight), _blocks_are_its_own),
        Statement("I4.shared_is_no_source", ("I4",), (flight, block, other_request), _shared_is_no_source),
        Statement("I4.snapshot_is_consistent", ("I4",), (flight, token), _snapshot_is_consistent),
        Statement("I6.in_one_state", ("I6",), (block, request, other_request), _is_in_one_state),
        Statement(
            "I6.headroom_is_bounded",
            ("I6",),
            (block, other_block, request, other_request),
            lambda s: z3.And(
                z3.Implies(s.leased(request, block), s.in_headroom(s.ticket(block))),
                z3.Implies(
                    z3.And(
                        s.leased(request, block), s.leased(other_request, other_block), block != other_block
                    ),
                    s.ticket(block) != s.ticket(other_block),
                ),
            ),
        ),
    ]


def _content_is_in_memory(s: State) -> Formula:
    """The KV of a live token is at its old slot until it is copied, and then at the new one.

    Out of place it is at both.
    """
    plan = s.plan_of(request)
    is_copied = z3.And(s.has_plan(request), s.moving(plan, token), s.copied(plan, token))
    at_source = s.memory(s.block(request, token), s.offset(request, token)) == s.content(request, token)
    at_target = s.memory(s.target_block(plan, token), s.target_offset(plan, token)) == s.content(
        request, token
    )
    return z3.Implies(
        s.live(request, token),
        z3.And(
            z3.Implies(is_copied, at_target),
            z3.Implies(z3.Not(z3.And(is_copied, s.in_place(plan))), at_source),
        ),
    )


def _one_token_in_a_slot(s: State) -> Formula:
    """A slot serves one token; of several requests that share it, the same one, with the same content."""
    return z3.Implies(
        z3.And(
            s.live(request, token),
            s.live(other_request, other_token),
            s.block(request, token) == s.block(other_request, other_token),
            s.offset(request, token) == s.offset(other_request, other_token),
        ),
        z3.And(
            token == other_token,
            s.content(request, token) == s.content(other_request, other_token),
            s.holds(request, s.block(request, token)),
            s.holds(other_request, s.block(request, token)),
        ),
    )


def _is_active(s: State, plan: Term) -> Formula:
    return z3.And(s.in_flight(plan), s.present(plan))


def _blocks_are_its_own(s: State) -> Formula:
    """Two plans in flight have no destination in common, nor is one's destination the other's source."""
    return z3.Implies(
        z3.And(
            _is_active(s, flight),
            _is_active(s, other_flight),
            s.destination(flight, block),
            z3.Or(
                s.destination(other_flight, block),
                z3.And(s.source(other_flight, block), z3.Not(s.copy_on_write(other_flight))),
            ),
        ),
        flight == other_flight,
    )


def _shared_is_no_source(s: State) -> Formula:
    """A block that a relocation empties is neither cached nor anybody else's."""
    return z3.Implies(
        z3.And(_is_active(s, flight), s.source(flight, block), z3.Not(s.copy_on_write(flight))),
        z3.And(
            z3.Not(s.cached(block)),
            s.holds(s.owner(flight), block),
            z3.Implies(s.holds(other_request, block), other_request == s.owner(flight)),
        ),
    )


def _snapshot_is_consistent(s: State) -> Formula:
    """What is planned is what is: no token has moved, died or appeared since in the sources."""
    owner = s.owner(flight)
    stays = z3.And(s.in_place(flight), s.destination(flight, s.block(owner, token)))
    is_as_planned = z3.And(
        s.block(owner, token) == s.source_block(flight, token),
        s.offset(owner, token) == s.source_offset(flight, token),
    )
    return z3.Implies(
        z3.And(_is_active(s, flight), z3.Not(s.copy_on_write(flight))),
        z3.And(
            z3.Implies(s.moving(flight, token), z3.And(s.live(owner, token), is_as_planned)),
            z3.Implies(
                z3.And(s.live(owner, token), s.source(flight, s.block(owner, token))),
                z3.Or(s.moving(flight, token), stays),
            ),
        ),
    )


def _is_in_one_state(s: State) -> Formula:
    """A block is free, held, leased or fenced, and one of them only."""
    somebody = other_request
    is_held = z3.Exists([somebody], s.holds(somebody, block))
    is_leased = z3.Exists([somebody], s.leased(somebody, block))
    states = [s.free(block), s.fenced(block), is_held, is_leased]
    return z3.And(z3.Or(*states), z3.AtMost(*states, 1))


# What an event leaves alone.


def strictly_fewer_blocks(commit: Transition) -> Formula:
    """After a commit the request lists fewer blocks, if the plan was to free some.

    Each block of the list is matched with one of the list before, no two with the same, and one of
    the list before is left over.
    """
    plan = commit.parameters["flight"]
    owner, after = BEFORE.owner(plan), commit.after

    def match(listed: Term) -> Term:
        return z3.If(BEFORE.destination(plan, listed), BEFORE.paid_by(plan, listed), listed)

    left_over = BEFORE.gained(plan)
    return z3.Implies(
        z3.Not(BEFORE.copy_on_write(plan)),
        z3.And(
            BEFORE.listed(owner, left_over),
            z3.Implies(
                after.listed(owner, block),
                z3.And(
                    BEFORE.listed(owner, match(block)),
                    match(block) != left_over,
                    z3.Implies(
                        z3.And(after.listed(owner, other_block), match(block) == match(other_block)),
                        block == other_block,
                    ),
                ),
            ),
        ),
    )


def of_event(event: Transition) -> list[Statement]:
    """Return what is true of an event, whatever the state was."""

    def state(
        name: str, covers: tuple[str, ...], of: Callable[[Transition], Formula], *variables: Term
    ) -> Statement:
        def in_state(after: State) -> Formula:
            return of(replace(event, after=after))

        return Statement(f"step.{event.name}.{name}", covers, variables, in_state)

    statements = [
        state("only_its_epoch", ("I8", "VT-REQ-002"), only_its_epoch, request, token, block),
        state("tokens_are_kept", ("I1",), tokens_are_kept, request, token),
        state("forward_is_undisturbed", ("I5",), forward_is_undisturbed, step, request, token, block),
    ]
    if event.name == "commit":
        statements.append(state("strictly_fewer_blocks", ("I4",), strictly_fewer_blocks, block, other_block))
    return statements


EPOCH_ENDS = ("preempt", "finish")
RELOCATIONS = (
    "plan_out_of_place",
    "plan_in_place",
    "plan_copy_on_write",
    "copy",
    "commit",
    "cancel",
    "release",
)


def only_its_epoch(event: Transition) -> Formula:
    """An event changes only the request that it is of, and only if it is of its present epoch.

    Nor does one of another epoch change what is cached.
    """
    names = ("computed", "resident", "live", "evictions", "block", "offset", "content")
    unchanged = [
        getattr(event.after, name)(request, token) == getattr(BEFORE, name)(request, token) for name in names
    ]
    unchanged += [
        getattr(event.after, name)(request, block) == getattr(BEFORE, name)(request, block)
        for name in ("listed", "holds", "leased")
    ]
    unchanged += [
        getattr(event.after, name)(request) == getattr(BEFORE, name)(request)
        for name in ("alive", "ended", "epoch", "has_plan")
    ]
    is_meant = z3.BoolVal(False) if event.request is None else request == event.request
    if event.epoch is None:
        return z3.Or(is_meant, z3.And(*unchanged))
    is_present = z3.And(BEFORE.alive(event.request), event.epoch == BEFORE.epoch(event.request))
    caches_nothing = event.after.cached(block) == BEFORE.cached(block)
    return z3.And(z3.Or(z3.And(is_meant, is_present), z3.And(*unchanged)), z3.Or(is_present, caches_nothing))


def tokens_are_kept(event: Transition) -> Formula:
    """No event but an eviction and the end of an epoch makes a live token dead, none brings one back.

    No event changes what was written for a token, and no token id is used again in an epoch.
    """
    after = event.after
    is_over = request == event.request if event.name in EPOCH_ENDS else z3.BoolVal(False)
    is_named = is_over
    if event.name == "evict":
        is_named = z3.And(request == event.request, event.parameters["tokens"](token))
    kept = z3.And(
        after.computed(request, token),
        after.content(request, token) == BEFORE.content(request, token),
        after.evictions(request, token) >= BEFORE.evictions(request, token),
        z3.Or(is_named, z3.Not(BEFORE.live(request, token)), after.live(request, token)),
        z3.Implies(after.live(request, token), BEFORE.live(request, token)),
    )
    none_appears = z3.BoolVal(True)
    if event.name in RELOCATIONS:
        none_appears = z3.Implies(after.computed(request, token), BEFORE.computed(request, token))
    return z3.Or(is_over, z3.And(z3.Implies(BEFORE.computed(request, token), kept), none_appears))


def forward_is_undisturbed(event: Transition) -> Formula:
    """Of a request in a running forward no token is evicted and no listed block is given up.

    When its epoch ends, its blocks are not free before the forward has ended.
    """
    is_over = request == event.request if event.name in EPOCH_ENDS else z3.BoolVal(False)
    reads = z3.And(BEFORE.running(step), BEFORE.in_forward(step, request), event.after.running(step))
    is_listed = z3.And(BEFORE.listed(request, block), event.name != "commit")
    return z3.Implies(
        reads,
        z3.And(
            z3.Implies(BEFORE.listed(request, block), z3.Not(event.after.free(block))),
            z3.Implies(
                z3.Not(is_over),
                z3.And(
                    z3.Implies(BEFORE.live(request, token), event.after.live(request, token)),
                    z3.Implies(is_listed, event.after.listed(request, block)),
                    z3.Implies(BEFORE.listed(request, block), event.after.holds(request, block)),
                ),
            ),
        ),
    )
