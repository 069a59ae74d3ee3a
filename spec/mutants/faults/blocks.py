"""Faults of who has which block: refcounts, fences, headroom, who waits."""

from spec.mutants.mutant import Fault
from vtoken_ref.rules import Rule

POOL = "vtoken_ref/pool.py"
STATE = "vtoken_ref/state.py"
BLOCKS = "vtoken_ref/transitions/blocks.py"
RELOCATION = "vtoken_ref/transitions/relocation.py"
RECLAIM = "vtoken_ref/reclaim.py"

FAULTS = (
    # Every step of a refcount.
    Fault(
        "alloc-not-held",
        POOL,
        """            self.cached.pop(block_id, None)
            self._hold(req_id, block_id)
""",
        """            self.cached.pop(block_id, None)
""",
        "refcount step: a block that is given out counts no holder",
        (Rule.NOT_HELD, Rule.LEAK),
    ),
    Fault(
        "alloc-still-free",
        POOL,
        """            self.free_blocks.remove(block_id)
            self.cached.pop(block_id, None)
            self._hold(req_id, block_id)
""",
        """            self.cached.pop(block_id, None)
            self._hold(req_id, block_id)
""",
        "refcount step: a block that is given out stays in the free list",
        (Rule.NOT_FREE, Rule.LEAK),
    ),
    Fault(
        "share-still-free",
        POOL,
        """            self.free_blocks.discard(block_id)
""",
        "",
        "refcount step: a free block that is shared stays in the free list",
        (Rule.NOT_FREE, Rule.LEAK),
    ),
    Fault(
        "share-replaces-holders",
        POOL,
        """            self.free_blocks.discard(block_id)
            self._hold(req_id, block_id)
""",
        """            self.free_blocks.discard(block_id)
            self.holders[block_id] = {req_id}
            self._held_by.setdefault(req_id, set()).add(block_id)
""",
        "refcount step: sharing forgets the first holder",
        (Rule.NOT_HELD, Rule.LEAK),
    ),
    Fault(
        "hold-one-side",
        POOL,
        """        self._held_by.setdefault(req_id, set()).add(block_id)
""",
        """        self._held_by.setdefault(req_id, set())
""",
        "refcount step: the block knows its holder, the holder does not know its block",
        (Rule.LEAK,),
        (14,),
    ),
    Fault(
        "release-keeps-holder",
        POOL,
        """            self.holders[block_id].remove(req_id)
            self._held_by[req_id].remove(block_id)
""",
        """            self._held_by[req_id].remove(block_id)
""",
        "refcount step: a released block still counts who gave it up",
        (Rule.LEAK,),
        (14,),
    ),
    Fault(
        "release-fences-shared",
        POOL,
        """            if not self.holders[block_id]:
                del self.holders[block_id]
""",
        """            if self.holders.pop(block_id) is not None:
""",
        "refcount step: the first holder to leave takes a shared block from the others",
        (Rule.NOT_HELD, Rule.LEAK),
        (14, 17),
    ),
    Fault(
        "adopt-keeps-lease",
        POOL,
        """            del self.leases[block_id]
            self._hold(req_id, block_id)
""",
        """            self._hold(req_id, block_id)
""",
        "refcount step: a block that becomes held stays leased",
        (Rule.LEAK,),
        (17,),
    ),
    Fault(
        "release-keeps-lease",
        POOL,
        """                del self.leases[block_id]
                self.fences[block_id] = hazards
""",
        """                self.fences[block_id] = hazards
""",
        "refcount step: a lease that is given back stays",
        (Rule.LEAK,),
    ),
    Fault(
        "free-keeps-fence",
        POOL,
        """            del self.fences[block_id]
""",
        "",
        "double free: a block that is free can be freed again",
        (Rule.NOT_FENCED,),
        (17,),
    ),
    Fault(
        "double-free-at-once",
        POOL,
        "if block_id not in self.fences or block_id in block_ids[:index]:",
        "if block_id not in self.fences and block_id not in self.free_blocks:",
        "double free: a free block may be freed",
        (Rule.NOT_FENCED,),
        (17,),
    ),
    Fault(
        "cached-not-protected",
        POOL,
        "return self.refcount(block_id) > 1 or block_id in self.cached",
        "return self.refcount(block_id) > 1",
        "a cached block with one holder is moved in place",
        (Rule.PLAN_SHARED, Rule.SHARED_WRITE),
        (3,),
    ),
    Fault(
        "shared-not-protected",
        POOL,
        "return self.refcount(block_id) > 1 or block_id in self.cached",
        "return block_id in self.cached",
        "a shared block is moved in place",
        (Rule.PLAN_SHARED, Rule.SHARED_WRITE),
        (3,),
    ),
    Fault(
        "protected-from-three",
        POOL,
        "self.refcount(block_id) > 1",
        "self.refcount(block_id) > 2",
        "a block shared by two is not protected",
        (Rule.PLAN_SHARED, Rule.SHARED_WRITE),
        (3,),
    ),
    Fault(
        "alloc-stays-cached",
        POOL,
        """            self.cached.pop(block_id, None)
            self._hold(req_id, block_id)
""",
        """            self._hold(req_id, block_id)
""",
        "a free cached block is given out and stays in the prefix cache",
        (Rule.NOT_CACHED, Rule.SHARED_WRITE),
    ),
    # Fences.
    Fault(
        "no-fence",
        STATE,
        """            return frozenset((*steps, Hazard("epoch", req_id=req_id, epoch=epoch)))
        return frozenset(steps)
""",
        """            return frozenset((*steps, Hazard("epoch", req_id=req_id, epoch=epoch)))
        return frozenset()
""",
        "ordering, source reused: a block is reused while a step in flight may read it",
        (Rule.FENCE,),
        (6, 10, 11, 12),
    ),
    Fault(
        "fence-forgets-copies",
        STATE,
        """        if (req_id, epoch) in self.retiring:
            return frozenset((*steps, Hazard("epoch", req_id=req_id, epoch=epoch)))
        return frozenset(steps)
""",
        """        return frozenset(steps)
""",
        "ordering, source reused: a block is reused while a copy of a dead epoch may write it",
        (Rule.FENCE,),
        (12, 13),
    ),
    Fault(
        "fence-of-running-only",
        STATE,
        'return [Hazard("step", step=step) for step in self.steps]',
        'return [Hazard("step", step=step) for step in self.steps if step in self.forwards]',
        "a block is reused when the worker is done and the scheduler has not heard",
        (Rule.FENCE,),
        (11, 15),
    ),
    Fault(
        "fence-ignored",
        POOL,
        "outstanding = self.fences[block_id] & hazards",
        "outstanding = self.fences[block_id] & hazards if len(hazards) > 1 else frozenset()",
        "a fence with one hazard is no fence",
        (Rule.FENCE,),
        (10, 12),
    ),
    # Headroom and who waits.
    Fault(
        "headroom-one-more",
        POOL,
        "if len(self.leases) + len(block_ids) > self.headroom:",
        "if len(self.leases) + len(block_ids) > self.headroom + 1:",
        "copies out of place take more memory than is set aside",
        (Rule.HEADROOM,),
        (19,),
    ),
    Fault(
        "headroom-not-reserved",
        POOL,
        "return self.headroom - len(self.leases)",
        "return 0",
        "the blocks set aside for relocation are given to requests",
        (Rule.HEADROOM_RESERVED,),
        (19,),
    ),
    Fault(
        "no-backpressure",
        BLOCKS,
        """    if not request.block_ids:
        check_backpressure(state, event.req_id)
""",
        "",
        "new requests take the blocks that a waiting plan needs",
        (Rule.BACKPRESSURE,),
        (5,),
    ),
    Fault(
        "lease-satisfies-early",
        BLOCKS,
        ">= state.deferred.get(event.req_id, 0):",
        ">= 1:",
        "a plan that waits for two destinations is content with one",
        (Rule.BACKPRESSURE, Rule.DEFER),
    ),
    Fault(
        "dropped-when-deferred",
        RELOCATION,
        """    if not state.is_async:
        state.deferred[event.req_id] = event.num_blocks
""",
        "",
        "a plan that finds no destinations is dropped",
        (Rule.BACKPRESSURE, Rule.LEASE_ORDER),
    ),
    Fault(
        "waits-after-plan",
        RELOCATION,
        """        if not state.is_async:
            state.deferred.pop(event.req_id, None)
""",
        "",
        "a request waits on when it has found a plan that needs no more",
        (Rule.BACKPRESSURE,),
        (5,),
    ),
    Fault(
        "no-hysteresis",
        RECLAIM,
        "elif num_free_blocks >= (low + 1 if high is None else high):",
        "else:",
        "reclamation stops at the watermark at which it starts",
        (Rule.NOT_ELIGIBLE,),
    ),
    Fault(
        "attempts-not-counted",
        RELOCATION,
        """    if event.strategy != "copy_on_write":
        state.gate.num_attempts += 1
""",
        """    if event.strategy != "copy_on_write":
        state.gate.num_attempts += 0
""",
        "the rate limit never bites",
        (Rule.RATE_LIMIT,),
    ),
    Fault(
        "eligible-without-block",
        RECLAIM,
        "return num_dead >= table.block_size and",
        "return num_dead >= 1 and",
        "a request is relocated with no block to win",
        (Rule.NOT_ELIGIBLE,),
    ),
)
