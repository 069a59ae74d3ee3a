"""Who waits, who gets leases, and when a relocation may be attempted at all."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Call, Make, Probe, on_event
from vtoken_ref.events import Abort, Alloc, Defer, Event, Evict, Free, Lease, Preempt, Release
from vtoken_ref.reclaim import ReclaimConfig, parse_theta_f
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _waiting()
    yield from _deferring()
    yield from _attempts()
    yield from _need()
    for text in ("-1/4", "1", "5/4"):
        yield Probe(
            f"ValueError/theta-f-{text}",
            ValueError,
            object,
            _parses(text),
            (_parses("0"), _parses("3/4")),
        )


def _parses(text: str) -> Callable[[object], Call]:
    return lambda _: partial(parse_theta_f, text)


def _plan(hand: Hand) -> Event:
    return hand.plan("a")


def _plan_b(hand: Hand) -> Event:
    return hand.plan("b")


# Who waits.


def _waiting() -> Iterator[Probe]:
    def alloc(hand: Hand) -> Event:
        return Alloc("c", (3,))

    yield on_event(
        Rule.BACKPRESSURE,
        "alloc",
        _deferred,
        alloc,
        (_not_deferred, alloc),
        lambda h: Alloc("b", (3,)),
        lambda h: (Lease("a", 0, (8,)), Lease("b", 0, (9, 10)), alloc(h)),
        lambda h: (Abort("a", 0), Preempt("b", 0), alloc(h)),
    )
    yield on_event(
        Rule.BACKPRESSURE,
        "alloc-short-lease",
        lambda: _deferred().apply(Lease("a", 0, (8,)), Lease("b", 0, (9,))),
        alloc,
        lambda h: (Lease("b", 0, (10,)), alloc(h)),
    )
    yield on_event(
        Rule.BACKPRESSURE,
        "planned-since",
        _scattered_and_deferred,
        alloc,
        lambda h: (h.plan("a"), alloc(h)),
    )
    yield on_event(
        Rule.BACKPRESSURE,
        "share",
        lambda: states.cached().apply(Defer("a", 0, 1)),
        lambda h: h.share("b", (0, 1), 8),
        (states.cached, lambda h: h.share("b", (0, 1), 8)),
    )
    yield on_event(
        Rule.LEASE_ORDER,
        "later",
        _deferred,
        lambda h: Lease("b", 0, (8,)),
        lambda h: (Lease("a", 0, (8,)), Lease("b", 0, (9,))),
        (_not_deferred, lambda h: Lease("b", 0, (8,))),
    )
    yield on_event(
        Rule.LEASE_ORDER,
        "not-waiting",
        _deferred,
        lambda h: Lease("c", 0, (8,)),
        (_not_deferred, lambda h: Lease("c", 0, (8,))),
    )


def _not_deferred() -> Hand:
    """Return a run in which a and b run and c has just entered."""
    return states.running().admit("c", 4)


def _deferred() -> Hand:
    """Return one in which a plan of a waits for one destination, then one of b for two."""
    return _not_deferred().apply(Defer("a", 0, 1), Defer("b", 0, 2))


def _scattered_and_deferred() -> Hand:
    """Return a run in which a has two destinations and waits for three; c has just entered."""
    return states.scattered().admit("c", 4).apply(Defer("a", 0, 3))


def _deferring() -> Iterator[Probe]:
    yield on_event(
        Rule.DEFER,
        "plan-in-flight",
        states.planned,
        lambda h: Defer("a", 0, 3),
        lambda h: (h.cancel("a"), Defer("a", 0, 3)),
    )
    yield on_event(
        Rule.DEFER,
        "twice",
        _deferred,
        lambda h: Defer("a", 0, 2),
        (_not_deferred, lambda h: Defer("a", 0, 2)),
    )
    for num_blocks in (0, 1, 2, 4):
        yield on_event(
            Rule.DEFER,
            f"of-{num_blocks}",
            states.scattered,
            _defer(num_blocks),
            _defer(3),
        )


def _defer(num_blocks: int) -> Make:
    return lambda hand: Defer("a", 0, num_blocks)


# When an attempt may be made.


def _gated(**config: Any) -> Hand:
    """Return a run that reclaims by this configuration, in which one block of a and one of b can be won."""
    hand = Hand(headroom=3, reclaim=ReclaimConfig(**config)).admit("a", 8, 0, 1).admit("b", 8, 2, 3)
    hand.forward(a=8, b=8)
    return hand.apply(Evict("a", 0, (1, 2, 3, 4)), Evict("b", 0, (1, 2, 3, 4)))


def _attempts() -> Iterator[Probe]:
    yield on_event(
        Rule.RATE_LIMIT,
        "second",
        _attempted,
        _plan_b,
        (lambda: _stepped(_attempted()), _plan_b),
        (lambda: _gated(max_attempts=1), _plan_b),
        (_attempted_freely, _plan_b),
        (states.scattered, _plan),
    )
    yield on_event(
        Rule.RATE_LIMIT,
        "third",
        _attempted_twice,
        lambda h: Defer("b", 0, 1),
        (lambda: _attempted(max_attempts=2), lambda h: Defer("b", 0, 1)),
    )
    yield on_event(
        Rule.RATE_LIMIT,
        "after-defer",
        lambda: _gated(max_attempts=1).apply(Defer("a", 0, 1)),
        _plan_b,
        (lambda: _gated(max_attempts=1), _plan_b),
    )
    yield on_event(
        Rule.RATE_LIMIT,
        "other-step",
        lambda: _stepped(_gated(check_interval=2)),
        _plan,
        (lambda: _gated(check_interval=2), _plan),
        (lambda: _stepped(_stepped(_gated(check_interval=2))), _plan),
        (lambda: _stepped(_gated()), _plan),
    )
    yield on_event(
        Rule.RATE_LIMIT,
        "defer-other-step",
        lambda: _stepped(_gated(check_interval=2)),
        lambda h: Defer("a", 0, 1),
        (lambda: _gated(check_interval=2), lambda h: Defer("a", 0, 1)),
    )


def _stepped(hand: Hand) -> Hand:
    """Return the run after a step with no request in it."""
    hand.apply(hand.begin())
    return hand.apply(hand.end())


def _attempted(max_attempts: int | None = 1) -> Hand:
    hand = _gated(max_attempts=max_attempts)
    return hand.apply(hand.plan("a"))


def _attempted_freely() -> Hand:
    return _attempted(None)


def _attempted_twice() -> Hand:
    """Return a run in which a was planned for twice in this step; the first plan was cancelled."""
    hand = _attempted(2)
    return hand.apply(hand.cancel("a")).apply(hand.plan("a"))


# When a relocation is needed.


def _need() -> Iterator[Probe]:
    yield on_event(
        Rule.NOT_ELIGIBLE,
        "many-free",
        lambda: _gated(low_watermark=7),
        _plan,
        (lambda: _gated(low_watermark=8), _plan),
        (_gated, _plan),
    )
    yield on_event(
        Rule.NOT_ELIGIBLE,
        "little-waste",
        lambda: _gated(theta_f=Fraction(1, 2)),
        _plan,
        (lambda: _gated(theta_f=Fraction(7, 16)), _plan),
    )
    yield on_event(
        Rule.NOT_ELIGIBLE,
        "no-block-dead",
        _few_dead,
        _plan_short,
        (lambda: _few_dead().apply(Evict("a", 0, (4,))), _plan),
    )
    yield on_event(
        Rule.NOT_ELIGIBLE,
        "relieved",
        lambda: _after_relief(high_watermark=None),
        _plan,
        (lambda: _after_relief(high_watermark=10), _plan),
    )


def _plan_short(hand: Hand) -> Event:
    return hand.plan_of("a", (0, 1), (0,), "in_place")


def _few_dead() -> Hand:
    """Return a run in which one block of a can be won, by its three dead tokens and one unwritten slot."""
    hand = Hand(reclaim=ReclaimConfig()).admit("a", 7, 0, 1).forward(a=7)
    return hand.apply(Evict("a", 0, (1, 2, 3)))


def _after_relief(high_watermark: int | None) -> Hand:
    """Return a run in which free blocks have fallen to eight, and are nine again in the next step."""
    hand = _gated(low_watermark=8, high_watermark=high_watermark).apply(Evict("b", 0, (0,)))
    return _stepped(hand.apply(Release("b", 0, (2,)), Free((2,))))
