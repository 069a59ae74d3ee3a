"""Contracts of the token table: an operation is refused and changes nothing, or keeps every live token."""

from spec.contracts.contract import Contract
from spec.contracts.small import Four, Three, holds_each_live_token_once, small_table
from vtoken_ref.events import Move
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import TokenTable


def new_tokens_take_the_next_slots(num_tokens: int, num_new: int) -> bool:
    """New tokens get the next ids and the slots foretold, or too few blocks are refused."""
    assert 0 <= num_tokens <= 4 and -1 <= num_new <= 4
    table = TokenTable(2)
    table.sync_new_tokens("a", (4, 2), num_tokens)
    before = table.slot_mapping("a")
    try:
        slots = table.next_slots("a", (4, 2, 3), num_new)
        new_tokens = table.sync_new_tokens("a", (4, 2, 3), num_tokens + num_new)
    except VTokenError:
        assert num_new < 0 or num_tokens + num_new > 6
        assert table.slot_mapping("a") == before
        return False
    assert list(new_tokens) == list(range(num_tokens, num_tokens + num_new))
    assert table.slot_mapping("a") == before + slots
    assert holds_each_live_token_once(table, range(num_tokens + num_new))
    return num_new > 0


def a_token_is_evicted_once(is_dead: Four, token_id: int) -> bool:
    """Evicting takes one live token out of the live set and leaves its slot, or is refused."""
    assert -1 <= token_id <= 4
    table = small_table(2, (4, 2), is_dead)
    live = table.live_tokens("a")
    try:
        table.evict_token("a", token_id)
    except VTokenError:
        assert token_id not in live
        assert holds_each_live_token_once(table, live)
        return False
    assert token_id in live
    live.remove(token_id)
    assert holds_each_live_token_once(table, live)
    assert table.num_live("a") == len(live) == table.live_in_block("a", 4) + table.live_in_block("a", 2)
    return True


def waste_is_the_share_of_slots_without_a_live_token(is_dead: Four, num_unwritten: int) -> bool:
    """F times all slots is the number of slots without a live token, exactly."""
    assert 0 <= num_unwritten <= 2
    table = small_table(2, (4, 2, 3, 9)[: 2 + num_unwritten], is_dead)
    num_slots = 2 * len(table.block_ids("a"))
    num_live = sum(not dead for dead in is_dead)
    assert table.waste("a") == table.waste()
    assert table.waste("a") * num_slots == num_slots - num_live
    return True


def a_move_keeps_every_live_token_or_changes_nothing(
    is_dead: tuple[bool, bool], token_id: int, src_slot: int, dst_slot: int
) -> bool:
    """One move, whatever it names, is refused and changes nothing or keeps each live token in one slot."""
    assert 0 <= token_id <= 3 and 4 <= src_slot <= 9 and 3 <= dst_slot <= 9
    table = small_table(2, (4, 2), (*is_dead, False))
    live, slots = table.live_tokens("a"), table.slot_mapping("a")
    try:
        table.apply_moves("a", [Move(token_id, src_slot, dst_slot)])
    except VTokenError:
        assert (table.live_tokens("a"), table.slot_mapping("a")) == (live, slots)
        return False
    assert holds_each_live_token_once(table, live)
    assert table.slot("a", token_id) == dst_slot
    return True


def a_release_keeps_every_live_token_or_changes_nothing(is_dead: Four, first: bool, second: bool) -> bool:
    """Giving up blocks is refused where a live token is, and otherwise leaves exactly the others."""
    assert len(is_dead) == 4
    table = small_table(2, (4, 2), is_dead)
    live = table.live_tokens("a")
    given_up = [block_id for block_id, chosen in ((4, first), (2, second)) if chosen]
    kept = [block_id for block_id in (4, 2) if block_id not in given_up]
    try:
        table.release_blocks("a", given_up)
    except VTokenError:
        assert any(table.live_in_block("a", block_id) for block_id in given_up)
        assert table.block_ids("a") == [4, 2]
        return False
    assert table.block_ids("a") == kept
    assert holds_each_live_token_once(table, live)
    return bool(given_up)


def a_recycled_slot_was_dead(is_dead: Three, slot: int) -> bool:
    """A new token takes over a dead slot, or is refused and nothing changes."""
    assert 3 <= slot <= 9
    table = small_table(2, (4, 2), is_dead)
    live, slots = table.live_tokens("a"), table.slot_mapping("a")
    try:
        new_token = table.recycle_slot("a", slot)
    except VTokenError:
        assert (table.live_tokens("a"), table.slot_mapping("a")) == (live, slots)
        return False
    assert slot not in slots
    assert new_token == 3
    assert holds_each_live_token_once(table, [*live, 3])
    return True


CONTRACTS = (
    Contract(
        new_tokens_take_the_next_slots,
        "0 to 4 tokens and -1 to 4 new ones in 3 blocks of 2",
        (3, 2),
        (Rule.LENGTH_SHRANK.id, Rule.BLOCK_LIST_SHORT.id, "I2"),
    ),
    Contract(
        a_token_is_evicted_once,
        "4 tokens in 2 blocks of 2, any of them dead, any token",
        ((False, True, False, False), 2),
        (Rule.EVICTED_TWICE.id, Rule.UNKNOWN_TOKEN.id, "I1"),
    ),
    Contract(
        waste_is_the_share_of_slots_without_a_live_token,
        "4 tokens in 2 blocks of 2, any of them dead, 0 to 2 unwritten blocks",
        ((False, True, False, False), 1),
        (Rule.NOT_ELIGIBLE.id,),
    ),
    Contract(
        a_move_keeps_every_live_token_or_changes_nothing,
        "3 tokens in 2 blocks of 2, any of the first two dead, any move among slots 3 to 9",
        ((False, True), 2, 4, 9),
        (
            Rule.DEAD_MOVE.id,
            Rule.STALE_SOURCE.id,
            Rule.SLOT_OCCUPIED.id,
            Rule.SLOT_OUTSIDE.id,
            "I1",
            "I2",
        ),
    ),
    Contract(
        a_release_keeps_every_live_token_or_changes_nothing,
        "4 tokens in 2 blocks of 2, any of them dead, any blocks",
        ((True, True, False, False), True, False),
        (Rule.BLOCK_STILL_LIVE.id, "I1"),
    ),
    Contract(
        a_recycled_slot_was_dead,
        "3 tokens in 2 blocks of 2, any of them dead, any slot of 3 to 9",
        ((False, True, False), 9),
        (Rule.RECYCLE.id, "I1", "I2"),
    ),
)
