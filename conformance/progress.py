"""Progress of long phases on a terminal; quiet anywhere else."""

import os
import sys
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

Advance = Callable[[int, int | None], None]


class Phases:
    """One bar a phase, on standard error."""

    def __init__(self) -> None:
        # A descriptor of its own, so that the bars stay on the terminal while output is captured.
        console = Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w"))
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=console,
            # rich would print what others write above its bars, around a capture of the descriptors.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Phases":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, name: str, unit: str) -> Advance:
        """Begin a phase; call the result with what is done and what there is, None if not known."""
        task = self._progress.add_task(name, total=None, unit=unit)

        def advance(done: int, total: int | None) -> None:
            self._progress.update(task, completed=done, total=total)

        return advance
