"""What the checkers of the spec hand back: one ``Check`` a proof, configuration, machine, contract or mutant.

The words of ``Status`` are the only ones a checker may use; none of them says more than was checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vtoken_ref.events import Event
from vtoken_ref.machine import MachineConfig

Progress = Callable[[str, int, int | None], None]
"""Told a label, how much is done, and how much there is (None: not known)."""


class Status(Enum):
    """What one check found; the value is what people read."""

    PROVED = "proved (unbounded)"
    PROVED_BOUNDED = "proved (bounds)"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    VACUOUS = "vacuous"
    NO_COUNTEREXAMPLE = "no counterexample"
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    KILLED = "killed"
    SURVIVED = "survived"
    COVERED = "covered"

    @property
    def is_failure(self) -> bool:
        """Tell whether a run with this status must not pass."""
        return self in (Status.REFUTED, Status.VACUOUS, Status.SURVIVED)

    @property
    def is_open(self) -> bool:
        """Tell whether this says neither right nor wrong; an open check is never a pass."""
        return self is Status.UNKNOWN


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A run of the executable spec that ends in a violation; ``conformance`` writes it as a trace."""

    name: str
    config: MachineConfig
    events: tuple[Event, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: unique within its section, e.g. ``inductive.commit.I1``.
        status: what was found.
        detail: one sentence: the bounds, the counterexample schedule, the reason.
        seconds: wall time.
        covers: ids of the rules and invariants that this check speaks for.
        figures: numbers such as ``rlimit``, ``states``, ``examples``.
        counterexample: a replayable run, where there is one.

    """

    name: str
    status: Status
    detail: str = ""
    seconds: float = 0.0
    covers: tuple[str, ...] = ()
    figures: dict[str, int] = field(default_factory=dict)
    counterexample: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a section is run.

    Attributes:
        profile: name in ``vtoken_ref.profiles``.
        quick: the small version, for a check while editing.
        jobs: processes at one time.
        deadline_s: seconds that this section may take; what is not done by then is ``unknown``.
        only: names of checks to run, matched by prefix; empty for all.

    """

    profile: str = "default"
    quick: bool = False
    jobs: int = 2
    deadline_s: float | None = None
    only: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        """Tell whether a check of this name is to be run."""
        return not self.only or any(name.startswith(prefix) for prefix in self.only)


@dataclass(frozen=True, slots=True)
class Section:
    """What one kind of checking found; ``figures`` are its totals for the JSON report."""

    name: str
    checks: tuple[Check, ...]
    figures: dict[str, object] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        """Return how many checks have this status."""
        return sum(check.status is status for check in self.checks)


Runner = Callable[[Options, Progress], Section]


def names(checks: Sequence[Check]) -> list[str]:
    """Return the names of checks, in order."""
    return [check.name for check in checks]
