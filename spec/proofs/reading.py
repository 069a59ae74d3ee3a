"""An event of ``vtoken_ref`` as transitions of the relocation model, with what they carry.

Source: paper 3.2 to 3.5.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec.proofs.abstraction import Elements, FlightId, flight_id, next_slots, payment, tickets_of
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine
from vtoken_ref.state import OVERWRITTEN, PlanInFlight
from vtoken_ref.table import HOLE


class InexpressibleError(Exception):
    """The model has no word for an event, such as a list that names a block twice.

    The spec must refuse it.
    """


@dataclass(frozen=True, slots=True)
class Reading:
    """A transition of the model, and its parameters by name: values, or values by arguments."""

    transition: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


UNCHANGED = Reading("")
"""Of events that concern nothing of the model."""


def extend(elements: Elements, event: ev.Event) -> None:
    """Add the elements that an event speaks of."""
    for name in ("req_id", "reads"):
        value = getattr(event, name, ())
        elements.requests |= {value} if isinstance(value, str) else {read.req_id for read in value}
    if hasattr(event, "step"):
        elements.steps.add(event.step)
    if isinstance(event, ev.Plan | ev.Copy | ev.Commit | ev.Cancel):
        elements.flights.add((event.req_id, event.epoch, event.plan_id))
    tokens = {*getattr(event, "token_ids", ()), *(move.token_id for move in getattr(event, "moves", ()))}
    match event:
        case ev.Sync():
            tokens.add(event.first_token_id + len(event.vocab_ids))
            elements.contents |= set(event.fingerprints)
        case ev.Share():
            tokens.add(len(event.vocab_ids))
        case ev.Forward():
            elements.num_tokens += max((read.num_query for read in event.reads), default=0)
            elements.contents.add(OVERWRITTEN)
        case ev.Lease():
            elements.num_tickets += len(event.block_ids)
    elements.num_tokens = max([elements.num_tokens, *(1 + token_id for token_id in tokens)])


def read(
    event: ev.Event, before: Machine, after: Machine | None, tickets: Mapping[int, int]
) -> list[Reading]:
    """Return what an event may be in the model; the spec accepts it as one of these or not at all.

    Args:
        event: any event, right or wrong.
        before: the state that it comes in.
        after: the state after it; None when the spec has refused it.
        tickets: of the blocks that are leased before.

    Raises:
        InexpressibleError: the model has no word for it.

    """
    reader = _READERS.get(type(event))
    if reader is None:
        raise InexpressibleError(f"there is no {event.kind} with async depth 0")
    for name in ("block_ids", "token_ids", "slots", "source_blocks", "destination_blocks"):
        _require_distinct(name, getattr(event, name, ()))
    if not isinstance(event, ev.Commit):
        for name in ("block_ids", "source_blocks", "destination_blocks"):
            _require_known(before, getattr(event, name, ()))
    if any(token_id < 0 for token_id in getattr(event, "token_ids", ())):
        raise InexpressibleError("a token id is below 0")
    return reader(event, before, after, tickets)


# One function a kind of event.

_Read = Callable[[Any, Machine, Machine | None, Mapping[int, int]], list[Reading]]


def _admit(event: ev.Admit, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("admit", {"request": event.req_id})]


def _alloc(event: ev.Alloc, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("alloc", {"request": event.req_id, "blocks": _set(event.block_ids)})]


def _lease(event: ev.Lease, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    given = tickets_of([*before.pool.leases, *event.block_ids], tickets)
    return [Reading("lease", {**_given(event), "ticket": {b: given[b] for b in event.block_ids}})]


def _share(event: ev.Share, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    block_size, num_tokens = before.config.block_size, len(event.vocab_ids)
    if len(event.block_ids) != -(-num_tokens // block_size):
        raise InexpressibleError(f"{num_tokens} tokens do not fill {len(event.block_ids)} blocks")
    places = {
        token_id: (event.block_ids[token_id // block_size], token_id % block_size)
        for token_id in range(num_tokens)
    }
    return [Reading("share", {**_given(event), "tokens": _set(places), **_places(places)})]


def _cache(event: ev.Cache, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    token_at = {}
    for block_id in event.block_ids if event.req_id in before.table else ():
        for offset, token_id in enumerate(before.table.block_tokens(event.req_id, block_id)):
            if token_id != HOLE:
                token_at[block_id, offset] = token_id
    return [Reading("cache", {**_given(event), "has_token": _set(token_at), "token_at": token_at})]


def _uncache(event: ev.Uncache, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("uncache", {"blocks": _set(event.block_ids)})]


def _release(event: ev.Release, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("release", {**_given(event), "reclaimed": _reclaimed(event.req_id, before, after)})]


def _free(event: ev.Free, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("free", {"blocks": _set(event.block_ids)})]


def _epoch_end(
    event: ev.Preempt | ev.Abort | ev.Finish, before: Machine, after: Machine | None, tickets: Any
) -> list[Reading]:
    worker = before.workers.get(event.req_id)
    remaining = sorted(worker.plan.remaining) if worker is not None and worker.plan is not None else []
    parameters = {
        **_subject(event),
        "is_copied": not remaining,
        "uncopied": remaining[0] if remaining else 0,
    }
    return [Reading("preempt" if isinstance(event, ev.Preempt) else "finish", parameters)]


def _forward(event: ev.Forward, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    if event.phase == "start":
        raise InexpressibleError("with async depth 0 no start is told")
    _require_distinct("reads", [each.req_id for each in event.reads])
    if event.phase == "end":
        left = {
            (block_id, offset): OVERWRITTEN
            for block_id in before.pool.block_ids
            for offset in range(before.config.block_size)
        }
        return [Reading("end", {"step": event.step, "left": left})]
    writes, recycles = {}, set()
    for each in event.reads:
        request, worker = before.requests.get(each.req_id), before.workers.get(each.req_id)
        if request is None or worker is None:
            continue
        if each.length == request.length:
            recycles.add(each.req_id)
            continue
        slots = next_slots(before, each.req_id, worker, each.num_query)
        if len(slots) < each.num_query:
            raise InexpressibleError(f"there is no room for the tokens of {each.req_id}")
        for token_id, slot in slots.items():
            writes[(each.req_id, *divmod(slot, before.config.block_size))] = token_id
    parameters = {
        "step": event.step,
        "requests": _set(each.req_id for each in event.reads),
        "epoch": {each.req_id: each.epoch for each in event.reads},
        "writes": _set(writes),
        "token_at": writes,
        "recycles": _set(recycles),
    }
    return [Reading("begin", parameters)]


def _sync(event: ev.Sync, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    if not len(event.vocab_ids) == len(event.slots) == len(event.fingerprints):
        raise InexpressibleError("a token has no slot or no content, or there is one too many")
    if event.first_token_id < 0:
        raise InexpressibleError("a token id is below 0")
    worker = before.workers.get(event.req_id)
    step = -1 if worker is None or worker.in_forward is None else worker.in_forward
    places = {
        token_id: divmod(slot, before.config.block_size)
        for token_id, slot in enumerate(event.slots, event.first_token_id)
    }
    _require_known(before, [block_id for block_id, _ in places.values()])
    contents = dict(enumerate(event.fingerprints, event.first_token_id))
    token_at = {place: token_id for token_id, place in places.items()}
    written = {
        **_subject(event),
        "step": step,
        "tokens": _set(places),
        **_places(places),
        "content": contents,
        "slots": _set(token_at),
        "token_at": token_at,
    }
    readings = [Reading("sync", written)]
    if len(places) == 1:
        ((token_id, (block_id, offset)),) = places.items()
        recycled = {"token": token_id, "block": block_id, "offset": offset, "content": contents[token_id]}
        readings.append(Reading("recycle", {**_subject(event), "step": step, **recycled}))
    return readings


def _evict(event: ev.Evict, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("evict", {**_subject(event), "tokens": _set(event.token_ids)})]


def _plan(event: ev.Plan, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    block_size = before.config.block_size
    moves = {move.token_id: move for move in event.moves}
    if len(moves) < len(event.moves) or any(token_id < 0 for token_id in moves):
        raise InexpressibleError("a token moves twice, or its id is below 0")
    sources = {token_id: divmod(move.src_slot, block_size) for token_id, move in moves.items()}
    targets = {token_id: divmod(move.dst_slot, block_size) for token_id, move in moves.items()}
    _require_known(before, [block_id for block_id, _ in (*sources.values(), *targets.values())])
    _require_listed_order(event, before)
    paid_by, gained = payment(event.source_blocks, event.destination_blocks)
    parameters = {
        **_subject(event),
        "flight": (event.req_id, event.epoch, event.plan_id),
        "source": _set(event.source_blocks),
        "destination": _set(event.destination_blocks),
        "moving": _set(moves),
        "source_block": {token_id: place[0] for token_id, place in sources.items()},
        "source_offset": {token_id: place[1] for token_id, place in sources.items()},
        "target_block": {token_id: place[0] for token_id, place in targets.items()},
        "target_offset": {token_id: place[1] for token_id, place in targets.items()},
        "moved_to": {place: token_id for token_id, place in targets.items()},
        "paid_by": paid_by,
        "gained": gained,
    }
    return [Reading(f"plan_{event.strategy}", parameters)]


def _copy(event: ev.Copy, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    flight = _flight(event, before)
    moves = flight.moves if flight else {}
    token_at = {
        divmod(moves[token_id].dst_slot, before.config.block_size): token_id
        for token_id in event.token_ids
        if token_id in moves
    }
    left = sorted(flight.remaining - set(event.token_ids)) if flight else []
    parameters = {
        "flight": (event.req_id, event.epoch, event.plan_id),
        "tokens": _set(event.token_ids),
        "slots": _set(token_at),
        "token_at": token_at,
        "is_complete": not left,
        "uncopied": left[0] if left else 0,
    }
    return [Reading("copy", parameters)]


def _commit(event: ev.Commit, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    key = (event.req_id, event.epoch, event.plan_id)
    reclaimed = _reclaimed(event.req_id, before, after)
    return [Reading("commit", {"flight": key, "reclaimed": reclaimed})]


def _cancel(event: ev.Cancel, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [Reading("cancel", {"flight": (event.req_id, event.epoch, event.plan_id)})]


def _unchanged(event: ev.Event, before: Machine, after: Machine | None, tickets: Any) -> list[Reading]:
    return [UNCHANGED]


_READERS: dict[type, _Read] = {
    ev.Admit: _admit,
    ev.Alloc: _alloc,
    ev.Lease: _lease,
    ev.Share: _share,
    ev.Cache: _cache,
    ev.Uncache: _uncache,
    ev.Release: _release,
    ev.Free: _free,
    ev.Preempt: _epoch_end,
    ev.Abort: _epoch_end,
    ev.Finish: _epoch_end,
    ev.Forward: _forward,
    ev.Sync: _sync,
    ev.Evict: _evict,
    ev.Plan: _plan,
    ev.Copy: _copy,
    ev.Commit: _commit,
    ev.Cancel: _cancel,
    ev.Defer: _unchanged,
    ev.Output: _unchanged,
    ev.End: _unchanged,
}


# Inside.


def _set(members: Iterable[Any]) -> dict[Any, bool]:
    return dict.fromkeys(members, True)


def _subject(event: Any) -> dict[str, Any]:
    return {"request": event.req_id, "epoch": event.epoch}


def _given(event: Any) -> dict[str, Any]:
    return {**_subject(event), "blocks": _set(event.block_ids)}


def _places(places: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    return {
        "block": {token_id: block_id for token_id, (block_id, _) in places.items()},
        "offset": {token_id: offset for token_id, (_, offset) in places.items()},
    }


def _flight(event: ev.Copy, machine: Machine) -> PlanInFlight | None:
    wanted: FlightId = (event.req_id, event.epoch, event.plan_id)
    worker = machine.workers.get(event.req_id)
    for flight in (worker.plan if worker else None, machine.orphans.get((event.req_id, event.epoch))):
        if flight is not None and flight_id(flight) == wanted:
            return flight
    return None


def _reclaimed(req_id: str, before: Machine, after: Machine | None) -> dict[int, bool]:
    """Return the tokens that have lost their slots."""
    if after is None:
        return {}
    return _set(_resident(req_id, before) - _resident(req_id, after))


def _resident(req_id: str, machine: Machine) -> set[int]:
    if req_id not in machine.table:
        return set()
    tokens = {
        token_id
        for block_id in machine.table.block_ids(req_id)
        for token_id in machine.table.block_tokens(req_id, block_id)
    }
    return tokens - {HOLE}


def _require_distinct(name: str, values: Sequence[Any]) -> None:
    if len(set(values)) != len(values):
        raise InexpressibleError(f"{name} names something twice: {list(values)}")


def _require_known(machine: Machine, block_ids: Iterable[int]) -> None:
    for block_id in block_ids:
        if block_id not in machine.pool.block_ids:
            raise InexpressibleError(f"the pool has no block {block_id}")


def _require_listed_order(event: ev.Plan, machine: Machine) -> None:
    worker = machine.workers.get(event.req_id)
    listed = worker.block_ids if worker else []
    positions = [listed.index(block_id) for block_id in event.source_blocks if block_id in listed]
    if positions != sorted(positions):
        raise InexpressibleError("the sources are not in the order of the block list")
