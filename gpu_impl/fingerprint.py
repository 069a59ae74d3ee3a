"""Fingerprints of tokens in KV memory, batched: ``vtoken_ref.kv_hash.fingerprint`` in torch.

The hash is a sum over words, so it is taken tile by tile: some tokens, some layers. int64 arithmetic
wraps, which is arithmetic mod 2**64.

Source: Lemire and Kaser, "Strongly universal string hashing is fast" (multilinear).
"""

from array import array
from functools import lru_cache
from itertools import islice

import torch
from torch.nn.functional import pad

from gpu_impl.kv_cache import KVCache, Location
from vtoken_ref.kv_hash import LANE_SEEDS, MASK_64, WORD_BYTES, splitmix64

MASK_32 = (1 << 32) - 1
# On a CPU a tile of words, their 64-bit copies and one product share a core's cache; on a device
# large tiles mean few kernel launches.
CPU_TILE_WORDS = 1 << 17
DEVICE_TILE_WORDS = 1 << 24


def fingerprints(cache: KVCache, slots: torch.Tensor) -> list[int]:
    """Return the 64-bit fingerprint of the token in each slot, as unsigned ints.

    Args:
        cache: the KV memory.
        slots: int64 ``[n]``, repeats allowed.

    Raises:
        ValueError: slots are not one-dimensional int64.
        VTokenError: unknown-block.

    """
    where = cache.locate(slots)
    tile_words = CPU_TILE_WORDS if cache.device.type == "cpu" else DEVICE_TILE_WORDS
    tokens_per_tile = max(1, tile_words // _words_per_layer_pair(cache))
    tiles = zip(where.blocks.split(tokens_per_tile), where.offsets.split(tokens_per_tile), strict=True)
    lanes = [_lanes(cache, Location(*tile), tile_words) for tile in tiles]
    high, low = torch.cat(lanes, dim=1)
    return [value & MASK_64 for value in (high << 32 | low).tolist()]


def _lanes(cache: KVCache, where: Location, tile_words: int) -> torch.Tensor:
    """Return the 32-bit lanes of some tokens, int64 ``[2, n]``."""
    keys = _keys(-(-cache.nbytes_per_token // WORD_BYTES), cache.device)
    num_tokens = len(where.blocks)
    # An even number of layers is a whole number of words in any dtype.
    step = 2 * max(1, tile_words // (max(1, num_tokens) * _words_per_layer_pair(cache)))
    sums = keys[:, :1].repeat(1, num_tokens)
    first_word = 1
    for first_layer in range(0, cache.num_layers, step):
        layers = range(first_layer, min(first_layer + step, cache.num_layers))
        words = _words(cache.gather_layers(where, layers))
        end_word = first_word + words.shape[1]
        for lane, lane_keys in enumerate(keys[:, first_word:end_word]):
            sums[lane] += (words * lane_keys).sum(dim=1)
        first_word = end_word
    return sums >> 32 & MASK_32


def _words(tokens: torch.Tensor) -> torch.Tensor:
    """Return tokens ``[n, ...]`` as their uint32 words in int64, ``[n, num_words]``."""
    token_bytes = tokens.flatten(1).view(torch.uint8)
    num_missing = -token_bytes.shape[1] % WORD_BYTES
    if num_missing:
        token_bytes = pad(token_bytes, (0, num_missing))
    return token_bytes.view(torch.int32).to(torch.int64).bitwise_and_(MASK_32)


def _words_per_layer_pair(cache: KVCache) -> int:
    return 2 * cache.nbytes_per_layer // WORD_BYTES


@lru_cache(maxsize=8)
def _keys(num_words: int, device: torch.device) -> torch.Tensor:
    """Return k_0 .. k_num_words of each lane as int64 ``[2, 1 + num_words]``."""
    keys = array("Q", (key for seed in LANE_SEEDS for key in islice(splitmix64(seed), 1 + num_words)))
    return torch.frombuffer(keys, dtype=torch.int64).view(len(LANE_SEEDS), -1).to(device)
