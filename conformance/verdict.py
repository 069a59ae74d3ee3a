"""The words of a verdict and the exit status each one gives."""

from enum import StrEnum


class Verdict(StrEnum):
    """What a check found; a check that ran nothing or stopped short is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    HARNESS_ERROR = "harness_error"

    @property
    def exit_status(self) -> int:
        """0 clean, 1 failed, 2 usage or harness error, 3 inconclusive."""
        return {"pass": 0, "fail": 1, "harness_error": 2, "inconclusive": 3}[self.value]
