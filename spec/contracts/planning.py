"""Contracts of the plans that the spec makes: each keeps the contract of plans, pays, and loses no token."""

from spec.contracts.contract import Contract
from spec.contracts.small import Five, Six, commit, holds_each_live_token_once, is_private, small_table
from vtoken_ref.events import View
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    blocks_after,
    check_relocation,
    copy_on_write_moves,
    plan_relocation,
    planned_moves,
    wholly_dead_blocks,
)
from vtoken_ref.rules import Rule
from vtoken_ref.table import TokenTable

LEASES = (10, 11)
PLAN_RULES = (
    Rule.PLAN_SOURCES.id,
    Rule.PLAN_NO_GAIN.id,
    Rule.PLAN_DESTINATIONS.id,
    Rule.PLAN_TOKEN_LOST.id,
    Rule.PLAN_ORDER.id,
    "I1",
    "I2",
    "I4",
)


def packed_plan_in_place(is_dead: Five, reserve: int) -> bool:
    """A packed plan in place frees a block for every block of holes beyond the reserve, leaving no hole."""
    assert 0 <= reserve <= 2
    table = small_table(2, (4, 2, 3), is_dead)
    table.release_blocks("a", wholly_dead_blocks(table, "a", is_private))
    num_holes = 2 * len(table.written_blocks("a")) - table.num_live("a")
    relocation = plan_relocation(table, "a", "in_place", is_private, view="packed", reserve=reserve)
    if relocation is None:
        assert num_holes - reserve < 2
        return False
    assert len(relocation.source_blocks) - len(relocation.destination_blocks) == (num_holes - reserve) // 2
    _check_and_commit(table, "in_place", relocation, "packed", reserve)
    assert table.length("a") == table.num_live("a")
    assert len(table.block_ids("a")) * 2 - table.length("a") >= reserve
    return True


def packed_plan_out_of_place(is_dead: Five, has_two_leases: bool, has_protected: bool) -> bool:
    """A packed plan out of place frees all that its leases and a protected block allow."""
    assert len(is_dead) == 5
    protected = 4 if has_protected else -1
    table = small_table(2, (4, 2, 3), is_dead)
    table.release_blocks("a", wholly_dead_blocks(table, "a", is_private))
    leased = LEASES if has_two_leases else LEASES[:1]
    relocation = plan_relocation(table, "a", "out_of_place", lambda block_id: block_id == protected, leased)
    most = _most_freed(table, protected, 3, len(leased))
    if relocation is None:
        assert most == 0
        return False
    assert len(relocation.source_blocks) - len(relocation.destination_blocks) == most
    assert protected not in relocation.source_blocks
    assert relocation.destination_blocks == leased[: len(relocation.destination_blocks)]
    _check_and_commit(table, "out_of_place", relocation, "packed", 0)
    return True


def packed_plan_within_a_bound(is_dead: Five) -> bool:
    """A packed plan empties no more blocks than the bound, and frees all that it allows."""
    assert len(is_dead) == 5
    table = small_table(2, (4, 2, 3), is_dead)
    table.release_blocks("a", wholly_dead_blocks(table, "a", is_private))
    relocation = plan_relocation(table, "a", "in_place", is_private, (), 2)
    if relocation is None:
        assert _most_freed(table, -1, 2, 2) == 0
        return False
    assert len(relocation.source_blocks) <= 2
    _check_and_commit(table, "in_place", relocation, "packed", 0)
    return True


def indirect_plan_out_of_place(is_dead: Six, is_open: bool) -> bool:
    """The paper's plan keeps the contract, frees a block, and leaves alone where the next token goes."""
    assert len(is_dead) == 6
    table = small_table(2, (4, 2, 3), is_dead[:5] if is_open else is_dead)
    next_slot = table.next_slots("a", (4, 2, 3, 9), 1)[0]
    relocation = plan_relocation(table, "a", "out_of_place", is_private, LEASES[:1], view="indirect")
    if relocation is None:
        return False
    assert next_slot // 2 not in relocation.source_blocks
    assert all(table.live_in_block("a", block_id) == 1 for block_id in relocation.source_blocks)
    _check_and_commit(table, "out_of_place", relocation, "indirect", 0)
    return True


def indirect_plan_spares_a_protected_block(is_dead: Six) -> bool:
    """The paper's plan does without a protected block, and is made when two other blocks pay."""
    assert len(is_dead) == 6
    table = small_table(2, (4, 2, 3), is_dead)
    relocation = plan_relocation(
        table, "a", "out_of_place", lambda block_id: block_id == 2, LEASES, view="indirect"
    )
    if relocation is None:
        assert table.live_in_block("a", 4) != 1 or table.live_in_block("a", 3) != 1
        return False
    assert relocation.source_blocks == (4, 3)
    _check_and_commit(table, "out_of_place", relocation, "indirect", 0)
    return True


def ascending_copies_in_place(is_dead: Six) -> bool:
    """Copies in the order of the moves overwrite no token still to be copied, with a slot recycled."""
    assert len(is_dead) == 6
    table = small_table(3, (4, 2), is_dead)
    dead_slots = table.dead_slots("a")
    if not dead_slots:
        return False
    table.recycle_slot("a", dead_slots[0])
    relocation = plan_relocation(table, "a", "in_place", is_private)
    if relocation is None:
        return False
    content = {table.slot("a", token_id): token_id for token_id in table.live_tokens("a")}
    for move in relocation.moves:
        content[move.dst_slot] = content[move.src_slot]
    commit(table, relocation)
    for token_id in table.live_tokens("a"):
        assert content[table.slot("a", token_id)] == token_id
    return True


def moves_fill_the_destinations_in_order(is_dead: Six, first: int, second: int) -> bool:
    """Out of place the live tokens of the sources go in logical order to one slot after the other."""
    assert first >= 0 and second >= 0 and first != second
    table = small_table(2, (4, 2, 3), is_dead)
    live = [token_id for token_id in range(2, 6) if not is_dead[token_id]]
    moves = planned_moves(table, "a", "out_of_place", (2, 3), (first, second))
    slots = (2 * first, 2 * first + 1, 2 * second, 2 * second + 1)
    assert [move.token_id for move in moves if move.token_id not in live] == []
    for index, token_id in enumerate(live):
        staying = table.slot("a", token_id) == slots[index]
        assert staying or (token_id, table.slot("a", token_id), slots[index]) in moves
    return bool(moves)


def a_commit_replaces_the_last_sources(
    is_source: tuple[bool, bool, bool, bool], num_destinations: int
) -> bool:
    """After a commit the list has the destinations in the places of the last sources, the rest in order."""
    assert 0 <= num_destinations < sum(is_source)
    sources = tuple(block_id for block_id, chosen in zip((7, 3, 5, 9), is_source, strict=True) if chosen)
    destinations = tuple(range(10, 10 + num_destinations))
    after = blocks_after((7, 3, 5, 9), sources, destinations)
    assert [block_id for block_id in after if block_id in destinations] == list(destinations)
    assert [block_id for block_id in after if block_id not in destinations] == [
        block_id for block_id in (7, 3, 5, 9) if block_id not in sources
    ]
    if destinations and is_source[3]:
        assert after[-1] == destinations[-1]
    return bool(destinations)


def copy_on_write_takes_every_resident_token(
    is_dead: tuple[bool, bool, bool, bool], destination: int
) -> bool:
    """Copy on write moves each resident token of one block, dead or live, to its offset in another."""
    assert destination >= 10
    table = small_table(2, (4, 2), is_dead)
    moves = copy_on_write_moves(table, "a", 2, destination)
    assert moves == ((2, 4, 2 * destination), (3, 5, 2 * destination + 1))
    return True


def wholly_dead_blocks_are_all_that_can_go(is_dead: Five, protected: int) -> bool:
    """What is given up without a plan has no live token, and no written block without one is kept."""
    assert protected in (4, 3)
    table = small_table(2, (4, 2, 3, 9), is_dead)
    live = table.live_tokens("a")
    dead_blocks = wholly_dead_blocks(table, "a", lambda block_id: block_id == protected)
    table.release_blocks("a", dead_blocks)
    assert holds_each_live_token_once(table, live)
    assert all(table.live_in_block("a", block_id) for block_id in table.written_blocks("a"))
    return bool(dead_blocks)


def _check_and_commit(
    table: TokenTable, strategy: RelocationStrategy, relocation: Relocation, view: View, reserve: int
) -> None:
    live, num_blocks = table.live_tokens("a"), len(table.block_ids("a"))
    sources, destinations, _ = relocation
    check_relocation(
        table, "a", strategy, relocation, is_private, LEASES.__contains__, view=view, reserve=reserve
    )
    assert len(destinations) < len(sources)
    commit(table, relocation)
    assert holds_each_live_token_once(table, live)
    assert len(table.block_ids("a")) == num_blocks - len(sources) + len(destinations)


def _most_freed(table: TokenTable, protected: int, max_sources: int, max_destinations: int) -> int:
    """Return the most blocks that emptying the last ones frees, by trying every number of them."""
    written, most = table.written_blocks("a"), 0
    for count in range(1, min(max_sources, len(written)) + 1):
        num_live = sum(table.live_in_block("a", block_id) for block_id in written[-count:])
        num_destinations = (num_live + 1) // 2
        if protected not in written[-count:] and 0 < num_destinations <= max_destinations:
            most = max(most, count - num_destinations)
    return most


_FIVE = "5 tokens in 3 blocks of 2, any of them dead"
_SIX = "6 tokens in 3 blocks of 2, any of them dead"

CONTRACTS = (
    Contract(
        packed_plan_in_place,
        f"{_FIVE}, reserve 0 to 2",
        ((False, True, True, False, False), 1),
        (*PLAN_RULES, Rule.PLAN_PACKED.id, "I7"),
    ),
    Contract(
        packed_plan_out_of_place,
        f"{_FIVE}, 1 or 2 leases, first block protected or not",
        ((False, False, True, False, False), True, True),
        (*PLAN_RULES, Rule.PLAN_PACKED.id, Rule.PLAN_SHARED.id),
    ),
    Contract(
        packed_plan_within_a_bound,
        f"{_FIVE}, at most 2 sources",
        ((False, False, True, False, False),),
        PLAN_RULES,
    ),
    Contract(
        indirect_plan_out_of_place,
        "5 or 6 tokens in 3 blocks of 2, any of them dead, 1 lease",
        ((False, True, False, False, False, True), False),
        PLAN_RULES,
    ),
    Contract(
        indirect_plan_spares_a_protected_block,
        f"{_SIX}, the second block protected",
        ((False, True, True, False, False, True),),
        (*PLAN_RULES, Rule.PLAN_SHARED.id),
    ),
    Contract(
        ascending_copies_in_place,
        "6 tokens in 2 blocks of 3, any of them dead, the first dead slot recycled",
        ((True, False, True, True, False, True),),
        (Rule.PLAN_ORDER.id, "I1"),
    ),
    Contract(
        moves_fill_the_destinations_in_order,
        f"{_SIX}, 2 sources, any 2 destinations",
        ((False, False, True, False, False, False), 10, 11),
        (Rule.PLAN_ORDER.id, Rule.PLAN_TOKEN_LOST.id, "I1"),
    ),
    Contract(
        a_commit_replaces_the_last_sources,
        "4 blocks, any sources, any number of destinations",
        ((True, False, True, True), 2),
        (Rule.COMMIT_DIFFERS.id, "I4"),
    ),
    Contract(
        copy_on_write_takes_every_resident_token,
        "2 blocks of 2, any tokens dead, any destination",
        ((False, True, False, False), 10),
        (Rule.PLAN_TOKEN_LOST.id, "I1"),
    ),
    Contract(
        wholly_dead_blocks_are_all_that_can_go,
        f"{_FIVE}, the first or the last block protected",
        ((False, False, True, True, False), 3),
        (Rule.BLOCK_STILL_LIVE.id, "I1"),
    ),
)
