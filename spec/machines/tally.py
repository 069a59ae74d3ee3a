"""What one run of a state machine has done."""

from collections import Counter
from dataclasses import dataclass, field

from spec.report import Counterexample


@dataclass(slots=True)
class Tally:
    """What the examples of one run of a state machine have done.

    Attributes:
        rules: how often each rule fired.
        happened: how often each thing of note happened, e.g. ``took commit`` and ``refused fence``.
        examples: examples run.
        steps: events or calls given to the spec.
        problem: of the last failure; after shrinking, of the smallest example.
        failure: its events, where there are some.

    """

    rules: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    examples: int = 0
    steps: int = 0
    problem: str = ""
    failure: Counterexample | None = None


class OutOfTime(BaseException):
    """The time of the run is over; not caught by Hypothesis."""
