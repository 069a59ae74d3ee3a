"""What the state machines of one pure part have in common: every call is legal or refused, as a naive model says."""

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from spec.machines.oracle import Disagreement
from spec.machines.tally import Tally
from vtoken_ref.rules import VTokenError


class Pure(RuleBasedStateMachine):
    """A part of the spec and a naive model of it, which get the same calls."""

    tally: ClassVar[Tally] = Tally()
    tick: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.tick()
        self.tally.examples += 1
        self.calls: list[str] = []
        self.has_failed = False

    def subject(self) -> Any:
        """Return the part of the spec, whose attributes are its state."""
        raise NotImplementedError

    def check(self) -> None:
        """Hold all that the part says to the model.

        Raises:
            Disagreement: they differ.

        """
        raise NotImplementedError

    def call(self, name: str, *arguments: Any, is_legal: bool) -> bool:
        """Call a method of the part and hold what it does to what the model says.

        Args:
            name: of the method.
            arguments: of the call.
            is_legal: whether the model allows the call.

        """
        self.tick()
        self.tally.steps += 1
        self.calls.append(f"{name}{arguments}")
        try:
            before = pickle.dumps(vars(self.subject()))
            try:
                getattr(self.subject(), name)(*arguments)
            except VTokenError as error:
                if is_legal:
                    raise Disagreement(f"{self.calls[-1]} is refused: {error}") from error
                if pickle.dumps(vars(self.subject())) != before:
                    raise Disagreement(f"{self.calls[-1]} is refused and has changed something") from error
                self.tally.happened[f"refused {error.code}"] += 1
                return False
            if not is_legal:
                raise Disagreement(f"{self.calls[-1]} is accepted")
        except Exception as error:
            self.failed(error)
            raise
        self.tally.rules[name] += 1
        return True

    @invariant()
    def agrees(self) -> None:
        """The part says what the model says, after every call."""
        if hasattr(self, "is_set_up"):
            self.verify()

    def verify(self) -> None:
        """Check, and keep the calls of this example as what led to a difference."""
        try:
            self.check()
        except Exception as error:
            self.failed(error)
            raise

    def failed(self, error: Exception) -> None:
        """Keep the calls that led to a difference."""
        self.has_failed = True
        said = str(error) if isinstance(error, Disagreement) else f"{type(error).__name__}: {error}"
        self.tally.problem = f"{said}, after {'; '.join(self.calls)}"


def equal(what: str, found: object, expected: object) -> None:
    """Hold one value to another.

    Raises:
        Disagreement: they differ.

    """
    if found != expected:
        raise Disagreement(f"{what} is {found}, not {expected}")
