"""Fingerprint of one token's KV bytes, digest of a request's ordered tokens.

Canonical bytes of a token: for each layer in model order, K then V, heads outer, head dimension
inner, in the stored dtype whatever the physical layout, padded with zeros to 4 bytes. Under tensor
parallelism a fingerprint is per shard.

Source: Lemire and Kaser, "Strongly universal string hashing is fast" (multilinear).
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator

WORD_BYTES = 4
MASK_64 = (1 << 64) - 1
FINGERPRINT_PATTERN = r"\A[0-9a-f]{16}\Z"
_FINGERPRINT = re.compile(FINGERPRINT_PATTERN)
# The ASCII bytes of "vToken", then the lane's number.
LANE_SEEDS = (0x76546F6B656E0000, 0x76546F6B656E0001)


def splitmix64(seed: int) -> Iterator[int]:
    """Yield the 64-bit outputs of splitmix64 from ``seed``: a lane's keys k_0, k_1, ..."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK_64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
        yield mixed ^ (mixed >> 31)


def fingerprint(kv_bytes: bytes) -> int:
    """Return the 64-bit fingerprint of one token's canonical KV bytes.

    Each lane is ``(k_0 + sum(k_i * w_i) mod 2**64) >> 32`` over the little-endian uint32 words
    w_1..w_n; lane 0 is the high half. Two distinct contents of one length collide with probability
    at most 2**-64 over the keys. It is a sum, so a device may reduce it in any order.
    """
    padded = kv_bytes + bytes(-len(kv_bytes) % WORD_BYTES)
    words: tuple[int, ...] = struct.unpack(f"<{len(padded) // WORD_BYTES}I", padded)
    lanes = []
    for seed in LANE_SEEDS:
        keys = splitmix64(seed)
        total = next(keys) + sum(key * word for word, key in zip(words, keys, strict=False))
        lanes.append((total & MASK_64) >> 32)
    return lanes[0] << 32 | lanes[1]


def fingerprint_hex(value: int) -> str:
    """Return a fingerprint as the trace writes it: 16 hexadecimal digits."""
    return f"{value:016x}"


def is_fingerprint(text: str) -> bool:
    """Tell whether a text is a fingerprint as the trace writes it."""
    return _FINGERPRINT.match(text) is not None


def digest(tokens: Iterable[tuple[int, int]]) -> str:
    """Return the BLAKE2b-128 digest of ``(token id, fingerprint)`` pairs in logical order.

    Each pair is hashed as uint32 then uint64, little endian. The result is 32 hexadecimal digits.
    """
    return digest_of_entries(b"".join(digest_entry(*token) for token in tokens))


def digest_entry(token_id: int, token_fingerprint: int) -> bytes:
    """Return the 12 bytes that one token adds to a digest."""
    return struct.pack("<IQ", token_id, token_fingerprint)


def digest_of_entries(entries: bytes) -> str:
    """Return the digest of concatenated ``digest_entry`` bytes."""
    return hashlib.blake2b(entries, digest_size=16).hexdigest()
