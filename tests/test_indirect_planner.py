"""The planner of the indirect view: which blocks it empties, and which plans of others are refused."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_planner import LEASES, STRATEGIES, apply, gain_of, live_in_slots, private, verdict
from vtoken_ref.events import Move
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    check_relocation,
    num_blocks_for,
    open_block,
    plan_relocation,
    wholly_dead_blocks,
)
from vtoken_ref.table import TokenTable

# Which candidates.


def freed(num_live: list[int], chosen: tuple[int, ...] | list[int], block_size: int) -> int:
    return len(chosen) - num_blocks_for(sum(num_live[index] for index in chosen), block_size)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 5), st.integers(0, 7), st.integers(0, 4), st.data())
def test_no_other_choice_frees_more_nor_as_many_with_fewer_tokens(
    block_size: int, max_sources: int, max_destinations: int, data: st.DataObject
) -> None:
    num_live = data.draw(st.lists(st.integers(1, block_size - 1), max_size=6))
    chosen = choose_sources(num_live, block_size, max_sources, max_destinations)
    allowed = [
        indices
        for count in range(min(max_sources, len(num_live)) + 1)
        for indices in combinations(range(len(num_live)), count)
        if sum(num_live[index] for index in indices) <= max_destinations * block_size
    ]
    assert tuple(chosen) in allowed
    most_freed = max(freed(num_live, indices, block_size) for indices in allowed)
    as_good = [indices for indices in allowed if freed(num_live, indices, block_size) == most_freed]
    assert freed(num_live, chosen, block_size) == most_freed
    assert sum(num_live[index] for index in chosen) == min(
        sum(num_live[index] for index in indices) for indices in as_good
    )


@pytest.mark.parametrize(
    ("num_live", "max_sources", "max_destinations", "chosen"),
    [
        ([3, 1, 3, 2], 4, 4, [1, 3]),
        ([3, 1, 1, 1], 4, 4, [1, 2, 3]),
        ([2, 2, 2, 2], 4, 4, [0, 1, 2, 3]),
        ([2, 2, 2, 2], 3, 4, [0, 1]),
        ([2, 2, 2, 2], 4, 1, [0, 1]),
        ([1, 1, 1, 1], 2, 4, [0, 1]),
        ([2, 2, 2, 2], 4, 0, []),
        ([2, 2, 2, 2], 1, 4, []),
        ([2, 2, 2, 2], 0, 4, []),
        ([3, 3, 3], 3, 3, []),
        ([3, 3, 3, 3], 4, 4, [0, 1, 2, 3]),
        ([], 4, 4, []),
    ],
)
def test_the_emptiest_candidates_the_first_of_equals_and_no_more_than_pay(
    num_live: list[int], max_sources: int, max_destinations: int, chosen: list[int]
) -> None:
    assert choose_sources(num_live, 4, max_sources, max_destinations) == chosen


# Plans.


def spread(num_tokens: int, *evicted: int, blocks: tuple[int, ...] = (7, 3, 5, 9, 8)) -> TokenTable:
    """Tokens 0 and on in blocks of four, without the evicted ones."""
    table = TokenTable(4)
    table.sync_new_tokens("a", blocks, num_tokens)
    for token_id in evicted:
        table.evict_token("a", token_id)
    return table


def plan(
    table: TokenTable,
    strategy: RelocationStrategy = "out_of_place",
    shared: frozenset[int] = frozenset(),
    leased: tuple[int, ...] = (60, 61),
    bound: int | None = None,
) -> Relocation | None:
    return plan_relocation(table, "a", strategy, shared.__contains__, leased, bound, view="indirect")


# Blocks 7, 3, 5, 9 hold 3, 4, 1 and 1 live tokens; the next token goes to block 8.
SPARSE = (0, 8, 9, 11, 12, 13, 14)
OUT_OF_PLACE = Relocation((5, 9), (60,), (Move(10, 22, 240), Move(15, 39, 241)))
IN_PLACE = Relocation((5, 9), (5,), (Move(10, 22, 20), Move(15, 39, 21)))


def test_a_plan_takes_the_emptiest_blocks() -> None:
    assert plan(spread(16, *SPARSE)) == OUT_OF_PLACE
    assert plan(spread(16, *SPARSE), "in_place", leased=()) == IN_PLACE


def test_sources_need_not_be_neighbours() -> None:
    table = spread(16, 0, 1, 2, 8, 9, 10)
    relocation = plan(table)
    assert relocation == Relocation((7, 5), (60,), (Move(3, 31, 240), Move(11, 23, 241)))
    apply(table, relocation)
    assert table.block_ids("a") == [3, 60, 9, 8]
    assert table.slot_mapping("a") == [240, *range(12, 16), 241, *range(36, 40)]


def test_the_free_slots_of_a_destination_in_the_middle_are_holes_until_a_later_plan() -> None:
    table = spread(16, 0, 1, 2, 8, 9, 10)
    relocation = plan(table)
    assert relocation is not None
    apply(table, relocation)
    assert table.next_slots("a", table.block_ids("a"), 1) == [8 * 4]
    table.sync_new_tokens("a", table.block_ids("a"), 20)
    for token_id in (4, 5):
        table.evict_token("a", token_id)
    assert plan(table, leased=(61,)) == Relocation(
        (3, 60), (61,), (Move(3, 240, 244), Move(6, 14, 245), Move(7, 15, 246), Move(11, 241, 247))
    )


def test_where_the_last_block_was_a_source_the_next_token_fills_the_destination() -> None:
    table = spread(16, *SPARSE)
    apply(table, OUT_OF_PLACE)
    assert table.block_ids("a") == [7, 3, 60, 8]
    assert table.next_slots("a", table.block_ids("a"), 3) == [242, 243, 32]


def test_the_open_block_is_left_alone_until_it_is_full() -> None:
    evicted = (0, 1, 2, 5, 6, 7, 8, 9)
    table = spread(11, *evicted)
    assert open_block(table, "a") == 5
    assert plan(table) == Relocation((7, 3), (60,), (Move(3, 31, 240), Move(4, 12, 241)))
    table = spread(12, *evicted, 11)
    relocation = plan(table)
    assert relocation is not None and relocation.source_blocks == (7, 3, 5)


def test_tokens_written_while_a_plan_is_in_flight_do_not_touch_it() -> None:
    table = spread(15, 0, 1, 2, 5, 6, 7, 12)
    relocation = plan(table)
    assert relocation is not None
    table.sync_new_tokens("a", table.block_ids("a"), 19)
    check_relocation(
        table, "a", "out_of_place", relocation, private, {60}.__contains__, view="indirect", reserve=4
    )
    live = table.live_tokens("a")
    apply(table, relocation)
    assert table.live_tokens("a") == live


def test_protected_full_and_wholly_dead_blocks_are_no_candidates() -> None:
    table = spread(20, 0, 1, 2, 4, 5, 6, 12, 13, 14, 16, 17, 18, 19)
    assert wholly_dead_blocks(table, "a", private) == (8,)
    relocation = plan(table)
    assert relocation is not None and relocation.source_blocks == (7, 3, 9)
    relocation = plan(table, shared=frozenset({3}))
    assert relocation is not None and relocation.source_blocks == (7, 9)
    assert plan(table, shared=frozenset({3, 7})) is None


def test_leases_and_the_bound_reduce_the_candidates() -> None:
    table = spread(16, 0, 1, 4, 5, 8, 9, 12, 13)
    relocation = plan(table)
    assert relocation is not None
    assert (relocation.source_blocks, relocation.destination_blocks) == ((7, 3, 5, 9), (60, 61))
    for leased, bound in [((60,), None), ((60, 61), 3), ((60, 61), 2)]:
        relocation = plan(table, leased=leased, bound=bound)
        assert relocation is not None
        assert (relocation.source_blocks, relocation.destination_blocks) == ((7, 3), (60,))
    assert plan(table, leased=()) is None
    assert plan(table, bound=1) is None
    relocation = plan(table, "in_place", leased=())
    assert relocation is not None and relocation.destination_blocks == (7, 3)


def test_a_reserve_changes_no_plan_of_the_indirect_view() -> None:
    table = spread(11, 0, 1, 2, 5, 6, 7, 8, 9)
    relocation = plan_relocation(table, "a", "out_of_place", private, (60, 61), view="indirect", reserve=9)
    assert relocation == plan(table)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[TokenTable, frozenset[int]]:
    """Histories of growth, eviction, recycling and relocation under the indirect view."""
    block_size = draw(st.integers(1, 4))
    table, shared = TokenTable(block_size), frozenset(draw(st.sets(st.integers(0, 3), max_size=2)))
    unused = iter(range(100))
    table.sync_new_tokens("a", [], 0)
    for _ in range(draw(st.integers(1, 3))):
        num_new = draw(st.integers(1, 4 * block_size))
        blocks = table.block_ids("a")
        needed = num_blocks_for(table.length("a") + num_new, block_size)
        blocks += [next(unused) for _ in range(needed - len(blocks))]
        table.sync_new_tokens("a", blocks, table.num_tokens("a") + num_new)
        for token_id in draw(st.sets(st.sampled_from(table.live_tokens("a")))):
            table.evict_token("a", token_id)
        dead_slots = [slot for slot in table.dead_slots("a") if slot // block_size not in shared]
        if dead_slots:
            for slot in draw(st.lists(st.sampled_from(dead_slots), unique=True, max_size=3)):
                table.recycle_slot("a", slot)
        table.release_blocks("a", wholly_dead_blocks(table, "a", shared.__contains__))
        relocation = plan(table, "out_of_place", shared, tuple(next(unused) for _ in range(3)))
        if relocation is not None and draw(st.booleans()):
            apply(table, relocation)
        if not table.live_tokens("a"):
            break
    return table, shared


@settings(max_examples=200, deadline=None)
@given(layouts(), st.sampled_from(STRATEGIES), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 6)))
def test_a_plan_keeps_the_contract_and_every_token(
    layout: tuple[TokenTable, frozenset[int]],
    strategy: RelocationStrategy,
    num_leased: int,
    bound: int | None,
) -> None:
    table, shared = layout
    leased = tuple(range(200, 200 + num_leased))
    relocation = plan(table, strategy, shared, leased, bound)
    if relocation is None:
        return
    check_relocation(
        table, "a", strategy, relocation, shared.__contains__, leased.__contains__, view="indirect"
    )
    sources, destinations, moves = relocation
    assert bound is None or len(sources) <= bound
    memory = {table.slot("a", token_id): token_id for token_id in table.live_tokens("a")}
    live, moved, num_blocks = table.live_tokens("a"), live_in_slots(table, sources), len(table.block_ids("a"))
    for move in moves:
        memory[move.dst_slot] = memory[move.src_slot]
    apply(table, relocation)
    assert table.live_tokens("a") == live
    assert all(memory[table.slot("a", token_id)] == token_id for token_id in live)
    assert live_in_slots(table, destinations) == (moved if strategy == "in_place" else sorted(moved))
    assert len(table.block_ids("a")) == num_blocks - gain_of(relocation) < num_blocks


@settings(max_examples=200, deadline=None)
@given(layouts(), st.integers(0, 3), st.integers(0, 5))
def test_no_choice_of_candidates_frees_more(
    layout: tuple[TokenTable, frozenset[int]], num_leased: int, bound: int
) -> None:
    table, shared = layout
    candidates = [
        block_id
        for block_id in table.written_blocks("a")
        if block_id not in shared
        and block_id != open_block(table, "a")
        and table.live_in_block("a", block_id)
    ]
    num_live = [table.live_in_block("a", block_id) for block_id in candidates]
    most = max(
        freed(num_live, indices, table.block_size)
        for count in range(bound + 1)
        for indices in combinations(range(len(candidates)), count)
        if sum(num_live[index] for index in indices) <= num_leased * table.block_size
    )
    assert gain_of(plan(table, "out_of_place", shared, LEASES[:num_leased], bound)) == most


# Plans that others make.


def check(
    strategy: RelocationStrategy, relocation: Relocation, shared: frozenset[int] = frozenset()
) -> str | None:
    return verdict(spread(16, *SPARSE), strategy, relocation, shared, "indirect")


def test_the_good_plans_are_accepted() -> None:
    assert check("out_of_place", OUT_OF_PLACE) is check("in_place", IN_PLACE) is None


def test_any_blocks_may_be_sources_but_not_under_the_packed_view() -> None:
    table = spread(16, 0, 1, 2, 8, 9, 10)
    relocation = Relocation((7, 5), (60,), (Move(3, 31, 240), Move(11, 23, 241)))
    assert verdict(table, "out_of_place", relocation, view="indirect") is None
    assert verdict(table, "out_of_place", relocation, view="packed") == "plan-packed"


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ((), "plan-sources"),
        ((9, 5), "plan-sources"),
        ((5, 5), "plan-sources"),
        ((5, 8), "plan-sources"),
        ((5, 60), "plan-sources"),
        ((9,), "plan-no-gain"),
        ((3, 9), "plan-destinations"),
    ],
)
def test_other_sources_are_refused(sources: tuple[int, ...], code: str) -> None:
    assert check("out_of_place", OUT_OF_PLACE._replace(source_blocks=sources)) == code


def test_a_wholly_dead_source_is_refused_though_the_packed_view_takes_it() -> None:
    table = spread(16, *SPARSE, 10)
    moves = (Move(15, 39, 240),)
    assert verdict(table, "out_of_place", Relocation((5, 9), (60,), moves), view="indirect") == "plan-sources"
    assert verdict(table, "out_of_place", Relocation((5, 9), (60,), moves), view="packed") is None


@pytest.mark.parametrize("shared", [{5}, {9}])
def test_shared_sources_are_refused(shared: set[int]) -> None:
    assert check("out_of_place", OUT_OF_PLACE, frozenset(shared)) == "plan-shared"


def test_the_open_block_may_be_a_source_if_the_destinations_keep_the_reserve() -> None:
    table = spread(14, 0, 1, 2, 12)
    relocation = Relocation((7, 9), (60,), (Move(3, 31, 240), Move(13, 37, 241)))
    codes = [
        verdict(table, "out_of_place", relocation, view="indirect", reserve=reserve) for reserve in range(4)
    ]
    assert codes == [None, None, None, "plan-destinations"]
    apply(table, relocation)
    assert table.block_ids("a") == [3, 5, 60, 8]
    assert table.next_slots("a", table.block_ids("a"), 2) == [242, 243]
