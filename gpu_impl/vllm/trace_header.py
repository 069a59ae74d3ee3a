"""The header of a trace that vLLM makes."""

from importlib.metadata import version
from typing import cast

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig

from conformance.trace import Configuration, Dtype, Geometry, Header, Identity
from gpu_impl.vllm.config import VTokenConfig, vllm_version

NUM_NULL_BLOCKS = 1  # vLLM keeps block 0 as padding; it is never a request's.


def header(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, settings: VTokenConfig) -> Header:
    """Return the header of a run."""
    group = kv_cache_config.kv_cache_groups[0]
    spec = group.kv_cache_spec
    return Header(
        identity=Identity(
            runtime="vllm",
            runtime_version=vllm_version(),
            vtoken_version=version("vtoken"),
            model=vllm_config.model_config.hf_config.architectures[0],
        ),
        geometry=Geometry(
            block_size=spec.block_size,
            first_block_id=NUM_NULL_BLOCKS,
            num_blocks=kv_cache_config.num_blocks - NUM_NULL_BLOCKS,
            num_layers=len(group.layer_names),
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_size,
            dtype=cast(Dtype, str(spec.dtype).removeprefix("torch.")),
        ),
        configuration=Configuration(
            strategy=settings.reclaim.strategy,
            theta_f=str(settings.reclaim.theta_f),
            low_watermark=settings.reclaim.low_watermark,
            headroom=settings.reclaim.headroom,
            check_eligibility=True,
        ),
        view="packed",
        visibility="at_reclaim",
        policy=settings.policy,
        policy_args=settings.policy_args,
        seed=settings.seed,
    )
