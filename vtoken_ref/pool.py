"""The block pool: each block is free, held (by one or more requests), leased or fenced.

Source: paper 3.3.2 (headroom inside the same budget).
"""

from collections.abc import Sequence

from vtoken_ref.rules import Rule, VTokenError


class BlockPool:
    """Who has which block. Every operation checks everything first, then changes.

    A held block's refcount is the number of its holders. A block that its last holder gives up is
    fenced: it remembers the forwards in flight at that moment and is free only after they ended.

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
        self.fences: dict[int, frozenset[int]] = {}
        self._held_by: dict[str, set[int]] = {}

    def alloc(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Give free blocks to a request.

        Raises:
            VTokenError: unknown-block, not-free.

        """
        self._check_free(block_ids)

        for block_id in block_ids:
            self.free_blocks.remove(block_id)
            self._hold(req_id, block_id)

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

    def release(self, req_id: str, block_ids: Sequence[int], in_flight: frozenset[int]) -> None:
        """Take blocks from a request; those without another holder are fenced.

        Args:
            req_id: the request, a holder or the lessee of each block.
            block_ids: distinct blocks.
            in_flight: the forwards that may still touch them.

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
                self.fences[block_id] = in_flight
                continue
            self.holders[block_id].remove(req_id)
            self._held_by[req_id].remove(block_id)
            if not self.holders[block_id]:
                del self.holders[block_id]
                self.fences[block_id] = in_flight

    def release_all(self, req_id: str, in_flight: frozenset[int]) -> None:
        """Take everything that a request holds or has leased."""
        leased = [block_id for block_id, lessee in self.leases.items() if lessee == req_id]
        self.release(req_id, [*sorted(self.held_by(req_id)), *leased], in_flight)
        self._held_by.pop(req_id, None)

    def free(self, block_ids: Sequence[int], in_flight: frozenset[int]) -> None:
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
            running = self.fences[block_id] & in_flight
            if running:
                raise VTokenError(
                    Rule.FENCE, f"block {block_id} is freed while forward {min(running)} may touch it"
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

    def is_shared(self, block_id: int) -> bool:
        """Tell whether more than one request holds a block."""
        return self.refcount(block_id) > 1

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

    def _check_lease(self, req_id: str, block_id: int) -> None:
        self._check_known(block_id)
        if self.leases.get(block_id) != req_id:
            raise VTokenError(Rule.NOT_HELD, f"block {block_id} is not leased to request {req_id}")

    def _check_held(self, req_id: str, block_id: int) -> None:
        self._check_known(block_id)
        if req_id not in self.holders.get(block_id, ()):
            raise VTokenError(Rule.NOT_HELD, f"block {block_id} is not held by request {req_id}")
