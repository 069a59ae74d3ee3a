"""What the machines of one pure part have in common: a naive model says which calls are legal."""

import pickle
from typing import Any

from hypothesis.stateful import invariant

from spec.machines.oracle import Disagreement
from spec.machines.tally import Counted, is_changed
from vtoken_ref.rules import VTokenError


class Pure(Counted):
    """A part of the spec and a naive model of it, which get the same calls."""

    is_set_up = False

    def __init__(self) -> None:
        super().__init__()
        self.tally.examples += 1
        self.calls: list[str] = []

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
        self.begin_step()
        self.calls.append(f"{name}{tuple(value for value in arguments if not callable(value))}")
        before = pickle.dumps(vars(self.subject()))
        try:
            getattr(self.subject(), name)(*arguments)
        except VTokenError as error:
            if is_legal:
                raise Disagreement(f"{self.calls[-1]} is refused: {error}") from error
            if is_changed(before, pickle.dumps(vars(self.subject()))):
                raise Disagreement(f"{self.calls[-1]} is refused and has changed something") from error
            self.happened(f"refused {error.code}")
            return False
        if not is_legal:
            raise Disagreement(f"{self.calls[-1]} is accepted")
        self.happened(f"took {name}")
        return True

    @invariant()
    def agrees(self) -> None:
        """The part says what the model says, after every call."""
        if self.is_set_up and not self.has_failed:
            with self.recorded():
                self.check()

    def keep(self, problem: str) -> None:
        """Keep the calls of this example."""
        self.tally.fail(f"{problem}, after {'; '.join(self.calls)}", len(self.calls))


def equal(what: str, found: object, expected: object) -> None:
    """Hold one value to another.

    Raises:
        Disagreement: they differ.

    """
    if found != expected:
        raise Disagreement(f"{what} is {found}, not {expected}")
