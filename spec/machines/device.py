"""What a device does in a run: memory, the slots that attention is given, and when they are touched.

It follows the events alone and knows none of the spec's state. A forward reads and writes through the
block lists of the moment of its launch; a copy moves bytes when its event comes, also late; a forward
of a request that has ended writes on. The oracle is told, and whatever the device finds in memory is
held against it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spec.machines.accounts import Accounts, demand
from spec.machines.oracle import Disagreement, Epoch, Oracle
from vtoken_ref import events as ev
from vtoken_ref.kv_hash import digest
from vtoken_ref.machine import MachineConfig

SPOILED = "f" * 15
"""Begins the content that nobody asked for."""


@dataclass(slots=True)
class Stream:
    """Where one epoch of a request has its tokens.

    Attributes:
        block_ids: the block list that attention is given.
        known: the blocks of it that were there when tokens were last written.
        slots: by token, live or dead, until it is reclaimed.
        plan: the plan that is copied, also when the epoch has ended.
        left: its tokens that are not copied.
        is_told: whether the scheduler has been told of every change of the block list.
        is_worked: whether the worker has heard of it and not been told to forget it.

    """

    block_ids: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    slots: dict[int, int] = field(default_factory=dict)
    plan: ev.Plan | None = None
    left: set[int] = field(default_factory=set)
    is_told: bool = True
    is_worked: bool = False


@dataclass(slots=True)
class Launch:
    """What a forward was given for one request when it was launched.

    Attributes:
        block_ids: the block list.
        slots: of the visible tokens; new ones join as they are written.
        first_new: the first token that it computes.
        num_query: how many it computes.
        unwritten: the slots that it has still to write; empty where the device is told only later.

    """

    block_ids: tuple[int, ...]
    slots: dict[int, int]
    first_new: int
    num_query: int
    unwritten: list[int]


@dataclass(slots=True)
class Message:
    """What a step tells the worker of one request."""

    block_ids: list[int] = field(default_factory=list)
    vocab_ids: tuple[int, ...] = ()
    contents: tuple[str, ...] = ()


class Device(Accounts):
    """Memory and block lists of a run.

    Attributes:
        oracle: what is true of the tokens.
        memory: what each slot holds.
        streams: by epoch.
        running: by step, what each epoch was given.
        unsent: by epoch, what the next step tells the worker of it.
        messages: by step that is not started, what it tells.
        forgotten: by step that is not started, the epochs that it tells the worker to forget.
        was_recycled: whether the last tokens were written over dead ones.
        was_stale: whether the last report was of an epoch that had ended, in part.

    """

    def __init__(self, config: MachineConfig) -> None:
        super().__init__(config)
        self.oracle = Oracle(config.view == "indirect")
        self.memory: dict[int, str] = {}
        self.streams: dict[Epoch, Stream] = {}
        self.running: dict[int, dict[Epoch, Launch]] = {}
        self.unsent: dict[Epoch, Message] = {}
        self.messages: dict[int, dict[Epoch, Message]] = {}
        self.forgotten: dict[int, list[Epoch]] = {}
        self.was_recycled = self.was_stale = False
        self._num_spoiled = 0

    def follow(self, event: ev.Event) -> None:
        """Do what an event that was accepted says.

        Raises:
            Disagreement: the oracle or the accounts say that this must not happen.

        """
        if isinstance(event, ev.Alloc | ev.Lease | ev.Free):
            self._check_unused(event)
        if isinstance(event, ev.Deliver):
            told = {(layout.req_id, layout.epoch) for layout in self.reports[event.step].layouts}
            self.was_stale = not told <= self.current.items()
        self.account(event)
        getattr(self, f"_{event.kind}", lambda event: None)(event)

    def of_note(self, event: ev.Event) -> Iterator[str]:
        """Yield what is of note in an event that was just followed, its kind first."""
        is_dead = getattr(event, "epoch", None) != self.current.get(getattr(event, "req_id", ""))
        match event:
            case ev.Copy() | ev.Cancel() if is_dead:
                yield f"took late {event.kind}"
            case ev.Plan():
                yield f"took plan {event.strategy}"
            case ev.Forward():
                yield f"took forward {event.phase}"
            case _:
                yield f"took {event.kind}"
        if event.kind in ("copy", "commit") and self.running:
            yield f"{event.kind} during a forward"
        if isinstance(event, ev.Sync) and self.was_recycled:
            yield "recycled a slot"
        if isinstance(event, ev.Deliver) and self.was_stale:
            yield "dropped a report of a dead epoch"

    # What memory says.

    def reading(self, step: int, epoch: Epoch) -> list[tuple[int, str]]:
        """Return the tokens that attention reads, each with what memory holds where it reads it."""
        launch, block_size = self.running[step][epoch], self.config.block_size
        token_ids = [token_id for token_id, _ in self.oracle.visible(epoch)]
        if self.config.view == "packed":
            slots = [
                launch.block_ids[index // block_size] * block_size + index % block_size
                for index in range(len(token_ids))
            ]
        else:
            slots = [launch.slots[token_id] for token_id in token_ids]
        return [
            (token_id, self.memory.get(slot, "")) for token_id, slot in zip(token_ids, slots, strict=True)
        ]

    def check_reading(self, step: int, epoch: Epoch) -> None:
        """Hold what attention reads to what it must see.

        Raises:
            Disagreement: attention reads something else.

        """
        read, visible = self.reading(step, epoch), self.oracle.visible(epoch)
        if read != visible:
            token_id = next(a[0] for a, b in zip(read, visible, strict=True) if a != b)
            raise Disagreement(
                f"attention of {epoch} reads something else than token {token_id} in its place"
            )

    def check_intact(self) -> None:
        """Hold every token that attention may still read to be in memory where it is known to be.

        Raises:
            Disagreement: it was overwritten, or left behind.

        """
        for epoch in self.current.items():
            stream = self.streams[epoch]
            is_packing = stream.plan is not None and stream.plan.strategy == "in_place"
            copied = self._copied(stream)
            expected = self.oracle.live(epoch) if is_packing and copied else self.oracle.visible(epoch)
            for token_id, content in expected:
                places = [stream.slots.get(token_id, -1), *copied.get(token_id, ())]
                for slot in places[1:] if is_packing and token_id in copied else places:
                    if self.memory.get(slot) != content:
                        raise Disagreement(f"slot {slot} does not hold token {token_id} of {epoch}")

    def _copied(self, stream: Stream) -> dict[int, tuple[int]]:
        moves = stream.plan.moves if stream.plan else ()
        return {move.token_id: (move.dst_slot,) for move in moves if move.token_id not in stream.left}

    def length(self, epoch: Epoch) -> int:
        """Return the resident length: slots up to the last one that a token has."""
        stream = self.streams[epoch]
        return 1 + max((self._index(stream, slot) for slot in stream.slots.values()), default=-1)

    def is_in_use(self, block_id: int) -> bool:
        """Tell whether somebody would notice if a block were given away."""
        users = [*self.held.values(), *self.leases.values()]
        for step in self.running.values():
            users += [set(launch.block_ids) for launch in step.values()]
        for told in self.messages.values():
            users += [{*self.streams[epoch].block_ids, *message.block_ids} for epoch, message in told.items()]
        for stream in self.streams.values():
            users.append(set(self._destinations(stream)))
        return any(block_id in blocks for blocks in users)

    def is_needed_by_others(self, epoch: Epoch, block_id: int) -> bool:
        """Tell whether a block of this epoch is cached, or another request relies on what it holds."""
        own = epoch[0] if self.is_current(epoch) else ""
        users = [blocks for req_id, blocks in self.held.items() if req_id != own]
        if self.is_async:
            others = [stream for other, stream in self.streams.items() if other[0] != epoch[0]]
            users += [set(stream.block_ids) for stream in others if stream.is_worked]
            for told in self.messages.values():
                users += [set(m.block_ids) for other, m in told.items() if other[0] != epoch[0]]
        return block_id in self.cached or any(block_id in blocks for blocks in users)

    def _check_unused(self, event: ev.Alloc | ev.Lease | ev.Free) -> None:
        for index, block_id in enumerate(event.block_ids):
            is_free = block_id not in event.block_ids[:index] and not self.is_in_use(block_id)
            demand(is_free, f"block {block_id} is given away by a {event.kind} and somebody still uses it")

    # Requests.

    def _admit(self, event: ev.Admit) -> None:
        self._enter(event.req_id, 0)

    def _preempt(self, event: ev.Preempt) -> None:
        self._enter(event.req_id, event.epoch + 1)

    def _enter(self, req_id: str, number: int) -> None:
        self.streams[req_id, number], self.unsent[req_id, number] = Stream(), Message()
        self.oracle.begin((req_id, number))

    def _output(self, event: ev.Output) -> None:
        position = self.num_known[event.req_id] - 1
        num_computed = len(self.oracle.epochs[event.req_id, event.epoch].vocab_ids)
        demand(
            num_computed >= position if self.is_async else num_computed == position,
            f"output {position} of {event.req_id} is told with {num_computed} tokens computed",
        )
        self.oracle.sample(event.req_id, position, event.vocab_ids[0])

    # Blocks.

    def _alloc(self, event: ev.Alloc) -> None:
        epoch = (event.req_id, self.current[event.req_id])
        self.give(event.block_ids)
        (self.unsent[epoch] if self.is_async else self.streams[epoch]).block_ids.extend(event.block_ids)

    def _lease(self, event: ev.Lease) -> None:
        self.give(event.block_ids)

    def _release(self, event: ev.Release) -> None:
        epoch = (event.req_id, event.epoch)
        stream = self.streams[epoch]
        is_cut = bool(stream.known.intersection(event.block_ids))
        stream.block_ids = [block_id for block_id in stream.block_ids if block_id not in event.block_ids]
        stream.known -= set(event.block_ids)
        self._reclaim(epoch, is_cut)

    def _cache(self, event: ev.Cache) -> None:
        epoch, block_size = (event.req_id, event.epoch), self.config.block_size
        vocab_ids = self.oracle.epochs[epoch].vocab_ids[: len(event.block_ids) * block_size]
        for index in range(len(vocab_ids)):
            slot = event.block_ids[index // block_size] * block_size + index % block_size
            found = self.oracle.stands_for.get(self.memory.get(slot, ""))
            demand(found == (tuple(vocab_ids[: index + 1]), True), f"slot {slot} is cached for token {index}")

    def _share(self, event: ev.Share) -> None:
        epoch, block_size = (event.req_id, event.epoch), self.config.block_size
        slots = [
            event.block_ids[index // block_size] * block_size + index % block_size
            for index in range(len(event.vocab_ids))
        ]
        contents = tuple(self.memory.get(slot, "") for slot in slots)
        message = Message(list(event.block_ids), event.vocab_ids, contents)
        if self.is_async:
            self.unsent[epoch] = message
        else:
            self._hear(epoch, message)

    def _hear(self, epoch: Epoch, message: Message) -> None:
        """Take in what the scheduler tells of a request."""
        stream, block_size = self.streams[epoch], self.config.block_size
        stream.is_worked = True
        stream.block_ids.extend(message.block_ids)
        if not message.vocab_ids:
            return
        for token_id in range(len(message.vocab_ids)):
            block_id = message.block_ids[token_id // block_size]
            stream.slots[token_id] = block_id * block_size + token_id % block_size
        stream.known = set(stream.block_ids)
        self.oracle.share(epoch, message.vocab_ids, message.contents)

    # Forwards.

    def _forward(self, event: ev.Forward) -> None:
        if event.phase == "begin":
            epochs = [(read.req_id, read.epoch) for read in event.reads]
            self.messages[event.step] = {epoch: self.unsent[epoch] for epoch in epochs}
            self.forgotten[event.step], self.to_forget = self.to_forget, []
            self.unsent.update((epoch, Message()) for epoch in epochs)
        if event.phase == "end":
            self._end_forward(event)
        elif event.phase == "start" or not self.is_async:
            for epoch in self.forgotten.pop(event.step):
                self.streams[epoch].is_worked = False
            for epoch, message in self.messages.pop(event.step).items():
                self._hear(epoch, message)
            self.running[event.step] = {(read.req_id, read.epoch): self._launch(read) for read in event.reads}

    def _launch(self, read: ev.Read) -> Launch:
        epoch, block_size = (read.req_id, read.epoch), self.config.block_size
        stream, length = self.streams[epoch], self.length(epoch)
        self._check_launch(read, length)
        visible = [token_id for token_id, _ in self.oracle.visible(epoch)]
        is_told = not self.is_async and read.length > length
        unwritten = [
            stream.block_ids[index // block_size] * block_size + index % block_size
            for index in (range(length, length + read.num_query) if is_told else ())
        ]
        slots = {token_id: stream.slots[token_id] for token_id in visible}
        first_new = len(self.oracle.epochs[epoch].vocab_ids)
        return Launch(tuple(stream.block_ids), slots, first_new, read.num_query, unwritten)

    def _check_launch(self, read: ev.Read, length: int) -> None:
        """Hold a forward to the lengths, the room and the budget of a request."""
        epoch = (read.req_id, read.epoch)
        admitted, num_slots = (
            self.admitted[read.req_id],
            len(self.streams[epoch].block_ids) * self.config.block_size,
        )
        is_recycling = self.is_async or (read.length == length and read.num_query == 1 and self.may_recycle)
        demand(
            is_recycling or read.length == length + read.num_query, f"{read} begins at a length of {length}"
        )
        demand(read.length == length or length + read.num_query <= num_slots, f"{read} has {num_slots} slots")
        is_decode = len(self.oracle.epochs[epoch].vocab_ids) >= admitted.num_prompt_tokens
        num_live = len(self.oracle.live(epoch))
        is_within = admitted.budget is None or num_live <= admitted.budget
        demand(not is_decode or is_within, f"{read} begins with {num_live} live tokens")

    @property
    def may_recycle(self) -> bool:
        """Whether a run writes tokens over dead ones."""
        return self.config.strategy in (None, "recycle")

    def launch_of(self, epoch: Epoch) -> Launch:
        """Return what the running forward was given for an epoch.

        Raises:
            Disagreement: no forward runs with it.

        """
        for launches in self.running.values():
            if epoch in launches:
                return launches[epoch]
        raise Disagreement(f"no forward runs with {epoch}")

    def _sync(self, event: ev.Sync) -> None:
        epoch = (event.req_id, event.epoch)
        stream, launch = self.streams[epoch], self.launch_of(epoch)
        over = {slot: token_id for token_id, slot in stream.slots.items()}
        is_next = self._index(stream, event.slots[0]) >= self.length(epoch) if event.slots else True
        if is_next and launch.unwritten[: len(event.slots)] != list(event.slots) and not self.is_async:
            raise Disagreement(f"{epoch} writes {event.slots}, its forward was given {launch.unwritten}")
        del launch.unwritten[: len(event.slots)]
        self.was_recycled = not is_next
        for token_id, slot in enumerate(event.slots, event.first_token_id):
            reclaimed = over.get(slot)
            if reclaimed is not None:
                stream.slots.pop(reclaimed)
                launch.slots.pop(reclaimed, None)
            stream.slots[token_id] = launch.slots[token_id] = slot
        if is_next:
            stream.known = set(stream.block_ids)
        self._write(event.slots, event.fingerprints)
        replaced = over.get(event.slots[0]) if event.slots else None
        self.oracle.write(epoch, event.first_token_id, event.vocab_ids, event.fingerprints, replaced)
        if not is_next:
            demand(self.may_recycle and launch.num_query == 1, f"{event} writes over a dead token")
            self.oracle.epochs[epoch].is_recycled = True

    def _end_forward(self, event: ev.Forward) -> None:
        for read in event.reads:
            epoch = (read.req_id, read.epoch)
            if self.is_worked(epoch):
                self.check_reading(event.step, epoch)
                self._check_told(event.step, read)
            else:
                spoiled = self.running[event.step][epoch].unwritten
                self._write(spoiled, [self._spoil() for _ in spoiled])
        del self.running[event.step]

    def is_worked(self, epoch: Epoch) -> bool:
        """Tell whether a forward that runs with an epoch still tells of it."""
        return self.is_async or epoch in self.current.items()

    def _check_told(self, step: int, read: ev.Read) -> None:
        epoch = (read.req_id, read.epoch)
        visible, launch = self.oracle.visible(epoch), self.running[step][epoch]
        if (read.length, read.digest) != (len(visible), self.digest(visible)):
            raise Disagreement(
                f"a forward tells of {read.length} tokens of {epoch} what memory does not hold"
            )
        if len(self.oracle.epochs[epoch].vocab_ids) != launch.first_new + launch.num_query:
            raise Disagreement(f"a forward of {epoch} ends before it has written all its tokens")
        new = list(range(launch.first_new, launch.first_new + launch.num_query))
        last = [token_id for token_id, _ in visible[-launch.num_query :]]
        if self.config.view == "packed" and launch.num_query > 1 and last != new:
            raise Disagreement(f"the tokens {new} that {epoch} computes are not the last ones")

    def _spoil(self) -> str:
        self._num_spoiled += 1
        return f"{SPOILED}{self._num_spoiled}"

    # The worker.

    def _evict(self, event: ev.Evict) -> None:
        epoch = (event.req_id, event.epoch)
        if event.token_ids and any(epoch in launches for launches in self.running.values()):
            raise Disagreement(f"{epoch} loses tokens while a forward reads them")
        self.oracle.evict(epoch, event.token_ids)

    def _plan(self, event: ev.Plan) -> None:
        epoch = (event.req_id, event.epoch)
        stream, block_size = self.streams[epoch], self.config.block_size
        demand(stream.plan is None, f"{epoch} has two plans at once")
        demand(set(event.source_blocks) <= set(stream.block_ids), f"{event} empties blocks of others")
        if event.strategy != "copy_on_write" and not self.is_async:
            live = [stream.slots[token_id] // block_size for token_id, _ in self.oracle.live(epoch)]
            num_moving = sum(block_id in event.source_blocks for block_id in live)
            needed = -(-num_moving // block_size)
            demand(needed == len(event.destination_blocks), f"{event} needs {needed} destinations")
            self._check_worth(event, self.length(epoch) - len(live))
        stream.plan, stream.left = event, {move.token_id for move in event.moves}

    def _check_worth(self, event: ev.Plan, num_dead: int) -> None:
        """Where a run says when plans are made, a whole block is to be won."""
        is_worth = self.config.reclaim is None or num_dead >= self.config.block_size
        demand(is_worth, f"{event} is made for {num_dead} dead tokens")

    def _copy(self, event: ev.Copy) -> None:
        stream = self.streams[event.req_id, event.epoch]
        if stream.plan is None or not stream.left.issuperset(event.token_ids):
            raise Disagreement(f"tokens {event.token_ids} of {event.req_id} are copied and no plan says so")
        nbytes = self.config.nbytes_per_token
        demand(nbytes is None or event.nbytes == nbytes * len(event.token_ids), f"{event} miscounts bytes")
        moves = [move for move in stream.plan.moves if move.token_id in event.token_ids]
        contents = [self.memory.get(move.src_slot, "") for move in moves]
        self._write([move.dst_slot for move in moves], contents)
        stream.left -= set(event.token_ids)

    def _commit(self, event: ev.Commit) -> None:
        epoch = (event.req_id, event.epoch)
        stream, live = self.streams[epoch], self.oracle.live(epoch)
        plan = stream.plan
        if plan is None or stream.left:
            raise Disagreement(f"{epoch} commits before its tokens are copied")
        if {event.digest_before, event.digest_after} != {self.digest(live)}:
            raise Disagreement(f"the commit of {epoch} tells of other tokens than it has")
        taken = {move.dst_slot for move in event.moves}
        stream.slots = {t: slot for t, slot in stream.slots.items() if slot not in taken}
        stream.slots.update((move.token_id, move.dst_slot) for move in event.moves)
        stream.block_ids, stream.plan, stream.is_told = list(event.block_ids), None, not self.is_async
        known = (stream.known - set(plan.source_blocks)) | set(plan.destination_blocks)
        stream.known = known & set(event.block_ids)
        self.commit(event, plan)
        self._reclaim(epoch, plan.strategy != "copy_on_write")
        if event.length != self.length(epoch):
            raise Disagreement(f"{epoch} is {self.length(epoch)} long after its commit, not {event.length}")

    def _cancel(self, event: ev.Cancel) -> None:
        stream = self.streams[event.req_id, event.epoch]
        is_moved = stream.plan is not None and stream.plan.strategy == "in_place" and self._copied(stream)
        is_dead = (event.req_id, event.epoch) not in self.current.items()
        demand(is_dead or not is_moved, f"{event} gives up a plan that has moved tokens over others")
        stream.plan, stream.left = None, set()

    def _reclaim(self, epoch: Epoch, is_cut: bool) -> None:
        """Take their places from dead tokens outside the block list, and if it is cut, from those at its end.

        Nothing is cut in a shared block, since nothing may be written there.
        """
        stream, block_size = self.streams[epoch], self.config.block_size
        live = {token_id for token_id, _ in self.oracle.live(epoch)}
        listed = set(stream.block_ids)
        gone = [token_id for token_id, slot in stream.slots.items() if slot // block_size not in listed]
        if live & set(gone):
            raise Disagreement(f"a block of {epoch} is given up with live token {min(live & set(gone))}")
        for token_id in gone:
            del stream.slots[token_id]
        staying = [
            slot
            for token_id, slot in stream.slots.items()
            if token_id in live or self.is_needed_by_others(epoch, slot // block_size)
        ]
        last = max((self._index(stream, slot) for slot in staying), default=-1)
        if is_cut:
            stream.slots = {t: slot for t, slot in stream.slots.items() if self._index(stream, slot) <= last}
        if self.oracle.is_exact:
            return
        order = sorted(stream.slots, key=lambda token_id: self._index(stream, stream.slots[token_id]))
        self.oracle.lay_out(epoch, order)
        if [self._index(stream, stream.slots[token_id]) for token_id in order] != list(range(len(order))):
            raise Disagreement(f"the tokens of {epoch} have a hole between them")

    # Messages.

    def _report(self, event: ev.Report) -> None:
        for layout in event.layouts:
            epoch = (layout.req_id, layout.epoch)
            has = (list(layout.block_ids), layout.num_tokens, layout.length)
            stream, num_tokens = self.streams[epoch], len(self.oracle.epochs[epoch].vocab_ids)
            demand(
                has == (stream.block_ids, num_tokens, self.length(epoch)), f"{layout} is not what {epoch} has"
            )
        for epoch, stream in self.streams.items():
            is_late = bool(stream.left) and stream.plan is not None and stream.plan.strategy == "in_place"
            demand(
                not is_late, f"step {event.step} is reported while tokens of {epoch} are moved over others"
            )
            stream.is_told = True

    # Inside.

    def digest(self, tokens: Sequence[tuple[int, str]]) -> str:
        """Return the digest of tokens with their contents."""
        return digest((token_id, int(content, 16)) for token_id, content in tokens)

    def _write(self, slots: Sequence[int], contents: Sequence[str]) -> None:
        for slot, content in zip(slots, contents, strict=True):
            block_id = slot // self.config.block_size
            if self.is_protected(block_id):
                raise Disagreement(f"slot {slot} is written and its block is shared")
            self.memory[slot] = content

    def _index(self, stream: Stream, slot: int) -> int:
        block_id, offset = divmod(slot, self.config.block_size)
        if block_id not in stream.block_ids:
            raise Disagreement(f"a token is in slot {slot}, outside of the blocks {stream.block_ids}")
        return stream.block_ids.index(block_id) * self.config.block_size + offset

    def _destinations(self, stream: Stream) -> Iterator[int]:
        if stream.plan is not None:
            yield from (
                m.dst_slot // self.config.block_size for m in stream.plan.moves if m.token_id in stream.left
            )
