"""Runs of the protocol from the empty state, whose order of actions is fixed: schedules of its faults.

Source: paper 3.4.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.protocol_actions import Action, Protocol
from spec.proofs.protocol_state import Blocks, Choice, State, any_choice, any_state, is_empty, length_at_end
from spec.proofs.prover import Formula, Proof
from spec.proofs.words import text

SCRIPTS = {
    "relocated_under_way": (
        "append begin append begin start end relocate send_report deliver begin"
        " start end send_report deliver start end send_report deliver"
    ),
    "begun_before_relocation": "append begin append begin start end relocate send_report start end",
    "appended_under_way": "append begin start end relocate send_report append deliver begin start end",
    "preempted_under_way": (
        "append begin start end relocate send_report end_epoch append begin deliver"
        " start end send_report deliver"
    ),
}

SCRIPTS_WITHOUT = {
    "steps_in_flight": "append begin begin begin start end relocate send_report start end send_report start",
    "decide_before_report": (
        "append begin start end send_report deliver begin begin relocate start end send_report start"
    ),
    "messages_in_order": "append begin append begin swap_messages start end send_report deliver",
    "reports_in_order": (
        "append begin begin start end relocate send_report start end relocate send_report"
        " swap_reports deliver"
    ),
}
"""What only happens where a guard is left out."""

BLOCK_SIZE = 2
MAX_BLOCKS = 3
MAX_QUERY = 2


def proofs_of_runs(model: Protocol, covers: tuple[str, ...]) -> Iterator[Proof]:
    """Return that no run of a script comes to a problem."""
    scripts = dict(SCRIPTS)
    if model.without in SCRIPTS_WITHOUT:
        scripts[f"without_{model.without}"] = SCRIPTS_WITHOUT[model.without]
    limits = f"block size {BLOCK_SIZE}, up to {MAX_BLOCKS} blocks a choice, max_query up to {MAX_QUERY}"
    for name, script in scripts.items():
        run = _Run(model, script.split())
        yield Proof(
            f"protocol.run.{name}",
            covers,
            z3.Not(run.has_problem()),
            {"settings": model.settings, "run": z3.And(run.rules)},
            f"runs of {script.replace(' ', ', ')}; {limits}",
            run.shown,
        )


class _Step(NamedTuple):
    """An action of a run, by its name; ``happens`` is false after the first problem."""

    name: str
    choice: Choice
    happens: Formula
    after: State
    problems: dict[str, Formula]


class _Run:
    """A run of a script, up to the first problem; what the actions choose is for Z3."""

    def __init__(self, model: Protocol, script: Sequence[str]) -> None:
        self.max_query = model.max_query
        self.steps: list[_Step] = []
        state, happens = any_state(), z3.BoolVal(True)
        self.rules = [*is_empty(state), model.depth == 1, model.max_query <= MAX_QUERY]
        for index, name in enumerate(script):
            choice = any_choice(f"_{index}")
            action: Action = getattr(model, name)(state, choice)
            size = z3.Length(choice.blocks.names)
            is_sound = z3.And(choice.blocks.slots == BLOCK_SIZE * size, size <= MAX_BLOCKS)
            self.rules.append(z3.Implies(happens, z3.And(action.requires, is_sound)))
            problems = _problems(state, action)
            self.steps.append(_Step(name, choice, happens, action.after, problems))
            state, happens = action.after, z3.And(happens, z3.Not(z3.Or(list(problems.values()))))

    def has_problem(self) -> Formula:
        """Say that something is wrong after one of the steps."""
        return z3.Or([z3.And(step.happens, z3.Or(list(step.problems.values()))) for step in self.steps])

    def shown(self) -> dict[str, Formula]:
        """Return the run and its problem in words."""
        schedule = problem = text("")
        for step in self.steps:
            schedule = z3.If(step.happens, text(schedule, _line(step.name, step.choice), "; "), schedule)
            for words, is_so in step.problems.items():
                told = text(f"{words}; ", *_sides(step.after))
                problem = z3.If(z3.And(step.happens, is_so), told, problem)
        return {"schedule": schedule, "problem": problem, "max_query": self.max_query}


def _problems(before: State, action: Action) -> dict[str, Formula]:
    """Return, by words for it, what must not be after an action."""
    state = action.after
    is_quiet = z3.And(state.delivered == state.begun, state.worker_epoch == state.epoch)
    known = z3.Concat(state.worker_blocks.names, state.unsent.names)
    problems = {
        "the worker's blocks do not cover the step": length_at_end(state) > state.worker_blocks.slots,
        "the block lists differ": z3.And(is_quiet, state.blocks.names != known),
        "the lengths differ": z3.And(is_quiet, state.length != state.worker_length),
    }
    if action.name == "deliver":
        report = before.report(state.delivered)
        is_base = z3.PrefixOf(report.made_for.names, before.blocks.names)
        problems["the report was made for another list"] = z3.And(
            report.epoch == before.epoch, z3.Not(is_base)
        )
    return problems


def _line(name: str, choice: Choice) -> Formula:
    blocks = _blocks_text(choice.blocks)
    parts: dict[str, tuple[Formula | str, ...]] = {
        "append": ("append", blocks),
        "begin": ("begin, computing ", z3.IntToStr(choice.query)),
        "relocate": ("relocate to", blocks, ", length ", z3.IntToStr(choice.length)),
    }
    return text(*parts.get(name, (name.replace("_", " "),)))


def _sides(state: State) -> tuple[Formula | str, ...]:
    return (
        "scheduler has blocks",
        _blocks_text(state.blocks),
        " and length ",
        z3.IntToStr(state.length),
        ", worker has blocks",
        _blocks_text(state.worker_blocks),
        " and length ",
        z3.IntToStr(length_at_end(state)),
    )


def _blocks_text(blocks: Blocks) -> Formula:
    count = z3.Length(blocks.names)
    parts = [
        z3.If(count > index, text(" ", z3.IntToStr(blocks.names[index])), z3.StringVal(""))
        for index in range(3 * MAX_BLOCKS)
    ]
    return z3.If(count == 0, z3.StringVal(" none"), text(*parts))
