"""A request as scheduler and worker know it, and the messages and reports under way.

Source: paper 3.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula

Function = Callable[[Formula], Any]


class Blocks(NamedTuple):
    """A block list: its blocks, and its slots."""

    names: Formula
    slots: Formula

    def plus(self, other: "Blocks") -> "Blocks":
        """Return this list and then the other."""
        return Blocks(z3.Concat(self.names, other.names), self.slots + other.slots)


SEQUENCE = z3.SeqSort(z3.IntSort())

NO_BLOCKS = Blocks(z3.Empty(SEQUENCE), z3.IntVal(0))


class Message(NamedTuple):
    """What a step message tells of the request, if the step computes any tokens of it."""

    has_request: Formula
    epoch: Formula
    query: Formula
    new: Blocks


class Report(NamedTuple):
    """What a report tells of the request."""

    epoch: Formula
    made_for: Blocks
    blocks: Blocks
    length: Formula


@dataclass(frozen=True, slots=True)
class State:
    """The request, as the two sides know it, and what is under way; steps are numbered from 1.

    Attributes:
        begun, started, reported, delivered: the last step of which that is so.
        is_running: the step started last has not ended.
        epoch, blocks, length: what the scheduler knows, tokens of all steps begun included.
        unsent: blocks appended since the last message.
        worker_epoch, worker_blocks, worker_length: what the worker knows.
        made_for: what the scheduler's list is, as the worker knows: with all reports sent so far.
        message, report: by step.

    """

    begun: Formula
    started: Formula
    reported: Formula
    delivered: Formula
    is_running: Formula
    epoch: Formula
    blocks: Blocks
    length: Formula
    unsent: Blocks
    worker_epoch: Formula
    worker_blocks: Blocks
    worker_length: Formula
    made_for: Blocks
    message: Callable[[Formula], Message]
    report: Callable[[Formula], Report]


class Choice(NamedTuple):
    """What an action is free to choose."""

    query: Formula
    blocks: Blocks
    length: Formula


def any_blocks(name: str) -> Blocks:
    """Return a list of which nothing is known."""
    return Blocks(z3.Const(f"{name}.names", SEQUENCE), z3.Int(f"{name}.slots"))


def any_choice(suffix: str = "") -> Choice:
    """Return a choice of which nothing is known."""
    return Choice(z3.Int(f"query{suffix}"), any_blocks(f"chosen{suffix}"), z3.Int(f"length{suffix}"))


def any_state() -> State:
    """Return a state of which nothing is known."""
    number = z3.IntSort()

    def of_step(name: str, sort: Any) -> Callable[[Formula], Formula]:
        function: Callable[[Formula], Formula] = z3.Function(name, number, sort)
        return function

    def blocks_of_step(name: str) -> Callable[[Formula], Blocks]:
        names, slots = of_step(f"{name}.names", SEQUENCE), of_step(f"{name}.slots", number)
        return lambda step: Blocks(names(step), slots(step))

    has, epoch = of_step("message.has_request", z3.BoolSort()), of_step("message.epoch", number)
    query, new = of_step("message.query", number), blocks_of_step("message.new")
    made_for, blocks = blocks_of_step("report.made_for"), blocks_of_step("report.blocks")
    report_epoch, length = of_step("report.epoch", number), of_step("report.length", number)
    return State(
        begun=z3.Int("begun"),
        started=z3.Int("started"),
        reported=z3.Int("reported"),
        delivered=z3.Int("delivered"),
        is_running=z3.Bool("is_running"),
        epoch=z3.Int("epoch"),
        blocks=any_blocks("blocks"),
        length=z3.Int("length"),
        unsent=any_blocks("unsent"),
        worker_epoch=z3.Int("worker_epoch"),
        worker_blocks=any_blocks("worker_blocks"),
        worker_length=z3.Int("worker_length"),
        made_for=any_blocks("made_for"),
        message=lambda step: Message(has(step), epoch(step), query(step), new(step)),
        report=lambda step: Report(report_epoch(step), made_for(step), blocks(step), length(step)),
    )


def is_empty(state: State) -> list[Formula]:
    """Say that nothing has happened yet."""
    zero = z3.IntVal(0)
    counters = [state.begun, state.started, state.reported, state.delivered, state.epoch, state.length]
    counters += [state.worker_epoch, state.worker_length, state.report(zero).epoch, state.report(zero).length]
    all_blocks = [state.blocks, state.unsent, state.worker_blocks, state.made_for, state.report(zero).blocks]
    return [
        z3.Not(state.is_running),
        *(counter == 0 for counter in counters),
        *(blocks.slots == 0 for blocks in all_blocks),
        *(z3.Length(blocks.names) == 0 for blocks in all_blocks),
    ]


def by_started(state: State, idle: Any, first: Any, second: Any) -> Any:
    """Choose by the step that the worker has started: none under way, the first, or the second."""
    return choose(
        state.started == state.delivered,
        idle,
        choose(state.started == state.delivered + 1, first, second),
    )


def choose(condition: Formula, one: Any, other: Any) -> Any:
    """Choose between two terms, or part by part between two of a kind."""
    if isinstance(one, tuple):
        parts = [choose(condition, this, that) for this, that in zip(one, other, strict=True)]
        return type(one)(*parts)
    return z3.If(condition, one, other)


def set_at(function: Function, key: Formula, value: Any) -> Function:
    """Return the function with another value at one place."""
    return lambda at: choose(at == key, value, function(at))


def swap_at(function: Function, one: Formula, other: Formula) -> Function:
    """Return the function with the values at two places exchanged."""
    return lambda at: function(z3.If(at == one, other, z3.If(at == other, one, at)))


def after_prefix(names: Formula, prefix: Formula) -> Formula:
    """Return a sequence without as many elements at its begin as the other has."""
    return z3.Extract(names, z3.Length(prefix), z3.Length(names) - z3.Length(prefix))


def steps_under_way(state: State) -> tuple[Formula, Formula]:
    """Return the steps that may be begun and not delivered; there are never more than two."""
    return state.delivered + 1, state.delivered + 2


def has_request(state: State, step: Formula) -> Formula:
    """Say that a step has begun with the request."""
    return z3.And(step <= state.begun, state.message(step).has_request)


def query_of(state: State, step: Formula) -> Formula:
    """Return how many tokens of the request a step computes."""
    return z3.If(has_request(state, step), state.message(step).query, 0)


def query_of_epoch(state: State, step: Formula) -> Formula:
    """Return how many tokens of the scheduler's epoch a step computes."""
    return z3.If(state.message(step).epoch == state.epoch, query_of(state, step), 0)


def length_at_end(state: State) -> Formula:
    """Return the worker's length when the step that it has started is done."""
    return state.worker_length + z3.If(state.is_running, query_of(state, state.started), 0)
