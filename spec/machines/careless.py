"""Events of a runtime that knows what it has and does not look at what is allowed.

Some of them are legal. The machine refuses the others; one that it takes wrongly leads to a
disagreement with the oracle.
"""

from collections.abc import Iterator, Sequence

from spec.machines.device import Device, Stream
from spec.machines.oracle import Epoch
from spec.runtime import NBYTES_PER_TOKEN, Runtime
from vtoken_ref import events as ev
from vtoken_ref.transitions.messages import layout_of

KINDS = ("blocks", "cached", "forwards", "messages", "syncs", "tokens", "plans", "plans_in_flight")
"""Methods of ``Careless``."""


class Careless:
    """One runtime in its present state.

    Args:
        runtime: the machine and the clients.
        device: what has happened.
        block: which block, if one is to be chosen.
        mask: whatever else is to be chosen.

    """

    def __init__(self, runtime: Runtime, device: Device, block: int, mask: int) -> None:
        self.runtime, self.machine, self.device = runtime, runtime.machine, device
        blocks = runtime.machine.config.block_ids
        self.block_id, self.mask = blocks[block % len(blocks)], mask
        self.block_size = runtime.machine.config.block_size
        self.streams = {
            epoch: stream
            for epoch, stream in device.streams.items()
            if self.machine.is_worked(*epoch) or epoch in self.machine.orphans or mask % 16 == 15
        }

    def events(self, kind: str) -> list[ev.Event]:
        """Return what may be done of one of ``KINDS``."""
        return list(getattr(self, kind)())

    # The scheduler.

    def blocks(self) -> Iterator[ev.Event]:
        """Yield blocks freed and given out, whoever has them."""
        yield ev.Free((self.block_id,))
        yield ev.Free(tuple(self.machine.pool.fences))
        for req_id, request in self.machine.requests.items():
            yield ev.Alloc(req_id, (self.block_id,))
            yield ev.Lease(req_id, request.epoch, (self.block_id,))

    def cached(self) -> Iterator[ev.Event]:
        """Yield blocks cached and shared, whatever they hold."""
        for req_id, request in self.machine.requests.items():
            if request.block_ids:
                yield ev.Cache(req_id, request.epoch, tuple(request.block_ids[: 1 + self.mask % 3]))
            prompt, block_size = self.runtime.jobs[req_id].prompt, self.block_size
            for num_tokens in range(1, len(prompt)) if not request.block_ids else (1,):
                block_ids = self._blocks_in_place(-(-num_tokens // block_size))
                yield ev.Share(req_id, request.epoch, block_ids, prompt[:num_tokens])

    def _blocks_in_place(self, count: int) -> tuple[int, ...]:
        """Return blocks that hold some prefix up to the first, second and so on block, or any block."""
        block_ids = []
        for index in range(count):
            found = [
                block_id
                for block_id, prefix in self.machine.pool.cached.items()
                if -(-len(prefix.vocab_ids) // self.block_size) == index + 1
            ]
            block_ids.append(found[(self.mask + index) % len(found)] if found else self.block_id)
        return tuple(block_ids)

    def forwards(self) -> Iterator[ev.Event]:
        """Yield forwards of any requests."""
        step = self.machine.last_step + 1
        reads: list[ev.Read] = []
        for req_id, request in self.machine.requests.items():
            count = min(1 + self.mask % 3, num_left(self.runtime, req_id))
            if count > 0:
                reads.append(ev.Read(req_id, request.epoch, count, request.length + count, ""))
                yield ev.Forward(step, "begin", tuple(reads[-1:]))
                yield ev.Forward(step, "begin", (ev.Read(req_id, request.epoch, 1, request.length, ""),))
        yield ev.Forward(step, "begin", tuple(reads))

    def messages(self) -> Iterator[ev.Event]:
        """Yield messages sent and taken too early, and the end of the run."""
        machine = self.machine
        yield ev.Deliver(machine.last_step - self.mask % 2)
        if machine.requests or machine.steps or machine.pool.fences:
            yield ev.End(machine.num_events, len(machine.ended), len(machine.config.block_ids))
        for step, forward in machine.forwards.items():
            yield ev.Forward(step, "start", tuple(forward.reads.values()))
        if machine.reported is not None and self.runtime.is_within_budgets():
            told = [layout_of(machine, req_id, worker) for req_id, worker in machine.workers.items()]
            yield ev.Report(machine.reported, tuple(told))

    # The worker.

    def syncs(self) -> Iterator[ev.Event]:
        """Yield one token in any slot of a request, and in any slot at all."""
        anywhere = self.block_id * self.block_size + self.mask % self.block_size
        for epoch, stream in self.streams.items():
            first = self.machine.num_tokens(epoch[0])
            vocab_ids = self.runtime.jobs[epoch[0]].vocab_ids(first, first + 1)
            slots = [b * self.block_size + at for b in stream.block_ids for at in range(self.block_size)]
            for slot in (slots[self.mask % len(slots)] if slots else anywhere, anywhere):
                yield ev.Sync(*epoch, first, vocab_ids, (slot,) * len(vocab_ids), ("",) * len(vocab_ids))

    def tokens(self) -> Iterator[ev.Event]:
        """Yield the loss of tokens, blocks and patience."""
        for epoch, stream in self.streams.items():
            live = [token_id for token_id, _ in self.device.oracle.live(epoch)]
            yield ev.Evict(*epoch, tuple(_subset(live, self.mask)))
            yield ev.Evict(*epoch, tuple(live[-1:]))
            yield ev.Release(*epoch, (self.block_id,))
            yield ev.Release(*epoch, tuple(stream.block_ids[self.mask % 4 :][:1]))
            yield ev.Defer(*epoch, 1 + self.mask % 3)

    def plans(self) -> Iterator[ev.Event]:
        """Yield plans from any blocks to any blocks."""
        for epoch, stream in self.streams.items():
            sources = _subset(stream.block_ids, self.mask)
            worker = self.machine.workers.get(epoch[0])
            leased = [*(worker.leased if worker else ()), self.block_id]
            yield self._plan(epoch, stream, "in_place", sources, sources)
            yield self._plan(epoch, stream, "out_of_place", sources, leased)

    def _plan(
        self,
        epoch: Epoch,
        stream: Stream,
        strategy: ev.PlanStrategy,
        sources: Sequence[int],
        candidates: Sequence[int],
    ) -> ev.Plan:
        """Return a plan of all live tokens of the sources, as far as there is room."""
        live = [token_id for token_id, _ in self.device.oracle.live(epoch)]
        slots = {t: stream.slots[t] for t in live if stream.slots[t] // self.block_size in sources}
        order = sorted(slots)
        if strategy == "in_place":
            order.sort(key=lambda t: (sources.index(slots[t] // self.block_size), slots[t]))
        destinations = candidates[: -(-len(order) // self.block_size)]
        room = [b * self.block_size + at for b in destinations for at in range(self.block_size)]
        moves = [ev.Move(t, slots[t], to) for t, to in zip(order, room, strict=False) if slots[t] != to]
        number = self.machine.num_events
        return ev.Plan(*epoch, number, strategy, tuple(sources), tuple(destinations), tuple(moves))

    def plans_in_flight(self) -> Iterator[ev.Event]:
        """Yield what may come too early or in a wrong order while a plan is copied."""
        for epoch, stream in self.streams.items():
            if stream.plan is not None:
                yield from self._of_plan(epoch, stream, stream.plan)

    def _of_plan(self, epoch: Epoch, stream: Stream, plan: ev.Plan) -> Iterator[ev.Event]:
        left = [move.token_id for move in plan.moves if move.token_id in stream.left]
        for token_ids in (_subset(left, self.mask), left[-1:], left):
            yield ev.Copy(*epoch, plan.plan_id, tuple(token_ids), NBYTES_PER_TOKEN * len(token_ids))
        yield ev.Cancel(*epoch, plan.plan_id)
        live = [token_id for token_id, _ in self.device.oracle.live(epoch)]
        moving = [t for t in live if stream.slots[t] // self.block_size in plan.source_blocks]
        yield ev.Evict(*epoch, tuple(moving[:1]))
        yield ev.Release(*epoch, plan.source_blocks[-1:])
        worker = self.machine.workers.get(epoch[0])
        if worker is not None and worker.plan is not None and worker.plan.plan == plan:
            yield self.runtime.commit(epoch[0], worker, plan)


def num_left(runtime: Runtime, req_id: str) -> int:
    """Return how many tokens of a request could be computed next, as far as anybody has them."""
    machine = runtime.machine
    request = machine.requests[req_id]
    number = request.num_known - request.num_tokens
    if number <= 0:
        number += machine.config.async_depth
    return min(number, runtime.jobs[req_id].num_tokens - request.num_tokens)


def _subset(values: Sequence[int], mask: int) -> list[int]:
    return [value for index, value in enumerate(values) if mask >> index & 1]
