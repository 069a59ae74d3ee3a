"""Searches all configurations, several at a time, and says what was found."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any

from spec.explore.actions import ACTIONS
from spec.explore.configurations import Configuration, configurations
from spec.explore.search import Found, Search
from spec.report import Check, Counterexample, Options, Progress, Section, Status
from vtoken_ref.profiles import PROFILES

NAME = "explore"
ACTIONS_CHECK = "actions"
POLL_S = 0.5
INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9")


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks, each with the invariants that it speaks for."""
    searched = configurations(PROFILES["minimal"])
    return {**{each.name: _aims(each) for each in searched}, ACTIONS_CHECK: ()}


def _aims(configuration: Configuration) -> tuple[str, ...]:
    is_packed = configuration.config.view == "packed"
    return (*INVARIANTS, "VT-FWD-004") if is_packed else tuple(aim for aim in INVARIANTS if aim != "I7")


def run(options: Options, progress: Progress) -> Section:
    """Search the configurations that are wanted; the quick ones only where quick is asked for."""
    searched = configurations(PROFILES[options.profile])
    offered = [each for each in searched if each.is_quick or not options.quick]
    wanted = [each for each in offered if options.wants(each.name)]
    is_whole = len(wanted) == len(offered) and options.wants(ACTIONS_CHECK)
    return explore(wanted, options, progress, ACTIONS if is_whole else frozenset())


def explore(
    wanted: Sequence[Configuration], options: Options, progress: Progress, actions: frozenset[str]
) -> Section:
    """Search configurations; the quick check ends with the first that something is wrong in.

    Args:
        wanted: the configurations.
        options: how many at one time, for how long, and whether quick.
        progress: told the states found, of those there may be.
        actions: what they must take between them; nothing is checked where this is empty.

    """
    deadline = None if options.deadline_s is None else time.monotonic() + options.deadline_s
    search = _in_processes if options.jobs > 1 and len(wanted) > 1 else _here
    found: dict[str, Found] = {}
    for each in search(wanted, options.jobs, deadline, progress):
        found[each.name] = each
        if options.quick and each.problem is not None:
            break
    checks = [
        check_of(each, found[each.name]) if each.name in found else _not_searched(each) for each in wanted
    ]
    taken = sum((each.actions for each in found.values()), Counter())
    never: list[str] = []
    if actions:
        checks.append(_actions_check(checks, taken, actions))
        never = sorted(actions - taken.keys()) if checks[-1].status is Status.REFUTED else []
    figures: dict[str, object] = {
        "states": sum(each.num_states for each in found.values()),
        "transitions": sum(each.num_transitions for each in found.values()),
        "configurations": len(wanted),
        "actions_never_taken": never,
        "actions": dict(sorted(taken.items())),
    }
    return Section(NAME, tuple(checks), figures)


# What was found.


def check_of(configuration: Configuration, found: Found) -> Check:
    """Return the finding of one search in the words of the report."""
    counterexample = None
    extent = "complete" if found.is_complete else f"cut at {configuration.max_states:,} states"
    if found.is_late:
        extent = "out of time"
    detail = f"{found.num_states:,} distinct states, depth {found.depth}, {extent}"
    if found.problem is not None:
        status = Status.REFUTED
        detail = f"{found.problem.aim}: {found.problem.text}, after {len(found.events)} events; {detail}"
        counterexample = Counterexample(
            f"explore.{found.name}", configuration.config, found.events, str(found.problem.text)
        )
    elif found.is_late:
        status = Status.UNKNOWN
    else:
        status = Status.NO_COUNTEREXAMPLE
    return Check(
        found.name,
        status,
        detail,
        found.seconds,
        _aims(configuration),
        {"states": found.num_states, "transitions": found.num_transitions, "depth": found.depth},
        counterexample,
    )


def _not_searched(configuration: Configuration) -> Check:
    reason = "not searched: something is wrong in another one"
    return Check(configuration.name, Status.UNKNOWN, reason, covers=_aims(configuration))


def _actions_check(checks: Sequence[Check], taken: Counter[str], actions: frozenset[str]) -> Check:
    never = sorted(actions - taken.keys())
    if not never:
        return Check(ACTIONS_CHECK, Status.COVERED, f"all {len(actions)} actions are taken")
    if any(check.status is not Status.NO_COUNTEREXAMPLE for check in checks):
        return Check(ACTIONS_CHECK, Status.UNKNOWN, f"not all is searched; not yet taken: {'; '.join(never)}")
    return Check(ACTIONS_CHECK, Status.REFUTED, f"never taken: {'; '.join(never)}")


# Running.


def _here(
    wanted: Sequence[Configuration], jobs: int, deadline: float | None, progress: Progress
) -> Iterator[Found]:
    total, done = sum(each.max_states for each in wanted), 0
    for each in wanted:

        def tell(count: int, name: str = each.name, before: int = done) -> None:
            progress(name, before + count, total)

        yield Search(each, deadline, tell).run()
        done += each.max_states
        progress(each.name, done, total)


def _in_processes(
    wanted: Sequence[Configuration], jobs: int, deadline: float | None, progress: Progress
) -> Iterator[Found]:
    """Search in processes, the largest first, so that none is left alone at the end."""
    context = get_context("fork")
    counts = context.Array("Q", len(wanted))
    total = sum(each.max_states for each in wanted)
    order = sorted(range(len(wanted)), key=lambda number: -wanted[number].max_states)
    with ProcessPoolExecutor(jobs, context, _share, (counts,)) as pool:
        running: set[Future[Found]] = {
            pool.submit(_search, number, wanted[number], deadline) for number in order
        }
        try:
            while running:
                finished, running = wait(running, POLL_S, FIRST_COMPLETED)
                progress(f"{len(wanted) - len(running)} of {len(wanted)}", sum(counts[:]), total)
                for future in finished:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_counts: Any = None


def _share(counts: "SynchronizedArray[int]") -> None:
    global _counts
    _counts = counts


def _search(number: int, configuration: Configuration, deadline: float | None) -> Found:
    def tell(count: int) -> None:
        _counts[number] = count

    found = Search(configuration, deadline, tell).run()
    tell(configuration.max_states)
    return found
