"""The seeded faults."""

from spec.mutants.mutant import Fault, Mutant

FAULTS: tuple[Fault, ...] = ()


def mutants() -> list[Mutant]:
    """Return the changed files of all faults."""
    return [fault.mutant() for fault in FAULTS]
