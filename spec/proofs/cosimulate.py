"""One event in one state, in the executable spec and in the relocation model: do they agree?

They agree when each transition that the spec makes is one that the model allows, with the state after
it that the model says, and when the spec refuses, for a reason that the model knows, only what the
model refuses too. What the model does not speak of is listed with its reason.

Source: paper 3.2 to 3.5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs import invariants
from spec.proofs.abstraction import PARTIAL, Abstraction, Elements, Table, elements_of, tickets_of
from spec.proofs.evaluator import Evaluated, evaluator
from spec.proofs.reading import UNCHANGED, InexpressibleError, Reading, extend, read
from spec.proofs.state import BEFORE, SIGNATURES, SORT_NAMES
from spec.proofs.transition import Transition
from vtoken_ref import events as ev
from vtoken_ref.machine import Machine
from vtoken_ref.rules import Rule, VTokenError

OF_ONE_EPOCH = (
    "lease",
    "share",
    "cache",
    "release",
    "preempt",
    "finish",
    "begin",
    "evict",
    "sync",
    "recycle",
)

GUARDS_OF: dict[tuple[str, Rule], tuple[str, ...]] = {
    ("admit", Rule.REQUEST_EXISTS): ("not_alive", "never_ended"),
    ("alloc", Rule.UNKNOWN_REQUEST): ("alive",),
    ("alloc", Rule.NOT_FREE): ("free",),
    ("lease", Rule.NOT_FREE): ("free",),
    ("lease", Rule.HEADROOM): ("headroom",),
    ("share", Rule.NOT_CACHED): ("cached", "not_fenced"),
    ("cache", Rule.CACHE_BUSY): ("no_plan", "not_in_forward"),
    ("release", Rule.NOT_HELD): ("had",),
    ("release", Rule.BLOCK_STILL_LIVE): ("no_live_token", "not_in_plan"),
    ("release", Rule.LAYOUT_DURING_FORWARD): ("not_in_forward",),
    ("free", Rule.NOT_FENCED): ("fenced",),
    ("free", Rule.FENCE): ("steps_are_over", "copies_are_over"),
    ("begin", Rule.SHARED_WRITE): ("private",),
    ("sync", Rule.SYNC_OUTSIDE_FORWARD): ("in_forward", "where_the_forward_writes"),
    ("sync", Rule.SLOT_OCCUPIED): ("where_the_forward_writes",),
    ("sync", Rule.SLOT_MISMATCH): ("where_the_forward_writes",),
    ("sync", Rule.RECYCLE): ("where_the_forward_writes",),
    ("recycle", Rule.SYNC_OUTSIDE_FORWARD): ("in_forward", "announced"),
    ("recycle", Rule.SLOT_OCCUPIED): ("announced", "listed", "dead_slot", "private"),
    ("recycle", Rule.RECYCLE): ("announced", "private", "clear_of_the_plan"),
    ("evict", Rule.UNKNOWN_TOKEN): ("live",),
    ("evict", Rule.EVICTED_TWICE): ("live",),
    ("evict", Rule.PROTECTED_TOKEN): ("not_in_forward", "not_in_a_source"),
    ("plan_out_of_place", Rule.PLAN_TOKEN_LOST): ("none_is_left_behind",),
    ("plan_copy_on_write", Rule.PLAN_TOKEN_LOST): ("none_is_left_behind",),
    ("copy", Rule.COPY_NOT_PLANNED): ("planned", "once"),
    ("copy", Rule.COPY_ORDER): ("spares_the_uncopied",),
    ("commit", Rule.COMMIT_BEFORE_COPY): ("all_copied",),
    ("cancel", Rule.CANCEL_OVERWRITTEN): ("nothing_overwritten",),
    **{
        (name, rule): ("present_epoch",)
        for name in (
            "lease",
            "share",
            "cache",
            "release",
            "preempt",
            "finish",
            "begin",
            "evict",
            "sync",
            "recycle",
        )
        for rule in (Rule.UNKNOWN_REQUEST, Rule.STALE_EPOCH)
    },
    **{
        (name, rule): guards
        for name, guards in {"copy": ("in_flight",), "commit": ("in_flight", "present_epoch")}.items()
        for rule in (Rule.UNKNOWN_REQUEST, Rule.STALE_EPOCH, Rule.UNKNOWN_PLAN)
    },
    **{
        (name, rule): guards
        for name in ("plan_out_of_place", "plan_in_place", "plan_copy_on_write")
        for rule, guards in {
            Rule.UNKNOWN_REQUEST: ("present_epoch",),
            Rule.STALE_EPOCH: ("present_epoch",),
            Rule.PLAN_OVERLAP: ("no_other_plan",),
            Rule.UNKNOWN_TOKEN: ("moves_start_where_the_token_is",),
            Rule.STALE_SOURCE: ("moves_start_where_the_token_is",),
            Rule.SLOT_USED_TWICE: ("targets_are_distinct", "moves_start_where_the_token_is"),
        }.items()
    },
    **{
        (name, rule): guards
        for name in ("plan_out_of_place", "plan_in_place")
        for rule, guards in {
            Rule.PLAN_SHARED: ("sources_are_private",),
            Rule.DEAD_MOVE: ("live_tokens_move",),
            Rule.PLAN_NO_GAIN: ("blocks_are_gained",),
        }.items()
    },
}
"""What a refusal means: one of these guards of the transition is false."""

OUTSIDE: dict[Rule, str] = {
    Rule.UNKNOWN_REQUEST: "cancelling a plan that is not in flight changes nothing",
    Rule.STALE_EPOCH: "cancelling a plan that is not in flight changes nothing",
    Rule.TRACE_FIELD: "fields of a trace",
    Rule.TRACE_COUNTS: "counts of a trace",
    Rule.TRACE_AFTER_END: "the model has no end of a run",
    Rule.REQUEST_LEFT: "the model has no end of a run",
    Rule.LEAK: "the model has no end of a run",
    Rule.TOKEN_DIFFERS: "vocabulary ids",
    Rule.OUTPUT_UNKNOWN: "vocabulary ids",
    Rule.COPY_BYTES: "byte counts",
    Rule.COMMIT_DIFFERS: "the model's commit carries no moves of its own",
    Rule.KV_BEFORE: "digests; the model compares memory itself",
    Rule.KV_CHANGED: "digests; the model compares memory itself",
    Rule.KV_VISIBLE: "digests; the model compares memory itself",
    Rule.CACHE_PREFIX: "positions in the prefix, and what was computed before an eviction",
    Rule.SHARE_PREFIX: "vocabulary ids; that the request has no block and no token is in the model",
    Rule.NOT_CACHED: "uncaching twice changes nothing",
    Rule.UNKNOWN_PLAN: "cancelling a plan that is not in flight changes nothing",
    Rule.PLAN_STRATEGY: "the configuration of a run",
    Rule.PLAN_SOURCES: "that a plan is worth making; that sources are listed is in the model",
    Rule.PLAN_DESTINATIONS: "the number of destinations; that they are leased or sources is in the model",
    Rule.PLAN_ORDER: "the order of tokens (I7); that targets are distinct is in the model",
    Rule.PLAN_TOKEN_LOST: "in place, that a token moves up in a block where it could stay",
    Rule.PLAN_PACKED: "the shape of a layout (I7)",
    Rule.TOKEN_IDS: "the order of tokens (I7); that a token is new is in the model",
    Rule.SLOT_MISMATCH: "the resident length; a slot beyond it is no dead slot",
    Rule.LENGTH_MISMATCH: "lengths (I8)",
    Rule.BLOCK_LIST_SHORT: "lengths (I8)",
    Rule.CAPACITY: "lengths (I8)",
    Rule.BUDGET_EXCEEDED: "budgets (I8)",
    Rule.STEP_ORDER: "numbers of steps; that one forward runs at a time is in the model",
    Rule.FORWARD_DURING_PLAN: "under packed, what attention would read (I3)",
    Rule.LAYOUT_DURING_FORWARD: "what a forward reads, and the end at which it writes (I5)",
    Rule.COPY_OVER_READ: "what a forward reads (I5)",
    Rule.BACKPRESSURE: "progress (I9)",
    Rule.DEFER: "progress (I9)",
    Rule.LEASE_ORDER: "progress (I9)",
    Rule.HEADROOM_RESERVED: "progress (I9)",
    Rule.NOT_ELIGIBLE: "progress (I9)",
    Rule.RATE_LIMIT: "progress (I9)",
}
"""Guards of the spec without a counterpart in the model, with the reason.

The model may allow what they refuse.
A rule that also stands in ``GUARDS_OF`` is outside only where it does not stand there.
"""


_RULES = {rule.id: rule for rule in Rule}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an event.

    Attributes:
        transitions: of the model, that the event is or could have been; none when it has no word for it.
        accepted: whether the spec accepts it.
        problem: what the spec and the model do not agree on; empty when they agree.
        is_outside: refused for a reason that the model does not know.
        decisive: guards of the model, with their transitions, without which it would not refuse as well.

    """

    transitions: tuple[str, ...]
    accepted: bool
    problem: str = ""
    is_outside: bool = False
    decisive: tuple[tuple[str, str], ...] = ()


class Cosimulation:
    """The transitions and the invariant of the model, ready to be evaluated.

    Args:
        transitions: of the model.

    """

    def __init__(self, transitions: Sequence[Transition]) -> None:
        self.transitions = {transition.name: _Compiled(transition) for transition in transitions}
        self.invariant = {name: evaluator(part) for name, part in invariants.closed(BEFORE).items()}

    def broken_invariant(self, machine: Machine, seed: int = 0) -> str:
        """Return which part of the model's invariant a machine does not satisfy, nothing when it does."""
        tickets = tickets_of(machine.pool.leases, {})
        state = Abstraction(machine, elements_of(machine), tickets, seed)
        return next((name for name, part in self.invariant.items() if not part(state.tables)), "")

    def try_event(self, machine: Machine, event: ev.Event, seed: int = 0) -> Outcome:
        """Try an event in the spec and in the model; the machine stays as it is.

        Any other error than ``VTokenError`` out of the spec is one thing on which they differ.
        """
        after = machine.copy()
        try:
            after.apply(event)
        except VTokenError as error:
            outcome = self._compare(machine, event, None, error, seed)
            return outcome if outcome.problem else _unless_changed(outcome, machine, after)
        except Exception as error:
            return Outcome((), False, f"the spec fails with {type(error).__name__}: {error}")
        return self._compare(machine, event, after, None, seed)

    def _compare(
        self, before: Machine, event: ev.Event, after: Machine | None, refused: VTokenError | None, seed: int
    ) -> Outcome:
        elements = elements_of(before)
        extend(elements, event)
        known = tickets_of(before.pool.leases, {})
        try:
            readings = read(event, before, after, known)
        except InexpressibleError as error:
            problem = "" if refused else f"the spec accepts what must be refused: {error}"
            return Outcome((), refused is None, problem)
        states = _states(before, after, elements, known, seed)
        if refused is not None:
            return self._compare_refusal(states[0], readings, refused)
        return self._compare_acceptance(states, readings)

    def _compare_refusal(
        self, state: Abstraction, readings: Sequence[Reading], refused: VTokenError
    ) -> Outcome:
        """Ask the model for a reason of its own, wherever it has one for this rule."""
        names = tuple(reading.transition for reading in readings if reading is not UNCHANGED)
        is_outside = False
        decisive = []
        rule = _RULES[refused.rule]
        for reading in readings:
            guards = GUARDS_OF.get((reading.transition, rule))
            if reading is UNCHANGED:
                return Outcome((), False, is_outside=True)
            if guards is None:
                is_outside = True
                continue
            compiled = self.transitions[reading.transition]
            refusing = compiled.refusing(state, reading, guards)
            if len(refusing) == 1:
                decisive.append((reading.transition, refusing[0]))
            if not refusing:
                return Outcome(
                    names,
                    False,
                    f"the spec refuses ({refused.code}: {refused.detail}), and of the model's guards"
                    f" {', '.join(guards)} of {reading.transition} none does",
                )
        if is_outside and rule not in OUTSIDE:
            problem = f"it is not said what {refused.code} means for {' or '.join(names)}"
            return Outcome(names, False, problem)
        return Outcome(names, False, is_outside=is_outside, decisive=tuple(decisive))

    def _compare_acceptance(
        self, states: tuple[Abstraction, Abstraction], readings: Sequence[Reading]
    ) -> Outcome:
        """Hold an accepted event to one of its readings, guards and state afterwards."""
        problems = []
        for reading in readings:
            if reading is UNCHANGED:
                changed = _difference(states[0].tables, states[1].tables, {}, {})
                return Outcome(
                    (), True, f"{changed}, and the model says that nothing changes" if changed else ""
                )
            compiled = self.transitions[reading.transition]
            if problem := compiled.disagreement(states, reading):
                problems.append(f"{reading.transition}: {problem}")
            else:
                return Outcome((reading.transition,), True)
        names = tuple(reading.transition for reading in readings)
        return Outcome(names, True, "; ".join(problems))


class _Compiled:
    """A transition whose guards, facts and effects are Python functions.

    Of each of its parameters it knows the sort of its values, none for a constant.
    """

    def __init__(self, transition: Transition) -> None:
        self.transition = transition
        self.parameters = {
            name: str(it.range()) if isinstance(it, z3.FuncDeclRef) else ""
            for name, it in transition.parameters.items()
        }
        self.guards = {name: evaluator(guard) for name, guard in transition.guards.items()}
        self.facts = {name: evaluator(fact) for name, fact in transition.facts.items()}
        self.effects = {
            name: _effect(name, getattr(transition.after, name))
            for name in SIGNATURES
            if getattr(transition.after, name) is not getattr(BEFORE, name)
        }

    def refusing(self, state: Abstraction, reading: Reading, guards: Sequence[str]) -> list[str]:
        """Return which of these guards are false; those that the transition has not got are not."""
        of = {**state.tables, **self._parameters(state, reading)}
        return [name for name in guards if name in self.guards and not self.guards[name](of)]

    def disagreement(self, states: tuple[Abstraction, Abstraction], reading: Reading) -> str:
        """Return what the model does not allow in going from one state to the other, nothing if it does."""
        before, after = states
        of = {**before.tables, **self._parameters(before, reading)}
        for name, guard in self.guards.items():
            if not guard(of):
                return f"the spec accepts, and the model's guard {name} does not hold"
        for name, fact in self.facts.items():
            if not fact(of):
                return f"it is not as the model says: {name}"
        return _difference(before.tables, after.tables, self.effects, of)

    def _parameters(self, state: Abstraction, reading: Reading) -> dict[str, Any]:
        """Return the event's parameters under their Z3 names."""
        tables: dict[str, Any] = {}
        for name, sort in self.parameters.items():
            key, value = f"{self.transition.name}.{name}", reading.parameters[name]
            if sort:
                table = Table(state.tables[sort], sort != "Bool", state.random)
                table.update(value)
                value = table
            tables[key] = value
        return tables


def _effect(name: str, function: Any) -> Evaluated:
    variables = [z3.Const(f"argument {index}", sort) for index, sort in enumerate(SIGNATURES[name][:-1])]
    return evaluator(function(*variables), variables)


def _unless_changed(outcome: Outcome, machine: Machine, after: Machine) -> Outcome:
    """Return the outcome of a refused event, which has changed nothing."""
    states = _states(machine, after, elements_of(machine), tickets_of(machine.pool.leases, {}), 0)
    changed = _difference(states[0].tables, states[1].tables, {}, {})
    return replace(outcome, problem=f"{changed}, after a refusal") if changed else outcome


def _states(
    before: Machine, after: Machine | None, elements: Elements, tickets: Mapping[int, int], seed: int
) -> tuple[Abstraction, Abstraction]:
    """Return both states over the same elements."""
    if after is None:
        state = Abstraction(before, elements, tickets, seed)
        return state, state
    later = elements_of(after)
    both = Elements(
        elements.requests | later.requests,
        elements.blocks,
        elements.flights | later.flights,
        elements.steps | later.steps,
        elements.contents | later.contents,
        max(elements.num_tokens, later.num_tokens),
        max(elements.num_tickets, later.num_tickets),
        elements.block_size,
    )
    kept = tickets_of(after.pool.leases, tickets)
    return Abstraction(before, both, tickets, seed), Abstraction(after, both, kept, seed + 1)


def _difference(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    effects: Mapping[str, Evaluated],
    of: Mapping[str, Any],
) -> str:
    """Return where the state afterwards is not the one that the model says, in words."""
    for name, (*sorts, _) in SORT_NAMES.items():
        table = after[name]
        effect = effects.get(name)
        if effect is None and dict.__eq__(before[name], table):
            continue
        arguments = table if name in PARTIAL else product(*(after[sort] for sort in sorts))
        for key in arguments:
            if name not in PARTIAL and len(sorts) == 1:
                key = key[0]
            listed = key if len(sorts) > 1 else (key,)
            expected = before[name][key] if effect is None else effect(of, *listed)
            if table[key] != expected:
                return f"{name}{listed} is {table[key]}, the model says {expected}"
    return ""
