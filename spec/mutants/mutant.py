"""One changed source file, and a copy of its package with that change.

The working tree is never touched: the package goes to a temporary folder that stands first on the
import path of the process that checks it.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtoken_ref.rules import Rule

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages ``vtoken_ref`` and ``spec``."""


class StaleMutantError(Exception):
    """A mutant's fragment is not, or not once, in the file that it changes."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A package with one file changed.

    Attributes:
        name: unique.
        path: the changed file, from the folder of the packages, e.g. ``vtoken_ref/pool.py``.
        source: its whole text after the change; None for no change, the control.
        about: one sentence: the fault.
        rules: ids of the rules that it breaks.
        codes: their codes, with which the names of their probes begin.
        terminates: the fault is that something never ends, so that a checker out of time notices it.
        checker: the module that makes the change by itself and looks whether it is noticed, if any.

    """

    name: str
    path: str
    source: str | None
    about: str
    rules: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    terminates: bool = False
    checker: str | None = None


CONTROL = Mutant("control", "vtoken_ref/machine.py", None, "nothing is changed")


@dataclass(frozen=True, slots=True)
class Fault:
    """A seeded fault: one source fragment, of which there must be exactly one, and what replaces it.

    Attributes:
        name: unique, e.g. ``fence-forgotten``.
        path: the file, e.g. ``vtoken_ref/pool.py``.
        old: the exact fragment.
        new: its replacement.
        stands_for: the public failure, guard, ordering, epoch check or refcount step.
        rules: the rules that it breaks.
        failures: numbers in the list of public failures.
        terminates: the fault is that something never ends.

    """

    name: str
    path: str
    old: str
    new: str
    stands_for: str
    rules: "tuple[Rule, ...]"
    failures: tuple[int, ...] = ()
    terminates: bool = False

    def mutant(self) -> Mutant:
        """Return the changed file.

        Raises:
            StaleMutantError: the fragment is not in the file exactly once, or nothing would change.

        """
        source = read(self.path)
        count = source.count(self.old)
        if count != 1 or self.old == self.new:
            raise StaleMutantError(
                f"mutant {self.name}: its fragment is {count} times in {self.path}, not once"
            )
        numbers = "".join(f", failure {number}" for number in self.failures)
        return Mutant(
            f"seeded.{self.name}",
            self.path,
            source.replace(self.old, self.new),
            f"{self.stands_for}{numbers}",
            tuple(rule.id for rule in self.rules),
            tuple(rule.code for rule in self.rules),
            self.terminates,
        )


def read(path: str) -> str:
    """Return a source file of the packages."""
    return ROOT.joinpath(path).read_text(encoding="utf-8")


@contextmanager
def changed_tree(mutant: Mutant) -> Iterator[Path]:
    """Make a temporary folder with the mutant's package; the folder goes first on ``sys.path``."""
    package = mutant.path.split("/")[0]
    with tempfile.TemporaryDirectory(prefix="vtoken-mutant-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / package, folder / package)
        if mutant.source is not None:
            path = folder / mutant.path
            path.write_text(mutant.source, encoding="utf-8")
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
                compiled.unlink()
        yield folder
