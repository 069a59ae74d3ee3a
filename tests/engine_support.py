"""A tiny random Llama and the steps that engine tests share: serve, replay, judge."""

import random
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from conformance.observers import HistoryRecorder, RunFigures
from conformance.oracle import Oracle, OracleResult
from conformance.port import ServeJob, ServeResult
from conformance.replay import ReplayResult, replay
from conformance.verdict import Verdict
from gpu_impl.vllm.port import WORKER, VllmPort

VOCAB_SIZE = 512
BLOCK_SIZE = 32


def save_tiny_model(folder: Path, **config: Any) -> Path:
    """Save a random 2-layer Llama with grouped-query attention; the same weights every time."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
    }
    LlamaForCausalLM(LlamaConfig(**{**shape, **config})).save_pretrained(folder)
    return folder


def random_prompts(count: int, shortest: int = 80, longest: int = 300) -> dict[str, list[int]]:
    """Return prompts of random vocabulary ids, the same every time."""
    generator = random.Random(count)
    return {
        f"prompt-{index}": [
            generator.randrange(3, VOCAB_SIZE) for _ in range(generator.randint(shortest, longest))
        ]
        for index in range(count)
    }


def tiny_job(model: Path, trace: Path | None, **changes: Any) -> ServeJob:
    """Return a job that evicts and relocates several times in every request."""
    settings: dict[str, Any] = {
        "prompts": random_prompts(5),
        "max_new_tokens": 80,
        "budget": 70,
        "theta_f": Fraction(0),
        "concurrency": 4,
        "ignore_eos": True,
    }
    return ServeJob(model=model, trace=trace, **{**settings, **changes})


@dataclass
class Checked:
    """A served job with its replay and the oracle's judgement."""

    served: ServeResult
    replayed: ReplayResult
    figures: RunFigures
    history: HistoryRecorder
    judged: OracleResult

    def outputs(self) -> dict[str, tuple[int, ...]]:
        return {request.name: request.token_ids for request in self.served.requests}

    def assert_right(self) -> None:
        """Replay passes, nothing leaks, and the oracle confirms every token, ties apart."""
        assert self.replayed.verdict is Verdict.PASS, self.replayed
        assert self.served.leaked_blocks == 0
        assert self.judged.tokens == sum(len(tokens) for tokens in self.outputs().values()) > 0
        assert self.judged.mismatched == 0, self.judged.mismatches
        assert self.judged.ties <= max(1, self.judged.tokens // 500)


def serve(job: ServeJob, native: bool = False, worker_cls: str = WORKER) -> ServeResult:
    """Serve a job without progress."""
    return VllmPort(native, worker_cls).serve(job, lambda done, most: None)


def serve_and_check(job: ServeJob, worker_cls: str = WORKER) -> Checked:
    """Serve a job, replay its trace with every invariant evaluated, ask the oracle."""
    return check(job, serve(job, worker_cls=worker_cls))


def check(job: ServeJob, served: ServeResult) -> Checked:
    """Replay the trace of a served job and ask the oracle."""
    assert job.trace is not None
    figures, history = RunFigures(), HistoryRecorder()
    replayed = replay(job.trace, (figures, history), paranoid=True)
    return Checked(served, replayed, figures, history, judge(job.model, history))


def judge(model: Path, history: HistoryRecorder) -> OracleResult:
    """Return the oracle's results of all epochs together."""
    oracle, total = Oracle(model), OracleResult()
    for epoch in history.epochs.values():
        result = oracle.check(epoch)
        total.tokens += result.tokens
        total.matched += result.matched
        total.ties += result.ties
        total.mismatched += result.mismatched
        total.mismatches += result.mismatches
    return total
