"""The co-simulation as a section of checks: one a transition, one for the invariant, one for the rest.

What it finds is a run of the executable spec that ends in an event on which spec and model differ.

Source: paper 3.2 to 3.5.
"""

import time

from spec.proofs import relocation
from spec.proofs.cosimulate import GUARDS_OF, Cosimulation
from spec.proofs.runs import INVARIANT, REST, Difference, Tally, search
from spec.report import Check, Counterexample, Options, Progress, Section, Status

NUM_RUNS = {True: 40, False: 120}
"""Runs when it is to be quick, and when not."""


def run(options: Options, progress: Progress, without: tuple[str, str] | None = None) -> Section:
    """Compare model and spec.

    Args:
        options: how; runs that are not reached in time are left out, and not counted.
        progress: told of each run.
        without: a transition and a guard that the model is to be without.

    """
    begin = time.monotonic()
    wanted = {name: ids for name, ids in covers().items() if options.wants(name)}
    if not wanted:
        return Section("cosimulation", ())
    transitions = [
        each.without(without[1]) if without is not None and each.name == without[0] else each
        for each in relocation.transitions()
    ]
    end = None if options.deadline_s is None else begin + options.deadline_s
    tally, found = search(Cosimulation(transitions), NUM_RUNS[options.quick], progress, end)
    seconds = (time.monotonic() - begin) / len(wanted)
    return Section(
        "cosimulation", tuple(_check(name, ids, tally, found, seconds) for name, ids in wanted.items())
    )


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks, each with the rules whose guards it compares."""
    names = [transition.name for transition in relocation.transitions()]
    rules = {name: tuple(sorted({rule.id for of, rule in GUARDS_OF if of == name})) for name in names}
    return {
        **{_check_name(name): ids for name, ids in rules.items()},
        _check_name(INVARIANT): ("I1", "I2", "I4", "I6"),
        _check_name(REST): (),
    }


def _check_name(name: str) -> str:
    return f"cosimulation.{name}"


def _check(check: str, ids: tuple[str, ...], tally: Tally, found: Difference | None, seconds: float) -> Check:
    name = check.removeprefix(_check_name(""))
    figures = {
        "accepted": tally.accepted[name],
        "refused": tally.refused[name],
        "outside": tally.outside[name],
    }
    detail = (
        f"{figures['accepted']} accepted and {figures['refused']} refused by both,"
        f" {figures['outside']} refused for what is not in the model"
    )
    is_tried = bool(figures["accepted"] and (figures["refused"] or figures["outside"]))
    if name == INVARIANT:
        figures = {"states": tally.num_states}
        detail = f"it holds in {tally.num_states} states"
        is_tried = tally.num_states > 0
    status = Status.NO_COUNTEREXAMPLE if is_tried else Status.UNKNOWN
    counterexample = None
    if found is not None and found.name == name:
        status, detail = Status.REFUTED, found.problem
        counterexample = Counterexample(check, found.config, found.events, found.problem)
    return Check(check, status, f"{detail} in {tally.num_runs} runs", seconds, ids, figures, counterexample)
