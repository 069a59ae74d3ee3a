"""Events that only a wrong scheduler or worker would emit: each leaves out something that it must look at.

A correct spec refuses them. One whose guard is missing takes them, and what they break shows in the
states that follow.
"""

from collections.abc import Iterator
from itertools import combinations

from spec.runtime import NBYTES_PER_TOKEN, Runtime
from vtoken_ref import events as ev
from vtoken_ref.planner import Relocation, copy_on_write_moves, num_blocks_for, num_live_in, planned_moves
from vtoken_ref.transitions.relocation import PLAN_STRATEGIES


def temptations(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield them in a fixed order; some may be legal events as well."""
    yield from _frees(runtime)
    yield from _messages(runtime)
    for req_id in runtime.jobs:
        yield from _blocks(runtime, req_id)
        yield from _begins(runtime, req_id)
    for req_id in runtime.machine.workers:
        yield from _syncs(runtime, req_id)
        yield from _evicts(runtime, req_id)
        yield from _plans(runtime, req_id)
        yield from _in_flight(runtime, req_id)
        yield from _releases(runtime, req_id)


def _frees(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield the freeing of blocks that are held, lent, or still touched."""
    pool = runtime.machine.pool
    for block_id in (*pool.fences, *pool.leases, *pool.holders):
        yield ev.Free((block_id,))


def _blocks(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield blocks that are not there to be given out, and shared ones that are no prefix."""
    machine = runtime.machine
    request, pool = machine.requests.get(req_id), machine.pool
    if request is None:
        return
    if runtime.needs_block(req_id):
        for block_id in (*pool.fences, *pool.leases, *pool.holders):
            yield ev.Alloc(req_id, (block_id,))
    if request.num_tokens:
        for block_id in (*pool.fences, *pool.leases, *pool.holders):
            yield ev.Lease(req_id, request.epoch, (block_id,))
    if pool.cached and not request.block_ids:
        job, block_size = runtime.jobs[req_id], machine.config.block_size
        for block_id in pool.cached:
            for num_tokens in range(1, min(block_size, len(job.prompt)) + 1):
                yield ev.Share(req_id, request.epoch, (block_id,), job.prompt[:num_tokens])


def _begins(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield a forward of more tokens than there are slots."""
    machine = runtime.machine
    request = machine.requests.get(req_id)
    if request is None or runtime.most_query(req_id) or runtime.outputs(req_id):
        return
    if request.num_tokens < runtime.jobs[req_id].num_tokens:
        read = ev.Read(req_id, request.epoch, 1, request.length + 1, "")
        yield ev.Forward(machine.last_step + 1, "begin", (read,))


def _messages(runtime: Runtime) -> Iterator[ev.Event]:
    """Yield messages out of order, and a report before the work of its step is done."""
    machine = runtime.machine
    for step, forward in machine.forwards.items():
        if not forward.is_started:
            yield ev.Forward(step, "start", tuple(forward.reads.values()))
    for step in list(machine.reports)[1:]:
        yield ev.Deliver(step)
    if machine.reported is not None and runtime.is_within_budgets():
        yield runtime.report()


def _syncs(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield the next token at every slot of the request's blocks, where the strategy would write over one."""
    machine = runtime.machine
    worker = machine.workers[req_id]
    if worker.in_forward is None or not machine.num_unwritten(req_id, worker):
        return
    if machine.config.strategy in (None, "recycle") and req_id in machine.table:
        for slot in machine.table.dead_slots(req_id):
            yield runtime.sync(req_id, worker, (slot,))


def _evicts(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield the eviction of tokens that are read or moved."""
    machine = runtime.machine
    worker = machine.workers[req_id]
    if req_id in machine.table and (worker.plan is not None or worker.in_forward is not None):
        for token_id in machine.table.live_tokens(req_id):
            yield ev.Evict(req_id, worker.epoch, (token_id,))


def _plans(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield relocations of any blocks to any destinations, whether or not that wins a block."""
    machine = runtime.machine
    worker, table = machine.workers[req_id], machine.table
    if req_id not in table:
        return
    written, block_size = table.written_blocks(req_id), machine.config.block_size
    for count in range(1, len(written) + 1):
        for sources in combinations(written, count):
            needed = num_blocks_for(num_live_in(table, req_id, sources), block_size)
            for strategy in PLAN_STRATEGIES[machine.config.strategy]:
                if strategy == "copy_on_write":
                    continue
                candidates = sources if strategy == "in_place" else tuple(worker.leased)
                if len(candidates) >= needed:
                    destinations = candidates[:needed]
                    moves = planned_moves(table, req_id, strategy, sources, destinations)
                    relocation = Relocation(sources, destinations, moves)
                    yield runtime.plan(req_id, strategy, relocation)
    for source in written:
        for block_id in (*worker.leased[:1], *worker.block_ids[-1:]):
            if block_id != source:
                moves = copy_on_write_moves(table, req_id, source, block_id)
                yield runtime.plan(req_id, "copy_on_write", Relocation((source,), (block_id,), moves))


def _in_flight(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield copies in any order, a commit before its copies, and a cancel after they have overwritten."""
    worker = runtime.machine.workers[req_id]
    if worker.plan is None:
        return
    plan = worker.plan.plan
    for token_id in sorted(worker.plan.remaining):
        yield ev.Copy(req_id, plan.epoch, plan.plan_id, (token_id,), NBYTES_PER_TOKEN)
    yield runtime.commit(req_id, worker, plan)
    yield ev.Cancel(req_id, plan.epoch, plan.plan_id)


def _releases(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Yield the release of anything that the request has."""
    worker = runtime.machine.workers[req_id]
    for block_id in (*worker.block_ids, *worker.leased):
        yield ev.Release(req_id, worker.epoch, (block_id,))
