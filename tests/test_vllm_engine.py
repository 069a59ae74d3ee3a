"""A real vLLM engine under eviction: replay passes, the oracle agrees, every block comes back."""

import dataclasses
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from conformance.errors import UsageError
from conformance.observers import RunFigures
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
from vtoken_ref.events import Event, Finish, Preempt, Release, Sync
from vtoken_ref.kv_hash import fingerprint_hex

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def events_of_trace(path: Path) -> list[Event]:
    with TraceReader(path) as reader:
        return list(reader)


def events_of(job: ServeJob) -> list[Event]:
    assert job.trace is not None
    return events_of_trace(job.trace)


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_kv_is_moved_unchanged(model: Path, tmp_path: Path, dtype: str) -> None:
    """Replay compares KV bit for bit; the oracle proves little where logits lie so close."""
    job = tiny_job(model, tmp_path / "trace.jsonl", dtype=dtype, policy="random")
    try:
        served = serve(job)
    except UsageError as error:
        assert dtype == "bfloat16" and "'amx'" in str(error)
        pytest.skip("a CPU with AMX stores bfloat16 KV in pairs of tokens, which is refused")
    figures = RunFigures()
    result = replay(tmp_path / "trace.jsonl", (figures,), paranoid=True)
    assert result.verdict is Verdict.PASS, result
    assert result.header is not None and result.header.geometry.dtype == dtype
    assert figures.relocations > 0 and served.leaked_blocks == 0


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
    traced: dict[str, list[str]] = {}
    for event in events_of(job):
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


def test_an_abort_during_a_forward_is_recorded_behind_it(model: Path, tmp_path: Path) -> None:
    """Aborts come between the worker's step and the scheduler's update."""
    from vllm import SamplingParams

    job = tiny_job(model, tmp_path / "trace.jsonl")
    engine = make_engine(job)
    core = engine.engine_core.engine_core
    params = SamplingParams(temperature=0.0, max_tokens=job.max_new_tokens, ignore_eos=True, detokenize=False)
    try:
        for name, token_ids in job.prompts.items():
            engine.add_request(name, {"prompt_token_ids": token_ids}, params)
        scheduler = scheduler_of(engine)
        engine.step()
        for _ in range(2):
            core.aborts_queue.put_nowait([scheduler.running[0].request_id])
            for _ in range(25):
                engine.step()
        while scheduler.has_unfinished_requests():
            engine.step()
        pool = scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    finally:
        engine.engine_core.shutdown()
    checked = check(job, ServeResult((), 0, 0.0, {}))
    assert checked.replayed.verdict is Verdict.PASS, checked.replayed
    assert checked.judged.mismatched == 0
    lines = job.trace.read_text().splitlines()  # type: ignore[union-attr]
    aborts = [at for at, line in enumerate(lines) if line.startswith('{"event":"abort"')]
    assert len(aborts) == 2


def test_a_request_that_ends_on_eos(model: Path, tmp_path: Path) -> None:
    job = tiny_job(model, None)
    tokens = serve(job).requests[0].token_ids
    at, eos = next((i, t) for i, t in enumerate(tokens) if i >= 20 and t not in tokens[:i])
    ending = save_tiny_model(tmp_path / "model", eos_token_id=eos)
    checked = serve_and_check(tiny_job(ending, tmp_path / "trace.jsonl", ignore_eos=False))
    checked.assert_right()
    first = checked.served.requests[0]
    assert (first.finish_reason, first.token_ids) == ("stop", tokens[: at + 1])
    reasons = {
        event.reason for event in events_of_trace(tmp_path / "trace.jsonl") if isinstance(event, Finish)
    }
    assert reasons == {"stop", "length"}


def test_a_pool_too_small_for_full_retention_preempts_nobody(model: Path, tmp_path: Path) -> None:
    """The scheduler admits and allocates by physical length."""
    prompts = {f"prompt-{at}": list(range(3 + at, 35 + at)) for at in range(4)}
    num_blocks, max_new_tokens = 12, 120
    assert len(prompts) * (32 + max_new_tokens) > num_blocks * BLOCK_SIZE
    job = tiny_job(
        model,
        tmp_path / "trace.jsonl",
        prompts=prompts,
        budget=40,
        max_new_tokens=max_new_tokens,
        num_blocks=num_blocks,
    )
    checked = serve_and_check(job)
    checked.assert_right()
    assert checked.figures.preemptions == 0


def test_a_request_preempted_after_it_gave_blocks_back_starts_over(model: Path, tmp_path: Path) -> None:
    job = tiny_job(
        model,
        tmp_path / "trace.jsonl",
        prompts=random_prompts(5, shortest=20, longest=60),
        num_blocks=9,
        budget=40,
        theta_f=Fraction(2, 5),
        max_new_tokens=140,
    )
    serve_and_check(job).assert_right()
    gave_back, num_preempted = set(), 0
    for event in events_of(job):
        if isinstance(event, Release):
            gave_back.add((event.req_id, event.epoch))
        num_preempted += isinstance(event, Preempt) and (event.req_id, event.epoch) in gave_back
    assert num_preempted > 0


def test_no_relocation_while_many_blocks_are_free(model: Path, tmp_path: Path) -> None:
    relaxed = serve_and_check(tiny_job(model, tmp_path / "relaxed.jsonl", policy="random", low_watermark=1))
    relaxed.assert_right()
    assert relaxed.figures.relocations == 0 < relaxed.figures.tokens_evicted


def test_an_engine_shut_down_with_a_request_running_leaves_no_whole_trace(
    model: Path, tmp_path: Path
) -> None:
    from vllm import SamplingParams

    job = tiny_job(model, tmp_path / "trace.jsonl")
    engine = make_engine(job)
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    for name, token_ids in job.prompts.items():
        params = SamplingParams(temperature=0.0, max_tokens=1 if name == "prompt-0" else 50, detokenize=False)
        engine.add_request(name, {"prompt_token_ids": token_ids}, params)
    for _ in range(5):
        engine.step()
    running = [request.request_id for request in scheduler_of(engine).running]
    assert sorted(runner.reclaimer.table.requests()) == sorted(running), "a finished request is forgotten"
    engine.engine_core.shutdown()
    result = replay(job.trace)  # type: ignore[arg-type]
    assert (result.verdict, result.rule) == (Verdict.INCONCLUSIVE, "VT-TRACE-004")


def test_one_kv_byte_changed_in_the_engine_is_caught(model: Path, tmp_path: Path) -> None:
    job = tiny_job(model, tmp_path / "trace.jsonl")
    serve(job, worker_cls="tests.faulty_worker.OneByteFlipsWorker")
    result = replay(job.trace)  # type: ignore[arg-type]
    assert (result.verdict, result.rule) == (Verdict.FAIL, "VT-KV-001"), result
    line = job.trace.read_text().splitlines()[result.line - 1]  # type: ignore[union-attr,operator]
    assert line.startswith('{"event":"commit"')
