"""The KV memory of one pool group: where each token's keys and values lie in every layer's tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from vtoken_ref.rules import Rule, VTokenError

# Instruction sets of vLLM's CPU backend that store one (block, head) as K [D, S], then V [S, D].
# "amx", its choice for bfloat16 where the CPU has AMX, interleaves tokens in pairs instead.
CPU_PLAIN_ISAS = ("vec", "vec16")


class LayerKV(NamedTuple):
    """One layer's keys and values, each a view ``[num_blocks, num_kv_heads, block_size, head_dim]``."""

    keys: torch.Tensor
    values: torch.Tensor


class Location(NamedTuple):
    """Slots taken apart: block ids and offsets in them, int64 ``[n]`` on the cache's device."""

    blocks: torch.Tensor
    offsets: torch.Tensor


class KVCache:
    """All layers of one pool group, addressed by slot.

    Args:
        layers: per layer in model order, views of the engine's memory with any strides; all of one
            shape, dtype and device.

    Raises:
        ValueError: no layer, an empty one, or views that differ in shape, dtype or device.

    """

    def __init__(self, layers: Sequence[LayerKV]) -> None:
        self.layers = tuple(layers)
        views = [view for layer in self.layers for view in layer]
        if not views or views[0].dim() != 4 or not views[0].numel():
            raise ValueError(
                "a KV cache needs views [num_blocks, num_kv_heads, block_size, head_dim] that are not empty"
            )
        if len({(view.shape, view.dtype, view.device) for view in views}) > 1:
            raise ValueError("all layers of a KV cache must have one shape, dtype and device")
        self.num_layers = len(self.layers)
        self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim = views[0].shape
        self.num_slots = self.num_blocks * self.block_size
        self.dtype = views[0].dtype
        self.device = views[0].device
        self.nbytes_per_layer = 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize
        self.nbytes_per_token = self.num_layers * self.nbytes_per_layer

    def locate(self, slots: torch.Tensor) -> Location:
        """Return the blocks and offsets of slots.

        Args:
            slots: int64 ``[n]`` on any device; on the CPU the check of the range costs no device sync.

        Raises:
            ValueError: slots are not one-dimensional int64.
            VTokenError: unknown-block.

        """
        if slots.dtype != torch.int64 or slots.dim() != 1:
            raise ValueError(f"slots must be int64 [n], not {slots.dtype} {list(slots.shape)}")
        if slots.numel():
            for slot in (int(slots.min()), int(slots.max())):
                if not 0 <= slot < self.num_slots:
                    raise VTokenError(
                        Rule.UNKNOWN_BLOCK,
                        f"slot {slot} is in block {slot // self.block_size}; the pool has {self.num_blocks}"
                        f" blocks of {self.block_size}",
                    )
        slots = slots.to(self.device)
        return Location(slots // self.block_size, slots % self.block_size)

    def gather(self, slots: torch.Tensor) -> torch.Tensor:
        """Copy tokens out of the cache in canonical order.

        Args:
            slots: int64 ``[n]``.

        Returns:
            ``[n, num_layers, 2 (K, V), num_kv_heads, head_dim]``, contiguous, in the cache's dtype.

        Raises:
            ValueError: slots are not one-dimensional int64.
            VTokenError: unknown-block.

        """
        return self.gather_layers(self.locate(slots), range(self.num_layers))

    def gather_layers(self, where: Location, layers: range) -> torch.Tensor:
        """Copy some layers of tokens: ``[n, len(layers), 2, num_kv_heads, head_dim]``, contiguous."""
        shape = (len(where.blocks), len(layers), 2, self.num_kv_heads, self.head_dim)
        tokens = torch.empty(shape, dtype=self.dtype, device=self.device)
        for index, layer in enumerate(layers):
            for side, view in enumerate(self.layers[layer]):
                tokens[:, index, side] = view[where.blocks, :, where.offsets]
        return tokens

    def scatter(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write tokens into the cache.

        Args:
            slots: int64 ``[n]``, distinct.
            tokens: ``[n, num_layers, 2, num_kv_heads, head_dim]`` in the cache's dtype, on its device.

        Raises:
            ValueError: slots are not one-dimensional int64, or tokens differ in shape, dtype or device.
            VTokenError: unknown-block, slot-used-twice.

        """
        where = self.locate(slots)
        shape = (len(slots), self.num_layers, 2, self.num_kv_heads, self.head_dim)
        if (tokens.shape, tokens.dtype, tokens.device) != (shape, self.dtype, self.device):
            raise ValueError(
                f"tokens must be {self.dtype} {list(shape)} on {self.device},"
                f" not {tokens.dtype} {list(tokens.shape)} on {tokens.device}"
            )
        if len(slots.unique()) != len(slots):
            raise VTokenError(Rule.SLOT_USED_TWICE, "two tokens would be written to one slot")

        for index, layer in enumerate(self.layers):
            for side, view in enumerate(layer):
                view[where.blocks, :, where.offsets] = tokens[:, index, side]


def generic_layout(tensors: Sequence[torch.Tensor], block_size: int) -> KVCache:
    """Return the cache of a backend that keeps K in the first half of the last dimension, V in the second.

    Args:
        tensors: per layer, ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]`` with any strides.
        block_size: slots per block, S.

    Raises:
        ValueError: a tensor has another shape, or the layers differ in shape, dtype or device.

    """
    layers = []
    for tensor in tensors:
        head_dim = _head_dim(tensor, block_size)
        layers.append(LayerKV(tensor[..., :head_dim], tensor[..., head_dim:]))
    return KVCache(layers)


def cpu_attention_layout(tensors: Sequence[torch.Tensor], block_size: int, isa: str = "vec") -> KVCache:
    """Return the cache of vLLM's CPU attention backend.

    Inside one (block, head) the first S*D elements are K as ``[D, S]``, the next S*D are V as ``[S, D]``.

    Args:
        tensors: per layer, ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``; the memory of one
            (block, head) is contiguous, the other strides are any.
        block_size: slots per block, S.
        isa: the instruction set that the backend chose, ``layer.isa`` of an attention layer.

    Raises:
        ValueError: a tensor has another shape or its (block, head) is not contiguous, the layers
            differ in shape, dtype or device, or the layout of the instruction set is another one.

    """
    if isa not in CPU_PLAIN_ISAS:
        raise ValueError(
            f"vLLM's CPU backend runs with isa {isa!r}, whose KV layout is not supported;"
            " for 'amx', which it takes for bfloat16, run the model with dtype float32 or float16"
        )
    layers = []
    for tensor in tensors:
        head_dim = _head_dim(tensor, block_size)
        if tensor.stride()[2:] != (2 * head_dim, 1):
            raise ValueError(f"each (block, head) must be contiguous; the strides are {tensor.stride()}")
        keys, values = tensor.flatten(2).chunk(2, dim=2)
        layers.append(
            LayerKV(
                keys.unflatten(2, (head_dim, block_size)).transpose(2, 3),
                values.unflatten(2, (block_size, head_dim)),
            )
        )
    return KVCache(layers)


def _head_dim(tensor: torch.Tensor, block_size: int) -> int:
    if tensor.dim() != 4 or tensor.shape[2] != block_size or tensor.shape[3] % 2:
        raise ValueError(
            f"a layer must be [num_blocks, num_kv_heads, {block_size}, 2 * head_dim],"
            f" not {list(tensor.shape)}"
        )
    return int(tensor.shape[3]) // 2
