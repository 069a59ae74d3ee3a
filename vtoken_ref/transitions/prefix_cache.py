"""Blocks that several requests may hold, because their leading tokens are the same.

What is cached is never written again: its slots are no destination, its block is no source, and a
request that has to write into such a block gets a copy of its own first (a ``copy_on_write`` plan).

Source: paper 6.
Differs from source: the paper leaves shared blocks alone and names copy-on-write as possible.
"""

from collections.abc import Sequence

from vtoken_ref import events as ev
from vtoken_ref.pool import CachedPrefix
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import SchedulerRequest, State, WorkerRequest
from vtoken_ref.transitions.blocks import check_backpressure


def cache(state: State, event: ev.Cache) -> None:
    """Put the leading blocks of a request into the prefix cache."""
    request = state.request(event.req_id, event.epoch)
    worker = state.worker(event.req_id, event.epoch)
    leased = state.is_async and state.pool.leased_to(event.req_id)
    if worker.plan is not None or leased or state.steps_of(event.req_id, event.epoch):
        raise VTokenError(
            Rule.CACHE_BUSY, f"blocks of request {event.req_id} are cached while it is computed or relocated"
        )
    num_tokens = _check_cacheable(state, event, worker)

    for index, block_id in enumerate(event.block_ids):
        last = min((index + 1) * state.config.block_size, num_tokens)
        prefix = CachedPrefix(tuple(request.vocab_ids[:last]), tuple(worker.fingerprints[:last]))
        state.pool.cache(block_id, prefix)


def uncache(state: State, event: ev.Uncache) -> None:
    """Take blocks out of the prefix cache."""
    state.pool.uncache(event.block_ids)


def share(state: State, event: ev.Share) -> None:
    """Let cached blocks be the first ones of a request."""
    request = state.request(event.req_id, event.epoch)
    check_backpressure(state, event.req_id)
    _check_prefix(state, event, request)
    state.pool.check_share(event.req_id, event.block_ids)
    fingerprints = _check_content(state, event)

    state.pool.share(event.req_id, event.block_ids)
    request.block_ids = list(event.block_ids)
    request.length = request.num_tokens = len(event.vocab_ids)
    request.vocab_ids[: len(event.vocab_ids)] = event.vocab_ids
    if state.is_async:
        request.new_blocks, request.new_shared = list(event.block_ids), fingerprints
    else:
        state.workers[event.req_id].block_ids = list(event.block_ids)
        register_shared(state, event.req_id, fingerprints)


def register_shared(state: State, req_id: str, fingerprints: Sequence[str]) -> None:
    """Let the worker register the tokens that a request has from the cache, in its first blocks."""
    worker = state.workers[req_id]
    worker.fingerprints = list(fingerprints)
    worker.resident_entries = None
    state.table.sync_new_tokens(req_id, worker.block_ids, len(fingerprints))


def _check_cacheable(state: State, event: ev.Cache, worker: WorkerRequest) -> int:
    """Return how many tokens the blocks hold: leading ones, in place, computed before any eviction."""
    block_size, num_blocks = state.config.block_size, len(event.block_ids)
    num_tokens = min(state.num_tokens(event.req_id), num_blocks * block_size)
    is_partial = num_tokens < num_blocks * block_size
    if num_tokens <= (num_blocks - 1) * block_size or (state.is_async and is_partial):
        raise VTokenError(
            Rule.CACHE_PREFIX, f"{event.req_id} has not filled {num_blocks} blocks that could be cached"
        )
    in_place = [
        token_id
        for block_id in event.block_ids
        for token_id in state.table.block_tokens(event.req_id, block_id)
    ]
    is_pure = worker.num_pure is None or num_tokens <= worker.num_pure
    if in_place != list(range(num_tokens)) or not is_pure:
        raise VTokenError(
            Rule.CACHE_PREFIX,
            f"blocks {list(event.block_ids)} of {event.req_id} are not its first, or of after an eviction",
        )
    return num_tokens


def _check_prefix(state: State, event: ev.Share, request: SchedulerRequest) -> None:
    """Hold shared tokens to be the request's own first ones, and to leave one to compute."""
    num_tokens, block_size = len(event.vocab_ids), state.config.block_size
    known = tuple(request.vocab_ids[:num_tokens])
    is_partial = num_tokens % block_size != 0
    if (
        request.block_ids
        or request.num_tokens
        or len(event.block_ids) != -(-num_tokens // block_size)
        or not 0 < num_tokens < request.num_known
        or event.vocab_ids[: len(known)] != known
        or (state.is_async and is_partial)
    ):
        raise VTokenError(
            Rule.SHARE_PREFIX,
            f"{num_tokens} tokens in {len(event.block_ids)} blocks are no first blocks of {event.req_id}",
        )


def _check_content(state: State, event: ev.Share) -> tuple[str, ...]:
    """Return the fingerprints of the shared tokens; each block must hold them in its place."""
    block_size = state.config.block_size
    fingerprints: tuple[str, ...] = ()
    for index, block_id in enumerate(event.block_ids):
        prefix = state.pool.cached[block_id]
        last = min((index + 1) * block_size, len(event.vocab_ids))
        if (
            len(prefix.vocab_ids) > (index + 1) * block_size
            or prefix.vocab_ids[:last] != event.vocab_ids[:last]
        ):
            raise VTokenError(
                Rule.SHARE_PREFIX,
                f"block {block_id} holds other tokens than request {event.req_id} starts with",
            )
        fingerprints += prefix.fingerprints[index * block_size : last]
    return fingerprints
