"""What is collected while a trace is replayed: the figures of a run, and the oracle's input."""

from conformance.history import EpochHistory, QuerySpan, Sampled
from vtoken_ref.events import Commit, Copy, Event, Evict, Forward, Output, Preempt, Read, Release, Sync
from vtoken_ref.machine import Machine
from vtoken_ref.planner import num_blocks_for


class RunFigures:
    """The figures of a run.

    Attributes:
        tokens_evicted: tokens that policies marked dead.
        kv_hashes_compared: digests read back from memory that the spec compared with its own.
        relocations: plans committed.
        blocks_reclaimed: blocks that requests gave up while they went on.
        bytes_moved: KV bytes copied.
        preemptions: epochs that the scheduler ended.

    """

    def __init__(self) -> None:
        self.tokens_evicted = 0
        self.kv_hashes_compared = 0
        self.relocations = 0
        self.blocks_reclaimed = 0
        self.bytes_moved = 0
        self.preemptions = 0
        self._num_samples = 0
        self._retained = 0
        self._packed_ideal = 0
        self._no_reclamation = 0

    def observe(self, event: Event, machine: Machine) -> None:
        """Count one event."""
        match event:
            case Evict():
                self.tokens_evicted += len(event.token_ids)
            case Copy():
                self.bytes_moved += event.nbytes
            case Commit():
                self.relocations += 1
                self.kv_hashes_compared += 2
            case Release():
                self.blocks_reclaimed += len(event.block_ids)
            case Preempt():
                self.preemptions += 1
            case Forward(phase="end"):
                current = [read for read in event.reads if machine.is_current(read.req_id, read.epoch)]
                self.kv_hashes_compared += len(current)
            case Forward(phase="begin"):
                for read in event.reads:
                    self._sample_blocks(read, machine)

    def blocks(self) -> dict[str, float | None]:
        """Return mean blocks per request over its decode steps after its first eviction.

        ``retained`` are the blocks held when the forward begins, the one for its new token included.
        ``packed_ideal`` is ceil(live / S) of the tokens that the policy kept; ``no_reclamation`` is
        ceil(tokens / S), what the request would hold if nothing were given back. None without a
        step to count.
        """
        sums = {
            "retained": self._retained,
            "packed_ideal": self._packed_ideal,
            "no_reclamation": self._no_reclamation,
        }
        count = self._num_samples
        return {name: round(total / count, 3) if count else None for name, total in sums.items()}

    def _sample_blocks(self, read: Read, machine: Machine) -> None:
        if not machine.num_evicted(read.req_id):
            return
        block_size = machine.config.block_size
        num_tokens = machine.table.num_tokens(read.req_id) + read.num_query
        self._num_samples += 1
        self._retained += machine.pool.num_held_by(read.req_id)
        self._packed_ideal += num_blocks_for(machine.table.num_live(read.req_id), block_size)
        self._no_reclamation += num_blocks_for(num_tokens, block_size)


class HistoryRecorder:
    """Rebuilds, for every epoch, what was computed, what was visible then, and what was sampled."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[str, int], EpochHistory] = {}

    def observe(self, event: Event, machine: Machine) -> None:
        """Take in one event."""
        match event:
            case Sync():
                self._epoch(event.req_id, event.epoch).vocab_ids.extend(event.vocab_ids)
            case Forward(phase="end"):
                for read in event.reads:
                    if machine.is_current(read.req_id, read.epoch):
                        visible = tuple(machine.table.resident_tokens(read.req_id))
                        first = machine.table.num_tokens(read.req_id) - read.num_query
                        history = self._epoch(read.req_id, read.epoch)
                        history.spans.append(QuerySpan(first, read.num_query, visible))
            case Output():
                last = machine.table.num_tokens(event.req_id) - 1
                history = self._epoch(event.req_id, event.epoch)
                history.outputs.extend(Sampled(last, vocab_id) for vocab_id in event.vocab_ids)

    def outputs(self) -> dict[str, list[int]]:
        """Return what was sampled for each request, over all its epochs."""
        sampled: dict[str, list[int]] = {}
        for (req_id, _), history in sorted(self.epochs.items()):
            sampled.setdefault(req_id, []).extend(output.vocab_id for output in history.outputs)
        return sampled

    def _epoch(self, req_id: str, epoch: int) -> EpochHistory:
        return self.epochs.setdefault((req_id, epoch), EpochHistory(req_id, epoch))
