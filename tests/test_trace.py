"""The trace format: what is written is read back, and nothing else is read."""

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.trace import (
    Configuration,
    Geometry,
    Header,
    Identity,
    TraceError,
    TraceReader,
    TraceWriter,
    decode_event,
    encode_event,
)
from vtoken_ref.events import EVENT_TYPES, Admit, End, Event, Free, Preempt
from vtoken_ref.machine import MachineConfig

HEADER = Header(
    identity=Identity(runtime="toy", runtime_version="1", vtoken_version="0", model="none"),
    geometry=Geometry(
        block_size=4,
        first_block_id=1,
        num_blocks=8,
        num_layers=2,
        num_kv_heads=3,
        head_dim=5,
        dtype="float16",
    ),
    configuration=Configuration(strategy="out_of_place", theta_f="1/4", low_watermark=None, headroom=2),
    view="packed",
    visibility="at_reclaim",
    policy="random",
    policy_args={"num_sinks": 4},
    seed=-1,
)
ADMIT = Admit("a", num_prompt_tokens=3, budget=None)

every_event_type = pytest.mark.parametrize("event_type", EVENT_TYPES.values(), ids=list(EVENT_TYPES))


def hints_of(event_type: type[Event]) -> dict[str, Any]:
    hints = get_type_hints(event_type)
    return {name: hints[name] for name in event_type.__slots__}


def any_value(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(any_value(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is UnionType:
        return st.one_of(*map(any_value, get_args(hint)))
    if hasattr(hint, "_fields"):
        return st.builds(hint, *map(any_value, get_type_hints(hint).values()))
    return {int: st.integers(-(2**63), 2**63 - 1), str: st.text(max_size=5), NoneType: st.none()}[hint]


@st.composite
def any_event(draw: st.DrawFn, event_type: type[Event]) -> Event:
    fields = {name: any_value(hint) for name, hint in hints_of(event_type).items()}
    if "fingerprints" in fields:
        fields["fingerprints"] = st.lists(st.from_regex(r"\A[0-9a-f]{16}\Z"), max_size=3).map(tuple)
    return event_type(**{name: draw(value) for name, value in fields.items()})


@every_event_type
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_event_is_read_back_as_it_was_written(event_type: type[Event], data: st.DataObject) -> None:
    event = data.draw(any_event(event_type))
    line = encode_event(event)
    assert b"\n" not in line
    assert decode_event(line) == event
    assert type(decode_event(line)) is event_type
    assert json.loads(line)["event"] == event_type.kind


@settings(max_examples=30, deadline=None)
@given(
    events=st.lists(
        st.sampled_from(list(EVENT_TYPES.values())).filter(lambda t: t is not End).flatmap(any_event)
    )
)
def test_a_written_trace_is_read_back_with_its_counts(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    writer = TraceWriter(path, HEADER)
    for event in events:
        writer.write(event)
    writer.close(num_free_blocks=7)
    num_admitted = sum(isinstance(event, Admit) for event in events)
    with TraceReader(path) as reader:
        assert reader.header == HEADER
        assert list(reader) == [*events, End(len(events), num_admitted, 7)]
        assert reader.line == 1 + len(events) + 1


def test_the_header_tells_the_spec_its_configuration() -> None:
    geometry = HEADER.geometry
    nbytes = 2 * geometry.num_layers * geometry.num_kv_heads * geometry.head_dim * 2
    assert geometry.dtype == "float16"
    assert HEADER.machine_config() == MachineConfig(
        block_size=4,
        block_ids=range(1, 9),
        headroom=2,
        strategy="out_of_place",
        nbytes_per_token=nbytes,
    )


# Strictness, field by field.


def plain_value(hint: Any) -> Any:
    """One JSON value of a field's type."""
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) is tuple:
        return [plain_value(get_args(hint)[0])]
    if get_origin(hint) is UnionType:
        return plain_value(get_args(hint)[0])
    if hasattr(hint, "_fields"):
        return [plain_value(field) for field in get_type_hints(hint).values()]
    return {int: 1, str: "0123456789abcdef"}[hint]


def plain_line(event_type: type[Event]) -> dict[str, Any]:
    """A good line of an event type."""
    fields = {name: plain_value(hint) for name, hint in hints_of(event_type).items()}
    return {"event": event_type.kind, **fields}


def is_refused(line: dict[str, Any]) -> bool:
    try:
        decode_event(json.dumps(line).encode())
    except msgspec.ValidationError:
        return True
    return False


@every_event_type
def test_a_missing_an_unknown_and_a_renamed_field_are_refused(event_type: type[Event]) -> None:
    good = plain_line(event_type)
    assert not is_refused(good)
    assert is_refused({**good, "surplus": 1})
    assert is_refused({**good, "event": "happening"})
    for name in good:
        rest = {other: value for other, value in good.items() if other != name}
        assert is_refused(rest), name
        assert is_refused({**rest, name.upper(): good[name]}), name


@every_event_type
def test_a_value_of_another_type_is_refused(event_type: type[Event]) -> None:
    good = plain_line(event_type)
    for name, hint in hints_of(event_type).items():
        others: list[Any] = [{}, 1.5, True, [[]], ["x", 1]]
        others += [] if NoneType in get_args(hint) else [None]
        others += ["1"] if hint is not str else [1]
        if get_origin(hint) is tuple and get_args(hint)[0] is not str:
            others += [["1"], [None], [1.0], [True], 1]
        for other in others:
            assert is_refused({**good, name: other}), (name, other)


@pytest.mark.parametrize("kind", ["plan", "commit", "forward"])
def test_moves_and_reads_have_exactly_their_fields(kind: str) -> None:
    good = plain_line(EVENT_TYPES[kind])
    name = "reads" if kind == "forward" else "moves"
    row = good[name][0]
    assert is_refused({**good, name: [row[:-1]]})
    assert is_refused({**good, name: [[*row, 1]]})
    assert is_refused({**good, name: [["x", *row[1:-1], None]]})


@pytest.mark.parametrize(
    "written",
    [
        "",
        "0123456789abcde",
        "0123456789ABCDEF",
        "0123456789abcdef0",
        "0123456789abcdeg",
        "0123456789abcdef\n",
    ],
)
def test_a_fingerprint_is_sixteen_lower_case_digits(written: str) -> None:
    assert is_refused({**plain_line(EVENT_TYPES["sync"]), "fingerprints": [written]})


def read_error(tmp_path: Path, lines: list[bytes]) -> tuple[str, int]:
    """The code and the line of the error that reading these lines ends with."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    with pytest.raises(TraceError) as error, TraceReader(path) as reader:
        list(reader)
    return error.value.code, error.value.line


def lines_of(tmp_path: Path, *events: Event) -> list[bytes]:
    path = tmp_path / "good.jsonl"
    writer = TraceWriter(path, HEADER)
    for event in events:
        writer.write(event)
    writer.close(num_free_blocks=8)
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\n", "trace-not-json"),
        (b"null\n", "trace-not-json"),
        (b"[1]\n", "trace-not-json"),
        (b'"admit"\n', "trace-not-json"),
        (b"{}{}\n", "trace-not-json"),
        (b'{"event":"free","block_ids":[1]\n', "trace-not-json"),
        (b'{"event":"free","block_ids":[\xff]}\n', "trace-not-json"),
        (b"{}\n", "trace-field"),
        (b'{"event":"free","block_ids":[01]}\n', "trace-not-json"),
        (b'{"event":"free","block_ids":[NaN]}\n', "trace-not-json"),
        (b'{"event":"free"}\n', "trace-field"),
        (b'{"event":"free","block_ids":[1]}', "trace-truncated"),
        (b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"\n", "trace-not-json"),
    ],
    ids=range(13),
)
def test_a_line_that_is_no_event(tmp_path: Path, line: bytes, code: str) -> None:
    head, first, *_ = lines_of(tmp_path, ADMIT)
    assert read_error(tmp_path, [head, first, line]) == (code, 3)


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("format",), "other-trace", "trace-format"),
        (("version",), 2, "trace-format"),
        (("version",), "1", "trace-format"),
        (("version",), None, "trace-format"),
        (("surplus",), 1, "trace-field"),
        (("identity", "surplus"), 1, "trace-field"),
        (("identity", "model"), None, "trace-field"),
        (("geometry", "surplus"), 1, "trace-field"),
        (("geometry", "block_size"), 0, "trace-field"),
        (("geometry", "num_blocks"), 0, "trace-field"),
        (("geometry", "first_block_id"), -1, "trace-field"),
        (("geometry", "dtype"), 16, "trace-field"),
        (("configuration", "headroom"), -1, "trace-field"),
        (("configuration", "strategy"), "paged", "trace-field"),
        (("configuration", "low_watermark"), -1, "trace-field"),
        (("view",), "indirect", "trace-field"),
        (("visibility",), "exact", "trace-field"),
        (("policy_args",), {"num_sinks": "4"}, "trace-field"),
        (("seed",), 1.5, "trace-field"),
    ],
)
def test_a_header_that_is_not_of_the_format(
    tmp_path: Path, path: tuple[str, ...], value: object, code: str
) -> None:
    lines = lines_of(tmp_path, ADMIT)
    header = json.loads(lines[0])
    *parents, name = path
    place = header
    for parent in parents:
        place = place[parent]
    place[name] = value
    assert read_error(tmp_path, [json.dumps(header).encode() + b"\n", *lines[1:]]) == (code, 1)


def test_every_header_field_is_required(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, ADMIT)
    header = json.loads(lines[0])
    groups = [header, header["identity"], header["geometry"], header["configuration"]]
    optional = {"high_watermark", "check_interval", "max_attempts", "async_depth", "max_query"}
    optional |= {"check_eligibility"}
    for group in groups:
        for name in set(group) - optional:
            value = group.pop(name)
            code = "trace-format" if name in ("format", "version") else "trace-field"
            assert read_error(tmp_path, [json.dumps(header).encode() + b"\n"]) == (code, 1), name
            group[name] = value


def test_a_trace_is_read_one_line_at_a_time(tmp_path: Path) -> None:
    """What follows a line is not looked at before it is asked for."""
    path = tmp_path / "trace.jsonl"
    head, first, second, *_ = lines_of(tmp_path, ADMIT, Free((3,)))
    path.write_bytes(head + first + second + b"not json\n")
    with TraceReader(path) as reader:
        events = iter(reader)
        assert (next(events), reader.line) == (ADMIT, 2)
        assert (next(events), reader.line) == (Free((3,)), 3)
        with pytest.raises(TraceError) as error:
            next(events)
    assert (error.value.code, error.value.line) == ("trace-not-json", 4)


def test_a_trace_is_written_one_line_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, HEADER)
    writer.write(ADMIT)
    writer.write(Preempt("a", 0))
    writer.close(None)
    writer.close(8)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 3
    assert msgspec.json.decode(lines[0])["format"] == "vtoken-trace"
    assert [decode_event(line) for line in lines[1:]] == [ADMIT, Preempt("a", 0)]


def test_a_run_that_failed_leaves_a_truncated_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, HEADER)
    writer.write(ADMIT)
    writer.close(None)
    assert read_error(tmp_path, [path.read_bytes()]) == ("trace-truncated", 2)


def test_a_closed_trace_is_written_no_more(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    writer.close(0)
    with pytest.raises(ValueError, match="closed"):
        writer.write(ADMIT)
