"""What a transition of the relocation model is: what an event carries, its guards, the state after it.

A guard is something that the executable spec refuses an event for. Each has a name and can be left
out by itself. A fact is no guard: it says what the numbers and lists of an event mean in the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.state import BEFORE, Bool, Formula, Int, Request, State, Term


@dataclass(frozen=True)
class Transition:
    """One kind of event.

    Attributes:
        name: e.g. ``commit``.
        parameters: by name, what an event carries, as Z3 constants and functions.
        guards: by name, what must be true for the event to be accepted.
        after: the state after it.
        example: what makes the event more than an empty one.
        facts: by name, what the parameters are by their meaning.
        request, epoch: whose event it is, where it is of one request and says so.

    """

    name: str
    parameters: Mapping[str, Term]
    guards: Mapping[str, Formula]
    after: State
    example: Formula
    facts: Mapping[str, Formula] = field(default_factory=dict)
    request: Term | None = None
    epoch: Term | None = None

    def without(self, guard: str) -> "Transition":
        """Return the same without one guard.

        Raises:
            KeyError: there is no such guard.

        """
        if guard not in self.guards:
            raise KeyError(f"{self.name} has no guard {guard}")
        return replace(self, guards={name: it for name, it in self.guards.items() if name != guard})


class Parameters:
    """Makes the parameters of one transition; their Z3 names begin with its name."""

    def __init__(self, transition: str) -> None:
        self.transition = transition
        self.made: dict[str, Term] = {}

    def constant(self, name: str, sort: Term) -> Term:
        """Return a constant."""
        self.made[name] = z3.Const(f"{self.transition}.{name}", sort)
        return self.made[name]

    def function(self, name: str, *sorts: Term) -> Term:
        """Return a function; the last sort is that of its value."""
        self.made[name] = z3.Function(f"{self.transition}.{name}", *sorts)
        return self.made[name]

    def predicate(self, name: str, *sorts: Term) -> Term:
        """Return a function to true or false."""
        return self.function(name, *sorts, Bool)

    def subject(self) -> tuple[Term, Term]:
        """Return the request and the epoch that an event is of."""
        return self.constant("request", Request), self.constant("epoch", Int)


def is_present(request: Term, epoch: Term) -> dict[str, Formula]:
    """Return the guard of every event that is of one epoch of a request."""
    return {"present_epoch": z3.And(BEFORE.alive(request), epoch == BEFORE.epoch(request))}


def some(*variables: Term, holds: Formula) -> Formula:
    """Return that something holds for some values of variables."""
    return z3.Exists(list(variables), holds)


def every(*variables: Term, holds: Formula) -> Formula:
    """Return that something holds for all values of variables."""
    return z3.ForAll(list(variables), holds)
