"""Agreement of scheduler and worker (I8): one request, any number of steps, async depth 0 and 1.

The scheduler sends a step message a step, the worker sends back a report a step, and both arrive in
order. A message tags the epoch and carries the blocks appended since the last one and how many tokens
are computed. A report is absolute and tags what it was made for; the scheduler replaces that and keeps
what it has appended since. Preemption, abort and finish end the epoch, with messages and reports under
way.

Proved is that the scheduler always has what the worker will have once everything under way has arrived,
and that the request's blocks cover every token that either of them puts there. A block list is its
blocks, as a sequence, and its slots, S times their number, as a number that adds up; so the proofs hold
for every block size S. At depth 1 a relocation must keep some unwritten slots (``reserve``): exactly
enough for the one step that may be under way.

What the actions are stands in ``protocol_actions``, what is always true in ``protocol_invariants``; the
fences of the pool are apart, in ``protocol_fences``.

Source: paper 3.4.
Differs from source: the paper does not say how scheduler and worker agree.
"""

from collections.abc import Iterator
from functools import partial

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs import protocol_fences
from spec.proofs.protocol_actions import GUARDS, Protocol
from spec.proofs.protocol_fences import proofs_of_fences
from spec.proofs.protocol_invariants import NEEDS, invariants, lengths
from spec.proofs.protocol_runs import proofs_of_runs
from spec.proofs.protocol_state import (
    NO_BLOCKS,
    SEQUENCE,
    Blocks,
    Choice,
    Report,
    State,
    after_prefix,
    any_choice,
    any_state,
    choose,
    has_request,
    is_empty,
    query_of,
    query_of_epoch,
    steps_under_way,
)
from spec.proofs.prover import Formula, Proof
from spec.proofs.words import text

ALL_GUARDS = {**GUARDS, **protocol_fences.GUARDS}

AGREEMENT = ("I8", "VT-MSG-001", "VT-MSG-002", "VT-MSG-003", "VT-REQ-002")
CAPACITY = ("I8", "VT-REQ-003", "VT-REQ-004", "VT-REQ-009", "VT-MSG-004")


def guards() -> tuple[str, ...]:
    """Return the names of the guards, each of which can be left out."""
    return tuple(ALL_GUARDS)


def proofs(without: str | None = None) -> list[Proof]:
    """Return the proofs of the protocol.

    Args:
        without: a guard to leave out; some proofs are then refuted.

    Raises:
        ValueError: there is no guard of that name.

    """
    if without is not None and without not in ALL_GUARDS:
        raise ValueError(f"there is no guard {without}; there are {', '.join(ALL_GUARDS)}")
    model = Protocol(without)
    return [
        *_inductive(model),
        *_agreement(model),
        *_lemmas(model),
        *_reserve_is_enough(model),
        _reserve_is_needed(model),
        *proofs_of_runs(model, AGREEMENT),
        *proofs_of_fences(without),
    ]


# The proofs.


def _inductive(model: Protocol) -> Iterator[Proof]:
    """What holds in every state holds in the empty one, and every transition keeps it."""
    before, choice = any_state(), any_choice()
    groups = invariants(model, before)
    empty = {"settings": model.settings, "empty": z3.And(is_empty(before))}
    assumed = {group: _assumed(model, groups, group) for group in NEEDS}
    assumed["names"]["lists.suffix"] = _suffix_of_scheduler_list(before)
    for group, formulas in groups.items():
        yield Proof(f"protocol.initial.{group}", _covers(group), z3.And(list(formulas.values())), empty)
    for action in model.actions(before, choice):
        for group, formulas in invariants(model, action.after).items():
            assumptions = {**assumed[group], action.name: action.requires}
            for name, goal in formulas.items():
                yield Proof(
                    f"protocol.{action.name}.{name}",
                    _covers(group),
                    goal,
                    assumptions,
                    shown=partial(_shown, model, before, choice),
                    example=before.begun > 1,
                )


def _assumed(model: Protocol, groups: dict[str, dict[str, Formula]], group: str) -> dict[str, Formula]:
    needed = {name: formula for need in NEEDS[group] for name, formula in groups[need].items()}
    return {"settings": model.settings, **needed}


def _covers(group: str) -> tuple[str, ...]:
    return CAPACITY if group == "capacity" else AGREEMENT


def _suffix_of_scheduler_list(state: State) -> Formula:
    """Return what ``protocol.lists.suffix`` says of the list that a report replaces the begin of."""
    second = steps_under_way(state)[1]
    is_current = z3.And(has_request(state, second), state.message(second).epoch == state.epoch)
    since = choose(is_current, state.message(second).new, NO_BLOCKS).plus(state.unsent).names
    made_for = state.report(state.delivered + 1).made_for.names
    whole = state.blocks.names == z3.Concat(made_for, since)
    return z3.Implies(whole, after_prefix(state.blocks.names, made_for) == since)


def _agreement(model: Protocol) -> Iterator[Proof]:
    """What all of it is for."""
    state = any_state()
    groups = invariants(model, state)
    settings = {"settings": model.settings}
    is_told = state.report(state.delivered).epoch == state.epoch
    quiet = {**settings, **groups["order"], "nothing_under_way": state.delivered == state.begun}
    known = state.worker_blocks.plus(state.unsent)
    yield Proof(
        "protocol.agreement.lists",
        AGREEMENT,
        z3.If(is_told, state.blocks.names == known.names, state.blocks.names == state.unsent.names),
        {**quiet, **groups["names"]},
    )
    yield Proof(
        "protocol.agreement.lengths",
        AGREEMENT,
        z3.If(is_told, state.length == state.worker_length, state.length == 0),
        {**quiet, **groups["lengths"]},
    )
    report = state.report(state.delivered + 1)
    arrives = {
        "arrives": z3.And(state.delivered + 1 <= state.reported, report.epoch == state.epoch),
    }
    yield Proof(
        "protocol.agreement.report_base",
        AGREEMENT,
        z3.PrefixOf(report.made_for.names, state.blocks.names),
        {**settings, **groups["order"], **groups["names"], **arrives},
    )
    yield Proof(
        "protocol.capacity.worker",
        CAPACITY,
        state.worker_length + query_of(state, state.started) <= state.worker_blocks.slots,
        {**settings, **groups["order"], **groups["capacity"], "runs": state.is_running},
    )
    yield Proof(
        "protocol.agreement.report_repairs_length",
        AGREEMENT,
        lengths(model.deliver(state, any_choice()).after)["scheduler_length"],
        {**settings, **groups["order"], **arrives},
        shown={
            "length before": state.length,
            "length reported": report.length,
            "tokens begun since": query_of_epoch(state, state.delivered + 2),
            "length after": model.deliver(state, any_choice()).after.length,
        },
    )


def _lemmas(model: Protocol) -> Iterator[Proof]:
    """About lists alone: merging is right, adds up, and an unchanged request needs no report."""
    kept, made_for, since = (z3.Const(name, SEQUENCE) for name in ("kept", "made_for", "since"))
    slots = z3.Ints("kept_slots made_for_slots since_slots")
    report = Report(z3.IntVal(0), Blocks(made_for, slots[1]), Blocks(kept, slots[0]), z3.IntVal(0))
    current = Blocks(z3.Concat(made_for, since), slots[1] + slots[2])
    merged = model.merged(current, report)
    covers = AGREEMENT
    shown = {"made_for": made_for, "kept": kept, "appended since": since, "merged": merged.names}
    whole = z3.Concat(kept, since)
    yield Proof("protocol.lists.merge", covers, merged.names == whole, shown=shown)
    yield Proof("protocol.lists.merge_slots", covers, merged.slots == slots[0] + slots[2], shown=shown)
    yield Proof("protocol.lists.suffix", covers, after_prefix(z3.Concat(made_for, since), made_for) == since)
    size = z3.Int("block_size")
    yield Proof(
        "protocol.lists.slots_add_up",
        covers,
        size * z3.Length(z3.Concat(kept, since)) == size * z3.Length(kept) + size * z3.Length(since),
    )
    unchanged = Report(z3.IntVal(0), report.made_for, report.made_for, z3.IntVal(0))
    yield Proof(
        "protocol.lists.unchanged_needs_no_report",
        covers,
        model.merged(current, unchanged).names == current.names,
    )


def _reserve_is_enough(model: Protocol) -> Iterator[Proof]:
    """In numbers alone: what is under way fits, at depth 1 and at any other."""
    before, after, query, new, under_way = z3.Ints("slots_before slots_after query new_slots under_way")
    depth, most = z3.Ints("any_depth max_query")
    covers = CAPACITY
    sound = z3.And(before >= 0, after >= 0, query >= 1, query <= most, new >= 0)
    kept = z3.Or(after >= before, after >= most) if model.has("reserve") else z3.BoolVal(True)
    yield Proof(
        "protocol.reserve.is_enough",
        covers,
        query <= after + new,
        {"sound": sound, "scheduled": query <= before + new, "kept": kept},
        shown={"slots_before": before, "slots_after": after, "query": query, "new_slots": new},
    )
    yield Proof(
        "protocol.reserve.at_any_depth",
        covers,
        under_way <= after + new,
        {
            "sound": z3.And(before >= 0, after >= 0, new >= 0, depth >= 0),
            "scheduled": z3.And(under_way <= before + new, under_way <= depth * most),
            "kept": z3.Or(after >= before, after >= depth * most),
        },
    )


def _reserve_is_needed(model: Protocol) -> Proof:
    """For each relocation that keeps less, the scheduler may begin a step that does not fit any more."""
    state, choice = any_state(), any_choice()
    groups = invariants(model, state)
    slots_before = state.worker_blocks.slots - state.worker_length
    slots_after = choice.blocks.slots - choice.length
    query = z3.If(slots_before <= model.max_query, slots_before, model.max_query)
    begin = model.begin(state, choice._replace(query=query))
    window = z3.And(
        model.depth == 1,
        state.begun == state.started,
        state.started == state.reported + 1,
        state.reported == state.delivered,
        z3.Not(state.is_running),
    )
    is_known = z3.And(state.worker_epoch == state.epoch, state.blocks.slots - state.length == slots_before)
    return Proof(
        "protocol.reserve.is_needed",
        CAPACITY,
        z3.And(begin.requires, choice.length + query > choice.blocks.slots),
        {
            "settings": model.settings,
            **groups["order"],
            **groups["capacity"],
            "window": window,
            "scheduler_knows": is_known,
            "kept_less": z3.And(slots_after >= 0, slots_after < slots_before, slots_after < model.max_query),
        },
    )


def _shown(model: Protocol, state: State, choice: Choice) -> dict[str, Formula]:
    return {
        "depth": model.depth,
        "max_query": model.max_query,
        "begun": state.begun,
        "started": state.started,
        "reported": state.reported,
        "delivered": state.delivered,
        "scheduler": _side(state.epoch, state.blocks, state.length),
        "worker": _side(state.worker_epoch, state.worker_blocks, state.worker_length),
        "query": choice.query,
        "new_length": choice.length,
        "new_slots": choice.blocks.slots,
    }


def _side(epoch: Formula, blocks: Blocks, length: Formula) -> Formula:
    slots = z3.IntToStr(blocks.slots)
    return text("epoch ", z3.IntToStr(epoch), ", ", slots, " slots, length ", z3.IntToStr(length))
