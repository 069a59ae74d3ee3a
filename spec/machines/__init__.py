"""Hypothesis state machines: the executable spec in long random runs, against oracles made of plain lists.

Five drive ``vtoken_ref.machine.Machine`` with the events of ``spec.runtime`` and with faults between
them; three drive the token table, the planner and the block pool alone. ``python -m spec.machines
--seconds N`` goes on with random seeds for as long as one likes.
"""

import time

from spec.machines.catalogue import MACHINES, Entry
from spec.machines.runner import Limits, run_machine
from spec.machines.tally import Tally, rule_names
from spec.report import Check, Options, Progress, Section, Status

SHRINK_S = 20.0
QUICK_SHRINK_S = 4.0


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the machines, each with the ids of what it speaks for."""
    return {entry.name: entry.covers for entry in MACHINES}


def run(options: Options, progress: Progress) -> Section:
    """Run every machine on the same examples each time.

    The time that there is, is shared: each machine may take its part of what the ones before have left.
    """
    entries = [entry for entry in MACHINES if options.wants(entry.name)]
    until = None if options.deadline_s is None else time.monotonic() + options.deadline_s
    checks = []
    for index, entry in enumerate(entries):
        progress(entry.name, index, len(entries))
        deadline = None
        if until is not None:
            now = time.monotonic()
            deadline = now + (until - now) / (len(entries) - index)
        checks.append(check(entry, options.quick, deadline))
    progress("machines", len(entries), len(entries))
    totals: dict[str, object] = {
        name: sum(check.figures[name] for check in checks) for name in ("examples", "steps")
    }
    return Section("machines", tuple(checks), totals)


def check(entry: Entry, is_quick: bool = False, deadline: float | None = None) -> Check:
    """Run one machine.

    Args:
        entry: the machine.
        is_quick: a small number of examples.
        deadline: of the monotonic clock, None for none.

    """
    begin = time.monotonic()
    examples = entry.quick if is_quick else entry.standard
    limits = Limits(examples, shrink_s=QUICK_SHRINK_S if is_quick else SHRINK_S, deadline=deadline)
    tally, is_complete = run_machine(entry.machine, limits)
    status, detail = verdict(entry, tally, is_complete)
    return Check(
        entry.name,
        status,
        detail,
        time.monotonic() - begin,
        entry.covers,
        {"examples": tally.examples, "steps": tally.steps, "failures": int(bool(tally.problem))},
        tally.failure,
    )


def verdict(entry: Entry, tally: Tally, is_complete: bool) -> tuple[Status, str]:
    """Return what a run of a machine has found, and a sentence about it."""
    told = f"{tally.examples} examples, {tally.steps} steps"
    if tally.problem:
        return Status.REFUTED, f"{tally.problem} (in {tally.num_steps} steps; {told})"
    if not is_complete:
        return Status.UNKNOWN, f"out of time after {told}"
    idle = idle_parts(entry, tally)
    if idle:
        return Status.VACUOUS, f"never in {told}: {', '.join(idle)}"
    return Status.NO_COUNTEREXAMPLE, told


def idle_parts(entry: Entry, tally: Tally) -> list[str]:
    """Return the rules that never fired, and what never happened that must."""
    idle = [f"rule {name}" for name in rule_names(entry.machine) if not tally.rules[name]]
    return idle + [what for what in entry.needed if not tally.happened[what]]


__all__ = ["MACHINES", "Entry", "check", "covers", "idle_parts", "run", "verdict"]
