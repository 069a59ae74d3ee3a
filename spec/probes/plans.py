"""What a plan may be, and when a request may be planned for or evict."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Make, Probe, State, on_event
from vtoken_ref.events import Abort, Alloc, Event, Evict, Lease, Move, Strategy, Uncache
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _packed()
    yield from _indirect()
    yield from _protected()
    yield from _copy_on_write()
    yield from _when()
    yield from _evictions()


def _in_place(hand: Hand) -> Event:
    return hand.plan("a")


def _out(hand: Hand) -> Event:
    return hand.plan("a", "out_of_place", (8,))


def _with(plan: Any, **changes: Any) -> Make:
    return lambda hand: replace(plan(hand), **changes)


# The packed view.


def _packed() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, plan: Make = _in_place, **changes: Any) -> Probe:
        return on_event(rule, f"packed-{case}", states.scattered, _with(plan, **changes), plan)

    yield refused(Rule.PLAN_SOURCES, "unwritten", source_blocks=(0, 1, 3))
    yield refused(Rule.PLAN_SOURCES, "of-another", source_blocks=(0, 1, 2))
    yield refused(Rule.PLAN_SOURCES, "order", source_blocks=(1, 0))
    yield refused(Rule.PLAN_SOURCES, "twice", source_blocks=(0, 0, 1))
    yield refused(Rule.PLAN_SOURCES, "none", source_blocks=())
    yield refused(Rule.PLAN_NO_GAIN, "as-many", destination_blocks=(0, 1))
    yield refused(Rule.PLAN_DESTINATIONS, "none", destination_blocks=())
    yield refused(Rule.PLAN_DESTINATIONS, "not-first", destination_blocks=(1,))
    yield refused(Rule.PLAN_DESTINATIONS, "lease-in-place", destination_blocks=(8,))
    yield refused(Rule.PLAN_DESTINATIONS, "not-leased", _out, destination_blocks=(7,))
    yield refused(Rule.PLAN_DESTINATIONS, "own-out-of-place", strategy="out_of_place")
    yield refused(Rule.PLAN_TOKEN_LOST, "in-place", moves=())
    yield refused(Rule.PLAN_TOKEN_LOST, "out-of-place", _out, moves=(Move(0, 0, 32),))
    yield refused(Rule.PLAN_ORDER, "hole", moves=(Move(5, 5, 2),))
    yield refused(Rule.PLAN_ORDER, "moved-in-place", moves=(Move(0, 0, 0), Move(5, 5, 1)))
    yield refused(Rule.PLAN_ORDER, "swapped", _out, moves=(Move(0, 0, 33), Move(5, 5, 32)))
    yield refused(Rule.STALE_SOURCE, "plan", moves=(Move(5, 4, 1),))
    yield refused(Rule.DEAD_MOVE, "plan", moves=(Move(1, 1, 1),))
    yield refused(Rule.UNKNOWN_TOKEN, "plan", moves=(Move(9, 5, 1),))
    yield refused(Rule.SLOT_USED_TWICE, "plan-token", moves=(Move(5, 5, 1), Move(5, 5, 1)))
    yield refused(Rule.SLOT_USED_TWICE, "plan-place", _out, moves=(Move(0, 0, 32), Move(5, 5, 32)))
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "packed-too-many",
        states.sparse,
        _with(_in_place, destination_blocks=(0, 1)),
        _in_place,
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "packed-too-many-leased",
        lambda: states.sparse().apply(Lease("a", 0, (8, 9))),
        _with(_out, destination_blocks=(8, 9)),
        _out,
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "packed-lease-of-another",
        lambda: states.scattered().apply(Lease("b", 0, (7,))),
        _with(_out, destination_blocks=(7,)),
        _out,
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "packed-twice",
        _two_needed,
        lambda h: replace(h.plan("a", "out_of_place", (8, 9)), destination_blocks=(8, 8)),
        lambda h: h.plan("a", "out_of_place", (8, 9)),
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "packed-half-leased",
        _two_needed,
        lambda h: h.plan_of("a", (0, 1, 2), (8, 7)),
        lambda h: h.plan_of("a", (0, 1, 2), (8, 9)),
    )
    yield on_event(
        Rule.PLAN_PACKED,
        "middle",
        states.holed,
        lambda h: h.plan_of("a", (0, 1), (0, 1), "in_place"),
        _in_place,
    )
    yield on_event(
        Rule.PLAN_PACKED, "gap", states.holed, lambda h: h.plan_of("a", (0, 2), (0, 2), "in_place"), _in_place
    )
    yield on_event(
        Rule.PLAN_SOURCES,
        "packed-dead",
        _dead_end,
        lambda h: h.plan_of("a", (1, 2), (1,), "in_place"),
        (states.holed, _in_place),
    )


def _two_needed() -> Hand:
    """Return a run in which eight tokens of a are live in three blocks; 8 and 9 are leased to a."""
    hand = Hand().admit("a", 12, 0, 1, 2).forward(a=12)
    return hand.apply(Evict("a", 0, (1, 5, 9, 10)), Lease("a", 0, (8, 9)))


def _dead_end() -> Hand:
    """Return a run in which the last two of a's three blocks are wholly dead."""
    return Hand().admit("a", 12, 0, 1, 2).forward(a=12).apply(Evict("a", 0, tuple(range(4, 12))))


# The indirect view.


def _indirect() -> Iterator[Probe]:
    def lease(hand: Hand) -> Event:
        return hand.plan("a", "out_of_place", (3,))

    yield on_event(
        Rule.PLAN_SOURCES,
        "indirect-dead",
        _indirect_dead,
        lambda h: h.plan_of("a", (0, 1), (3,)),
        lambda h: h.plan_of("a", (0, 2), (3,)),
        (states.sparse, _in_place),
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS, "indirect", states.indirect, _with(lease, destination_blocks=(5,)), lease
    )
    yield on_event(
        Rule.PLAN_NO_GAIN,
        "indirect",
        states.indirect,
        lambda h: h.plan_of("a", (0,), (3,)),
        lambda h: h.plan_of("a", (0, 1), (3,)),
        lambda h: h.plan_of("a", (0, 1, 2), (3, 4)),
        lambda h: h.plan_of("a", (0, 1), (0,), "in_place"),
    )


def _indirect_dead() -> Hand:
    """Return an indirect run in which block 1 of a is wholly dead, 0 and 2 are partly live."""
    hand = Hand(view="indirect").admit("a", 9, 0, 1, 2).forward(a=9)
    return hand.apply(Evict("a", 0, (1, 2, 4, 5, 6, 7)), Lease("a", 0, (3,)))


# Shared and cached blocks.


def _protected() -> Iterator[Probe]:
    def plan(hand: Hand) -> Event:
        return hand.plan_of("a", (0, 1, 2), (0,), "in_place")

    yield on_event(
        Rule.PLAN_SHARED, "cached", _sparse(states.cached), plan, lambda h: (Uncache((0, 1)), plan(h))
    )
    yield on_event(
        Rule.PLAN_SHARED,
        "shared",
        _sparse(states.shared_only),
        plan,
        lambda h: (Abort("b", 0), plan(h)),
    )


def _sparse(state: State) -> State:
    """Return the state with one live token of a in each of its three blocks."""
    return lambda: state().apply(Evict("a", 0, (1, 2, 3, 5, 6, 7)))


def _copy_on_write() -> Iterator[Probe]:
    def legal(hand: Hand) -> Event:
        return hand.copy_on_write("b", 2, 8)

    def refused(rule: Rule, case: str, **changes: Any) -> Probe:
        return on_event(rule, f"on-write-{case}", _to_copy, _with(legal, **changes), legal)

    yield refused(Rule.PLAN_SOURCES, "two", source_blocks=(1, 2))
    yield refused(Rule.PLAN_SOURCES, "none", source_blocks=())
    yield refused(Rule.PLAN_SOURCES, "unknown", source_blocks=(11,))
    yield refused(Rule.PLAN_DESTINATIONS, "two", destination_blocks=(8, 9))
    yield refused(Rule.PLAN_DESTINATIONS, "none", destination_blocks=())
    yield refused(Rule.PLAN_DESTINATIONS, "not-leased", destination_blocks=(7,))
    yield refused(Rule.PLAN_TOKEN_LOST, "none", moves=())
    yield refused(Rule.PLAN_ORDER, "other-offset", moves=(Move(8, 8, 33),))
    yield refused(Rule.STALE_SOURCE, "elsewhere", moves=(Move(8, 9, 32),))
    yield on_event(
        Rule.PLAN_SOURCES,
        "on-write-dead",
        lambda: _to_copy().apply(Evict("b", 0, (8,))),
        legal,
        lambda h: h.copy_on_write("b", 1, 8),
    )
    yield on_event(
        Rule.PLAN_SOURCES,
        "on-write-private",
        lambda: states.cached().apply(Lease("a", 0, (8,))),
        lambda h: h.copy_on_write("a", 2, 8),
        lambda h: h.copy_on_write("a", 1, 8),
    )
    yield on_event(
        Rule.PLAN_TOKEN_LOST,
        "on-write-dead-token",
        lambda: _to_copy().apply(Evict("b", 0, (5,))),
        lambda h: _without_token(h.copy_on_write("b", 1, 8), 5),
        lambda h: h.copy_on_write("b", 1, 8),
    )


def _to_copy() -> Hand:
    """Return a run in which b has to write into block 2, which a has too; 8 and 9 are leased to b."""
    return states.shared_partly().apply(Lease("b", 0, (9,)))


def _without_token(plan: Any, token_id: int) -> Event:
    moves = tuple(move for move in plan.moves if move.token_id != token_id)
    event: Event = replace(plan, moves=moves)
    return event


# When a request may be planned for.


def _when() -> Iterator[Probe]:
    yield on_event(
        Rule.PLAN_OVERLAP, "two", states.planned, _in_place, lambda h: (h.cancel("a"), h.plan("a"))
    )
    yield on_event(
        Rule.PLAN_SOURCES,
        "nothing-written",
        states.admitted,
        lambda h: states.scattered().plan("a"),
        (states.scattered, _in_place),
    )
    forbidden: dict[Strategy, tuple[Make, tuple[Make, ...]]] = {
        "in_place": (_out, (_in_place,)),
        "out_of_place": (_in_place, (_out,)),
        "recycle": (_out, (_in_place,)),
    }
    for strategy, (plan, legal) in forbidden.items():
        yield on_event(Rule.PLAN_STRATEGY, strategy, _scattered_for(strategy), plan, *legal)
    yield on_event(Rule.LAYOUT_DURING_FORWARD, "plan-packed", _full_block_running, _out, (_full_block, _out))
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "plan-in-place",
        _indirect_running,
        lambda h: h.plan_of("a", (0, 1), (0,), "in_place"),
        lambda h: h.plan_of("a", (0, 1), (3,)),
    )
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "plan-recycling",
        _indirect_recycling,
        lambda h: h.plan_of("a", (0, 1), (3,)),
        (_indirect_recycled, lambda h: h.plan_of("a", (0, 1), (3,))),
    )
    for state in (_indirect_running, _indirect_written):
        yield on_event(
            Rule.LAYOUT_DURING_FORWARD,
            f"plan-{state.__name__.rsplit('_', 1)[-1]}",
            state,
            lambda h: h.plan_of("a", (0, 2), (3,)),
            lambda h: h.plan_of("a", (0, 1), (3,)),
        )


def _scattered_for(strategy: Strategy) -> State:
    def state() -> Hand:
        hand = Hand(strategy=strategy).admit("a", 6, 0, 1).forward(a=6)
        return hand.apply(Evict("a", 0, (1, 2, 3, 4)), Lease("a", 0, (8, 9)))

    return state


def _full_block() -> Hand:
    """Return a run in which a's two blocks are full, a third is empty, and 8 is leased to a."""
    hand = Hand().admit("a", 8, 0, 1).forward(a=8)
    return hand.apply(Evict("a", 0, (1, 2, 3, 4)), Lease("a", 0, (8,)), Alloc("a", (2,)))


def _full_block_running() -> Hand:
    hand = _full_block()
    return hand.apply(hand.begin(a=1))


def _indirect_running() -> Hand:
    """Return an indirect run in which a forward is to write into block 2 of a."""
    hand = states.indirect()
    return hand.apply(hand.begin(a=1))


def _indirect_recycling() -> Hand:
    """Return an indirect run in which a forward is to write over a dead token, in any block of a."""
    hand = states.indirect().forward(a=1).apply(Evict("a", 0, (8,)))
    return hand.apply(hand.recycle("a"))


def _indirect_recycled() -> Hand:
    hand = _indirect_recycling()
    return hand.apply(hand.sync("a", slots=(8,)))


def _indirect_written() -> Hand:
    return states.indirect().write(a=1)


# Evictions.


def _evictions() -> Iterator[Probe]:
    def one(hand: Hand) -> Event:
        return hand.evict("a", 0)

    def none(hand: Hand) -> Event:
        return hand.evict("a")

    yield on_event(Rule.UNKNOWN_TOKEN, "evict-later", states.running, lambda h: h.evict("a", 6), one)
    yield on_event(Rule.UNKNOWN_TOKEN, "evict-below", states.running, lambda h: h.evict("a", 0, -1), one)
    yield on_event(Rule.UNKNOWN_TOKEN, "evict-first", states.admitted, one, none)
    yield on_event(Rule.EVICTED_TWICE, "at-once", states.running, lambda h: h.evict("a", 0, 0), one)
    yield on_event(Rule.EVICTED_TWICE, "dead", states.scattered, lambda h: h.evict("a", 0, 1), one)
    yield on_event(Rule.PROTECTED_TOKEN, "in-forward", states.decoding, one, none, (states.running, one))
    yield on_event(
        Rule.PROTECTED_TOKEN,
        "moving",
        states.indirect_planned,
        lambda h: h.evict("a", 5),
        lambda h: h.evict("a", 8),
    )
    yield on_event(
        Rule.PROTECTED_TOKEN,
        "staying-in-source",
        states.planned,
        one,
        (states.committed, one),
    )
