"""How a search may begin: with what is always the same already done, so that it gets further."""

from collections.abc import Callable, Iterator

from spec.runtime import Runtime
from vtoken_ref import events as ev

Opening = Callable[[Runtime], Iterator[ev.Event]]
"""Yields events, each of which is applied before the next one is asked for."""


def nothing(runtime: Runtime) -> Iterator[ev.Event]:
    """Begin at the beginning."""
    return iter(())


def admitted(runtime: Runtime) -> Iterator[ev.Event]:
    """Every request has entered."""
    for req_id in runtime.jobs:
        yield from runtime.admits(req_id)


def first_prefilled(runtime: Runtime) -> Iterator[ev.Event]:
    """Every request has entered, and the prompt of the first is computed."""
    yield from admitted(runtime)
    yield from _prefill(runtime, next(iter(runtime.jobs)))


def all_prefilled(runtime: Runtime) -> Iterator[ev.Event]:
    """Every request has entered, and the prompts are computed, one after another."""
    yield from admitted(runtime)
    for req_id in runtime.jobs:
        yield from _prefill(runtime, req_id)


def first_cached(runtime: Runtime) -> Iterator[ev.Event]:
    """The first request has entered, and its blocks are cached, as many as may be."""
    first = next(iter(runtime.jobs))
    yield from runtime.admits(first)
    yield from _prefill(runtime, first)
    num_full = len(runtime.jobs[first].prompt) // runtime.machine.config.block_size
    yield runtime.caches(first)[num_full - 1 if runtime.machine.is_async else -1]


def _prefill(runtime: Runtime, req_id: str) -> Iterator[ev.Event]:
    """Compute a prompt in as few steps as may be."""
    machine, num_prompt = runtime.machine, len(runtime.jobs[req_id].prompt)
    while machine.num_tokens(req_id) < num_prompt:
        most = machine.config.max_query if machine.is_async else num_prompt
        while runtime.most_query(req_id) < min(num_prompt - machine.num_tokens(req_id), most):
            yield ev.Alloc(req_id, (min(machine.pool.free_blocks),))
        yield next(
            event
            for event in runtime.begins()
            if isinstance(event, ev.Forward)
            and [read[0:3:2] for read in event.reads] == [(req_id, runtime.most_query(req_id))]
        )
        yield from runtime.starts()
        yield runtime.syncs(req_id)[-1]
        yield from runtime.ends()
        yield from runtime.reports()
        yield from runtime.delivers()
    yield from runtime.outputs(req_id)
