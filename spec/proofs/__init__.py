"""The Z3 proofs of the spec and the co-simulation of their model with ``vtoken_ref``.

Source: paper 3.5.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType

from spec.report import Options, Progress, Section, Status

PROOFS = ("relocation", "in_place_order", "refcount", "orderings", "protocol", "arithmetic")
"""The modules of this folder that have ``proofs()``."""

COSIMULATION = "cosimulation"


def run(options: Options, progress: Progress) -> Section:
    """Prove everything, and compare the model of the proofs with the executable spec.

    Raises:
        ImportError: Z3 is not installed.

    """
    begin = time.monotonic()
    prover = _module("prover")
    proofs = [proof for module in map(_module, PROOFS) for proof in module.proofs()]
    checks = prover.prove_all(proofs, _left(options, begin), progress)
    checks += _module(COSIMULATION).run(_left(options, begin), progress).checks
    section = Section("proofs", tuple(checks))
    figures = {
        "proved_unbounded": section.count(Status.PROVED),
        "proved_bounded": section.count(Status.PROVED_BOUNDED),
        "rlimit": sum(check.figures.get("rlimit", 0) for check in checks),
    }
    return Section("proofs", section.checks, figures)


def _left(options: Options, begin: float) -> Options:
    """Return the options with the time that is left of what the section may take."""
    if options.deadline_s is None:
        return options
    return replace(options, deadline_s=max(options.deadline_s - (time.monotonic() - begin), 0.0))


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks, each with the ids that it speaks for."""
    return dict(_covers())


def _covers() -> Iterator[tuple[str, tuple[str, ...]]]:
    for module in map(_module, PROOFS):
        for proof in module.proofs():
            yield proof.name, proof.covers
    yield from _module(COSIMULATION).covers().items()


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")
