"""``vtoken check``: run the checkers of the spec, one section after another, and judge them together."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from spec.report import Check, Counterexample, Options, Progress, Section, Status

SECTIONS = {
    "proofs": "spec.proofs",
    "explore": "spec.explore",
    "machines": "spec.machines",
    "probes": "spec.probes.section",
    "contracts": "spec.contracts",
    "mutants": "spec.mutants.engine",
    "trace": "spec.traceability",
}
"""The modules with ``run(options, progress)`` and ``covers()``, in the order in which they run."""

SHARES = {
    "proofs": 4,
    "explore": 12,
    "machines": 4,
    "probes": 1,
    "contracts": 3,
    "mutants": 5,
    "trace": 1,
}
"""How a time limit is shared: each section gets its part of what is left when it begins."""

SOLVERS = ("z3", "crosshair", "hypothesis")
"""What a section may import that only the extra ``vtoken[dev]`` installs."""

Names = Mapping[str, tuple[str, ...]]
"""The names of the checks of a section, each with the ids that it speaks for."""


class BadInput(Exception):
    """Something the user gave cannot be used, or is not installed; one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A section that was run, its wall time, and what is wrong with it beside its checks."""

    section: Section
    seconds: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was run; sections that were not are absent, and the verdict does not speak for them."""

    ran: tuple[Ran, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        """``fail`` for anything found wrong, ``inconclusive`` for anything left open, else ``pass``."""
        checks = [check for ran in self.ran for check in ran.section.checks]
        if any(ran.problems for ran in self.ran) or any(check.status.is_failure for check in checks):
            return "fail"
        is_open = any(check.status.is_open for check in checks)
        ran_nothing = not self.ran or any(not ran.section.checks for ran in self.ran)
        return "inconclusive" if is_open or ran_nothing else "pass"

    def counterexamples(self, everything: bool) -> list[tuple[str, Check, Counterexample]]:
        """Return what can be saved as a trace, of failures only or of every check that has one."""
        return [
            (ran.section.name, check, check.counterexample)
            for ran in self.ran
            for check in ran.section.checks
            if check.counterexample is not None and (everything or check.status.is_failure)
        ]

    def with_problem(self, section: str, problem: str) -> "Outcome":
        """Return the same with one more problem of a section."""
        ran = tuple(
            replace(each, problems=(*each.problems, problem)) if each.section.name == section else each
            for each in self.ran
        )
        return replace(self, ran=ran)


# Running.


def run(
    section: str, options: Options, progress_of: Callable[[str], Progress], timeout_s: float | None = None
) -> Outcome:
    """Run one section or all.

    Args:
        section: a key of ``SECTIONS``, or ``all``.
        options: for every section; the deadline is set here.
        progress_of: called when a section begins.
        timeout_s: for everything together; what is not done by then is unknown.

    Raises:
        BadInput: unknown section, profile or check, a limit that is none, or a solver is missing.

    """
    begin = time.monotonic()
    _require_usable(section, options, timeout_s)
    modules = {name: _load(name) for name in (SECTIONS if section == "all" else [section])}
    names = {name: _names(name, module) for name, module in modules.items()}
    _require_known(names, options)
    todo = [name for name in modules if any(options.wants(check) for check in names[name])]
    ran = []
    for index, name in enumerate(todo):
        left_s = None if timeout_s is None else begin + timeout_s - time.monotonic()
        share = SHARES[name] / sum(SHARES[other] for other in todo[index:])
        deadline_s = None if left_s is None else left_s * share
        ran.append(
            _run(name, modules[name], names[name], replace(options, deadline_s=deadline_s), progress_of)
        )
    return Outcome(tuple(ran), time.monotonic() - begin)


def _run(
    name: str, module: Any, names: Names, options: Options, progress_of: Callable[[str], Progress]
) -> Ran:
    begin = time.monotonic()
    if options.deadline_s is not None and options.deadline_s <= 0:
        checks = [
            Check(check, Status.UNKNOWN, "out of time before it began", covers=ids)
            for check, ids in names.items()
            if options.wants(check)
        ]
        return Ran(Section(name, tuple(checks)), 0.0)
    progress = progress_of(name)
    try:
        section: Section = module.run(options, progress)
    except ImportError as error:
        raise _missing(name, error) from error
    problems = (*_undeclared(section, names, options), *_wrong_figures(section))
    return Ran(replace(section, name=name), time.monotonic() - begin, problems)


def _undeclared(section: Section, names: Names, options: Options) -> list[str]:
    """Compare what ran with what the section says that it checks: the traceability table is made of that."""
    problems = []
    for check in section.checks:
        if check.name not in names:
            problems.append(f"{check.name} ran, and covers() does not name it")
        elif not set(check.covers) <= set(names[check.name]):
            problems.append(f"{check.name} speaks for other rules than covers() says")
    if options == Options(jobs=options.jobs, deadline_s=options.deadline_s):
        ran = {check.name for check in section.checks}
        problems += [f"{name} is named by covers() and did not run" for name in names if name not in ran]
    return problems


def _wrong_figures(section: Section) -> list[str]:
    """Return what is wrong by the totals alone."""
    never = section.figures.get("actions_never_taken")
    return [f"actions never taken: {never}"] if never else []


# Bad input.


def _require_usable(section: str, options: Options, timeout_s: float | None) -> None:
    if section != "all" and section not in SECTIONS:
        raise BadInput(f"there is no section {section!r}; give one of {', '.join(SECTIONS)} or all")
    profiles = import_module("vtoken_ref.profiles").PROFILES
    if options.profile not in profiles:
        raise BadInput(f"there is no profile {options.profile!r}; give one of {', '.join(profiles)}")
    if timeout_s is not None and not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise BadInput(f"--timeout {timeout_s:g} is no time; give a number of seconds above 0")
    if options.jobs < 1:
        raise BadInput(f"{options.jobs} processes cannot run anything; give 1 or more with -j")


def _require_known(names: Mapping[str, Names], options: Options) -> None:
    known = [check for checks in names.values() for check in checks]
    for prefix in options.only:
        if not any(check.startswith(prefix) for check in known):
            near = get_close_matches(prefix, known, n=3, cutoff=0.4) or known[:3]
            raise BadInput(
                f"no check of {', '.join(names)} begins with {prefix!r}; give one such as {', '.join(near)}"
            )


def _load(name: str) -> Any:
    try:
        return import_module(SECTIONS[name])
    except ImportError as error:
        raise _missing(name, error) from error


def _names(name: str, module: Any) -> Names:
    try:
        names: Names = module.covers()
    except ImportError as error:
        raise _missing(name, error) from error
    return names


def _missing(section: str, error: ImportError) -> Exception:
    """Return what to raise: a sentence where a solver is missing, else the error as it is."""
    for solver in SOLVERS:
        is_named = error.name.split(".")[0] == solver if error.name else solver in str(error)
        if is_named:
            return BadInput(
                f"vtoken check {section} needs {solver}, which is not installed: pip install 'vtoken[dev]'"
            )
    return error


# The report.


def to_json(outcome: Outcome, options: Options, saved: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """Return the report.

    Args:
        outcome: what was run.
        options: how it was run.
        saved: by section and check, where its counterexample is and what replay says of it.

    """
    by_name = {ran.section.name: ran for ran in outcome.ran}
    return {
        "verdict": outcome.verdict,
        "profile": options.profile,
        "quick": options.quick,
        "jobs": options.jobs,
        "only": list(options.only),
        "seconds": round(outcome.seconds, 3),
        **{name: _section_json(by_name[name], saved) if name in by_name else None for name in SECTIONS},
    }


def _section_json(ran: Ran, saved: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    section = ran.section
    return {
        **section.figures,
        **_totals(section),
        "by_status": {s.value: section.count(s) for s in Status if section.count(s)},
        "problems": list(ran.problems),
        "seconds": round(ran.seconds, 3),
        "checks": [_check_json(check, saved.get((section.name, check.name))) for check in section.checks],
    }


def _totals(section: Section) -> dict[str, Any]:
    """Return the figures that the report promises for this section."""
    failing = [check.name for check in section.checks if check.status.is_failure]
    match section.name:
        case "proofs":
            return {
                "proved_unbounded": section.count(Status.PROVED),
                "proved_bounded": section.count(Status.PROVED_BOUNDED),
                "refuted": section.count(Status.REFUTED),
                "unknown": section.count(Status.UNKNOWN),
                "vacuous": section.count(Status.VACUOUS),
            }
        case "explore":
            return {
                "states": section.figures.get("states", _sum(section.checks, "states")),
                "configurations": section.figures.get("configurations", len(section.checks)),
                "actions_never_taken": section.figures.get("actions_never_taken", []),
            }
        case "machines" | "probes":
            return {
                "examples": section.figures.get("examples", _sum(section.checks, "examples")),
                "failures": len(failing),
            }
        case "contracts":
            return {
                "confirmed": section.count(Status.CONFIRMED),
                "not_confirmed": section.count(Status.NOT_CONFIRMED),
                "refuted": section.count(Status.REFUTED),
            }
        case "mutants":
            return {
                "total": section.figures.get("total", len(section.checks)),
                "killed": section.count(Status.KILLED),
                "survivors": [check.name for check in section.checks if check.status is Status.SURVIVED],
            }
        case _:
            return {"covered": section.count(Status.COVERED), "failures": len(failing)}


def _sum(checks: Sequence[Check], figure: str) -> int:
    return sum(check.figures.get(figure, 0) for check in checks)


def _check_json(check: Check, saved: Any) -> dict[str, Any]:
    found = None
    if check.counterexample is not None:
        example = check.counterexample
        found = {"name": example.name, "problem": example.problem, "events": len(example.events)}
        found["trace"], found["replay"] = saved or (None, None)
    return {
        "name": check.name,
        "status": check.status.value,
        "is_failure": check.status.is_failure,
        "is_open": check.status.is_open,
        "detail": check.detail,
        "seconds": round(check.seconds, 3),
        "covers": list(check.covers),
        "figures": dict(check.figures),
        "counterexample": found,
    }
