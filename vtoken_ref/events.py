"""The events of a vToken run, in the words of the trace (docs/trace-format.md).

A runtime emits them, the spec applies them, ``conformance.trace`` writes and reads them. Slots are
``block_id * block_size + offset``; digests are 32 and fingerprints 16 lower-case hexadecimal
digits; token ids are 0-based logical positions within one epoch of a request.

Source: paper 3.2 to 3.5.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

View = Literal["packed", "indirect"]
Strategy = Literal["out_of_place", "in_place", "recycle"]
PlanStrategy = Literal["out_of_place", "in_place", "copy_on_write"]
Phase = Literal["begin", "start", "end"]
FinishReason = Literal["stop", "length", "error"]


class Move(NamedTuple):
    """One token's relocation: ``src_slot`` is where it is, ``dst_slot`` where it goes."""

    token_id: int
    src_slot: int
    dst_slot: int


class Read(NamedTuple):
    """What one request has in a forward.

    ``num_query`` tokens are computed, the last of ``length`` resident ones. ``digest`` is empty at
    the begin; at the end it is the digest of all ``length`` tokens read back from memory through the
    block table that the attention kernel was given.
    """

    req_id: str
    epoch: int
    num_query: int
    length: int
    digest: str


class Layout(NamedTuple):
    """What a worker reports of one request: absolute and tagged, never a delta.

    Attributes:
        req_id, epoch: whose layout it is.
        made_for: the block list that the worker was given up to and with the reported step.
        block_ids: the block list that it is now.
        num_tokens: tokens computed in this epoch, evicted ones included.
        length: the resident length.
        leased_blocks: blocks lent to the request that it still has and that are in no list.
        wants: destinations that a deferred plan waits for, 0 for none.

    """

    req_id: str
    epoch: int
    made_for: tuple[int, ...]
    block_ids: tuple[int, ...]
    num_tokens: int
    length: int
    leased_blocks: tuple[int, ...] = ()
    wants: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """A request enters. ``budget`` is the most live tokens it keeps, None for no eviction."""

    kind: ClassVar[str] = "admit"
    req_id: str
    num_prompt_tokens: int
    budget: int | None


@dataclass(frozen=True, slots=True)
class Alloc:
    """Free blocks are appended to the request's block list."""

    kind: ClassVar[str] = "alloc"
    req_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Cached blocks become the first of a request; its leading tokens need not be computed."""

    kind: ClassVar[str] = "share"
    req_id: str
    epoch: int
    block_ids: tuple[int, ...]
    vocab_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """The request's leading blocks enter the prefix cache: other requests may share them."""

    kind: ClassVar[str] = "cache"
    req_id: str
    epoch: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Uncache:
    """Blocks leave the prefix cache; who holds them keeps them."""

    kind: ClassVar[str] = "uncache"
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """Free blocks are lent to the request as destinations of a plan to come."""

    kind: ClassVar[str] = "lease"
    req_id: str
    epoch: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """The forward in flight has written new tokens, ids ``first_token_id`` and on."""

    kind: ClassVar[str] = "sync"
    req_id: str
    epoch: int
    first_token_id: int
    vocab_ids: tuple[int, ...]
    slots: tuple[int, ...]
    fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """The policy marks tokens dead; they keep their slots until they are reclaimed."""

    kind: ClassVar[str] = "evict"
    req_id: str
    epoch: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A relocation of one request: live tokens of the sources go, in order, to the destinations."""

    kind: ClassVar[str] = "plan"
    req_id: str
    epoch: int
    plan_id: int
    strategy: PlanStrategy
    source_blocks: tuple[int, ...]
    destination_blocks: tuple[int, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """The KV of these tokens of a plan is complete at their destinations."""

    kind: ClassVar[str] = "copy"
    req_id: str
    epoch: int
    plan_id: int
    token_ids: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The table switches to the plan's layout.

    ``block_ids`` is the request's block list and ``length`` its resident length afterwards. The
    digests are over the live tokens, read back from memory at their old and at their new slots.
    """

    kind: ClassVar[str] = "commit"
    req_id: str
    epoch: int
    plan_id: int
    moves: tuple[Move, ...]
    block_ids: tuple[int, ...]
    length: int
    digest_before: str
    digest_after: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The plan ends without a commit: no copy of it runs any more."""

    kind: ClassVar[str] = "cancel"
    req_id: str
    epoch: int
    plan_id: int


@dataclass(frozen=True, slots=True)
class Defer:
    """A plan wants ``num_blocks`` destinations that are not there; it waits for a lease."""

    kind: ClassVar[str] = "defer"
    req_id: str
    epoch: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Release:
    """The request gives up blocks: wholly dead ones, a committed plan's sources, unused leases."""

    kind: ClassVar[str] = "release"
    req_id: str
    epoch: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Fenced blocks go back to the free list."""

    kind: ClassVar[str] = "free"
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward begins (the scheduler has decided it), starts (the worker has taken the scheduler's
    message) or ends (all its reads and writes are done).

    With async depth 0 the begin is also the start and no start is told.
    """

    kind: ClassVar[str] = "forward"
    step: int
    phase: Phase
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The worker is done with a step and tells the scheduler each request's layout that changed."""

    kind: ClassVar[str] = "report"
    step: int
    layouts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """The scheduler takes the worker's report of a step."""

    kind: ClassVar[str] = "deliver"
    step: int


@dataclass(frozen=True, slots=True)
class Output:
    """Vocabulary ids sampled for a request by the forward ``step``."""

    kind: ClassVar[str] = "output"
    req_id: str
    epoch: int
    step: int
    vocab_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """The request loses all its blocks and starts over in the next epoch."""

    kind: ClassVar[str] = "preempt"
    req_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The client gave up; the request ends and its blocks are fenced."""

    kind: ClassVar[str] = "abort"
    req_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The request ends by itself and its blocks are fenced."""

    kind: ClassVar[str] = "finish"
    req_id: str
    epoch: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class End:
    """The run is over. ``num_events`` counts all events before this one, the header not."""

    kind: ClassVar[str] = "end"
    num_events: int
    num_requests: int
    num_free_blocks: int


Event = (
    Admit
    | Share
    | Alloc
    | Cache
    | Uncache
    | Lease
    | Sync
    | Evict
    | Defer
    | Plan
    | Copy
    | Commit
    | Cancel
    | Release
    | Free
    | Forward
    | Report
    | Deliver
    | Output
    | Preempt
    | Abort
    | Finish
    | End
)

EVENT_TYPES: dict[str, type[Event]] = {event_type.kind: event_type for event_type in Event.__args__}
