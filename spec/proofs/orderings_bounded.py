"""A second opinion on memory order (I3, I5): short programs of a host, with explicit times.

Nothing here is shared with ``orderings``. A program is a sequence of host actions on requests and slots:
slots are allocated, written and read by forwards, copied, committed, released and freed, and whole
requests are aborted. Forwards and copies run later, each from a begin to an end time that Z3 chooses. A
race is a pair of accesses to one slot, at least one of them a write, where the one that comes first in
the program has not ended when the other begins. The orderings are what a runtime does about it: events
that a stream waits for, and a pool that frees a slot only when the host has seen its users end.

The host takes action ``i`` at time ``i * TICK``; a forward or copy begins then or later. A commit need
not wait for its copy: that forwards read the destinations only after it is what ordering 2 is for.

Source: paper 3.4, 3.5 (I3).
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula, Proof
from spec.proofs.words import marked, text

DEPTH, NUM_SLOTS = 16, 4
QUICK_DEPTH, QUICK_NUM_SLOTS = 12, 3

TICK = 100
"""Time from one host action to the next: more than a program has times, so whole numbers are enough."""

REQUESTS = ("A", "B")

KINDS = ("alloc", "forward", "evict", "copy", "commit", "release", "free", "abort")

OF_REQUEST = ("empty", "live", "dead", "destination")


class Hazard(NamedTuple):
    """An earlier and a later access to one slot that conflict, and what the later one is part of."""

    name: str
    later: str
    earlier_writes: bool
    later_writes: bool
    covers: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name the race as the field does."""
        words = {True: "write", False: "read"}
        return f"{words[self.later_writes]}-after-{words[self.earlier_writes]}"

    @property
    def earlier(self) -> str:
        """What the earlier one is part of; operations of one stream never overlap."""
        return "copy" if self.later == "forward" else "forward"


HAZARDS = (
    Hazard("copy_read_after_write", "copy", True, False, ("I5",)),
    Hazard("copy_write_after_read", "copy", False, True, ("I5", "VT-COPY-006", "VT-POOL-005")),
    Hazard("copy_write_after_write", "copy", True, True, ("I5", "VT-POOL-005")),
    Hazard("forward_read_after_write", "forward", True, False, ("I3",)),
    Hazard("forward_write_after_read", "forward", False, True, ("I5", "VT-POOL-005")),
    Hazard("forward_write_after_write", "forward", True, True, ("I5", "VT-POOL-005")),
)


def proofs(without: str | None = None, *, quick: bool = False) -> list[Proof]:
    """Return one proof a kind of race, over all programs of the stated size.

    Args:
        without: an ordering to leave out, named as in ``orderings``.
        quick: at a smaller size.

    """
    depth, num_slots = (QUICK_DEPTH, QUICK_NUM_SLOTS) if quick else (DEPTH, NUM_SLOTS)
    return proofs_at(depth, num_slots, without)


def proofs_at(depth: int, num_slots: int, without: str | None = None) -> list[Proof]:
    """Return the proofs over all programs of up to ``depth`` host actions on ``num_slots`` slots."""
    program = _Program(depth, num_slots, without)
    rules = z3.And(program.rules)
    bounds = (
        f"up to {depth} host actions, {num_slots} slots, {len(REQUESTS)} requests, any begin and end times"
    )
    return [
        Proof(
            f"orderings.timed.{hazard.name}",
            hazard.covers,
            program.last_begins_after_conflicts(hazard),
            {"program": rules, "conflict": program.last_conflicts(hazard)},
            bounds,
            partial(program.shown, hazard),
        )
        for hazard in HAZARDS
    ]


class _Program:
    """All programs of a size.

    Of action ``i``, ``uses[i]`` marks the slot that it is about or that it reads, and ``fills[i]`` the
    one that it puts a token into. Truth values only, besides the times: that keeps the solver fast.
    """

    def __init__(self, depth: int, num_slots: int, without: str | None) -> None:
        self.depth, self.num_slots, self.without = depth, num_slots, without
        steps, slots = range(depth), range(num_slots)
        self.kind = [{kind: z3.Bool(f"{kind}_{i}") for kind in KINDS} for i in steps]
        self.is_second = [z3.Bool(f"second_{i}") for i in steps]
        self.uses = [[z3.Bool(f"uses_{i}_{k}") for k in slots] for i in steps]
        self.fills = [[z3.Bool(f"fills_{i}_{k}") for k in slots] for i in steps]
        self.mine = [
            [{what: z3.Bool(f"{what}_{i}_{k}") for what in OF_REQUEST} for k in slots] for i in steps
        ]
        self.reads = [[z3.Bool(f"reads_{i}_{k}") for k in slots] for i in steps]
        self.writes = [[z3.Bool(f"writes_{i}_{k}") for k in slots] for i in steps]
        self.slot = [[_Slot(f"{i}_{k}") for k in slots] for i in range(depth + 1)]
        self.begin = [z3.Int(f"begin_{i}") for i in steps]
        self.end = [z3.Int(f"end_{i}") for i in steps]
        self.rules = [formula for slot in self.slot[0] for formula in slot.begins_free()]
        for i in steps:
            self.rules += [*self._shape(i), *self._preconditions(i), *self._commits_last_copy(i)]
            for k in slots:
                self.rules += [*self._accesses(i, k), *self._effects(i, k)]
            for j in range(i):
                self.rules += [*self._stream_order(j, i), *self._orderings(j, i)]

    # What an action is.

    def _shape(self, i: int) -> list[Formula]:
        kinds = list(self.kind[i].values())
        idles_first = [z3.Implies(z3.Or(list(self.kind[i - 1].values())), z3.Or(kinds))] if i else []
        return [
            *idles_first,
            _at_most_one(kinds),
            _exactly_one(self.uses[i]),
            _exactly_one(self.fills[i]),
            self.begin[i] >= i * TICK,
            self.end[i] > self.begin[i],
        ]

    def _accesses(self, i: int, k: int) -> list[Formula]:
        """A forward reads its request's live tokens and writes a new one; a copy reads one, writes one."""
        kind, mine = self.kind[i], self.mine[i][k]
        return [
            *(
                mine[what]
                == z3.If(self.is_second[i], self.slot[i][k].second[what], self.slot[i][k].first[what])
                for what in OF_REQUEST
            ),
            self.reads[i][k]
            == z3.Or(z3.And(kind["forward"], mine["live"]), z3.And(kind["copy"], self.uses[i][k])),
            self.writes[i][k] == z3.And(z3.Or(kind["forward"], kind["copy"]), self.fills[i][k]),
        ]

    # What the host may do, and what becomes of the slots.

    def _preconditions(self, i: int) -> list[Formula]:
        kind = self.kind[i]
        rules = [z3.Implies(kind["abort"], z3.Or([_any(self.mine[i][k]) for k in range(self.num_slots)]))]
        for k in range(self.num_slots):
            slot, mine, uses, fills = self.slot[i][k], self.mine[i][k], self.uses[i][k], self.fills[i][k]
            is_spare = z3.Or(mine["empty"], mine["dead"])
            rules += [
                z3.Implies(z3.And(kind["alloc"], uses), slot.is_free),
                z3.Implies(z3.And(kind["forward"], fills), is_spare),
                z3.Implies(z3.And(kind["evict"], uses), mine["live"]),
                z3.Implies(z3.And(kind["copy"], uses), mine["live"]),
                z3.Implies(z3.And(kind["copy"], fills), z3.Or(slot.is_free, mine["dead"])),
                z3.Implies(z3.And(kind["commit"], uses), mine["live"]),
                z3.Implies(z3.And(kind["commit"], fills), mine["destination"]),
                z3.Implies(z3.And(kind["release"], uses), is_spare),
                z3.Implies(z3.And(kind["free"], uses), slot.is_fenced),
                z3.Implies(z3.Or(kind["copy"], kind["evict"]), z3.Not(mine["destination"])),
            ]
        return rules

    def _commits_last_copy(self, i: int) -> list[Formula]:
        def is_it(j: int) -> Formula:
            newer = [
                z3.And(self.kind[between]["copy"], self.is_second[between] == self.is_second[i])
                for between in range(j + 1, i)
            ]
            same_slots = [
                z3.And(self.uses[j][k] == self.uses[i][k], self.fills[j][k] == self.fills[i][k])
                for k in range(self.num_slots)
            ]
            is_mine = self.is_second[j] == self.is_second[i]
            return z3.And(self.kind[j]["copy"], is_mine, z3.Not(z3.Or(newer)), *same_slots)

        return [z3.Implies(self.kind[i]["commit"], z3.Or([is_it(j) for j in range(i)]))]

    def _effects(self, i: int, k: int) -> list[Formula]:
        kind, uses, fills = self.kind[i], self.uses[i][k], self.fills[i][k]
        becomes = {
            "empty": z3.And(kind["alloc"], uses),
            "live": z3.And(z3.Or(kind["forward"], kind["commit"]), fills),
            "dead": z3.And(z3.Or(kind["evict"], kind["commit"]), uses),
            "destination": z3.And(kind["copy"], fills),
        }
        to_fenced = z3.Or(z3.And(kind["release"], uses), z3.And(kind["abort"], _any(self.mine[i][k])))
        to_free = z3.And(kind["free"], uses)
        is_changed = z3.Or(*becomes.values(), to_fenced, to_free)
        before, after = self.slot[i][k], self.slot[i + 1][k]
        effects = [
            after.is_free == z3.If(is_changed, to_free, before.is_free),
            after.is_fenced == z3.If(is_changed, to_fenced, before.is_fenced),
        ]
        for what, happens in becomes.items():
            for is_its, now, then in (
                (z3.Not(self.is_second[i]), before.first[what], after.first[what]),
                (self.is_second[i], before.second[what], after.second[what]),
            ):
                effects.append(then == z3.If(is_changed, z3.And(happens, is_its), now))
        return effects

    # What orders accesses in time.

    def _stream_order(self, j: int, i: int) -> list[Formula]:
        return [
            z3.Implies(z3.And(self.kind[j][stream], self.kind[i][stream]), self.end[j] <= self.begin[i])
            for stream in ("forward", "copy")
        ]

    def _orderings(self, j: int, i: int) -> list[Formula]:
        """Return what the runtime does so that ``i`` comes after ``j``; an ordering left out is missing."""
        earlier, later, slots = self.kind[j], self.kind[i], range(self.num_slots)
        is_same = self.is_second[i] == self.is_second[j]
        waits, has_seen = self.end[j] <= self.begin[i], self.end[j] <= i * TICK
        forward_then_copy = z3.And(earlier["forward"], later["copy"])
        orderings = {
            "copy_after_forward": [
                z3.Implies(z3.And(forward_then_copy, self.uses[i][k], self.fills[j][k]), waits) for k in slots
            ],
            "forward_after_copy": [z3.Implies(z3.And(earlier["copy"], later["forward"], is_same), waits)],
            "reuse_after_copy": [
                z3.Implies(
                    z3.And(
                        earlier["copy"],
                        later["free"],
                        self.uses[i][k],
                        z3.Or(self.uses[j][k], self.fills[j][k]),
                    ),
                    has_seen,
                )
                for k in slots
            ],
            "reuse_after_forward": [
                z3.Implies(
                    z3.And(
                        earlier["forward"], later["free"], self.uses[i][k], self._is_fenced_after(j, i, k)
                    ),
                    has_seen,
                )
                for k in slots
            ],
            "destination_after_forward": [
                z3.Implies(
                    z3.And(forward_then_copy, is_same, self.fills[i][k], self.mine[i][k]["dead"]), waits
                )
                for k in slots
            ],
        }
        return [formula for name in orderings if name != self.without for formula in orderings[name]]

    def _is_fenced_after(self, j: int, i: int, k: int) -> Formula:
        """Say that a slot, fenced when ``i`` comes, was not yet when ``j`` began."""
        return z3.Not(z3.And([self.slot[between][k].is_fenced for between in range(j + 1, i)]))

    # Races. Programs idle first, so that each race can be taken to be one of the last action.

    def _conflict(self, hazard: Hazard, j: int) -> Formula:
        earlier = (self.writes if hazard.earlier_writes else self.reads)[j]
        later = (self.writes if hazard.later_writes else self.reads)[-1]
        is_shared = z3.Or([z3.And(earlier[k], later[k]) for k in range(self.num_slots)])
        return z3.And(self.kind[j][hazard.earlier], self.kind[-1][hazard.later], is_shared)

    def last_conflicts(self, hazard: Hazard) -> Formula:
        """Say that the last action touches a slot that one on the other stream touched before."""
        return z3.Or([self._conflict(hazard, j) for j in range(self.depth - 1)])

    def last_begins_after_conflicts(self, hazard: Hazard) -> Formula:
        """Say that all that the last action conflicts with has ended when it begins."""
        return z3.And(
            [
                z3.Implies(self._conflict(hazard, j), self.end[j] <= self.begin[-1])
                for j in range(self.depth - 1)
            ]
        )

    # A program in words.

    def shown(self, hazard: Hazard) -> dict[str, Formula]:
        """Return the program and its race in words."""
        schedule = text("", *(self._line(i) for i in range(self.depth)))
        return {"schedule": schedule, "race": z3.StringVal(hazard.kind)}

    def _line(self, i: int) -> Formula:
        owner = z3.If(self.is_second[i], z3.StringVal(REQUESTS[1]), z3.StringVal(REQUESTS[0]))
        used, filled, read = marked(self.uses[i]), marked(self.fills[i]), marked(self.reads[i])
        times = (" from ", z3.IntToStr(self.begin[i]), " to ", z3.IntToStr(self.end[i]))
        words = {
            "alloc": ("alloc slot", used, " to ", owner),
            "forward": ("forward of ", owner, " reads", read, ", writes", filled, *times),
            "evict": ("evict slot", used, " of ", owner),
            "copy": ("copy of ", owner, " from slot", used, " to slot", filled, *times),
            "commit": ("commit of ", owner, " from slot", used, " to slot", filled),
            "release": ("release slot", used, " of ", owner),
            "free": ("free slot", used),
            "abort": ("abort ", owner),
        }
        line = text("")
        for kind, parts in words.items():
            line = z3.If(self.kind[i][kind], text(f"{i * TICK}: ", *parts, "; "), line)
        return line


class _Slot:
    """What a slot is at one time: free, fenced, or something of one of the two requests."""

    def __init__(self, suffix: str) -> None:
        self.is_free, self.is_fenced = z3.Bool(f"free_{suffix}"), z3.Bool(f"fenced_{suffix}")
        self.first = {what: z3.Bool(f"{REQUESTS[0]}_{what}_{suffix}") for what in OF_REQUEST}
        self.second = {what: z3.Bool(f"{REQUESTS[1]}_{what}_{suffix}") for what in OF_REQUEST}

    def begins_free(self) -> list[Formula]:
        return [
            self.is_free,
            z3.Not(self.is_fenced),
            *(z3.Not(held) for held in (*self.first.values(), *self.second.values())),
        ]


def _any(of_request: dict[str, Formula]) -> Formula:
    return z3.Or(list(of_request.values()))


def _at_most_one(formulas: Sequence[Formula]) -> Formula:
    return z3.PbLe([(formula, 1) for formula in formulas], 1)


def _exactly_one(formulas: Sequence[Formula]) -> Formula:
    return z3.PbEq([(formula, 1) for formula in formulas], 1)
