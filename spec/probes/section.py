"""All probes, as a section of the report."""

import time
from collections.abc import Iterator

from spec.probes import (
    admission,
    copies,
    effects,
    forwards,
    messages,
    plans,
    policies,
    pool,
    prefix_cache,
    requests,
    table,
)
from spec.probes.probe import Probe, problem_of
from spec.report import Check, Options, Progress, Section, Status
from vtoken_ref.rules import Rule

AREAS = (requests, pool, table, plans, copies, forwards, prefix_cache, admission, policies, messages, effects)


def all_probes() -> Iterator[Probe]:
    """Yield every probe."""
    for area in AREAS:
        yield from area.probes()


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the probes, each with the id of its rule."""
    return {probe.name: _ids(probe) for probe in all_probes()}


def run(options: Options, progress: Progress) -> Section:
    """Run the probes."""
    probes = [probe for probe in all_probes() if options.wants(probe.name)]
    until = None if options.deadline_s is None else time.monotonic() + options.deadline_s
    checks = []
    for done, probe in enumerate(probes):
        progress("probes", done, len(probes))
        if until is not None and time.monotonic() > until:
            checks.append(Check(probe.name, Status.UNKNOWN, "out of time", covers=_ids(probe)))
            continue
        begin = time.monotonic()
        problem = problem_of(probe)
        status = Status.REFUTED if problem else Status.NO_COUNTEREXAMPLE
        checks.append(Check(probe.name, status, problem, time.monotonic() - begin, _ids(probe)))
    progress("probes", len(probes), len(probes))
    refuted = [check.name for check in checks if check.status is Status.REFUTED]
    return Section("probes", tuple(checks), {"probes": len(checks), "refuted": refuted})


def _ids(probe: Probe) -> tuple[str, ...]:
    return (probe.error.id,) if isinstance(probe.error, Rule) else ()
