"""Scheduler and worker with async depth 1: steps on their way, the worker's window, reports."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Call, Make, Probe, State, on_event
from vtoken_ref.events import (
    Abort,
    Alloc,
    Defer,
    Deliver,
    Event,
    Evict,
    Forward,
    Free,
    Lease,
    Preempt,
    Release,
    Report,
)
from vtoken_ref.protocol import merged_block_list
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _steps()
    yield from _starts()
    yield from _window()
    yield from _reports()
    yield from _deliveries()
    yield from _reserves()
    yield from _fences()


def _begin(hand: Hand) -> Event:
    return hand.begin(a=1)


def _start(hand: Hand) -> Event:
    return hand.start()


def _deliver(hand: Hand) -> Event:
    return Deliver(0)


def _with(make: Any, **changes: Any) -> Make:
    return lambda hand: replace(make(hand), **changes)


# Steps.


def _steps() -> Iterator[Probe]:
    yield on_event(
        Rule.MESSAGE_ORDER,
        "report-depth-0",
        states.running,
        lambda h: Report(1, ()),
        (states.in_window, lambda h: h.report()),
    )
    yield on_event(
        Rule.MESSAGE_ORDER,
        "deliver-depth-0",
        states.running,
        lambda h: Deliver(1),
        (states.reported, _deliver),
    )
    yield on_event(
        Rule.MESSAGE_ORDER,
        "start-depth-0",
        states.in_forward,
        lambda h: Forward(0, "start", h.begin().reads),
        (states.begun, _start),
    )
    yield on_event(
        Rule.STEP_ORDER,
        "begin-two-ahead",
        states.two_ahead,
        _begin,
        (states.in_window, _begin),
        (states.reported, _begin),
    )
    yield on_event(
        Rule.STEP_ORDER, "end-not-started", states.begun, _end_of_begun, (_written, lambda h: h.end())
    )
    yield on_event(
        Rule.TAIL_CAPACITY,
        "begin",
        lambda: _computed(max_query=2),
        lambda h: h.begin(a=3),
        lambda h: h.begin(a=2),
        (_two_blocks, lambda h: h.begin(a=3)),
    )
    yield on_event(
        Rule.STEP_ORDER,
        "end-run-undelivered",
        _ended_undelivered,
        lambda h: h.end_of_run(),
        (_ended_delivered, lambda h: h.end_of_run()),
    )
    yield on_event(
        Rule.TOKEN_DIFFERS, "sync-two-ahead", _two_unsampled, lambda h: h.sync("a"), lambda h: h.sync("a", 1)
    )
    yield on_event(
        Rule.TOKEN_DIFFERS,
        "output-computed",
        _computed_before_told,
        lambda h: replace(h.output("a"), vocab_ids=(7,)),
        lambda h: replace(h.output("a"), vocab_ids=(6,)),
        (_written_and_reported, lambda h: replace(h.output("a"), vocab_ids=(7,))),
    )


def _end_of_begun(hand: Hand) -> Event:
    return Forward(0, "end", tuple(hand.machine.forwards[0].reads.values()))


def _written() -> Hand:
    return states.ahead().write(a=6)


def _computed(max_query: int = 8, num_tokens: int = 6) -> Hand:
    """Return a run in which the prompt of a is half computed, in blocks 0 to 2."""
    hand = Hand(async_depth=1, max_query=max_query).admit("a", 10, 0, 1, 2)
    return hand.step(a=2)


def _two_blocks() -> Hand:
    """Return one with async depth 0, where max_query says nothing."""
    return Hand(max_query=2).admit("a", 10, 0, 1, 2).forward(a=2)


def _ended_undelivered() -> Hand:
    """Return a run that is over but for the delivery of its last report."""
    return states.reported().apply(Abort("a", 0))


def _ended_delivered() -> Hand:
    return _ended_undelivered().apply(Deliver(0), Free((0, 1)))


def _two_unsampled() -> Hand:
    """Return a run in which a step computes two tokens of a after its prompt, none of them sampled yet."""
    hand = states.in_window()
    hand.apply(hand.report()).apply(hand.begin(a=2))
    return hand.apply(hand.start())


def _computed_before_told() -> Hand:
    """Return a run in which the worker has computed the output of step 0 before the scheduler knew it."""
    hand = states.two_ahead()
    hand.apply(hand.report()).run_begun()
    return hand.apply(Deliver(0))


def _written_and_reported() -> Hand:
    return states.reported().apply(Deliver(0))


# Starts.


def _starts() -> Iterator[Probe]:
    yield on_event(
        Rule.MESSAGE_ORDER,
        "start-none",
        states.ahead,
        lambda h: Forward(0, "start", ()),
        (states.begun, _start),
    )
    yield on_event(
        Rule.MESSAGE_ORDER,
        "start-again",
        states.started,
        lambda h: _start(states.begun()),
        (states.begun, _start),
    )
    yield on_event(Rule.MESSAGE_ORDER, "start-running", _second_begun, _start, (_second_alone, _start))
    yield on_event(
        Rule.MESSAGE_ORDER, "start-in-window", states.two_ahead, _start, lambda h: (h.report(), h.start())
    )
    yield on_event(Rule.MESSAGE_ORDER, "start-other", _two_begun, _start_second, _start)
    yield on_event(Rule.MESSAGE_ORDER, "start-reads", states.begun, _with(_start, reads=()), _start)
    yield on_event(
        Rule.MESSAGE_ORDER,
        "start-other-reads",
        states.begun,
        lambda h: replace(h.start(), reads=(h.start().reads[0]._replace(num_query=5),)),
        _start,
    )
    yield on_event(
        Rule.BUDGET_EXCEEDED,
        "start",
        lambda: _second_step(5, ()),
        _start,
        (lambda: _second_step(5, (0,)), _start),
        (lambda: _second_step(None, ()), _start),
    )
    yield on_event(Rule.CAPACITY, "start", _block_lost, _start, (lambda: _second_step(None, ()), _start))
    yield on_event(
        Rule.FORWARD_DURING_PLAN,
        "start",
        _planned_and_begun,
        _start,
        lambda h: (h.copy("a"), h.cancel("a"), h.start()),
    )


def _second_begun() -> Hand:
    """Return a run in which step 0 runs and step 1 has begun."""
    hand = states.started()
    return hand.apply(hand.begin(a=1))


def _second_alone() -> Hand:
    """Return one in which step 0 is reported."""
    hand = states.reported()
    return hand.apply(hand.begin(a=1))


def _two_begun() -> Hand:
    """Return a run in which the messages of two steps are on their way."""
    hand = states.begun()
    return hand.apply(hand.begin(a=1))


def _start_second(hand: Hand) -> Event:
    return Forward(1, "start", tuple(hand.machine.forwards[1].reads.values()))


def _second_step(budget: int | None, evicted: tuple[int, ...]) -> Hand:
    """Return a run in which step 1 has begun; a was admitted with a budget and has evicted tokens."""
    hand = Hand(async_depth=1, max_query=8).admit("a", 6, 0, 1, budget=budget).forward(a=6)
    hand.apply(Evict("a", 0, evicted)).hand_over()
    return hand.apply(hand.begin(a=1))


def _block_lost() -> Hand:
    """Return a run in which the worker has lost a block, by nobody's event."""
    hand = _second_step(None, ())
    del hand.machine.workers["a"].block_ids[1]
    return hand


def _planned_and_begun() -> Hand:
    """Return a run in which a plan of a is in flight when its next step is to start."""
    hand = states.leased_ahead()
    hand.apply(hand.plan("a", "out_of_place", (8,), reserve=1)).apply(hand.report("a")).apply(Deliver(1))
    return hand.outputs("a").apply(hand.begin(a=1))


# The worker's window.


def _window() -> Iterator[Probe]:
    outside: dict[str, Make] = {
        "evict": lambda h: h.evict("a", 0),
        "defer": lambda h: Defer("a", 0, 1),
        "release": lambda h: Release("a", 0, ()),
    }
    for case, make in outside.items():
        for state in (states.settled, states.started, states.reported):
            yield on_event(
                Rule.WORKER_IDLE,
                f"{case}-{state.__name__}",
                state,
                make,
                (states.in_window, make),
                (states.running, make),
            )
    yield on_event(Rule.WORKER_IDLE, "plan", _sparse_settled, _plan_ahead, (_sparse_window, _plan_ahead))


def _sparse_window() -> Hand:
    """Return a run in whose window tokens 0 and 5 of a are live."""
    return states.in_window().apply(Evict("a", 0, (1, 2, 3, 4)))


def _sparse_settled() -> Hand:
    return _sparse_window().hand_over()


def _plan_ahead(hand: Hand) -> Event:
    return hand.plan("a", reserve=2)


# Reports.


def _reports() -> Iterator[Probe]:
    yield on_event(
        Rule.MESSAGE_ORDER,
        "report-none",
        states.settled,
        lambda h: Report(0, ()),
        (states.in_window, lambda h: h.report()),
    )
    yield on_event(
        Rule.MESSAGE_ORDER,
        "report-running",
        _written,
        lambda h: Report(0, ()),
        (states.in_window, lambda h: h.report()),
    )
    yield on_event(
        Rule.MESSAGE_ORDER,
        "report-other",
        states.in_window,
        lambda h: replace(h.report(), step=1),
        lambda h: h.report(),
    )
    yield on_event(
        Rule.PLAN_UNFINISHED,
        "in-place",
        _planned_in_place,
        lambda h: h.report(),
        lambda h: (h.cancel("a"), h.report()),
        (_planned_out, lambda h: h.report()),
    )
    yield on_event(
        Rule.PLAN_UNFINISHED, "orphan", _orphan_in_window, lambda h: h.report(), _late_copy_and_report
    )
    yield on_event(
        Rule.REPORT_DIFFERS, "twice", states.in_window, lambda h: h.report("a", "a"), lambda h: h.report("a")
    )
    yield on_event(
        Rule.REPORT_DIFFERS,
        "unknown",
        states.in_window,
        lambda h: replace(h.report("a"), layouts=(h.layout("a")._replace(req_id="x"),)),
        lambda h: h.report("a"),
    )
    wrong: dict[str, Any] = {
        "epoch": 1,
        "made_for": (0,),
        "block_ids": (0,),
        "num_tokens": 5,
        "length": 5,
        "leased_blocks": (8,),
        "wants": 1,
    }
    for field, value in wrong.items():
        yield on_event(
            Rule.REPORT_DIFFERS,
            f"wrong-{field}",
            states.in_window,
            partial(_wrong_layout, field=field, value=value),
            lambda h: h.report("a"),
        )
    changed: dict[str, State] = {
        "blocks": _released_unwritten,
        "leases": lambda: states.leased_ahead().apply(Release("a", 0, (9,))),
        "length": _recycled,
        "wants": lambda: states.in_window().apply(Defer("a", 0, 1)),
    }
    for case, state in changed.items():
        yield on_event(
            Rule.REPORT_DIFFERS, f"leaves-out-{case}", state, lambda h: h.report(), lambda h: h.report("a")
        )
    yield on_event(
        Rule.REPORT_DIFFERS,
        "leaves-out-one",
        _two_released,
        lambda h: h.report("b"),
        lambda h: h.report("a", "b"),
        lambda h: h.report("b", "a"),
    )


def _wrong_layout(hand: Hand, field: str, value: Any) -> Event:
    layout = hand.layout("a")._replace(**{field: value})
    return replace(hand.report("a"), layouts=(layout,))


def _planned_in_place() -> Hand:
    hand = _sparse_window()
    return hand.apply(_plan_ahead(hand))


def _planned_out() -> Hand:
    hand = states.leased_ahead()
    return hand.apply(hand.plan("a", "out_of_place", (8,), reserve=1))


def _orphan_in_window() -> Hand:
    """Return a run in whose window copies of a, which was preempted, still run."""
    hand = _planned_out()
    hand.hand_over("a").apply(Preempt("a", 0))
    return hand.admit("b", 2, 2).forward(b=2)


def _late_copy_and_report(hand: Hand) -> tuple[Event, ...]:
    return hand.late_copy("a", 0), hand.report()


def _released_unwritten() -> Hand:
    """Return a run in whose window a gives up block 2, which it does not need."""
    hand = Hand(async_depth=1, max_query=1).admit("a", 6, 0, 1, 2).forward(a=1)
    return hand.apply(Release("a", 0, (2,)))


def _recycled() -> Hand:
    """Return a run in whose window a is no longer than before: its new token is where a dead one was."""
    hand = states.in_window().apply(Evict("a", 0, (1, 2))).hand_over()
    hand.apply(hand.begin(a=1)).apply(hand.start())
    hand.apply(hand.sync("a", slots=(1,)))
    return hand.apply(hand.end())


def _two_released() -> Hand:
    hand = Hand(async_depth=1, max_query=1).admit("a", 6, 0, 1).admit("b", 6, 2, 3).forward(a=1, b=1)
    return hand.apply(Release("a", 0, (1,)), Release("b", 0, (3,)))


# Deliveries.


def _deliveries() -> Iterator[Probe]:
    yield on_event(
        Rule.MESSAGE_ORDER, "deliver-early", states.in_window, _deliver, lambda h: (h.report(), Deliver(0))
    )
    yield on_event(Rule.MESSAGE_ORDER, "deliver-again", states.settled, _deliver, (states.reported, _deliver))
    yield on_event(
        Rule.MESSAGE_ORDER,
        "deliver-other-first",
        _two_reported,
        lambda h: Deliver(1),
        lambda h: (Deliver(0), Deliver(1)),
    )
    damages: dict[str, Any] = {"num_tokens": 5, "made_for": (1,)}
    for field, value in damages.items():
        yield on_event(
            Rule.REPORT_BASE,
            f"damaged-{field}",
            partial(_damaged, field=field, value=value),
            _deliver,
            (_reported_in_full, _deliver),
            (_relocated_and_begun, lambda h: Deliver(2)),
            (_relocated_and_forgotten, _deliver),
        )
    made = {"other": (1, 0), "longer": (0, 1, 2, 3)}
    for case, made_for in made.items():
        yield Probe(
            f"report-base/list-{case}",
            Rule.REPORT_BASE,
            object,
            _merges(made_for),
            (_merges((0, 1)),),
        )


def _merges(made_for: tuple[int, ...]) -> Callable[[object], Call]:
    return lambda _: partial(merged_block_list, "a", [0, 1, 2], made_for, [0])


def _two_reported() -> Hand:
    """Return a run in which the reports of steps 0 and 1 are on their way."""
    hand = states.two_ahead()
    hand.apply(hand.report()).run_begun().apply(hand.end())
    return hand.apply(hand.report("a"))


def _reported_in_full() -> Hand:
    hand = states.in_window()
    return hand.apply(hand.report("a"))


def _damaged(field: str, value: Any) -> Hand:
    """Return a run in which a report was changed on its way, by nobody's event."""
    hand = _reported_in_full()
    (layout,) = hand.machine.reports[0].layouts
    hand.machine.reports[0] = Report(0, (layout._replace(**{field: value}),))
    return hand


def _relocated_and_begun() -> Hand:
    """Return a run in which step 0 reports that a was packed, and step 1 has begun with a and b."""
    hand = Hand(async_depth=1, max_query=2).admit("a", 8, 0, 1, 3).admit("b", 6, 2, 4)
    hand.apply(hand.begin(a=2, b=1)).run_begun().apply(hand.end()).apply(hand.report())
    hand.apply(hand.begin(a=2, b=2)).run_begun().apply(Deliver(0))
    hand.apply(hand.begin(a=2, b=2)).apply(hand.end()).apply(hand.report())
    hand.run_begun().apply(Deliver(1))
    hand.apply(hand.begin(a=2, b=1)).apply(hand.end()).apply(Evict("a", 0, (0, 1, 2)))
    hand.apply(hand.plan_of("a", (0, 1), (0,), "in_place")).apply(hand.copy("a")).apply(hand.commit("a"))
    return hand.apply(hand.report("a", "b"))


def _relocated_and_forgotten() -> Hand:
    """Return a run in which a was preempted while a report of it was on its way."""
    return _reported_in_full().apply(Preempt("a", 0))


# What a step under way may need stays.


def _reserves() -> Iterator[Probe]:
    def release(hand: Hand) -> Event:
        return Release("a", 0, (2,))

    def plan(hand: Hand) -> Event:
        return hand.plan_of("a", (0, 1), (0,), "in_place")

    yield on_event(
        Rule.TAIL_CAPACITY,
        "release",
        lambda: _with_spare_block(8),
        release,
        (lambda: _with_spare_block(7), release),
        (lambda: _with_spare_block(1), release),
        (lambda: Hand().admit("a", 6, 0, 1, 2).forward(a=1), release),
    )
    yield on_event(
        Rule.TAIL_CAPACITY,
        "release-during-plan",
        lambda: (hand := _three_live_and_spare()).apply(plan(hand)),
        release,
        (_three_live_and_spare, release),
        (lambda: (h := states.leased_ahead()).apply(plan(h)), lambda h: Release("a", 0, (9,))),
    )
    yield on_event(
        Rule.PLAN_DESTINATIONS,
        "reserve",
        lambda: _three_live(2),
        plan,
        (lambda: _three_live(1), plan),
        (lambda: Hand().admit("a", 6, 0, 1).forward(a=6).apply(Evict("a", 0, (1, 2, 3))), plan),
        (_three_live_and_spare, plan),
    )
    yield on_event(
        Rule.NOT_HELD,
        "release-unknown-ahead",
        states.leased_ahead,
        lambda h: Release("a", 0, (11,)),
        lambda h: Release("a", 0, (9,)),
    )
    yield on_event(
        Rule.NOT_HELD,
        "release-twice-ahead",
        states.leased_ahead,
        lambda h: Release("a", 0, (9, 9)),
        lambda h: Release("a", 0, (9,)),
    )
    yield on_event(
        Rule.NOT_HELD,
        "release-untold",
        lambda: states.leased_ahead().apply(Alloc("a", (3,))),
        lambda h: Release("a", 0, (3,)),
        (lambda: _with_spare_block(1), release),
    )


def _with_spare_block(max_query: int) -> Hand:
    """Return a run in whose window a has one token in block 0, and empty blocks 1 and 2."""
    return Hand(async_depth=1, max_query=max_query).admit("a", 6, 0, 1, 2).forward(a=1)


def _three_live(max_query: int) -> Hand:
    """Return a run in whose window three of a's six tokens are live, two slots are unwritten."""
    hand = Hand(async_depth=1, max_query=max_query).admit("a", 6, 0, 1)
    for _ in range(5):
        hand.step(a=1)
    return hand.forward(a=1).apply(Evict("a", 0, (1, 2, 3)))


def _three_live_and_spare() -> Hand:
    """Return one in which a also has an empty block."""
    hand = Hand(async_depth=1, max_query=2).admit("a", 6, 0, 1, 2)
    return hand.step(a=2).step(a=2).forward(a=2).apply(Evict("a", 0, (1, 2, 3)))


# Blocks come free when the scheduler has heard that nothing touches them.


def _fences() -> Iterator[Probe]:
    yield on_event(
        Rule.FENCE,
        "undelivered",
        lambda: states.reported().apply(Abort("a", 0)),
        lambda h: Free((0,)),
        lambda h: (Deliver(0), Free((0, 1))),
    )
    yield on_event(
        Rule.FENCE,
        "given-up",
        lambda: _relocated_and_begun().apply(Deliver(2)),
        lambda h: Free((1,)),
        (_next_delivered, lambda h: Free((1,))),
    )
    yield on_event(
        Rule.FENCE,
        "dead-epoch-untold",
        _preempted_with_lease,
        lambda h: Free((8,)),
        (_told, lambda h: Free((8,))),
    )
    yield on_event(
        Rule.FENCE, "dead-epoch-told", _being_told, lambda h: Free((8,)), (_told, lambda h: Free((8,)))
    )
    yield on_event(
        Rule.STALE_EPOCH,
        "worker-behind",
        _preempted_in_window,
        lambda h: replace(h.evict("a", 0), epoch=1),
        lambda h: h.evict("a", 0),
    )
    yield on_event(
        Rule.UNKNOWN_REQUEST,
        "worker-untold",
        lambda: states.in_window().admit("c", 1),
        lambda h: Evict("c", 0, ()),
        lambda h: Evict("a", 0, ()),
    )


def _next_delivered() -> Hand:
    hand = _relocated_and_begun().apply(Deliver(2))
    hand.run_begun().apply(hand.end())
    return hand.apply(hand.report()).apply(Deliver(3))


def _preempted_with_lease() -> Hand:
    """Return a run in which a, to which blocks are leased, was preempted; the worker has not heard of it."""
    return states.settled().apply(Lease("a", 0, (8,)), Preempt("a", 0))


def _being_told() -> Hand:
    """Return one in which the step that tells it has ended and is not reported."""
    hand = _preempted_with_lease().admit("b", 2, 2)
    return hand.forward(b=2)


def _told() -> Hand:
    return _being_told().hand_over()


def _preempted_in_window() -> Hand:
    return states.in_window().apply(Preempt("a", 0))
