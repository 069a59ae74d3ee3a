"""Runs one state machine, within its time, and says what came of it."""

import time
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from spec.machines.tally import Counted, OutOfTime, Tally


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a state machine is run.

    Attributes:
        examples: how many examples are made.
        rules: the most rules in one example.
        shrink_s: seconds that may be spent on a smaller counterexample.
        deadline: of the monotonic clock, None for none.
        seed: of the examples; None for the same ones in every run.

    """

    examples: int
    rules: int = 50
    shrink_s: float = 10.0
    deadline: float | None = None
    seed: int | None = None


def run_machine(machine: type[Counted], limits: Limits) -> tuple[Tally, bool]:
    """Run examples of a state machine.

    Returns:
        What happened, and whether the run came to its end.

    """
    tally = Tally()
    clock = _Clock(tally, limits)
    driven = type(machine.__name__, (machine,), {"tally": tally, "tick": staticmethod(clock.tick)})
    if limits.seed is not None:
        driven = seed(limits.seed)(driven)
    try:
        run_state_machine_as_test(driven, settings=_settings(limits))
    except OutOfTime:
        return tally, False
    except Exception as error:
        if clock.is_over:  # Hypothesis may have met the end of the time as something of its own.
            return tally, False
        if not tally.problem:
            tally.fail(f"{type(error).__name__}: {error}", 0)
    return tally, True


class _Clock:
    """Ends a run when its time is over, and its shrinking when enough was spent on it."""

    def __init__(self, tally: Tally, limits: Limits) -> None:
        self._tally, self._limits = tally, limits
        self._shrink_until: float | None = None
        self.is_over = False

    def tick(self) -> None:
        now = time.monotonic()
        if self._tally.problem and self._shrink_until is None:
            self._shrink_until = now + self._limits.shrink_s
        for until in (self._limits.deadline, self._shrink_until):
            if until is not None and now > until:
                self.is_over = True
                raise OutOfTime


def _settings(limits: Limits) -> settings:
    return settings(
        max_examples=limits.examples,
        stateful_step_count=limits.rules,
        derandomize=limits.seed is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
    )
