"""What ``vtoken check`` shows and saves: progress, a summary, failures, and counterexamples as traces.

The report is plain values, as ``--json`` prints them: which checkers there are is not known here.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from conformance.errors import UsageError
from conformance.progress import Phases
from conformance.replay import ReplayResult, replay
from conformance.trace import Configuration, Geometry, Header, Identity, TraceWriter
from conformance.verdict import Verdict
from vtoken_ref.events import Copy, Event
from vtoken_ref.machine import MachineConfig
from vtoken_ref.reclaim import ReclaimConfig
from vtoken_ref.rules import Rule

WHAT = {
    "proofs": "Z3 proofs and co-simulation",
    "explore": "search of small configurations",
    "machines": "random runs against a naive oracle",
    "probes": "illegal events that must be refused",
    "contracts": "CrossHair on planner, table, waste",
    "mutants": "faults that must be noticed",
    "trace": "where each rule is enforced and checked",
}
NAMES_SHOWN = 5


class SectionBars(Phases):
    """One bar a section; it shows the label of what the section is doing."""

    def section(self, name: str) -> Any:
        """Begin a section and return its ``Progress``."""
        task = self._progress.add_task(name, total=None, unit="")

        def advance(label: str, done: int, total: int | None) -> None:
            self._progress.update(task, description=f"{name}: {label}"[:24], completed=done, total=total)

        return advance


# Counterexamples.


def header_for(config: MachineConfig) -> Header:
    """Return the header of a trace of this configuration, made by no engine.

    KV of one byte a value in one layer with one head: bytes of a token come in pairs.

    Raises:
        ValueError: a header cannot say this configuration.

    """
    reclaim = config.reclaim or ReclaimConfig()
    header = Header(
        identity=Identity("vtoken_ref", version("vtoken"), version("vtoken"), "none"),
        geometry=Geometry(
            block_size=config.block_size,
            first_block_id=config.block_ids.start,
            num_blocks=len(config.block_ids),
            num_layers=1,
            num_kv_heads=1,
            head_dim=(config.nbytes_per_token or 2) // 2,
            dtype="uint8",
        ),
        configuration=Configuration(
            strategy=config.strategy,
            theta_f=str(reclaim.theta_f),
            low_watermark=reclaim.low_watermark,
            high_watermark=reclaim.high_watermark,
            check_interval=reclaim.check_interval,
            max_attempts=reclaim.max_attempts,
            headroom=config.headroom,
            async_depth=1 if config.async_depth else 0,
            max_query=config.max_query,
            check_eligibility=config.reclaim is not None,
        ),
        view=config.view,
        visibility="at_reclaim" if config.view == "packed" else "exact",
        policy="none",
        policy_args={},
        seed=0,
    )
    if _comparable(header.machine_config(), config) != _comparable(config, config):
        raise ValueError(f"a trace's header says {header.machine_config()}, not {config}")
    return header


def _comparable(said: MachineConfig, config: MachineConfig) -> MachineConfig:
    """Return a configuration without what the machine does not look at and a header says otherwise."""
    if config.nbytes_per_token is None:
        said = replace(said, nbytes_per_token=None)
    if said.reclaim is None:
        return said
    return replace(
        said, reclaim=replace(said.reclaim, strategy="in_place", headroom=0, max_source_blocks=None)
    )


def write_trace(path: Path, config: MachineConfig, events: Iterable[Event]) -> ReplayResult:
    """Write a run of the executable spec as a trace without an end, and replay it.

    Raises:
        ValueError: the trace format cannot say this run.

    """
    header = header_for(config)
    writer = TraceWriter(path, header)
    try:
        for event in events:
            if isinstance(event, Copy) and config.nbytes_per_token is None:
                event = replace(event, nbytes=len(event.token_ids) * header.geometry.nbytes_per_token())
            writer.write(event)
    finally:
        writer.close(None)
    return replay(path)


def what_replay_says(result: ReplayResult) -> str:
    """Return what replay finds in a saved counterexample, in a few words."""
    if result.rule == Rule.TRACE_TRUNCATED.id:
        return f"{result.events} events accepted; the trace stops there"
    return f"line {result.line}: {result.rule} {result.code}: {result.detail}"


def save_all(
    counterexamples: Sequence[tuple[str, str, MachineConfig, Sequence[Event]]], out: Path
) -> tuple[dict[tuple[str, str], tuple[str, str]], list[tuple[str, str]]]:
    """Write counterexamples, each to a file of its own in a new folder.

    Args:
        counterexamples: section, check, configuration and events of each.
        out: the folder; it is made only where there is something to write.

    Returns:
        By section and check the file and what replay says of it; and what could not be written or
        cannot be replayed, by section.

    """
    saved: dict[tuple[str, str], tuple[str, str]] = {}
    problems: list[tuple[str, str]] = []
    if counterexamples:
        out.mkdir(parents=True)
    for number, (section, check, config, events) in enumerate(counterexamples):
        path = out / f"{number:03}-{section}-{re.sub(r'[^A-Za-z0-9._-]+', '-', check)[:100]}.jsonl"
        try:
            result = write_trace(path, config, events)
        except Exception as error:  # A run of half an hour is not thrown away for one trace.
            reason = f"{type(error).__name__}: {error}"
            problems.append((section, f"the counterexample of {check} cannot be saved: {reason}"))
            continue
        saved[section, check] = (str(path), what_replay_says(result))
        if result.verdict is Verdict.HARNESS_ERROR:
            problems.append((section, f"the counterexample of {check} cannot be replayed: {result.detail}"))
    return saved, problems


def folder_for(out: Path | None) -> Path:
    """Return where counterexamples go, a folder that is not there yet.

    Raises:
        UsageError: it is there, or cannot be made.

    """
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-check"
    if folder.exists():
        raise UsageError(f"run folder {folder} exists; give another one with --out")
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"cannot make run folder {folder}: {parent} takes none; give another one with --out")
    return folder


# The screen.


def print_report(report: dict[str, Any]) -> None:
    """Print the summary, then what failed and what is open, then the verdict."""
    console = Console(highlight=False)
    ran = {name: report[name] for name in WHAT if report.get(name) is not None}
    if len(ran) == 1:
        ((name, section),) = ran.items()
        _print_checks(console, name, section)
    _print_summary(console, report, ran)
    for name, section in ran.items():
        for problem in section["problems"]:
            _say(console, f"\n{name}: {problem}")
        for check in section["checks"]:
            if check["is_failure"]:
                _print_failure(console, name, check)
        _print_open(console, name, section["checks"])
    _say(console, f"\n{report['verdict'].upper()}")


def _print_summary(console: Console, report: dict[str, Any], ran: dict[str, Any]) -> None:
    table = Table(title=f"profile {report['profile']}{', quick' if report['quick'] else ''}")
    for column, style in (("section", "bold"), ("what", ""), ("found", "")):
        table.add_column(column, style=style)
    table.add_column("seconds", justify="right")
    for name, section in ran.items():
        counts = [f"{count:,} {status}" for status, count in section["by_status"].items()]
        table.add_row(name, WHAT[name], "\n".join([*counts, *_sizes(section)]), f"{section['seconds']:.1f}")
    console.print(table)


def _sizes(section: dict[str, Any]) -> list[str]:
    """Return how much was looked at, where the section says so."""
    return [f"{section[name]:,} {name}" for name in ("states", "examples") if section.get(name)]


def _print_checks(console: Console, name: str, section: dict[str, Any]) -> None:
    """Print every check of the one section that ran, and for mutants which checker noticed which."""
    table = Table(title=name, box=box.SIMPLE)
    table.add_column("check", overflow="fold")
    table.add_column("status")
    table.add_column("seconds", justify="right")
    table.add_column("detail", overflow="fold")
    for check in section["checks"]:
        figures = ", ".join(f"{figure} {value:,}" for figure, value in check["figures"].items())
        detail = "; ".join(filter(None, [check["detail"], figures]))
        table.add_row(check["name"], check["status"], f"{check['seconds']:.2f}", _plain(detail))
    console.print(table)
    if matrix := section.get("matrix"):
        _print_matrix(console, matrix)


def _print_matrix(console: Console, matrix: dict[str, dict[str, str]]) -> None:
    checkers = list(dict.fromkeys(checker for said in matrix.values() for checker in said))
    table = Table(title="mutant x checker", box=box.SIMPLE)
    for column in ("mutant", *checkers):
        table.add_column(column, overflow="fold")
    for mutant, said in matrix.items():
        table.add_row(mutant, *(said.get(checker, "") for checker in checkers))
    console.print(table)


def _print_failure(console: Console, section: str, check: dict[str, Any]) -> None:
    _say(console, f"\n{section} {check['name']}: {check['status'].upper()}")
    for line in check["detail"].splitlines():
        _say(console, f"  {line}")
    found = check["counterexample"]
    if found:
        _say(console, f"  counterexample of {found['events']} events: {found['problem']}")
    if found and found["trace"]:
        _say(console, f"  vtoken replay {found['trace']}")
        _say(console, f"    {found['replay']}")


def _print_open(console: Console, section: str, checks: list[dict[str, Any]]) -> None:
    """Print what is neither right nor wrong, with the same reason once."""
    undecided = sorted((check for check in checks if check["is_open"]), key=itemgetter("detail"))
    for detail, group in groupby(undecided, key=itemgetter("detail")):
        names = [check["name"] for check in group]
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        _say(console, f"\n{section}: {len(names)} unknown: {detail or 'no reason given'}")
        _say(console, f"  {', '.join(names[:NAMES_SHOWN])}{more}")


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


def _plain(text: str) -> str:
    """Return text whose brackets rich leaves alone."""
    return text.replace("[", r"\[")
