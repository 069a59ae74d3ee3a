"""A small runtime with real KV memory and no model: the real reclaimer under a simple scheduler.

It makes traces in milliseconds, for tests of the spec, of replay and of tampering.
"""

import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import torch

from conformance.trace import Configuration, Geometry, Header, Identity, TraceWriter
from gpu_impl.kv_cache import generic_layout
from gpu_impl.reclaimer import ForwardRead, Reclaimer
from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Event,
    Finish,
    Forward,
    Free,
    Output,
    Preempt,
    Read,
)
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import num_blocks_for
from vtoken_ref.policies import StreamingLLM
from vtoken_ref.policy import Policy
from vtoken_ref.reclaim import ReclaimConfig

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 2, 2, 4


class ToyRuntime:
    """Admits, steps, preempts and ends requests; ``events`` is the trace so far."""

    def __init__(
        self,
        num_blocks: int = 24,
        block_size: int = 4,
        policy: Policy | None = None,
        seed: int = 0,
        reclaimer_cls: type[Reclaimer] = Reclaimer,
    ) -> None:
        self.block_size = block_size
        self.block_ids = range(num_blocks)
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        shape = (num_blocks, NUM_HEADS, block_size, 2 * HEAD_DIM)
        self.cache = generic_layout([torch.zeros(shape) for _ in range(NUM_LAYERS)], block_size)
        self.reclaimer = reclaimer_cls(
            self.cache,
            policy or StreamingLLM(num_sinks=1),
            ReclaimConfig(theta_f=Fraction(0)),
            recording=True,
        )
        self.free_blocks = list(self.block_ids)
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.num_prompt_tokens: dict[str, int] = {}
        self.budgets: dict[str, int | None] = {}
        self.epochs: dict[str, int] = {}
        self.step_number = -1
        self.events: list[Event] = []

    def machine(self) -> Machine:
        """Return a fresh spec for this runtime's trace."""
        return Machine(MachineConfig(self.block_size, self.block_ids))

    def admit(self, req_id: str, num_prompt_tokens: int, budget: int | None) -> None:
        self.events.append(Admit(req_id, num_prompt_tokens, budget))
        self.tokens[req_id] = [self.random.randrange(100) for _ in range(num_prompt_tokens)]
        self.num_prompt_tokens[req_id] = num_prompt_tokens
        self.budgets[req_id] = budget
        self.blocks[req_id] = []
        self.epochs[req_id] = -1
        self._start(req_id)

    def num_needed(self, req_id: str) -> int:
        """Return the blocks that the request's next forward still needs."""
        length = self.reclaimer.length(req_id) + self._num_query(req_id)
        return num_blocks_for(length, self.block_size) - len(self.blocks[req_id])

    def step(self, req_ids: Sequence[str]) -> None:
        """Run one forward of these requests and everything that follows it."""
        reads = []
        for req_id in req_ids:
            needed = self.num_needed(req_id)
            if needed > 0:
                taken = [self.free_blocks.pop(0) for _ in range(needed)]
                self.blocks[req_id] += taken
                self.events.append(Alloc(req_id, tuple(taken)))
            length = self.reclaimer.length(req_id) + self._num_query(req_id)
            reads.append(Read(req_id, self.epochs[req_id], self._num_query(req_id), length, ""))
        self.step_number += 1
        self.events.append(Forward(self.step_number, "begin", tuple(reads)))
        report = self.reclaimer.after_forward(
            self.step_number, [self._forward(read) for read in reads], len(self.free_blocks)
        )
        self.events += report.events
        for req_id, layout in report.layouts.items():
            given_up = [b for b in self.blocks[req_id] if b not in layout.block_ids]
            self.blocks[req_id] = list(layout.block_ids)
            self._free(given_up)
        for req_id in req_ids:
            vocab_id = self.random.randrange(100)
            self.events.append(Output(req_id, self.epochs[req_id], self.step_number, (vocab_id,)))
            self.tokens[req_id].append(vocab_id)

    def preempt(self, req_id: str) -> None:
        self.events.append(Preempt(req_id, self.epochs[req_id]))
        self._take_back(req_id)
        self._start(req_id)

    def abort(self, req_id: str) -> None:
        self.events.append(Abort(req_id, self.epochs[req_id]))
        self._end(req_id)

    def finish(self, req_id: str) -> None:
        self.events.append(Finish(req_id, self.epochs[req_id], "stop"))
        self._end(req_id)

    def write(self, path: Path, events: Sequence[Event] | None = None) -> Path:
        """Write a trace of these events, or of the run, with its end."""
        writer = TraceWriter(path, self.header())
        for event in self.events if events is None else events:
            writer.write(event)
        writer.close(len(self.free_blocks))
        return path

    def header(self) -> Header:
        return Header(
            identity=Identity("toy", "1", "0", "none"),
            geometry=Geometry(
                block_size=self.block_size,
                first_block_id=0,
                num_blocks=len(self.block_ids),
                num_layers=NUM_LAYERS,
                num_kv_heads=NUM_HEADS,
                head_dim=HEAD_DIM,
                dtype="float32",
            ),
            configuration=Configuration(
                strategy="in_place", theta_f="0", low_watermark=None, headroom=0, check_eligibility=True
            ),
            view="packed",
            visibility="at_reclaim",
            policy="streaming_llm",
            policy_args={},
            seed=0,
        )

    def _num_query(self, req_id: str) -> int:
        return len(self.tokens[req_id]) - self._num_computed(req_id)

    def _num_computed(self, req_id: str) -> int:
        table = self.reclaimer.table
        return table.num_tokens(req_id) if req_id in table else 0

    def _forward(self, read: Read) -> ForwardRead:
        """Write random KV to the slots of the new tokens, as an attention layer would."""
        blocks = torch.tensor(self.blocks[read.req_id])
        index = torch.arange(read.length)
        slots = blocks[index // self.block_size] * self.block_size + index % self.block_size
        written = slots[-read.num_query :]
        shape = (read.num_query, NUM_LAYERS, 2, NUM_HEADS, HEAD_DIM)
        self.cache.scatter(written, torch.randn(shape, generator=self.generator))
        computed = self._num_computed(read.req_id)
        return ForwardRead(
            req_id=read.req_id,
            num_computed_tokens=computed,
            vocab_ids=tuple(self.tokens[read.req_id][computed:]),
            written_slots=written,
            read_slots=slots,
            block_ids=tuple(self.blocks[read.req_id]),
        )

    def _start(self, req_id: str) -> None:
        self.epochs[req_id] += 1
        self.reclaimer.start(
            req_id, self.epochs[req_id], req_id, self.budgets[req_id], self.num_prompt_tokens[req_id]
        )

    def _take_back(self, req_id: str) -> None:
        self.reclaimer.drop(req_id)
        self._free(self.blocks[req_id])
        self.blocks[req_id] = []

    def _free(self, block_ids: list[int]) -> None:
        if block_ids:
            self.free_blocks += block_ids
            self.events.append(Free(tuple(block_ids)))

    def _end(self, req_id: str) -> None:
        self._take_back(req_id)
        del self.blocks[req_id]


def sample_run(reclaimer_cls: type[Reclaimer] = Reclaimer, policy: Policy | None = None) -> ToyRuntime:
    """Return a finished run with evictions, relocations, a preemption, an abort and a finish."""
    runtime = ToyRuntime(reclaimer_cls=reclaimer_cls, policy=policy)
    runtime.admit("a", 14, budget=10)
    runtime.admit("b", 9, budget=7)
    runtime.step(["a"])
    for _ in range(8):
        runtime.step(["a", "b"])
    runtime.preempt("b")
    runtime.admit("c", 5, budget=None)
    for _ in range(6):
        runtime.step(["b", "a", "c"])
    runtime.abort("c")
    runtime.step(["a", "b"])
    runtime.finish("a")
    runtime.finish("b")
    return runtime
