"""Replay a trace through the executable spec and report the first violation.

Needs no torch and no vLLM.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from conformance.errors import UsageError
from conformance.trace import Header, TraceError, TraceReader
from conformance.verdict import Verdict
from vtoken_ref.events import Event
from vtoken_ref.invariants import violations
from vtoken_ref.machine import Machine
from vtoken_ref.rules import Rule, VTokenError

PROGRESS_EVERY = 1000


class Observer(Protocol):
    """Something that looks at each event after the spec has accepted it."""

    def observe(self, event: Event, machine: Machine) -> None:
        """Look at one event and the state after it."""
        ...


@dataclass(slots=True)
class ReplayResult:
    """What a replay found.

    Attributes:
        verdict: pass; fail at the first violation; inconclusive for a truncated trace;
            harness_error for a file that is no trace of this format.
        events: events that the spec accepted.
        rule, code, invariant, line, detail, state: the first violation, if any.

    """

    verdict: Verdict
    events: int
    header: Header | None = None
    rule: str | None = None
    code: str | None = None
    invariant: str | None = None
    line: int | None = None
    detail: str | None = None
    state: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the machine-readable result."""
        found: dict[str, object] = {"verdict": self.verdict.value, "events": self.events}
        if self.verdict is not Verdict.PASS:
            for name in ("rule", "code", "invariant", "line", "detail", "state"):
                found[name] = getattr(self, name)
        return found


def replay(
    path: Path,
    observers: Sequence[Observer] = (),
    paranoid: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay a trace.

    Args:
        path: the trace file.
        observers: told each accepted event.
        paranoid: evaluate every invariant on the whole state after every event (slow).
        progress: told the number of events now and then.

    Raises:
        UsageError: the file cannot be opened.

    """
    try:
        reader = TraceReader(path)
    except OSError as error:
        raise UsageError(
            f"cannot read trace {path}: {error.strerror}; give the path of a trace file"
        ) from error
    except TraceError as error:
        return _violation(error, error.line, 0, None, {})
    with reader:
        machine = Machine(reader.header.machine_config())
        event: Event | None = None
        try:
            for event in reader:
                machine.apply(event)
                if paranoid:
                    check_invariants(machine)
                for observer in observers:
                    observer.observe(event, machine)
                if progress and machine.num_events % PROGRESS_EVERY == 0:
                    progress(machine.num_events)
        except VTokenError as error:
            state = machine.snapshot(getattr(event, "req_id", None))
            return _violation(error, reader.line, machine.num_events, reader.header, state)
    return ReplayResult(Verdict.PASS, machine.num_events, reader.header)


def check_invariants(machine: Machine) -> None:
    """Evaluate every invariant on the whole state.

    Raises:
        VTokenError: the first that does not hold.

    """
    for rule, text in violations(machine):
        raise VTokenError(rule, text)


def _violation(
    error: VTokenError, line: int, events: int, header: Header | None, state: dict[str, object]
) -> ReplayResult:
    verdict = Verdict.FAIL
    if error.rule == Rule.TRACE_TRUNCATED.id:
        verdict = Verdict.INCONCLUSIVE
    elif isinstance(error, TraceError):
        verdict = Verdict.HARNESS_ERROR
    return ReplayResult(
        verdict, events, header, error.rule, error.code, error.invariant, line, error.detail, state
    )
