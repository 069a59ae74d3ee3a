"""The packed planner, and the contract of plans: what they promise, and which of others are refused."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vtoken_ref.events import Move, PlanStrategy, View
from vtoken_ref.planner import (
    Relocation,
    RelocationStrategy,
    blocks_after,
    check_relocation,
    copy_on_write_moves,
    num_blocks_for,
    open_block,
    plan_relocation,
    planned_moves,
    wholly_dead_blocks,
)
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, TokenTable

STRATEGIES: list[RelocationStrategy] = ["in_place", "out_of_place"]
VIEWS: list[View] = ["packed", "indirect"]
LEASES = (100, 101, 102, 103)


def private(block_id: int) -> bool:
    return False


def release_dead(table: TokenTable, is_protected: Callable[[int], bool]) -> None:
    """Wholly dead blocks are released without a plan, before anything is planned."""
    table.release_blocks("a", wholly_dead_blocks(table, "a", is_protected))


def apply(table: TokenTable, relocation: Relocation) -> None:
    sources, destinations, moves = relocation
    table.apply_moves("a", moves, blocks_after(table.block_ids("a"), sources, destinations))


def num_live(table: TokenTable, block_ids: tuple[int, ...]) -> int:
    return sum(table.live_in_block("a", block_id) for block_id in block_ids)


def gain_of(relocation: Relocation | None) -> int:
    return 0 if relocation is None else len(relocation.source_blocks) - len(relocation.destination_blocks)


def live_in_slots(table: TokenTable, block_ids: tuple[int, ...]) -> list[int]:
    """The live tokens of some blocks in the order of their slots."""
    tokens = [token_id for block_id in block_ids for token_id in table.block_tokens("a", block_id)]
    return [token_id for token_id in tokens if table.is_live("a", token_id)]


@dataclass
class Layout:
    """Request "a" with evicted tokens and no hole; ``shared`` blocks have another holder."""

    table: TokenTable
    shared: frozenset[int]

    def is_protected(self, block_id: int) -> bool:
        return block_id in self.shared


@st.composite
def layouts(
    draw: st.DrawFn, can_share: bool = True, can_recycle: bool = True, min_block_size: int = 1
) -> Layout:
    """Histories of growth, eviction, recycling and relocation; wholly dead blocks have been released."""
    block_size = draw(st.integers(min_block_size, 5))
    table = TokenTable(block_size)
    unused = list(draw(st.permutations(range(30))))
    table.sync_new_tokens("a", [], 0)
    shared: frozenset[int] = frozenset()
    for _ in range(draw(st.integers(1, 3))):
        num_new = draw(st.integers(1, 4 * block_size))
        blocks = table.block_ids("a")
        needed = num_blocks_for(table.length("a") + num_new, block_size) + draw(st.integers(0, 1))
        blocks += [unused.pop() for _ in range(needed - len(blocks))]
        table.sync_new_tokens("a", blocks, table.num_tokens("a") + num_new)
        if can_share and not shared:
            shared = frozenset(table.written_blocks("a")[: draw(st.integers(0, 2))])
        for token_id in draw(st.sets(st.sampled_from(table.live_tokens("a")))):
            table.evict_token("a", token_id)
        dead_slots = [slot for slot in table.dead_slots("a") if slot // block_size not in shared]
        if can_recycle and dead_slots:
            for slot in draw(st.lists(st.sampled_from(dead_slots), unique=True, max_size=3)):
                table.recycle_slot("a", slot)
        release_dead(table, shared.__contains__)
        relocation = plan_relocation(table, "a", "in_place", shared.__contains__)
        if relocation is not None and draw(st.booleans()):
            apply(table, relocation)
        if not table.live_tokens("a"):
            break
    return Layout(table, shared)


bounds = st.one_of(st.none(), st.integers(0, 5))
leases = st.integers(0, len(LEASES)).map(lambda count: LEASES[:count])
reserves = st.integers(0, 4)


@dataclass
class Planned:
    """A layout with the plan that ``plan_relocation`` makes for it."""

    layout: Layout
    strategy: RelocationStrategy
    leased: tuple[int, ...]
    bound: int | None
    reserve: int
    relocation: Relocation

    def check(self, relocation: Relocation) -> None:
        check_relocation(
            self.layout.table,
            "a",
            self.strategy,
            relocation,
            self.layout.is_protected,
            self.leased.__contains__,
            reserve=self.reserve,
        )


@st.composite
def plans(draw: st.DrawFn) -> Planned:
    """Layouts that end in three private blocks, none wholly dead, with a block's worth of holes."""
    layout = draw(layouts(min_block_size=2))
    table, size = layout.table, layout.table.block_size
    blocks = [*table.block_ids("a"), *range(200, 204)]
    spare = -table.length("a") % size
    table.sync_new_tokens("a", blocks, table.num_tokens("a") + spare + 3 * size)
    last_blocks = table.written_blocks("a")[-3:]
    layout.shared -= set(last_blocks)
    last = [table.block_tokens("a", block_id) for block_id in last_blocks]
    kept = {draw(st.sampled_from(tokens)) for tokens in last}
    others = [token_id for tokens in last for token_id in tokens if token_id not in kept]
    kept |= draw(st.sets(st.sampled_from(others), max_size=2 * size - 3))
    for token_id in set(others) - kept:
        table.evict_token("a", token_id)
    for slot in draw(st.lists(st.sampled_from(table.dead_slots("a")), unique=True, max_size=2)):
        if slot // size in last_blocks and len(kept) < 2 * size:
            kept.add(table.recycle_slot("a", slot))
    strategy = draw(st.sampled_from(STRATEGIES))
    leased = LEASES[: draw(st.integers(2, len(LEASES)))] if strategy == "out_of_place" else ()
    bound = draw(st.one_of(st.none(), st.integers(3, 8)))
    reserve = draw(st.integers(0, 2 * size - len(kept)))
    relocation = plan_relocation(table, "a", strategy, layout.is_protected, leased, bound, reserve=reserve)
    assert relocation is not None
    return Planned(layout, strategy, leased, bound, reserve, relocation)


def best_gain(
    layout: Layout, strategy: RelocationStrategy, num_leased: int, bound: int | None, reserve: int
) -> int:
    """The most blocks that any legal plan frees, by trying every one: sources are the last blocks."""
    table = layout.table
    written = table.written_blocks("a")
    gains = [0]
    for first in range(len(written)):
        sources = tuple(written[first:])
        needed = num_blocks_for(num_live(table, sources) + reserve, table.block_size)
        if any(map(layout.is_protected, sources)) or (bound is not None and len(sources) > bound):
            continue
        if strategy == "in_place" or needed <= num_leased:
            gains.append(len(sources) - needed)
    return max(gains)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_a_plan_keeps_the_contract(plan: Planned) -> None:
    table, is_protected = plan.layout.table, plan.layout.is_protected
    sources, destinations, moves = plan.relocation
    needed = num_blocks_for(num_live(table, sources) + plan.reserve, table.block_size)
    assert list(sources) == table.written_blocks("a")[-len(sources) :]
    assert not any(map(is_protected, sources))
    assert plan.bound is None or len(sources) <= plan.bound
    assert len(destinations) == needed < len(sources)
    candidates = sources if plan.strategy == "in_place" else plan.leased
    assert destinations == candidates[: len(destinations)]
    assert len({move.token_id for move in moves}) == len(moves)
    plan.check(plan.relocation)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_a_committed_plan_leaves_no_hole_and_keeps_the_order(plan: Planned) -> None:
    table, size = plan.layout.table, plan.layout.table.block_size
    sources, destinations, _ = plan.relocation
    live, resident, block_ids = table.live_tokens("a"), table.resident_tokens("a"), table.block_ids("a")
    first_source = block_ids.index(sources[0])
    moved = live_in_slots(table, sources)
    apply(table, plan.relocation)
    assert table.live_tokens("a") == live
    in_order = moved if plan.strategy == "in_place" else sorted(moved)
    assert table.resident_tokens("a") == [*resident[: first_source * size], *in_order]
    num_unwritten = block_ids[first_source + len(sources) :]
    assert table.block_ids("a") == [*block_ids[:first_source], *destinations, *num_unwritten]


@settings(max_examples=150, deadline=None)
@given(plans())
def test_after_a_commit_the_destinations_have_the_reserve(plan: Planned) -> None:
    table, destinations = plan.layout.table, plan.relocation.destination_blocks
    apply(table, plan.relocation)
    num_slots = (1 + table.block_ids("a").index(destinations[-1])) * table.block_size
    assert num_slots - table.length("a") >= plan.reserve


@settings(max_examples=150, deadline=None)
@given(plans())
def test_copies_in_the_order_of_the_moves_overwrite_no_token_that_is_still_to_be_copied(
    plan: Planned,
) -> None:
    table = plan.layout.table
    memory = {table.slot("a", token_id): token_id for token_id in table.live_tokens("a")}
    for move in plan.relocation.moves:
        memory[move.dst_slot] = memory[move.src_slot]
    apply(table, plan.relocation)
    assert all(memory[table.slot("a", token_id)] == token_id for token_id in table.live_tokens("a"))


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from(STRATEGIES), leases, bounds, reserves)
def test_no_other_plan_frees_more_and_none_is_missed(
    layout: Layout,
    strategy: RelocationStrategy,
    leased: tuple[int, ...],
    bound: int | None,
    reserve: int,
) -> None:
    relocation = plan_relocation(
        layout.table, "a", strategy, layout.is_protected, leased, bound, reserve=reserve
    )
    assert gain_of(relocation) == best_gain(layout, strategy, len(leased), bound, reserve)


@settings(max_examples=150, deadline=None)
@given(layouts(can_share=False))
def test_a_private_request_wins_a_block_for_every_block_of_holes(layout: Layout) -> None:
    table = layout.table
    written = table.written_blocks("a")
    holes = len(written) * table.block_size - table.num_live("a")
    relocation = plan_relocation(table, "a", "in_place", private)
    assert gain_of(relocation) == holes // table.block_size


@settings(max_examples=100, deadline=None)
@given(layouts(can_share=False, can_recycle=False))
def test_without_recycling_both_strategies_keep_logical_order(layout: Layout) -> None:
    table = layout.table
    resident = [token_id for token_id in table.resident_tokens("a") if token_id != HOLE]
    assert resident == sorted(resident)
    for strategy in STRATEGIES:
        relocation = plan_relocation(table, "a", strategy, private, range(100, 130))
        if relocation is not None:
            assert list(relocation.moves) == sorted(relocation.moves)


def scattered(*evicted: int) -> TokenTable:
    """Twelve tokens in blocks 7, 3, 5 of four, without the evicted ones; block 9 is unwritten."""
    table = TokenTable(4)
    table.sync_new_tokens("a", [7, 3, 5, 9], 12)
    for token_id in evicted:
        table.evict_token("a", token_id)
    return table


def test_in_place_packs_onto_the_first_sources() -> None:
    table = scattered(1, 4, 5, 6, 10)
    relocation = plan_relocation(table, "a", "in_place", private)
    assert relocation == Relocation(
        (7, 3, 5),
        (7, 3),
        (
            Move(2, 30, 29),
            Move(3, 31, 30),
            Move(7, 15, 31),
            Move(8, 20, 12),
            Move(9, 21, 13),
            Move(11, 23, 14),
        ),
    )
    apply(table, relocation)
    assert table.resident_tokens("a") == [0, 2, 3, 7, 8, 9, 11]
    assert table.block_ids("a") == [7, 3, 9]


def test_full_leading_blocks_are_left_alone() -> None:
    relocation = plan_relocation(scattered(4, 5, 6, 8), "a", "in_place", private)
    assert relocation is not None
    assert (relocation.source_blocks, relocation.destination_blocks) == ((3, 5), (3,))


def test_too_few_leases_leave_leading_blocks_alone() -> None:
    table = scattered(1, 4, 5, 6, 8, 9)
    for leased, sources in [((50, 51), (7, 3, 5)), ((50,), (3, 5))]:
        relocation = plan_relocation(table, "a", "out_of_place", private, leased)
        assert relocation is not None
        assert (relocation.source_blocks, relocation.destination_blocks) == (sources, leased)
    assert plan_relocation(table, "a", "out_of_place", private, ()) is None


def test_spare_leases_are_not_used() -> None:
    relocation = plan_relocation(scattered(*range(1, 10)), "a", "out_of_place", private, LEASES)
    assert relocation is not None
    assert relocation.destination_blocks == LEASES[:1]
    assert [move.dst_slot for move in relocation.moves] == [400, 401, 402]


@pytest.mark.parametrize(("bound", "sources"), [(3, (7, 3, 5)), (2, (3, 5)), (1, None), (0, None)])
def test_at_most_so_many_sources(bound: int, sources: tuple[int, ...] | None) -> None:
    relocation = plan_relocation(scattered(1, 4, 5, 8, 9), "a", "in_place", private, (), bound)
    assert (relocation.source_blocks if relocation else None) == sources


def test_blocks_up_to_the_last_shared_one_are_never_sources() -> None:
    table = scattered(0, 1, 2, 4, 5, 6, 8, 9)
    for shared, sources in [({7}, (3, 5)), ({3}, None), ({5}, None), (set(), (7, 3, 5))]:
        relocation = plan_relocation(table, "a", "in_place", shared.__contains__)
        assert (relocation.source_blocks if relocation else None) == sources


def test_a_request_without_a_block_to_win_has_no_plan() -> None:
    assert plan_relocation(scattered(), "a", "in_place", private) is None
    assert plan_relocation(scattered(0, 4, 8), "a", "in_place", private) is None


def test_wholly_dead_sources_are_no_plan() -> None:
    table = scattered(*range(3, 12))
    assert plan_relocation(table, "a", "in_place", private, max_source_blocks=2) is None
    with pytest.raises(VTokenError) as error:
        check_relocation(table, "a", "in_place", Relocation((3, 5), (), ()), private, private)
    assert error.value.code == "plan-sources"


def test_an_unknown_request_has_no_plan() -> None:
    with pytest.raises(VTokenError) as error:
        plan_relocation(scattered(), "x", "in_place", private)
    assert error.value.code == "unknown-request"


def test_wholly_dead_sources_need_no_plan_even_with_a_reserve() -> None:
    table = scattered(*range(4, 12))
    assert plan_relocation(table, "a", "in_place", private, max_source_blocks=2, reserve=1) is None


def test_a_reserve_costs_a_destination_when_the_last_one_has_no_room_for_it() -> None:
    table = scattered(1, 4, 5, 8)
    expected = [(0, (50, 51)), (1, None), (4, None)]
    for reserve, destinations in expected:
        relocation = plan_relocation(table, "a", "out_of_place", private, (50, 51), reserve=reserve)
        assert (relocation.destination_blocks if relocation else None) == destinations
    table = scattered(1, *range(4, 11))
    for reserve, num_destinations in [(0, 1), (1, 2), (4, 2), (5, None)]:
        relocation = plan_relocation(table, "a", "in_place", private, reserve=reserve)
        assert (len(relocation.destination_blocks) if relocation else None) == num_destinations


def test_a_destination_that_is_only_reserve_receives_no_token() -> None:
    table = scattered(*range(1, 11))
    relocation = plan_relocation(table, "a", "in_place", private, reserve=4)
    assert relocation == Relocation((7, 3, 5), (7, 3), (Move(11, 23, 29),))
    apply(table, relocation)
    assert (table.block_ids("a"), table.written_blocks("a"), table.length("a")) == ([7, 3, 9], [7], 2)


def test_no_leases_and_a_reserve_are_no_plan() -> None:
    assert plan_relocation(scattered(*range(1, 10)), "a", "out_of_place", private, (), reserve=1) is None


def recycled() -> TokenTable:
    """Token 12 stands before tokens 2 and 3 in block 7; 4, 7, 9 and 11 live in blocks 3 and 5."""
    table = scattered(0, 1, 5, 6, 8, 10)
    assert table.recycle_slot("a", 29) == 12
    return table


def test_in_place_keeps_the_order_of_slots_and_out_of_place_restores_the_logical_one() -> None:
    in_place = plan_relocation(recycled(), "a", "in_place", private)
    out_of_place = plan_relocation(recycled(), "a", "out_of_place", private, (60, 61))
    assert in_place is not None and out_of_place is not None
    assert [move.token_id for move in in_place.moves] == [12, 2, 3, 4, 7, 9, 11]
    assert [move.token_id for move in out_of_place.moves] == [2, 3, 4, 7, 9, 11, 12]


def test_blocks_without_a_live_token_are_given_up_shared_or_not() -> None:
    table = scattered(4, 5, 6, 7, 8, 9, 10, 11)
    assert wholly_dead_blocks(table, "a", private) == (3, 5)
    assert wholly_dead_blocks(table, "a", {3}.__contains__) == (3, 5)
    assert wholly_dead_blocks(table, "a", {7}.__contains__) == (3, 5)


def test_an_unwritten_block_is_given_up_only_if_the_request_may_not_write_it() -> None:
    table = scattered(*range(3, 12))
    assert table.release_blocks("a", (3,))
    assert (table.block_ids("a"), table.written_blocks("a")) == ([7, 5, 9], [7])
    assert wholly_dead_blocks(table, "a", private) == ()
    assert wholly_dead_blocks(table, "a", {5}.__contains__) == (5,)


def test_the_open_block_is_where_the_next_token_goes() -> None:
    table = TokenTable(4)
    table.sync_new_tokens("a", [7, 3], 0)
    for num_tokens, expected in [(0, None), (1, 7), (3, 7), (4, None), (5, 3), (8, None)]:
        table.sync_new_tokens("a", [7, 3], num_tokens)
        assert open_block(table, "a") == expected


def test_the_destinations_take_the_places_of_the_last_sources() -> None:
    assert blocks_after([4, 7, 3, 5, 9], (3, 5), (3,)) == [4, 7, 3, 9]
    assert blocks_after([4, 7, 3, 5, 9], (3, 5), (60,)) == [4, 7, 60, 9]
    assert blocks_after([4, 7, 3, 5, 9], (4, 3, 5), (60, 61)) == [7, 60, 61, 9]
    assert blocks_after([4, 7, 3, 5, 9], (4, 3, 5), (4, 3)) == [7, 4, 3, 9]
    assert blocks_after([4, 7, 3], (7,), (60,)) == [4, 60, 3]
    assert blocks_after([7, 3], (7, 3), ()) == []


# Plans that others make. The good plans: sources 3 and 5, live tokens 4, 7 and 9.

DEAD = (5, 6, 8, 10, 11)
IN_PLACE = Relocation((3, 5), (3,), (Move(7, 15, 13), Move(9, 21, 14)))
OUT_OF_PLACE = Relocation((3, 5), (60,), (Move(4, 12, 240), Move(7, 15, 241), Move(9, 21, 242)))


def verdict(
    table: TokenTable,
    strategy: PlanStrategy,
    relocation: Relocation,
    shared: frozenset[int] = frozenset(),
    view: View = "packed",
    reserve: int = 0,
) -> str | None:
    is_leased = {60, 61}.__contains__
    try:
        check_relocation(
            table, "a", strategy, relocation, shared.__contains__, is_leased, view=view, reserve=reserve
        )
    except VTokenError as error:
        return error.code
    return None


def check(strategy: PlanStrategy, relocation: Relocation, shared: frozenset[int] = frozenset()) -> str | None:
    return verdict(scattered(*DEAD), strategy, relocation, shared)


def test_the_good_plans_are_accepted() -> None:
    assert plan_relocation(scattered(*DEAD), "a", "in_place", private) == IN_PLACE
    assert plan_relocation(scattered(*DEAD), "a", "out_of_place", private, (60, 61)) == OUT_OF_PLACE
    assert check("in_place", IN_PLACE) is check("out_of_place", OUT_OF_PLACE) is None


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ((), "plan-sources"),
        ((3, 3), "plan-sources"),
        ((3, 9), "plan-sources"),
        ((3, 60), "plan-sources"),
        ((-1, 5), "plan-sources"),
        ((5, 3), "plan-sources"),
        ((7, 3), "plan-packed"),
        ((7, 5), "plan-packed"),
        ((5,), "plan-no-gain"),
        ((7, 3, 5), "plan-destinations"),
    ],
)
def test_other_sources_are_refused(sources: tuple[int, ...], code: str) -> None:
    assert check("in_place", IN_PLACE._replace(source_blocks=sources)) == code
    assert check("out_of_place", OUT_OF_PLACE._replace(source_blocks=sources)) == code


@pytest.mark.parametrize(
    ("destinations", "code"),
    [
        ((), "plan-destinations"),
        ((3, 5), "plan-no-gain"),
        ((3, 5, 60), "plan-no-gain"),
        ((5,), "plan-destinations"),
        ((7,), "plan-destinations"),
        ((62,), "plan-destinations"),
        ((-1,), "plan-destinations"),
    ],
)
def test_other_destinations_are_refused(destinations: tuple[int, ...], code: str) -> None:
    assert check("in_place", IN_PLACE._replace(destination_blocks=destinations)) == code
    assert check("out_of_place", OUT_OF_PLACE._replace(destination_blocks=destinations)) == code


def test_destinations_are_those_of_the_strategy() -> None:
    assert check("out_of_place", IN_PLACE) == "plan-destinations"
    assert check("in_place", OUT_OF_PLACE) == "plan-destinations"
    assert check("out_of_place", OUT_OF_PLACE._replace(destination_blocks=(61,))) == "plan-order"


def test_one_block_twice_is_no_two_destinations() -> None:
    table = scattered(*range(1, 11))
    moves = (Move(0, 28, 240), Move(11, 23, 241))
    once, twice = Relocation((7, 3, 5), (60, 61), moves), Relocation((7, 3, 5), (60, 60), moves)
    assert verdict(table, "out_of_place", once, reserve=4) is None
    assert verdict(table, "out_of_place", twice, reserve=4) == "plan-destinations"


@pytest.mark.parametrize(
    ("reserve", "code"), [(0, None), (1, None), (2, "plan-destinations"), (5, "plan-destinations")]
)
def test_a_plan_without_the_reserve_is_refused(reserve: int, code: str | None) -> None:
    assert verdict(scattered(*DEAD), "in_place", IN_PLACE, reserve=reserve) == code


@pytest.mark.parametrize(
    ("moves", "code"),
    [
        ((), "plan-token-lost"),
        ((Move(7, 15, 13),), "plan-token-lost"),
        ((Move(9, 21, 14),), "plan-token-lost"),
        ((Move(9, 21, 14), Move(7, 15, 13)), "plan-order"),
        ((Move(7, 15, 14), Move(9, 21, 13)), "plan-order"),
        ((Move(7, 15, 13), Move(9, 21, 15)), "plan-order"),
        ((Move(7, 15, -1), Move(9, 21, 14)), "plan-order"),
        ((Move(7, 15, 13), Move(9, 21, 10**20)), "plan-order"),
        ((Move(4, 12, 12), *IN_PLACE.moves), "plan-order"),
        ((*IN_PLACE.moves, Move(0, 28, 15)), "plan-order"),
        ((Move(7, 15, 13), Move(9, 21, 13)), "slot-used-twice"),
        ((*IN_PLACE.moves, Move(7, 15, 15)), "slot-used-twice"),
        ((Move(7, 14, 13), Move(9, 21, 14)), "stale-source"),
        ((Move(7, 15, 13), Move(9, -1, 14)), "stale-source"),
        ((Move(8, 20, 13), Move(9, 21, 14)), "dead-move"),
        ((Move(12, 15, 13), Move(9, 21, 14)), "unknown-token"),
        ((Move(-1, 15, 13), Move(9, 21, 14)), "unknown-token"),
    ],
)
def test_other_moves_are_refused(moves: tuple[Move, ...], code: str) -> None:
    assert check("in_place", IN_PLACE._replace(moves=moves)) == code


@pytest.mark.parametrize("shared", [{3}, {5}, {3, 5}])
def test_shared_sources_are_refused(shared: set[int]) -> None:
    assert check("in_place", IN_PLACE, frozenset(shared)) == "plan-shared"
    assert check("out_of_place", OUT_OF_PLACE, frozenset(shared)) == "plan-shared"


def test_a_shared_block_outside_the_plan_is_no_matter() -> None:
    assert check("in_place", IN_PLACE, frozenset({7})) is None


@settings(max_examples=100, deadline=None)
@given(plans(), st.data())
def test_any_plan_with_one_move_less_or_two_swapped_is_refused(plan: Planned, data: st.DataObject) -> None:
    moves = plan.relocation.moves
    assume(len(moves) >= 2)
    at = data.draw(st.integers(1, len(moves) - 1))
    first, second = moves[at - 1 : at + 1]
    swapped = (first._replace(dst_slot=second.dst_slot), second._replace(dst_slot=first.dst_slot))
    mutants = {
        "plan-token-lost": moves[:at] + moves[at + 1 :],
        "plan-order": moves[: at - 1] + swapped + moves[at + 1 :],
    }
    for code, mutant in mutants.items():
        with pytest.raises(VTokenError) as error:
            plan.check(plan.relocation._replace(moves=mutant))
        assert error.value.code == code


def test_planned_moves_are_the_ones_that_sources_and_destinations_determine() -> None:
    table = scattered(*DEAD)
    assert planned_moves(table, "a", "in_place", (3, 5), (3,)) == IN_PLACE.moves
    assert planned_moves(table, "a", "out_of_place", (3, 5), (60,)) == OUT_OF_PLACE.moves
    assert planned_moves(table, "a", "in_place", (), ()) == ()


# Copy on write: block 3 is shared and holds live tokens 4 and 7 and dead tokens 5 and 6.

SHARED = frozenset({3})
COPY_ON_WRITE = Relocation((3,), (60,), tuple(Move(4 + n, 12 + n, 240 + n) for n in range(4)))


@pytest.mark.parametrize("view", VIEWS)
def test_a_shared_block_may_be_copied_to_a_leased_one_live_and_dead_tokens_alike(view: View) -> None:
    table = scattered(*DEAD)
    assert copy_on_write_moves(table, "a", 3, 60) == COPY_ON_WRITE.moves
    assert verdict(table, "copy_on_write", COPY_ON_WRITE, SHARED, view, reserve=4) is None
    assert blocks_after(table.block_ids("a"), COPY_ON_WRITE.source_blocks, (60,)) == [7, 60, 5, 9]


def test_a_slot_without_a_token_is_not_copied() -> None:
    table = TokenTable(4)
    table.sync_new_tokens("a", [7, 3], 7)
    table.evict_token("a", 0)
    table.apply_moves("a", (Move(5, 13, 28),))
    assert table.block_tokens("a", 3) == [4, HOLE, 6]
    assert copy_on_write_moves(table, "a", 3, 60) == (Move(4, 12, 240), Move(6, 14, 242))


@pytest.mark.parametrize(
    ("relocation", "code"),
    [
        (COPY_ON_WRITE._replace(source_blocks=()), "plan-sources"),
        (COPY_ON_WRITE._replace(source_blocks=(3, 5)), "plan-sources"),
        (COPY_ON_WRITE._replace(source_blocks=(60,)), "plan-sources"),
        (COPY_ON_WRITE._replace(source_blocks=(9,)), "plan-sources"),
        (COPY_ON_WRITE._replace(source_blocks=(7,)), "plan-sources"),
        (COPY_ON_WRITE._replace(destination_blocks=()), "plan-destinations"),
        (COPY_ON_WRITE._replace(destination_blocks=(60, 61)), "plan-destinations"),
        (COPY_ON_WRITE._replace(destination_blocks=(62,)), "plan-destinations"),
        (COPY_ON_WRITE._replace(destination_blocks=(3,)), "plan-destinations"),
        (COPY_ON_WRITE._replace(destination_blocks=(61,)), "plan-order"),
        (COPY_ON_WRITE._replace(moves=COPY_ON_WRITE.moves[1:]), "plan-token-lost"),
        (COPY_ON_WRITE._replace(moves=COPY_ON_WRITE.moves[:1]), "plan-token-lost"),
        (COPY_ON_WRITE._replace(moves=COPY_ON_WRITE.moves[::-1]), "plan-order"),
        (COPY_ON_WRITE._replace(moves=(Move(4, 13, 240), *COPY_ON_WRITE.moves[1:])), "stale-source"),
        (COPY_ON_WRITE._replace(moves=(*COPY_ON_WRITE.moves[:1], Move(5, 12, 241))), "plan-token-lost"),
        (COPY_ON_WRITE._replace(moves=(*COPY_ON_WRITE.moves, Move(0, 28, 240))), "slot-used-twice"),
        (COPY_ON_WRITE._replace(moves=(*COPY_ON_WRITE.moves, Move(99, 28, 245))), "plan-order"),
    ],
)
def test_other_copies_on_write_are_refused(relocation: Relocation, code: str) -> None:
    assert verdict(scattered(*DEAD), "copy_on_write", relocation, SHARED) == code


def test_a_block_that_is_wholly_dead_is_given_up_not_copied() -> None:
    table = scattered(4, 5, 6, 7)
    assert verdict(table, "copy_on_write", COPY_ON_WRITE, SHARED) == "plan-sources"
    assert wholly_dead_blocks(table, "a", SHARED.__contains__) == (3,)
