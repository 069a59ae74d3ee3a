"""``vtoken check`` with sections made up for the test: verdicts, report, bad input, time, saved traces."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spec.check
from conformance import cli
from conformance.check import header_for, write_trace
from conformance.verdict import Verdict
from spec.check import SECTIONS, SHARES
from spec.report import Check, Counterexample, Options, Progress, Section, Status
from vtoken_ref.events import Admit, Alloc, Copy, Event
from vtoken_ref.machine import MachineConfig
from vtoken_ref.reclaim import ReclaimConfig

CONFIG = MachineConfig(block_size=2, block_ids=range(3, 7))
TWICE: tuple[Event, ...] = (Admit("a", 2, None), Alloc("a", (3,)), Alloc("a", (3,)))
"""Breaks VT-POOL-002 (not-free) with its last event, on line 4 of a trace."""
PREFIX = TWICE[:2]

GOOD = {
    "proofs": Status.PROVED,
    "explore": Status.NO_COUNTEREXAMPLE,
    "machines": Status.NO_COUNTEREXAMPLE,
    "probes": Status.NO_COUNTEREXAMPLE,
    "contracts": Status.CONFIRMED,
    "mutants": Status.KILLED,
    "trace": Status.COVERED,
}


class FakeSection(ModuleType):
    """A section with the checks that a test gives it; ``asked`` are the options that it was run with."""

    def __init__(self, name: str) -> None:
        super().__init__(SECTIONS[name])
        self.name = name
        self.checks = [Check(f"{name}.one", GOOD[name], covers=("I1",))]
        self.figures: dict[str, object] = {}
        self.names: dict[str, tuple[str, ...]] | None = None
        self.asked: list[Options] = []
        self.before: Callable[[], object] = lambda: None

    def covers(self) -> dict[str, tuple[str, ...]]:
        return {check.name: check.covers for check in self.checks} if self.names is None else self.names

    def run(self, options: Options, progress: Progress) -> Section:
        self.before()
        self.asked.append(options)
        progress("half", 1, 2)
        checks = tuple(check for check in self.checks if options.wants(check.name))
        return Section(self.name, checks, self.figures)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeSection]:
    made = {name: FakeSection(name) for name in SECTIONS}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, SECTIONS[name], module)
    profiles = ModuleType("vtoken_ref.profiles")
    profiles.PROFILES = {"minimal": None, "default": None}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vtoken_ref.profiles", profiles)
    return made


@pytest.fixture
def vtoken(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vtoken", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def check(vtoken, fakes: dict[str, FakeSection]):  # type: ignore[no-untyped-def]
    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        status, out, err = vtoken("check", *arguments, "--json")
        assert err == ""
        report: dict[str, Any] = json.loads(out)
        return status, report

    return run


# Verdicts.


def test_all_of_it_passes(check) -> None:  # type: ignore[no-untyped-def]
    status, report = check()
    assert (status, report["verdict"]) == (0, "pass")
    assert all(report[name]["checks"] for name in SECTIONS)


@pytest.mark.parametrize(
    ("found", "status", "verdict"),
    [
        (Status.PROVED_BOUNDED, 0, "pass"),
        (Status.NOT_CONFIRMED, 0, "pass"),
        (Status.REFUTED, 1, "fail"),
        (Status.VACUOUS, 1, "fail"),
        (Status.SURVIVED, 1, "fail"),
        (Status.UNKNOWN, 3, "inconclusive"),
    ],
)
@pytest.mark.parametrize("section", SECTIONS)
def test_one_check_decides(check, fakes, section: str, found: Status, status: int, verdict: str) -> None:  # type: ignore[no-untyped-def]
    fakes[section].checks.append(Check("two", found))
    for argument in (section, "all"):
        was, report = check(argument)
        assert (was, report["verdict"]) == (status, verdict)


def test_a_failure_weighs_more_than_what_is_unknown(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks = [Check("one", Status.UNKNOWN), Check("two", Status.REFUTED)]
    assert check()[0] == 1


def test_an_action_never_taken_fails(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["explore"].figures = {"actions_never_taken": ["uncache"]}
    status, report = check("explore")
    assert status == 1
    assert report["explore"]["actions_never_taken"] == ["uncache"]
    assert report["explore"]["problems"] == ["actions never taken: ['uncache']"]


def test_a_section_that_ran_nothing_is_no_pass(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["contracts"].names, fakes["contracts"].checks = {"contracts.one": ()}, []
    status, report = check("contracts", "--quick")
    assert (status, report["verdict"]) == (3, "inconclusive")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({}, "covers() does not name it"),
        ({"proofs.one": ("I2",)}, "speaks for other rules"),
        ({"proofs.one": ("I1",), "proofs.two": ()}, "proofs.two is named by covers() and did not run"),
    ],
)
def test_a_section_that_does_not_do_what_it_says_fails(check, fakes, names, words: str) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].names = {"proofs.zero": (), **names}
    fakes["proofs"].checks.append(Check("proofs.zero", Status.PROVED))
    status, report = check("proofs")
    assert status == 1
    assert any(words in problem for problem in report["proofs"]["problems"])


def test_only_a_full_run_must_run_everything(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].names = {"proofs.one": ("I1",), "proofs.two": ()}
    for option in (["--quick"], ["--profile", "minimal"], ["--only", "proofs.one"]):
        assert check("proofs", *option)[0] == 0, option
    assert check("proofs", "-j", 1, "--timeout", 60)[0] == 1


# What is run.


def test_a_section_that_was_not_run_is_null(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["mutants"].checks.append(Check("mutants.two", Status.SURVIVED))
    status, report = check("proofs")
    assert status == 0
    assert [name for name in SECTIONS if report[name] is not None] == ["proofs"]
    assert not fakes["mutants"].asked


def test_only_runs_the_sections_that_have_such_checks(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks.append(Check("other", Status.REFUTED))
    status, report = check("--only", "proofs", "--only", "trace.o")
    assert status == 0
    assert [name for name in SECTIONS if report[name] is not None] == ["proofs", "trace"]
    assert [found["name"] for found in report["proofs"]["checks"]] == ["proofs.one"]
    assert fakes["trace"].asked[0].only == ("proofs", "trace.o")


def test_options_reach_the_sections(check, fakes) -> None:  # type: ignore[no-untyped-def]
    check("machines", "--profile", "minimal", "-j", 3, "--quick")
    assert fakes["machines"].asked == [Options("minimal", quick=True, jobs=3)]
    check("machines")
    assert fakes["machines"].asked[1] == Options("default", jobs=os.cpu_count() or 1)


# Time.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, fakes: dict[str, FakeSection]):  # type: ignore[no-untyped-def]
    """A clock that goes on only while a section runs, by the seconds that the test says."""

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

        def during(self, section: str, seconds: float) -> None:
            def passes() -> None:
                self.now += seconds

            fakes[section].before = passes

    made = Clock()
    monkeypatch.setattr(spec.check, "time", made)
    return made


def test_every_section_has_a_share_of_the_time(check, fakes, clock) -> None:  # type: ignore[no-untyped-def]
    total = sum(SHARES.values())
    assert set(SHARES) == set(SECTIONS)
    check("--timeout", total)
    first, second = list(SECTIONS)[:2]
    assert fakes[first].asked[0].deadline_s == pytest.approx(SHARES[first])
    assert fakes[second].asked[0].deadline_s == pytest.approx(
        total * SHARES[second] / (total - SHARES[first])
    )
    assert fakes["trace"].asked[0].deadline_s == pytest.approx(total)
    check("explore", "--timeout", 5)
    assert fakes["explore"].asked[1].deadline_s == pytest.approx(5)
    check("explore")
    assert fakes["explore"].asked[2].deadline_s is None


def test_what_is_not_reached_in_time_is_unknown(check, fakes, clock) -> None:  # type: ignore[no-untyped-def]
    clock.during("explore", 50)
    status, report = check("--timeout", 40)
    assert (status, report["verdict"], report["seconds"]) == (3, "inconclusive", 50)
    assert report["explore"]["seconds"] == 50
    assert not fakes["trace"].asked
    (late,) = report["trace"]["checks"]
    assert (late["status"], late["detail"]) == ("unknown", "out of time before it began")


# The report.


def test_the_report_counts(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks = [
        Check("p.one", Status.PROVED, "why", 1.25, ("I1", "I2"), {"rlimit": 7}),
        Check("p.two", Status.PROVED_BOUNDED),
        Check("p.three", Status.UNKNOWN),
        Check("p.four", Status.VACUOUS),
        Check("p.five", Status.REFUTED),
        Check("p.six", Status.NO_COUNTEREXAMPLE),
    ]
    fakes["explore"].checks = [
        Check("e.one", Status.NO_COUNTEREXAMPLE, figures={"states": 10}),
        Check("e.two", Status.NO_COUNTEREXAMPLE, figures={"states": 5}),
    ]
    fakes["machines"].checks = [
        Check("m.one", Status.NO_COUNTEREXAMPLE, figures={"examples": 20}),
        Check("m.two", Status.REFUTED, figures={"examples": 3}),
    ]
    fakes["contracts"].checks = [
        Check("c.one", Status.CONFIRMED),
        Check("c.two", Status.NOT_CONFIRMED),
        Check("c.three", Status.NOT_CONFIRMED),
    ]
    fakes["mutants"].checks = [Check("x.one", Status.KILLED), Check("x.two", Status.SURVIVED)]
    status, report = check("-j", 1)
    assert (status, report["verdict"], report["profile"]) == (1, "fail", "default")
    assert report["seconds"] >= 0
    promised = {
        "proofs": {"proved_unbounded": 1, "proved_bounded": 1, "refuted": 1, "unknown": 1, "vacuous": 1},
        "explore": {"states": 15, "configurations": 2, "actions_never_taken": []},
        "machines": {"examples": 23, "failures": 1},
        "contracts": {"confirmed": 1, "not_confirmed": 2, "refuted": 0},
        "mutants": {"total": 2, "killed": 1, "survivors": ["x.two"]},
        "trace": {"covered": 1, "failures": 0},
    }
    for name, figures in promised.items():
        assert figures.items() <= report[name].items(), name
    assert report["proofs"]["by_status"]["no counterexample"] == 1
    assert report["proofs"]["checks"][0] == {
        "name": "p.one",
        "status": "proved (unbounded)",
        "is_failure": False,
        "is_open": False,
        "detail": "why",
        "seconds": 1.25,
        "covers": ["I1", "I2"],
        "figures": {"rlimit": 7},
        "counterexample": None,
    }


def test_figures_of_a_section_are_in_the_report(check, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["explore"].figures = {"states": 3, "configurations": 9, "depth": 4, "set": {1}}
    explore = check("explore")[1]["explore"]
    assert (explore["states"], explore["configurations"], explore["depth"]) == (3, 9, 4)
    fakes["proofs"].figures = {"refuted": 5}
    assert check("proofs")[1]["proofs"]["refuted"] == 0


def test_the_screen_shows_a_summary_and_then_what_is_wrong(vtoken, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks += [Check("proofs.two", Status.REFUTED, "step 1: alloc [b]\nstep 2: free [bold]")]
    fakes["explore"].checks += [Check(f"e.{n}", Status.UNKNOWN, "out of time") for n in range(7)]
    fakes["explore"].figures = {"states": 1234567}
    status, out, err = vtoken("check")
    assert (status, err) == (1, "")
    for words in ("1 proved (unbounded)", "1 refuted", "7 unknown", "1,234,567 states", "seconds"):
        assert words in out.split("\nproofs proofs.two")[0], words
    assert "\nproofs proofs.two: REFUTED\n  step 1: alloc [b]\n  step 2: free [bold]\n" in out
    assert "\nexplore: 7 unknown: out of time\n  e.0, e.1, e.2, e.3, e.4 and 2 more\n" in out
    assert out.endswith("\nFAIL\n")
    assert "proofs.one" not in out


def test_one_section_shows_each_of_its_checks(vtoken, fakes) -> None:  # type: ignore[no-untyped-def]
    fakes["mutants"].checks = [Check("fence-forgotten", Status.KILLED, "[by] probes", figures={"n": 1000})]
    fakes["mutants"].figures = {"matrix": {"fence-forgotten": {"probes": "killed", "explore": "survived"}}}
    status, out, _ = vtoken("check", "mutants", "--quick")
    assert status == 0
    assert "[by] probes; n 1,000" in out
    assert "mutant x checker" in out and "survived" in out


SHOWN_ON_A_TERMINAL = """
from conformance.check import SectionBars
bars = SectionBars()
with bars:
    progress = bars.section("explore")
    progress("packed", 3, 7)
"""


def test_on_a_terminal_there_is_one_bar_a_section() -> None:
    main, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", SHOWN_ON_A_TERMINAL], check=True, stderr=terminal, stdin=terminal)
    os.close(terminal)
    shown = os.read(main, 1 << 16).decode()
    os.close(main)
    assert "explore: packed" in shown and "3/7" in shown


# Bad input.


def is_one_sentence(err: str) -> bool:
    return err.startswith("vtoken: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["proof"], "no section 'proof'; give one of proofs, explore"),
        (["--profile", "large"], "no profile 'large'; give one of minimal, default"),
        (["--only", "nothing"], "begins with 'nothing'"),
        (
            ["--only", "proofs.one", "--only", "trace.two"],
            "begins with 'trace.two'; give one such as trace.one",
        ),
        (["trace", "--only", "proofs.one"], "no check of trace begins with 'proofs.one'"),
        (["--timeout", "0"], "--timeout 0 is no time"),
        (["--timeout", "-3"], "--timeout -3 is no time"),
        (["--timeout", "nan"], "--timeout nan is no time"),
        (["-j", "0"], "0 processes"),
        (["--out", "there"], "run folder there exists"),
        (["--out", "file/below"], "cannot make run folder file/below"),
    ],
)
def test_bad_input_is_one_sentence(  # type: ignore[no-untyped-def]
    vtoken, fakes, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    status, out, err = vtoken("check", *arguments)
    assert (status, out) == (2, "") and is_one_sentence(err) and words in err, err
    assert not any(fake.asked for fake in fakes.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'z3.z3types'", name="z3.z3types"),
        ImportError("the proofs need z3"),
    ],
)
def test_a_missing_solver_is_one_sentence(vtoken, fakes, monkeypatch: pytest.MonkeyPatch, error) -> None:  # type: ignore[no-untyped-def]
    def missing(*arguments: object) -> Any:
        raise error

    for name in ("before", "covers"):
        with monkeypatch.context() as patch:
            patch.setattr(fakes["proofs"], name, missing)
            status, out, err = vtoken("check")
        assert (status, out) == (2, "") and is_one_sentence(err)
        assert "vtoken check proofs needs z3" in err and "vtoken[dev]" in err


def test_a_solver_missing_at_the_import_of_a_section_is_one_sentence(  # type: ignore[no-untyped-def]
    vtoken, fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "section_of_a_test.py").write_text("import hypothesis.stateful\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(SECTIONS, "machines", "section_of_a_test")
    for name in [name for name in sys.modules if name.split(".")[0] == "hypothesis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    status, out, err = vtoken("check", "machines")
    assert (status, out) == (2, "") and is_one_sentence(err) and "needs hypothesis" in err


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'x' from 'spec.z3'", name="spec.z3"),
        ModuleNotFoundError("No module named 'numpy'", name="numpy"),
        RuntimeError("broken"),
    ],
)
def test_a_broken_section_is_no_verdict(vtoken, fakes, error: Exception) -> None:  # type: ignore[no-untyped-def]
    def broken() -> None:
        raise error

    fakes["proofs"].before = broken
    status, out, err = vtoken("check", "proofs")
    assert (status, out) == (2, "")
    assert str(error) in err and err.endswith("nothing was judged\n")


# Counterexamples.


def example(events: tuple[Event, ...], config: MachineConfig = CONFIG) -> Counterexample:
    return Counterexample("twice", config, events, "block 3 is not free")


def test_a_counterexample_is_saved_and_replayed(vtoken, check, fakes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fakes["explore"].checks = [Check("e[1] x/y", Status.REFUTED, counterexample=example(TWICE))]
    status, report = check("--out", "new/folder")
    assert status == 1
    found = report["explore"]["checks"][0]["counterexample"]
    assert (found["name"], found["problem"], found["events"]) == ("twice", "block 3 is not free", 3)
    assert found["replay"].startswith("line 4: VT-POOL-002 not-free")
    assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["000-explore-e-1-x-y.jsonl"]
    status, out, _ = vtoken("replay", found["trace"], "--json")
    result = json.loads(out)
    assert (status, result["verdict"], result["rule"], result["line"]) == (1, "fail", "VT-POOL-002", 4)


def test_a_counterexample_that_the_spec_accepts_is_a_prefix(vtoken, fakes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks = [Check("p", Status.REFUTED, "no", counterexample=example(PREFIX))]
    status, out, _ = vtoken("check", "proofs")
    (path,) = (tmp_path / "runs").glob("*-check/*.jsonl")
    assert status == 1
    assert "  counterexample of 2 events: block 3 is not free\n" in out
    assert (
        f"  vtoken replay {path.relative_to(tmp_path)}\n    2 events accepted; the trace stops there" in out
    )
    assert vtoken("replay", path)[0] == Verdict.INCONCLUSIVE.exit_status


def test_counterexamples_of_one_name_do_not_meet_in_one_file(check, fakes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks = [
        Check(name, Status.REFUTED, counterexample=example(TWICE)) for name in ("a/b", "a b", "a" * 300)
    ]
    check("proofs", "--out", "out")
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_folder_is_made_only_for_something(check, fakes, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fakes["proofs"].checks = [Check("p", Status.REFUTED)]
    check("--out", "out")
    fakes["mutants"].checks = [Check("m", Status.KILLED, counterexample=example(TWICE))]
    check()
    assert list(tmp_path.iterdir()) == []
    assert check("mutants", "--out", "out")[1]["mutants"]["checks"][0]["counterexample"]["trace"]
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (example(TWICE, MachineConfig(2, range(0, 8, 2))), "cannot be saved"),
        (example((Alloc("a", ("x",)),)), "cannot be replayed"),  # type: ignore[arg-type]
    ],
)
def test_a_counterexample_that_is_no_trace_is_a_failure_and_not_a_crash(  # type: ignore[no-untyped-def]
    check, fakes, broken: Counterexample, words: str
) -> None:
    fakes["proofs"].checks = [Check("p", Status.PROVED, counterexample=broken)]
    status, report = check("proofs", "--out", "out")
    assert (status, report["verdict"]) == (1, "fail")
    assert any(words in problem for problem in report["proofs"]["problems"])


@pytest.mark.parametrize(
    "config",
    [
        MachineConfig(4, range(1, 9), headroom=2, strategy="out_of_place", nbytes_per_token=6),
        MachineConfig(1, range(1), strategy="recycle", nbytes_per_token=2, view="indirect"),
        MachineConfig(2, range(4), nbytes_per_token=2, async_depth=1, max_query=3),
        MachineConfig(
            *(2, range(4), 1, "in_place", 2),
            reclaim=ReclaimConfig("in_place", Fraction(1, 3), 2, 4, 5, 6, headroom=1),
        ),
    ],
)
def test_the_header_says_the_configuration(config: MachineConfig) -> None:
    assert header_for(config).machine_config() == config


def test_the_header_leaves_out_what_the_machine_does_not_look_at() -> None:
    config = MachineConfig(
        2, range(4), reclaim=ReclaimConfig("out_of_place", max_source_blocks=3, headroom=9)
    )
    said = header_for(config).machine_config()
    assert said.reclaim == ReclaimConfig("in_place")
    assert said.strategy is None


@pytest.mark.parametrize(
    "config",
    [
        MachineConfig(2, range(0, 8, 2)),
        MachineConfig(2, range(4), nbytes_per_token=3),
        MachineConfig(2, range(4), async_depth=2),
    ],
)
def test_a_configuration_that_no_header_says_is_refused(config: MachineConfig) -> None:
    with pytest.raises(ValueError, match="a trace's header says"):
        header_for(config)


def test_bytes_that_the_spec_did_not_know_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, MachineConfig(2, range(4)), [Copy("a", 0, 0, (1, 2, 3), 0)])
    assert json.loads(path.read_text().splitlines()[1])["nbytes"] == 6
