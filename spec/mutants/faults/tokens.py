"""Faults of where a token is and what it holds."""

from spec.mutants.mutant import Fault
from vtoken_ref.rules import Rule

TABLE = "vtoken_ref/table.py"
FORWARDS = "vtoken_ref/transitions/forwards.py"
PREFIX_CACHE = "vtoken_ref/transitions/prefix_cache.py"
RELOCATION = "vtoken_ref/transitions/relocation.py"
STATE = "vtoken_ref/state.py"

FAULTS = (
    Fault(
        "evict-keeps-count",
        TABLE,
        """        request.live_in_block[request.slots[token_id] // self.block_size] -= 1
""",
        "",
        "an evicted token still counts as live in its block, which never comes free",
        (Rule.BLOCK_STILL_LIVE,),
        (5,),
    ),
    Fault(
        "evict-unknown",
        TABLE,
        """        if not 0 <= token_id < len(request.slots):
            raise VTokenError(Rule.UNKNOWN_TOKEN, f"request {req_id} has no token {token_id}")
""",
        """        if not token_id < len(request.slots):
            raise VTokenError(Rule.UNKNOWN_TOKEN, f"request {req_id} has no token {token_id}")
""",
        "a token that was never computed is evicted",
        (Rule.UNKNOWN_TOKEN,),
        (4,),
    ),
    Fault(
        "evict-twice",
        RELOCATION,
        "if len(set(event.token_ids)) != len(event.token_ids):",
        "if len(set(event.token_ids)) > len(event.token_ids):",
        "one token is dropped twice: more dropped than computed",
        (Rule.EVICTED_TWICE,),
        (4,),
    ),
    Fault(
        "move-leaves-copy",
        TABLE,
        """            request.rows[block_id][offset] = HOLE
""",
        "",
        "a moved token is also where it was",
        (Rule.SLOT_USED_TWICE,),
    ),
    Fault(
        "move-keeps-slot",
        TABLE,
        """        request.slots[move.token_id] = move.dst_slot
""",
        "",
        "the table still has the old slot of a moved token",
        (Rule.SLOT_USED_TWICE, Rule.STALE_SOURCE),
        (16,),
    ),
    Fault(
        "move-not-counted",
        TABLE,
        """        request.live_in_block[block_id] = request.live_in_block.get(block_id, 0) + 1

    def _retreat""",
        """
    def _retreat""",
        "the block that a token moves to does not count it",
        (Rule.BLOCK_STILL_LIVE,),
    ),
    Fault(
        "no-retreat",
        TABLE,
        """            self._place(request, move)
        self._retreat(request, is_protected)
""",
        """            self._place(request, move)
        request.num_written_blocks = self._count_written(request)
""",
        "the length does not retreat behind the last live token",
        (Rule.LENGTH_MISMATCH, Rule.PLAN_PACKED),
        (1, 7),
    ),
    Fault(
        "retreat-one-short",
        TABLE,
        """            while row and (row[-1] == HOLE or not request.live[row[-1]]):
""",
        """            while len(row) > 1 and (row[-1] == HOLE or not request.live[row[-1]]):
""",
        "a wholly dead last block keeps one slot",
        (Rule.LENGTH_MISMATCH,),
    ),
    Fault(
        "retreat-into-shared",
        TABLE,
        """            if is_protected(block_id):
                return
            row =""",
        """            row =""",
        "the length retreats into a shared block, where the next token would be written",
        (Rule.SHARED_WRITE, Rule.LENGTH_MISMATCH),
        (3,),
    ),
    Fault(
        "occupied-destination",
        TABLE,
        "if occupant != HOLE and request.live[occupant] and occupant not in moving:",
        "if occupant != HOLE and request.live[occupant] and occupant in moving:",
        "a token is moved onto a live one",
        (Rule.SLOT_OCCUPIED,),
        (2,),
    ),
    Fault(
        "stale-source",
        TABLE,
        """            if self.slot(req_id, token_id) != src_slot:
""",
        """            if self.slot(req_id, token_id) // self.block_size != src_slot // self.block_size:
""",
        "a move from another slot of the same block is taken",
        (Rule.STALE_SOURCE,),
    ),
    Fault(
        "replace-keeps-slots",
        TABLE,
        """                request.slots[token_id] = new_block * self.block_size + offset
""",
        """                request.slots[token_id] = old_block * self.block_size + offset
""",
        "after a copy on write the tokens are still in the shared block",
        (Rule.SHARED_WRITE, Rule.SLOT_USED_TWICE),
        (15,),
    ),
    Fault(
        "replace-keeps-users",
        TABLE,
        """                request.slots[token_id] = new_block * self.block_size + offset
        self._set_block_ids(req_id, request, new_list)
""",
        """                request.slots[token_id] = new_block * self.block_size + offset
        request.block_ids = new_list
""",
        "after a copy on write the request still counts as a user of the shared block",
        (Rule.SLOT_OCCUPIED,),
    ),
    Fault(
        "recycle-keeps-dead",
        TABLE,
        """        row[offset] = token_id
        request.live_in_block[block_id] = request.live_in_block.get(block_id, 0) + 1
        request.slots.append(slot)
""",
        """        row[offset] = token_id
        request.slots.append(slot)
""",
        "a token written over a dead one does not count as live in its block",
        (Rule.BLOCK_STILL_LIVE, Rule.RECYCLE),
    ),
    Fault(
        "recycle-live",
        TABLE,
        """                if token_id == HOLE or not request.live[token_id]:
                    slots.append""",
        """                if token_id == HOLE or offset == 0 or not request.live[token_id]:
                    slots.append""",
        "a new token is written over a live one",
        (Rule.SLOT_OCCUPIED, Rule.RECYCLE),
        (2,),
    ),
    Fault(
        "recycle-shared",
        FORWARDS,
        """        if not is_protected(block_id) and block_id not in in_plan:
""",
        """        if block_id not in in_plan:
""",
        "a new token is written over a token that is dead for one of two holders",
        (Rule.RECYCLE,),
        (3,),
    ),
    Fault(
        "recycle-source",
        FORWARDS,
        """        if not is_protected(block_id) and block_id not in in_plan:
""",
        """        if not is_protected(block_id):
""",
        "a new token is written into a source of the plan in flight",
        (Rule.RECYCLE,),
        (9,),
    ),
    Fault(
        "next-slot-skips",
        TABLE,
        """            for index in range(start, start + num_new)
""",
        """            for index in range(start + (start > 0), start + num_new + (start > 0))
""",
        "a new token leaves a hole before it",
        (Rule.SLOT_MISMATCH, Rule.PLAN_PACKED),
        (18,),
    ),
    Fault(
        "write-into-shared",
        FORWARDS,
        "    written = request.block_ids[request.length // block_size :",
        "    written = request.block_ids[-(-request.length // block_size) :",
        "a partly filled shared block is written into",
        (Rule.SHARED_WRITE,),
        (3,),
    ),
    Fault(
        "cache-after-eviction",
        PREFIX_CACHE,
        "is_pure = worker.num_pure is None or num_tokens <= worker.num_pure",
        "is_pure = True",
        "tokens computed after an eviction are shared with a request that evicted nothing",
        (Rule.CACHE_PREFIX,),
    ),
    Fault(
        "share-one-token-off",
        PREFIX_CACHE,
        "prefix.vocab_ids[:last] != event.vocab_ids[:last]",
        "prefix.vocab_ids[: last - 1] != event.vocab_ids[: last - 1]",
        "a prefix that differs in its last token is shared",
        (Rule.SHARE_PREFIX,),
        (14,),
    ),
    Fault(
        "share-content-of-last",
        PREFIX_CACHE,
        "        fingerprints += prefix.fingerprints[index * block_size : last]",
        "        fingerprints = prefix.fingerprints[:last]",
        "a prefix out of the blocks of two requests is taken for that of the last one",
        (Rule.SHARE_PREFIX, Rule.KV_VISIBLE),
        (14,),
    ),
    Fault(
        "share-computes-all",
        PREFIX_CACHE,
        "or not 0 < num_tokens < request.num_known",
        "or not 0 < num_tokens <= request.num_known",
        "a request shares its whole prompt and has no token to compute",
        (Rule.SHARE_PREFIX,),
    ),
    Fault(
        "cache-longer-prefix",
        PREFIX_CACHE,
        """        last = min((index + 1) * state.config.block_size, num_tokens)
        prefix""",
        """        last = num_tokens
        prefix""",
        "each cached block stands for the whole prefix",
        (Rule.SHARE_PREFIX, Rule.CACHE_PREFIX),
    ),
    Fault(
        "dead-tokens-visible",
        STATE,
        """            worker.resident_entries = bytearray(self._entries(worker, self.visible_tokens(req_id)))
""",
        """            worker.resident_entries = bytearray(
                self._entries(worker, self.table.resident_tokens(req_id))
            )
""",
        "under the indirect view attention reads evicted tokens",
        (Rule.KV_VISIBLE,),
        (8,),
    ),
    Fault(
        "stale-digest",
        RELOCATION,
        """        if state.config.view == "indirect":
            worker.resident_entries = None
""",
        "",
        "eviction changes nothing that attention reads",
        (Rule.KV_VISIBLE,),
        (8,),
    ),
    Fault(
        "budget-one-more",
        FORWARDS,
        "state.num_live(read.req_id) > worker.budget:",
        "state.num_live(read.req_id) > worker.budget + 1:",
        "a request keeps one token more than its budget",
        (Rule.BUDGET_EXCEEDED,),
        (8,),
    ),
)
