"""Events to try on a state: those of a correct runtime, and others that are wrong in every way.

A wrong event is a right one with a field changed, or one that a careless runtime would emit: it asks
for any blocks, writes to any slot, plans over shared blocks and beside another plan, goes on with
requests that are gone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from spec.runtime import NBYTES_PER_TOKEN, Job, Runtime, content
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig
from vtoken_ref.planner import (
    Relocation,
    copy_on_write_moves,
    num_blocks_for,
    num_live_in,
    open_block,
    plan_relocation,
    planned_moves,
)
from vtoken_ref.transitions.forwards import recyclable_slots

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]
"""Returns one of several, never of none."""

CONFIGS = (
    MachineConfig(2, range(9), headroom=2, view="packed"),
    MachineConfig(2, range(9), headroom=2, view="indirect"),
    MachineConfig(3, range(8), headroom=2, view="indirect", strategy="out_of_place"),
    MachineConfig(2, range(8), headroom=2, view="packed", strategy="recycle"),
)
"""With blocks of two slots, three requests, and leases for two plans at one time."""

JOBS = (Job("a", (1, 2, 3, 4, 5, 6), 6), Job("b", (1, 2, 3, 5), 6), Job("c", (1, 2, 3, 4), 2))
NOBODY = "nobody"


ATTEMPTS = 8
"""How often another event is asked for where one cannot be made, or is refused."""


def right_events(runtime: Runtime, choose: Choose[Any], mood: Mapping[str, int]) -> Iterator[ev.Event]:
    """Yield events that a correct runtime could emit, of different kinds, until one is accepted.

    A correct runtime asks for what the spec refuses as well: it does not know all that the spec does.

    Args:
        runtime: the state.
        choose: makes the choices.
        mood: what is chosen more or less often than elsewhere.

    """
    possible = {kind: events for kind, events in _possible(runtime) if events}
    for _ in range(min(ATTEMPTS, len(possible))):
        kinds = [kind for kind in possible for _ in range(_how_often(runtime, mood, *kind))]
        event = choose(possible.pop(choose(kinds)))
        yield _as_computed(event) if isinstance(event, ev.Sync) else event


def _possible(runtime: Runtime) -> Iterator[tuple[tuple[str, ...], Sequence[ev.Event]]]:
    """Yield what can be done now, by kind and request."""
    machine = runtime.machine
    pointless = {"begins"} if machine.steps else set()
    if machine.pool.num_reserved <= 0:
        pointless.add("leases")
    for name in [it for it in _OF_RUN if it not in pointless]:
        yield (name,), getattr(runtime, name)()
    for job in JOBS:
        for name in [it for it in _OF_REQUEST if it not in pointless]:
            yield (name, job.req_id), getattr(runtime, name)(job.req_id)
        plans = [*_wide_plans(runtime, job.req_id), *runtime.plans(job.req_id)]
        copies_on_write = [plan for plan in plans if _is_copy_on_write(plan)]
        yield ("copies_on_write", job.req_id), copies_on_write
        yield ("relocations", job.req_id), [plan for plan in plans if not _is_copy_on_write(plan)]


def _is_copy_on_write(plan: ev.Event) -> bool:
    return isinstance(plan, ev.Plan) and plan.strategy == "copy_on_write"


def _as_computed(event: ev.Sync) -> ev.Sync:
    """Return a sync of a device that computes not quite the same for two requests with the same tokens."""
    noise = sum(event.req_id.encode()) % 2
    written = (content((int(it, 16), noise), False) for it in event.fingerprints)
    return replace(event, fingerprints=tuple(written))


def _wide_plans(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield the plan over all blocks that may be sources, where the planner would take as few as do."""
    machine, table = runtime.machine, runtime.machine.table
    if req_id not in table or machine.config.view == "packed":
        return
    is_open = open_block(table, req_id)
    yield from _plan_over(runtime, req_id, [it for it in table.written_blocks(req_id) if it != is_open])


def _plan_over(runtime: Runtime, req_id: str, block_ids: Sequence[int]) -> Iterator[ev.Event]:
    """Yield the plan that moves what is live in these blocks, unless they are protected, to leased ones."""
    machine, table, worker = runtime.machine, runtime.machine.table, runtime.machine.workers[req_id]
    sources = tuple(
        block_id
        for block_id in block_ids
        if table.live_in_block(req_id, block_id) and not machine.pool.is_protected(block_id)
    )
    count = num_blocks_for(num_live_in(table, req_id, sources), table.block_size)
    if worker.plan is None and count < len(sources) and count <= len(worker.leased):
        destinations = tuple(worker.leased[:count])
        moves = planned_moves(table, req_id, "out_of_place", sources, destinations)
        yield runtime.plan(req_id, "out_of_place", Relocation(sources, destinations, moves))


def _how_often(runtime: Runtime, mood: Mapping[str, int], name: str, req_id: str = "") -> int:
    worker = runtime.machine.workers.get(req_id)
    if name == "preempts" and worker is not None and worker.plan is not None:
        return 20
    if name == "leases" and worker is not None and not runtime.wants_lease(req_id, len(worker.leased) + 1):
        return 2
    return mood.get(name, (_OF_RUN | _OF_REQUEST | _PLANS)[name])


_OF_RUN = {"uncaches": 2, "frees": 30, "begins": 60, "ends": 60, "late_copies": 30, "late_cancels": 10}
_OF_REQUEST = {
    "admits": 60,
    "allocs": 60,
    "leases": 60,
    "shares": 100,
    "caches": 10,
    "syncs": 100,
    "outputs": 100,
    "evicts": 80,
    "copies": 100,
    "commits": 60,
    "cancels": 4,
    "releases": 4,
    "defers": 3,
    "preempts": 1,
    "finishes": 2,
}
_PLANS = {"relocations": 150, "copies_on_write": 15}
"""How often each kind of event is chosen where it is possible."""

MOODS: tuple[Mapping[str, int], ...] = (
    {"caches": 1, "copies_on_write": 5, "begins": 200, "copies": 40, "commits": 20, "syncs": 40},
    {"evicts": 15, "caches": 60, "shares": 400, "uncaches": 1},
)
"""What is chosen at other odds: one likes to relocate while forwards run, the other to share."""


def opening(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield the events that bring a request to where there is something to win.

    Its prompt is computed, of each block one token is live, and destinations are lent to it.
    """
    machine, job = runtime.machine, JOBS[0]
    block_size, num_tokens = machine.config.block_size, len(job.prompt)
    blocks = tuple(range(num_tokens // block_size + 1))
    yield ev.Admit(job.req_id, num_tokens, None)
    yield ev.Alloc(job.req_id, blocks)
    yield ev.Forward(0, "begin", (ev.Read(job.req_id, 0, num_tokens, num_tokens, ""),))
    yield from runtime.syncs(job.req_id)[-1:]
    yield from runtime.ends()
    dead = tuple(token_id for token_id in range(num_tokens) if (token_id + 1) % block_size)
    yield ev.Evict(job.req_id, 0, dead)
    last = blocks[-1]
    yield ev.Lease(job.req_id, 0, tuple(range(last + 1, last + 1 + machine.config.headroom)))
    yield from runtime.outputs(job.req_id)


def temptations(runtime: Runtime, event: ev.Event) -> list[ev.Event]:
    """Return what is nearly this event, and wrong in one point that the spec has to see."""
    for name in ("block_ids", "token_ids"):
        if values := getattr(event, name, ()):
            changed: Any = {name: (*values, values[0])}
            return [*_more_tempting(runtime, event), replace(event, **changed)]
    return _more_tempting(runtime, event)


def _more_tempting(runtime: Runtime, event: ev.Event) -> list[ev.Event]:
    match event:
        case ev.Plan() if event.moves:
            return list(_nearly_planned(runtime, event))
        case ev.Copy():
            return list(_beside_a_copy(runtime, event))
        case ev.Sync() if event.req_id in runtime.machine.table:
            return list(_beside_a_write(runtime, event))
    return []


def _beside_a_write(runtime: Runtime, event: ev.Sync) -> Iterator[ev.Event]:
    req_id, table = event.req_id, runtime.machine.table
    if len(event.slots) == 1:
        own = [table.slot(req_id, token_id) for token_id in table.live_tokens(req_id)]
        dead = set(table.dead_slots(req_id)) - set(recyclable_slots(runtime.machine, req_id))
        for slot in (*own[:1], *sorted(dead)[:2]):
            yield replace(event, slots=(slot,))
    yield from runtime.commits(req_id)
    yield from _plan_over(runtime, req_id, table.written_blocks(req_id))


def _beside_a_copy(runtime: Runtime, event: ev.Copy) -> Iterator[ev.Event]:
    worker = runtime.machine.workers.get(event.req_id)
    if worker is None or worker.plan is None or not worker.plan.remaining:
        return
    last = max(worker.plan.remaining)
    yield replace(event, token_ids=(last,))
    yield replace(event, token_ids=(last + 1,))
    yield ev.Evict(event.req_id, event.epoch, (last,))
    yield ev.Release(event.req_id, event.epoch, worker.plan.plan.destination_blocks[:1])
    yield replace(worker.plan.plan, plan_id=runtime.machine.num_events)


def _nearly_planned(runtime: Runtime, plan: ev.Plan) -> Iterator[ev.Plan]:
    table, block_size, first = runtime.machine.table, runtime.machine.config.block_size, plan.moves[0]
    yield replace(plan, moves=plan.moves[1:])
    yield replace(plan, source_blocks=plan.source_blocks[-len(plan.destination_blocks) :])
    others = [slot for slot in range(first.dst_slot // block_size * block_size) if slot != first.src_slot]
    for slot in others[:1]:
        yield replace(plan, moves=(first._replace(src_slot=slot), *plan.moves[1:]))
    for second in plan.moves[1:2]:
        yield replace(plan, moves=(first, second._replace(dst_slot=first.dst_slot), *plan.moves[2:]))
    for block_id in plan.source_blocks:
        for offset, token_id in enumerate(table.block_tokens(plan.req_id, block_id)):
            if token_id >= 0 and not table.is_live(plan.req_id, token_id):
                dead = ev.Move(token_id, block_id * block_size + offset, first.dst_slot + 1)
                yield replace(plan, moves=(*plan.moves, dead))
                return


def wild_event(runtime: Runtime, choose: Choose[Any], mood: Mapping[str, int]) -> ev.Event | None:
    """Return an event that may be wrong."""
    if choose([False, True]):
        right = next(right_events(runtime, choose, mood), None)
        return None if right is None else _changed(runtime, right, choose)
    for _ in range(ATTEMPTS):
        event = _Careless(runtime, choose).event()
        if event is not None:
            return event
    return None


def _changed(runtime: Runtime, event: ev.Event, choose: Choose[Any]) -> ev.Event:
    """Return an event with one field changed."""
    name = choose([field.name for field in fields(event)])
    value = getattr(event, name)
    machine = runtime.machine
    if name == "req_id":
        changed: Any = choose([*(job.req_id for job in JOBS), NOBODY])
    elif name in ("block_ids", "source_blocks", "destination_blocks"):
        changed = _other_list(value, list(machine.config.block_ids), choose)
    elif name == "slots":
        changed = _other_list(value, list(range(12)), choose)
    elif name == "token_ids":
        changed = _other_list(value, list(range(6)), choose)
    elif name == "moves" and value:
        changed = _other_moves(value, choose)
    elif name == "reads" and value:
        read = choose(value)
        other = read._replace(**{choose(["epoch", "num_query", "length"]): choose([0, 1, 2, 3])})
        changed = choose([(), (*value, read), tuple(other if it is read else it for it in value)])
    elif name == "fingerprints":
        changed = tuple(content((90 + choose(range(3)),), False) for _ in value)
    elif name == "strategy":
        changed = choose(["out_of_place", "in_place", "copy_on_write"])
    elif isinstance(value, int):
        changed = value + choose([-1, 1])
    else:
        changed = value
    return replace(event, **{name: changed})


def _other_list(values: tuple[int, ...], all_values: list[int], choose: Choose[Any]) -> tuple[int, ...]:
    other = choose(all_values)
    others = [(*values, other), (other,), values[:-1], values[::-1]]
    others += [(other, *values[1:]), (*values, *values[:1])] if values else []
    return tuple(choose(others))


def _other_moves(moves: tuple[ev.Move, ...], choose: Choose[Any]) -> tuple[ev.Move, ...]:
    index = choose(range(len(moves)))
    field, value = choose(ev.Move._fields), choose(range(12))
    other = moves[index]._replace(**{field: value})
    return tuple(
        choose(
            [
                (*moves[:index], *moves[index + 1 :]),
                (*moves, moves[index]),
                (*moves[:index], other, *moves[index + 1 :]),
                moves[::-1],
            ]
        )
    )


class _Careless:
    """Makes events without looking whether they are right."""

    def __init__(self, runtime: Runtime, choose: Choose[Any]) -> None:
        self.runtime, self.machine, self.choose = runtime, runtime.machine, choose
        self.req_id: str = choose([job.req_id for job in JOBS])
        request = self.machine.requests.get(self.req_id)
        self.epoch = request.epoch if request else 0
        self.block_ids = list(self.machine.config.block_ids)

    def event(self) -> ev.Event | None:
        """Return some event."""
        name: str = self.choose([name for name in dir(self) if name.startswith("make_")])
        event: ev.Event | None = getattr(self, name)()
        return event

    def some_blocks(self) -> tuple[int, ...]:
        listed = [self.choose(self.block_ids)]
        if self.choose([False, True]):
            listed.append(self.choose(self.block_ids))
        return tuple(listed)

    def some_token(self) -> int:
        return int(self.choose(range(self.machine.num_tokens(self.req_id) + 1)))

    def make_admit(self) -> ev.Event:
        return ev.Admit(self.req_id, 4, None)

    def make_alloc(self) -> ev.Event:
        return ev.Alloc(self.req_id, self.some_blocks())

    def make_lease(self) -> ev.Event:
        return ev.Lease(self.req_id, self.epoch, self.some_blocks())

    def make_share(self) -> ev.Event | None:
        entries = list(self.machine.pool.cached.items())
        if not entries:
            return None
        block_id, prefix = self.choose(entries)
        before = [
            b for b, it in entries if b != block_id and it.vocab_ids == prefix.vocab_ids[: len(it.vocab_ids)]
        ]
        return ev.Share(self.req_id, self.epoch, (*before[:1], block_id), prefix.vocab_ids)

    def make_share_of_anything(self) -> ev.Event:
        vocab_ids = self.runtime.jobs[self.req_id].prompt[:2]
        return ev.Share(self.req_id, self.epoch, (self.choose(self.block_ids),), vocab_ids)

    def make_cache(self) -> ev.Event:
        request = self.machine.requests.get(self.req_id)
        listed = request.block_ids if request else []
        count = self.choose(range(1, len(listed) + 1)) if listed else 0
        return ev.Cache(self.req_id, self.epoch, tuple(listed[:count]) or self.some_blocks())

    def make_uncache(self) -> ev.Event:
        return ev.Uncache(self.some_blocks())

    def make_release(self) -> ev.Event:
        held = sorted(self.machine.pool.held_by(self.req_id)) + self.machine.pool.leased_to(self.req_id)
        block_ids = (self.choose(held),) if held and self.choose([False, True]) else self.some_blocks()
        return ev.Release(self.req_id, self.epoch, block_ids)

    def make_free(self) -> ev.Event:
        fenced = sorted(self.machine.pool.fences)
        return ev.Free((self.choose(fenced),) if fenced else self.some_blocks())

    def make_evict(self) -> ev.Event:
        tokens = [self.some_token()]
        if self.choose([False, True]):
            tokens.append(self.some_token())
        return ev.Evict(self.req_id, self.epoch, tuple(tokens))

    def make_begin(self) -> ev.Event | None:
        request = self.machine.requests.get(self.req_id)
        if request is None:
            return None
        length = request.length + self.choose([0, 1, 1, 2])
        reads = (ev.Read(self.req_id, self.epoch, self.choose([1, 1, 2]), length, ""),)
        return ev.Forward(self.machine.last_step + self.choose([0, 1]), "begin", reads)

    def make_sync(self) -> ev.Event:
        first = self.machine.num_tokens(self.req_id)
        known = self.machine.requests[self.req_id].vocab_ids if self.req_id in self.machine.requests else []
        vocab_ids = self.runtime.jobs[self.req_id].vocab_ids(first, first + 1) or tuple(
            known[first : first + 1]
        )
        written = (content(vocab_ids or (0,), False),)
        return ev.Sync(self.req_id, self.epoch, first, vocab_ids or (0,), (self.choose(range(12)),), written)

    def make_recycling_sync(self) -> ev.Event | None:
        if self.req_id not in self.machine.table:
            return None
        dead = self.machine.table.dead_slots(self.req_id)
        event = self.make_sync()
        assert isinstance(event, ev.Sync)
        return replace(event, slots=(self.choose(dead),)) if dead else None

    def make_plan(self) -> ev.Event | None:
        """A relocation over any blocks, also protected ones, to blocks that may not be leased."""
        table = self.machine.table
        if self.req_id not in table:
            return None
        strategy = self.choose(["out_of_place", "in_place"])
        destinations = self.choose([tuple(self.machine.pool.leased_to(self.req_id)), self.some_blocks()])
        relocation = plan_relocation(
            table, self.req_id, strategy, lambda block_id: False, destinations, view=self.machine.config.view
        )
        return None if relocation is None else self.planned(strategy, relocation)

    def make_chosen_plan(self) -> ev.Event | None:
        """A relocation of blocks that are chosen without a thought."""
        table = self.machine.table
        if self.req_id not in table or not table.written_blocks(self.req_id):
            return None
        written = table.written_blocks(self.req_id)
        first = self.choose(range(len(written)))
        sources = tuple(written[first:])
        strategy = self.choose(["out_of_place", "in_place"])
        count = -(-sum(table.live_in_block(self.req_id, b) for b in sources) // table.block_size)
        leased = self.machine.pool.leased_to(self.req_id)
        destinations = sources[:count] if strategy == "in_place" else tuple(leased[:count])
        if len(destinations) < count:
            return None
        moves = planned_moves(table, self.req_id, strategy, sources, destinations)
        return self.planned(strategy, Relocation(sources, destinations, moves))

    def make_copy_on_write(self) -> ev.Event | None:
        table = self.machine.table
        if self.req_id not in table or not table.block_ids(self.req_id):
            return None
        source, destination = self.choose(table.block_ids(self.req_id)), self.some_blocks()[0]
        moves = copy_on_write_moves(table, self.req_id, source, destination)
        return self.planned("copy_on_write", Relocation((source,), (destination,), moves))

    def planned(self, strategy: ev.PlanStrategy, relocation: Relocation) -> ev.Event:
        number = self.machine.num_events
        return ev.Plan(self.req_id, self.epoch, number, strategy, *relocation)

    def flights(self) -> Iterator[ev.Plan]:
        for worker in self.machine.workers.values():
            if worker.plan is not None:
                yield worker.plan.plan
        for flight in self.machine.orphans.values():
            yield flight.plan

    def make_copy(self) -> ev.Event | None:
        plans = list(self.flights())
        if not plans or not plans[0].moves:
            return None
        plan = self.choose(plans)
        tokens = tuple(move.token_id for move in plan.moves) or (0,)
        chosen = self.choose([(self.choose(tokens),), tokens, (self.some_token(),)])
        return ev.Copy(plan.req_id, plan.epoch, plan.plan_id, chosen, NBYTES_PER_TOKEN * len(chosen))

    def make_commit(self) -> ev.Event | None:
        plans = list(self.flights())
        if not plans:
            return None
        plan = self.choose(plans)
        worker = self.machine.workers.get(plan.req_id)
        if worker is None or worker.plan is None or worker.plan.plan != plan:
            return ev.Commit(plan.req_id, plan.epoch, plan.plan_id, plan.moves, (), 0, "", "")
        return self.runtime.commit(plan.req_id, worker, plan)

    def make_cancel(self) -> ev.Event | None:
        plans = list(self.flights())
        if not plans:
            return None
        plan = self.choose(plans)
        return ev.Cancel(plan.req_id, plan.epoch, plan.plan_id)

    def make_epoch_end(self) -> ev.Event:
        ends: list[ev.Event] = [
            ev.Preempt(self.req_id, self.epoch),
            ev.Abort(self.req_id, self.epoch),
            ev.Finish(self.req_id, self.epoch - 1, "stop"),
        ]
        event: ev.Event = self.choose(ends)
        return event
