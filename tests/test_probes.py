"""Probes find nothing wrong with the spec, cover every rule, and can fail in each of their ways."""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spec.probes import states
from spec.probes.probe import Probe, freeze, on_effect, on_event, on_method, problem_of
from spec.probes.section import all_probes, covers, run
from spec.report import Options, Status
from vtoken_ref.events import Admit, Alloc, Evict, Free
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import Rule, VTokenError

# Rules about files, which the machine never sees; and one that is only looked at in whole states.
NOT_IN_TRANSITIONS = {"trace-not-json", "trace-format", "trace-truncated", "query-not-last"}


def ignore(label: str, done: int, total: int | None) -> None:
    pass


def test_every_probe_finds_what_it_expects() -> None:
    section = run(Options(), ignore)
    assert [(check.name, check.detail) for check in section.checks if check.detail] == []
    assert section.count(Status.NO_COUNTEREXAMPLE) == len(section.checks) > 400


def test_names_are_unique_and_begin_with_the_code_of_the_rule() -> None:
    probes = list(all_probes())
    assert [name for name, count in Counter(probe.name for probe in probes).items() if count > 1] == []
    for probe in probes:
        code = probe.error.code if isinstance(probe.error, Rule) else probe.error.__name__
        assert probe.name.startswith(f"{code}/")
    assert covers().keys() == {probe.name for probe in probes}


def test_every_rule_that_the_spec_raises_has_a_probe_that_breaks_it() -> None:
    paths = Path(__file__).parents[1].joinpath("vtoken_ref").rglob("*.py")
    text = "".join(path.read_text() for path in paths if path.name not in ("rules.py", "invariants.py"))
    raised = {Rule[name].code for name in re.findall(r"\bRule\.([A-Z_]+)\b", text)}
    broken = {
        probe.error.code
        for probe in all_probes()
        if isinstance(probe.error, Rule) and probe.forbidden is not None
    }
    assert broken == raised
    assert {rule.code for rule in Rule} - broken == NOT_IN_TRANSITIONS


def test_only_and_the_deadline_are_kept() -> None:
    some = run(Options(only=("fence/",)), ignore)
    assert {check.name.split("/")[0] for check in some.checks} == {"fence"}
    late = run(Options(only=("fence/",), deadline_s=-1.0), ignore)
    assert {check.status for check in late.checks} == {Status.UNKNOWN}


# Each way in which a probe can fail.


def alloc(*block_ids: int) -> Any:
    return lambda hand: Alloc("a", block_ids)


@pytest.mark.parametrize(
    ("probe", "problem"),
    [
        (on_event(Rule.NOT_FREE, "x", states.running, alloc(3)), "it is accepted"),
        (on_event(Rule.FENCE, "x", states.running, alloc(0)), "it is refused by another rule: VT-POOL-002"),
        (on_event(Rule.NOT_FREE, "x", states.running, alloc(0), alloc(2)), "its legal twin 0: it is refused"),
        (
            on_event(Rule.NOT_FREE, "x", states.running, alloc(0), alloc(3), (states.ended, alloc(3))),
            "its legal twin 1: it is refused: VTokenError: VT-MAP-001",
        ),
        (
            on_event(Rule.NOT_FREE, "x", lambda: states.ended().apply(Evict("a", 0, ())), alloc(0)),
            "the state cannot be made: VTokenError",
        ),
        (
            on_method(Rule.NOT_FREE, "x", lambda: BlockPool(range(2), 0), ("alloc", "a", (object(),))),
            "it is refused by another rule: VT-POOL-001",
        ),
        (on_method(Rule.NOT_FREE, "x", lambda: BlockPool(range(2), 0), ("alloc", "a")), "TypeError"),
        (on_effect(Rule.LEAK, "x", lambda: [1], len, 2), "its legal twin 0: it comes to 1, not 2"),
    ],
)
def test_a_probe_that_does_not_hold_says_why(probe: Probe, problem: str) -> None:
    assert problem in problem_of(probe)


class Careless:
    """Changes before it checks."""

    def __init__(self) -> None:
        self.blocks = [1]

    def take(self) -> None:
        self.blocks.clear()
        raise VTokenError(Rule.LEAK, "it is gone")


def test_a_refusal_that_changes_something_is_noticed() -> None:
    assert problem_of(on_method(Rule.LEAK, "x", Careless, ("take",))) == (
        "it is refused, and yet something has changed"
    )


def test_a_state_that_breaks_an_invariant_after_a_legal_event_is_noticed() -> None:
    def spoil(hand: Any) -> Any:
        hand.machine.pool.free_blocks.add(0)
        return Admit("c", 1, None)

    probe = on_event(Rule.NOT_FREE, "x", states.running, alloc(0), spoil)
    assert problem_of(probe) == "its legal twin 0: after it, some block is in no state or in two"


@pytest.mark.parametrize(
    "change",
    [
        lambda hand: hand.machine.memory.update({0: "f" * 16}),
        lambda hand: hand.machine.pool.free_blocks.remove(11),
        lambda hand: hand.machine.pool.holders[0].add("b"),
        lambda hand: hand.machine.table._requests["a"].slots.__setitem__(0, 1),
        lambda hand: setattr(hand.machine.requests["a"], "length", 7),
        lambda hand: setattr(hand.machine.workers["a"], "in_forward", 9),
        lambda hand: hand.machine.steps.update({9: ()}),
        lambda hand: setattr(hand.machine.gate, "num_attempts", 1),
        lambda hand: hand.apply(Free(())),
    ],
)
def test_a_frozen_state_shows_every_change(change: Any) -> None:
    hand = states.running()
    before = freeze(hand.machine)
    assert freeze(states.running().machine) == before == freeze(hand.machine)
    change(hand)
    assert freeze(hand.machine) != before


def test_what_is_only_kept_to_be_fast_is_no_part_of_the_state() -> None:
    hand = states.running()
    before = freeze(hand.machine)
    hand.machine.workers["a"].resident_entries = None
    assert freeze(hand.machine) == before
    hand.machine.visible_digest("a")
    assert freeze(hand.machine) == before


def test_a_probe_of_an_exception_wants_just_that_one() -> None:
    def fail(error: Exception) -> None:
        raise error

    right = Probe("ValueError/x", ValueError, object, lambda _: partial(fail, ValueError()), ())
    assert problem_of(right) == ""
    assert "KeyError" in problem_of(replace(right, forbidden=lambda _: partial(fail, KeyError())))
    assert "VT-POOL-007" in problem_of(
        replace(right, forbidden=lambda _: partial(fail, VTokenError(Rule.LEAK, "")))
    )
