"""Moving tokens: the copies of one plan, batched over tokens, layer by layer.

Source: paper 3.3.3.
"""

from collections.abc import Sequence

import torch

from gpu_impl.kv_cache import KVCache
from vtoken_ref.events import Move
from vtoken_ref.rules import Rule, VTokenError


def relocate(cache: KVCache, moves: Sequence[Move]) -> int:
    """Copy each move's token from its source slot to its destination slot, all layers.

    Sources and destinations may overlap in any way, cycles too: in each layer, all keys (then all
    values) are read before the first is written. So the extra memory is the keys of the moved tokens
    in one layer, ``1 / (2 * num_layers)`` of what is moved. Whether a destination may be overwritten
    is the plan's business.

    Args:
        cache: the KV memory.
        moves: sources distinct, destinations distinct.

    Returns:
        Bytes of KV moved, each counted once.

    Raises:
        VTokenError: unknown-block, slot-used-twice; nothing has been copied then.

    """
    sources = cache.locate(_slots([move.src_slot for move in moves], "source"))
    destinations = cache.locate(_slots([move.dst_slot for move in moves], "destination"))

    for layer in cache.layers:
        for view in layer:
            view[destinations.blocks, :, destinations.offsets] = view[sources.blocks, :, sources.offsets]
    return len(moves) * cache.nbytes_per_token


def _slots(slots: list[int], role: str) -> torch.Tensor:
    if len(set(slots)) != len(slots):
        raise VTokenError(Rule.SLOT_USED_TWICE, f"a slot is the {role} of two moves")
    return torch.tensor(slots, dtype=torch.int64)
