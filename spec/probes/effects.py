"""What legal events come to, where a wrong outcome would not be refused by any rule at once."""

from collections.abc import Callable, Iterator

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Probe, on_effect, on_event
from vtoken_ref.events import Abort, Alloc, Deliver, Evict, Free, Lease, Move, Preempt, Release, Share
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _lengths()
    yield from _plans()
    yield from _left_behind()
    yield from _delivered()


def _lengths() -> Iterator[Probe]:
    length = {
        "commit": (states.committed, [2, 2]),
        "dead-end": (lambda: _dead_end().apply(Release("a", 0, (2,))), [4, 0]),
        "dead-start": (lambda: states.dead_block().apply(Release("a", 0, (0,))), [2, 2]),
        "dead-shared-end": (_dead_shared_end, [9, 8]),
    }
    for case, (state, expected) in length.items():
        yield on_effect(
            Rule.LENGTH_MISMATCH, f"after-{case}", state, lambda h: [h.length("a"), h.length("b")], expected
        )


def _dead_end() -> Hand:
    """Return a run in which the last two of a's three blocks are wholly dead."""
    return Hand().admit("a", 12, 0, 1, 2).forward(a=12).apply(Evict("a", 0, tuple(range(4, 12))))


def _dead_shared_end() -> Hand:
    """Return a run in which b's last block left is a shared one, and wholly dead for b."""
    hand = states.shared().forward(b=3)
    return hand.apply(Evict("b", 0, tuple(range(4, 11))), Release("b", 0, (4,)))


def _plans() -> Iterator[Probe]:
    yield on_effect(
        Rule.COMMIT_DIFFERS,
        "last-place",
        _first_and_last_planned,
        lambda h: h.commit("a").block_ids,
        (1, 3, 4),
    )
    yield on_effect(
        Rule.PLAN_ORDER,
        "out-of-place",
        states.scattered,
        lambda h: h.plan("a", "out_of_place", (8,)).moves,
        (Move(0, 0, 32), Move(5, 5, 33)),
    )
    yield on_effect(
        Rule.PLAN_ORDER,
        "recycled-in-place",
        _recycled,
        lambda h: h.plan("a").moves,
        (Move(6, 2, 1), Move(5, 5, 2)),
    )
    yield on_effect(
        Rule.PLAN_DESTINATIONS,
        "fewer-leases",
        _five_blocks,
        lambda h: h.plan("a", "out_of_place", (8,)).source_blocks,
        (3, 4),
    )
    yield on_effect(
        Rule.PLAN_SOURCES,
        "fewer-sources",
        _five_blocks,
        lambda h: h.plan("a", max_source_blocks=3).source_blocks,
        (2, 3, 4),
    )
    chosen: dict[str, tuple[tuple[list[int], int, int], list[int]]] = {
        "emptiest": (([3, 1, 2, 1], 4, 4), [1, 2, 3]),
        "least": (([2, 2, 2, 2], 3, 4), [0, 1]),
        "bounded": (([1, 1, 1, 1], 2, 4), [0, 1]),
        "few-destinations": (([2, 2, 2, 2, 2], 5, 1), [0, 1]),
        "none": (([3, 3], 4, 4), []),
    }
    for case, (bounds, expected) in chosen.items():
        yield on_effect(Rule.PLAN_SOURCES, f"chosen-{case}", object, _choosing(*bounds), expected)


def _first_and_last_planned() -> Hand:
    """Return an indirect run in which blocks 0 and 2 of a move to block 3; block 4 is empty."""
    hand = Hand(view="indirect").admit("a", 12, 0, 1, 2, 4).forward(a=12)
    hand.apply(Evict("a", 0, (1, 2, 9, 10)), Lease("a", 0, (3,)))
    return hand.apply(hand.plan_of("a", (0, 2), (3,))).apply(hand.copy("a"))


def _choosing(num_live: list[int], max_sources: int, max_destinations: int) -> Callable[[object], object]:
    return lambda _: choose_sources(num_live, 4, max_sources, max_destinations)


def _recycled() -> Hand:
    """Return a run in which tokens 0, 6 and 5 of a are live, in this order: 6 was written over 2."""
    hand = Hand().admit("a", 6, 0, 1).forward(a=6).apply(Evict("a", 0, (1, 2, 3, 4)))
    hand.apply(hand.recycle("a"))
    hand.apply(hand.sync("a", slots=(2,)))
    return hand.apply(hand.end())


def _five_blocks() -> Hand:
    """Return a run in which two of four tokens are live in each of a's five blocks; 8 is leased to a."""
    hand = Hand().admit("a", 20, 0, 1, 2, 3, 4).forward(a=20)
    dead = tuple(token_id for token_id in range(20) if token_id % 2)
    return hand.apply(Evict("a", 0, dead), Lease("a", 0, (8,)))


def _left_behind() -> Iterator[Probe]:
    yield on_effect(
        Rule.LEAK,
        "on-write-then-abort",
        lambda: _copied_on_write().apply(Abort("b", 0)),
        lambda h: [h.machine.pool.state(block_id) for block_id in (0, 2, 4, 8)],
        ["held", "held", "fenced", "fenced"],
    )
    yield on_event(
        Rule.NOT_CACHED,
        "given-out",
        _given_out,
        lambda h: Share("b", 1, (0, 1), tuple(range(8))),
        (_only_freed, lambda h: Share("b", 1, (0, 1), tuple(range(8)))),
    )


def _copied_on_write() -> Hand:
    hand = states.shared_partly()
    hand.apply(hand.copy_on_write("b", 2, 8))
    hand.apply(hand.copy("b"))
    return hand.apply(hand.commit("b"))


def _given_out() -> Hand:
    """Return a run in which cached block 0, held by nobody, was given to b and is free again."""
    hand = states.cached().apply(Abort("a", 0), Free((0, 1, 2)), Alloc("b", (0,)), Preempt("b", 0))
    return hand.apply(Free((0,)))


def _only_freed() -> Hand:
    """Return one in which it stayed free."""
    return states.cached().apply(Abort("a", 0), Free((0, 1, 2)), Preempt("b", 0))


def _delivered() -> Iterator[Probe]:
    """What the scheduler makes of a report, with async depth 1."""
    yield on_effect(
        Rule.REPORT_BASE,
        "kept-and-appended",
        lambda: _first_given_up().apply(Deliver(0)),
        lambda h: (h.machine.requests["a"].block_ids, h.machine.requests["a"].length),
        ([1, 3], 2),
    )
    yield on_effect(
        Rule.LEAK,
        "given-up-first",
        lambda: _first_given_up().apply(Deliver(0)),
        lambda h: [h.machine.pool.state(block_id) for block_id in (0, 1, 3)],
        ["fenced", "held", "held"],
    )
    yield on_effect(
        Rule.NOT_HELD,
        "adopted",
        lambda: _moved_out().apply(Deliver(1)),
        lambda h: [h.machine.pool.state(block_id) for block_id in (0, 1, 8, 9, 10)],
        ["fenced", "fenced", "held", "leased", "leased"],
    )
    yield on_event(
        Rule.FENCE,
        "dead-epoch-delivered",
        _preempted_untold,
        lambda h: Free((8,)),
        (_preempted_and_told, lambda h: Free((8,))),
    )


def _first_given_up() -> Hand:
    """Return a run in which the report that a gives up block 0 is on its way; block 3 was appended since."""
    hand = states.in_window().apply(Evict("a", 0, (0, 1, 2, 3)), Release("a", 0, (0,)))
    return hand.apply(hand.report("a"), Alloc("a", (3,)))


def _moved_out() -> Hand:
    """Return one in which a has moved to block 8, and was lent block 10 since."""
    hand = states.leased_ahead()
    hand.apply(hand.plan("a", "out_of_place", (8,), reserve=1)).apply(hand.copy("a"))
    hand.apply(hand.commit("a"))
    return hand.apply(hand.report("a"), Lease("a", 0, (10,)))


def _preempted_untold() -> Hand:
    """Return a run in which a was preempted with a lease, and a step that does not tell it is delivered."""
    return states.reported().apply(Lease("a", 0, (8,)), Preempt("a", 0), Deliver(0))


def _preempted_and_told() -> Hand:
    return _preempted_untold().admit("b", 2, 2).step(b=2)
