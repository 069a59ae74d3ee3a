"""vLLM is used by its official seams only: no attribute of a vllm module or class is assigned."""

import ast
from pathlib import Path

import pytest

PACKAGES = ("vtoken_ref", "spec", "conformance", "gpu_impl")
ROOT = Path(__file__).parent.parent


def imported_from_vllm(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.asname or "vllm" for a in node.names if a.name.split(".")[0] == "vllm"}
    return names


def root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def is_attribute_call(node: ast.AST) -> bool:
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_named and node.func.id in ("setattr", "delattr")  # type: ignore[attr-defined]


def assigned_vllm_attributes(source: str) -> list[int]:
    """Return the lines that assign to, delete from or setattr on something imported from vllm."""
    tree = ast.parse(source)
    names, lines = imported_from_vllm(tree), []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif is_attribute_call(node) and root_name(node.args[0]) in names:  # type: ignore[attr-defined]
            lines.append(node.lineno)
        flat = [leaf for t in targets for leaf in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
        lines += [
            node.lineno
            for target in flat
            if isinstance(target, ast.Attribute | ast.Subscript) and root_name(target) in names
        ]
    return lines


@pytest.mark.parametrize("path", sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py")), ids=str)
def test_no_attribute_of_vllm_is_assigned(path: Path) -> None:
    assert assigned_vllm_attributes(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "Scheduler.schedule = mine",
        "vllm.envs.X = 1",
        "setattr(Scheduler, 'schedule', mine)",
        "del Scheduler.schedule",
        "Scheduler.limit += 1",
        "a, Scheduler.schedule = 1, 2",
        "Scheduler.__dict__['schedule'] = mine",
    ],
)
def test_the_check_finds_an_assignment(line: str) -> None:
    source = f"import vllm.envs\nfrom vllm.v1.core.sched.scheduler import Scheduler\n{line}\n"
    assert assigned_vllm_attributes(source) == [3]
