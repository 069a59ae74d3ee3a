"""From each rule to the code that enforces it and to all that checks it; ``TRACEABILITY.md`` is the table.

``python -m spec.traceability`` says what is wrong, with ``--write`` it makes the table anew. The code and
the tests are read, never run. Code enforces a rule where it hands ``Rule.NAME`` on, mostly to a ``raise``;
a test covers a rule whose id, code or ``Rule.NAME`` stands in it or in what it uses of its file; a
checker says with ``covers()`` what each of its checks speaks for.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import get_args

from spec.check import SECTIONS
from spec.report import Check, Options, Progress, Section, Status
from spec.rules import SpecRow, invariant_names, spec_rows
from vtoken_ref.events import EVENT_TYPES, Strategy

ROOT = Path(__file__).parents[1]
TABLE = Path("spec/TRACEABILITY.md")
RULES = Path("vtoken_ref/rules.py")

NAME = "trace"
CHECKERS = tuple(name for name in SECTIONS if name != NAME)
ENFORCING = ("vtoken_ref/**/*.py", "conformance/trace.py")
MENTIONING = (
    *("vtoken_ref/**/*.py", "spec/**/*.py", "conformance/**/*.py", "gpu_impl/**/*.py", "tests/**/*.py"),
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "spec/SPEC.md"),
)
ABOUT_RULES = ("test_rules.py", "test_traceability.py", "test_check.py")
"""Tests of the rules' bookkeeping: an id in them is an example."""
OTHER_AIMS = ("trace", "policy")
"""What a rule may serve beside an invariant."""

AMBIGUOUS = {*EVENT_TYPES, *get_args(Strategy)}
"""Codes that are also the name of something else; a test names such a rule in another way."""

RULE_ID = re.compile(r"VT-[A-Z]+-\d+")

Coverage = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By checker and name of a check, the ids that it speaks for."""


@dataclass(frozen=True, slots=True)
class CodeRule:
    """One member of ``vtoken_ref.rules.Rule``, as it is written there."""

    name: str
    id: str
    code: str
    invariant: str


@dataclass(frozen=True, slots=True)
class Tree:
    """What a checkout says about rules.

    Attributes:
        rules: in the order of the code.
        rows: in the order of SPEC.md.
        invariants: names by id.
        places: by rule id, the files and functions that enforce it.
        tests: by rule id, the tests that name it.
        unknown: mentions of a rule that is not there, each with its file.
        table: TRACEABILITY.md, empty where there is none.

    """

    rules: list[CodeRule]
    rows: list[SpecRow]
    invariants: dict[str, str]
    places: dict[str, list[str]]
    tests: dict[str, list[str]]
    unknown: list[str]
    table: str


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks of this section, each with the ids that it looks at."""
    rules = code_rules((ROOT / RULES).read_text())
    invariants = invariant_names((ROOT / "spec/SPEC.md").read_text())
    return {
        **{name: () for name in ("ids.unique", "ids.known", "rows", "table")},
        **{f"rule.{rule.id}": (rule.id,) for rule in rules},
        **{f"invariant.{name}": (name,) for name in invariants},
    }


def run(options: Options, progress: Progress) -> Section:
    """Check that every rule is stated, enforced, tested and covered by a checker."""
    if not (ROOT / "tests").is_dir():
        reason = "there is no tests folder beside spec/: run this in a checkout of vToken"
        checks = [Check(name, Status.UNKNOWN, reason) for name in covers()]
    else:
        checks = audit(read_tree(ROOT), coverage())
    checks = [check for check in checks if options.wants(check.name)]
    progress("rules", len(checks), len(checks))
    bad = [check.name for check in checks if check.status.is_failure]
    return Section(NAME, tuple(checks), {"broken": bad})


def coverage() -> Coverage:
    """Ask every checker what its checks speak for."""
    return {name: import_module(SECTIONS[name]).covers() for name in CHECKERS}


# What is wrong.


def audit(tree: Tree, covered: Coverage) -> list[Check]:
    """Return one check a rule and an invariant, and those of the bookkeeping."""
    checks = [
        _check("ids.unique", _duplicates(tree), "no id and no code stands for two rules"),
        _check("ids.known", _unknown_ids(tree, covered), "every id that is named exists"),
        _rows_check(tree),
        _check("table", _stale(tree, covered), "TRACEABILITY.md says what the code says"),
    ]
    for rule in tree.rules:
        found = _found(covered, rule.id)
        detail = f"{len(tree.places[rule.id])} places, {len(found)} checks, {len(tree.tests[rule.id])} tests"
        checks.append(_check(f"rule.{rule.id}", _rule_problems(tree, rule, found), detail, rule.id))
    for name in tree.invariants:
        found = _found(covered, name)
        problems = [] if found else ["no checker covers it"]
        checks.append(_check(f"invariant.{name}", problems, f"{len(found)} checks", name))
    return checks


def _check(name: str, problems: list[str], detail: str, *ids: str) -> Check:
    if problems:
        return Check(name, Status.REFUTED, "; ".join(problems), covers=ids)
    return Check(name, Status.COVERED, detail, covers=ids)


def _rows_check(tree: Tree) -> Check:
    if not (tree.rules and tree.rows and tree.invariants):
        return Check("rows", Status.VACUOUS, "there are no rules, or SPEC.md states none or no invariants")
    return _check("rows", _bad_rows(tree), f"{len(tree.rows)} rows of SPEC.md have all their cells")


def _rule_problems(tree: Tree, rule: CodeRule, found: list[str]) -> list[str]:
    problems = []
    row = next((row for row in tree.rows if row.id == rule.id), None)
    if row is None:
        problems.append("SPEC.md does not state it")
    else:
        if row.code != rule.code:
            problems.append(f"its code is {rule.code}, SPEC.md says {row.code}")
        if row.serves != rule.invariant:
            problems.append(f"it serves {rule.invariant}, SPEC.md says {row.serves}")
    if rule.invariant not in (*tree.invariants, *OTHER_AIMS):
        problems.append(f"it serves {rule.invariant}, which SPEC.md does not define")
    places = tree.places[rule.id]
    if not places:
        problems.append(f"no code raises Rule.{rule.name}")
    if not found and not _only_readers(places):
        problems.append("no checker other than tests covers it")
    if not tree.tests[rule.id]:
        also = " (its code is a common word: use the id)" if rule.code in AMBIGUOUS else ""
        problems.append(f"no test names it{also}")
    return problems


def _only_readers(places: list[str]) -> bool:
    """Tell whether a rule is about the file of a trace: no model of the spec ever meets one."""
    return bool(places) and not any(place.startswith("vtoken_ref/") for place in places)


def _duplicates(tree: Tree) -> list[str]:
    problems = []
    for where, rules in (("rules.py", tree.rules), ("SPEC.md", tree.rows)):
        for column in ("id", "code"):
            counts = Counter(getattr(rule, column) for rule in rules)
            problems += [
                f"{word} stands {n} times in {where}" for word, n in counts.items() if word and n > 1
            ]
    return problems


def _unknown_ids(tree: Tree, covered: Coverage) -> list[str]:
    known = {*tree.invariants, *(rule.id for rule in tree.rules)}
    claims = [
        f"{checker} check {name} covers {claimed}"
        for checker, checks in covered.items()
        for name, ids in checks.items()
        for claimed in ids
        if claimed not in known
    ]
    return [f"{text}, which is no rule" for text in (*tree.unknown, *claims)]


def _bad_rows(tree: Tree) -> list[str]:
    known = {rule.id for rule in tree.rules}
    problems = []
    for row in tree.rows:
        if row.id not in known:
            problems.append(f"{row.id} is stated and is not in rules.py")
        if not row.is_whole:
            problems.append(f"{row.id} has not the six columns of a rule")
        elif row.empty_columns():
            problems.append(f"{row.id} has no {' and no '.join(row.empty_columns())}")
    return problems


def _stale(tree: Tree, covered: Coverage) -> list[str]:
    if tree.table == render(tree, covered):
        return []
    return [f"{TABLE} is stale: run python -m spec.traceability --write"]


# What a checkout says.


def read_tree(root: Path) -> Tree:
    """Read the rules, their statements, the code and the tests of a checkout."""
    rules = code_rules((root / RULES).read_text())
    spec = (root / "spec/SPEC.md").read_text()
    table = root / TABLE
    return Tree(
        rules=rules,
        rows=spec_rows(spec),
        invariants=invariant_names(spec),
        places=_places(root, rules),
        tests=_tests(root, rules),
        unknown=_unknown_mentions(root, rules),
        table=table.read_text() if table.exists() else "",
    )


def code_rules(source: str) -> list[CodeRule]:
    """Return the members of the enumeration ``Rule``, read and not imported: an alias is not lost."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == "Rule":
            for statement in node.body:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    found.append(CodeRule(statement.targets[0].id, *ast.literal_eval(statement.value)))
    return found


def _places(root: Path, rules: list[CodeRule]) -> dict[str, list[str]]:
    ids = {rule.name: rule.id for rule in rules}
    places: dict[str, list[str]] = {rule.id: [] for rule in rules}
    for path in _files(root, ENFORCING):
        if path == root / RULES:
            continue
        for name, scope in _handed_on(ast.parse(path.read_text()), ""):
            place = f"{path.relative_to(root)} {scope}".strip()
            if name in ids and place not in places[ids[name]]:
                places[ids[name]].append(place)
    return places


def _handed_on(node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
    """Yield each ``Rule.NAME`` that is not just compared or asked for a part, with its function."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".removeprefix(".")
    if name := _rule_name(node):
        yield name, scope
        return
    if isinstance(node, ast.Compare) or (isinstance(node, ast.Attribute) and _rule_name(node.value)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _handed_on(child, scope)


def _rule_name(node: ast.AST) -> str | None:
    """Return NAME where the node is ``Rule.NAME``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Rule":
        return node.attr if node.attr.isupper() else None
    return None


def _tests(root: Path, rules: list[CodeRule]) -> dict[str, list[str]]:
    words = {word: rule.id for rule in rules for word in (rule.id, rule.code) if word not in AMBIGUOUS}
    names = {rule.name: rule.id for rule in rules}
    tests: dict[str, list[str]] = {rule.id: [] for rule in rules}
    for path in _files(root, ("tests/**/test_*.py",)):
        if path.name in ABOUT_RULES:
            continue
        module = ast.parse(path.read_text())
        parts = _named_parts(module)
        for test in _test_functions(module):
            mentioned = set()
            for node in _uses(test, parts):
                mentioned |= _mentioned(node, words, names)
            for rule_id in mentioned:
                tests[rule_id].append(f"{path.relative_to(root)}::{test.name}")
    return tests


def _test_functions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def _named_parts(module: ast.Module) -> dict[str, ast.AST]:
    """Return what a test file defines for its tests: helpers, fixtures, classes and tables of cases."""
    parts: dict[str, ast.AST] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test_"):
            parts[node.name] = node
        elif isinstance(node, ast.Assign):
            parts.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            parts[node.target.id] = node
    return parts


def _uses(test: ast.AST, parts: dict[str, ast.AST]) -> list[ast.AST]:
    """Return a test and the parts of its file that it uses, directly or not."""
    used, todo, seen = [], [test], set()
    while todo:
        used.append(todo.pop())
        for node in ast.walk(used[-1]):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
            if name in parts and name not in seen:
                seen.add(name)
                todo.append(parts[name])
    return used


def _mentioned(node: ast.AST, words: dict[str, str], names: dict[str, str]) -> set[str]:
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found |= {words[word] for word in (part.value, *RULE_ID.findall(part.value)) if word in words}
        elif (name := _rule_name(part)) in names:
            found.add(names[str(name)])
    return found


def _unknown_mentions(root: Path, rules: list[CodeRule]) -> list[str]:
    ids, names = {rule.id for rule in rules}, {rule.name for rule in rules}
    unknown = []
    for path in _files(root, MENTIONING):
        if path.name in ABOUT_RULES:
            continue
        text = path.read_text()
        strangers = set(RULE_ID.findall(text)) - ids
        if path.suffix == ".py":
            named = {_rule_name(node) for node in ast.walk(ast.parse(text))} - names - {None}
            strangers |= {f"Rule.{name}" for name in named}
        unknown += [f"{path.relative_to(root)} names {stranger}" for stranger in sorted(strangers)]
    return unknown


def _files(root: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


# The table.

HEAD = """\
# Traceability

Made by `python -m spec.traceability --write`; CI fails when it is stale. How many places enforce each rule of
[SPEC.md](SPEC.md), and how many checks of each kind and tests speak for it; below, which ones.
"""


def render(tree: Tree, covered: Coverage) -> str:
    """Return TRACEABILITY.md."""
    columns = ("id", "code", "serves", "places", *covered, "tests")
    lines = [HEAD, _row(columns), _row("---" for _ in columns)]
    for rule in tree.rules:
        counts = [len(_names(checks, rule.id)) for checks in covered.values()]
        ends = (len(tree.places[rule.id]), *counts, len(tree.tests[rule.id]))
        lines.append(_row((rule.id, rule.code, rule.invariant, *ends)))
    for rule in tree.rules:
        lines += ["", f"## {rule.id} {rule.code}", ""]
        lines += _list("enforced in", tree.places[rule.id])
        lines += _lists(covered, rule.id)
        lines += _list("tests", _by_file(tree.tests[rule.id]))
    for name, title in tree.invariants.items():
        lines += ["", f"## {name} {title}", ""]
        lines += _list("rules", [rule.id for rule in tree.rules if rule.invariant == name])
        lines += _lists(covered, name)
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _lists(covered: Coverage, rule_id: str) -> list[str]:
    return [line for checker, checks in covered.items() for line in _list(checker, _names(checks, rule_id))]


def _list(title: str, entries: list[str]) -> list[str]:
    return [f"- {title}: {', '.join(f'`{entry}`' for entry in entries)}"] if entries else []


def _by_file(tests: list[str]) -> list[str]:
    """Name a file once and then only the tests in it."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        path, _, name = test.partition("::")
        by_file[path].append(name)
    return [f"{path}: {' '.join(names)}" for path, names in by_file.items()]


def _names(checks: Mapping[str, tuple[str, ...]], rule_id: str) -> list[str]:
    return sorted(name for name, ids in checks.items() if rule_id in ids)


def _found(covered: Coverage, rule_id: str) -> list[str]:
    return [name for checks in covered.values() for name in _names(checks, rule_id)]


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Say what is wrong, after writing the table if that is asked for; 0 when nothing is."""
    parser = argparse.ArgumentParser(prog="python -m spec.traceability", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE}")
    if parser.parse_args(arguments).write:
        (ROOT / TABLE).write_text(render(read_tree(ROOT), coverage()))
    bad = [check for check in audit(read_tree(ROOT), coverage()) if check.status.is_failure]
    for check in bad:
        say(f"{check.name}: {check.detail}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
