"""vLLM's KV-cache manager for attention whose tokens can be evicted, by the KV-cache spec registry.

vLLM counts blocks by the tokens a request has computed; here a request needs slots only for the
tokens that are still resident. ``num_dropped`` is the difference, as the worker reported it last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from gpu_impl.vllm.config import UnsupportedError
from gpu_impl.vllm.recorder import Recorder
from vtoken_ref.events import Alloc, Free, Layout
from vtoken_ref.protocol import given_up, merged_block_list


@dataclass(frozen=True, kw_only=True)
class VTokenAttentionSpec(FullAttentionSpec):
    """Full attention whose tokens can be evicted."""


class VTokenKVManager(FullAttentionManager):
    """Blocks of each request, by physical length."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_dropped: dict[str, int] = {}
        self.recorder = Recorder(None)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        *args: Any,
        **kwargs: Any,
    ) -> int:
        """Count the blocks that the request's resident tokens still need."""
        dropped = self.num_dropped.get(request_id, 0)
        return super().get_num_blocks_to_allocate(
            request_id,
            num_tokens - dropped,
            new_computed_blocks,
            total_computed_tokens - dropped,
            *args,
            **kwargs,
        )

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Allocate blocks for the request's resident tokens."""
        dropped = self.num_dropped.get(request_id, 0)
        blocks = super().allocate_new_blocks(
            request_id, num_tokens - dropped, num_tokens_main_model - dropped
        )
        if blocks:
            self.recorder.record(Alloc(request_id, tuple(block.block_id for block in blocks)))
        return blocks

    def apply_layout(self, request_id: str, layout: Layout) -> None:
        """Take a worker's report: replace the list it was made for, free what it gave up.

        Blocks appended since the report was made are kept. Freed by id, never by position.
        """
        current = {block.block_id: block for block in self.req_to_blocks[request_id]}
        merged = merged_block_list(request_id, list(current), layout.made_for, layout.block_ids)
        freed = given_up(layout.made_for, layout.block_ids)
        self.req_to_blocks[request_id] = [current[block_id] for block_id in merged]
        self.num_dropped[request_id] = layout.num_tokens - layout.length
        self.block_pool.free_blocks([current[block_id] for block_id in reversed(freed)])
        if freed:
            self.recorder.record(Free(freed))

    def free(self, request_id: str) -> None:
        """Free all blocks of a request that ends or is preempted."""
        block_ids = tuple(block.block_id for block in self.req_to_blocks.get(request_id, ()))
        super().free(request_id)
        self.num_dropped.pop(request_id, None)
        if block_ids:
            self.recorder.record(Free(block_ids))


def evictable(specs: dict[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the same specs with every full-attention layer evictable, and their manager registered.

    Raises:
        UnsupportedError: some layer is not plain full attention.

    """
    for layer_name, spec in specs.items():
        if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size:
            raise UnsupportedError(
                f"layer {layer_name} is not plain full attention; vToken cannot evict from hybrid,"
                " sliding-window or MLA models yet, use another model"
            )
    # The registry fills itself with vLLM's own specs at its first use: use it before adding ours.
    KVCacheSpecRegistry.check_kv_cache_spec_registry(specs)
    register()
    return {
        layer_name: VTokenAttentionSpec(**{f.name: getattr(spec, f.name) for f in fields(spec) if f.init})
        for layer_name, spec in specs.items()
    }


def register() -> None:
    """Tell vLLM which manager serves evictable attention; again is no error."""
    KVCacheSpecRegistry.register(
        VTokenAttentionSpec, VTokenKVManager, uniform_type_base_spec=FullAttentionSpec
    )
