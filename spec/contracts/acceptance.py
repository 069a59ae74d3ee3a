"""Contracts of the check that every plan passes, whoever made it: what it accepts loses no token and pays.

The check sees arbitrary blocks and moves here, and it must refuse with a rule, never fail otherwise.
"""

from spec.contracts.contract import Contract
from spec.contracts.small import commit, holds_each_live_token_once, is_private, small_table
from vtoken_ref.events import Move, View
from vtoken_ref.planner import Relocation, RelocationStrategy, check_relocation
from vtoken_ref.rules import Rule, VTokenError

RawMove = tuple[int, int, int]
LEASED = 10

RULES = (
    Rule.PLAN_SOURCES.id,
    Rule.PLAN_NO_GAIN.id,
    Rule.PLAN_DESTINATIONS.id,
    Rule.PLAN_TOKEN_LOST.id,
    Rule.PLAN_ORDER.id,
    Rule.DEAD_MOVE.id,
    Rule.STALE_SOURCE.id,
    "I1",
    "I2",
    "I4",
)


def accepted_sources_are_safe(first: int, second: int, is_packed: bool, is_protected: bool) -> bool:
    """Whatever two blocks a plan empties, it is refused or it loses no token and frees a block."""
    assert 2 <= first <= 5 and 2 <= second <= 5
    table = small_table(2, (4, 2, 3), (False, True, True, False, True, False))
    move_of = {4: Move(0, 8, 20), 2: Move(3, 5, 20), 3: Move(5, 7, 20)}
    moves = [move_of[block_id] for block_id in (first, second) if block_id in move_of]
    moves = [move._replace(dst_slot=20 + index) for index, move in enumerate(sorted(moves))]
    relocation = Relocation((first, second), (LEASED,), tuple(moves))
    protected = 2 if is_protected else 0
    live = table.live_tokens("a")
    try:
        check_relocation(
            table,
            "a",
            "out_of_place",
            relocation,
            lambda block_id: block_id == protected,
            lambda block_id: block_id == LEASED,
            view="packed" if is_packed else "indirect",
        )
    except VTokenError:
        return False
    assert protected not in (first, second)
    commit(table, relocation)
    assert holds_each_live_token_once(table, live)
    assert len(table.block_ids("a")) == 2
    return True


def accepted_moves_out_of_place_are_safe(destination: int, first: RawMove, second: RawMove) -> bool:
    """Whatever two moves and destination a plan has, it is refused or it loses no token and pays."""
    assert 9 <= destination <= 11
    assert all(
        2 <= token_id <= 5 and 4 <= src <= 7 and 19 <= dst <= 22 for token_id, src, dst in (first, second)
    )
    return _accepts_only_safe("out_of_place", "indirect", destination, (Move(*first), Move(*second)))


def accepted_moves_in_place_are_safe(destination: int, move: RawMove) -> bool:
    """Whatever move and destination a plan in place has, it is refused or it loses no token and pays."""
    assert 1 <= destination <= 4 and 0 <= move[0] <= 5
    assert 3 <= move[1] <= 8 and 3 <= move[2] <= 8
    return _accepts_only_safe("in_place", "packed", destination, (Move(*move),))


def accepted_copies_on_write_are_safe(source: int, destination: int, first: RawMove, second: RawMove) -> bool:
    """Whatever copy on write is accepted, each token of the block keeps its offset in the leased one."""
    assert 2 <= source <= 4 and 9 <= destination <= 11
    assert all(
        2 <= token_id <= 5 and 4 <= src <= 7 and 19 <= dst <= 22 for token_id, src, dst in (first, second)
    )
    table = small_table(2, (4, 2, 3), (False, False, True, False, False, False))
    relocation = Relocation((source,), (destination,), (Move(*first), Move(*second)))
    try:
        check_relocation(
            table,
            "a",
            "copy_on_write",
            relocation,
            lambda block_id: block_id == 2,
            lambda block_id: block_id == LEASED,
        )
    except VTokenError:
        return False
    assert (source, destination) == (2, LEASED)
    table.replace_block("a", source, destination)
    for token_id, _, dst_slot in relocation.moves:
        assert table.slot("a", token_id) == dst_slot
    assert table.live_tokens("a") == [0, 1, 3, 4, 5]
    return True


def _accepts_only_safe(
    strategy: RelocationStrategy, view: View, destination: int, moves: tuple[Move, ...]
) -> bool:
    """Sources are blocks 2 and 3, whose live tokens 2 and 5 are in slots 4 and 7."""
    table = small_table(2, (4, 2, 3), (False, False, False, True, True, False))
    live = table.live_tokens("a")
    relocation = Relocation((2, 3), (destination,), moves)
    try:
        check_relocation(
            table, "a", strategy, relocation, is_private, lambda block_id: block_id == LEASED, view=view
        )
    except VTokenError:
        return False
    commit(table, relocation)
    assert holds_each_live_token_once(table, live)
    assert len(table.block_ids("a")) == 2
    return True


CONTRACTS = (
    Contract(
        accepted_sources_are_safe,
        "3 written blocks of 2, any list of 2 sources, either view, a block protected or not",
        (2, 3, True, False),
        (*RULES, Rule.PLAN_SHARED.id, Rule.PLAN_PACKED.id),
    ),
    Contract(
        accepted_moves_out_of_place_are_safe,
        "2 sources of 2, 3 destinations, any 2 moves of their tokens to 4 slots",
        (10, (2, 4, 20), (5, 7, 21)),
        (*RULES, Rule.SLOT_USED_TWICE.id),
    ),
    Contract(
        accepted_moves_in_place_are_safe,
        "3 blocks of 2, 4 destinations, any move among their slots",
        (2, (5, 7, 5)),
        RULES,
    ),
    Contract(
        accepted_copies_on_write_are_safe,
        "3 blocks of 2, 3 destinations, any 2 moves of their tokens to 4 slots",
        (2, 10, (2, 4, 20), (3, 5, 21)),
        (Rule.PLAN_SOURCES.id, Rule.PLAN_DESTINATIONS.id, Rule.PLAN_ORDER.id, "I1"),
    ),
)
