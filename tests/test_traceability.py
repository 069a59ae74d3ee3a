"""Every way in which a rule can be without a statement, code, a test or a checker is caught."""

from pathlib import Path

import pytest

from spec import traceability
from spec.report import Check, Options, Status
from spec.rules import COLUMNS, sentence_of, spec_rows
from spec.traceability import Coverage, audit, read_tree, render

RULES = '''
class Rule(Enum):
    """Rules."""

    NOT_FREE = ("VT-POOL-001", "not-free", "I6")
    FENCE = ("VT-POOL-002", "fence", "I6")
    FREE = ("VT-POOL-003", "free", "I6")
    LINE = ("VT-TRACE-001", "line", "trace")

    def __init__(self, rule_id, code, invariant): ...
'''
POOL = '''
class Pool:
    """VT-POOL-001."""

    def alloc(self, block_id):
        raise VTokenError(Rule.NOT_FREE, "it is not free")

    def free(self, block_id):
        def check():
            require(block_id, Rule.FENCE)
        if error.rule == Rule.LINE.id or error == Rule.LINE:
            return Rule.LINE.code
        raise VTokenError(Rule.FREE, "it is free")
'''
READER = """
def read():
    raise TraceError(Rule.LINE, 1, "no line")
"""
SPEC = f"""
Prose that names VT-POOL-001.

| {" | ".join(COLUMNS)} |
|---|---|---|---|---|---|
| VT-POOL-001 | not-free | I6 | paper 3.3 | It MUST be free. | It has one owner. |
| VT-POOL-002 | fence | I6 | paper 3.3 | It MUST \\| wait. | Readers. |
| VT-POOL-003 | free | I6 | ours | It MUST NOT be free. | Once. |
| VT-TRACE-001 | line | trace | ours | It MUST be a line. | Readers. |

| id | name | says |
|---|---|---|
| I6 | pool accounting | Blocks are counted. |
"""
TESTS = """
CASES = [(1, "not-free")]

def refused(block_id):
    return "fence"

def check_nothing():
    return "line"

@pytest.mark.parametrize("case", CASES)
def test_alloc(case): ...

def test_fence(refused): ...

def test_free():
    assert error.rule == "VT-POOL-003" != "free"

class TestLine:
    def test_line(self):
        assert error.rule == Rule.LINE.id
"""
COVERED: Coverage = {
    "proofs": {"p.free": ("I6", "VT-POOL-001"), "p.other": ()},
    "machines": {"m": ("VT-POOL-001", "VT-POOL-002", "VT-POOL-003")},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "vtoken_ref/rules.py": RULES,
        "vtoken_ref/deep/pool.py": POOL,
        "conformance/trace.py": READER,
        "spec/SPEC.md": SPEC,
        "tests/test_pool.py": TESTS,
        "tests/test_rules.py": "EXAMPLE = 'VT-NONE-001'\n",
        "README.md": "VT-POOL-002 and VT-POOL-...\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_table(tmp_path)
    return tmp_path


def write_table(root: Path, covered: Coverage = COVERED) -> None:
    (root / traceability.TABLE).write_text(render(read_tree(root), covered))


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def failures(root: Path, covered: Coverage = COVERED) -> dict[str, str]:
    return {check.name: check.detail for check in audit(read_tree(root), covered) if check.status.is_failure}


def test_a_whole_tree_is_whole(root: Path) -> None:
    checks = audit(read_tree(root), COVERED)
    assert {check.status for check in checks} == {Status.COVERED}
    assert [check.name for check in checks] == [
        *("ids.unique", "ids.known", "rows", "table"),
        *("rule.VT-POOL-001", "rule.VT-POOL-002", "rule.VT-POOL-003", "rule.VT-TRACE-001"),
        "invariant.I6",
    ]


def test_places_and_tests_are_found_by_name(root: Path) -> None:
    tree = read_tree(root)
    pool = "vtoken_ref/deep/pool.py Pool"
    assert tree.places == {
        "VT-POOL-001": [f"{pool}.alloc"],
        "VT-POOL-002": [f"{pool}.free.check"],
        "VT-POOL-003": [f"{pool}.free"],
        "VT-TRACE-001": ["conformance/trace.py read"],
    }
    tests = "tests/test_pool.py::test"
    assert tree.tests == {
        "VT-POOL-001": [f"{tests}_alloc"],
        "VT-POOL-002": [f"{tests}_fence"],
        "VT-POOL-003": [f"{tests}_free"],
        "VT-TRACE-001": [f"{tests}_line"],
    }


def test_the_table_names_everything(root: Path) -> None:
    table = (root / traceability.TABLE).read_text()
    assert "| id | code | serves | places | proofs | machines | tests |" in table
    assert "| VT-POOL-001 | not-free | I6 | 1 | 1 | 1 | 1 |" in table
    assert "- enforced in: `vtoken_ref/deep/pool.py Pool.alloc`" in table
    assert "- proofs: `p.free`" in table
    assert "- tests: `tests/test_pool.py: test_alloc`" in table
    assert "## I6 pool accounting\n\n- rules: `VT-POOL-001`, `VT-POOL-002`, `VT-POOL-003`" in table


def without(ids: str) -> Coverage:
    return {
        checker: {name: tuple(i for i in covered if i != ids) for name, covered in checks.items()}
        for checker, checks in COVERED.items()
    }


CODE, POOL_PY, TRACE_PY = "vtoken_ref/rules.py", "vtoken_ref/deep/pool.py", "conformance/trace.py"
STATED, TEST_PY = "spec/SPEC.md", "tests/test_pool.py"
FREE_ROW = "| VT-POOL-003 | free | I6 | ours | It MUST NOT be free. | Once. |\n"


@pytest.mark.parametrize(
    ("path", "old", "new", "name", "words"),
    [
        # Unknown: in a test, in code, in a document, and a member that is not there.
        (TEST_PY, "VT-POOL-003", "VT-POOL-033", "ids.known", "VT-POOL-033, which is no rule"),
        (POOL_PY, '"""VT-POOL-001', '"""VT-POOL-009', "ids.known", "pool.py names VT-POOL-009"),
        ("README.md", "VT-POOL-002", "VT-FOO-002", "ids.known", "README.md names VT-FOO-002"),
        (POOL_PY, "Rule.FREE", "Rule.FRE", "ids.known", "Rule.FRE"),
        (TEST_PY, "Rule.LINE", "Rule.LINES", "ids.known", "Rule.LINES"),
        # Duplicated: an id or a code, in the code or in SPEC.md.
        (CODE, "VT-POOL-002", "VT-POOL-001", "ids.unique", "VT-POOL-001 stands 2 times in rules.py"),
        (CODE, '"free"', '"fence"', "ids.unique", "fence stands 2 times in rules.py"),
        (STATED, FREE_ROW, 2 * FREE_ROW, "ids.unique", "VT-POOL-003 stands 2 times in SPEC.md"),
        (STATED, "| free |", "| fence |", "ids.unique", "fence stands 2 times in SPEC.md"),
        # Unenforced: no code, or code that only compares with it.
        (POOL_PY, "Rule.FREE", "error", "rule.VT-POOL-003", "no code raises Rule.FREE"),
        (TRACE_PY, "Rule.LINE", "x", "rule.VT-TRACE-001", "no code raises Rule.LINE"),
        # Untested: by id, by code in a table of cases, in a fixture; a common word is no code.
        (TEST_PY, '"VT-POOL-003"', "''", "rule.VT-POOL-003", "no test names it (its code is a common"),
        (TEST_PY, '"not-free"', "''", "rule.VT-POOL-001", "no test names it"),
        (TEST_PY, "CASES)", "[])", "rule.VT-POOL-001", "no test names it"),
        (TEST_PY, "test_fence(refused)", "test_fence()", "rule.VT-POOL-002", "no test names it"),
        # Missing in SPEC.md, or stated otherwise there.
        (STATED, FREE_ROW, "", "rule.VT-POOL-003", "SPEC.md does not state it"),
        (STATED, "| free |", "| freed |", "rule.VT-POOL-003", "its code is free, SPEC.md says freed"),
        (STATED, "| free | I6", "| free | I1", "rule.VT-POOL-003", "it serves I6, SPEC.md says I1"),
        (STATED, "| VT-POOL-003", "| VT-POOL-004", "rows", "is stated and is not in rules.py"),
        (STATED, "| I6 | pool", "| I7 | pool", "rule.VT-POOL-001", "I6, which SPEC.md does not define"),
        # Not said in full there.
        (STATED, "Once. |", "|", "rows", "VT-POOL-003 has no rationale"),
        (STATED, "ours | It MUST NOT", " | It MUST NOT", "rows", "VT-POOL-003 has no source"),
        (STATED, "| Once. |", "|", "rows", "VT-POOL-003 has not the six columns"),
        (STATED, "\\|", "|", "rows", "VT-POOL-002 has not the six columns"),
        (STATED, "| source |", "| from |", "rows", "VT-TRACE-001 has not the six columns"),
        # The table is stale.
        (TEST_PY, "def test_alloc", "def test_more", "table", "stale"),
        # Nothing to look at.
        (CODE, "Rule(Enum)", "Rules(Enum)", "rows", "there are no rules"),
    ],
)
def test_damage_is_caught(root: Path, path: str, old: str, new: str, name: str, words: str) -> None:
    assert not failures(root)
    edit(root, path, old, new)
    found = failures(root)
    assert words in found.get(name, ""), found


def test_a_missing_table_is_stale(root: Path) -> None:
    (root / traceability.TABLE).unlink()
    assert list(failures(root)) == ["table"]


@pytest.mark.parametrize(
    ("covered", "name", "words"),
    [
        (without("VT-POOL-002"), "rule.VT-POOL-002", "no checker other than tests covers it"),
        (without("I6"), "invariant.I6", "no checker covers it"),
        ({**COVERED, "mutants": {"m.1": ("VT-POOL-007",)}}, "ids.known", "m.1 covers VT-POOL-007"),
        ({**COVERED, "mutants": {"m.1": ("I5",)}}, "ids.known", "m.1 covers I5, which is no rule"),
        ({**COVERED, "mutants": {"m.1": ("I6",)}}, "table", "stale"),
    ],
)
def test_what_the_checkers_say_is_held_against_the_rules(
    root: Path, covered: Coverage, name: str, words: str
) -> None:
    assert words in failures(root, covered).get(name, "")


def test_a_rule_of_the_file_alone_needs_no_checker_but_one_of_the_spec_does(root: Path) -> None:
    assert not failures(root)
    edit(root, POOL_PY, "return Rule.LINE.code", "raise VTokenError(Rule.LINE, '')")
    write_table(root)
    assert failures(root) == {"rule.VT-TRACE-001": "no checker other than tests covers it"}


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small tree in place of the real one."""
    monkeypatch.setattr(traceability, "ROOT", root)
    monkeypatch.setattr(traceability, "coverage", lambda: COVERED)
    return root


def no_progress(label: str, done: int, total: int | None) -> None:
    pass


def test_the_section_names_its_checks_beforehand(here: Path) -> None:
    section = traceability.run(Options(), no_progress)
    assert {check.name: check.covers for check in section.checks} == traceability.covers()
    assert section.figures == {"broken": []}


def test_the_section_runs_what_is_asked_for(here: Path) -> None:
    section = traceability.run(Options(only=("rule.VT-TRACE", "table")), no_progress)
    assert [check.name for check in section.checks] == ["table", "rule.VT-TRACE-001"]


def test_without_a_checkout_nothing_is_known(here: Path) -> None:
    (here / "tests").rename(here / "elsewhere")
    checks: tuple[Check, ...] = traceability.run(Options(), no_progress).checks
    assert [check.name for check in checks] == list(traceability.covers())
    assert {check.status for check in checks} == {Status.UNKNOWN}
    assert "in a checkout" in checks[0].detail


def test_the_table_is_written_by_command(here: Path) -> None:
    said: list[str] = []
    (here / traceability.TABLE).unlink()
    assert traceability.main([], said.append) == 1
    assert said == ["table: spec/TRACEABILITY.md is stale: run python -m spec.traceability --write"]
    assert traceability.main(["--write"], said.append) == 0
    assert len(said) == 1


def test_a_rule_is_read_by_the_columns_of_its_table() -> None:
    old, new = spec_rows(
        "| id | code | serves | rule |\n|---|---|---|---|\n| VT-A-001 | a | I1 | It MUST. |\n\n"
        f"| {' | '.join(COLUMNS)} |\n|---|\n| VT-A-002 | b | I2 | paper 3 | It MUST NOT. | So. |"
    )
    assert (old.rule, old.source, old.is_whole) == ("It MUST.", "", False)
    assert (new.id, new.code, new.serves, new.source) == ("VT-A-002", "b", "I2", "paper 3")
    assert (new.rule, new.rationale, new.is_whole) == ("It MUST NOT.", "So.", True)


def test_the_sentence_of_a_rule_is_that_of_the_document() -> None:
    assert "MUST" in sentence_of("VT-MAP-008")
    with pytest.raises(KeyError):
        sentence_of("VT-MAP-999")


def test_this_tree_is_whole() -> None:
    bad = [
        f"{c.name}: {c.detail}"
        for c in traceability.run(Options(), no_progress).checks
        if c.status.is_failure
    ]
    assert not bad, "\n".join(bad)
