"""Breadth-first search of one configuration, one distinct state once, with shortest counterexamples."""

import gc
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from spec.explore.actions import action
from spec.explore.canonical import key
from spec.explore.choices import Node, options, root
from spec.explore.configurations import Configuration
from spec.explore.judge import Problem, wrong_state, wrong_step
from spec.explore.progress import Progress
from vtoken_ref import events as ev
from vtoken_ref.rules import VTokenError

TICK = 256
"""States from one look at the clock to the next."""

Level = list[tuple[int, Node]]
"""States of one depth, with their numbers."""


@dataclass(slots=True)
class Found:
    """What a search has found.

    Attributes:
        name: of the configuration.
        num_states, num_transitions: distinct states, events taken.
        depth: of the deepest state that was expanded.
        is_complete: every state was expanded.
        is_late: it was stopped by the deadline.
        actions: how often each action was taken.
        problem: what is wrong.
        events: the shortest run that shows it; the last event is the one that was wrongly taken, or
            wrongly refused.
        seconds: wall time.

    """

    name: str
    num_states: int = 0
    num_transitions: int = 0
    depth: int = 0
    is_complete: bool = False
    is_late: bool = False
    actions: Counter[str] = field(default_factory=Counter)
    problem: Problem | None = None
    events: tuple[ev.Event, ...] = ()
    seconds: float = 0.0


class Search:
    """One search.

    Args:
        configuration: what is searched.
        deadline: when to stop, as ``time.monotonic`` tells it; None for never.
        tell: told the number of states now and then.

    """

    def __init__(
        self,
        configuration: Configuration,
        deadline: float | None = None,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.configuration, self._deadline, self._tell = configuration, deadline, tell
        self._symmetries = configuration.symmetries()
        self._number_of: dict[bytes, int] = {}
        self._parents, self._choices = array("q"), array("H")
        self._progress = Progress()
        self.found = Found(configuration.name)

    def run(self) -> Found:
        """Search until everything is seen, something is wrong, or a bound is reached."""
        began = time.monotonic()
        gc.disable()  # Nothing here has cycles, and there are millions of objects to look through.
        try:
            self._search()
        finally:
            gc.enable()
        self.found.num_states = len(self._number_of)
        self.found.seconds = time.monotonic() - began
        return self.found

    def _search(self) -> None:
        start, _ = root(self.configuration)
        self._number_of[key(start, self._symmetries)] = 0
        self._parents.append(-1)
        self._choices.append(0)
        level: Level = [(0, start)]
        while level:
            following: Level = []
            for number, node in level:
                if number % TICK == 0 and self._is_late():
                    return
                self._expand(number, node, following)
                if self.found.problem is not None:
                    return
                if len(self._number_of) >= self.configuration.max_states:
                    return self._judge_progress()
            level = following
            self.found.depth += bool(level)
        self.found.is_complete = True
        self._judge_progress()

    def _is_late(self) -> bool:
        self._tell(len(self._number_of))
        self.found.is_late = self._deadline is not None and time.monotonic() > self._deadline
        return self.found.is_late

    def _expand(self, number: int, node: Node, following: Level) -> None:
        """Take every event that is possible in a state."""
        taken: list[tuple[ev.Event, int]] = []
        after = None
        for choice, (event, is_fact) in enumerate(options(node)):
            after = after or node.copy()
            try:
                after.apply(event)
            except VTokenError as error:
                if is_fact:
                    return self._report(number, event, Problem("fact", f"{event.kind} is refused: {error}"))
                continue
            self.found.num_transitions += 1
            self.found.actions[action(node.runtime, event)] += 1
            for problem in wrong_step(node, event, after):
                return self._report(number, event, problem)
            found = key(after, self._symmetries)
            known = self._number_of.get(found)
            if known is None:
                known = self._number_of[found] = len(self._parents)
                self._parents.append(number)
                self._choices.append(choice)
                for problem in wrong_state(after):
                    return self._report(number, event, problem)
                following.append((known, after))
            taken.append((event, known))
            after = None
        self._progress.add(number, node, taken)

    def _judge_progress(self) -> None:
        number = self._progress.hopeless()
        if number is not None:
            self.found.problem = Problem("I9", "a block is needed and could be won, and no way leads there")
            self.found.events = tuple(self._path(number))

    def _report(self, number: int, event: ev.Event, problem: Problem) -> None:
        self.found.problem = problem
        self.found.events = (*self._path(number), event)

    def _path(self, number: int) -> list[ev.Event]:
        """Return the events that lead to a state, by going there again."""
        numbers: list[int] = []
        while number:
            numbers.append(self._choices[number])
            number = self._parents[number]
        node, events = root(self.configuration)
        for choice in reversed(numbers):
            event = options(node)[choice].event
            node.apply(event)
            events.append(event)
        return events
