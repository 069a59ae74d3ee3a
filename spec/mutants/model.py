"""Every guard of the Z3 model removed by name: a proof must fail that holds with the guard.

A child process runs this module as a checker; the name of the check is that of the mutant.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from spec.mutants.mutant import Mutant
from spec.report import Check, Options, Progress, Section, Status

MODULE = "spec.proofs.relocation"
SAMPLE = 12
"""Of so many guards the quick check takes one."""


def mutants() -> list[Mutant]:
    """Return one mutant for every guard of every transition of the model."""
    path = f"{MODULE.replace('.', '/')}.py"
    return [
        Mutant(
            _name(transition, guard),
            path,
            None,
            f"the model's {transition} without {guard}",
            checker=__name__,
        )
        for transition, guard in _guards()
    ]


def sample(all_mutants: list[Mutant]) -> list[Mutant]:
    """Return the part that the quick check takes."""
    return all_mutants[::SAMPLE]


def run(options: Options, progress: Progress) -> Section:
    """Look for a proof that fails without the one guard that ``options.only`` names."""
    without = next(pair for pair in _guards() if _name(*pair) in options.only)
    module: Any = import_module(MODULE)
    failed: Check | None = module.noticed_by(without)
    if failed is None:
        return Section("model", (Check(_name(*without), Status.UNKNOWN, "no proof fails"),))
    proofs: Any = import_module("spec.proofs.prover")
    same = [proof for proof in module.proofs() if proof.name == failed.name]
    (unchanged,) = proofs.prove_all(same, Options(), progress)
    is_noticed = unchanged.status in (Status.PROVED, Status.PROVED_BOUNDED)
    status = Status.REFUTED if is_noticed else Status.UNKNOWN
    return Section("model", (Check(failed.name, status, failed.detail),))


def _guards() -> Iterator[tuple[str, str]]:
    for transition in import_module(MODULE).transitions():
        yield from ((transition.name, guard) for guard in transition.guards)


def _name(transition: str, guard: str) -> str:
    return f"model.{transition}.{guard}"
