"""The state machines: what each speaks for, how far it is run, and what must happen in a run."""

from collections.abc import Iterable
from dataclasses import dataclass

from spec.machines.ahead import AheadIndirect, AheadPacked
from spec.machines.indirect import Indirect
from spec.machines.packed import Packed
from spec.machines.planning import Planning
from spec.machines.pool import Pool
from spec.machines.sharing import Sharing
from spec.machines.table import Table
from spec.machines.tally import Counted
from vtoken_ref.rules import Rule


@dataclass(frozen=True, slots=True)
class Entry:
    """One state machine.

    Attributes:
        name: of its check.
        machine: the class.
        quick, standard: numbers of examples.
        invariants: that it speaks for.
        rules: of the spec; each refuses an event in every run, and what is accepted is judged.
        needs: what else must happen in every run.

    """

    name: str
    machine: type[Counted]
    quick: int
    standard: int
    invariants: tuple[str, ...]
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()

    @property
    def covers(self) -> tuple[str, ...]:
        """Return the ids of rules and invariants that it speaks for."""
        return (*self.invariants, *(rule.id for rule in self.rules))

    @property
    def needed(self) -> Iterable[str]:
        """Return everything that must happen in a run, beside that every rule fires."""
        return (*self.needs, *(f"refused {rule.code}" for rule in self.rules))


ILLEGAL = ("altered event refused", "repeated event refused", "careless event refused")
FAULTS = (
    *("preempt during a forward", "preempt during a plan", "abort during a plan", "preempted for a block"),
    *("took finish", "took late copy", "took late cancel", "took cancel", "took commit"),
)
OVER_FORWARDS = ("copy during a forward", "commit during a forward")
MESSAGES = ("delivered late", "dropped a report of a dead epoch")
PLANS = ("took plan in_place", "took plan out_of_place")

MACHINES = (
    Entry(
        "machine.packed",
        Packed,
        100,
        700,
        ("I1", "I2", "I5", "I6", "I7"),
        (),
        (*ILLEGAL, *FAULTS, *PLANS, "recycled a slot", "took defer"),
    ),
    Entry(
        "machine.indirect",
        Indirect,
        100,
        700,
        ("I1", "I2", "I3", "I5", "I6"),
        (),
        (*ILLEGAL, *FAULTS, *PLANS, *OVER_FORWARDS, "recycled a slot", "took defer"),
    ),
    Entry(
        "machine.ahead.packed",
        AheadPacked,
        100,
        600,
        ("I1", "I5", "I6", "I7", "I8"),
        (),
        (*ILLEGAL, *FAULTS, *PLANS, *MESSAGES, "recycled a slot"),
    ),
    Entry(
        "machine.ahead.indirect",
        AheadIndirect,
        100,
        600,
        ("I1", "I3", "I5", "I6", "I8"),
        (),
        (*ILLEGAL, *FAULTS, *PLANS, *OVER_FORWARDS, *MESSAGES, "recycled a slot"),
    ),
    Entry(
        "machine.sharing",
        Sharing,
        100,
        700,
        ("I1", "I2", "I4", "I6"),
        (),
        (*ILLEGAL, "took share", "took cache", "took uncache", "took plan copy_on_write", "took late copy"),
    ),
    Entry("machine.table", Table, 60, 500, ("I1", "I2"), (), ("took apply_moves", "took recycle_slot")),
    Entry("machine.planning", Planning, 60, 500, ("I4", "I7"), (), ("an offered plan is right",)),
    Entry("machine.pool", Pool, 60, 500, ("I6",), (), ("took share", "took adopt", "took free")),
)
