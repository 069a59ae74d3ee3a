"""Blocks are free, held, leased or fenced, and several may hold one: the pool, and events that use it."""

from collections.abc import Iterator

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Arguments, Probe, on_event, on_method
from vtoken_ref.events import Alloc, Free, Lease, Preempt, Release
from vtoken_ref.pool import BlockPool, CachedPrefix, Hazard
from vtoken_ref.rules import Rule

STEP = Hazard("step", step=3)
OTHER_STEP = Hazard("step", step=4)
EPOCH = Hazard("epoch", req_id="a", epoch=0)
PREFIX = CachedPrefix((1, 2), ("0" * 16, "1" * 16))
NONE: frozenset[Hazard] = frozenset()
OUTSIDE = (-1, 12, 10**20)


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _giving()
    yield from _sharing()
    yield from _taking()
    yield from _freeing()
    yield from _giving_by_events()
    yield from _taking_by_events()


def _pool() -> BlockPool:
    """Return a pool of twelve blocks, some of each kind.

    Request a holds 0, 1 and 5, b holds 1 and 6; 1 and 5 are cached, and so are 7, which is free, and 8,
    which is fenced; 2 is leased to a, 3 and 4 are fenced.
    """
    pool = BlockPool(range(12), headroom=2)
    pool.alloc("a", (0, 1, 3, 4, 5, 7, 8))
    for block_id in (1, 5, 7, 8):
        pool.cache(block_id, PREFIX)
    pool.share("b", (1,))
    pool.alloc("b", (6,))
    pool.lease("a", (2,))
    pool.release("a", (3, 7), NONE)
    pool.free((7,), NONE)
    pool.release("a", (4, 8), frozenset((STEP, EPOCH)))
    return pool


def _on(rule: Rule, case: str, forbidden: Arguments, *legal: Arguments) -> Probe:
    return on_method(rule, f"pool-{case}", _pool, forbidden, *legal)


def _giving() -> Iterator[Probe]:
    for name in ("alloc", "lease"):
        free = (name, "a", (9,))
        for block_id in OUTSIDE:
            yield _on(Rule.UNKNOWN_BLOCK, f"{name}-{block_id}", (name, "a", (block_id,)), free)
        for block_id in (0, 1, 2, 3, 4):
            yield _on(Rule.NOT_FREE, f"{name}-{block_id}", (name, "a", (block_id,)), free)
        yield _on(Rule.NOT_FREE, f"{name}-twice", (name, "a", (9, 9)), free)
    yield _on(Rule.HEADROOM, "lease", ("lease", "b", (9, 10)), ("lease", "b", (9,)))
    four, three = (7, 9, 10, 11), (7, 9, 10)
    yield _on(Rule.HEADROOM_RESERVED, "alloc", ("alloc", "b", four), ("alloc", "b", three))


def _sharing() -> Iterator[Probe]:
    for name in ("share", "check_share"):
        ours, free = (name, "b", (5,)), (name, "b", (7,))
        for block_id in OUTSIDE:
            yield _on(Rule.UNKNOWN_BLOCK, f"{name}-{block_id}", (name, "b", (block_id,)), ours)
        for block_id in (0, 2, 3, 9):
            yield _on(Rule.NOT_CACHED, f"{name}-{block_id}", (name, "b", (block_id,)), ours, free)
        yield _on(Rule.NOT_CACHED, f"{name}-twice", (name, "b", (5, 5)), ours)
        yield _on(Rule.NOT_CACHED, f"{name}-held", (name, "b", (1,)), (name, "c", (1,)))
        yield _on(Rule.NOT_CACHED, f"{name}-fenced", (name, "b", (8,)), ours)
    for block_id in OUTSIDE:
        yield _on(Rule.UNKNOWN_BLOCK, f"uncache-{block_id}", ("uncache", (block_id,)), ("uncache", (7,)))
    yield _on(Rule.NOT_CACHED, "uncache", ("uncache", (0,)), ("uncache", (1,)))
    yield _on(Rule.NOT_CACHED, "uncache-twice", ("uncache", (1, 1)), ("uncache", (1, 8)))


def _taking() -> Iterator[Probe]:
    for block_id in OUTSIDE:
        yield _on(Rule.UNKNOWN_BLOCK, f"adopt-{block_id}", ("adopt", "a", (block_id,)), ("adopt", "a", (2,)))
        released = ("release", "a", (block_id,), NONE)
        yield _on(Rule.UNKNOWN_BLOCK, f"release-{block_id}", released, ("release", "a", (0,), NONE))
    for block_id in (0, 3, 9):
        yield _on(Rule.NOT_HELD, f"adopt-{block_id}", ("adopt", "a", (block_id,)), ("adopt", "a", (2,)))
    yield _on(Rule.NOT_HELD, "adopt-of-another", ("adopt", "b", (2,)), ("adopt", "a", (2,)))
    yield _on(Rule.NOT_HELD, "adopt-twice", ("adopt", "a", (2, 2)), ("adopt", "a", (2,)))
    ours = ("release", "b", (1, 6), NONE)
    for block_id in (0, 2, 3, 9):
        yield _on(Rule.NOT_HELD, f"release-{block_id}", ("release", "b", (block_id,), NONE), ours)
    yield _on(Rule.NOT_HELD, "release-twice", ("release", "b", (1, 1), NONE), ours)
    lent = ("release", "a", (2, 0), NONE)
    yield _on(Rule.NOT_HELD, "release-lease-twice", ("release", "a", (2, 2), NONE), lent)


def _freeing() -> Iterator[Probe]:
    fenced = ("free", (3,), NONE)
    for block_id in OUTSIDE:
        yield _on(Rule.UNKNOWN_BLOCK, f"free-{block_id}", ("free", (3, block_id), NONE), fenced)
    for block_id in (0, 1, 2, 7, 9):
        yield _on(Rule.NOT_FENCED, f"free-{block_id}", ("free", (3, block_id), NONE), fenced)
    yield _on(Rule.NOT_FENCED, "free-twice", ("free", (3, 3), NONE), fenced)
    for hazard in (STEP, EPOCH):
        under_way = frozenset((hazard, OTHER_STEP))
        over = ("free", (4,), frozenset((OTHER_STEP,)))
        yield _on(Rule.FENCE, f"free-{hazard.kind}", ("free", (4,), under_way), over, ("free", (4,), NONE))


def _giving_by_events() -> Iterator[Probe]:
    yield on_event(
        Rule.NOT_FREE, "alloc", states.running, lambda h: Alloc("a", (2,)), lambda h: Alloc("a", (3,))
    )
    yield on_event(
        Rule.NOT_FREE, "lease", states.running, lambda h: Lease("a", 0, (2,)), lambda h: Lease("a", 0, (3,))
    )
    yield on_event(
        Rule.HEADROOM,
        "lease",
        states.scattered,
        lambda h: Lease("b", 0, (3, 4)),
        lambda h: Lease("b", 0, (3,)),
    )
    yield on_event(
        Rule.HEADROOM_RESERVED,
        "no-lease",
        states.running,
        lambda h: Alloc("a", (3, 4, 5, 6, 7, 8, 9)),
        lambda h: Alloc("a", (3, 4, 5, 6, 7, 8)),
    )
    yield on_event(
        Rule.HEADROOM_RESERVED,
        "two-leases",
        states.scattered,
        lambda h: Alloc("a", (3, 4, 5, 6, 7, 10, 11)),
        lambda h: Alloc("a", (3, 4, 5, 6, 7, 10)),
    )
    yield on_event(
        Rule.HEADROOM_RESERVED,
        "nothing-taken",
        _reserve_short,
        lambda h: Alloc("a", (10,)),
        lambda h: Alloc("a", ()),
    )


def _reserve_short() -> Hand:
    """Return a run in which fewer blocks are free than are reserved: a lease was given back, fenced."""
    hand = states.running().apply(Lease("a", 0, (9,)), Alloc("a", (3, 4, 5, 6, 7, 8)))
    return hand.apply(Release("a", 0, (9,)))


def _taking_by_events() -> Iterator[Probe]:
    yield on_event(
        Rule.NOT_HELD,
        "release-of-another",
        states.scattered,
        lambda h: Release("b", 0, (8,)),
        lambda h: Release("a", 0, (8,)),
    )
    yield on_event(Rule.NOT_FENCED, "held", states.ended, lambda h: Free((0, 3)), lambda h: Free((0, 1, 2)))
    yield on_event(
        Rule.FENCE,
        "aborted",
        states.aborted_in_forward,
        lambda h: Free((0,)),
        (_forward_over, lambda h: Free((0, 1))),
    )
    yield on_event(
        Rule.FENCE,
        "late-copies",
        _preempted_while_copied,
        lambda h: Free((8,)),
        lambda h: Free(()),
        (_copies_over, lambda h: Free((0, 1, 8, 9))),
        (_copies_cancelled, lambda h: Free((0, 1, 8, 9))),
    )
    yield on_event(
        Rule.FENCE,
        "released-in-forward",
        _released_in_forward,
        lambda h: Free((1,)),
        (_released_before_forward, lambda h: Free((1,))),
    )


def _forward_over() -> Hand:
    hand = states.aborted_in_forward()
    return hand.apply(hand.sync("b")).apply(hand.end())


def _preempted_while_copied() -> Hand:
    hand = states.planned_out()
    return hand.apply(hand.copy("a", 5), Preempt("a", 0))


def _copies_over() -> Hand:
    hand = _preempted_while_copied()
    return hand.apply(hand.late_copy("a", 0))


def _copies_cancelled() -> Hand:
    hand = _preempted_while_copied()
    return hand.apply(hand.late_cancel("a", 0))


def _released_in_forward() -> Hand:
    """Return a run in which a's old block is given up while b is in a forward."""
    hand = states.committed()
    return hand.apply(hand.begin(b=1), Release("a", 0, (1,)))


def _released_before_forward() -> Hand:
    hand = states.committed().apply(Release("a", 0, (1,)))
    return hand.apply(hand.begin(b=1))
