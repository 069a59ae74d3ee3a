"""What vToken cannot do right yet is refused when the engine is configured, with what to change."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.port import UsageError
from gpu_impl.vllm.port import SCHEDULER, WORKER, VllmPort, import_vllm, make_engine
from tests.engine_support import save_tiny_model, tiny_job

pytestmark = pytest.mark.engine

import_vllm()

from vllm.config import LoRAConfig  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

from gpu_impl.vllm import config as vtoken_config  # noqa: E402
from gpu_impl.vllm.config import UnsupportedError, VTokenConfig, check_supported  # noqa: E402
from gpu_impl.vllm.kv_manager import evictable  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def configure(model: Path, **changes: Any) -> Any:
    args: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_batched_tokens": 2048,
        "block_size": 32,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "skip_tokenizer_init": True,
        "scheduler_cls": SCHEDULER,
        "worker_cls": WORKER,
        "additional_config": {"vtoken": {"policy": "streaming_llm", "budget": 64}},
    }
    return EngineArgs(**{**args, **changes}).create_engine_config()


def test_the_plain_configuration_is_supported(model: Path) -> None:
    check_supported(configure(model))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_prefix_caching": True}, "enable_prefix_caching=False"),
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill=False"),
        ({"pipeline_parallel_size": 2}, "parallel sizes to 1"),
        ({"tensor_parallel_size": 2}, "parallel sizes to 1"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "remove speculative_config",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "remove kv_transfer_config",
        ),
    ],
)
def test_a_feature_is_refused(model: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_supported(configure(model, **changes))


def set_async(config: Any) -> None:
    config.scheduler_config.async_scheduling = True


def set_lora(config: Any) -> None:
    config.lora_config = LoRAConfig()


def set_block_size(config: Any) -> None:
    config.cache_config.block_size = 48


def set_fp8(config: Any) -> None:
    config.cache_config.cache_dtype = "fp8_e4m3"


def set_context_parallel(config: Any) -> None:
    config.parallel_config.decode_context_parallel_size = 2


def set_pooling(config: Any) -> None:
    config.model_config.runner_type = "pooling"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_async, "async_scheduling=False"),
        (set_lora, "enable_lora=False"),
        (set_block_size, "multiple of 32"),
        (set_fp8, "kv_cache_dtype='auto'"),
        (set_context_parallel, "decode_context_parallel_size=1"),
        (set_pooling, "runner='generate'"),
    ],
)
def test_a_finished_configuration_is_refused(model: Path, change: Any, words: str) -> None:
    config = configure(model)
    change(config)
    with pytest.raises(UnsupportedError, match=words):
        check_supported(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_encoder_decoder": True}, "decoder-only"),
        ({"use_mla": True}, "MHA, GQA or MQA"),
        ({"is_multimodal_model": True}, "text model"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds=False"),
    ],
)
def test_a_model_is_refused(model: Path, changes: dict[str, Any], words: str) -> None:
    """Models of these kinds do not come in a package; what vLLM says of them does."""
    real = configure(model)
    kinds = ("runner_type", "is_encoder_decoder", "use_mla", "is_multimodal_model", "enable_prompt_embeds")
    of_model = {name: getattr(real.model_config, name) for name in kinds}
    parts = ("cache", "scheduler", "parallel", "speculative", "kv_transfer", "lora")
    config = SimpleNamespace(
        model_config=SimpleNamespace(**{**of_model, **changes}),
        use_v2_model_runner=False,
        **{f"{part}_config": getattr(real, f"{part}_config") for part in parts},
    )
    with pytest.raises(UnsupportedError, match=words):
        check_supported(config)


def test_another_vllm_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vtoken_config, "vllm_version", lambda: "0.33.1")
    with pytest.raises(UnsupportedError, match=r"supports vLLM 0\.32\.x, found 0\.33\.1"):
        check_supported(configure(model))
    with pytest.raises(UsageError, match=r"supports vLLM 0\.32\.x, found 0\.33\.1"):
        VllmPort().check(tiny_job(model, None))


def test_the_second_model_runner_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(model)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(UnsupportedError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        check_supported(config)


def test_a_sliding_window_layer_is_refused() -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    plain = {"block_size": 32, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
    assert list(evictable({"layer": FullAttentionSpec(**plain)})) == ["layer"]
    for spec in (
        SlidingWindowSpec(**plain, sliding_window=64),
        FullAttentionSpec(**plain, sliding_window=64),
    ):
        with pytest.raises(UnsupportedError, match="not plain full attention"):
            evictable({"layer": spec})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "additional_config="),
        ({"policy": "streaming_llm", "budgets": 3}, "no setting 'budgets'"),
        ({"policy": "streaming_llm", "strategy": "out_of_place"}, "use in_place"),
        ({"policy": "streaming_llm", "theta_f": "often"}, "no fraction"),
        ({"policy": "streaming_llm", "theta_f": "3/2"}, "outside 0 to 1"),
        ({"policy": "streaming_llm", "budget": 0}, "budget"),
        ({"policy": "streaming_llm", "budget": 4}, "at least 5"),
        ({"policy": "streaming_llm", "budget": 99.5}, "at least 5"),
        ({"policy": "streaming_llm", "seed": "zero"}, "seed must be an integer"),
        ({"policy": "streaming_llm", "policy_args": {"num_sinks": 4.5}}, "num_sinks must be an integer"),
        ({"policy": "streaming_llm", "low_watermark": -1}, "low_watermark must be a number of blocks"),
        ({"policy": "streaming_llm", "low_watermark": "3"}, "low_watermark must be a number of blocks"),
        ({"policy": "no_such_policy"}, "no policy 'no_such_policy'"),
    ],
)
def test_wrong_settings_are_refused(model: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        VTokenConfig.of(configure(model, additional_config={"vtoken": settings}))


def test_a_foreign_worker_is_refused_by_the_scheduler(model: Path, tmp_path: Path) -> None:
    job = dataclasses.replace(tiny_job(model, tmp_path / "trace.jsonl"))
    with pytest.raises(UsageError, match="set worker_cls"):
        make_engine(job, worker_cls="vllm.v1.worker.cpu_worker.CPUWorker")
    assert not (tmp_path / "trace.jsonl").exists()
