"""A machine of ``vtoken_ref`` as a finite state of the relocation model.

Every function of the model gets its value from the machine, through its public accessors. Where the
machine has nothing to say (the slot of a token that has none), the model's function may have any
value; reading one there gives an arbitrary element, so that a relation that depends on it shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spec.proofs.state import SORT_NAMES
from vtoken_ref.machine import Machine
from vtoken_ref.rules import VTokenError
from vtoken_ref.state import PlanInFlight, WorkerRequest

FlightId = tuple[str, int, int]
"""Request, epoch and number of a plan."""

PARTIAL = frozenset(
    {
        "epoch",
        "evictions",
        "block",
        "offset",
        "content",
        "waits_for_step",
        "waits_for_copies",
        "ticket",
        "is_cached_at",
        "cached_token",
        "cached_content",
        "plan_of",
        "owner",
        "plan_epoch",
        "in_place",
        "copy_on_write",
        "source",
        "destination",
        "moving",
        "copied",
        "source_block",
        "source_offset",
        "target_block",
        "target_offset",
        "moved_to",
        "paid_by",
        "gained",
        "written_token",
    }
)
"""Functions that mean something only for some arguments; the others are predicates, false unless listed."""


class Table(dict[Any, Any]):
    """The values of one function; what is not listed is false, or of a partial function arbitrary."""

    def __init__(self, elements: Sequence[Any], is_partial: bool, random: Random) -> None:
        super().__init__()
        self.elements, self.is_partial, self.random = elements, is_partial, random
        self.arbitrary: dict[Any, Any] = {}

    def __missing__(self, key: Any) -> Any:
        if not self.is_partial:
            return False
        if key not in self.arbitrary:
            self.arbitrary[key] = self.random.choice(self.elements)
        return self.arbitrary[key]


@dataclass(slots=True)
class Elements:
    """The elements of each sort that a state and an event speak of."""

    requests: set[Any] = field(default_factory=set)
    blocks: set[Any] = field(default_factory=set)
    flights: set[Any] = field(default_factory=set)
    steps: set[Any] = field(default_factory=set)
    contents: set[Any] = field(default_factory=set)
    num_tokens: int = 0
    num_tickets: int = 0
    block_size: int = 1

    def lists(self) -> dict[str, list[Any]]:
        """Return the elements by sort."""
        return {
            "Request": sorted(self.requests),
            "Token": list(range(self.num_tokens)),
            "Block": sorted(self.blocks),
            "Offset": list(range(self.block_size)),
            "Flight": sorted(self.flights),
            "Step": sorted(self.steps),
            "Content": sorted(self.contents, key=str),
            "Ticket": list(range(self.num_tickets)),
            "Int": list(range(3)),
            "Bool": [False, True],
        }


def elements_of(machine: Machine) -> Elements:
    """Return the elements that a machine speaks of, and one of each sort that it does not."""
    flights = {flight_id(flight) for flight in _flights(machine)}
    fenced = [hazard for fence in machine.pool.fences.values() for hazard in fence]
    tokens = [machine.num_tokens(req_id) for req_id in machine.workers]
    unwritten = [machine.num_unwritten(req_id, worker) for req_id, worker in machine.workers.items()]
    planned = [1 + move.token_id for flight in _flights(machine) for move in flight.moves.values()]
    cached = [len(prefix.vocab_ids) for prefix in machine.pool.cached.values()]
    contents = {
        *machine.memory.values(),
        *(it for worker in machine.workers.values() for it in worker.fingerprints),
        *(it for prefix in machine.pool.cached.values() for it in prefix.fingerprints),
    }
    return Elements(
        requests={*machine.requests, *machine.ended, *(flight[0] for flight in flights), "nobody"},
        blocks=set(machine.pool.block_ids),
        flights={*flights, ("nobody", -1, -1)},
        steps={*machine.forwards, *(hazard.step for hazard in fenced if hazard.kind == "step"), -1},
        contents={*contents, "nothing"},
        num_tokens=1 + max([*tokens, *planned, *cached], default=0) + max(unwritten, default=0),
        num_tickets=1 + max(machine.config.headroom, len(machine.pool.leases)),
        block_size=machine.config.block_size,
    )


def flight_id(flight: PlanInFlight) -> FlightId:
    """Return what tells a plan from every other one."""
    plan = flight.plan
    return plan.req_id, plan.epoch, plan.plan_id


def tickets_of(leases: Iterable[int], known: Mapping[int, int]) -> dict[int, int]:
    """Return a ticket for each leased block: the one that it has, or the first that nobody has."""
    leased = list(leases)
    tickets = {block_id: known[block_id] for block_id in leased if block_id in known}
    for block_id in leased:
        if block_id not in tickets:
            taken = set(tickets.values())
            tickets[block_id] = next(ticket for ticket in range(len(leased) + 1) if ticket not in taken)
    return tickets


class Abstraction:
    """A machine, read as a state of the model.

    Args:
        machine: with async depth 0.
        elements: at least those of the machine.
        tickets: of the leased blocks.
        seed: of what is arbitrary.

    Attributes:
        tables: by name, the functions of the model's state, and the elements of its sorts.
        random: chooses what is arbitrary.

    """

    def __init__(
        self, machine: Machine, elements: Elements, tickets: Mapping[int, int], seed: int = 0
    ) -> None:
        self.machine = machine
        self.block_size = machine.config.block_size
        lists, random = elements.lists(), Random(seed)
        self.random = random
        self.tables: dict[str, Any] = {
            name: Table(lists[sorts[-1]], name in PARTIAL, random) for name, sorts in SORT_NAMES.items()
        }
        self.tables.update(lists)
        self._read_requests()
        for req_id, worker in machine.workers.items():
            self._read_table(req_id, worker)
        self._read_pool(tickets)
        for flight in _flights(machine):
            self._read_flight(flight)
        self._read_forwards()

    def _read_requests(self) -> None:
        for req_id, request in self.machine.requests.items():
            self.tables["alive"][req_id] = True
            self.tables["epoch"][req_id] = request.epoch
        for req_id in self.machine.ended:
            self.tables["ended"][req_id] = True
        for req_id, epoch in self.machine.orphans:
            # The machine forgets the last epoch of a request that has ended; any later one will do.
            if req_id in self.machine.ended:
                known = self.tables["epoch"].arbitrary.get(req_id, 0)
                self.tables["epoch"].arbitrary[req_id] = max(epoch, known)

    def _read_table(self, req_id: str, worker: WorkerRequest) -> None:
        of, table = self.tables, self.machine.table
        for block_id in worker.block_ids:
            of["listed"][req_id, block_id] = True
        if worker.plan is not None:
            of["has_plan"][req_id] = True
            of["plan_of"][req_id] = flight_id(worker.plan)
        for token_id in range(self.machine.num_tokens(req_id)):
            key = req_id, token_id
            is_live = table.is_live(req_id, token_id)
            of["computed"][key] = True
            of["content"][key] = worker.fingerprints[token_id]
            of["evictions"][key] = 0 if is_live else 1
            if is_live:
                of["live"][key] = True
            slot = _slot(self.machine, req_id, token_id)
            if slot is not None:
                of["resident"][key] = True
                of["block"][key], of["offset"][key] = divmod(slot, self.block_size)

    def _read_pool(self, tickets: Mapping[int, int]) -> None:
        of, pool = self.tables, self.machine.pool
        for ticket in range(self.machine.config.headroom):
            of["in_headroom"][ticket] = True
        for block_id in pool.free_blocks:
            of["free"][block_id] = True
        for block_id, holders in pool.holders.items():
            for req_id in holders:
                of["holds"][req_id, block_id] = True
        for block_id, req_id in pool.leases.items():
            of["leased"][req_id, block_id] = True
            of["ticket"][block_id] = tickets[block_id]
        for block_id, hazards in pool.fences.items():
            of["fenced"][block_id] = True
            steps = {hazard.step for hazard in hazards if hazard.kind == "step"}
            epochs = {(hazard.req_id, hazard.epoch) for hazard in hazards if hazard.kind == "epoch"}
            for step in of["Step"]:
                of["waits_for_step"][block_id, step] = step in steps
            for flight in of["Flight"]:
                of["waits_for_copies"][block_id, flight] = flight[:2] in epochs
        for block_id, prefix in pool.cached.items():
            of["cached"][block_id] = True
            first = (len(prefix.fingerprints) - 1) // self.block_size * self.block_size
            for offset in range(self.block_size):
                has_token = first + offset < len(prefix.fingerprints)
                of["is_cached_at"][block_id, offset] = has_token
                if has_token:
                    of["cached_token"][block_id, offset] = first + offset
                    of["cached_content"][block_id, offset] = prefix.fingerprints[first + offset]
        for block_id in of["Block"]:
            for offset in range(self.block_size):
                slot = block_id * self.block_size + offset
                of["memory"][block_id, offset] = self.machine.memory.get(slot, "nothing")

    def _read_flight(self, flight: PlanInFlight) -> None:
        plan, key = flight.plan, flight_id(flight)
        self.tables["in_flight"][key] = True
        self.tables["owner"][key] = plan.req_id
        self.tables["plan_epoch"][key] = plan.epoch
        self.tables["in_place"][key] = plan.strategy == "in_place"
        self.tables["copy_on_write"][key] = plan.strategy == "copy_on_write"
        paid_by, self.tables["gained"][key] = payment(plan.source_blocks, plan.destination_blocks)
        for block_id in self.tables["Block"]:
            self.tables["source"][key, block_id] = block_id in plan.source_blocks
            self.tables["destination"][key, block_id] = block_id in plan.destination_blocks
            if block_id in paid_by:
                self.tables["paid_by"][key, block_id] = paid_by[block_id]
        for token_id in self.tables["Token"]:
            move = flight.moves.get(token_id)
            self.tables["moving"][key, token_id] = move is not None
            if move is None:
                continue
            source, target = divmod(move.src_slot, self.block_size), divmod(move.dst_slot, self.block_size)
            self.tables["copied"][key, token_id] = token_id in flight.copied
            self.tables["source_block"][key, token_id], self.tables["source_offset"][key, token_id] = source
            self.tables["target_block"][key, token_id], self.tables["target_offset"][key, token_id] = target
            self.tables["moved_to"][(key, *target)] = token_id

    def _read_forwards(self) -> None:
        of, machine = self.tables, self.machine
        for running, forward in machine.forwards.items():
            of["running"][running] = True
            for slot in forward.frozen_writes:
                of["zombie_write"][(running, *divmod(slot, self.block_size))] = True
        for req_id, worker in machine.workers.items():
            step = worker.in_forward
            if step is None:
                continue
            of["in_forward"][step, req_id] = True
            num_unwritten = machine.num_unwritten(req_id, worker)
            if num_unwritten and machine.forwards[step].reads[req_id].length == machine.length(req_id):
                of["will_recycle"][step, req_id] = True
                continue
            for token_id, slot in next_slots(machine, req_id, worker, num_unwritten).items():
                place = divmod(slot, self.block_size)
                of["will_write"][(step, req_id, *place)] = True
                of["written_token"][(step, req_id, *place)] = token_id


def payment(source_blocks: Sequence[int], destination_blocks: Sequence[int]) -> tuple[dict[int, int], int]:
    """Return a source for each destination, and one more; there are enough only if blocks are gained."""
    sources = [*source_blocks[1:], *source_blocks[:1]]
    paid_by = {
        block_id: sources[min(index, len(sources) - 1)] if sources else block_id
        for index, block_id in enumerate(destination_blocks)
    }
    return paid_by, source_blocks[0] if source_blocks else -1


def next_slots(machine: Machine, req_id: str, worker: WorkerRequest, count: int) -> dict[int, int]:
    """Return where the next tokens of a request will be written, by token; none where there is no room."""
    first = machine.num_tokens(req_id)
    try:
        return dict(enumerate(machine.table.next_slots(req_id, worker.block_ids, count), first))
    except VTokenError:
        return {}


def _flights(machine: Machine) -> list[PlanInFlight]:
    return [*(worker.plan for worker in machine.workers.values() if worker.plan), *machine.orphans.values()]


def _slot(machine: Machine, req_id: str, token_id: int) -> int | None:
    try:
        return machine.table.slot(req_id, token_id)
    except VTokenError:
        return None
