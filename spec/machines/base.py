"""What the state machines that drive ``vtoken_ref.machine.Machine`` have in common.

``spec.runtime`` makes the events that a correct runtime could emit; rules choose among them, in any
order, with faults between them. Other rules make events that may be illegal. Each event goes to the
real machine; what it takes, the device does and the oracle judges. What it refuses must have changed
nothing, and must not have been legal for all that a correct runtime knows.
"""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from spec.machines.alterations import altered
from spec.machines.device import Device
from spec.machines.oracle import Disagreement
from spec.machines.tally import Counted, is_changed
from spec.report import Counterexample
from spec.runtime import Job, Runtime
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig
from vtoken_ref.rules import VTokenError

T = TypeVar("T")

PICK = st.integers(0, 2**16 - 1)
"""Which one of those that there are; 0 is the first."""
JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(2, 12), st.sampled_from((None, 5, 3))),
    min_size=2,
    max_size=4,
)
"""Of each request the length of its prompt, its outputs, and its budget."""

MOST_SETTLING_STEPS = 6
MOST_OFFERED = 60

GLOBAL = frozenset(
    ("uncaches", "frees", "begins", "starts", "ends", "reports", "delivers", "late_copies", "late_cancels")
)
"""Methods of ``Runtime`` that do not ask for a request."""

MAY_BE_REFUSED: dict[str, frozenset[str]] = {
    "alloc": frozenset({"headroom-reserved", "backpressure"}),
    "lease": frozenset({"headroom", "lease-order"}),
    "share": frozenset({"headroom-reserved", "backpressure", "share-prefix"}),
    "cache": frozenset({"cache-busy", "cache-prefix"}),
    "begin": frozenset({"budget-exceeded", "forward-during-plan", "shared-write", "step-order"}),
    "start": frozenset({"forward-during-plan"}),
    "plan": frozenset({"layout-during-forward", "rate-limit", "not-eligible"}),
    "defer": frozenset({"rate-limit"}),
    "commit": frozenset({"layout-during-forward"}),
    "release": frozenset({"tail-capacity"}),
}
"""By kind of event or phase of a forward, the codes under which a correct runtime may meet a refusal: it
cannot know better, and has to try again. Any other refusal of one of its events is a failure."""


class Driven(Counted):
    """A machine, a runtime that makes events from its state, and the oracle that judges them.

    Attributes:
        configs: one of them is drawn for each example.

    """

    configs: ClassVar[tuple[MachineConfig, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[ev.Event] = []
        self.trying: tuple[ev.Event, ...] = ()
        self.offered: list[ev.Event] = []
        self.num_contents = 0
        self._found: dict[str, list[ev.Event]] = {}
        self._found_at = -1

    @initialize(config=PICK, jobs=JOBS)
    def set_up(self, config: int, jobs: list[tuple[int, int, int | None]]) -> None:
        """Fix the configuration and what the clients ask for."""
        self.tally.examples += 1
        wanted = [
            Job(f"r{index}", self.prompt_of(index, length), num_outputs, budget)
            for index, (length, num_outputs, budget) in enumerate(jobs)
        ]
        self.runtime = Runtime(choose(self.configs, config), wanted)
        self.machine = self.runtime.machine
        self.device = Device(self.machine.config)
        with self.recorded():
            self.enter()

    def prompt_of(self, index: int, length: int) -> tuple[int, ...]:
        """Return the prompt of a request: one that no other has."""
        return tuple(range(100 * index + 100, 100 * index + 100 + length))

    def enter(self) -> None:
        """Let the requests enter that enter before anything else: all but one."""
        while len(self.found("admits")) > 1:
            self.offer("admits", 0)

    # Giving events to the machine.

    def give(self, event: ev.Event, may_refuse: bool | frozenset[str] = False) -> bool:
        """Give an event to the machine and judge what it does with it.

        Args:
            event: legal or not.
            may_refuse: whether the machine may refuse it, or the codes by which it may.

        """
        self.begin_step()
        self.trying = (event,)
        before = self.frozen() if may_refuse else b""
        try:
            self.runtime.apply(event)
        except VTokenError as error:
            self._refused(event, error, may_refuse, before)
            self.trying = ()
            return False
        self.device.follow(event)
        self.check_reserve(event)
        self.check_agreement()
        self.device.check_intact()
        self.trying = ()
        self.taken.append(event)
        for what in self.device.of_note(event):
            self.happened(what)
        return True

    def _refused(
        self, event: ev.Event, error: VTokenError, may_refuse: bool | frozenset[str], before: bytes
    ) -> None:
        if may_refuse is False or (isinstance(may_refuse, frozenset) and error.code not in may_refuse):
            raise Disagreement(f"a legal {event.kind} is refused: {error}")
        if is_changed(before, self.frozen()):
            raise Disagreement(f"a {event.kind} is refused ({error.code}), and yet something has changed")
        self.happened(f"refused {error.code}")

    def frozen(self) -> bytes:
        """Return the whole state of the machine as bytes."""
        machine = self.machine
        for req_id in machine.workers:
            machine.visible_digest(req_id)  # Kept until it changes: not part of the state.
        return pickle.dumps({**vars(machine), "table": vars(machine.table), "pool": vars(machine.pool)})

    def keep(self, problem: str) -> None:
        """Keep the events of this example, also the one that led to the problem."""
        events = (*self.taken, *self.trying)
        name = f"{type(self).__name__}: {problem}"
        self.tally.fail(problem, len(events), Counterexample(name, self.machine.config, events, problem))

    # What must hold in every state, said of the machine's own attributes.

    def check_agreement(self) -> None:
        """Hold the machine's requests, block lists and pool to what the events have said.

        Raises:
            Disagreement: they differ.

        """
        machine, device = self.machine, self.device
        if {req_id: request.epoch for req_id, request in machine.requests.items()} != device.current:
            raise Disagreement("the requests alive are others, or in other epochs")
        for req_id, number in device.current.items():
            epoch = (req_id, number)
            request, stream, unsent = machine.requests[req_id], device.streams[epoch], device.unsent[epoch]
            if machine.is_worked(*epoch):
                if machine.workers[req_id].block_ids != stream.block_ids:
                    raise Disagreement(f"the worker's list of {req_id} is not {stream.block_ids}")
                if machine.length(req_id) != device.length(epoch):
                    raise Disagreement(
                        f"{req_id} is {machine.length(req_id)} long, not {device.length(epoch)}"
                    )
            if machine.steps or not stream.is_told:
                continue
            whole = [*stream.block_ids, *unsent.block_ids]
            if request.block_ids != whole:
                raise Disagreement(f"the scheduler's list of {req_id} is {request.block_ids}, not {whole}")
            length = len(unsent.vocab_ids) or device.length(epoch)
            if request.length != length:
                raise Disagreement(f"the scheduler thinks {req_id} {request.length} long, not {length}")
        self._check_pool()

    def check_reserve(self, event: ev.Event) -> None:
        """Hold an allocation to leave the blocks that leases may still need.

        Raises:
            Disagreement: it takes some of them.

        """
        pool = self.machine.pool
        num_left, num_reserved = len(pool.free_blocks), pool.headroom - len(pool.leases)
        if isinstance(event, ev.Alloc) and event.block_ids and num_left < num_reserved:
            raise Disagreement(f"{event} leaves {num_left} free blocks of the {num_reserved} reserved")

    def _check_pool(self) -> None:
        pool, device = self.machine.pool, self.device
        states = [*pool.free_blocks, *pool.holders, *pool.leases, *pool.fences]
        if sorted(states) != list(pool.block_ids):
            raise Disagreement("a block is in no state or in two")
        if len(pool.leases) > pool.headroom:
            raise Disagreement(f"{len(pool.leases)} blocks are leased, the headroom is {pool.headroom}")
        holders: dict[int, set[str]] = {}
        for req_id, blocks in device.held.items():
            for block_id in blocks:
                holders.setdefault(block_id, set()).add(req_id)
        if pool.holders != holders:
            raise Disagreement(f"the pool's holders are {pool.holders}, not {holders}")
        if not self.machine.is_async:
            leases = {block_id: req_id for req_id, blocks in device.leases.items() for block_id in blocks}
            if pool.leases != leases:
                raise Disagreement(f"the pool's leases are {pool.leases}, not {leases}")

    # Events of a correct runtime.

    def found(self, name: str) -> list[ev.Event]:
        """Return the events that the runtime could emit now, by one of its methods."""
        if self._found_at != self.machine.num_events:
            self._found, self._found_at = {}, self.machine.num_events
        if name not in self._found:
            method = getattr(self.runtime, name)
            found = method() if name in GLOBAL else [e for r in self.runtime.jobs for e in method(r)]
            self._found[name] = found
        return self._found[name]

    def found_for(self, name: str, req_id: str) -> list[ev.Event]:
        """Return those of one request."""
        found: list[ev.Event] = getattr(self.runtime, name)(req_id)
        return found

    def attested(self, event: ev.Event) -> ev.Event:
        """Return an event with what the device has computed, written and read in it."""
        match event:
            case ev.Sync():
                written = range(self.num_contents, self.num_contents + len(event.slots))
                self.num_contents += len(event.slots)
                return replace(event, fingerprints=tuple(f"{number:016x}" for number in written))
            case ev.Forward(phase="end"):
                return replace(event, reads=tuple(self._read_back(event.step, read) for read in event.reads))
            case ev.Commit():
                return self._with_digests(event)
        return event

    def _read_back(self, step: int, read: ev.Read) -> ev.Read:
        epoch = (read.req_id, read.epoch)
        if not self.device.is_worked(epoch):
            return read
        self.device.check_reading(step, epoch)
        visible = self.device.reading(step, epoch)
        return read._replace(length=len(visible), digest=self.device.digest(visible))

    def _with_digests(self, event: ev.Commit) -> ev.Commit:
        device, epoch = self.device, (event.req_id, event.epoch)
        slots, live = device.streams[epoch].slots, device.oracle.live(epoch)
        moved = {move.token_id: move.dst_slot for move in event.moves}
        after = [(t, device.memory.get(moved.get(t, slots.get(t, -1)), "0")) for t, _ in live]
        return replace(event, digest_before=device.digest(live), digest_after=device.digest(after))

    def offer(self, name: str, pick: int) -> bool:
        """Give one of the events of a correct runtime, if there is one; tell whether it was taken."""
        found = self.found(name)
        return bool(found) and self.try_one(choose(found, pick))

    def offer_all(self, name: str, pick: int = 0) -> bool:
        """Give events of a kind until there is none or one is refused; tell whether any was taken."""
        any_taken = False
        while self.offer(name, pick):
            any_taken = True
        return any_taken

    def try_one(self, *events: ev.Event) -> bool:
        """Give the event of a correct runtime, if there is one; tell whether it was taken."""
        if not events:
            return False
        event = self.attested(events[0])
        self.offered = [*self.offered[-MOST_OFFERED:], event]
        kind = event.phase if isinstance(event, ev.Forward) else event.kind
        return self.give(event, MAY_BE_REFUSED.get(kind, False))

    def is_over_budget(self, req_id: str) -> bool:
        """Tell whether the worker has to evict tokens of a request."""
        worker = self.machine.workers.get(req_id)
        if worker is None or worker.budget is None:
            return False
        return self.machine.num_live(req_id) > worker.budget

    # The end of every example.

    def teardown(self) -> None:
        """Let everything come to rest: then every block is free."""
        if not self.has_failed and hasattr(self, "device"):
            with self.recorded():
                self.settle()

    def settle(self) -> None:
        """End all requests, deliver all messages, let the last copies end, free all blocks, end the run."""
        self._finish_steps()
        for epoch in list(self.device.current.items()):
            self.give(ev.Abort(*epoch))
        for _ in range(MOST_SETTLING_STEPS):
            self._finish_steps()
            if not self.machine.is_async or not (self.machine.to_forget or self.machine.retiring):
                break
            self.give(ev.Forward(self.machine.last_step + 1, "begin", ()))
        self.offer_all("late_cancels")
        if self.machine.pool.fences:
            self.give(ev.Free(tuple(self.machine.pool.fences)))
        num_free = len(self.machine.pool.free_blocks)
        if num_free != len(self.machine.config.block_ids):
            raise Disagreement(f"at the end only {num_free} blocks come free")
        end = ev.End(self.machine.num_events, len(self.machine.ended), num_free)
        for other in altered(end, ()):
            self.give(other, may_refuse=True)
        self.give(end)
        self.give(ev.Free(()), may_refuse=True)

    def _finish_steps(self) -> None:
        """Let the steps that have begun come to their end."""
        for _ in range(3):
            self._finish_plans("out_of_place", "copy_on_write")
            self.offer("starts", 0)
            self.offer_all("syncs", -1)
            self.offer("ends", 0)
            if self.machine.reported is not None:
                self._close_window()
            self.deliver_one()

    def deliver_one(self) -> None:
        """Tell the outputs of the step before, then take the oldest report."""
        self.offer_all("outputs")
        self.offer("delivers", 0)
        self.offer_all("outputs")

    def _close_window(self) -> None:
        """Do what must be done before a step is reported, and report it."""
        self.offer_all("late_copies")
        self._finish_plans("in_place")
        for req_id in list(self.machine.workers):
            if self.is_over_budget(req_id):
                self.try_one(*self.found_for("cancels", req_id)[:1])
            while self.is_over_budget(req_id) and self.try_one(*self.found_for("evicts", req_id)[:1]):
                pass
        self.give(self.runtime.report())

    def _finish_plans(self, *strategies: str) -> None:
        for req_id, worker in list(self.machine.workers.items()):
            if worker.plan is not None and worker.plan.plan.strategy in strategies:
                while self.try_one(*self.found_for("copies", req_id)[:1]):
                    pass
                self.try_one(*self.found_for("commits", req_id))


def choose(values: Sequence[T], pick: int) -> T:
    """Return one of some values; a pick below 0 counts from the end."""
    return values[pick % len(values)]


def subset(values: Iterable[T], mask: int) -> list[T]:
    """Return the values whose bit is set."""
    return [value for index, value in enumerate(values) if mask >> index & 1]
