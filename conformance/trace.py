"""Trace format version 1: JSON Lines, a header and then one event a line (docs/trace-format.md).

The fields of an event are those of its class in ``vtoken_ref.events``, plus ``event``, its kind.
Reading is strict (an unknown or missing field is an error) and streaming, as writing is.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Final, Literal, Union, get_type_hints

import msgspec

from vtoken_ref.events import EVENT_TYPES, End, Event, Read
from vtoken_ref.kv_hash import FINGERPRINT_PATTERN
from vtoken_ref.machine import MachineConfig
from vtoken_ref.reclaim import ReclaimConfig, parse_theta_f
from vtoken_ref.rules import Rule, VTokenError

FORMAT: Final = "vtoken-trace"
VERSION: Final = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
BlockCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Fingerprint = Annotated[str, msgspec.Meta(pattern=FINGERPRINT_PATTERN)]


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which runtime, serving which model, made the trace."""

    runtime: str
    runtime_version: str
    vtoken_version: str
    model: str


Dtype = Literal["float32", "bfloat16", "float16", "uint8", "float8_e4m3fn", "float8_e5m2"]


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pool and the KV of one token; the usable blocks have consecutive ids."""

    block_size: Positive
    first_block_id: Count
    num_blocks: BlockCount
    num_layers: Positive
    num_kv_heads: Positive
    head_dim: Positive
    dtype: Dtype

    def nbytes_per_token(self) -> int:
        """Return the KV bytes of one token in all layers."""
        itemsize = {"float32": 4, "bfloat16": 2, "float16": 2}.get(self.dtype, 1)
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * itemsize


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the run reclaims; ``theta_f`` is a fraction such as ``1/4``.

    ``strategy`` is null where a run may reclaim in any way. See ``vtoken_ref.reclaim.ReclaimConfig``
    and ``vtoken_ref.state.MachineConfig`` for the rest; ``check_eligibility`` says whether plans are
    held to them.
    """

    strategy: Literal["in_place", "out_of_place", "recycle"] | None
    theta_f: str
    low_watermark: Count | None
    headroom: Count
    high_watermark: Count | None = None
    check_interval: Positive = 1
    max_attempts: Positive | None = None
    async_depth: Literal[0, 1] = 0
    max_query: Positive = 1
    check_eligibility: bool = False

    def reclaim(self) -> ReclaimConfig:
        """Return when plans may be made."""
        return ReclaimConfig(
            strategy=self.strategy or "in_place",
            theta_f=parse_theta_f(self.theta_f),
            low_watermark=self.low_watermark,
            high_watermark=self.high_watermark,
            check_interval=self.check_interval,
            max_attempts=self.max_attempts,
            headroom=self.headroom,
        )


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first line of a trace."""

    format: Literal["vtoken-trace"] = FORMAT
    version: Literal[1] = VERSION
    identity: Identity
    geometry: Geometry
    configuration: Configuration
    view: Literal["packed", "indirect"]
    visibility: Literal["at_reclaim", "exact"]
    policy: str
    policy_args: dict[str, int]
    seed: int

    def machine_config(self) -> MachineConfig:
        """Return what the executable spec needs of the header."""
        geometry = self.geometry
        return MachineConfig(
            block_size=geometry.block_size,
            block_ids=range(geometry.first_block_id, geometry.first_block_id + geometry.num_blocks),
            headroom=self.configuration.headroom,
            strategy=self.configuration.strategy,
            nbytes_per_token=geometry.nbytes_per_token(),
            view=self.view,
            async_depth=self.configuration.async_depth,
            max_query=self.configuration.max_query,
            reclaim=self.configuration.reclaim() if self.configuration.check_eligibility else None,
        )


class TraceError(VTokenError):
    """The trace itself cannot be read as one; ``line`` is 1-based."""

    def __init__(self, broken: Rule, line: int, detail: str) -> None:
        super().__init__(broken, detail)
        self.line = line


class _Preamble(msgspec.Struct):
    format: Any = None
    version: Any = None


def _wire_type(event_type: type[Event]) -> type[msgspec.Struct]:
    hints = get_type_hints(event_type)
    fields = []
    for name in event_type.__slots__:
        hint = tuple[Fingerprint, ...] if name == "fingerprints" else hints[name]
        fields.append((name, hint))
    return msgspec.defstruct(
        event_type.__name__,
        fields,
        tag_field="event",
        tag=event_type.kind,
        frozen=True,
        forbid_unknown_fields=True,
    )


_WIRE = {event_type: _wire_type(event_type) for event_type in EVENT_TYPES.values()}
_EVENT = {wire: event_type for event_type, wire in _WIRE.items()}
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[tuple(_EVENT)])  # noqa: UP007
_ENCODER = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """Return one line of a trace, without its newline."""
    wire = _WIRE[type(event)]
    return _ENCODER.encode(wire(*(getattr(event, name) for name in event.__slots__)))


def decode_event(line: bytes) -> Event:
    """Return the event of one line.

    Raises:
        msgspec.DecodeError: not JSON, unknown event, unknown, missing or mistyped field.

    """
    wire = _DECODER.decode(line)
    return _EVENT[type(wire)](*msgspec.structs.astuple(wire))


class TraceReader:
    """Read a trace line by line.

    Args:
        path: the file.

    Attributes:
        header: the first line.
        line: number of the line read last, 1-based.

    Raises:
        OSError: the file cannot be read.
        TraceError: trace-not-json, trace-format, trace-field, trace-truncated.

    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.line = 0
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TraceReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Event]:
        """Yield the events; a trace that stops before its ``end`` is truncated."""
        over = False
        for raw in self._file:
            self.line += 1
            event = self._decode(raw)
            over = over or isinstance(event, End)
            yield event
        if not over:
            raise TraceError(
                Rule.TRACE_TRUNCATED, self.line, f"the trace stops at line {self.line} without an end event"
            )

    def _read_header(self) -> Header:
        raw = self._file.readline()
        self.line = 1
        if not raw.endswith(b"\n"):
            raise TraceError(Rule.TRACE_TRUNCATED, 1, "the trace has no complete header line")
        try:
            preamble = msgspec.json.decode(raw, type=_Preamble)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _unreadable(raw, 1, error) from error
        if (preamble.format, preamble.version) != (FORMAT, VERSION):
            raise TraceError(
                Rule.TRACE_FORMAT,
                1,
                f"line 1 says format {preamble.format!r} version {preamble.version!r}; this reader knows"
                f" {FORMAT!r} version {VERSION}",
            )
        try:
            header = msgspec.json.decode(raw, type=Header)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _unreadable(raw, 1, error) from error
        try:
            parse_theta_f(header.configuration.theta_f)
        except ValueError as error:
            raise TraceError(Rule.TRACE_FIELD, 1, f"line 1: {error}") from error
        if (header.view == "packed") != (header.visibility == "at_reclaim"):
            raise TraceError(
                Rule.TRACE_FIELD,
                1,
                f"line 1: under the {header.view} view a dead token cannot leave {header.visibility}",
            )
        return header

    def _decode(self, raw: bytes) -> Event:
        if not raw.endswith(b"\n"):
            raise TraceError(Rule.TRACE_TRUNCATED, self.line, f"line {self.line} is cut off")
        try:
            return decode_event(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _unreadable(raw, self.line, error) from error


def _unreadable(raw: bytes, line: int, error: Exception) -> TraceError:
    """Tell a line that is no JSON object from one with other fields than its kind has."""
    if not raw.strip():
        return TraceError(Rule.TRACE_NOT_JSON, line, f"line {line} is blank")
    try:
        is_object = isinstance(msgspec.json.decode(raw), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    if is_object:
        return TraceError(Rule.TRACE_FIELD, line, f"line {line}: {error}")
    return TraceError(Rule.TRACE_NOT_JSON, line, f"line {line} is not a JSON object: {error}")


class TraceWriter:
    """Write a trace as it happens; ``close`` writes the ``end`` event unless the run failed.

    Args:
        path: the file to create.
        header: the first line.

    """

    def __init__(self, path: Path, header: Header) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._file.write(_ENCODER.encode(header) + b"\n")
        self._num_events = 0
        self._num_requests = 0

    def write(self, event: Event) -> None:
        """Append one event."""
        self._file.write(encode_event(event) + b"\n")
        self._num_events += 1
        self._num_requests += event.kind == "admit"

    def flush(self) -> None:
        """Hand what has been written to the operating system: it survives a killed process."""
        self._file.flush()

    def close(self, num_free_blocks: int | None) -> None:
        """Close the file, first writing ``end`` with the free blocks counted by the runtime.

        None means that the run did not end well: the trace stays without an end.
        """
        if self._file.closed:
            return
        if num_free_blocks is not None:
            self.write(End(self._num_events, self._num_requests, num_free_blocks))
        self._file.close()


__all__ = ["Header", "Read", "TraceError", "TraceReader", "TraceWriter", "decode_event", "encode_event"]
