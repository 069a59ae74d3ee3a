"""Relocations alone, against a layout of plain lists: what a plan may be, and which one frees the most.

``check_plan`` is one case of it, for Hypothesis or CrossHair to look for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition

from spec.machines.pure import Pure, equal
from spec.machines.tally import rule
from vtoken_ref.events import Move, View
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    blocks_after,
    check_relocation,
    plan_relocation,
    wholly_dead_blocks,
)
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, TokenTable

REQUEST = "a"
LEASED = (20, 21, 22)
"""Blocks that may be lent."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a plan is asked for: how, with how many leased blocks, from how many sources, for which view."""

    strategy: RelocationStrategy
    view: View
    num_leased: int = 3
    max_sources: int | None = None
    reserve: int = 0

    @property
    def leased(self) -> tuple[int, ...]:
        """Return the blocks that are lent."""
        return LEASED[: self.num_leased]


class Layout:
    """One request: in each written block the tokens by offset, and which of them are live."""

    def __init__(self, table: TokenTable, protected: set[int]) -> None:
        self.size, self.protected = table.block_size, protected
        self.blocks = table.written_blocks(REQUEST)
        row = table.resident_tokens(REQUEST)
        live = set(table.live_tokens(REQUEST))
        self.length = len(row)
        self.rows = {
            block_id: [t if t in live else HOLE for t in row[at * self.size : (at + 1) * self.size]]
            for at, block_id in enumerate(self.blocks)
        }

    def live(self, block_ids: Sequence[int]) -> list[int]:
        """Return the live tokens of some blocks, as they lie."""
        return [token_id for block_id in block_ids for token_id in self.rows[block_id] if token_id != HOLE]

    def slot(self, token_id: int) -> int:
        """Return where a live token is."""
        return next(b * self.size + row.index(token_id) for b, row in self.rows.items() if token_id in row)

    def open_block(self) -> int | None:
        """Return the block that the next token goes to, if it is a written one."""
        return self.blocks[-1] if self.length % self.size else None

    def num_destinations(self, sources: Sequence[int], wish: Wish) -> int:
        """Return the blocks that the live tokens of the sources need."""
        is_end = wish.view == "packed" or self.open_block() in sources
        needed = len(self.live(sources)) + (wish.reserve if is_end else 0)
        return (needed + self.size - 1) // self.size

    def may_be_sources(self, sources: Sequence[int], wish: Wish) -> bool:
        """Tell whether these blocks may be emptied."""
        is_in_order = list(sources) == [b for b in self.blocks if b in sources]
        is_private = not set(sources) & self.protected
        if wish.view == "packed":
            is_shape = bool(sources) and list(sources) == self.blocks[len(self.blocks) - len(sources) :]
        else:
            is_shape = all(self.live([b]) for b in sources if b in self.rows)
        return (
            is_in_order
            and is_private
            and is_shape
            and bool(self.live([b for b in sources if b in self.rows]))
        )

    def is_relocation(self, plan: Relocation, wish: Wish) -> bool:
        """Tell whether a relocation keeps the contract."""
        sources, destinations, moves = plan
        if not set(sources) <= set(self.blocks) or not self.may_be_sources(sources, wish):
            return False
        count = self.num_destinations(sources, wish)
        if not len(destinations) == count < len(sources):
            return False
        if wish.strategy == "in_place":
            is_given = tuple(destinations) == tuple(sources[:count])
        else:
            is_given = len(set(destinations)) == count and set(destinations) <= set(wish.leased)
        return is_given and list(moves) == list(self.moves(sources, destinations, wish.strategy))

    def moves(
        self, sources: Sequence[int], destinations: Sequence[int], strategy: RelocationStrategy
    ) -> Iterator[Move]:
        """Yield the moves that fill one destination after the other."""
        tokens = self.live(sources)
        room = [b * self.size + offset for b in destinations for offset in range(self.size)]
        for token_id, slot in zip(tokens if strategy == "in_place" else sorted(tokens), room, strict=False):
            if self.slot(token_id) != slot:
                yield Move(token_id, self.slot(token_id), slot)

    def most_freed(self, wish: Wish) -> tuple[int, int]:
        """Return the most blocks that any relocation frees, and the fewest tokens with which one does."""
        most = len(self.blocks) if wish.max_sources is None else wish.max_sources
        room = len(self.blocks) if wish.strategy == "in_place" else wish.num_leased
        candidates = self.blocks
        if wish.view == "indirect":
            candidates = [block_id for block_id in self.blocks if block_id != self.open_block()]
        best, fewest = 0, 0
        for sources in chain.from_iterable(combinations(candidates, n) for n in range(1, most + 1)):
            count = self.num_destinations(sources, wish)
            freed = len(sources) - count
            if self.may_be_sources(sources, wish) and count <= room and freed >= max(best, 1):
                fewest = min(fewest, len(self.live(sources))) if freed == best else len(self.live(sources))
                best = freed
        return best, fewest


def check_planned(table: TokenTable, protected: set[int], wish: Wish) -> Relocation | None:
    """Hold the planner's answer to what is best, and to the contract.

    Raises:
        Disagreement: it is not.

    """
    layout = Layout(table, protected)
    plan = plan_relocation(
        table,
        REQUEST,
        wish.strategy,
        protected.__contains__,
        wish.leased,
        wish.max_sources,
        view=wish.view,
        reserve=wish.reserve,
    )
    best, fewest = layout.most_freed(wish)
    freed = len(plan.source_blocks) - len(plan.destination_blocks) if plan else 0
    if all(layout.live([block_id]) for block_id in layout.blocks):  # Others are released without a plan.
        equal(f"what {plan} of {layout.rows} frees for {wish}", freed, best)
    if plan is not None:
        equal(
            f"that {plan} of {layout.rows} is a relocation for {wish}", layout.is_relocation(plan, wish), True
        )
        if wish.view == "indirect" and freed == best:
            equal(f"tokens that {plan} of {layout.rows} moves", len(layout.live(plan.source_blocks)), fewest)
        check_offered(table, protected, wish, plan)
    return plan


def check_offered(table: TokenTable, protected: set[int], wish: Wish, plan: Relocation) -> bool:
    """Hold what the contract says of a relocation to what the lists say.

    Raises:
        Disagreement: they differ.

    """
    layout, is_refused = Layout(table, protected), False
    try:
        check_relocation(
            table,
            REQUEST,
            wish.strategy,
            plan,
            protected.__contains__,
            wish.leased.__contains__,
            view=wish.view,
            reserve=wish.reserve,
        )
    except VTokenError:
        is_refused = True
    equal(f"refusal of {plan} of {layout.rows} for {wish}", is_refused, not layout.is_relocation(plan, wish))
    return not is_refused


def relocate(table: TokenTable, protected: set[int], wish: Wish, plan: Relocation) -> None:
    """Copy, commit and release, and hold what is left to what was there.

    Raises:
        Disagreement: a token is lost, out of place or in another order.

    """
    before = Layout(table, protected)
    memory = {before.slot(token_id): token_id for token_id in before.live(before.blocks)}
    moves = plan.moves if wish.strategy == "in_place" else tuple(reversed(plan.moves))
    for move in moves:
        memory[move.dst_slot] = memory[move.src_slot]
    block_ids = blocks_after(table.block_ids(REQUEST), plan.source_blocks, plan.destination_blocks)
    table.apply_moves(REQUEST, plan.moves, block_ids, protected.__contains__)
    after = Layout(table, protected)
    tokens = after.live(after.blocks)
    equal("the tokens after a relocation", sorted(tokens), sorted(before.live(before.blocks)))
    for token_id in tokens:
        equal(f"what slot {after.slot(token_id)} holds", memory[after.slot(token_id)], token_id)
    moved = before.live(plan.source_blocks)
    expected = moved if wish.strategy == "in_place" else sorted(moved)
    equal("the order of the moved tokens", [token_id for token_id in tokens if token_id in moved], expected)
    if wish.view == "packed":
        last = [token_id for block_id in plan.destination_blocks for token_id in after.rows.get(block_id, ())]
        equal("the end of the request", [token_id for token_id in last if token_id != HOLE], expected)
        equal("holes after a relocation", HOLE in last, False)


def check_plan(
    block_size: int, num_tokens: int, dead: int, is_indirect: bool, is_in_place: bool, max_sources: int
) -> None:
    """Plan for a request whose tokens were written in order and some evicted, and do what was planned.

    Args:
        block_size: slots per block, from 1.
        num_tokens: from 1.
        dead: the tokens whose bit is set are dead.
        is_indirect: of which view.
        is_in_place: by which strategy.
        max_sources: the most sources.

    Raises:
        Disagreement: the planner or the contract is wrong.

    """
    table = TokenTable(block_size)
    table.sync_new_tokens(REQUEST, range((num_tokens + block_size - 1) // block_size), num_tokens)
    for token_id in range(num_tokens):
        if dead >> token_id & 1:
            table.evict_token(REQUEST, token_id)
    strategy: RelocationStrategy = "in_place" if is_in_place else "out_of_place"
    wish = Wish(strategy, "indirect" if is_indirect else "packed", 3, max_sources)
    plan = check_planned(table, set(), wish)
    if plan is not None:
        relocate(table, set(), wish, plan)


WISHES = st.builds(
    Wish,
    st.sampled_from(("in_place", "out_of_place")),
    st.sampled_from(("packed", "indirect")),
    st.integers(0, 3),
    st.sampled_from((None, 1, 2, 3)),
    st.integers(0, 2),
)


class Planning(Pure):
    """One request that grows, loses tokens, and is relocated in any way that is allowed."""

    @initialize(block_size=st.integers(1, 3), num_blocks=st.integers(1, 4))
    def set_up(self, block_size: int, num_blocks: int) -> None:
        """Begin with a request that has filled its blocks."""
        self.table, self.protected, self.num_given = TokenTable(block_size), set[int](), 0
        self.grow(num_blocks, block_size * num_blocks)
        self.is_set_up = True

    def subject(self) -> Any:
        """Return the table."""
        return self.table

    def check(self) -> None:
        """Nothing is to be held here: each rule does it."""

    def note(self, name: str, *arguments: object) -> None:
        """Count a rule and keep it for the counterexample."""
        self.begin_step()
        self.calls.append(f"{name}{arguments}")

    def grow(self, num_blocks: int, num_tokens: int) -> None:
        """Give new blocks and write tokens, as far as there is room."""
        block_ids = self.table.block_ids(REQUEST) if REQUEST in self.table else []
        fresh = [b for b in range(7) if b not in block_ids and b not in self.protected][:num_blocks]
        length = self.table.length(REQUEST) if REQUEST in self.table else 0
        size = self.table.block_size
        room = (len(block_ids) + len(fresh)) * size - length
        last = [*block_ids, *fresh][length // size : length // size + 1]
        if not set(last) & self.protected:
            total = (self.table.num_tokens(REQUEST) if REQUEST in self.table else 0) + min(room, num_tokens)
            self.table.sync_new_tokens(REQUEST, [*block_ids, *fresh], total)

    @precondition(lambda self: len(self.table.block_ids(REQUEST)) < 6)
    @rule(num_blocks=st.integers(1, 4), num_tokens=st.integers(1, 12))
    def write(self, num_blocks: int, num_tokens: int) -> None:
        """The request grows."""
        self.note("write", num_blocks, num_tokens)
        self.grow(num_blocks, num_tokens)

    @precondition(lambda self: 2 * self.table.num_live(REQUEST) > self.table.length(REQUEST))
    @rule(mask=st.integers(0, 2**12 - 1))
    def evict(self, mask: int) -> None:
        """Tokens die."""
        self.note("evict", mask)
        for at, token_id in enumerate(self.table.live_tokens(REQUEST)):
            if mask >> at & 1:
                self.table.evict_token(REQUEST, token_id)

    @rule(which=st.integers(0, 7))
    def recycle(self, which: int) -> None:
        """A token is written over a dead one, so that order is lost."""
        dead = self.table.dead_slots(REQUEST)
        if dead:
            self.note("recycle", which)
            self.table.recycle_slot(REQUEST, dead[which % len(dead)])

    @rule(num_blocks=st.integers(0, 1))
    def protect(self, num_blocks: int) -> None:
        """Some of the first blocks are shared, and no other."""
        self.note("protect", num_blocks)
        self.protected = set(self.table.written_blocks(REQUEST)[:num_blocks])

    @precondition(lambda self: not self.protected and len(self.table.written_blocks(REQUEST)) > 3)
    @rule()
    def protect_one(self) -> None:
        """A block in the middle is shared."""
        self.note("protect_one")
        self.protected = {self.table.written_blocks(REQUEST)[2]}

    @rule(wish=WISHES, is_done=st.booleans())
    def plan(self, wish: Wish, is_done: bool) -> None:
        """The planner is asked, and what it answers is done or not."""
        self.note("plan", wish)
        plan = check_planned(self.table, self.protected, wish)
        if plan is not None:
            self.happened(f"planned {wish.view} {wish.strategy}")
            if is_done:
                self._relocate(wish, plan)

    @rule(wish=WISHES, mask=st.integers(1, 63), skipped=st.integers(0, 8), count=st.integers(-1, 1))
    def offer(self, wish: Wish, mask: int, skipped: int, count: int) -> None:
        """Somebody else makes a plan from any blocks, right or not; if it is right it is done."""
        layout = Layout(self.table, self.protected)
        sources = [block_id for at, block_id in enumerate(layout.blocks) if mask >> at & 1]
        if wish.view == "packed" and mask & 1:
            sources = layout.blocks[mask // 2 % (len(layout.blocks) + 1) :]
        candidates = sources if wish.strategy == "in_place" else list(LEASED)
        number = max(layout.num_destinations(sources, wish) + count * (skipped > 5), 0)
        destinations = candidates[:number]
        moves = [
            move
            for at, move in enumerate(layout.moves(sources, destinations, wish.strategy))
            if skipped > 5 or at != skipped
        ]
        plan = Relocation(tuple(sources), tuple(destinations), tuple(moves))
        self.note("offer", wish, plan)
        if check_offered(self.table, self.protected, wish, plan):
            self.happened("an offered plan is right")
            self._relocate(wish, plan)

    def _relocate(self, wish: Wish, plan: Relocation) -> None:
        """Do a plan; leased blocks get the names of blocks that are free, so that they can be lent again."""
        relocate(self.table, self.protected, wish, plan)
        listed = self.table.block_ids(REQUEST)
        free = [
            block_id for block_id in range(7) if block_id not in listed and block_id not in self.protected
        ]
        for block_id in listed:
            if block_id in LEASED:
                self.table.replace_block(REQUEST, block_id, free.pop())

    @precondition(lambda self: len(self.table.block_ids(REQUEST)) > 3)
    @rule()
    def release(self) -> None:
        """Blocks without a live token go."""
        self.note("release")
        layout = Layout(self.table, self.protected)
        dead = wholly_dead_blocks(self.table, REQUEST, self.protected.__contains__)
        listed = self.table.block_ids(REQUEST)
        is_dead = {b: not layout.live([b]) if b in layout.rows else b in self.protected for b in listed}
        equal("wholly dead blocks", list(dead), [block_id for block_id in listed if is_dead[block_id]])
        self.table.release_blocks(REQUEST, dead, self.protected.__contains__)
        self.protected -= set(dead)
