"""What one run of a state machine has done, and rules that count themselves."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import rule as hypothesis_rule

from spec.machines.oracle import Disagreement
from spec.report import Counterexample


@dataclass(slots=True)
class Tally:
    """What the examples of one run of a state machine have done.

    Attributes:
        rules: how often each rule has done something.
        happened: how often each thing of note happened, e.g. ``took commit`` and ``refused fence``.
        examples: examples run.
        steps: events or calls given to the spec.
        problem: of the smallest failing example so far, empty for none.
        num_steps: its events or calls.
        failure: its events, where there are some.

    """

    rules: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    examples: int = 0
    steps: int = 0
    problem: str = ""
    num_steps: int = 0
    failure: Counterexample | None = None

    def fail(self, problem: str, num_steps: int, failure: Counterexample | None = None) -> None:
        """Keep an example that failed, if there is no smaller one."""
        if not self.problem or num_steps <= self.num_steps:
            self.problem, self.num_steps, self.failure = problem, num_steps, failure


class OutOfTime(BaseException):
    """The time of the run is over; not caught by Hypothesis."""


class Counted(RuleBasedStateMachine):
    """A state machine that counts what it does.

    Attributes:
        tally: of the whole run.
        tick: called before each event or call; raises ``OutOfTime``.
        has_failed: whether this example has.

    """

    tally: ClassVar[Tally] = Tally()
    tick: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    has_failed: bool = False

    def begin_step(self) -> None:
        """Count an event or call before it is given to the spec."""
        self.tick()  # type: ignore[misc]
        self.tally.steps += 1

    def happened(self, what: str) -> None:
        """Count something of note."""
        self.tally.happened[what] += 1

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep what this example has done as the counterexample when something is wrong."""
        try:
            yield
        except Exception as error:
            if not self.has_failed:
                self.has_failed = True
                is_said = isinstance(error, Disagreement)
                self.keep(str(error) if is_said else f"{type(error).__name__}: {error}")
            raise

    def keep(self, problem: str) -> None:
        """Give the tally what this example has done."""
        raise NotImplementedError


def is_changed(before: bytes, after: bytes) -> bool:
    """Tell whether two pickled states differ, in more than the order of a set."""
    return before != after and bool(pickle.loads(before) != pickle.loads(after))


def rule(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a rule of a method of a ``Counted``; it counts as fired when it has given the spec something."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def counted(machine: Counted, **arguments: Any) -> None:
            before = machine.tally.steps
            with machine.recorded():
                function(machine, **arguments)
            machine.tally.rules[function.__name__] += machine.tally.steps > before

        decorated: Callable[..., None] = cast(Any, hypothesis_rule)(**strategies)(counted)
        return decorated

    return decorate


def rule_names(machine: type[Counted]) -> list[str]:
    """Return the names of all rules of a state machine."""
    return sorted(rule.function.__name__ for rule in machine.setup_state().rules)
