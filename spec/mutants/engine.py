"""The kill matrix: every seeded fault, and every guard removed, against the checkers of the spec.

A checker that reports a failure kills the mutant. One that crashes does not, nor one that is out of
time: the first is an error of the checker, the second proves nothing. What a checker says counts only
if it finds nothing wrong with the unchanged spec.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from spec.mutants import guards, seeded
from spec.mutants.mutant import CONTROL, Mutant, changed_tree
from spec.mutants.nursery import Nursery
from spec.report import Check, Options, Progress, Section, Status

SPEC_CHECKERS = ("probes", "cosimulation", "machines", "contracts", "explore")
"""What runs on a changed ``vtoken_ref``, in the order in which it is tried."""
MODEL_CHECKERS = ("proofs", "cosimulation")
"""What runs on a change of the Z3 model."""
GUARD_CHECKERS = ("probes", "machines", "explore")
DEADLINE_S = 60.0
"""Of one checker on one mutant."""
PREFIX = {"seeded": "seeded.", "guard": "guards."}


@dataclass(slots=True)
class Row:
    """What the checkers said of one mutant: killed, survived, error or timeout."""

    mutant: Mutant
    checkers: tuple[str, ...]
    is_guard: bool = False
    said: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_done: bool = False

    @property
    def killers(self) -> list[str]:
        """The checkers that noticed."""
        return [checker for checker, word in self.said.items() if word == "killed"]


def run(options: Options, progress: Progress) -> Section:
    """Run the mutants.

    Of the seeded faults the whole matrix, of the guards the first checker that notices each removal.
    Quick: of the seeded faults too only the first, and of the guards ``guards.sample``.
    """
    removed = guards.mutants()
    rows = [
        *(Row(mutant, _checkers_of(mutant)) for mutant in seeded.mutants()),
        *(
            Row(mutant, GUARD_CHECKERS, is_guard=True)
            for mutant in (guards.sample(removed) if options.quick else removed)
        ),
    ]
    rows = [row for row in rows if options.wants(row.mutant.name)]
    with _Bench(options) as bench:
        bench.fill(rows, progress)
        controls = bench.control_checks()
    return Section("mutants", (*controls, *map(_as_check, rows)), _figures(rows))


def matrix_table(section: Section) -> str:
    """Return the kill matrix of the seeded faults as a Markdown table."""
    figures: Any = section.figures["matrix"]
    matrix: dict[str, dict[str, str]] = figures
    columns = [name for name in (*SPEC_CHECKERS, "proofs") if any(name in said for said in matrix.values())]
    lines = [
        "| mutant | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, said in matrix.items():
        lines.append(f"| {name} | " + " | ".join(said.get(column, "") for column in columns) + " |")
    return "\n".join(lines) + "\n"


class _Bench:
    """Nurseries for ``jobs`` mutants at a time, and what each checker says of the unchanged spec."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until = None if options.deadline_s is None else time.monotonic() + options.deadline_s
        self._idle: SimpleQueue[Nursery] = SimpleQueue()
        self._stack = ExitStack()
        self._controls: dict[str, dict[str, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "_Bench":
        for _ in range(max(self._options.jobs, 1)):
            self._idle.put(self._stack.enter_context(Nursery()))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def fill(self, rows: Sequence[Row], progress: Progress) -> None:
        """Ask the checkers about every row, as far as the time goes."""
        num_done = 0
        with ThreadPoolExecutor(max(self._options.jobs, 1)) as pool:
            try:
                for row in pool.map(self._fill_row, rows):
                    num_done += 1
                    progress(row.mutant.name, num_done, len(rows))
            except BaseException:
                self._until = time.monotonic()
                self._stack.close()
                pool.shutdown(cancel_futures=True)
                raise

    def control_checks(self) -> list[Check]:
        """Return what the checkers say of the unchanged spec, which must be nothing."""
        return [self._control_check(checker, found) for checker, found in self._controls.items()]

    def _control_check(self, checker: str, found: dict[str, Any]) -> Check:
        word = _word(found, CONTROL)
        status = {"survived": Status.NO_COUNTEREXAMPLE, "killed": Status.REFUTED}.get(word, Status.UNKNOWN)
        detail = f"{checker} on the unchanged spec: {_why(found)}"
        return Check(f"control.{checker}", status, detail, found.get("seconds", 0.0))

    def _fill_row(self, row: Row) -> Row:
        begin = time.monotonic()
        with changed_tree(row.mutant) as folder:
            for checker in row.checkers:
                if self._is_late():
                    return row
                if _word(self._control(checker), CONTROL) != "survived":
                    continue
                found = self._ask(checker, folder, row)
                row.said[checker] = _word(found, row.mutant)
                row.why[checker] = _why(found)
                if row.killers and (row.is_guard or self._options.quick):
                    break
        row.is_done = True
        row.seconds = time.monotonic() - begin
        return row

    def _ask(self, checker: str, folder: Any, row: Row) -> dict[str, Any]:
        """Ask the checks that name the mutant's rules first: most often they are the ones to notice."""
        nursery = self._idle.get()
        try:
            if checker == "probes" and row.mutant.codes:
                found = nursery.check(checker, folder, row.mutant, DEADLINE_S, row.mutant.codes)
                if _word(found, row.mutant) == "killed":
                    return found
            return nursery.check(checker, folder, row.mutant, DEADLINE_S)
        finally:
            self._idle.put(nursery)

    def _control(self, checker: str) -> dict[str, Any]:
        with self._lock:
            lock = self._locks.setdefault(checker, threading.Lock())
        with lock:
            if checker not in self._controls:
                with changed_tree(CONTROL) as folder:
                    nursery = self._idle.get()
                    try:
                        self._controls[checker] = nursery.check(checker, folder, CONTROL, DEADLINE_S)
                    finally:
                        self._idle.put(nursery)
        return self._controls[checker]

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until


def _checkers_of(mutant: Mutant) -> tuple[str, ...]:
    return SPEC_CHECKERS if mutant.path.startswith("vtoken_ref/") else MODEL_CHECKERS


def _word(found: dict[str, Any], mutant: Mutant) -> str:
    if found.get("timeout"):
        return "killed" if mutant.terminates else "timeout"
    if "error" in found:
        return "error"
    return "killed" if found["failed"] else "survived"


def _why(found: dict[str, Any]) -> str:
    if found.get("timeout"):
        return "out of time"
    if "error" in found:
        return str(found["error"])
    return str(found["failed"][0]) if found["failed"] else f"{found['checks']} checks, no failure"


def _as_check(row: Row) -> Check:
    killers = row.killers
    if killers:
        status, words = Status.KILLED, f"by {', '.join(killers)}: {row.why[killers[0]]}"
    elif row.is_done and row.said:
        status, words = Status.SURVIVED, "; ".join(f"{name}: {why}" for name, why in row.why.items())
    else:
        status, words = Status.UNKNOWN, "no checker was asked in time"
    detail = f"{row.mutant.about}; {words}"
    return Check(row.mutant.name, status, detail, row.seconds, row.mutant.rules)


def _figures(rows: Sequence[Row]) -> dict[str, object]:
    return {
        "total": len(rows),
        "killed": sum(bool(row.killers) for row in rows),
        "survivors": [row.mutant.name for row in rows if _as_check(row).status is Status.SURVIVED],
        "seeded": sum(not row.is_guard for row in rows),
        "guards": sum(row.is_guard for row in rows),
        "matrix": {row.mutant.name: dict(row.said) for row in rows if not row.is_guard},
    }
