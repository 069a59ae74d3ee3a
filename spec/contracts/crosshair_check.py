"""CrossHair's verdict on a contract, and on whether two functions behave alike, in the report's words."""

import time
from collections import Counter
from collections.abc import Callable

from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.diff_behavior import BehaviorDiff, diff_behavior
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind, AnalysisOptionSet
from crosshair.statespace import AnalysisMessage, MessageType

from spec.contracts.contract import Contract
from spec.report import Check, Status

_STATUS = {
    MessageType.CONFIRMED: Status.CONFIRMED,
    MessageType.CANNOT_CONFIRM: Status.NOT_CONFIRMED,
    MessageType.PRE_UNSAT: Status.VACUOUS,
    MessageType.POST_ERR: Status.REFUTED,
    MessageType.EXEC_ERR: Status.REFUTED,
    MessageType.POST_FAIL: Status.REFUTED,
}


def check_contract(contract: Contract, timeout_s: float, is_cut_short: bool = False) -> Check:
    """Look for a call that breaks a contract.

    ``confirmed`` is said only when CrossHair has followed every path; ``not confirmed`` when it has
    found no such call in the time that a contract gets; ``unknown`` when it was given less than that.

    Args:
        contract: what is stated.
        timeout_s: CPU seconds.
        is_cut_short: whether that is less than a contract gets.

    """
    start, stats = time.monotonic(), Counter[str]()
    status, detail = _crosshair_verdict(contract, timeout_s, stats)
    if status in (Status.CONFIRMED, Status.NOT_CONFIRMED):
        status, detail = _example_verdict(contract) or (status, detail)
    if status is Status.NOT_CONFIRMED and is_cut_short:
        status, detail = Status.UNKNOWN, f"out of time: {detail}"
    return Check(
        contract.name,
        status,
        detail,
        time.monotonic() - start,
        contract.covers,
        {"paths": stats["num_paths"]},
    )


def check_same_behavior(
    name: str,
    first: Callable[..., object],
    second: Callable[..., object],
    timeout_s: float,
    covers: tuple[str, ...] = (),
) -> Check:
    """Look for a call in which two functions return, raise or change their arguments differently.

    CrossHair calls two functions whose paths it has exhausted "likely the same", so the most that is
    said here is that there is no counterexample.

    Args:
        name: of the check.
        first: one function, with parameters of types that CrossHair can make values of.
        second: the other one, with the same parameters.
        timeout_s: CPU seconds.
        covers: ids of rules and invariants.

    """
    start, stats = time.monotonic(), Counter[str]()
    ignored_paths: list[None] = []
    found = diff_behavior(
        FunctionInfo.from_fn(first),
        FunctionInfo.from_fn(second),
        DEFAULT_OPTIONS.overlay(AnalysisOptionSet(per_condition_timeout=timeout_s, stats=stats)),
        on_nondeterminism=lambda: ignored_paths.append(None),
    )
    status, detail = Status.NO_COUNTEREXAMPLE, f"{stats['num_paths']} paths, not all"
    if isinstance(found, str):
        status, detail = Status.UNKNOWN, found
    elif found:
        status, detail = Status.REFUTED, _describe(found[0], first, second)
    elif ignored_paths:
        status, detail = Status.UNKNOWN, "one of the two does not always do the same for one call"
    elif stats["exhaustion"]:
        detail = f"{stats['num_paths']} paths, all there are"
    return Check(name, status, detail, time.monotonic() - start, covers, {"paths": stats["num_paths"]})


def _crosshair_verdict(contract: Contract, timeout_s: float, stats: Counter[str]) -> tuple[Status, str]:
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.asserts], per_condition_timeout=timeout_s, report_all=True, stats=stats
    )
    messages: list[AnalysisMessage] = run_checkables(analyze_function(contract.function, options))
    if not messages:
        return Status.VACUOUS, f"{contract.name} does not begin with an assert: CrossHair sees no contract"
    worst = max(messages, key=lambda message: message.state)
    status = _STATUS.get(worst.state, Status.UNKNOWN)
    if status in (Status.CONFIRMED, Status.NOT_CONFIRMED):
        return status, f"{contract.statement} For {contract.bounds}."
    return status, f"{contract.statement} But {worst.message}"


def _example_verdict(contract: Contract) -> tuple[Status, str] | None:
    call = f"{contract.name}{contract.example}"
    try:
        has_reached_the_end = contract.function(*contract.example)
    except Exception as error:
        return Status.REFUTED, f"{contract.statement} But its example raises {error!r}: {call}"
    if not has_reached_the_end:
        return Status.VACUOUS, f"its example does not come to what it states: {call}"
    return None


def _describe(diff: BehaviorDiff, first: Callable[..., object], second: Callable[..., object]) -> str:
    call = ", ".join(f"{name}={value}" for name, value in diff.args.items())
    changed = diff.result1.get_differing_arg_mutations(diff.result2)
    return (
        f"for ({call}) {first.__qualname__} {diff.result1.describe(changed)},"
        f" {second.__qualname__} {diff.result2.describe(changed)}"
    )
