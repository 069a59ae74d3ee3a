"""What a contract is: a function whose leading asserts say what it assumes, the others what it states."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contract:
    """One statement about a pure part of the spec, for CrossHair to look for a call that breaks it.

    CrossHair takes every assert before the first other statement for an assumption, and does not tell a
    contract that holds from one whose assumptions nothing meets. So each function returns whether it
    came to what it states, ``example`` is a call for which it must, and tests/test_contracts.py has a
    wrong version of the code for each contract that has to break it.

    Attributes:
        function: takes small values, builds what it needs, asserts.
        bounds: for which sizes it speaks, in words.
        example: arguments of a call that meets the assumptions and reaches the end.
        covers: ids of rules and invariants.

    """

    function: Callable[..., bool]
    bounds: str
    example: tuple[object, ...]
    covers: tuple[str, ...]

    @property
    def name(self) -> str:
        """The module and the function, e.g. ``planning.packed_plan_in_place``."""
        return f"{self.function.__module__.rsplit('.', 1)[-1]}.{self.function.__name__}"

    @property
    def statement(self) -> str:
        """The first sentence of the function's docstring."""
        return " ".join((self.function.__doc__ or "").split("\n\n")[0].split())
