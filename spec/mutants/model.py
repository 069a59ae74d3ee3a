"""Every guard of the Z3 model removed by name: some proof must fail.

That all proofs hold with the guards is what the section ``proofs`` says. A child process runs this
module as a checker; the name of the check is that of the mutant.
"""

from importlib import import_module

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
    failed: Check | None = import_module(MODULE).noticed_by(without)
    noticed = failed or Check(_name(*without), Status.UNKNOWN, "no proof fails")
    return Section("model", (noticed,))


def _guards() -> list[tuple[str, str]]:
    guards: list[tuple[str, str]] = import_module(MODULE).guards()
    return guards


def _name(transition: str, guard: str) -> str:
    return f"model.{transition}.{guard}"
