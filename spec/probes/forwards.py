"""Forwards begin, write tokens and end; outputs come of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Make, Probe, on_event
from vtoken_ref.events import (
    Alloc,
    Event,
    Evict,
    Forward,
    Free,
    Lease,
    Preempt,
    Strategy,
    Uncache,
)
from vtoken_ref.rules import Rule

ONE_SLOT_PAST = 10**20


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _begins()
    yield from _begins_during_plans()
    yield from _syncs()
    yield from _slots()
    yield from _recycled()
    yield from _ends()
    yield from _outputs()


def _with(make: Any, **changes: Any) -> Make:
    return lambda hand: replace(make(hand), **changes)


def _first(make: Any, **changes: Any) -> Make:
    """Return the forward with its first request's read changed."""

    def changed(hand: Hand) -> Event:
        event: Forward = make(hand)
        read, *rest = event.reads
        return replace(event, reads=(read._replace(**changes), *rest))

    return changed


def _begin(hand: Hand) -> Event:
    return hand.begin(a=1)


def _sync(hand: Hand) -> Event:
    return hand.sync("a")


def _end(hand: Hand) -> Event:
    return hand.end()


# Begins.


def _begins() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, forbidden: Make) -> Probe:
        return on_event(rule, f"begin-{case}", states.running, forbidden, _begin)

    yield refused(Rule.STEP_ORDER, "same", lambda h: h.begin(step=1, a=1))
    yield refused(Rule.STEP_ORDER, "earlier", lambda h: h.begin(step=0, a=1))
    yield refused(Rule.STEP_ORDER, "twice", lambda h: replace(h.begin(a=1), reads=h.begin(a=1).reads * 2))
    yield refused(Rule.LENGTH_MISMATCH, "nothing", lambda h: h.begin(a=0))
    yield refused(Rule.LENGTH_MISMATCH, "negative", lambda h: h.begin(a=-1))
    yield refused(Rule.LENGTH_MISMATCH, "longer", _first(_begin, length=8))
    yield refused(Rule.LENGTH_MISMATCH, "shorter", _first(_begin, length=6))
    yield refused(Rule.CAPACITY, "no-block", lambda h: h.begin(a=3))
    yield refused(Rule.UNKNOWN_REQUEST, "unknown", _first(_begin, req_id="x"))
    yield refused(Rule.STALE_EPOCH, "later", _first(_begin, epoch=1))
    yield refused(Rule.STALE_EPOCH, "earlier", _first(_begin, epoch=-1))
    yield on_event(
        Rule.STEP_ORDER,
        "begin-in-flight",
        states.decoding,
        lambda h: h.begin(),
        (states.running, lambda h: h.begin()),
    )
    yield on_event(
        Rule.BUDGET_EXCEEDED,
        "one-more",
        states.over_budget,
        _begin,
        lambda h: (Evict("a", 0, (0,)), h.begin(a=1)),
        (states.running, _begin),
        (_prompt_over_budget, lambda h: h.begin(a=4)),
        (_no_budget, _begin),
    )
    yield on_event(
        Rule.SHARED_WRITE,
        "cached",
        states.cached_partly,
        _begin,
        (states.cached, _begin),
    )
    yield on_event(
        Rule.SHARED_WRITE,
        "shared",
        _shared_partly,
        lambda h: h.begin(b=2),
        (states.shared, lambda h: h.begin(b=3)),
        (_copied_on_write, lambda h: h.begin(b=2)),
    )


def _prompt_over_budget() -> Hand:
    """Return a run in which a's prompt is half computed, and already above the budget."""
    return Hand().admit("a", 8, 0, 1, budget=3).forward(a=4)


def _no_budget() -> Hand:
    return Hand().admit("a", 6, 0, 1).forward(a=6)


def _shared_partly() -> Hand:
    """Return a run in which blocks 0 to 2 are shared, and no longer cached; b has one token in 2."""
    return states.shared_partly().apply(Uncache((0, 1, 2)))


def _copied_on_write() -> Hand:
    hand = states.shared_partly()
    hand.apply(hand.copy_on_write("b", 2, 8))
    hand.apply(hand.copy("b"))
    return hand.apply(hand.commit("b"))


def _begins_during_plans() -> Iterator[Probe]:
    yield on_event(
        Rule.FORWARD_DURING_PLAN,
        "packed",
        states.copied,
        _begin,
        (states.committed, _begin),
        lambda h: h.begin(b=1),
    )
    yield on_event(Rule.FORWARD_DURING_PLAN, "packed-new-block", _planned_full, _begin, (_full, _begin))
    yield on_event(
        Rule.FORWARD_DURING_PLAN,
        "indirect-in-place",
        _planned_in_place,
        _begin,
        (states.indirect_planned, _begin),
    )
    yield on_event(
        Rule.FORWARD_DURING_PLAN, "indirect-written", _end_planned, _begin, (states.indirect_planned, _begin)
    )


def _full() -> Hand:
    """Return a run in which a's two blocks are full and the third is empty."""
    hand = Hand().admit("a", 8, 0, 1).forward(a=8)
    return hand.apply(Evict("a", 0, (1, 2, 3, 4)), Alloc("a", (2,)))


def _planned_full() -> Hand:
    hand = _full().apply(Lease("a", 0, (8,)))
    return hand.apply(hand.plan("a", "out_of_place", (8,)))


def _planned_in_place() -> Hand:
    """Return an indirect run in which blocks 0 and 1 are packed in place, and 2 will be written."""
    hand = states.indirect()
    return hand.apply(hand.plan_of("a", (0, 1), (0,), "in_place"))


def _end_planned() -> Hand:
    """Return an indirect run in which block 2, where the next token would go, is a source."""
    hand = states.indirect()
    return hand.apply(hand.plan_of("a", (0, 2), (3,)))


# Tokens are written.


def _syncs() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, **changes: Any) -> Probe:
        return on_event(rule, f"sync-{case}", states.in_forward, _with(_sync, **changes), _sync)

    yield on_event(
        Rule.SYNC_OUTSIDE_FORWARD, "none", states.running, lambda h: h.sync("a", 1), (states.decoding, _sync)
    )
    yield on_event(
        Rule.SYNC_OUTSIDE_FORWARD,
        "nothing",
        states.running,
        lambda h: h.sync("a", 0),
        (states.decoding, lambda h: h.sync("a", 0)),
    )
    yield on_event(
        Rule.SYNC_OUTSIDE_FORWARD, "not-in-it", _only_b, lambda h: h.sync("a", 1), lambda h: h.sync("b")
    )
    yield on_event(
        Rule.SYNC_OUTSIDE_FORWARD,
        "one-more",
        states.in_forward,
        lambda h: h.sync("a", 7),
        lambda h: h.sync("a", 4),
    )
    yield on_event(
        Rule.SYNC_OUTSIDE_FORWARD,
        "written",
        states.written,
        lambda h: h.sync("a", 1),
        lambda h: h.sync("a", 0),
    )
    yield refused(Rule.TOKEN_IDS, "later", first_token_id=1)
    yield refused(Rule.TOKEN_IDS, "below", first_token_id=-1)
    yield refused(Rule.TOKEN_IDS, "slots", slots=(0,))
    yield refused(Rule.TOKEN_IDS, "fingerprints", fingerprints=("0" * 16,))
    yield refused(Rule.TOKEN_IDS, "vocab-ids", vocab_ids=(0, 1, 2, 3, 4))
    yield refused(Rule.TRACE_FIELD, "digit", fingerprints=(*("0" * 16,) * 5, "0" * 15 + "g"))
    yield refused(Rule.TRACE_FIELD, "short", fingerprints=("0" * 15,) * 6)
    yield on_event(Rule.TOKEN_DIFFERS, "sync-output", states.decoding, _with(_sync, vocab_ids=(71,)), _sync)
    yield on_event(
        Rule.TOKEN_DIFFERS,
        "sync-prompt-again",
        _computed_again,
        lambda h: replace(h.sync("a"), vocab_ids=(0, 1, 9, 3, 4, 5)),
        _sync,
    )
    yield on_event(Rule.TOKEN_DIFFERS, "sync-not-sampled", _two_of_one, _sync, lambda h: h.sync("a", 1))


def _only_b() -> Hand:
    hand = states.running()
    return hand.apply(hand.begin(b=1))


def _computed_again() -> Hand:
    """Return a run in which a computes its prompt for the second time."""
    hand = states.preempted().apply(Free((0, 1)), Alloc("a", (0, 1)))
    return hand.apply(hand.begin(a=6))


def _two_of_one() -> Hand:
    """Return a run in which a forward computes two tokens of a, of which one is known."""
    hand = states.running()
    return hand.apply(hand.begin(a=2))


def _slots() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, *slots: int) -> Probe:
        return on_event(rule, f"sync-{case}", states.decoding, _with(_sync, slots=slots), _sync)

    yield on_event(
        Rule.SLOT_USED_TWICE, "sync", states.in_forward, _with(_sync, slots=(0, 1, 2, 3, 4, 4)), _sync
    )
    yield refused(Rule.SLOT_OCCUPIED, "of-b", 8)
    yield refused(Rule.SLOT_OCCUPIED, "of-a", 5)
    yield refused(Rule.SLOT_MISMATCH, "next-but-one", 7)
    yield refused(Rule.SLOT_MISMATCH, "free-block", 40)
    yield refused(Rule.SLOT_MISMATCH, "below", -1)
    yield refused(Rule.SLOT_MISMATCH, "huge", ONE_SLOT_PAST)


def _recycled() -> Iterator[Probe]:
    yield on_event(
        Rule.LENGTH_MISMATCH,
        "recycle-nothing-dead",
        states.running,
        _recycle,
        (_scattered, _recycle),
        (_scattered, _begin),
    )
    yield on_event(
        Rule.LENGTH_MISMATCH, "recycle-two", _scattered, _first(lambda h: h.begin(a=2), length=6), _recycle
    )
    yield on_event(
        Rule.LENGTH_MISMATCH,
        "recycle-other-strategy",
        lambda: _scattered("in_place"),
        _recycle,
        _begin,
        (lambda: _scattered("recycle"), _recycle),
    )
    yield on_event(
        Rule.LENGTH_MISMATCH, "recycle-longer", _scattered, _first(_begin, length=8), _recycle, _begin
    )
    yield on_event(Rule.LENGTH_MISMATCH, "recycle-ahead", _settled_with_dead, _recycle, _begin)
    yield on_event(
        Rule.SLOT_MISMATCH,
        "recycle-unannounced",
        _appending,
        lambda h: h.sync("a", slots=(1,)),
        _sync,
        (_recycling, lambda h: h.sync("a", slots=(1,))),
    )
    yield on_event(
        Rule.SLOT_OCCUPIED,
        "recycle-live",
        _recycling,
        lambda h: h.sync("a", slots=(0,)),
        lambda h: h.sync("a", slots=(2,)),
    )
    yield on_event(
        Rule.SLOT_MISMATCH,
        "recycle-unwritten",
        _recycling,
        lambda h: h.sync("a", slots=(7,)),
        lambda h: h.sync("a", slots=(2,)),
    )
    yield on_event(
        Rule.LENGTH_MISMATCH,
        "recycle-announced",
        _recycling,
        _sync,
        lambda h: h.sync("a", slots=(1,)),
    )
    yield on_event(
        Rule.RECYCLE,
        "cached",
        _recycling_cached,
        lambda h: h.sync("a", slots=(1,)),
        lambda h: h.sync("a", slots=(8,)),
    )
    yield on_event(
        Rule.RECYCLE,
        "planned",
        _recycling_planned,
        lambda h: h.sync("a", slots=(1,)),
        lambda h: h.sync("a", slots=(8,)),
    )
    yield on_event(
        Rule.BLOCK_LIST_SHORT,
        "recycle-full",
        _recycling_full,
        lambda h: h.sync("a", slots=(12,)),
        lambda h: h.sync("a", slots=(1,)),
    )
    yield on_event(
        Rule.SLOT_MISMATCH,
        "recycle-strategy-ahead",
        lambda: _running_ahead("in_place"),
        lambda h: h.sync("a", slots=(1,)),
        _sync,
        (lambda: _running_ahead("recycle"), lambda h: h.sync("a", slots=(1,))),
    )
    yield on_event(
        Rule.SLOT_MISMATCH,
        "recycle-first-of-two-ahead",
        _two_running_ahead,
        lambda h: h.sync("a", slots=(1,)),
        lambda h: h.sync("a", 1),
    )
    yield on_event(
        Rule.SLOT_MISMATCH,
        "recycle-ahead",
        _two_running_ahead,
        lambda h: h.sync("a", slots=(1, 7)),
        _sync,
        (_running_ahead, lambda h: h.sync("a", slots=(1,))),
    )


def _recycle(hand: Hand) -> Event:
    return hand.recycle("a")


def _scattered(strategy: Strategy | None = None) -> Hand:
    """Return a run in which tokens 0 and 5 of a are live."""
    hand = Hand(strategy=strategy).admit("a", 6, 0, 1).forward(a=6)
    return hand.apply(Evict("a", 0, (1, 2, 3, 4)))


def _recycling() -> Hand:
    hand = _scattered()
    return hand.apply(_recycle(hand))


def _appending() -> Hand:
    hand = _scattered()
    return hand.apply(_begin(hand))


def _recycling_cached() -> Hand:
    """Return a run in which dead token 1 is in a cached block, dead token 8 is not."""
    hand = states.cached().forward(a=1).apply(Evict("a", 0, (1, 8)))
    return hand.apply(_recycle(hand))


def _recycling_planned() -> Hand:
    """Return an indirect run in which dead token 1 is in a source, dead token 8 is not."""
    hand = Hand(view="indirect").admit("a", 10, 0, 1, 2).forward(a=10)
    hand.apply(Evict("a", 0, (1, 2, 4, 7, 8)), Lease("a", 0, (3,)))
    return hand.apply(hand.plan_of("a", (0, 1), (3,))).apply(_recycle(hand))


def _recycling_full() -> Hand:
    """Return a run in which a's blocks are full, and a token is to be written over a dead one."""
    hand = Hand().admit("a", 8, 0, 1).forward(a=8).apply(Evict("a", 0, (1,)))
    return hand.apply(_recycle(hand))


def _settled_with_dead(strategy: Strategy | None = None) -> Hand:
    """Return a run with async depth 1 in which tokens of a are dead and no step is under way."""
    hand = Hand(async_depth=1, max_query=8, strategy=strategy).admit("a", 6, 0, 1).forward(a=6)
    return hand.apply(Evict("a", 0, (1, 2))).hand_over()


def _running_ahead(strategy: Strategy | None = None) -> Hand:
    """Return one in which a forward computes one token."""
    hand = _settled_with_dead(strategy)
    hand.apply(hand.begin(a=1))
    return hand.apply(hand.start())


def _two_running_ahead() -> Hand:
    hand = Hand(async_depth=1, max_query=8).admit("a", 8, 0, 1).forward(a=6).apply(Evict("a", 0, (1, 2)))
    hand.hand_over().apply(hand.begin(a=2))
    return hand.apply(hand.start())


# Ends.


def _ends() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, forbidden: Make) -> Probe:
        return on_event(rule, f"end-{case}", states.written, forbidden, _end)

    yield on_event(
        Rule.STEP_ORDER,
        "end-none",
        states.running,
        lambda h: Forward(1, "end", ()),
        (_empty, lambda h: h.end()),
    )
    yield refused(Rule.STEP_ORDER, "other-step", _with(_end, step=1))
    yield refused(Rule.STEP_ORDER, "nobody", _with(_end, reads=()))
    yield refused(Rule.STEP_ORDER, "twice", lambda h: replace(h.end(), reads=h.end().reads * 2))
    yield refused(Rule.STEP_ORDER, "unknown", _first(_end, req_id="x"))
    yield refused(Rule.STEP_ORDER, "epoch", _first(_end, epoch=7))
    yield refused(Rule.LENGTH_MISMATCH, "length", _first(_end, length=5))
    yield refused(Rule.LENGTH_MISMATCH, "num-query", _first(_end, num_query=5))
    yield refused(Rule.KV_VISIBLE, "none", _first(_end, digest=""))
    yield refused(Rule.KV_VISIBLE, "other", _first(_end, digest="0" * 32))
    yield on_event(Rule.STEP_ORDER, "end-aborted", _aborted_written, _first(_end, epoch=7), _end)
    yield on_event(Rule.LENGTH_MISMATCH, "end-unwritten", states.in_forward, _end, (states.written, _end))
    yield on_event(
        Rule.LENGTH_MISMATCH,
        "end-half",
        _half_written,
        _end,
        lambda h: h.sync("a"),
    )
    yield on_event(Rule.LENGTH_MISMATCH, "end-half-ahead", _half_written_ahead, _end, (_written_ahead, _end))
    yield on_event(
        Rule.LENGTH_MISMATCH, "end-after-commit", _committed_in_forward, _first(_end, num_query=2), _end
    )
    yield on_event(Rule.KV_VISIBLE, "changed", _spoiled, _end, (states.written, _end))
    yield on_event(
        Rule.KV_VISIBLE,
        "dead-token",
        _indirect_written,
        lambda h: _first(_end, digest=_packed_digest())(h),
        _end,
    )
    yield on_event(Rule.LENGTH_MISMATCH, "end-indirect", _indirect_written, _first(_end, length=10), _end)


def _empty() -> Hand:
    hand = states.running()
    return hand.apply(hand.begin())


def _aborted_written() -> Hand:
    hand = states.aborted_in_forward()
    return hand.apply(hand.sync("b"))


def _half_written() -> Hand:
    hand = states.in_forward()
    return hand.apply(hand.sync("a", 4))


def _committed_in_forward() -> Hand:
    """Return an indirect run in which a plan committed while a forward of its request was running."""
    hand = states.indirect_planned().write(a=1)
    hand.apply(hand.copy("a"))
    return hand.apply(hand.commit("a"))


def _half_written_ahead() -> Hand:
    hand = states.started()
    return hand.apply(hand.sync("a", 4))


def _written_ahead() -> Hand:
    hand = states.started()
    return hand.apply(hand.sync("a"))


def _spoiled() -> Hand:
    """Return a run in which something has overwritten a token, by nobody's event."""
    hand = states.written()
    hand.machine.memory[0] = "f" * 16
    return hand


def _indirect_written() -> Hand:
    return states.indirect().write(a=1)


def _packed_digest() -> str:
    """Return the digest of all ten tokens, dead ones included."""
    hand = Hand().admit("a", 9, 0, 1, 2).forward(a=9).write(a=1)
    digest: str = hand.end().reads[0].digest
    return digest


# Outputs.


def _outputs() -> Iterator[Probe]:
    def output(hand: Hand) -> Event:
        return hand.output("a")

    def refused(rule: Rule, case: str, state: Any, forbidden: Make) -> Probe:
        return on_event(rule, case, state, forbidden, (_computed, output))

    yield on_event(Rule.OUTPUT_UNKNOWN, "other-step", _computed, _with(output, step=7), output)
    yield on_event(Rule.OUTPUT_UNKNOWN, "none", _computed, _with(output, vocab_ids=()), output)
    yield on_event(Rule.OUTPUT_UNKNOWN, "two", _computed, _with(output, vocab_ids=(7, 7)), output)

    def old(hand: Hand) -> Event:
        return output(_computed())

    yield refused(Rule.OUTPUT_UNKNOWN, "told", states.running, old)
    yield refused(Rule.OUTPUT_UNKNOWN, "running", states.written, old)
    yield refused(Rule.OUTPUT_UNKNOWN, "chunk", states.chunk_done, old)
    yield refused(
        Rule.OUTPUT_UNKNOWN,
        "preempted",
        lambda: states.written().apply(Preempt("a", 0)),
        lambda h: replace(_computed().output("a"), epoch=1),
    )
    yield refused(
        Rule.OUTPUT_UNKNOWN,
        "of-last-epoch",
        lambda: _computed().apply(Preempt("a", 0)),
        lambda h: replace(_computed().output("a"), epoch=1),
    )
    yield refused(
        Rule.OUTPUT_UNKNOWN,
        "computed-again",
        _prompt_again,
        lambda h: replace(_computed().output("a"), epoch=1, step=h.machine.last_step),
    )


def _computed() -> Hand:
    hand = states.written()
    return hand.apply(hand.end())


def _prompt_again() -> Hand:
    """Return a run in which a has computed its prompt again; its first output is told already."""
    hand = _computed_again()
    hand.apply(hand.sync("a"))
    return hand.apply(hand.end())
