"""The block pool: each block is free, held (by one or more requests), leased or fenced.

Source: paper 3.3.2 (headroom inside the same budget), 6 (prefix sharing).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from vtoken_ref.rules import Rule, VTokenError


class Hazard(NamedTuple):
    """Something that may still touch a block: a step, or the worker's part of a dead epoch."""

    kind: Literal["step", "epoch"]
    step: int = -1
    req_id: str = ""
    epoch: int = -1


class CachedPrefix(NamedTuple):
    """What a cached block stands for: the whole prefix up to its last token, and its KV."""

    vocab_ids: tuple[int, ...]
    fingerprints: tuple[str, ...]


class BlockPool:
    """Who has which block. Every operation checks everything first, then changes.

    A held block's refcount is the number of its holders. A block that its last holder gives up is
    fenced: it remembers the hazards of that moment and is free only after they are over. A block may
    be in the prefix cache while it is held, fenced or free; a free one leaves it when it is given out
    for something else.

    Args:
        block_ids: the usable blocks.
        headroom: the most blocks that may be leased at one time.

    """

    def __init__(self, block_ids: range, headroom: int) -> None:
        self.block_ids = block_ids
        self.headroom = headroom
        self.free_blocks = set(block_ids)
        self.holders: dict[int, set[str]] = {}
        self.leases: dict[int, str] = {}
        self.fences: dict[int, frozenset[Hazard]] = {}
        self.cached: dict[int, CachedPrefix] = {}
        self._held_by: dict[str, set[int]] = {}

    def copy(self) -> "BlockPool":
        """Return an independent pool in the same state."""
        other = BlockPool(self.block_ids, self.headroom)
        other.free_blocks = set(self.free_blocks)
        other.holders = {block_id: set(holders) for block_id, holders in self.holders.items()}
        other.leases, other.fences, other.cached = dict(self.leases), dict(self.fences), dict(self.cached)
        other._held_by = {req_id: set(held) for req_id, held in self._held_by.items()}
        return other

    @property
    def num_reserved(self) -> int:
        """Free blocks that are kept back for leases: the headroom that is not leased."""
        return self.headroom - len(self.leases)

    def alloc(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Give free blocks to a request, but not those reserved as headroom.

        Raises:
            VTokenError: unknown-block, not-free, headroom-reserved.

        """
        self._check_free(block_ids)
        self._check_reserve(len(block_ids))

        for block_id in block_ids:
            self.free_blocks.remove(block_id)
            self.cached.pop(block_id, None)
            self._hold(req_id, block_id)

    def check_share(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Tell whether a request may hold cached blocks as well.

        Raises:
            VTokenError: unknown-block, not-cached, headroom-reserved.

        """
        for index, block_id in enumerate(block_ids):
            self._check_cached(block_id)
            if block_id in block_ids[:index] or req_id in self.holders.get(block_id, ()):
                raise VTokenError(Rule.NOT_CACHED, f"request {req_id} would share block {block_id} twice")
            if block_id in self.fences:
                raise VTokenError(Rule.NOT_CACHED, f"block {block_id} is fenced and cannot be shared yet")
        taken = self.free_blocks.intersection(block_ids)
        self._check_reserve(len(taken))

    def share(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Let a request hold cached blocks as well.

        Raises:
            VTokenError: unknown-block, not-cached, headroom-reserved.

        """
        self.check_share(req_id, block_ids)

        for block_id in block_ids:
            self.free_blocks.discard(block_id)
            self._hold(req_id, block_id)

    def cache(self, block_id: int, prefix: CachedPrefix) -> None:
        """Put a held block into the prefix cache; the caller has checked what it holds."""
        self.cached[block_id] = prefix

    def uncache(self, block_ids: Sequence[int]) -> None:
        """Take blocks out of the prefix cache.

        Raises:
            VTokenError: unknown-block, not-cached.

        """
        for index, block_id in enumerate(block_ids):
            self._check_cached(block_id)
            if block_id in block_ids[:index]:
                raise VTokenError(Rule.NOT_CACHED, f"block {block_id} leaves the cache twice at once")

        for block_id in block_ids:
            del self.cached[block_id]

    def lease(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Lend free blocks to a request, out of the headroom.

        Raises:
            VTokenError: unknown-block, not-free, headroom.

        """
        self._check_free(block_ids)
        if len(self.leases) + len(block_ids) > self.headroom:
            raise VTokenError(
                Rule.HEADROOM,
                f"{len(self.leases)} blocks are leased, {len(block_ids)} more pass the limit {self.headroom}",
            )

        for block_id in block_ids:
            self.free_blocks.remove(block_id)
            self.cached.pop(block_id, None)
            self.leases[block_id] = req_id

    def adopt(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Turn a request's leased blocks into held ones, when its plan commits.

        Raises:
            VTokenError: not-held.

        """
        for index, block_id in enumerate(block_ids):
            if block_id in block_ids[:index]:
                raise VTokenError(Rule.NOT_HELD, f"block {block_id} is adopted twice at once")
            self._check_lease(req_id, block_id)

        for block_id in block_ids:
            del self.leases[block_id]
            self._hold(req_id, block_id)

    def release(self, req_id: str, block_ids: Sequence[int], hazards: frozenset[Hazard]) -> None:
        """Take blocks from a request; those without another holder are fenced.

        Args:
            req_id: the request, a holder or the lessee of each block.
            block_ids: distinct blocks.
            hazards: what may still touch them.

        Raises:
            VTokenError: unknown-block, not-held.

        """
        for index, block_id in enumerate(block_ids):
            if block_id in block_ids[:index]:
                raise VTokenError(Rule.NOT_HELD, f"block {block_id} is released twice at once")
            if self.leases.get(block_id) != req_id:
                self._check_held(req_id, block_id)

        for block_id in block_ids:
            if self.leases.get(block_id) == req_id:
                del self.leases[block_id]
                self.fences[block_id] = hazards
                continue
            self.holders[block_id].remove(req_id)
            self._held_by[req_id].remove(block_id)
            if not self.holders[block_id]:
                del self.holders[block_id]
                self.fences[block_id] = hazards

    def release_all(self, req_id: str, hazards: frozenset[Hazard]) -> None:
        """Take everything that a request holds or has leased."""
        self.release(req_id, [*sorted(self.held_by(req_id)), *self.leased_to(req_id)], hazards)
        self._held_by.pop(req_id, None)

    def free(self, block_ids: Sequence[int], hazards: frozenset[Hazard]) -> None:
        """Return fenced blocks to the free list.

        Raises:
            VTokenError: unknown-block, not-fenced (a double free too), fence.

        """
        for index, block_id in enumerate(block_ids):
            self._check_known(block_id)
            if block_id not in self.fences or block_id in block_ids[:index]:
                raise VTokenError(
                    Rule.NOT_FENCED, f"block {block_id} is {self.state(block_id)} and cannot be freed"
                )
            outstanding = self.fences[block_id] & hazards
            if outstanding:
                raise VTokenError(
                    Rule.FENCE, f"block {block_id} is freed while {_named(min(outstanding))} may touch it"
                )

        for block_id in block_ids:
            del self.fences[block_id]
            self.free_blocks.add(block_id)

    def requests(self) -> list[str]:
        """Return the requests that have held blocks and not given up all at once."""
        return list(self._held_by)

    def held_by(self, req_id: str) -> frozenset[int]:
        """Return the blocks that a request holds."""
        return frozenset(self._held_by.get(req_id, ()))

    def num_held_by(self, req_id: str) -> int:
        """Return how many blocks a request holds."""
        return len(self._held_by.get(req_id, ()))

    def refcount(self, block_id: int) -> int:
        """Return the number of requests that hold a block."""
        return len(self.holders.get(block_id, ()))

    def is_protected(self, block_id: int) -> bool:
        """Tell whether a block is shared or cached, so that no request may write to it."""
        return self.refcount(block_id) > 1 or block_id in self.cached

    def leased_to(self, req_id: str) -> list[int]:
        """Return the blocks leased to a request, oldest lease first."""
        return [block_id for block_id, lessee in self.leases.items() if lessee == req_id]

    def state(self, block_id: int) -> str:
        """Return free, held, leased or fenced."""
        if block_id in self.holders:
            return "held"
        if block_id in self.leases:
            return "leased"
        return "fenced" if block_id in self.fences else "free"

    def _hold(self, req_id: str, block_id: int) -> None:
        self.holders.setdefault(block_id, set()).add(req_id)
        self._held_by.setdefault(req_id, set()).add(block_id)

    def _check_known(self, block_id: int) -> None:
        if block_id not in self.block_ids:
            raise VTokenError(Rule.UNKNOWN_BLOCK, f"the pool has no block {block_id}")

    def _check_free(self, block_ids: Sequence[int]) -> None:
        for index, block_id in enumerate(block_ids):
            self._check_known(block_id)
            if block_id not in self.free_blocks or block_id in block_ids[:index]:
                raise VTokenError(Rule.NOT_FREE, f"block {block_id} is not free")

    def _check_reserve(self, num_taken: int) -> None:
        num_left = len(self.free_blocks) - num_taken
        if num_taken and num_left < self.num_reserved:
            raise VTokenError(
                Rule.HEADROOM_RESERVED,
                f"{num_left} free blocks would be left of the {self.num_reserved} reserved as headroom",
            )

    def _check_cached(self, block_id: int) -> None:
        self._check_known(block_id)
        if block_id not in self.cached:
            raise VTokenError(Rule.NOT_CACHED, f"block {block_id} is not in the prefix cache")

    def _check_lease(self, req_id: str, block_id: int) -> None:
        self._check_known(block_id)
        if self.leases.get(block_id) != req_id:
            raise VTokenError(Rule.NOT_HELD, f"block {block_id} is not leased to request {req_id}")

    def _check_held(self, req_id: str, block_id: int) -> None:
        self._check_known(block_id)
        if req_id not in self.holders.get(block_id, ()):
            raise VTokenError(Rule.NOT_HELD, f"block {block_id} is not held by request {req_id}")


def _named(hazard: Hazard) -> str:
    if hazard.kind == "step":
        return f"step {hazard.step}"
    return f"epoch {hazard.epoch} of request {hazard.req_id}"
