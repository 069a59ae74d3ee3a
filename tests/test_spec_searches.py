"""The explorer and the state machines run, find nothing wrong with the spec, and say how much they saw."""

import spec.explore
import spec.machines
from spec.report import Options, Status


def nothing(label: str, done: int, total: int | None) -> None:
    """Show no progress."""


def test_a_small_configuration_is_searched_completely() -> None:
    section = spec.explore.run(Options(quick=True, jobs=1, only=("small.cache",)), nothing)
    (check,) = section.checks
    assert check.status is Status.NO_COUNTEREXAMPLE and "complete" in check.detail
    assert check.figures["states"] > 100


def test_a_search_out_of_time_is_unknown() -> None:
    section = spec.explore.run(Options(quick=True, jobs=1, only=("small.cache",), deadline_s=0.0), nothing)
    assert [check.status for check in section.checks] == [Status.UNKNOWN]


def test_a_state_machine_agrees_with_its_oracle() -> None:
    section = spec.machines.run(Options(quick=True, jobs=1, only=("machine.pool",)), nothing)
    (check,) = section.checks
    assert check.status is Status.NO_COUNTEREXAMPLE, check.detail
    assert check.figures["examples"] > 10
