"""The documents say what the code says."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from conformance import trace
from vtoken_ref.events import EVENT_TYPES, Move, Read
from vtoken_ref.kv_hash import digest, fingerprint, fingerprint_hex

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


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/trace-format.md", "spec/SPEC.md"])
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_torch_of_the_makefile_is_the_torch_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cpu"]
    (pinned,) = [line for line in extra if line.startswith("torch==")]
    assert f"TORCH := {pinned}\n" in (ROOT / "Makefile").read_text()
