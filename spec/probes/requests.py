"""Requests enter and leave, epochs, and how a run ends."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Make, Probe, State, on_event
from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Cache,
    Defer,
    Event,
    Finish,
    Free,
    Lease,
    Preempt,
    Release,
)
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _entering()
    yield from _naming()
    yield from _ending()


def _entering() -> Iterator[Probe]:
    def new(hand: Hand) -> Event:
        return Admit("c", 1, 1)

    yield on_event(Rule.REQUEST_EXISTS, "alive", states.running, lambda h: Admit("a", 3, None), new)
    yield on_event(Rule.REQUEST_EXISTS, "ended", states.ended, lambda h: Admit("a", 3, None), new)
    yield on_event(Rule.TRACE_FIELD, "no-prompt", states.fresh, lambda h: Admit("a", 0, None), new)
    yield on_event(
        Rule.TRACE_FIELD, "no-budget", states.fresh, lambda h: Admit("a", 3, 0), lambda h: Admit("a", 3, None)
    )


def _one_computed() -> Hand:
    hand = Hand().admit("a", 1, 0).write(a=1)
    return hand.apply(hand.end())


LEGAL: tuple[tuple[str, State, Any], ...] = (
    ("alloc", states.running, lambda h: Alloc("a", (3,))),
    ("lease", states.running, lambda h: Lease("a", 0, (3,))),
    ("cache", states.running, lambda h: Cache("a", 0, (0,))),
    ("share", states.cached, lambda h: h.share("b", (0, 1), 8)),
    ("sync", states.in_forward, lambda h: h.sync("a")),
    ("evict", states.running, lambda h: h.evict("a", 0)),
    ("defer", states.running, lambda h: Defer("a", 0, 1)),
    ("plan", states.scattered, lambda h: h.plan("a")),
    ("copy", states.planned, lambda h: h.copy("a")),
    ("commit", states.copied, lambda h: h.commit("a")),
    ("cancel", states.planned, lambda h: h.cancel("a")),
    ("release", states.dead_block, lambda h: Release("a", 0, (0,))),
    ("output", _one_computed, lambda h: h.output("a")),
    ("preempt", states.running, lambda h: Preempt("a", 0)),
    ("abort", states.running, lambda h: Abort("a", 0)),
    ("finish", states.running, lambda h: Finish("a", 0, "stop")),
    ("evict-ahead", states.leased_ahead, lambda h: h.evict("a", 0)),
    ("release-ahead", states.leased_ahead, lambda h: Release("a", 0, (9,))),
    ("plan-ahead", states.leased_ahead, lambda h: h.plan("a", "out_of_place", (8,))),
)
"""A legal event of every kind that names a request, with the state in which it is."""


def _naming() -> Iterator[Probe]:
    for case, state, legal in LEGAL:
        yield on_event(Rule.UNKNOWN_REQUEST, case, state, _changed(legal, req_id="x"), legal)
        if case != "alloc":
            yield on_event(Rule.STALE_EPOCH, f"{case}-later", state, _changed(legal, epoch=1), legal)
            yield on_event(Rule.STALE_EPOCH, f"{case}-earlier", state, _changed(legal, epoch=-1), legal)


def _changed(legal: Any, **changes: Any) -> Make:
    return lambda hand: replace(legal(hand), **changes)


def _ending() -> Iterator[Probe]:
    def end(hand: Hand) -> Event:
        return hand.end_of_run()

    ends = (states.all_free, end)
    yield on_event(Rule.REQUEST_LEFT, "alive", states.running, end, ends)
    yield on_event(Rule.LEAK, "fenced", states.ended, end, ends)
    for field in ("num_events", "num_requests", "num_free_blocks"):
        yield on_event(Rule.TRACE_COUNTS, field, states.all_free, _miscounted(field), end)
    yield on_event(
        Rule.STEP_ORDER,
        "step-left",
        _with_step,
        end,
        lambda h: (h.end(), h.end_of_run(num_events=h.machine.num_events + 1)),
    )

    def new(hand: Hand) -> Event:
        return Admit("c", 1, None)

    yield on_event(Rule.TRACE_AFTER_END, "admit", states.over, new, (states.all_free, new))
    yield on_event(
        Rule.TRACE_AFTER_END, "free", states.over, lambda h: Free(()), (states.all_free, lambda h: Free(()))
    )
    yield on_event(Rule.TRACE_AFTER_END, "end", states.over, end, ends)


def _miscounted(field: str) -> Make:
    return lambda hand: hand.end_of_run(**{field: getattr(hand.end_of_run(), field) + 1})


def _with_step() -> Hand:
    hand = states.all_free()
    return hand.apply(hand.begin())
