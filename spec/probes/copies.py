"""Copies that complete one by one, the commit, the end of a plan without one, and what is given up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Make, Probe, State, on_event
from vtoken_ref.events import Event, Evict, Lease, Move, Preempt, Release
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _naming()
    yield from _copies()
    yield from _commits()
    yield from _commits_in_forward()
    yield from _cancels()
    yield from _releases()


def _copy(hand: Hand) -> Event:
    return hand.copy("a")


def _commit(hand: Hand) -> Event:
    return hand.commit("a")


def _cancel(hand: Hand) -> Event:
    return hand.cancel("a")


def _release(hand: Hand) -> Event:
    return Release("a", 0, (0,))


def _with(make: Any, **changes: Any) -> Make:
    return lambda hand: replace(make(hand), **changes)


def _naming() -> Iterator[Probe]:
    for case, state, make in (
        ("copy", states.planned, _copy),
        ("commit", states.copied, _commit),
        ("cancel", states.planned, _cancel),
    ):
        yield on_event(Rule.UNKNOWN_PLAN, f"{case}-other", state, _with(make, plan_id=2), make)
        elsewhere = _made_in(state, make)
        yield on_event(Rule.UNKNOWN_PLAN, f"{case}-none", states.scattered, elsewhere, (state, make))
    yield on_event(
        Rule.UNKNOWN_PLAN,
        "late-other",
        _orphaned,
        lambda h: replace(h.late_copy("a", 0), plan_id=9),
        lambda h: h.late_copy("a", 0),
    )
    yield on_event(
        Rule.STALE_EPOCH,
        "late-commit",
        _orphaned,
        lambda h: _commit(states.copied()),
        (states.copied, _commit),
    )


def _made_in(state: State, make: Make) -> Make:
    """Return the event of another run."""
    return lambda hand: make(state())


def _orphaned() -> Hand:
    """Return a run in which a was preempted while it was copied out of place."""
    hand = states.planned_out()
    return hand.apply(hand.copy("a", 5), Preempt("a", 0))


# Copies.


def _copies() -> Iterator[Probe]:
    yield on_event(Rule.COPY_NOT_PLANNED, "staying", states.planned, lambda h: h.copy("a", 0), _copy)
    yield on_event(Rule.COPY_NOT_PLANNED, "twice-at-once", states.planned, lambda h: h.copy("a", 5, 5), _copy)
    yield on_event(Rule.COPY_NOT_PLANNED, "unknown", states.planned, lambda h: h.copy("a", 5, -1), _copy)
    yield on_event(
        Rule.COPY_NOT_PLANNED, "again", _half_copied, lambda h: h.copy("a", 5), lambda h: h.copy("a", 0)
    )
    for nbytes in (0, 15, 17):
        yield on_event(
            Rule.COPY_BYTES,
            str(nbytes),
            _with_bytes,
            _with(_copy, nbytes=nbytes),
            _copy,
            (states.planned, _with(_copy, nbytes=nbytes)),
        )
    yield on_event(
        Rule.COPY_ORDER,
        "in-place",
        _chained,
        lambda h: h.copy("a", 5),
        lambda h: (h.copy("a", 3), h.copy("a", 5)),
        lambda h: h.copy("a", 5, 3),
    )
    yield from _over_reads()


def _half_copied() -> Hand:
    hand = states.planned_out()
    return hand.apply(hand.copy("a", 5))


def _with_bytes() -> Hand:
    hand = Hand(nbytes_per_token=16).admit("a", 6, 0, 1).forward(a=6).apply(Evict("a", 0, (1, 2, 3, 4)))
    return hand.apply(hand.plan("a"))


def _chained() -> Hand:
    """Return a run in which token 5 is to move to the slot that token 3 leaves."""
    hand = Hand().admit("a", 12, 0, 1, 2).forward(a=12).apply(Evict("a", 0, (1, 2, 10, 11)))
    return hand.apply(hand.plan("a"))


def _over_reads() -> Iterator[Probe]:
    def copy(hand: Hand) -> Event:
        return hand.copy("a", 6)

    def late(hand: Hand) -> Event:
        return hand.late_copy("a", 0, 6)

    yield on_event(
        Rule.COPY_OVER_READ, "running", _moved_and_running, copy, lambda h: h.copy("a", 5), (_moved, copy)
    )
    yield on_event(
        Rule.COPY_OVER_READ,
        "forgotten",
        _moved_and_forgotten,
        late,
        lambda h: h.late_copy("a", 0, 5),
        (_moved_and_ended, late),
    )


def _moved() -> Hand:
    """Return an indirect run packed in place: 3 has moved to slot 1, 6 is to move to slot 3."""
    hand = Hand(view="indirect").admit("a", 9, 0, 1, 2).forward(a=9)
    hand.apply(Evict("a", 0, (1, 2, 4, 7)))
    return hand.apply(hand.plan_of("a", (0, 1), (0,), "in_place")).apply(hand.copy("a", 3))


def _moved_and_running() -> Hand:
    """Return one in which a forward of a has begun meanwhile, by nobody's event: none is allowed."""
    hand = _moved()
    worker = hand.machine.workers["a"]
    worker.plan, plan = None, worker.plan
    hand.apply(hand.begin(a=1))
    worker.plan = plan
    return hand


def _moved_and_forgotten() -> Hand:
    return _moved_and_running().apply(Preempt("a", 0))


def _moved_and_ended() -> Hand:
    hand = _moved_and_forgotten()
    return hand.apply(hand.end())


# Commits.


def _commits() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, **changes: Any) -> Probe:
        return on_event(rule, case, states.copied, _with(_commit, **changes), _commit)

    yield on_event(Rule.COMMIT_BEFORE_COPY, "none", states.planned, _commit, (states.copied, _commit))
    yield on_event(Rule.COMMIT_BEFORE_COPY, "half", _half_copied, _commit, (states.copied_out, _commit))
    yield refused(Rule.COMMIT_DIFFERS, "no-moves", moves=())
    yield refused(Rule.COMMIT_DIFFERS, "other-moves", moves=(Move(5, 5, 2),))
    yield refused(Rule.COMMIT_DIFFERS, "no-blocks", block_ids=())
    yield refused(Rule.COMMIT_DIFFERS, "old-blocks", block_ids=(0, 1))
    yield on_event(
        Rule.COMMIT_DIFFERS, "order", _all_packed, lambda h: replace(h.commit("a"), block_ids=(1, 0)), _commit
    )
    yield refused(Rule.LENGTH_MISMATCH, "commit-old", length=6)
    yield refused(Rule.LENGTH_MISMATCH, "commit-short", length=1)
    yield refused(Rule.KV_BEFORE, "other", digest_before="0" * 32)
    yield refused(Rule.KV_CHANGED, "other", digest_after="0" * 32)
    yield on_event(
        Rule.KV_CHANGED,
        "overwritten",
        _spoiled,
        _made_in(states.copied_out, _commit),
        (states.copied_out, _commit),
    )
    yield on_event(
        Rule.LENGTH_MISMATCH,
        "commit-on-write",
        _copied_on_write,
        lambda h: replace(h.commit("b"), length=8),
        lambda h: h.commit("b"),
    )


def _commits_in_forward() -> Iterator[Probe]:
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "commit-moves-end",
        lambda: _full_and_copied(True),
        _commit,
        lambda h: h.sync("a"),
        (lambda: _full_and_copied(False), _commit),
        (_full_copied_and_written, _commit),
    )
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "commit-recycling",
        _copied_and_recycling,
        _commit,
        (_copied_and_recycled, _commit),
    )


def _full_and_copied(is_running: bool) -> Hand:
    """Return an indirect run in which three tokens of a have moved out of two full blocks.

    Block 2 is empty; a forward is to write there, if any is running.
    """
    hand = Hand(view="indirect").admit("a", 8, 0, 1, 2).forward(a=8)
    hand.apply(Evict("a", 0, (1, 2, 3, 4, 6)), Lease("a", 0, (8,)))
    hand.apply(hand.plan_of("a", (0, 1), (8,))).apply(hand.copy("a"))
    return hand.apply(hand.begin(a=1)) if is_running else hand


def _full_copied_and_written() -> Hand:
    hand = _full_and_copied(True)
    return hand.apply(hand.sync("a"))


def _copied_and_recycling() -> Hand:
    """Return an indirect run in which tokens of blocks 0 and 1 have moved, and 8 is to be written over."""
    hand = Hand(view="indirect").admit("a", 10, 0, 1, 2).forward(a=10)
    hand.apply(Evict("a", 0, (1, 2, 4, 7, 8)), Lease("a", 0, (3,)))
    hand.apply(hand.plan_of("a", (0, 1), (3,))).apply(hand.copy("a"))
    return hand.apply(hand.recycle("a"))


def _copied_and_recycled() -> Hand:
    hand = _copied_and_recycling()
    return hand.apply(hand.sync("a", slots=(8,)))


def _all_packed() -> Hand:
    """Return a run in which the tokens of three blocks of a have moved into two."""
    hand = _chained()
    return hand.apply(hand.copy("a"))


def _spoiled() -> Hand:
    """Return a run in which something else has overwritten the copies, by nobody's event."""
    hand = states.copied_out()
    hand.machine.memory[8 * 4] = "f" * 16
    return hand


def _copied_on_write() -> Hand:
    hand = states.shared_partly()
    hand.apply(hand.copy_on_write("b", 2, 8))
    return hand.apply(hand.copy("b"))


# Cancelled plans.


def _cancels() -> Iterator[Probe]:
    yield on_event(Rule.CANCEL_OVERWRITTEN, "half-moved", _half_packed, _cancel, (_chained, _cancel))
    yield on_event(
        Rule.CANCEL_OVERWRITTEN,
        "moved",
        states.copied,
        _cancel,
        (states.planned, _cancel),
        (states.copied_out, _cancel),
        (_orphaned, lambda h: h.late_cancel("a", 0)),
        (_orphaned_in_place, lambda h: h.late_cancel("a", 0)),
    )


def _half_packed() -> Hand:
    """Return a run in which the first of six moves in place is done."""
    hand = _chained()
    return hand.apply(hand.copy("a", 3))


def _orphaned_in_place() -> Hand:
    """Return a run in which a was preempted while it was packed in place, half done."""
    return _half_packed().apply(Preempt("a", 0))


# What is given up.


def _releases() -> Iterator[Probe]:
    def nothing(hand: Hand) -> Event:
        return Release("a", 0, ())

    yield on_event(
        Rule.BLOCK_STILL_LIVE, "release-live", states.running, _release, (states.dead_block, _release)
    )
    yield on_event(
        Rule.BLOCK_STILL_LIVE,
        "release-source",
        _dead_source,
        lambda h: Release("a", 0, (1,)),
        lambda h: (h.cancel("a"), Release("a", 0, (1,))),
    )
    yield on_event(
        Rule.BLOCK_STILL_LIVE,
        "release-destination",
        states.planned_out,
        lambda h: Release("a", 0, (8,)),
        lambda h: Release("a", 0, (9,)),
    )
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "release-read",
        _dead_in_forward,
        _release,
        lambda h: Release("a", 0, (8,)),
        nothing,
    )
    yield on_event(
        Rule.LAYOUT_DURING_FORWARD,
        "release-unwritten",
        states.in_forward,
        lambda h: Release("a", 0, (1,)),
        (states.admitted, lambda h: Release("a", 0, (1,))),
    )
    yield on_event(
        Rule.NOT_HELD, "release-twice", states.dead_block, lambda h: Release("a", 0, (0, 0)), _release
    )


def _dead_source() -> Hand:
    """Return a run in which a plan's middle source is wholly dead."""
    hand = states.sparse()
    return hand.apply(hand.plan("a"))


def _dead_in_forward() -> Hand:
    hand = states.dead_block().apply(Lease("a", 0, (8,)))
    return hand.apply(hand.begin(a=1))
