"""A real vLLM engine under eviction: replay passes, the oracle agrees, every block comes back."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.port import Served, ServeJob, ServeResult
from conformance.replay import replay
from conformance.trace import TraceReader
from conformance.verdict import Verdict
from gpu_impl.fingerprint import fingerprints
from gpu_impl.kv_cache import cpu_attention_layout
from gpu_impl.vllm.port import make_engine, scheduler_of
from tests.engine_support import (
    BLOCK_SIZE,
    Checked,
    check,
    judge,
    random_prompts,
    save_tiny_model,
    serve,
    serve_and_check,
    tiny_job,
)
from vtoken_ref.events import Sync
from vtoken_ref.kv_hash import fingerprint_hex

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("policy", ["streaming_llm", "sliding_window", "random"])
def test_each_policy_is_confirmed_by_replay_and_oracle(model: Path, tmp_path: Path, policy: str) -> None:
    checked = serve_and_check(tiny_job(model, tmp_path / "trace.jsonl", policy=policy))
    checked.assert_right()
    blocks = checked.figures.blocks()
    assert checked.figures.tokens_evicted > 0
    assert checked.figures.blocks_reclaimed > 0
    assert blocks["retained"] <= blocks["packed_ideal"] + 1 < blocks["no_reclamation"]
    if policy != "sliding_window":  # its dead tokens fill whole blocks, which are released without a copy
        assert checked.figures.relocations > 0


def test_an_oracle_with_a_plain_causal_mask_would_disagree(model: Path, tmp_path: Path) -> None:
    """The oracle can fail: told that nothing was evicted, it contradicts the engine."""
    checked = serve_and_check(tiny_job(model, tmp_path / "trace.jsonl"))
    for history in checked.history.epochs.values():
        for span in history.spans:
            span.visible = tuple(range(span.first_token_id + span.num_query))
    assert judge(model, checked.history).mismatched > 0


def test_a_budget_above_the_context_changes_nothing(model: Path, tmp_path: Path) -> None:
    # All requests at once, so that no block is used a second time.
    job = tiny_job(model, tmp_path / "trace.jsonl", budget=2000, concurrency=5)
    checked = serve_and_check(job)
    checked.assert_right()
    assert checked.figures.tokens_evicted == checked.figures.relocations == 0
    outputs, hashes = serve_natively_with_hashes(job)
    assert checked.outputs() == outputs
    with TraceReader(job.trace) as reader:  # type: ignore[arg-type]
        traced: dict[str, list[str]] = {}
        for event in reader:
            if isinstance(event, Sync):
                traced.setdefault(event.req_id.rsplit("-", 1)[0], []).extend(event.fingerprints)
    assert traced == hashes
    assert sum(map(len, hashes.values())) > 1000


def serve_natively_with_hashes(job: ServeJob) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """Serve with plain vLLM; return outputs and the fingerprints of all KV that it left in memory."""
    from vllm import SamplingParams

    # One token more than the job, since a request's block list is gone in the step that ends it.
    longer = dataclasses.replace(job, max_new_tokens=job.max_new_tokens + 1)
    engine = make_engine(longer, native=True)
    params = SamplingParams(
        temperature=0.0, max_tokens=longer.max_new_tokens, ignore_eos=True, detokenize=False
    )
    block_ids: dict[str, list[int]] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    try:
        scheduler = scheduler_of(engine)
        for name, token_ids in job.prompts.items():
            engine.add_request(name, {"prompt_token_ids": token_ids}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                outputs[output.request_id] = tuple(output.outputs[0].token_ids[: job.max_new_tokens])
            for request in scheduler.running:
                name = request.request_id.rsplit("-", 1)[0]
                block_ids[name] = scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
        runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        cache = cpu_attention_layout(runner.kv_caches, job.block_size)
        hashes = {}
        for name, token_ids in job.prompts.items():
            index = torch.arange(len(token_ids) + len(outputs[name]) - 1)
            blocks = torch.tensor(block_ids[name])[index // job.block_size]
            slots = blocks * job.block_size + index % job.block_size
            hashes[name] = [fingerprint_hex(value) for value in fingerprints(cache, slots)]
    finally:
        engine.engine_core.shutdown()
    return outputs, hashes


def test_recording_changes_nothing(model: Path, tmp_path: Path) -> None:
    """What is deployed (no trace) serves the same tokens as what is verified."""
    job = tiny_job(model, tmp_path / "trace.jsonl", policy="random")
    assert serve(job).requests == serve(dataclasses.replace(job, trace=None)).requests


AS_THE_README_SAYS = """
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(
        model=sys.argv[1],
        dtype="float32",
        max_model_len=512,
        block_size=32,
        enforce_eager=True,
        skip_tokenizer_init=True,
        scheduler_cls="gpu_impl.vllm.scheduler.VTokenScheduler",
        worker_cls="gpu_impl.vllm.worker.VTokenWorker",
        additional_config={
            "vtoken": {"policy": "streaming_llm", "budget": 64, "theta_f": "0", "trace": sys.argv[2]}
        },
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
    )
    params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, detokenize=False)
    (served,) = llm.generate([{"prompt_token_ids": list(range(3, 103))}], params, use_tqdm=False)
    print("served", *served.outputs[0].token_ids)
    llm.llm_engine.engine_core.shutdown()
"""


def test_engine_and_worker_in_processes_of_their_own_serve_the_same(model: Path, tmp_path: Path) -> None:
    """As vLLM does by default: messages between scheduler and worker are pickled."""
    script, trace = tmp_path / "serve.py", tmp_path / "trace.jsonl"
    script.write_text(AS_THE_README_SAYS)
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, script, model, trace], capture_output=True, text=True, check=True, env=environment
    )
    (served,) = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("served ")]
    job = tiny_job(
        model, tmp_path / "here.jsonl", prompts={"only": list(range(3, 103))}, budget=64, concurrency=1
    )
    assert tuple(map(int, served)) == serve(job).requests[0].token_ids
    result = replay(trace)
    # vLLM kills an engine process that takes longer than five seconds to end: then there is no end event.
    assert result.rule in (None, "VT-TRACE-004"), result
    text = trace.read_text()
    assert text.count('"event":"finish"') == 1 and text.count('"event":"commit"') > 0


def test_greedy_output_does_not_depend_on_concurrency(model: Path, tmp_path: Path) -> None:
    prompts = random_prompts(16, longest=200)
    outputs = []
    for concurrency in (1, 4, 16):
        job = tiny_job(
            model,
            tmp_path / f"{concurrency}.jsonl",
            prompts=prompts,
            concurrency=concurrency,
            policy="random",
            max_new_tokens=48,
        )
        checked = serve_and_check(job)
        checked.assert_right()
        outputs.append(checked.outputs())
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_preempted_request_starts_over_and_stays_right(model: Path, tmp_path: Path) -> None:
    # Three requests of up to 6 blocks at their prompt, 3 each once evicted, in a pool of 9.
    prompts = random_prompts(5, shortest=20, longest=60)
    job = tiny_job(
        model, tmp_path / "trace.jsonl", prompts=prompts, num_blocks=9, budget=90, max_new_tokens=100
    )
    checked = serve_and_check(job)
    checked.assert_right()
    assert checked.figures.preemptions > 0
    assert checked.figures.tokens_evicted > 0
    assert checked.figures.relocations > 0


def test_an_aborted_request_gives_everything_back(model: Path, tmp_path: Path) -> None:
    from vllm import SamplingParams

    job = tiny_job(model, tmp_path / "trace.jsonl")
    engine = make_engine(job)
    names = list(job.prompts)
    generated: dict[str, tuple[int, ...]] = {}
    params = SamplingParams(temperature=0.0, max_tokens=job.max_new_tokens, ignore_eos=True, detokenize=False)
    try:
        for name in names:
            engine.add_request(name, {"prompt_token_ids": job.prompts[name]}, params)
        num_steps = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                generated[output.request_id] = tuple(output.outputs[0].token_ids)
            num_steps += 1
            if num_steps == 30:
                engine.abort_request([names[0]])  # running
                engine.abort_request([names[-1]])  # still waiting
        pool = scheduler_of(engine).kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    finally:
        engine.engine_core.shutdown()
    served = ServeResult(tuple(Served(n, t, "") for n, t in generated.items()), 0, 0.0, {})
    checked: Checked = check(job, served)
    assert checked.replayed.verdict is Verdict.PASS, checked.replayed
    assert checked.judged.mismatched == 0
    text = job.trace.read_text()  # type: ignore[union-attr]
    assert text.count('"event":"abort"') == 2
    assert text.count('"event":"finish"') == len(names) - 2


def test_a_request_that_ends_on_eos(model: Path, tmp_path: Path) -> None:
    job = tiny_job(model, None)
    tokens = serve(job).requests[0].token_ids
    at, eos = next((i, t) for i, t in enumerate(tokens) if i >= 20 and t not in tokens[:i])
    ending = save_tiny_model(tmp_path / "model", eos_token_id=eos)
    checked = serve_and_check(tiny_job(ending, tmp_path / "trace.jsonl", ignore_eos=False))
    checked.assert_right()
    first = checked.served.requests[0]
    assert (first.finish_reason, first.token_ids) == ("stop", tokens[: at + 1])


def test_a_small_pool_serves_what_full_retention_cannot(model: Path, tmp_path: Path) -> None:
    """The scheduler allocates by physical length: long outputs fit into few blocks."""
    prompts = {"only": list(range(3, 35))}
    job = tiny_job(
        model, tmp_path / "trace.jsonl", prompts=prompts, budget=40, max_new_tokens=400, concurrency=1
    )
    checked = serve_and_check(job)
    checked.assert_right()
    assert checked.figures.preemptions == 0
    blocks = checked.figures.blocks()
    assert blocks["retained"] <= 3 < blocks["no_reclamation"]
    assert len(prompts["only"]) + 400 > 13 * BLOCK_SIZE


def test_one_kv_byte_changed_in_the_engine_is_caught(model: Path, tmp_path: Path) -> None:
    job = tiny_job(model, tmp_path / "trace.jsonl")
    serve(job, worker_cls="tests.faulty_worker.OneByteFlipsWorker")
    result = replay(job.trace)  # type: ignore[arg-type]
    assert (result.verdict, result.rule) == (Verdict.FAIL, "VT-KV-001"), result
    line = job.trace.read_text().splitlines()[result.line - 1]  # type: ignore[union-attr,operator]
    assert line.startswith('{"event":"commit"')
