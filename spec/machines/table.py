"""The token table alone, against plain lists: for every token of a request its slot, and whether it lives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from spec.machines.pure import Pure, equal
from spec.machines.tally import rule
from vtoken_ref.events import Move
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, TokenTable

REQUESTS = ("a", "b")
NUM_BLOCKS = 6
NUMBER = st.integers(-1, NUM_BLOCKS * 3)
"""A token, a slot or a block, or none."""
NUMBERS = st.lists(NUMBER, max_size=4)
WHOSE_NOBODY = 7
WHOSE = st.integers(0, 7)
"""One of the requests that there are; 7 for one that is not."""


@dataclass(slots=True)
class Token:
    """Where a token is, None once it is reclaimed, and whether it is live."""

    slot: int | None
    is_live: bool = True


@dataclass(slots=True)
class Request:
    """One request: its block list and its tokens by id."""

    block_ids: list[int] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)


class Table(Pure):
    """Every operation of the table, legal or not, on requests that may list the same blocks."""

    @initialize(block_size=st.integers(1, 3), num_blocks=st.integers(0, 4))
    def set_up(self, block_size: int, num_blocks: int) -> None:
        """Begin with one request, which has filled its blocks."""
        self.block_size = block_size
        self.table = TokenTable(block_size)
        self.requests: dict[str, Request] = {}
        self.protected: set[int] = set()
        self.is_set_up = True
        self.grow("a", num_blocks, 0)

    def subject(self) -> TokenTable:
        """Return the table."""
        return self.table

    # The model.

    def order(self, request: Request) -> list[int]:
        """Return all slots of the block list in its order."""
        return [b * self.block_size + at for b in request.block_ids for at in range(self.block_size)]

    def resident(self, request: Request) -> list[int]:
        """Return the token in each slot up to the last one that has one."""
        at = {token.slot: token_id for token_id, token in enumerate(request.tokens) if token.slot is not None}
        tokens = [at.get(slot, HOLE) for slot in self.order(request)]
        while tokens and tokens[-1] == HOLE:
            tokens.pop()
        return tokens

    def live_at(self, req_id: str, slot: int) -> int | None:
        """Return the live token of a request in a slot."""
        request = self.requests[req_id]
        found = [t for t, token in enumerate(request.tokens) if token.is_live and token.slot == slot]
        return found[0] if found else None

    def is_elsewhere(self, req_id: str, slot: int, token_id: int = HOLE) -> bool:
        """Tell whether another request has a live token in a slot, other than the same shared one."""
        others = (self.live_at(other, slot) for other in self.requests if other != req_id)
        return any(other not in (None, token_id) for other in others)

    def cut(self, request: Request) -> None:
        """Take their slots from dead tokens outside the block list and after the last that stays."""
        order = self.order(request)
        staying = [
            order.index(token.slot)
            for token in request.tokens
            if token.slot in order and (token.is_live or token.slot // self.block_size in self.protected)
        ]
        last = max(staying, default=-1)
        for token in request.tokens:
            if token.slot is not None and token.slot not in order[: last + 1]:
                token.slot = None

    def is_protected(self, block_id: int) -> bool:
        """Tell whether nothing may be written into a block."""
        return block_id in self.protected

    # Calls.

    @rule(block_ids=st.sets(st.integers(0, NUM_BLOCKS), max_size=2))
    def protect(self, block_ids: set[int]) -> None:
        """Other blocks than before are shared."""
        self.protected = block_ids
        self.begin_step()

    @rule(req_id=st.sampled_from(REQUESTS), num_blocks=st.integers(0, 2), first=NUMBER)
    def fill(self, req_id: str, num_blocks: int, first: int) -> None:
        """A request gets blocks that nobody has, and fills all of its list."""
        self.grow(req_id, num_blocks, first)

    def grow(self, req_id: str, num_blocks: int, first: int) -> None:
        """Give a request blocks and fill its list."""
        listed = {block_id for request in self.requests.values() for block_id in request.block_ids}
        more = [b for b in range(max(first, 0) % 3, NUM_BLOCKS) if b not in listed][:num_blocks]
        request = self.requests.get(req_id, Request())
        room = (len(request.block_ids) + len(more)) * self.block_size - len(self.resident(request))
        self._sync(req_id, request.block_ids + more, room)

    @rule(
        req_id=st.sampled_from(REQUESTS), more=NUMBERS, is_extended=st.booleans(), num_new=st.integers(-1, 4)
    )
    def sync_new_tokens(self, req_id: str, more: list[int], is_extended: bool, num_new: int) -> None:
        """Tokens are written into the next slots."""
        request = self.requests.get(req_id, Request())
        self._sync(req_id, request.block_ids + more if is_extended else more, num_new)

    def _sync(self, req_id: str, block_ids: list[int], num_new: int) -> None:
        request = self.requests.get(req_id, Request())
        order = self.order(Request(block_ids))
        start = len(self.resident(request))
        new = list(enumerate(order[start : start + max(num_new, 0)], len(request.tokens)))
        is_legal = (
            _is_list(block_ids)
            and block_ids[: len(request.block_ids)] == request.block_ids
            and num_new >= 0
            and start + num_new <= len(order)
            and not any(self.is_elsewhere(req_id, slot, token_id) for token_id, slot in new)
        )
        total = len(request.tokens) + num_new
        if self.call("sync_new_tokens", req_id, tuple(block_ids), total, is_legal=is_legal):
            request.block_ids = block_ids
            request.tokens += [Token(slot) for _, slot in new]
            self.requests[req_id] = request

    @rule(whose=WHOSE, token_id=NUMBER)
    def evict_token(self, whose: int, token_id: int) -> None:
        """A token dies and keeps its slot."""
        self.evict(self.named(whose), token_id)

    def named(self, whose: int) -> str:
        """Return the name of a request."""
        names = [*self.requests, "nobody"]
        return names[-1] if whose == WHOSE_NOBODY else names[whose % len(self.requests or names)]

    def evict(self, req_id: str, token_id: int) -> None:
        """Let a token die, if it may."""
        tokens = self.requests[req_id].tokens if req_id in self.requests else []
        is_legal = 0 <= token_id < len(tokens) and tokens[token_id].is_live
        if self.call("evict_token", req_id, token_id, is_legal=is_legal):
            tokens[token_id].is_live = False

    @rule(whose=WHOSE, step=st.integers(1, 3))
    def evict_some(self, whose: int, step: int) -> None:
        """Every second or third token dies, so that there is something to move into."""
        req_id = self.named(whose)
        for token_id, token in enumerate(self.requests.get(req_id, Request()).tokens):
            if token.is_live and token_id % (step + 1) == 0:
                self.evict(req_id, token_id)

    @rule(whose=WHOSE, slot=NUMBER, is_dead=st.booleans())
    def recycle_slot(self, whose: int, slot: int, is_dead: bool) -> None:
        """A token is written over a dead one."""
        req_id = self.named(whose)
        request = self.requests.get(req_id, Request())
        dead = self.dead_slots(req_id) if req_id in self.requests else []
        slot = dead[slot % len(dead)] if is_dead and dead else slot
        if self.call("recycle_slot", req_id, slot, is_legal=slot in dead):
            for token in request.tokens:
                token.slot = None if token.slot == slot else token.slot
            request.tokens.append(Token(slot))

    def dead_slots(self, req_id: str) -> list[int]:
        """Return the slots before the end of a request without a live token."""
        request = self.requests[req_id]
        order = self.order(request)[: len(self.resident(request))]
        return [slot for slot in order if self.live_at(req_id, slot) is None]

    @rule(whose=WHOSE, old=NUMBER, new=NUMBER, is_listed=st.booleans())
    def replace_block(self, whose: int, old: int, new: int, is_listed: bool) -> None:
        """All tokens of one block go to the same places of another."""
        req_id = self.named(whose)
        request = self.requests.get(req_id, Request())
        if is_listed and request.block_ids:
            old = request.block_ids[old % len(request.block_ids)]
        block_ids = [new if block_id == old else block_id for block_id in request.block_ids]
        is_legal = old in request.block_ids and _is_list(block_ids)
        if self.call("replace_block", req_id, old, new, is_legal=is_legal):
            request.block_ids = block_ids
            for token in request.tokens:
                if token.slot is not None and token.slot // self.block_size == old:
                    token.slot += (new - old) * self.block_size

    @rule(whose=WHOSE, block_ids=NUMBERS, is_all=st.booleans())
    def release_blocks(self, whose: int, block_ids: list[int], is_all: bool) -> None:
        """Blocks leave the list of a request."""
        req_id = self.named(whose)
        request = self.requests.get(req_id, Request())
        if is_all:
            block_ids = [b for b in request.block_ids if not self.num_live(request, b)]
        kept = [block_id for block_id in request.block_ids if block_id not in block_ids]
        is_legal = req_id in self.requests and not any(self.num_live(request, b) for b in block_ids)
        if (
            self.call("release_blocks", req_id, block_ids, self.is_protected, is_legal=is_legal)
            and kept != request.block_ids
        ):
            request.block_ids = kept
            self.cut(request)

    def num_live(self, request: Request, block_id: int) -> int:
        """Return the live tokens of a request in a block."""
        slots = [token.slot for token in request.tokens if token.is_live and token.slot is not None]
        return sum(slot // self.block_size == block_id for slot in slots)

    @rule(whose=WHOSE, moves=st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=3), block_ids=NUMBERS)
    def apply_any_moves(self, whose: int, moves: list[tuple[int, int, int]], block_ids: list[int]) -> None:
        """Any moves are asked for, most of them nonsense."""
        self._apply_moves(self.named(whose), [Move(*move) for move in moves], block_ids)

    @rule(
        whose=WHOSE,
        token_ids=NUMBERS,
        to=st.permutations(range(6)),
        dropped=NUMBER,
        added=st.lists(st.integers(0, NUM_BLOCKS), max_size=1),
    )
    def apply_moves(
        self, whose: int, token_ids: list[int], to: list[int], dropped: int, added: list[int]
    ) -> None:
        """Live tokens go to slots of the request, most of them dead or new ones."""
        req_id = self.named(whose)
        request = self.requests.get(req_id)
        if request is None:
            return
        live = [t for t, token in enumerate(request.tokens) if token.is_live]
        chosen = list(dict.fromkeys(live[t % len(live)] for t in token_ids)) if live else []
        block_ids = [b for b in request.block_ids if b != dropped] + [
            b for b in added if b not in request.block_ids
        ]
        order = [slot for slot in self.order(Request(block_ids)) if self.live_at(req_id, slot) is None]
        moves = [
            Move(t, request.tokens[t].slot or 0, order[at])
            for t, at in zip(chosen, to, strict=False)
            if at < len(order)
        ]
        self._apply_moves(req_id, moves, block_ids)

    def _apply_moves(self, req_id: str, moves: Sequence[Move], block_ids: list[int]) -> None:
        self.protected -= {move.src_slot // self.block_size for move in moves}  # Nobody moves shared tokens.
        is_legal = self._may_move(req_id, moves, block_ids)
        if self.call("apply_moves", req_id, moves, block_ids, self.is_protected, is_legal=is_legal):
            request = self.requests[req_id]
            for move in moves:
                request.tokens[move.token_id].slot = None
            for move in moves:
                for token in request.tokens:
                    token.slot = None if token.slot == move.dst_slot else token.slot
                request.tokens[move.token_id].slot = move.dst_slot
            request.block_ids = block_ids
            self.cut(request)

    def _may_move(self, req_id: str, moves: Sequence[Move], block_ids: list[int]) -> bool:
        if req_id not in self.requests or not _is_list(block_ids):
            return False
        request = self.requests[req_id]
        moving = {move.token_id for move in moves}
        targets = [move.dst_slot for move in moves]
        if len(moving) != len(moves) or len(set(targets)) != len(targets):
            return False
        for token_id, src_slot, dst_slot in moves:
            if not 0 <= token_id < len(request.tokens) or not request.tokens[token_id].is_live:
                return False
            occupant = self.live_at(req_id, dst_slot)
            is_taken = occupant is not None and occupant not in moving
            is_outside = dst_slot // self.block_size not in block_ids
            is_wrong = request.tokens[token_id].slot != src_slot
            if is_taken or is_outside or is_wrong or self.is_elsewhere(req_id, dst_slot):
                return False
        staying = [t for t, token in enumerate(request.tokens) if token.is_live and t not in moving]
        return all((request.tokens[t].slot or 0) // self.block_size in block_ids for t in staying)

    @rule(whose=WHOSE)
    def drop(self, whose: int) -> None:
        """A request is forgotten, but not the only one."""
        req_id = self.named(whose)
        if len(self.requests) < 2 and req_id in self.requests:
            return
        if self.call("drop", req_id, is_legal=req_id in self.requests):
            del self.requests[req_id]

    # What the table says.

    def check(self) -> None:
        """Hold every answer of the table to the model."""
        table = self.table
        equal("requests", sorted(table.requests()), sorted(self.requests))
        for req_id, request in self.requests.items():
            live = [t for t, token in enumerate(request.tokens) if token.is_live]
            resident = self.resident(request)
            num_written = -(-len(resident) // self.block_size)
            equal("block list", table.block_ids(req_id), request.block_ids)
            equal("written blocks", table.written_blocks(req_id), request.block_ids[:num_written])
            equal("tokens", table.num_tokens(req_id), len(request.tokens))
            equal("live tokens", table.live_tokens(req_id), live)
            equal("number of live tokens", table.num_live(req_id), len(live))
            equal("slot mapping", table.slot_mapping(req_id), [request.tokens[t].slot for t in live])
            equal("resident tokens", table.resident_tokens(req_id), resident)
            equal("length", table.length(req_id), len(resident))
            equal("last tokens", table.last_tokens(req_id, 3), resident[-3:])
            equal("dead slots", table.dead_slots(req_id), self.dead_slots(req_id))
            for token_id, token in enumerate(request.tokens):
                equal(f"life of {token_id}", table.is_live(req_id, token_id), token.is_live)
                equal(f"slot of {token_id}", self._found_slot(req_id, token_id), token.slot)
            for block_id in range(NUM_BLOCKS):
                equal(
                    f"live in {block_id}",
                    table.live_in_block(req_id, block_id),
                    self.num_live(request, block_id),
                )
            equal("waste", table.waste(req_id), self._waste([request]))
        equal("waste of all", table.waste(), self._waste(list(self.requests.values())))
        for slot in range(NUM_BLOCKS * self.block_size):
            owners = [(r, t) for r in self.requests if (t := self.live_at(r, slot)) is not None]
            owner = table.live_owner(slot)
            equal(f"owner of {slot}", owner in owners if owners else owner is None, True)

    def _found_slot(self, req_id: str, token_id: int) -> int | None:
        try:
            return self.table.slot(req_id, token_id)
        except VTokenError:
            return None

    def _waste(self, requests: list[Request]) -> Fraction:
        num_slots = sum(len(self.order(request)) for request in requests)
        num_live = sum(token.is_live for request in requests for token in request.tokens)
        return 1 - Fraction(num_live, num_slots) if num_slots else Fraction(0)


def _is_list(block_ids: Sequence[int]) -> bool:
    """Tell whether a block list names no block twice and none below 0."""
    return len(set(block_ids)) == len(block_ids) and all(block_id >= 0 for block_id in block_ids)
