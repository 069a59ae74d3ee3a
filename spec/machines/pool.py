"""The block pool alone, against a dictionary that says of each block who has it."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from spec.machines.pure import Pure, equal
from spec.machines.tally import rule
from vtoken_ref.pool import BlockPool, CachedPrefix, Hazard

REQUESTS = ("a", "b", "c")
FIRST, NUM_BLOCKS = 2, 6
BLOCKS = range(FIRST, FIRST + NUM_BLOCKS)
ANY_BLOCKS = st.lists(st.integers(FIRST - 1, FIRST + NUM_BLOCKS), max_size=3)
"""Also ones that the pool has not, and one twice."""
FITTING = st.integers(0, 3)
"""How many of the blocks that fit the call are taken instead; 0 for none."""


@dataclass(slots=True)
class Block:
    """What the model knows of one block; free is one with no holder, no lessee and no fence."""

    holders: list[str] = field(default_factory=list)
    lessee: str = ""
    fence: list[Hazard] | None = None
    is_cached: bool = False

    @property
    def state(self) -> str:
        """Return free, held, leased or fenced."""
        words = ["held"] * bool(self.holders) + ["leased"] * bool(self.lessee)
        words += ["fenced"] * (self.fence is not None)
        return words[0] if words else "free"


class Pool(Pure):
    """Refcounts, leases, fences, the prefix cache; hazards come and go."""

    @initialize(headroom=st.integers(0, 3))
    def set_up(self, headroom: int) -> None:
        """Begin with all blocks free."""
        self.pool = BlockPool(BLOCKS, headroom)
        self.headroom = headroom
        self.blocks = {block_id: Block() for block_id in BLOCKS}
        self.leased: list[int] = []
        self.running: list[Hazard] = []
        self.num_hazards = 0
        self.is_set_up = True

    def subject(self) -> BlockPool:
        """Return the pool."""
        return self.pool

    def those(self, state: str, req_id: str = "") -> list[int]:
        """Return the blocks in a state, of one request where one is given."""
        return [
            block_id
            for block_id, block in self.blocks.items()
            if block.state == state and (not req_id or req_id in (*block.holders, block.lessee))
        ]

    def picked(self, block_ids: list[int], fitting: int, candidates: list[int]) -> tuple[int, ...]:
        """Return the first of the candidates, or the blocks that were drawn."""
        return tuple(candidates[:fitting]) if fitting and candidates else tuple(block_ids)

    def are(self, block_ids: tuple[int, ...], state: str) -> bool:
        """Tell whether blocks are distinct, known and in this state."""
        known = all(block_id in self.blocks for block_id in block_ids)
        return known and len(set(block_ids)) == len(block_ids) and set(block_ids) <= set(self.those(state))

    def leaves_headroom(self, num_taken: int) -> bool:
        """Tell whether the free blocks that leases may still need are left."""
        return not num_taken or len(self.those("free")) - num_taken >= self.headroom - len(self.leased)

    # Calls.

    @rule(req_id=st.sampled_from(REQUESTS), any_blocks=ANY_BLOCKS, fitting=FITTING)
    def alloc(self, req_id: str, any_blocks: list[int], fitting: int) -> None:
        """Free blocks go to a request."""
        block_ids = self.picked(any_blocks, fitting, self.those("free"))
        is_legal = self.are(block_ids, "free") and self.leaves_headroom(len(block_ids))
        if self.call("alloc", req_id, block_ids, is_legal=is_legal):
            for block_id in block_ids:
                self.blocks[block_id] = Block([req_id])

    @rule(req_id=st.sampled_from(REQUESTS), any_blocks=ANY_BLOCKS, fitting=FITTING)
    def lease(self, req_id: str, any_blocks: list[int], fitting: int) -> None:
        """Free blocks are lent."""
        block_ids = self.picked(any_blocks, fitting, self.those("free"))
        is_legal = self.are(block_ids, "free") and len(self.leased) + len(block_ids) <= self.headroom
        if self.call("lease", req_id, block_ids, is_legal=is_legal):
            for block_id in block_ids:
                self.blocks[block_id] = Block(lessee=req_id)
            self.leased += block_ids

    @rule(req_id=st.sampled_from(REQUESTS), any_blocks=ANY_BLOCKS, fitting=FITTING)
    def adopt(self, req_id: str, any_blocks: list[int], fitting: int) -> None:
        """Lent blocks become held."""
        block_ids = self.picked(any_blocks, fitting, self.those("leased", req_id))
        is_legal = self.are(block_ids, "leased") and set(block_ids) <= set(self.those("leased", req_id))
        if self.call("adopt", req_id, block_ids, is_legal=is_legal):
            for block_id in block_ids:
                self.blocks[block_id] = Block([req_id])
                self.leased.remove(block_id)

    @rule(req_id=st.sampled_from(REQUESTS), any_blocks=ANY_BLOCKS, fitting=FITTING)
    def share(self, req_id: str, any_blocks: list[int], fitting: int) -> None:
        """Cached blocks get one holder more."""
        cached = [block_id for block_id, block in self.blocks.items() if block.is_cached]
        block_ids = self.picked(any_blocks, fitting, cached)
        new = [b for b in cached if self.blocks[b].fence is None and req_id not in self.blocks[b].holders]
        num_free = len(set(block_ids) & set(self.those("free")))
        is_legal = len(set(block_ids)) == len(block_ids) and set(block_ids) <= set(new)
        if self.call("share", req_id, block_ids, is_legal=is_legal and self.leaves_headroom(num_free)):
            for block_id in block_ids:
                self.blocks[block_id].holders.append(req_id)

    @rule(which=st.integers(0, NUM_BLOCKS - 1))
    def cache(self, which: int) -> None:
        """A held block becomes shareable."""
        held = self.those("held")
        if held:
            block_id = held[which % len(held)]
            self.call("cache", block_id, CachedPrefix((block_id,), ("",)), is_legal=True)
            self.blocks[block_id].is_cached = True

    @rule(any_blocks=ANY_BLOCKS, fitting=FITTING)
    def uncache(self, any_blocks: list[int], fitting: int) -> None:
        """Blocks leave the cache."""
        cached = [block_id for block_id, block in self.blocks.items() if block.is_cached]
        block_ids = self.picked(any_blocks, fitting, cached)
        is_legal = len(set(block_ids)) == len(block_ids) and set(block_ids) <= set(cached)
        if self.call("uncache", block_ids, is_legal=is_legal):
            for block_id in block_ids:
                self.blocks[block_id].is_cached = False

    @rule(req_id=st.sampled_from(REQUESTS), any_blocks=ANY_BLOCKS, fitting=FITTING)
    def release(self, req_id: str, any_blocks: list[int], fitting: int) -> None:
        """A request gives up blocks."""
        own = self.those("held", req_id) + self.those("leased", req_id)
        block_ids = self.picked(any_blocks, fitting, own)
        is_legal = len(set(block_ids)) == len(block_ids) and set(block_ids) <= set(own)
        if self.call("release", req_id, block_ids, frozenset(self.running), is_legal=is_legal):
            self._give_up(req_id, list(block_ids))

    @rule(req_id=st.sampled_from(REQUESTS))
    def release_all(self, req_id: str) -> None:
        """A request loses everything."""
        own = self.those("held", req_id) + self.those("leased", req_id)
        self.call("release_all", req_id, frozenset(self.running), is_legal=True)
        self._give_up(req_id, own)

    def _give_up(self, req_id: str, block_ids: list[int]) -> None:
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.lessee:
                self.leased.remove(block_id)
                block.lessee = ""
            else:
                block.holders.remove(req_id)
            if not block.holders:
                block.fence = list(self.running)

    @rule(any_blocks=ANY_BLOCKS, fitting=FITTING)
    def free(self, any_blocks: list[int], fitting: int) -> None:
        """Fenced blocks become free, once nothing of what ran then still runs."""
        block_ids = self.picked(any_blocks, fitting, self.those("fenced"))
        is_legal = self.are(block_ids, "fenced") and not any(
            hazard in self.running for block_id in block_ids for hazard in self.blocks[block_id].fence or ()
        )
        if self.call("free", block_ids, frozenset(self.running), is_legal=is_legal):
            for block_id in block_ids:
                self.blocks[block_id].fence = None

    @rule(is_step=st.booleans())
    def begin(self, is_step: bool) -> None:
        """Something that may touch blocks begins."""
        self.num_hazards += 1
        number = self.num_hazards
        self.running.append(Hazard("step", step=number) if is_step else Hazard("epoch", -1, "a", number))
        self.begin_step()

    @rule(which=st.integers(0, 3))
    def end(self, which: int) -> None:
        """It ends."""
        if self.running:
            self.running.pop(which % len(self.running))
            self.begin_step()

    # What the pool says.

    def check(self) -> None:
        """Hold every answer of the pool to the model."""
        pool = self.pool
        equal("free blocks", sorted(pool.free_blocks), self.those("free"))
        for block_id, block in self.blocks.items():
            equal(f"state of {block_id}", pool.state(block_id), block.state)
            equal(f"refcount of {block_id}", pool.refcount(block_id), len(block.holders))
            is_protected = block.is_cached or len(block.holders) > 1
            equal(f"protection of {block_id}", pool.is_protected(block_id), is_protected)
        for req_id in REQUESTS:
            equal(f"blocks of {req_id}", sorted(pool.held_by(req_id)), self.those("held", req_id))
            equal(f"count of {req_id}", pool.num_held_by(req_id), len(self.those("held", req_id)))
            leased = [block_id for block_id in self.leased if self.blocks[block_id].lessee == req_id]
            equal(f"leases of {req_id}", pool.leased_to(req_id), leased)
        equal("reserve", pool.num_reserved, self.headroom - len(self.leased))
        equal("states", set(map(pool.state, BLOCKS)) <= {"free", "held", "leased", "fenced"}, True)

    def teardown(self) -> None:
        """Check once more, and that all blocks come free when all is over."""
        if not hasattr(self, "pool") or self.has_failed:
            return
        for req_id in REQUESTS:
            self.release_all(req_id=req_id)
        self.running.clear()
        with self.recorded():
            self.call("free", tuple(self.those("fenced")), frozenset(), is_legal=True)
            equal("free blocks at the end", len(self.pool.free_blocks), NUM_BLOCKS)
