"""What is true of scheduler and worker in every state.

Source: paper 3.4.
"""

from collections.abc import Iterator

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.protocol_actions import Protocol
from spec.proofs.protocol_state import (
    NO_BLOCKS,
    Blocks,
    State,
    by_started,
    choose,
    has_request,
    length_at_end,
    query_of,
    query_of_epoch,
    steps_under_way,
)
from spec.proofs.prover import Formula


def epochs(state: State) -> tuple[Formula, Formula, Formula]:
    """Return the worker's epoch as of the last report delivered, and after the two steps since."""
    first, second = steps_under_way(state)
    delivered = state.report(state.delivered).epoch
    after_first = z3.If(has_request(state, first), state.message(first).epoch, delivered)
    after_second = z3.If(has_request(state, second), state.message(second).epoch, after_first)
    return delivered, after_first, after_second


def order(state: State) -> dict[str, Formula]:
    """Return what is true of the order of steps, messages, reports and epochs."""
    first, second = steps_under_way(state)
    delivered, after_first, after_second = epochs(state)
    return {
        "steps": z3.And(
            state.delivered >= 0,
            state.delivered <= state.reported,
            state.reported <= state.started,
            state.started <= state.begun,
            state.started <= state.reported + 1,
            z3.Implies(state.is_running, state.started == state.reported + 1),
        ),
        "epochs": z3.And(
            delivered <= state.epoch,
            z3.Implies(
                has_request(state, first), z3.And(delivered <= after_first, after_first <= state.epoch)
            ),
            z3.Implies(
                has_request(state, second), z3.And(after_first <= after_second, after_second <= state.epoch)
            ),
            z3.Implies(first <= state.reported, state.report(first).epoch == after_first),
            z3.Implies(second <= state.reported, state.report(second).epoch == after_second),
            state.worker_epoch == by_started(state, delivered, after_first, after_second),
        ),
    }


def depth_bound(model: Protocol, state: State) -> Formula:
    """Say that no more steps are under way than the async depth allows."""
    return state.begun <= state.delivered + 1 + model.depth


def lists(state: State, part: str) -> dict[str, Formula]:
    """Return what is true of block lists: of their blocks (``names``) or of their ``slots``."""
    first, second = steps_under_way(state)
    made_first, made_second = _made_for(state)
    told = state.report(state.delivered).blocks
    idle = state.report(state.reported).blocks
    known = choose(epochs(state)[0] == state.epoch, told, NO_BLOCKS)
    for step in (first, second):
        is_current = z3.And(has_request(state, step), state.message(step).epoch == state.epoch)
        known = known.plus(choose(is_current, state.message(step).new, NO_BLOCKS))
    is_idle = state.started == state.reported
    at_work = by_started(state, idle, made_first, made_second)

    def same(one: Blocks, other: Blocks) -> Formula:
        return getattr(one, part) == getattr(other, part)

    return {
        "report_base": z3.And(
            z3.Implies(first <= state.reported, same(state.report(first).made_for, made_first)),
            z3.Implies(second <= state.reported, same(state.report(second).made_for, made_second)),
            same(state.made_for, choose(is_idle, idle, at_work)),
        ),
        "worker_list": z3.Implies(is_idle, same(state.worker_blocks, idle)),
        "scheduler_list": same(state.blocks, known.plus(state.unsent)),
    }


def _made_for(state: State) -> tuple[Blocks, Blocks]:
    """Return the list that the worker is given up to and with each of the two steps."""
    first, second = steps_under_way(state)
    delivered, after_first, after_second = epochs(state)

    def given(step: Formula, epoch_before: Formula, epoch: Formula) -> Blocks:
        new = choose(has_request(state, step), state.message(step).new, NO_BLOCKS)
        known: Blocks = choose(epoch > epoch_before, NO_BLOCKS, state.report(step - 1).blocks)
        return known.plus(new)

    return given(first, delivered, after_first), given(second, after_first, after_second)


def lengths(state: State) -> dict[str, Formula]:
    """Return what is true of the two lengths."""
    told = z3.If(epochs(state)[0] == state.epoch, state.report(state.delivered).length, 0)
    under_way = [query_of_epoch(state, step) for step in steps_under_way(state)]
    is_idle = state.started == state.reported
    return {
        "worker_length": z3.Implies(is_idle, state.worker_length == state.report(state.reported).length),
        "scheduler_length": state.length == told + z3.Sum(under_way),
    }


def capacity(model: Protocol, state: State) -> dict[str, Formula]:
    """Return what is true of the slots that tokens need."""
    first, second = steps_under_way(state)
    at_end = length_at_end(state)
    return {
        "messages": z3.And(
            state.unsent.slots >= 0, *[_message_is_sound(model, state, step) for step in (first, second)]
        ),
        "covered_by_worker": z3.And(state.worker_length >= 0, at_end <= state.worker_blocks.slots),
        "covered_in_reports": z3.And(
            [
                z3.Implies(
                    step <= state.reported,
                    z3.And(
                        state.report(step).length >= 0,
                        state.report(step).length <= state.report(step).blocks.slots,
                    ),
                )
                for step in (state.delivered, first, second)
            ]
        ),
        "reserve_kept": z3.And(*_reserve_is_kept(model, state)),
        "covered_under_way": z3.And(_messages_fit(state)),
        "covered_by_scheduler": state.length <= state.blocks.slots,
    }


def _message_is_sound(model: Protocol, state: State, step: Formula) -> Formula:
    message = state.message(step)
    bound = z3.Implies(model.depth > 0, message.query <= model.max_query)
    return z3.Implies(has_request(state, step), z3.And(message.query >= 1, bound, message.new.slots >= 0))


def _reserve_is_kept(model: Protocol, state: State) -> Iterator[Formula]:
    """Say of the steps under way that the worker kept the reserve of what it was given."""
    made = _made_for(state)
    epoch_after = epochs(state)
    at_end = length_at_end(state)
    for index, step in enumerate(steps_under_way(state)):
        is_same = epoch_after[index] == epoch_after[index + 1]
        length = z3.If(is_same, state.report(step - 1).length, 0) + query_of(state, step)
        given = made[index].slots - length
        reported = state.report(step)
        yield z3.Implies(step <= state.reported, model.keeps(given, reported.blocks.slots - reported.length))
        yield z3.Implies(
            z3.And(state.started == step, state.reported < step),
            model.keeps(given, state.worker_blocks.slots - at_end),
        )


def _messages_fit(state: State) -> Iterator[Formula]:
    """Say that the tokens of messages on their way fit when the worker takes them."""
    length, slots, epoch = length_at_end(state), state.worker_blocks.slots, state.worker_epoch
    for step in (state.started + 1, state.started + 2):
        message = state.message(step)
        is_new = message.epoch > epoch
        has = has_request(state, step)
        length = z3.If(has, z3.If(is_new, 0, length) + message.query, length)
        slots = z3.If(has, z3.If(is_new, 0, slots) + message.new.slots, slots)
        epoch = z3.If(has, message.epoch, epoch)
        yield z3.Implies(has, length <= slots)


def invariants(model: Protocol, state: State) -> dict[str, dict[str, Formula]]:
    """Return all that is true in every state, in groups."""
    return {
        "order": {**order(state), "depth": depth_bound(model, state)},
        "names": lists(state, "names"),
        "slots": {f"{name}_slots": formula for name, formula in lists(state, "slots").items()},
        "lengths": lengths(state),
        "capacity": capacity(model, state),
    }


NEEDS = {
    "order": ("order",),
    "names": ("order", "names"),
    "slots": ("order", "slots"),
    "lengths": ("order", "lengths"),
    "capacity": ("order", "slots", "lengths", "capacity"),
}
"""Which groups are assumed to prove that a transition keeps another."""
