"""Every guard of ``vtoken_ref``, and every part of its condition, removed one at a time.

Found in the syntax tree, so a guard that is added later is in the list by itself. A guard is

- an ``if`` or a loop whose body raises: its condition becomes False, its loop gets nothing to loop over;
- a part of such a condition: an operand of ``or`` and ``and``, one comparison of a chain, also in a
  variable that the condition names and in a predicate that it calls;
- a call of a function that only checks: it is not called;
- the epoch given to a look-up of a request: it is not compared.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePath

from spec.mutants.mutant import ROOT, Mutant, read
from vtoken_ref.rules import Rule

PACKAGE = "vtoken_ref"
NO_GUARDS = ("invariants.py", "rules.py", "events.py", "kv_hash.py")
"""Predicates, names and arithmetic: nothing there refuses anything."""
SAMPLE = 7
"""Of so many removed guards the quick check takes one."""

_CHECKS = re.compile(r"_?check|_get$|request$|worker$")
"""Functions that are called for what they refuse, when what they return is not used."""
LOOK_UPS = ("request", "worker")
"""Their second argument is the epoch that an event is of."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """One node of a file and the text that replaces it; ``gone`` is what is removed."""

    node: ast.expr | ast.stmt
    text: str
    what: str
    gone: ast.expr | ast.stmt
    codes: tuple[str, ...]


def mutants() -> list[Mutant]:
    """Return one mutant for every guard and every part of one."""
    files = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.joinpath(PACKAGE).rglob("*.py"))
        if path.name not in NO_GUARDS
    ]
    trees = {path: ast.parse(read(path)) for path in files}
    predicates = {name for tree in trees.values() for name in _called_in_guards(tree)}
    return [mutant for path in files for mutant in mutants_of(path, read(path), predicates)]


def sample(all_mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the part that the quick check takes: every seventh."""
    return list(all_mutants[::SAMPLE])


def mutants_of(path: str, source: str, predicates: set[str]) -> Iterator[Mutant]:
    """Yield the mutants of one file.

    Args:
        path: the file, from the folder of the packages.
        source: its text.
        predicates: names of functions that conditions of guards call, here or in other files.

    """
    seen = Counter[str]()
    for function in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]:
        for edit in _edits(function, predicates):
            changed = _replace(source, edit.node, edit.text)
            code = edit.codes[0] if len(edit.codes) == 1 else ""
            name = ".".join(filter(None, ("guards", PurePath(path).stem, function.name, code, edit.what)))
            seen[name] += 1
            name += f"-{seen[name]}" if seen[name] > 1 else ""
            rules = tuple(rule.id for rule in Rule if rule.code in edit.codes)
            about = f"{path}:{edit.gone.lineno} without `{ast.unparse(edit.gone)}`"
            yield Mutant(name, path, changed, about, rules, edit.codes)


def _edits(function: ast.FunctionDef, predicates: set[str]) -> Iterator[_Edit]:
    guards = [node for node in ast.walk(function) if isinstance(node, ast.If | ast.For) and _raises(node)]
    guards.sort(key=lambda node: node.lineno)
    for guard in guards:
        if isinstance(guard, ast.If):
            yield _Edit(guard.test, "False", "if", guard.test, _codes(guard))
            yield from _parts(guard.test, _codes(guard))
        else:
            yield _Edit(guard.iter, "()", "for", guard.iter, _codes(guard))
            yield from _parts(guard.iter, _codes(guard))
    named = {name.id: _codes(guard) for guard in guards for name in _names(guard)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id in named:
                    yield from _parts(node.value, named[target.id])
        elif isinstance(node, ast.Return) and node.value is not None and function.name in predicates:
            yield from _parts(node.value, ())
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _CHECKS.match(_called(node.value)):
                yield _Edit(node, "pass", f"call-{_called(node.value).strip('_')}", node, ())
        elif isinstance(node, ast.Call) and _called(node) in LOOK_UPS and len(node.args) == 2:
            yield _Edit(node.args[1], "None", "epoch", node.args[1], (Rule.STALE_EPOCH.code,))


def _raises(node: ast.If | ast.For) -> bool:
    """Tell whether a node raises straight away when its condition holds, or for the first of its items."""
    last = node.body[-1]
    is_reject = (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and (_called(last.value).lstrip("_").startswith("reject"))
    )
    return isinstance(last, ast.Raise) or is_reject


def _parts(condition: ast.expr, codes: tuple[str, ...]) -> Iterator[_Edit]:
    """Yield what remains of a condition without one of its operands, comparisons or filters."""
    for node in ast.walk(condition):
        if isinstance(node, ast.BoolOp):
            word = "or" if isinstance(node.op, ast.Or) else "and"
            for index in range(len(node.values)):
                rest = [value for at, value in enumerate(node.values) if at != index]
                text = ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
                yield _Edit(node, f"({text})", f"{word}-{index}", node.values[index], codes)
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            operands = [node.left, *node.comparators]
            links = [
                ast.unparse(ast.Compare(operands[at], [op], [operands[at + 1]]))
                for at, op in enumerate(node.ops)
            ]
            for index in range(len(links)):
                kept = " and ".join(links[:index] + links[index + 1 :])
                gone = ast.copy_location(ast.Name(links[index]), node)
                yield _Edit(node, f"({kept})", f"chain-{index}", gone, codes)
        elif isinstance(node, ast.comprehension):
            for index, test in enumerate(node.ifs):
                yield _Edit(test, "True", f"filter-{index}", test, codes)


def _called_in_guards(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the functions that conditions of guards call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _raises(node):
            yield from (_called(call) for call in ast.walk(node.test) if isinstance(call, ast.Call))


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _names(guard: ast.If | ast.For) -> Iterator[ast.Name]:
    condition = guard.test if isinstance(guard, ast.If) else guard.iter
    return (node for node in ast.walk(condition) if isinstance(node, ast.Name))


def _codes(guard: ast.AST) -> tuple[str, ...]:
    """Return the codes that a guard's body names."""
    found = [
        Rule[node.attr].code
        for node in ast.walk(guard)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Rule"
    ]
    return tuple(dict.fromkeys(found))


def _replace(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """Return the source with another text in the place of a node."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    encoded = source.encode()
    starts = [0, *accumulate(map(len, encoded.splitlines(keepends=True)))]
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return (encoded[:start] + text.encode() + encoded[end:]).decode()
