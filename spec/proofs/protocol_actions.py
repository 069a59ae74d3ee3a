"""What scheduler and worker do, and what each of it requires; the guards can be left out one by one.

Source: paper 3.4.
"""

from dataclasses import replace
from typing import NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.protocol_state import (
    NO_BLOCKS,
    Blocks,
    Choice,
    Message,
    Report,
    State,
    after_prefix,
    choose,
    query_of,
    query_of_epoch,
    set_at,
    swap_at,
)
from spec.proofs.prover import Formula

GUARDS = {
    "capacity": "a step begins only when the blocks cover its tokens, as far as the scheduler knows",
    "max_query": "at depth 1 a step computes at most max_query tokens of a request",
    "steps_in_flight": "at most depth + 1 steps are begun and not delivered",
    "reserve": "a relocation keeps min(unwritten slots at the end, max_query) of them at depth 1",
    "decide_before_report": "the worker relocates only between the end of a step and its report",
    "messages_in_order": "step messages arrive in the order in which they were sent",
    "reports_in_order": "reports arrive in the order in which they were sent",
    "epoch_grows": "losing all blocks begins a new epoch",
    "message_epoch": "a message tags its epoch; the worker starts afresh on a new one",
    "report_epoch": "a report tags its epoch; the scheduler drops one of an old epoch",
    "report_made_for": "a report tags the list that it was made for, which is what it replaces",
    "report_blocks": "a report names the blocks that are kept, not only how many",
    "report_length": "a report tells the length",
    "length_is_absolute": "the length is told as it is, not as a difference",
    "appended_kept": "the scheduler keeps the blocks that it has appended since",
    "in_flight_counted": "the scheduler adds the tokens of the steps begun since",
}


class Action(NamedTuple):
    """A transition: what it requires, which includes the guards that are on, and the state after it."""

    name: str
    requires: Formula
    after: State


class Protocol:
    """The transition system with one guard left out or none.

    Attributes:
        depth: steps that the scheduler is ahead of the worker's reports, 0 or 1.
        max_query: the most tokens of the request in one step at depth 1.

    """

    def __init__(self, without: str | None) -> None:
        self.without = without
        self.depth, self.max_query = z3.Ints("depth max_query")
        self.settings = z3.And(self.depth >= 0, self.depth <= 1, self.max_query >= 1)

    def has(self, guard: str) -> bool:
        """Tell whether a guard is on."""
        return guard != self.without

    def guard(self, name: str, formula: Formula) -> Formula:
        """Return what a guard requires: nothing where it is left out."""
        return formula if self.has(name) else z3.BoolVal(True)

    def actions(self, before: State, choice: Choice) -> list[Action]:
        """Return all transitions; the channels reorder only where a guard is left out."""
        actions = [
            self.append(before, choice),
            self.begin(before, choice),
            self.begin_without(before, choice),
            self.start(before, choice),
            self.end(before, choice),
            self.relocate(before, choice),
            self.send_report(before, choice),
            self.deliver(before, choice),
            self.end_epoch(before, choice),
        ]
        if not self.has("messages_in_order"):
            actions.append(self.swap_messages(before, choice))
        if not self.has("reports_in_order"):
            actions.append(self.swap_reports(before, choice))
        return actions

    def append(self, before: State, choice: Choice) -> Action:
        """The scheduler appends blocks to the request's list."""
        after = replace(
            before, blocks=before.blocks.plus(choice.blocks), unsent=before.unsent.plus(choice.blocks)
        )
        return Action("append", choice.blocks.slots >= 0, after)

    def _may_begin(self, state: State) -> Formula:
        return self.guard("steps_in_flight", state.begun - state.delivered <= self.depth)

    def begin(self, before: State, choice: Choice) -> Action:
        """The scheduler begins a step with the request: tokens and new blocks go into a message."""
        query, step = choice.query, before.begun + 1
        requires = z3.And(
            self._may_begin(before),
            query >= 1,
            self.guard("max_query", z3.Implies(self.depth > 0, query <= self.max_query)),
            self.guard("capacity", before.length + query <= before.blocks.slots),
        )
        after = replace(
            before,
            begun=step,
            length=before.length + query,
            unsent=NO_BLOCKS,
            message=set_at(
                before.message, step, Message(z3.BoolVal(True), before.epoch, query, before.unsent)
            ),
        )
        return Action("begin", requires, after)

    def begin_without(self, before: State, choice: Choice) -> Action:
        """The scheduler begins a step of other requests."""
        step = before.begun + 1
        nothing = Message(z3.BoolVal(False), before.epoch, z3.IntVal(0), NO_BLOCKS)
        after = replace(before, begun=step, message=set_at(before.message, step, nothing))
        return Action("begin_without", self._may_begin(before), after)

    def start(self, before: State, choice: Choice) -> Action:
        """The worker takes the oldest message."""
        step = before.started + 1
        message = before.message(step)
        is_new = message.epoch > before.worker_epoch if self.has("message_epoch") else z3.BoolVal(False)
        afresh = z3.And(message.has_request, is_new)
        new = choose(message.has_request, message.new, NO_BLOCKS)
        after = replace(
            before,
            started=step,
            is_running=z3.BoolVal(True),
            worker_epoch=choose(message.has_request, message.epoch, before.worker_epoch),
            worker_blocks=choose(afresh, NO_BLOCKS, before.worker_blocks).plus(new),
            worker_length=choose(afresh, z3.IntVal(0), before.worker_length),
            made_for=choose(afresh, NO_BLOCKS, before.made_for).plus(new),
        )
        requires = z3.And(before.started == before.reported, step <= before.begun)
        return Action("start", requires, after)

    def end(self, before: State, choice: Choice) -> Action:
        """The forward ends; its tokens are there."""
        length = before.worker_length + query_of(before, before.started)
        after = replace(before, is_running=z3.BoolVal(False), worker_length=length)
        return Action("end", before.is_running, after)

    def relocate(self, before: State, choice: Choice) -> Action:
        """The worker moves tokens, gives up blocks, takes leased ones: any list and length that fit."""
        slots_before = before.worker_blocks.slots - before.worker_length
        slots_after = choice.blocks.slots - choice.length
        is_window = z3.And(before.started == before.reported + 1, z3.Not(before.is_running))
        requires = z3.And(
            z3.Not(before.is_running),
            self.guard("decide_before_report", is_window),
            choice.length >= 0,
            choice.length <= before.worker_length,
            slots_after >= 0,
            self.guard("reserve", self.keeps(slots_before, slots_after)),
        )
        after = replace(before, worker_blocks=choice.blocks, worker_length=choice.length)
        return Action("relocate", requires, after)

    def keeps(self, slots_before: Formula, slots_after: Formula) -> Formula:
        """Say that enough unwritten slots are kept at the request's end."""
        reserve = z3.If(self.depth == 0, 0, self.max_query)
        return z3.Or(slots_after >= slots_before, slots_after >= reserve)

    def send_report(self, before: State, choice: Choice) -> Action:
        """The worker reports the step."""
        report = Report(before.worker_epoch, before.made_for, before.worker_blocks, before.worker_length)
        after = replace(
            before,
            reported=before.started,
            made_for=before.worker_blocks,
            report=set_at(before.report, before.started, report),
        )
        requires = z3.And(before.started == before.reported + 1, z3.Not(before.is_running))
        return Action("send_report", requires, after)

    def deliver(self, before: State, choice: Choice) -> Action:
        """The scheduler takes the oldest report."""
        step = before.delivered + 1
        report = before.report(step)
        is_current = report.epoch == before.epoch if self.has("report_epoch") else z3.BoolVal(True)
        after = replace(
            before,
            delivered=step,
            blocks=choose(is_current, self.merged(before.blocks, report), before.blocks),
            length=choose(is_current, self._merged_length(before, step), before.length),
        )
        return Action("deliver", step <= before.reported, after)

    def merged(self, blocks: Blocks, report: Report) -> Blocks:
        """Replace what the report was made for, keep what was appended since; or get it wrong."""
        if not self.has("appended_kept"):
            return report.blocks
        num_kept, made_for = z3.Length(report.blocks.names), report.made_for
        kept = report.blocks
        if not self.has("report_blocks"):
            kept = Blocks(z3.Extract(made_for.names, 0, num_kept), kept.slots)
        if not self.has("report_made_for"):
            made_for = Blocks(z3.Extract(blocks.names, 0, num_kept), kept.slots)
        since = Blocks(after_prefix(blocks.names, made_for.names), blocks.slots - made_for.slots)
        return kept.plus(since)

    def _merged_length(self, before: State, step: Formula) -> Formula:
        report, last = before.report(step), before.report(step - 1)
        since = query_of_epoch(before, step + 1)
        if not self.has("report_length"):
            return before.length
        if not self.has("in_flight_counted"):
            return report.length
        if not self.has("length_is_absolute"):
            was = z3.If(last.epoch == report.epoch, last.length, 0) + query_of(before, step)
            return before.length - (was - report.length)
        return report.length + since

    def end_epoch(self, before: State, choice: Choice) -> Action:
        """The request is preempted, aborted or finished, and may come back with nothing."""
        epoch = before.epoch + 1 if self.has("epoch_grows") else before.epoch
        after = replace(before, epoch=epoch, blocks=NO_BLOCKS, length=z3.IntVal(0), unsent=NO_BLOCKS)
        return Action("end_epoch", z3.BoolVal(True), after)

    def swap_messages(self, before: State, choice: Choice) -> Action:
        """A channel without order: the second message overtakes the first."""
        first, second = before.started + 1, before.started + 2
        after = replace(before, message=swap_at(before.message, first, second))
        return Action("swap_messages", second <= before.begun, after)

    def swap_reports(self, before: State, choice: Choice) -> Action:
        """A channel without order: the second report overtakes the first."""
        first, second = before.delivered + 1, before.delivered + 2
        after = replace(before, report=swap_at(before.report, first, second))
        return Action("swap_reports", second <= before.reported, after)
