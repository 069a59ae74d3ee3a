"""Events of a runtime that knows what it has and does not look at what is allowed.

Some of them are legal. The machine refuses the others; one that it takes wrongly leads to a
disagreement with the oracle.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from spec.machines.device import Stream
from spec.machines.oracle import Epoch
from spec.runtime import NBYTES_PER_TOKEN, Runtime
from vtoken_ref import events as ev
from vtoken_ref.transitions.messages import layout_of


class Careless:
    """One runtime in its present state.

    Args:
        runtime: the machine and the clients.
        streams: where each epoch has its tokens.
        live: by epoch, its live tokens.
        block_id: a block, any.
        mask: whatever else is to be chosen.

    """

    def __init__(
        self,
        runtime: Runtime,
        streams: dict[Epoch, Stream],
        live: dict[Epoch, list[int]],
        block_id: int,
        mask: int,
    ) -> None:
        self.runtime, self.machine = runtime, runtime.machine
        self.streams, self.live = streams, live
        self.block_id, self.mask = block_id, mask
        self.block_size = runtime.machine.config.block_size

    def scheduler(self) -> Iterator[ev.Event]:
        """Yield what a scheduler may do."""
        machine, block_id = self.machine, self.block_id
        yield ev.Free((block_id,))
        yield ev.Free(tuple(machine.pool.fences))
        yield ev.Deliver(machine.last_step)
        if machine.requests or machine.steps or machine.pool.fences:
            num_blocks = len(machine.config.block_ids)
            yield ev.End(machine.num_events, len(machine.ended), num_blocks)
        reads: list[ev.Read] = []
        for req_id, request in machine.requests.items():
            count = max(min(1 + self.mask % 3, num_left(self.runtime, req_id)), 1)
            if num_left(self.runtime, req_id) > 0:
                reads.append(ev.Read(req_id, request.epoch, count, request.length + count, ""))
                yield ev.Forward(machine.last_step + 1, "begin", tuple(reads))
                yield ev.Forward(machine.last_step + 1, "begin", tuple(reads[-1:]))
            yield ev.Alloc(req_id, (block_id,))
            yield ev.Lease(req_id, request.epoch, (block_id,))
            yield ev.Cache(req_id, request.epoch, tuple(request.block_ids[:count]))
            prompt = self.runtime.jobs[req_id].prompt[: 1 + self.mask % 7]
            known = [*machine.pool.cached, block_id]
            first = tuple(known[: -(-len(prompt) // self.block_size)])
            yield ev.Share(req_id, request.epoch, first, prompt)

    def worker(self) -> Iterator[ev.Event]:
        """Yield what a worker may do."""
        if self.machine.reported is not None and not self._is_over_budget():
            yield ev.Report(
                self.machine.reported,
                tuple(
                    layout_of(self.machine, req_id, worker) for req_id, worker in self.machine.workers.items()
                ),
            )
        for epoch, stream in self.streams.items():
            yield ev.Release(*epoch, (self.block_id,))
            yield ev.Defer(*epoch, 1 + self.mask % 3)
            yield ev.Evict(*epoch, tuple(_subset(self.live[epoch], self.mask)))
            yield from self._sync(epoch)
            if stream.plan is None:
                yield from self._plans(epoch, stream)
            else:
                yield from self._of_plan(epoch, stream, stream.plan)

    def _is_over_budget(self) -> bool:
        """Tell whether a step would be reported that no other can follow."""
        return any(
            worker.budget is not None and self.machine.num_live(req_id) > worker.budget
            for req_id, worker in self.machine.workers.items()
        )

    def _sync(self, epoch: Epoch) -> Iterator[ev.Event]:
        slot = self.block_id * self.block_size + self.mask % self.block_size
        first = self.machine.num_tokens(epoch[0])
        vocab_ids = self.runtime.jobs[epoch[0]].vocab_ids(first, first + 1)
        yield ev.Sync(*epoch, first, vocab_ids, (slot,) * len(vocab_ids), ("",) * len(vocab_ids))

    def _plans(self, epoch: Epoch, stream: Stream) -> Iterator[ev.Event]:
        sources = _subset(stream.block_ids, self.mask)
        worker = self.machine.workers.get(epoch[0])
        leased = worker.leased if worker else []
        plan_id = self.machine.num_events
        for strategy, candidates in (("in_place", sources), ("out_of_place", [*leased, self.block_id])):
            moves = self._moves(epoch, stream, sources, candidates, strategy == "in_place")
            used = {move.dst_slot // self.block_size for move in moves}
            destinations = tuple(block_id for block_id in candidates if block_id in used)
            yield ev.Plan(*epoch, plan_id, strategy, tuple(sources), destinations, moves)  # type: ignore[arg-type]

    def _moves(
        self, epoch: Epoch, stream: Stream, sources: Sequence[int], candidates: Sequence[int], in_place: bool
    ) -> tuple[ev.Move, ...]:
        """Return the moves of all live tokens of the sources, as far as there is room."""
        slots = {
            t: stream.slots[t] for t in self.live[epoch] if stream.slots[t] // self.block_size in sources
        }
        order = sorted(slots)
        if in_place:
            order.sort(key=lambda token_id: sources.index(slots[token_id] // self.block_size))
        room = [
            block_id * self.block_size + offset
            for block_id in candidates
            for offset in range(self.block_size)
        ]
        moves = [ev.Move(t, slots[t], to) for t, to in zip(order, room, strict=False)]
        return tuple(move for move in moves if move.src_slot != move.dst_slot)

    def _of_plan(self, epoch: Epoch, stream: Stream, plan: ev.Plan) -> Iterator[ev.Event]:
        left = sorted(stream.left)
        for token_ids in (_subset(left, self.mask), left[-1:], left):
            yield ev.Copy(*epoch, plan.plan_id, tuple(token_ids), NBYTES_PER_TOKEN * len(token_ids))
        yield ev.Cancel(*epoch, plan.plan_id)
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


def _subset(values: Sequence[Any], mask: int) -> list[Any]:
    return [value for index, value in enumerate(values) if mask >> index & 1]
