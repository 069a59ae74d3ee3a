"""What a probe is, how it is run, and what of a state is compared."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from spec.probes.consistency import problems_of
from spec.probes.hand import Hand
from vtoken_ref import events as ev
from vtoken_ref.rules import Rule, VTokenError

Call = Callable[[], object]
NOT_STATE = frozenset({"resident_entries"})
"""Attributes that only keep what can be made anew."""


class Differs(Exception):
    """What a legal event has done is not what it must do."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that a rule forbids, and what it allows.

    Attributes:
        name: unique; begins with the code of the rule.
        error: the rule that is broken; outside of the rules, the exception.
        prepare: makes a state, by legal events only.
        forbidden: gives, in that state, the call that must be refused; None where only an effect of what
            is allowed is looked at.
        legal: give, in that state, calls that differ in as little as possible and must be accepted.

    """

    name: str
    error: Rule | type[Exception]
    prepare: Callable[[], Any]
    forbidden: Callable[[Any], Call] | None
    legal: tuple[Callable[[Any], Call], ...]


def problem_of(probe: Probe) -> str:
    """Run a probe; return what is wrong, empty when all is as it must be."""
    try:
        subject = probe.prepare()
        call = None if probe.forbidden is None else probe.forbidden(subject)
    except Exception as error:
        return f"the state cannot be made: {_named(error)}"
    if call is not None:
        before = freeze(subject)
        problem = _refusal_problem(probe, call)
        if problem:
            return problem
        if freeze(subject) != before:
            return "it is refused, and yet something has changed"
    for index, legal in enumerate(probe.legal):
        problem = _acceptance_problem(probe.prepare() if index else subject, legal)
        if problem:
            return f"its legal twin {index}: {problem}"
    return ""


def _acceptance_problem(subject: Any, legal: Callable[[Any], Call]) -> str:
    try:
        result = legal(subject)()
        broken = problems_of(result.machine) if isinstance(result, Hand) else []
    except Differs as error:
        return str(error)
    except Exception as error:
        return f"it is refused: {_named(error)}"
    return f"after it, {broken[0]}" if broken else ""


def _refusal_problem(probe: Probe, call: Call) -> str:
    try:
        call()
    except VTokenError as error:
        right = isinstance(probe.error, Rule) and error.code == probe.error.code
        return "" if right else f"it is refused by another rule: {error}"
    except Exception as error:
        right = not isinstance(probe.error, Rule) and type(error) is probe.error
        return "" if right else f"it is not refused but raises {_named(error)}"
    return "it is accepted"


def freeze(value: Any) -> object:
    """Return everything that a value holds as something that can be compared and never changes."""
    if value is None or isinstance(value, str | int | bytes | range | Enum | type):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(freeze, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(freeze, value))
    if isinstance(value, dict):
        return tuple((freeze(key), freeze(item)) for key, item in value.items())
    if callable(value):
        return None
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    names = [*getattr(value, "__dict__", ()), *slots]
    held = ((name, freeze(getattr(value, name))) for name in names if name not in NOT_STATE)
    return type(value).__name__, tuple(held)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# Probes of events.

Make = Callable[[Hand], ev.Event | tuple[ev.Event, ...]]
State = Callable[[], Hand]
Twin = Make | tuple[State, Make]
"""An event in the same state, or in another one."""


def on_event(rule: Rule, case: str, state: State, forbidden: Make, *twins: Twin) -> Probe:
    """Return the probe of an event that a machine must refuse.

    Args:
        rule: what it breaks.
        case: which way, unique among the cases of the rule.
        state: makes the state in which it is tried.
        forbidden: gives the event.
        twins: give the legal events; several at once are applied one after the other.

    """
    legal = tuple(_twin(twin) for twin in twins)
    return Probe(f"{rule.code}/{case}", rule, state, lambda hand: _apply(hand, forbidden), legal)


def _twin(twin: Twin) -> Callable[[Any], Call]:
    if isinstance(twin, tuple):
        state, make = twin
        return lambda hand: _apply(state(), make)
    return lambda hand: _apply(hand, twin)


def _apply(hand: Hand, make: Make) -> Call:
    made = make(hand)
    events = made if isinstance(made, tuple) else (made,)
    return lambda: hand.apply(*events)


def on_effect(
    rule: Rule, case: str, state: Callable[[], Any], ask: Callable[[Any], object], expected: object
) -> Probe:
    """Return the probe of what has become of a state: the answer must be as expected."""

    def compare(subject: Any) -> Any:
        answer = ask(subject)
        if answer != expected:
            raise Differs(f"it comes to {answer}, not {expected}")
        return subject

    return Probe(f"{rule.code}/{case}", rule, state, None, (lambda subject: lambda: compare(subject),))


# Probes of one method.

Arguments = tuple[Any, ...]
"""The name of a method, then its arguments."""


def on_method(
    rule: Rule | type[Exception],
    case: str,
    prepare: Callable[[], Any],
    forbidden: Arguments,
    *legal: Arguments,
) -> Probe:
    """Return the probe of a method that must refuse these arguments and take the others."""
    code = rule.code if isinstance(rule, Rule) else rule.__name__
    return Probe(
        f"{code}/{case}",
        rule,
        prepare,
        lambda subject: _call(subject, forbidden),
        tuple(partial(_call, arguments=arguments) for arguments in legal),
    )


def _call(subject: Any, arguments: Arguments) -> Call:
    name, *rest = arguments
    return partial(getattr(subject, name), *rest)
