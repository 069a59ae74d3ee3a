"""Run one checker of the spec and print what it found as one line of JSON.

``python -m spec.mutants.child CHECKER [--only PREFIX ...]``, with the folder of the changed package
first on ``PYTHONPATH``.
"""

import argparse
import importlib
import json
import time
import traceback
from pathlib import Path

SECTIONS = {
    "probes": "spec.probes.section",
    "contracts": "spec.contracts",
    "cosimulation": "spec.proofs.cosimulation",
    "machines": "spec.machines",
    "explore": "spec.explore",
    "proofs": "spec.proofs",
}
"""The modules whose ``run`` are the checkers, the cheapest first."""


def check(checker: str, only: tuple[str, ...], changed: str, text: str | None, deadline_s: float) -> str:
    """Run a checker and return what it found as JSON.

    Args:
        checker: a key of ``SECTIONS``, or a module with a ``run``.
        only: prefixes of the checks to run, empty for all.
        changed: the changed file, from the folder of the packages.
        text: what that file must be; None when it is not to be verified.
        deadline_s: seconds that the checker may take.

    """
    begin = time.monotonic()
    found: dict[str, object] = {}
    try:
        _verify_changed(changed, text)
        found = _run(checker, only, deadline_s)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        name = f"{Path(where.filename).name}:{where.lineno}"
        found = {"error": f"{type(error).__name__}: {error} ({name})"}
    return json.dumps({**found, "seconds": time.monotonic() - begin})


def _verify_changed(changed: str, text: str | None) -> None:
    """Make sure that the changed file is the one that is imported."""
    module = importlib.import_module(changed.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    if text is not None and Path(module.__file__ or "").read_text(encoding="utf-8") != text:
        raise RuntimeError(f"{module.__file__} was imported, which is not the changed file")


def _run(checker: str, only: tuple[str, ...], deadline_s: float) -> dict[str, object]:
    report = importlib.import_module("spec.report")
    run = importlib.import_module(SECTIONS.get(checker, checker)).run
    options = report.Options(quick=True, jobs=1, deadline_s=deadline_s, only=only)
    section = run(options, lambda label, done, total: None)
    failed = [found for found in section.checks if found.status.is_failure]
    return {
        "checks": len(section.checks),
        "failed": [f"{found.name}: {found.detail}" for found in failed],
        "open": sum(found.status.is_open for found in section.checks),
    }


def main() -> None:
    """Run the checker that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m spec.mutants.child")
    parser.add_argument("checker", help=f"one of {', '.join(SECTIONS)}, or a module with a run")
    parser.add_argument("--only", action="append", default=[], help="prefix of the checks to run")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds")
    arguments = parser.parse_args()
    print(check(arguments.checker, tuple(arguments.only), "vtoken_ref/machine.py", None, arguments.deadline))


if __name__ == "__main__":
    main()
