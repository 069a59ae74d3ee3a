"""The planner of the packed view: what its plans promise, and which plans of others are refused."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vtoken_ref.events import Move, Strategy
from vtoken_ref.invariants import layout_aware_planning, packed_layout
from vtoken_ref.planner import (
    Relocation,
    blocks_after,
    check_relocation,
    num_blocks_for,
    plan_relocation,
    planned_moves,
    wholly_dead_blocks,
)
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import TokenTable

STRATEGIES: list[Strategy] = ["in_place", "out_of_place"]
LEASES = (100, 101, 102, 103)


def private(block_id: int) -> bool:
    return False


def release_dead(table: TokenTable, is_shared: Callable[[int], bool]) -> None:
    """Wholly dead blocks are released without a plan, before anything is planned."""
    dead = wholly_dead_blocks(table, "a", is_shared)
    table.apply_moves("a", (), [block_id for block_id in table.block_ids("a") if block_id not in dead])


def apply(table: TokenTable, relocation: Relocation) -> None:
    sources, destinations, moves = relocation
    table.apply_moves("a", moves, blocks_after(table.block_ids("a"), sources, destinations))


def num_live(table: TokenTable, block_ids: tuple[int, ...]) -> int:
    return sum(table.live_in_block("a", block_id) for block_id in block_ids)


@dataclass
class Layout:
    """A packed request "a" with evicted tokens; ``shared`` blocks have another holder."""

    table: TokenTable
    shared: frozenset[int]

    def is_shared(self, block_id: int) -> bool:
        return block_id in self.shared


@st.composite
def layouts(draw: st.DrawFn, can_share: bool = True, min_block_size: int = 1) -> Layout:
    """Histories of growth, eviction and relocation; wholly dead blocks have been released."""
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
        release_dead(table, shared.__contains__)
        relocation = plan_relocation(table, "a", "in_place", shared.__contains__)
        if relocation is not None and draw(st.booleans()):
            apply(table, relocation)
        if not table.live_tokens("a"):
            break
    return Layout(table, shared)


bounds = st.one_of(st.none(), st.integers(0, 5))
leases = st.integers(0, len(LEASES)).map(lambda count: LEASES[:count])


@dataclass
class Planned:
    """A layout with the plan that ``plan_relocation`` makes for it."""

    layout: Layout
    strategy: Strategy
    leased: tuple[int, ...]
    bound: int | None
    relocation: Relocation


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
    strategy = draw(st.sampled_from(STRATEGIES))
    leased = LEASES[: draw(st.integers(2, len(LEASES)))] if strategy == "out_of_place" else ()
    bound = draw(st.one_of(st.none(), st.integers(3, 8)))
    relocation = plan_relocation(table, "a", strategy, layout.is_shared, leased, bound)
    assert relocation is not None
    return Planned(layout, strategy, leased, bound, relocation)


def best_gain(layout: Layout, strategy: Strategy, num_leased: int, bound: int | None) -> int:
    """The most blocks that any legal plan frees, by trying every one: sources are the last blocks."""
    table = layout.table
    written = table.written_blocks("a")
    gains = [0]
    for first in range(len(written)):
        sources = tuple(written[first:])
        needed = num_blocks_for(num_live(table, sources), table.block_size)
        if any(map(layout.is_shared, sources)) or (bound is not None and len(sources) > bound):
            continue
        if strategy == "in_place" or needed <= num_leased:
            gains.append(len(sources) - needed)
    return max(gains)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_a_plan_keeps_the_contract(plan: Planned) -> None:
    table, is_shared = plan.layout.table, plan.layout.is_shared
    sources, destinations, moves = plan.relocation
    assert list(sources) == table.written_blocks("a")[-len(sources) :]
    assert not any(map(is_shared, sources))
    assert plan.bound is None or len(sources) <= plan.bound
    assert len(destinations) == num_blocks_for(num_live(table, sources), table.block_size) < len(sources)
    candidates = sources if plan.strategy == "in_place" else plan.leased
    assert destinations == candidates[: len(destinations)]
    assert [move.token_id for move in moves] == sorted({move.token_id for move in moves})
    is_leased = plan.leased.__contains__
    check_relocation(table, "a", plan.strategy, plan.relocation, is_shared, is_leased)
    assert layout_aware_planning(table, "a", plan.strategy, plan.relocation, is_shared, is_leased) == []


@settings(max_examples=150, deadline=None)
@given(plans())
def test_a_committed_plan_leaves_the_request_packed(plan: Planned) -> None:
    table, size = plan.layout.table, plan.layout.table.block_size
    sources, destinations, _ = plan.relocation
    live, slots, block_ids = table.live_tokens("a"), table.slot_mapping("a"), table.block_ids("a")
    num_moved = num_live(table, sources)
    apply(table, plan.relocation)
    filled = [destinations[index // size] * size + index % size for index in range(num_moved)]
    assert table.live_tokens("a") == live
    assert table.slot_mapping("a") == slots[: len(live) - num_moved] + filled
    assert len(table.block_ids("a")) == len(block_ids) - len(sources) + len(destinations)
    assert packed_layout(table, "a") == []


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from(STRATEGIES), leases, bounds)
def test_no_other_plan_frees_more_and_none_is_missed(
    layout: Layout, strategy: Strategy, leased: tuple[int, ...], bound: int | None
) -> None:
    relocation = plan_relocation(layout.table, "a", strategy, layout.is_shared, leased, bound)
    gain = 0 if relocation is None else len(relocation.source_blocks) - len(relocation.destination_blocks)
    assert gain == best_gain(layout, strategy, len(leased), bound)


@settings(max_examples=150, deadline=None)
@given(layouts(can_share=False))
def test_a_private_request_wins_a_block_for_every_block_of_holes(layout: Layout) -> None:
    table = layout.table
    written = table.written_blocks("a")
    holes = len(written) * table.block_size - table.num_live("a")
    relocation = plan_relocation(table, "a", "in_place", private)
    gain = 0 if relocation is None else len(relocation.source_blocks) - len(relocation.destination_blocks)
    assert gain == holes // table.block_size


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


def test_wholly_dead_private_written_blocks() -> None:
    table = scattered(4, 5, 6, 7, 8, 9, 10, 11)
    assert wholly_dead_blocks(table, "a", private) == (3, 5)
    assert wholly_dead_blocks(table, "a", {3}.__contains__) == (5,)


def test_the_destinations_stand_where_the_sources_began() -> None:
    assert blocks_after([4, 7, 3, 5, 9], (3, 5), (3,)) == [4, 7, 3, 9]
    assert blocks_after([4, 7, 3, 5, 9], (3, 5), (60,)) == [4, 7, 60, 9]
    assert blocks_after([7, 3], (7, 3), ()) == []


# Plans that others make. The good plans: sources 3 and 5, live tokens 4, 7 and 9.

DEAD = (5, 6, 8, 10, 11)
IN_PLACE = Relocation((3, 5), (3,), (Move(7, 15, 13), Move(9, 21, 14)))
OUT_OF_PLACE = Relocation((3, 5), (60,), (Move(4, 12, 240), Move(7, 15, 241), Move(9, 21, 242)))


def check(strategy: Strategy, relocation: Relocation, shared: frozenset[int] = frozenset()) -> str | None:
    try:
        check_relocation(
            scattered(*DEAD), "a", strategy, relocation, shared.__contains__, {60, 61}.__contains__
        )
    except VTokenError as error:
        return error.code
    return None


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
        ((5, 3), "plan-packed"),
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
    table = scattered(1, 4, 5, 6, 10)
    relocation = plan_relocation(table, "a", "out_of_place", private, (60, 61))
    assert relocation is not None and relocation.destination_blocks == (60, 61)
    doubled = relocation._replace(destination_blocks=(60, 60))
    problems = layout_aware_planning(table, "a", "out_of_place", doubled, private, {60, 61}.__contains__)
    assert len(problems) == 1 and "plan-destinations" in problems[0]


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
            check_relocation(
                plan.layout.table,
                "a",
                plan.strategy,
                plan.relocation._replace(moves=mutant),
                plan.layout.is_shared,
                plan.leased.__contains__,
            )
        assert error.value.code == code


def test_planned_moves_are_the_ones_that_sources_and_destinations_determine() -> None:
    table = scattered(*DEAD)
    assert planned_moves(table, "a", (3, 5), (3,)) == IN_PLACE.moves
    assert planned_moves(table, "a", (3, 5), (60,)) == OUT_OF_PLACE.moves
    assert planned_moves(table, "a", (), ()) == ()
