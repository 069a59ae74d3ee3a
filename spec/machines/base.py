"""What the state machines that drive ``vtoken_ref.machine.Machine`` have in common.

``spec.runtime`` makes the events that a correct runtime could emit; rules choose among them, in any
order, with faults between them. Other rules make events that may be illegal. Each event goes to the
real machine; what it takes, the device does and the oracle judges. What it refuses must have changed
nothing, and must not have been legal for all that a correct runtime knows.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from spec.machines.device import Device
from spec.machines.oracle import Disagreement
from spec.machines.tally import Tally
from spec.report import Counterexample
from spec.runtime import Job, Runtime
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig
from vtoken_ref.rules import VTokenError
from vtoken_ref.transitions.messages import is_changed, layout_of

PICK = st.integers(0, 2**16 - 1)
"""Which one of those that there are; 0 is the first."""

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
    "evict": frozenset({"worker-idle"}),
    "plan": frozenset({"worker-idle", "layout-during-forward", "rate-limit", "not-eligible"}),
    "defer": frozenset({"worker-idle", "rate-limit"}),
    "commit": frozenset({"layout-during-forward"}),
    "release": frozenset({"worker-idle", "tail-capacity"}),
}
"""By kind of event or phase of a forward, the codes under which a correct runtime may meet a refusal: it has to try again."""


class Driven(RuleBasedStateMachine):
    """A machine, a runtime that makes events from its state, and the oracle that judges them."""

    tally: ClassVar[Tally] = Tally()
    tick: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Called before each event; raises ``OutOfTime``."""
    configs: ClassVar[tuple[MachineConfig, ...]]
    prompt_of: ClassVar[Callable[[int, int], tuple[int, ...]]]

    def __init__(self) -> None:
        super().__init__()
        self.has_failed = False
        self.taken: list[ev.Event] = []
        self.offered: list[ev.Event] = []
        self.num_contents = 0
        self._found: dict[str, list[ev.Event]] = {}
        self._found_at = -1

    @initialize(
        config=PICK,
        jobs=st.lists(
            st.tuples(st.integers(1, 8), st.integers(2, 12), st.sampled_from((None, 3, 5, 2))),
            min_size=2,
            max_size=4,
        ),
    )
    def set_up(self, config: int, jobs: list[tuple[int, int, int | None]]) -> None:
        """Fix the configuration and what the clients ask for."""
        self.tick()
        self.tally.examples += 1
        wanted = [
            Job(f"r{index}", self.prompt_of(index, length), num_outputs, budget)
            for index, (length, num_outputs, budget) in enumerate(jobs)
        ]
        self.runtime = Runtime(choose(self.configs, config), wanted)
        self.machine = self.runtime.machine
        self.device = Device(self.machine.config)
        while self.offer("admits", 0):
            pass
        self.offered.clear()

    # Giving events to the machine.

    def give(self, event: ev.Event, may_refuse: bool | frozenset[str] = False) -> bool:
        """Give an event to the machine and judge what it does with it.

        Args:
            event: legal or not.
            may_refuse: whether the machine may refuse it, or the codes by which it may.

        """
        self.tick()
        self.tally.steps += 1
        with self.recorded(event):
            before = self.frozen() if may_refuse is True else b""
            try:
                self.runtime.apply(event)
            except VTokenError as error:
                self._refused(event, error, may_refuse, before)
                return False
            self.device.follow(event)
            self.check_agreement()
            self.device.check_intact()
        self.taken.append(event)
        self._note(event)
        if isinstance(event, ev.Deliver):
            self.offer_all("outputs")
        return True

    def _note(self, event: ev.Event) -> None:
        """Count what was taken, and what of note it was."""
        what = event.kind
        if isinstance(event, ev.Plan):
            what = f"plan {event.strategy}"
        elif isinstance(event, ev.Forward):
            what = f"forward {event.phase}"
        elif isinstance(event, ev.Copy) and event.epoch != self.device.current.get(event.req_id):
            what = "late copy"
        elif isinstance(event, ev.Cancel) and event.epoch != self.device.current.get(event.req_id):
            what = "late cancel"
        self.happened(f"took {what}")
        if isinstance(event, ev.Commit) and self.device.running:
            self.happened("commit during a forward")
        if isinstance(event, ev.Copy) and self.device.running:
            self.happened("copy during a forward")

    def _refused(
        self, event: ev.Event, error: VTokenError, may_refuse: bool | frozenset[str], before: bytes
    ) -> None:
        if may_refuse is False or (isinstance(may_refuse, frozenset) and error.code not in may_refuse):
            raise Disagreement(f"a legal {event.kind} is refused: {error}")
        if may_refuse is True and self.frozen() != before:
            raise Disagreement(f"a {event.kind} is refused ({error.code}), and yet something has changed")
        self.happened(f"refused {error.code}")

    def frozen(self) -> bytes:
        """Return the whole state of the machine as bytes."""
        for req_id in self.machine.workers:
            self.machine.visible_digest(req_id)  # Kept until it changes: not part of the state.
        machine = self.machine
        state = {**vars(machine), "table": vars(machine.table), "pool": vars(machine.pool)}
        return pickle.dumps(state)

    @contextmanager
    def recorded(self, *event: ev.Event) -> Iterator[None]:
        """Keep the events of this example as the counterexample when something is wrong."""
        try:
            yield
        except Exception as error:
            self.has_failed = True
            said = str(error) if isinstance(error, Disagreement) else f"{type(error).__name__}: {error}"
            name = type(self).__name__
            events = (*self.taken, *event)
            self.tally.problem = said
            self.tally.failure = Counterexample(name, self.machine.config, events, said)
            raise

    def happened(self, what: str) -> None:
        """Count something."""
        self.tally.happened[what] += 1

    def fired(self, name: str) -> None:
        """Count a rule."""
        self.tally.rules[name] += 1

    # What must hold in every state, said of the machine's own attributes.

    def check_agreement(self) -> None:
        """Hold the machine's block lists and its pool to what the events have said.

        Raises:
            Disagreement: they differ.

        """
        machine, device = self.machine, self.device
        if {req_id: request.epoch for req_id, request in machine.requests.items()} != device.current:
            raise Disagreement("the requests alive are others, or in other epochs")
        for req_id, number in device.current.items():
            request, stream = machine.requests[req_id], device.streams[req_id, number]
            if machine.is_worked(req_id, number):
                if machine.workers[req_id].block_ids != stream.block_ids:
                    raise Disagreement(f"the worker's list of {req_id} is not {stream.block_ids}")
                if machine.length(req_id) != device.length((req_id, number)):
                    raise Disagreement(f"{req_id} is {device.length((req_id, number))} long")
            if not machine.steps and stream.is_told:
                whole = [*stream.block_ids, *device.unsent[req_id, number].block_ids]
                if request.block_ids != whole:
                    raise Disagreement(f"the scheduler's list of {req_id} is not {whole}")
                told = len(device.unsent[req_id, number].vocab_ids) or device.length((req_id, number))
                if request.length != told:
                    raise Disagreement(f"the scheduler thinks {req_id} {request.length} long, not {told}")
        self._check_pool()

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
            with self.recorded():
                method = getattr(self.runtime, name)
                found = method() if name in GLOBAL else [e for r in self.runtime.jobs for e in method(r)]
                self._found[name] = found
        return self._found[name]

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
        """Give one of the events of a correct runtime; it may meet a refusal that it can handle."""
        found = self.found(name)
        if not found:
            return False
        return self.try_one(choose(found, pick))

    def try_one(self, *events: ev.Event) -> bool:
        """Give the event of a correct runtime, if there is one; tell whether it was taken."""
        if not events:
            return False
        (event,) = map(self.attested, events)
        self.offered = [*self.offered[-MOST_OFFERED:], event]
        kind = event.phase if isinstance(event, ev.Forward) else event.kind
        return self.give(event, MAY_BE_REFUSED.get(kind, False))

    def offer_all(self, name: str) -> bool:
        """Give events of this kind, the last choice each time, until there is none or one is refused."""
        any_taken = False
        while self.offer(name, -1):
            any_taken = True
        return any_taken

    # The end of every example.

    def teardown(self) -> None:
        """Let everything come to rest: then every block is free."""
        if self.has_failed or not hasattr(self, "machine"):
            return
        self.settle()

    def settle(self) -> None:
        """End all requests, deliver all messages, let the last copies end, free all blocks, end the run."""
        self._finish_step()
        for req_id, epoch in list(self.device.current.items()):
            self.give(ev.Abort(req_id, epoch))
        for _ in range(MOST_SETTLING_STEPS):
            self._finish_step()
            if not self.machine.is_async or not (self.machine.to_forget or self.machine.retiring):
                break
            self.give(ev.Forward(self.machine.last_step + 1, "begin", ()))
        while self.offer("late_cancels", 0):
            pass
        if self.machine.pool.fences:
            self.give(ev.Free(tuple(self.machine.pool.fences)))
        num_free = len(self.machine.pool.free_blocks)
        if num_free != len(self.machine.config.block_ids):
            with self.recorded():
                raise Disagreement(f"at the end {num_free} blocks are free, some never will be")
        self.give(ev.End(self.machine.num_events, len(self.machine.ended), num_free))

    def _finish_step(self) -> None:
        """Let what has begun come to its end."""
        for _ in range(3):
            self._finish_plans("out_of_place", "copy_on_write")
            self.offer("starts", 0)
            self.offer_all("syncs")
            self.offer("ends", 0)
            if self.machine.reported is not None:
                self._close_window()
            self.offer("delivers", 0)

    def _finish_plans(self, *strategies: str) -> None:
        for req_id, worker in list(self.machine.workers.items()):
            if worker.plan is not None and worker.plan.plan.strategy in strategies:
                while self.try_one(*self.runtime.copies(req_id)[:1]):
                    pass
                self.try_one(*self.runtime.commits(req_id))

    def is_over_budget(self, req_id: str) -> bool:
        """Tell whether the worker has to evict tokens of a request."""
        worker = self.machine.workers.get(req_id)
        return worker is not None and worker.budget is not None and self.machine.num_live(req_id) > worker.budget

    def _close_window(self) -> None:
        """Do what must be done before a step is reported."""
        self.offer_all("late_copies")
        self._finish_plans("in_place")
        for req_id in list(self.machine.workers):
            if self.is_over_budget(req_id):
                self.try_one(*self.runtime.cancels(req_id))
            while self.is_over_budget(req_id) and self.try_one(*self.runtime.evicts(req_id)[:1]):
                pass
        machine = self.machine
        layouts = [
            layout_of(machine, req_id, worker)
            for req_id, worker in machine.workers.items()
            if is_changed(machine, req_id, worker)
        ]
        if machine.reported is not None:
            self.give(ev.Report(machine.reported, tuple(layouts)))


def choose(values: Sequence[Any], pick: int) -> Any:
    """Return one of some values; a pick below 0 counts from the end."""
    return values[pick % len(values)]


def subset(values: Iterable[Any], mask: int) -> list[Any]:
    """Return the values whose bit is set."""
    return [value for index, value in enumerate(values) if mask >> index & 1]

