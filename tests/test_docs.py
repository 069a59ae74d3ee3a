"""The documents say what the code says."""

import json
import re
import struct
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from conformance import trace
from conformance.oracle import TIE_GAPS
from conformance.replay import replay
from conformance.verdict import Verdict
from vtoken_ref.events import EVENT_TYPES, Move, Read
from vtoken_ref.kv_hash import LANE_SEEDS, digest, fingerprint, fingerprint_hex

ROOT = Path(__file__).parent.parent
TRACE_FORMAT = (ROOT / "docs" / "trace-format.md").read_text()


def test_every_event_is_documented_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([\w, ]+)` \|", TRACE_FORMAT, re.MULTILINE))
    documented = {kind: names.split(", ") for kind, names in rows.items()}
    assert documented == {kind: [f.name for f in fields(event)] for kind, event in EVENT_TYPES.items()}


def test_lists_of_named_fields_are_documented() -> None:
    for record in (Move, Read):
        assert f"`[{', '.join(record._fields)}]`" in TRACE_FORMAT


@pytest.mark.parametrize("part", [trace.Identity, trace.Geometry, trace.Configuration])
def test_every_header_part_is_documented(part: type) -> None:
    assert "{" + ", ".join(part.__struct_fields__) + "}" in TRACE_FORMAT  # type: ignore[attr-defined]


def test_every_header_field_is_documented() -> None:
    header = TRACE_FORMAT.split("## Header")[1].split("## Events")[0]
    for name in trace.Header.__struct_fields__:
        assert re.search(rf"^\| [^|]*`{name}`", header, re.MULTILINE), name


def test_the_test_vectors_are_right() -> None:
    vectors = [
        fingerprint_hex(fingerprint(b"")),
        fingerprint_hex(fingerprint(b"abc")),
        fingerprint_hex(fingerprint(bytes(range(256)))),
        digest([]),
        digest([(0, 1), (5, 2**64 - 1)]),
    ]
    section = TRACE_FORMAT.split("| input | result |")[1]
    assert re.findall(r"\| `([0-9a-f]+)` \|$", section, re.MULTILINE) == vectors


def test_the_example_trace_passes_and_shows_every_step_of_a_relocation() -> None:
    path = ROOT / "docs" / "example-trace.jsonl"
    assert replay(path, paranoid=True).verdict is Verdict.PASS
    shown = {line.split('"')[3] for line in path.read_text().splitlines()[1:]}
    elsewhere = {
        "lease",
        "preempt",
        "abort",
        "share",
        "cache",
        "uncache",
        "defer",
        "cancel",
        "report",
        "deliver",
    }
    assert shown == set(EVENT_TYPES) - elsewhere


def test_the_code_in_the_trace_format_is_right() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TRACE_FORMAT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    words = list(struct.unpack("<64I", bytes(range(256))))
    high, low = (names["lane"](seed, words) for seed in LANE_SEEDS)
    assert high << 32 | low == fingerprint(bytes(range(256)))


def test_the_readme_serves_with_settings_that_exist() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    compile(code, "README.md", "exec")
    for name in re.findall(r'"(gpu_impl[\w.]+)"', code):
        module, _, attribute = name.rpartition(".")
        assert f"class {attribute}(" in (ROOT / (module.replace(".", "/") + ".py")).read_text()


def test_the_figures_of_the_readme_are_those_of_a_recorded_run() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "verify_streaming_llm.json").read_text())
    blocks, oracle = report["blocks"], report["oracle"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert report["verdict"] == "pass" and report["options"]["budget"] == 256
    assert (
        f"{blocks['retained']:.2f} blocks per request, where {blocks['packed_ideal']:.2f} is ideal and"
        f" {blocks['no_reclamation']:.2f} is what no reclamation would hold, and {oracle['matched']:,} of"
        f" {oracle['tokens']:,} generated tokens confirmed" in readme
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tie_gap_is_twice_the_recorded_difference_and_a_margin(dtype: str) -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / f"oracle_gap_{dtype}.json").read_text())
    assert recorded["tie_gap"] == TIE_GAPS[dtype]
    assert 2 * recorded["largest_difference"] < TIE_GAPS[dtype] < 20 * recorded["largest_difference"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/trace-format.md", "spec/SPEC.md"])
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_torch_of_the_makefile_is_the_torch_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cpu"]
    (pinned,) = [line for line in extra if line.startswith("torch==")]
    assert f"TORCH := {pinned}\n" in (ROOT / "Makefile").read_text()
