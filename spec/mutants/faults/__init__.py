"""The seeded faults, by what they spoil; ``FAULTS`` are all of them."""

from spec.mutants.faults import blocks, plans, steps, tokens
from spec.mutants.mutant import Fault

FAULTS: tuple[Fault, ...] = (*blocks.FAULTS, *tokens.FAULTS, *plans.FAULTS, *steps.FAULTS)

__all__ = ["FAULTS"]
