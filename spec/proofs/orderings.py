"""Memory order (I3, I5): forwards and copies on two streams, for any number of slots and steps.

The host issues forwards to one stream and copies to another. Each stream runs its own in order; between
the two only those waits hold that the host asks for. For each slot the host remembers four watermarks:
the last forward and the last copy that reads it, and that writes it. The orderings of the design are
guards over these watermarks. Proved is that under them nothing starts while something issued earlier
that it conflicts with is in flight: two accesses to one slot conflict when at least one is a write.

A slot that is given to a new owner may be written at once and from anywhere: the action ``reuse``.

Half of ordering 1, that a copy follows the forwards that *read* its sources, is left out: two reads do
not conflict, and everything is proved without it. A runtime that waits for them too only waits longer.

Source: paper 3.4, 3.5 (I3).
Differs from source: the paper states one of the orderings, that a forward waits for the copies it reads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs import orderings_bounded
from spec.proofs.prover import Formula, Proof
from spec.proofs.words import marked, text

ORDERINGS = {
    "copy_after_forward": "1: a copy follows the forward that wrote its sources",
    "forward_after_copy": "2: a forward follows the copies whose slots it reads",
    "reuse_after_copy": "3: a slot that a copy touches is written again only after the copy retired",
    "reuse_after_forward": "3: a slot is given away only after the forwards that touch it",
    "destination_after_forward": "4: a destination is written only after the forwards that touch it",
}

RUN_DEPTH = 2
RUN_SLOTS = 2

Function = Callable[..., Formula]


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream as the host sees it; its operations are numbered from 1 as they are issued.

    Attributes:
        issued, done: how many; those between are in flight.
        last_read, last_write: per slot, the last operation that does so.
        reads, writes: per operation and slot.
        waits: per operation, the last one of the other stream that it waits for.
        before: per operation, how many of the other stream were issued earlier.

    """

    issued: Formula
    done: Formula
    last_read: Function
    last_write: Function
    reads: Function
    writes: Function
    waits: Function
    before: Function

    def is_issued(self, operation: Formula) -> Formula:
        """Say that there is such an operation."""
        return z3.And(operation >= 1, operation <= self.issued)

    def is_in_flight(self, operation: Formula) -> Formula:
        """Say that an operation is issued and has not retired."""
        return z3.And(self.done < operation, operation <= self.issued)

    def head_may_start(self, other: "Stream") -> Formula:
        """Say that the next operation of the stream has nothing left to wait for."""
        head = self.done + 1
        return z3.And(head <= self.issued, self.waits(head) <= other.done)


State = Mapping[str, Stream]
"""The streams ``forward`` and ``copy``."""

OTHER = {"forward": "copy", "copy": "forward"}


class Operation(NamedTuple):
    """An operation to be issued: its slots, and the last one of the other stream that it waits for."""

    reads: Function
    writes: Function
    waits: Formula


class Action(NamedTuple):
    """A transition: what it requires, the orderings included, and the state after it."""

    name: str
    requires: Formula
    after: State


class Race(NamedTuple):
    """An operation that conflicts with an earlier one of the other stream, by what each does with a slot."""

    later: str
    does: str
    earlier_does: str
    covers: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name the race as the field does."""
        return f"{NOUNS[self.does]}-after-{NOUNS[self.earlier_does]}"

    @property
    def name(self) -> str:
        """Name the race for one stream, e.g. ``copy_write_after_read``."""
        return f"{self.later}_{self.kind.replace('-', '_')}"


NOUNS = {"reads": "read", "writes": "write"}

RACES = (
    Race("copy", "reads", "writes", ("I5",)),
    Race("copy", "writes", "reads", ("I5", "VT-COPY-006")),
    Race("copy", "writes", "writes", ("I5",)),
    Race("forward", "reads", "writes", ("I3",)),
    Race("forward", "writes", "reads", ("I5",)),
    Race("forward", "writes", "writes", ("I5",)),
)

ORDERING_OF = {
    ("copy", "reads"): "copy_after_forward",
    ("copy", "writes"): "destination_after_forward",
    ("forward", "reads"): "forward_after_copy",
    ("forward", "writes"): "reuse_after_copy",
}
"""Which ordering speaks of what an operation does with a slot."""


def guards() -> tuple[str, ...]:
    """Return the names of the orderings, each of which can be left out."""
    return tuple(ORDERINGS)


def proofs(without: str | None = None, *, quick: bool = False) -> list[Proof]:
    """Return the proofs of the orderings, the independent bounded ones included.

    Args:
        without: an ordering to leave out; some proofs are then refuted.
        quick: the bounded model at a smaller size.

    Raises:
        ValueError: there is no ordering of that name.

    """
    return [*proofs_of_watermarks(without), *orderings_bounded.proofs(without, quick=quick)]


def proofs_of_watermarks(without: str | None = None) -> list[Proof]:
    """Return the proofs about watermarks alone.

    Raises:
        ValueError: there is no ordering of that name.

    """
    if without is not None and without not in ORDERINGS:
        raise ValueError(f"there is no ordering {without}; there are {', '.join(ORDERINGS)}")
    model = _Model(z3.DeclareSort("Slot"), without)
    return [*_inductive(model), *_starts(model), *_reuses(model), _progress(model), *_runs(without)]


# The transitions.


class _Model:
    """The transition system over one sort of slots, with one ordering left out or none.

    Args:
        slot_sort: the sort.
        without: the ordering left out.
        slots: all the slots there are; None for any number.

    """

    def __init__(self, slot_sort: Any, without: str | None, slots: Sequence[Formula] | None = None) -> None:
        self.slot_sort = slot_sort
        self.without = without
        self.slots = slots

    def any_state(self) -> State:
        """Return a state of which nothing is known."""
        return {name: self._any_stream(name) for name in OTHER}

    def _any_stream(self, name: str) -> Stream:
        number, slot = z3.IntSort(), self.slot_sort
        return Stream(
            issued=z3.Int(f"{name}.issued"),
            done=z3.Int(f"{name}.done"),
            last_read=z3.Function(f"{name}.last_read", slot, number),
            last_write=z3.Function(f"{name}.last_write", slot, number),
            reads=z3.Function(f"{name}.reads", number, slot, z3.BoolSort()),
            writes=z3.Function(f"{name}.writes", number, slot, z3.BoolSort()),
            waits=z3.Function(f"{name}.waits", number, number),
            before=z3.Function(f"{name}.before", number, number),
        )

    def any_operation(self, suffix: str = "") -> Operation:
        """Return an operation of which nothing is known."""
        return Operation(
            z3.Function(f"reads{suffix}", self.slot_sort, z3.BoolSort()),
            z3.Function(f"writes{suffix}", self.slot_sort, z3.BoolSort()),
            z3.Int(f"waits{suffix}"),
        )

    def actions(self, before: State, operation: Operation) -> list[Action]:
        """Return all transitions that change a state."""
        return [
            self.issue("forward", before, operation),
            self.issue("copy", before, operation),
            self.retire("forward", before),
            self.retire("copy", before),
        ]

    def issue(self, name: str, before: State, operation: Operation) -> Action:
        """The host issues a forward, or a batch of copies."""
        stream, other = before[name], before[OTHER[name]]
        number = stream.issued + 1
        requires = [
            operation.waits >= 0,
            operation.waits <= other.issued,
            self._for_all_slots(lambda slot: self._is_ordered(name, other, operation, slot)),
        ]
        after = replace(
            stream,
            issued=number,
            last_read=_set_where(stream.last_read, operation.reads, number),
            last_write=_set_where(stream.last_write, operation.writes, number),
            reads=_set_row(stream.reads, number, operation.reads),
            writes=_set_row(stream.writes, number, operation.writes),
            waits=_set(stream.waits, number, operation.waits),
            before=_set(stream.before, number, other.issued),
        )
        return Action(f"issue_{name}", z3.And(requires), {**before, name: after})

    def _is_ordered(self, name: str, other: Stream, operation: Operation, slot: Formula) -> Formula:
        """Say that what is to be issued waits as the orderings want."""

        def is_over(last: Function) -> Formula:
            return z3.Or(last(slot) <= operation.waits, last(slot) <= other.done)

        return z3.And(
            self._unless_left_out(
                ORDERING_OF[name, "reads"], z3.Implies(operation.reads(slot), is_over(other.last_write))
            ),
            self._unless_left_out(
                ORDERING_OF[name, "writes"],
                z3.Implies(
                    operation.writes(slot), z3.And(is_over(other.last_read), is_over(other.last_write))
                ),
            ),
        )

    def retire(self, name: str, before: State) -> Action:
        """The operation at the head of a stream has run."""
        stream = before[name]
        after = {**before, name: replace(stream, done=stream.done + 1)}
        return Action(f"retire_{name}", stream.head_may_start(before[OTHER[name]]), after)

    def may_reuse(self, state: State, slot: Formula) -> Formula:
        """Say that the pool may give the slot to a new owner, who may write it at once."""
        return z3.And(
            [
                self._unless_left_out(
                    f"reuse_after_{name}",
                    z3.And(stream.last_read(slot) <= stream.done, stream.last_write(slot) <= stream.done),
                )
                for name, stream in state.items()
            ]
        )

    def _unless_left_out(self, ordering: str, formula: Formula) -> Formula:
        return z3.BoolVal(True) if ordering == self.without else formula

    def _for_all_slots(self, formula: Callable[[Formula], Formula]) -> Formula:
        if self.slots is not None:
            return z3.And([formula(slot) for slot in self.slots])
        slot = z3.Const("each_slot", self.slot_sort)
        return z3.ForAll([slot], formula(slot))


# What holds in every state.


class Names(NamedTuple):
    """A forward, a copy and a slot, of which something is said."""

    forward: Formula
    copy: Formula
    slot: Formula

    def of(self, stream: str) -> Formula:
        """Return the forward or the copy."""
        return self.copy if stream == "copy" else self.forward


def invariants(state: State, names: Names) -> dict[str, Formula]:
    """Return what is always true of a forward, a copy and a slot; that races are ordered comes last."""
    streams = [(stream, state[OTHER[name]], names.of(name)) for name, stream in state.items()]
    forwards, copies = state["forward"], state["copy"]
    return {
        "counters": z3.And(
            [z3.And(stream.done >= 0, stream.done <= stream.issued) for stream in state.values()]
        ),
        "watermarks": z3.And(
            [_is_below_watermarks(stream, number, names.slot) for stream, _, number in streams]
        ),
        "issue_order": z3.And(
            z3.Implies(
                z3.And(forwards.is_issued(names.forward), copies.is_issued(names.copy)),
                (names.forward <= copies.before(names.copy))
                != (names.copy <= forwards.before(names.forward)),
            ),
            *[
                z3.Implies(stream.is_issued(number), stream.before(number) <= other.issued)
                for stream, other, number in streams
            ],
        ),
        "waits_for_earlier": z3.And(
            [
                z3.Implies(stream.is_issued(number), stream.waits(number) <= stream.before(number))
                for stream, _, number in streams
            ]
        ),
        **{race.name: is_ordered(race, state, names) for race in RACES},
    }


def _is_below_watermarks(stream: Stream, number: Formula, slot: Formula) -> Formula:
    return z3.Implies(
        stream.is_issued(number),
        z3.And(
            z3.Implies(stream.reads(number, slot), number <= stream.last_read(slot)),
            z3.Implies(stream.writes(number, slot), number <= stream.last_write(slot)),
        ),
    )


def is_ordered(race: Race, state: State, names: Names) -> Formula:
    """Say that of two in flight that conflict in this way, the one issued later waits for the other."""
    stream, other = state[race.later], state[OTHER[race.later]]
    later, earlier = names.of(race.later), names.of(OTHER[race.later])
    in_flight = z3.And(stream.is_in_flight(later), other.is_in_flight(earlier))
    conflict = z3.And(earlier <= stream.before(later), _conflicts(race, state, names))
    return z3.Implies(z3.And(in_flight, conflict), earlier <= stream.waits(later))


def is_race(race: Race, state: State, names: Names) -> Formula:
    """Say that one may start now while an earlier one that it conflicts with is in flight."""
    stream, other = state[race.later], state[OTHER[race.later]]
    later, earlier = names.of(race.later), names.of(OTHER[race.later])
    return z3.And(
        stream.head_may_start(other),
        later == stream.done + 1,
        other.is_in_flight(earlier),
        earlier <= stream.before(later),
        _conflicts(race, state, names),
    )


def _conflicts(race: Race, state: State, names: Names) -> Formula:
    does = getattr(state[race.later], race.does)
    earlier_does = getattr(state[OTHER[race.later]], race.earlier_does)
    return z3.And(
        does(names.of(race.later), names.slot), earlier_does(names.of(OTHER[race.later]), names.slot)
    )


# The proofs.


def _names(model: _Model) -> Names:
    return Names(z3.Int("forward"), z3.Int("copy"), z3.Const("slot", model.slot_sort))


def _always(model: _Model, state: State) -> dict[str, Formula]:
    names = _names(model)
    return {name: z3.ForAll(list(names), formula) for name, formula in invariants(state, names).items()}


def _inductive(model: _Model) -> Iterator[Proof]:
    """What holds in every state holds in the empty one, and every transition keeps it."""
    state, operation, names = model.any_state(), model.any_operation(), _names(model)
    goals = invariants(state, names)
    yield Proof(
        "orderings.initial", ("I3", "I5"), z3.And(list(goals.values())), {"empty": _is_empty(state, [])}
    )
    covers = {race.name: race.covers for race in RACES}
    telling = {race.name: _race_line(race, names) for race in RACES}
    always = _always(model, state)
    for action in model.actions(state, operation):
        for name, goal in invariants(action.after, names).items():
            yield Proof(
                f"orderings.{action.name}.{name}",
                covers.get(name, ("I3", "I5")),
                goal,
                {**always, action.name: action.requires},
                shown={"race": telling[name], "slot": names.slot} if name in telling else {},
            )


def _starts(model: _Model) -> Iterator[Proof]:
    """Nothing starts while something that it conflicts with, issued earlier, is in flight."""
    state, names = model.any_state(), _names(model)
    always = _always(model, state)
    for race in RACES:
        head = state[race.later].head_may_start(state[OTHER[race.later]])
        goal = z3.Not(is_race(race, state, names))
        yield Proof(f"orderings.start.{race.name}", race.covers, goal, {**always, "may_start": head})


def _reuses(model: _Model) -> Iterator[Proof]:
    """A slot is given to a new owner only when nothing in flight touches it."""
    state, names = model.any_state(), _names(model)
    assumptions = {**_always(model, state), "may_reuse": model.may_reuse(state, names.slot)}
    for name, does, touches in _touches(state, names):
        yield Proof(
            f"orderings.reuse.{name}_{does}",
            ("I5", "VT-POOL-005"),
            z3.Not(touches),
            assumptions,
            shown={"race": _reuse_line(name, does, names), "slot": names.slot},
        )


def _touches(state: State, names: Names) -> Iterable[tuple[str, str, Formula]]:
    """Say, for each stream and kind of access, that an operation in flight touches the slot."""
    for name, stream in state.items():
        for does, function in (("reads", stream.reads), ("writes", stream.writes)):
            operation = names.of(name)
            yield name, does, z3.And(stream.is_in_flight(operation), function(operation, names.slot))


def _progress(model: _Model) -> Proof:
    """Waits never lock each other up: while anything is in flight, the head of a stream may start."""
    state = model.any_state()
    forwards, copies = state["forward"], state["copy"]
    in_flight = z3.Or([stream.done < stream.issued for stream in state.values()])
    return Proof(
        "orderings.progress",
        ("I5", "I9"),
        z3.Or(forwards.head_may_start(copies), copies.head_may_start(forwards)),
        {**_always(model, state), "in_flight": in_flight},
    )


def _runs(without: str | None) -> Iterator[Proof]:
    """No short run from the empty state has a race; with an ordering left out, one is a schedule."""
    slots = [z3.IntVal(index) for index in range(RUN_SLOTS)]
    model = _Model(z3.IntSort(), without, slots)
    run, names = _Run(model, slots), _names(model)
    bounds = f"{RUN_DEPTH} operations issued or retired, {RUN_SLOTS} slots"
    is_slot = z3.Or([names.slot == slot for slot in slots])
    steps = {"run": z3.And(run.steps)}
    for race in RACES:
        yield Proof(
            f"orderings.run.{race.name}",
            race.covers,
            z3.Implies(is_slot, z3.Not(is_race(race, run.state, names))),
            steps,
            bounds,
            {"schedule": run.schedule, "race": _race_line(race, names), "slot": names.slot},
        )
    reused = {**steps, "may_reuse": model.may_reuse(run.state, names.slot)}
    for name, does, touches in _touches(run.state, names):
        yield Proof(
            f"orderings.run.reuse_{name}_{does}",
            ("I5", "VT-POOL-005"),
            z3.Implies(is_slot, z3.Not(touches)),
            reused,
            bounds,
            {"schedule": run.schedule, "race": _reuse_line(name, does, names), "slot": names.slot},
        )


class _Run:
    """A run of a few actions from the empty state; which ones, and with what, is for Z3 to choose."""

    def __init__(self, model: _Model, slots: Sequence[Formula]) -> None:
        self.slots = slots
        self.state = model.any_state()
        self.steps = [_is_empty(self.state, slots)]
        self.schedule = z3.StringVal("")
        for index in range(RUN_DEPTH):
            self._append(model, z3.Int(f"action_{index}"), model.any_operation(f"_{index}"))

    def _append(self, model: _Model, chosen: Formula, operation: Operation) -> None:
        before, actions = self.state, model.actions(self.state, operation)
        self.steps += [chosen >= 0, chosen < len(actions)]
        line = z3.StringVal("")
        for number, action in enumerate(actions):
            self.steps.append(z3.Implies(chosen == number, action.requires))
            self.state = {
                name: _choose(chosen == number, action.after[name], self.state[name]) for name in OTHER
            }
            line = z3.If(chosen == number, self._line(action, before, operation), line)
        self.schedule = text(self.schedule, line, "; ")

    def _line(self, action: Action, before: State, operation: Operation) -> Formula:
        verb, name = action.name.split("_")
        if verb == "retire":
            return text(f"{name} ", z3.IntToStr(before[name].done + 1), " runs and retires")
        number, waits = z3.IntToStr(before[name].issued + 1), z3.IntToStr(operation.waits)
        reads = marked([operation.reads(slot) for slot in self.slots])
        writes = marked([operation.writes(slot) for slot in self.slots])
        does = (" is issued, reads", reads, ", writes", writes)
        return text(f"{name} ", number, *does, f", waits for {OTHER[name]} ", waits)


# Parts of states.


def _is_empty(state: State, slots: Sequence[Formula]) -> Formula:
    counters = [counter == 0 for stream in state.values() for counter in (stream.issued, stream.done)]
    marks = [mark for stream in state.values() for mark in (stream.last_read, stream.last_write)]
    return z3.And(counters + [mark(slot) == 0 for mark in marks for slot in slots])


def _set(function: Function, key: Formula, value: Formula) -> Function:
    return lambda at: z3.If(at == key, value, function(at))


def _set_row(function: Function, key: Formula, row: Function) -> Function:
    return lambda at, slot: z3.If(at == key, row(slot), function(at, slot))


def _set_where(mark: Function, chosen: Function, value: Formula) -> Function:
    return lambda slot: z3.If(chosen(slot), value, mark(slot))


def _choose(condition: Formula, one: Stream, other: Stream) -> Stream:
    def choose(this: Function, that: Function) -> Function:
        return lambda *at: z3.If(condition, this(*at), that(*at))

    return Stream(
        issued=z3.If(condition, one.issued, other.issued),
        done=z3.If(condition, one.done, other.done),
        last_read=choose(one.last_read, other.last_read),
        last_write=choose(one.last_write, other.last_write),
        reads=choose(one.reads, other.reads),
        writes=choose(one.writes, other.writes),
        waits=choose(one.waits, other.waits),
        before=choose(one.before, other.before),
    )


# Telling a counterexample.


def _race_line(race: Race, names: Names) -> Formula:
    earlier = OTHER[race.later]
    return text(
        f"{race.later} ",
        z3.IntToStr(names.of(race.later)),
        f" {race.does} the slot while {earlier} ",
        z3.IntToStr(names.of(earlier)),
        f", which {race.earlier_does} it, is in flight: {race.kind}",
    )


def _reuse_line(name: str, does: str, names: Names) -> Formula:
    return text(
        f"the slot gets a new owner, who writes it while {name} ",
        z3.IntToStr(names.of(name)),
        f", which {does} it, is in flight: write-after-{NOUNS[does]}",
    )
