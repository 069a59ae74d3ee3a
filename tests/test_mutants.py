"""Mutants fit the code, are applied to a copy of it, and are killed by verdicts alone."""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event as Never
from typing import Any

import pytest

from spec.mutants import engine, guards, model
from spec.mutants.faults import FAULTS, MATRIX
from spec.mutants.mutant import CONTROL, ROOT, Fault, Mutant, StaleMutantError, changed_tree, read
from spec.mutants.nursery import Nursery
from spec.report import Check, Options, Section, Status
from vtoken_ref.rules import Rule

POOL = "vtoken_ref/pool.py"
HERE = __name__


def ignore(label: str, done: int, total: int | None) -> None:
    pass


def run(options: Options, progress: Any) -> Section:
    """A checker, run in a child: what it does stands at the end of the pool that it finds imported."""
    import vtoken_ref.pool

    order = Path(vtoken_ref.pool.__file__).read_text().rsplit("# ", 1)[-1]
    if order == "crash":
        raise KeyError("crash")
    if order == "hang":
        Never().wait()
    status = {"kill": Status.REFUTED, "open": Status.UNKNOWN}.get(order, Status.NO_COUNTEREXAMPLE)
    return Section("fake", (Check(f"fake.{options.deadline_s}", status, order[-9:]),))


def ordered(order: str, terminates: bool = False) -> Mutant:
    return Mutant(order, POOL, f"{read(POOL)}# {order}", "a fault", ("VT-POOL-001",), terminates=terminates)


# What is changed, and where.


def test_every_seeded_fault_fits_the_code_and_has_a_name_of_its_own() -> None:
    mutants = [fault.mutant() for fault in FAULTS]
    assert len({mutant.name for mutant in mutants}) == len(FAULTS) >= 40
    for mutant in mutants:
        assert mutant.source is not None
        ast.parse(mutant.source)
        assert mutant.rules and mutant.source != read(mutant.path)


def test_every_public_failure_has_a_seeded_fault_in_the_matrix() -> None:
    assert {fault.name for fault in FAULTS} >= MATRIX
    shown = [fault for fault in FAULTS if fault.name in MATRIX]
    assert {number for fault in shown for number in fault.failures} == set(range(1, 20))
    assert len(shown) >= 40


@pytest.mark.parametrize("kind", ["guard of the planner", "ordering", "epoch check", "refcount step"])
def test_every_kind_of_fault_that_must_be_seeded_is(kind: str) -> None:
    least = {"guard of the planner": 12, "ordering": 4, "epoch check": 6, "refcount step": 8}[kind]
    assert sum(fault.stands_for.startswith(kind) for fault in FAULTS) >= least


@pytest.mark.parametrize("old", ["not in any file of this repository!", "self", ""])
def test_a_fragment_that_is_not_there_exactly_once_is_an_error(old: str) -> None:
    fault = Fault("stale", POOL, old, "something else", "", (Rule.LEAK,))
    with pytest.raises(StaleMutantError, match="stale"):
        fault.mutant()


def test_a_stale_fault_fails_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = Fault("stale", POOL, "not there!", "", "", (Rule.LEAK,))
    monkeypatch.setattr(engine, "FAULTS", (stale,))
    section = engine.run(Options(quick=True, only=("seeded.",)), ignore)
    assert [(check.name, check.status) for check in section.checks] == [("seeded.stale", Status.REFUTED)]


def test_a_change_is_in_a_copy_that_is_gone_afterwards() -> None:
    before = read(POOL)
    with changed_tree(ordered("kill")) as folder:
        assert folder.joinpath(POOL).read_text().endswith("# kill")
        assert folder.joinpath("vtoken_ref/table.py").read_text() == read("vtoken_ref/table.py")
        assert read(POOL) == before
    assert not folder.exists()


# What a checker says.


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def ask(nursery: Nursery, mutant: Mutant, deadline_s: float = 20.0) -> dict[str, Any]:
    with changed_tree(mutant) as folder:
        return nursery.check(HERE, folder, mutant, deadline_s)


def test_the_changed_file_is_the_one_that_is_checked(nursery: Nursery) -> None:
    assert ask(nursery, ordered("kill"))["failed"] == ["fake.20.0: kill"]
    assert ask(nursery, CONTROL)["failed"] == []
    assert ask(nursery, ordered("live"))["checks"] == 1


def test_a_file_that_is_not_the_changed_one_is_an_error(nursery: Nursery) -> None:
    with changed_tree(CONTROL) as folder:
        found = nursery.check(HERE, folder, ordered("kill"), 20.0)
    assert "which is not the changed file" in found["error"]


@pytest.mark.parametrize(
    ("order", "terminates", "word"),
    [
        ("kill", False, "killed"),
        ("live", False, "survived"),
        ("open", False, "survived"),
        ("crash", False, "error"),
        ("hang", False, "timeout"),
        ("hang", True, "killed"),
    ],
)
def test_only_a_verdict_kills(nursery: Nursery, order: str, terminates: bool, word: str) -> None:
    mutant = ordered(order, terminates)
    assert engine._word(ask(nursery, mutant, 0.1 if order == "hang" else 20.0), mutant) == word


def test_a_source_that_cannot_be_imported_is_an_error(nursery: Nursery) -> None:
    assert "SyntaxError" in ask(nursery, Mutant("broken", POOL, "def", ""))["error"]
    assert ask(nursery, CONTROL)["failed"] == []


def test_a_seeded_fault_is_noticed_by_the_probes_of_its_rules(nursery: Nursery) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no-fence").mutant()
    with changed_tree(fault) as folder:
        found = nursery.check("probes", folder, fault, 20.0, ("fence/",))
    assert found["checks"] == sum(name.startswith("fence/") for name in engine_probe_names())
    assert "fence/aborted: it is accepted" in found["failed"]


def engine_probe_names() -> list[str]:
    from spec.probes.section import covers

    return list(covers())


def test_a_child_can_be_run_by_hand() -> None:
    command = [sys.executable, "-m", "spec.mutants.child", "probes", "--only", "fence/"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["failed"] == []


# The matrix.


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this module the one checker."""
    monkeypatch.setattr(engine, "CHECKERS", (HERE,))
    monkeypatch.setattr(engine, "_checkers_of", lambda mutant, options: (HERE,))
    monkeypatch.setattr(model, "mutants", list)
    monkeypatch.setattr(guards, "mutants", lambda: [ordered("kill"), ordered("live"), ordered("crash")])
    monkeypatch.setattr(engine, "FAULTS", ())


@pytest.mark.usefixtures("faked")
def test_a_mutant_that_no_checker_notices_fails_the_section() -> None:
    section = engine.run(Options(jobs=1), ignore)
    assert {check.name: check.status for check in section.checks} == {
        f"control.{HERE}": Status.NO_COUNTEREXAMPLE,
        "kill": Status.KILLED,
        "live": Status.SURVIVED,
        "crash": Status.SURVIVED,
    }
    assert section.figures["survivors"] == ["live", "crash"]
    assert (section.figures["total"], section.figures["killed"]) == (3, 1)


@pytest.mark.usefixtures("faked")
def test_what_a_checker_says_counts_only_if_the_unchanged_spec_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "CONTROL", ordered("kill"))
    section = engine.run(Options(jobs=1, only=("kill",)), ignore)
    assert [check.status for check in section.checks] == [Status.REFUTED, Status.UNKNOWN]


@pytest.mark.usefixtures("faked")
def test_what_is_not_done_in_time_is_unknown() -> None:
    section = engine.run(Options(jobs=1, deadline_s=0.0), ignore)
    assert {check.status for check in section.checks} == {Status.UNKNOWN}


def test_the_matrix_is_a_table_with_a_column_for_each_checker_that_was_asked() -> None:
    matrix = {"seeded.x": {"probes": "killed", "explore": "survived"}, "seeded.y": {"probes": "error"}}
    assert engine.matrix_table(Section("mutants", (), {"matrix": matrix})) == (
        "| mutant | probes | explore |\n|---|---|---|\n"
        "| seeded.x | killed | survived |\n| seeded.y | error |  |\n"
    )


def test_a_quick_run_on_the_real_probes_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    section = engine.run(Options(quick=True, only=("seeded.no-fence", "seeded.epoch-of-request")), ignore)
    assert [check.status for check in section.checks] == [
        Status.NO_COUNTEREXAMPLE,
        Status.KILLED,
        Status.KILLED,
    ]
    assert "seeded.no-fence" in engine.covers()


# Guards.

SOURCE = """
def check_all(a, b, items):
    if a or (b and 0 <= a < 9):
        raise VTokenError(Rule.FENCE, "")
    for item in doubles(items):
        raise VTokenError(Rule.LEAK, "")
    late = [item for item in items if item > a]
    if late:
        reject(late)
    if b:
        return


def change(state, event):
    _check_all(event)
    state.request(event.req_id, event.epoch)
    if not is_right(event):
        raise ValueError


def is_right(event):
    return event.a and event.b
"""


def test_every_guard_and_every_part_of_one_is_removed_once() -> None:
    mutants = list(guards.mutants_of("vtoken_ref/x.py", SOURCE, {"is_right"}))
    assert [(mutant.name.removeprefix("guards.x."), mutant.about.split(" ", 1)[1]) for mutant in mutants] == [
        ("check_all.fence.if", "without `a or (b and 0 <= a < 9)`"),
        ("check_all.fence.or-0", "without `a`"),
        ("check_all.fence.or-1", "without `b and 0 <= a < 9`"),
        ("check_all.fence.and-0", "without `b`"),
        ("check_all.fence.and-1", "without `0 <= a < 9`"),
        ("check_all.fence.chain-0", "without `0 <= a`"),
        ("check_all.fence.chain-1", "without `a < 9`"),
        ("check_all.leak.for", "without `doubles(items)`"),
        ("check_all.if", "without `late`"),
        ("check_all.filter-0", "without `item > a`"),
        ("change.if", "without `not is_right(event)`"),
        ("change.call-check_all", "without `_check_all(event)`"),
        ("change.call-request", "without `state.request(event.req_id, event.epoch)`"),
        ("change.stale-epoch.epoch", "without `event.epoch`"),
        ("is_right.and-0", "without `event.a`"),
        ("is_right.and-1", "without `event.b`"),
    ]
    lines = {mutant.name: (mutant.source or "").splitlines() for mutant in mutants}
    assert lines["guards.x.check_all.fence.if"][2] == "    if False:"
    assert lines["guards.x.check_all.fence.or-1"][2] == "    if (a):"
    assert lines["guards.x.check_all.leak.for"][4] == "    for item in ():"
    assert lines["guards.x.change.stale-epoch.epoch"][15] == "    state.request(event.req_id, None)"


def test_every_raise_of_the_spec_stands_in_a_guard_that_is_removed() -> None:
    sites = {mutant.about.split(" ", 1)[0] for mutant in guards.mutants()}
    unguarded = []
    for path in sorted(ROOT.joinpath("vtoken_ref").rglob("*.py")):
        if path.name in guards.NO_GUARDS:
            continue
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Raise) and not isinstance(node, ast.If | ast.For):
                    unguarded.append(f"{path.stem}.{getattr(node, 'name', type(node).__name__)}")
                elif isinstance(child, ast.Raise):
                    condition = node.test if isinstance(node, ast.If) else node.iter
                    assert f"{name}:{condition.lineno}" in sites
    # The last line of what a guard calls, and what a handler makes of another exception.
    assert unguarded == ["policy.error", "reclaim.error", "forwards._reject_slots"]


def test_names_of_guards_are_unique_and_the_sample_is_a_part_of_them() -> None:
    mutants = guards.mutants()
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    sample = guards.sample(mutants)
    assert len(mutants) > 300 and 30 < len(sample) < len(mutants) / 5
    for mutant in sample:
        assert mutant.source is not None
        ast.parse(mutant.source)
