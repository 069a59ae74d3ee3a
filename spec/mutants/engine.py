"""The kill matrix: every seeded fault, and every guard removed, against the checkers of the spec.

A checker that reports a failure kills the mutant. One that crashes does not, nor one that is out of
time: the first is an error of the checker, the second proves nothing. What a checker says counts only
if it finds nothing wrong with the unchanged spec.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from spec.mutants import guards, model
from spec.mutants.faults import FAULTS, MATRIX
from spec.mutants.mutant import CONTROL, Mutant, StaleMutantError, changed_tree
from spec.mutants.nursery import Nursery
from spec.report import Check, Options, Progress, Section, Status

CHECKERS = ("probes", "cosimulation", "machines", "explore", "contracts", "proofs")
"""The columns of the matrix, in the order in which they are asked."""
DEADLINE_S = {"probes": 15.0, "cosimulation": 10.0, "machines": 10.0, "explore": 15.0, "contracts": 30.0}
"""Of one checker on one mutant, for those that are done sooner than ``MAX_DEADLINE_S``."""
MAX_DEADLINE_S = 60.0
MATRIX_S = 600.0
"""After so long a mutant that is killed already is not shown to further checkers."""

FUNCTION_FILES = frozenset(
    f"vtoken_ref/{name}.py"
    for name in ("planner", "indirect_planner", "table", "reclaim", "protocol", "pool")
)
"""What CrossHair's contracts are about: functions, not the transition system."""


@dataclass(slots=True)
class Row:
    """What the checkers said of one mutant, a word each; ``is_cut`` if not all could be asked in time."""

    mutant: Mutant
    checkers: tuple[str, ...]
    is_seeded: bool = False
    fills_matrix: bool = False
    said: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_cut: bool = False

    @property
    def killers(self) -> list[str]:
        """The checkers that noticed."""
        return [checker for checker, word in self.said.items() if word == "killed"]


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the mutants, each with the ids of the rules that it breaks."""
    seeded = {f"seeded.{fault.name}": tuple(rule.id for rule in fault.rules) for fault in FAULTS}
    return seeded | {mutant.name: mutant.rules for mutant in (*guards.mutants(), *model.mutants())}


def run(options: Options, progress: Progress) -> Section:
    """Run the mutants.

    Of the seeded faults in ``MATRIX`` what every checker says, as far as ``MATRIX_S`` goes; of the
    others, and of every guard, the first checker that notices. Quick: of all seeded faults only the
    first that notices, and of the guards a sample.
    """
    removed, unmodelled = guards.mutants(), model.mutants()
    if options.quick:
        removed, unmodelled = guards.sample(removed), model.sample(unmodelled)
    faults, stale = _seeded()
    in_matrix = set() if options.quick else {f"seeded.{name}" for name in MATRIX}
    rows = [Row(each, _checkers_of(each, options), True, each.name in in_matrix) for each in faults]
    rows += [Row(each, _checkers_of(each, options)) for each in removed]
    rows += [Row(each, ("proofs",)) for each in unmodelled]
    rows = [row for row in rows if options.wants(row.mutant.name)]
    with _Bench(options) as bench:
        bench.fill(rows, progress)
        controls = bench.control_checks()
    checks = (*controls, *(check for check in stale if options.wants(check.name)), *map(_as_check, rows))
    return Section("mutants", checks, _figures(rows, len(checks) - len(controls)))


def matrix_table(section: Section) -> str:
    """Return the kill matrix of the seeded faults as a Markdown table."""
    figures: Any = section.figures["matrix"]
    matrix: dict[str, dict[str, str]] = figures
    columns = [name for name in CHECKERS if any(name in said for said in matrix.values())]
    lines = [f"| mutant | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(said.get(column, '') for column in columns)} |"
        for name, said in matrix.items()
    ]
    return "\n".join(lines) + "\n"


def _seeded() -> tuple[list[Mutant], list[Check]]:
    """Return the seeded mutants, and a failed check for each one that does not fit the code any more."""
    fitting, stale = [], []
    for fault in FAULTS:
        try:
            fitting.append(fault.mutant())
        except StaleMutantError as error:
            stale.append(Check(f"seeded.{fault.name}", Status.REFUTED, str(error)))
    return fitting, stale


def _checkers_of(mutant: Mutant, options: Options) -> tuple[str, ...]:
    """Return who is asked: the proofs are of a model, CrossHair's contracts of some functions, and slow."""
    has_contracts = mutant.path in FUNCTION_FILES and not options.quick
    left_out = {"proofs"} if has_contracts else {"proofs", "contracts"}
    return tuple(name for name in CHECKERS if name not in left_out)


class _Bench:
    """Nurseries for ``jobs`` mutants at a time, and what each checker says of the unchanged spec."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begin = time.monotonic()
        self._idle: SimpleQueue[Nursery] = SimpleQueue()
        self._stack = ExitStack()
        self._controls: dict[str, dict[str, Any]] = {}
        self._locks = {checker: threading.Lock() for checker in CHECKERS}
        self._is_stopped = False

    def __enter__(self) -> "_Bench":
        for _ in range(max(self._options.jobs, 1)):
            self._idle.put(self._stack.enter_context(Nursery()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def fill(self, rows: Sequence[Row], progress: Progress) -> None:
        """Ask one checker after the other about every row, as far as the time goes."""
        rounds = [[(row, name) for row in rows if name in row.checkers] for name in CHECKERS]
        num_cells, num_done = sum(map(len, rounds)), 0
        with ThreadPoolExecutor(max(self._options.jobs, 1)) as pool:
            try:
                for cells in rounds:
                    for row in pool.map(self._fill_cell, cells):
                        num_done += 1
                        progress(row.mutant.name, num_done, num_cells)
            except BaseException:
                self._is_stopped = True
                self._stack.close()
                raise

    def control_checks(self) -> list[Check]:
        """Return what the checkers say of the unchanged spec, which must be nothing."""
        return [self._control_check(checker, found) for checker, found in self._controls.items()]

    def _control_check(self, checker: str, found: dict[str, Any]) -> Check:
        word = _word(found, CONTROL)
        status = {"survived": Status.NO_COUNTEREXAMPLE, "killed": Status.REFUTED}.get(word, Status.UNKNOWN)
        detail = f"{checker} on the unchanged spec: {_why(found)}"
        return Check(f"control.{checker}", status, detail, found.get("seconds", 0.0))

    def _fill_cell(self, cell: tuple[Row, str]) -> Row:
        row, checker = cell
        if self._is_late():
            row.is_cut = True
            return row
        if self._is_needless(row) or not self._is_sound(row, checker):
            return row
        begin = time.monotonic()
        found = self._ask(checker, row.mutant)
        row.said[checker], row.why[checker] = _word(found, row.mutant), _why(found)
        row.seconds += time.monotonic() - begin
        return row

    def _is_sound(self, row: Row, checker: str) -> bool:
        """Tell whether what a checker says counts: it must find nothing wrong where nothing is."""
        return row.mutant.checker is not None or _word(self._control(checker), CONTROL) == "survived"

    def _is_late(self) -> bool:
        limit = self._options.deadline_s
        return self._is_stopped or (limit is not None and time.monotonic() - self._begin > limit)

    def _is_needless(self, row: Row) -> bool:
        is_in_time = time.monotonic() - self._begin < MATRIX_S
        return bool(row.killers) and not (row.fills_matrix and is_in_time)

    def _ask(self, checker: str, mutant: Mutant) -> dict[str, Any]:
        """Ask the probes of the mutant's own rules before all: most often they are the ones to notice."""
        deadline_s = DEADLINE_S.get(checker, MAX_DEADLINE_S)
        with self._nursery() as nursery, changed_tree(mutant) as folder:
            if mutant.checker is not None:
                return nursery.check(mutant.checker, folder, mutant, deadline_s, (mutant.name,))
            if checker == "probes" and mutant.codes:
                only = tuple(f"{code}/" for code in mutant.codes)
                found = nursery.check(checker, folder, mutant, deadline_s, only)
                if _word(found, mutant) == "killed":
                    return found
            return nursery.check(checker, folder, mutant, deadline_s)

    def _control(self, checker: str) -> dict[str, Any]:
        with self._locks[checker]:
            if checker not in self._controls:
                with self._nursery() as nursery, changed_tree(CONTROL) as folder:
                    found = nursery.check(checker, folder, CONTROL, MAX_DEADLINE_S)
                self._controls[checker] = found
        return self._controls[checker]

    @contextmanager
    def _nursery(self) -> Iterator[Nursery]:
        nursery = self._idle.get()
        try:
            yield nursery
        finally:
            self._idle.put(nursery)


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
    elif row.said and not row.is_cut:
        status, words = Status.SURVIVED, "; ".join(f"{name}: {why}" for name, why in row.why.items())
    else:
        status, words = Status.UNKNOWN, "not all checkers were asked, out of time"
    return Check(row.mutant.name, status, f"{row.mutant.about}; {words}", row.seconds, row.mutant.rules)


def _figures(rows: Sequence[Row], total: int) -> dict[str, object]:
    return {
        "total": total,
        "killed": sum(bool(row.killers) for row in rows),
        "survivors": [row.mutant.name for row in rows if _as_check(row).status is Status.SURVIVED],
        "seeded": sum(row.is_seeded for row in rows),
        "guards": sum(row.mutant.name.startswith("guards.") for row in rows),
        "model_guards": sum(row.mutant.name.startswith("model.") for row in rows),
        "matrix": {row.mutant.name: dict(row.said) for row in rows if row.is_seeded},
    }
