"""Runs of a machine with right and wrong events tried in each state, until spec and model differ.

Source: paper 3.2 to 3.5.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from random import Random

from spec.proofs.cosimulate import Cosimulation, Outcome
from spec.proofs.wild_events import CONFIGS, JOBS, MOODS, opening, right_events, temptations, wild_event
from spec.report import Progress
from spec.runtime import Runtime
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine, MachineConfig

NUM_TRIES = 150
"""Events tried in a run."""
TRIES_PER_STATE_CHECK = 8
"""Events tried from one look at the invariant to the next."""

INVARIANT = "invariant"
"""That the inductive invariant of the model holds in every state of the spec."""
REST = "rest"
"""That the spec refuses what the model has no word for, and that other events change nothing of it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A run that ends in an event on which spec and model differ, or in a state that breaks the invariant.

    Attributes:
        name: of the transition, ``INVARIANT`` or ``REST``.
        config: of the run.
        events: of the run, the one that was tried last.
        problem: what they do not agree on.

    """

    name: str
    config: MachineConfig
    events: tuple[ev.Event, ...]
    problem: str


@dataclass(slots=True)
class Tally:
    """What has been tried, by transition or ``REST``: accepted, refused, refused for what is outside.

    ``decisive`` counts by transition and guard the refusals that the model has made by that guard alone.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    decisive: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_states: int = 0
    num_runs: int = 0

    def counter(self, outcome: Outcome) -> Counter[str]:
        """Return where an event is counted that the two agree on."""
        if outcome.accepted:
            return self.accepted
        return self.outside if outcome.is_outside else self.refused


def search(
    cosimulation: Cosimulation, num_runs: int, progress: Progress, end: float | None = None
) -> tuple[Tally, Difference | None]:
    """Return what has been tried in so many runs, and the shortest form of the first difference found.

    Args:
        cosimulation: compares.
        num_runs: the most runs.
        progress: told of each run.
        end: on the monotonic clock, when no run is begun any more.

    """
    tally = Tally()
    found = None
    for seed in range(num_runs):
        if found is not None or (end is not None and time.monotonic() > end):
            break
        progress("cosimulation", seed, num_runs)
        found = _Run(cosimulation, tally, seed).make()
        tally.num_runs += 1
    progress("cosimulation", num_runs, num_runs)
    return tally, None if found is None else _shortened(found, cosimulation)


class _Run:
    def __init__(self, cosimulation: Cosimulation, tally: Tally, seed: int) -> None:
        self.cosimulation, self.tally, self.seed = cosimulation, tally, seed
        self.choose = Random(seed).choice
        self.runtime = Runtime(CONFIGS[seed % len(CONFIGS)], JOBS)
        self.mood = MOODS[seed // len(CONFIGS) % len(MOODS)]
        self.events: list[ev.Event] = []
        self.found: Difference | None = None
        self.is_opened = seed // (len(CONFIGS) * len(MOODS)) % 2 == 1

    def make(self) -> Difference | None:
        """Try events until spec and model differ, or the spec is in no state that it could be in."""
        try:
            return self._make()
        except Exception as error:
            problem = f"the spec is in a state that cannot be: {type(error).__name__}: {error}"
            return Difference(REST, self.runtime.machine.config, tuple(self.events), problem)

    def _make(self) -> Difference | None:
        for event in opening(self.runtime) if self.is_opened else ():
            if found := self._try([event], is_wild=False):
                return found
        for index in range(NUM_TRIES):
            is_wild = self.choose([False, False, True])
            if is_wild:
                wild = wild_event(self.runtime, self.choose, self.mood)
                found = self._try([] if wild is None else [wild], is_wild)
            else:
                found = self._try(right_events(self.runtime, self.choose, self.mood), is_wild)
            if found is None and index % TRIES_PER_STATE_CHECK == 0:
                found = self._look()
            if found is not None:
                return found
        return None

    def _try(self, events: Iterable[ev.Event], is_wild: bool) -> Difference | None:
        """Try events until one is accepted, each after what is nearly the same; go on with that one."""
        for event in events:
            for tempting in [] if is_wild else temptations(self.runtime, event):
                self._compare(tempting)
            is_accepted = self._compare(event)
            if self.found is not None:
                return self.found
            if is_accepted:
                # Most wrong events that are right after all end a request or take its blocks.
                if not is_wild or self.choose([False, False, False, False, True]):
                    self.runtime.apply(event)
                    self.events.append(event)
                return None
        return None

    def _compare(self, event: ev.Event) -> bool:
        """Compare spec and model on an event; tell whether both accept it."""
        machine, tally = self.runtime.machine, self.tally
        outcome = self.cosimulation.try_event(machine, event, self.seed)
        if outcome.problem:
            name = outcome.transitions[0] if outcome.transitions else REST
            events = (*self.events, event)
            self.found = self.found or Difference(name, machine.config, events, outcome.problem)
            return False
        tally.counter(outcome).update(outcome.transitions or (REST,))
        tally.decisive.update(outcome.decisive)
        return outcome.accepted

    def _look(self) -> Difference | None:
        machine = self.runtime.machine
        self.tally.num_states += 1
        broken = self.cosimulation.broken_invariant(machine, self.seed)
        if not broken:
            return None
        return Difference(INVARIANT, machine.config, tuple(self.events), f"{broken} does not hold")


def _shortened(found: Difference, cosimulation: Cosimulation) -> Difference:
    """Return a run that ends in the same difference, of which no request and no two events can go."""
    shorter: Difference | None = found
    while shorter is not None:
        found, shorter = shorter, _shorter(shorter, cosimulation)
    return found


def _shorter(found: Difference, cosimulation: Cosimulation) -> Difference | None:
    """Return the same without a request, an event or two, None when each is needed."""
    for events in _candidates(found.events):
        problem = _problem(found, events, cosimulation)
        if problem:
            return Difference(found.name, found.config, events, problem)
    return None


def _candidates(events: Sequence[ev.Event]) -> Iterator[tuple[ev.Event, ...]]:
    for req_id in (job.req_id for job in JOBS):
        left = tuple(_without_request(events, req_id))
        if left and left != tuple(events) and type(left[-1]) is type(events[-1]):
            yield left
    last = len(events) - 1
    for left_out in chain(combinations(range(last), 1), combinations(range(last), 2)):
        yield tuple(event for index, event in enumerate(events) if index not in left_out)


def _without_request(events: Sequence[ev.Event], req_id: str) -> Iterator[ev.Event]:
    for event in events:
        if isinstance(event, ev.Forward):
            reads = tuple(read for read in event.reads if read.req_id != req_id)
            if reads or not event.reads:
                yield replace(event, reads=reads)
        elif getattr(event, "req_id", "") != req_id:
            yield event


def _problem(found: Difference, events: Sequence[ev.Event], cosimulation: Cosimulation) -> str:
    """Return what is wrong at the end of a run, nothing when it is no run or nothing is."""
    machine = Machine(found.config)
    try:
        for event in events if found.name == INVARIANT else events[:-1]:
            machine.apply(event)
        if found.name == INVARIANT:
            broken = cosimulation.broken_invariant(machine)
            return f"{broken} does not hold" if broken else ""
        outcome = cosimulation.try_event(machine, events[-1])
    except Exception:
        return ""
    is_same = found.name in (outcome.transitions or (REST,))
    return outcome.problem if is_same else ""
