"""The co-simulation as a section: runs of a machine, right and wrong events tried in each state.

What it finds is a run of the executable spec that ends in an event on which spec and model differ.

Source: paper 3.2 to 3.5.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from spec.proofs import relocation
from spec.proofs.cosimulate import GUARDS_OF, Cosimulation, Outcome
from spec.proofs.transition import Transition
from spec.proofs.wild_events import CONFIGS, JOBS, right_event, wild_event
from spec.report import Check, Counterexample, Options, Progress, Section, Status
from spec.runtime import Runtime
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.rules import VTokenError

NUM_RUNS = {True: 60, False: 300}
"""Runs when it is to be quick, and when not."""
NUM_TRIES = 100
"""Events tried in a run."""
INVARIANT = "cosimulation.invariant"


@dataclass(slots=True)
class _Found:
    """A run that ends in an event on which spec and model differ, or in a broken invariant."""

    config: MachineConfig
    events: list[ev.Event]
    name: str
    problem: str


@dataclass(slots=True)
class _Tally:
    """What has been tried, by transition."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    num_states: int = 0

    def count(self, outcome: Outcome) -> None:
        if outcome.accepted:
            self.accepted.update(outcome.transitions)
        elif outcome.is_outside:
            self.outside.update(outcome.transitions)
        else:
            self.refused.update(outcome.transitions)


def run(options: Options, progress: Progress, without: tuple[str, str] | None = None) -> Section:
    """Compare model and spec.

    Args:
        options: how; runs that are not reached in time are left out, and not counted.
        progress: told of each run.
        without: a transition and a guard that the model is to be without.

    """
    begin = time.monotonic()
    transitions = [
        each.without(without[1]) if without is not None and each.name == without[0] else each
        for each in relocation.transitions()
    ]
    names = [_name(each) for each in transitions] + [INVARIANT]
    if not any(map(options.wants, names)):
        return Section("cosimulation", ())
    search = _Search(Cosimulation(transitions), options, progress)
    search.run()
    seconds = (time.monotonic() - begin) / len(names)
    checks = [_check(each, search, seconds) for each in transitions]
    checks.append(_invariant_check(search, seconds))
    return Section("cosimulation", tuple(check for check in checks if options.wants(check.name)))


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks, each with the rules whose guards it compares."""
    found = {_name(each): _rules_of(each) for each in relocation.transitions()}
    return {**found, INVARIANT: ("I1", "I2", "I4", "I6")}


class _Search:
    """Makes runs until one ends in a difference, all are made, or the time is over."""

    def __init__(self, cosimulation: Cosimulation, options: Options, progress: Progress) -> None:
        self.cosimulation = cosimulation
        self.num_runs = NUM_RUNS[options.quick]
        self.progress = progress
        self.end = None if options.deadline_s is None else time.monotonic() + options.deadline_s
        self.tally = _Tally()
        self.found: _Found | None = None
        self.num_made = 0

    def run(self) -> None:
        """Make the runs."""

        @settings(
            max_examples=self.num_runs,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        @given(st.data())
        def make(data: st.DataObject) -> None:
            is_late = self.end is not None and time.monotonic() > self.end
            if self.found is None and not is_late:
                self._make_run(data)

        make()
        if self.found is not None:
            self.found = _shrunk(self.found, self.cosimulation)

    def _make_run(self, data: st.DataObject) -> None:
        def choose(values: Sequence[Any]) -> Any:
            return values[data.draw(st.integers(0, len(values) - 1))]

        self.progress("cosimulation", self.num_made, self.num_runs)
        seed = self.num_made
        self.num_made += 1
        runtime, events = Runtime(choose(CONFIGS), JOBS), []
        for index in range(NUM_TRIES):
            is_wild = choose([False, False, True])
            event = wild_event(runtime, choose) if is_wild else right_event(runtime, choose)
            if event is None:
                continue
            outcome, _ = self.cosimulation.try_event(runtime.machine, event, seed)
            self.tally.count(outcome)
            if outcome.problem:
                name = f"cosimulation.{outcome.transitions[0]}" if outcome.transitions else INVARIANT
                self.found = _Found(runtime.machine.config, [*events, event], name, outcome.problem)
                return
            if outcome.accepted and (not is_wild or choose([False, False, False, True])):
                runtime.apply(event)
                events.append(event)
                if index % 8 == 0 and self._breaks_invariant(runtime.machine, events, seed):
                    return

    def _breaks_invariant(self, machine: Machine, events: Sequence[ev.Event], seed: int) -> bool:
        self.tally.num_states += 1
        broken = self.cosimulation.broken_invariant(machine, seed)
        if broken:
            self.found = _Found(machine.config, list(events), INVARIANT, f"{broken} does not hold")
        return bool(broken)


def _shrunk(found: _Found, cosimulation: Cosimulation) -> _Found:
    """Return a run with fewer events that ends in a difference as well."""
    index = len(found.events) - 2
    while index >= 0:
        events = found.events[:index] + found.events[index + 1 :]
        problem = _problem(found, events, cosimulation)
        if problem:
            found = _Found(found.config, events, found.name, problem)
        index = min(index - 1, len(found.events) - 2)
    return found


def _problem(found: _Found, events: Sequence[ev.Event], cosimulation: Cosimulation) -> str:
    """Return what is wrong at the end of a run, nothing when it is no run or nothing is."""
    machine = Machine(found.config)
    try:
        for event in events[:-1]:
            machine.apply(event)
        if found.name == INVARIANT and events:
            machine.apply(events[-1])
    except VTokenError:
        return ""
    if found.name == INVARIANT:
        broken = cosimulation.broken_invariant(machine)
        return f"{broken} does not hold" if broken else ""
    return cosimulation.try_event(machine, events[-1])[0].problem


def _check(transition: Transition, search: _Search, seconds: float) -> Check:
    name, tally, found = _name(transition), search.tally, search.found
    accepted, refused = tally.accepted[transition.name], tally.refused[transition.name]
    outside = tally.outside[transition.name]
    figures = {"accepted": accepted, "refused": refused, "outside": outside}
    rules = _rules_of(transition)
    if found is not None and found.name == name:
        return Check(name, Status.REFUTED, found.problem, seconds, rules, figures, _counterexample(found))
    counts = (
        f"{accepted} accepted and {refused} refused by both, {outside} refused for what is not in the model"
    )
    if not accepted or (transition.guards and not refused + outside):
        return Check(name, Status.UNKNOWN, f"not tried enough: {counts}", seconds, rules, figures)
    return Check(name, Status.NO_COUNTEREXAMPLE, counts, seconds, rules, figures)


def _invariant_check(search: _Search, seconds: float) -> Check:
    found, ids = search.found, ("I1", "I2", "I4", "I6")
    figures = {"states": search.tally.num_states}
    if found is not None and found.name == INVARIANT:
        return Check(INVARIANT, Status.REFUTED, found.problem, seconds, ids, figures, _counterexample(found))
    if not search.tally.num_states:
        return Check(INVARIANT, Status.UNKNOWN, "no state was looked at", seconds, ids, figures)
    detail = f"it holds in {search.tally.num_states} states of {search.num_made} runs"
    return Check(INVARIANT, Status.NO_COUNTEREXAMPLE, detail, seconds, ids, figures)


def _counterexample(found: _Found) -> Counterexample:
    return Counterexample(found.name, found.config, tuple(found.events), found.problem)


def _name(transition: Transition) -> str:
    return f"cosimulation.{transition.name}"


def _rules_of(transition: Transition) -> tuple[str, ...]:
    return tuple(sorted({rule.id for name, rule in GUARDS_OF if name == transition.name}))
