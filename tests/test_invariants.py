"""Each invariant predicate finds a state broken on purpose, and has nothing to say about good ones."""

import re
from collections.abc import Callable

import pytest

from conformance.replay import check_invariants
from vtoken_ref.events import Move
from vtoken_ref.invariants import (
    layout_aware_planning,
    packed_layout,
    pool_accounting,
    token_conservation,
    unique_mapping,
)
from vtoken_ref.machine import Machine, MachineConfig
from vtoken_ref.planner import Relocation, plan_relocation
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, NO_SLOT, TokenTable


def check_found(problems: list[str], pattern: str) -> None:
    assert any(re.search(pattern, problem) for problem in problems), problems


# I1


def test_conserved_tokens() -> None:
    tokens = [(0, 7), (3, 8), (9, 7)]
    assert token_conservation(tokens, tokens) == []
    assert token_conservation(tokens, reversed(tokens)) == []
    assert token_conservation([], []) == []


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        ([(0, 7)], "token 3 was lost"),
        ([(0, 7), (3, 8), (4, 8)], "token 4 appeared"),
        ([(0, 7), (3, 9)], "content of token 3 changed"),
        ([(0, 8), (3, 7)], "content of token 0 changed"),
    ],
)
def test_tokens_that_are_not_conserved(after: list[tuple[int, int]], problem: str) -> None:
    check_found(token_conservation([(0, 7), (3, 8)], after), problem)


# I2


def good_state() -> tuple[TokenTable, BlockPool]:
    """Two requests in blocks of three, with dead tokens, a relocated one and a hole."""
    table, pool = TokenTable(3), BlockPool(range(10), headroom=2)
    pool.alloc("a", [0, 1])
    pool.alloc("b", [2])
    table.sync_new_tokens("a", [0, 1], 6)
    table.sync_new_tokens("b", [2], 3)
    table.evict_token("a", 1)
    table.evict_token("b", 0)
    table.apply_moves("a", [Move(3, 3, 1)])
    return table, pool


def test_a_good_mapping() -> None:
    assert unique_mapping(*good_state()) == []


def test_a_shared_block_serves_the_same_token_of_each_holder() -> None:
    table, pool = good_state()
    table.sync_new_tokens("c", [2], 3)
    check_found(unique_mapping(table, pool), "slot 6 serves")
    pool._hold("c", 2)
    assert unique_mapping(table, pool) == []


def test_a_shared_block_that_serves_different_tokens() -> None:
    table, pool = good_state()
    table.sync_new_tokens("c", [2], 3)
    rows = table._requests["c"].rows
    rows[2][0], rows[2][1] = rows[2][1], rows[2][0]
    pool._hold("c", 2)
    check_found(unique_mapping(table, pool), "slot 6 serves")


def put_in_two_slots(table: TokenTable) -> None:
    table._requests["a"].rows[1][0] = 3


def lose_a_place(table: TokenTable) -> None:
    table._requests["a"].rows[1][1] = HOLE


def lose_a_slot(table: TokenTable) -> None:
    table._requests["a"].slots[4] = NO_SLOT


def swap_two_slots(table: TokenTable) -> None:
    slots = table._requests["a"].slots
    slots[4], slots[5] = slots[5], slots[4]


def miscount(table: TokenTable) -> None:
    table._requests["a"].num_live += 1


def write_over_another_request(table: TokenTable) -> None:
    table._requests["a"].block_ids[1] = 2
    table._requests["a"].rows[2] = table._requests["a"].rows.pop(1)
    table._requests["a"].slots[4:] = [7, 8]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (put_in_two_slots, "in two slots"),
        (lose_a_place, "live token without a slot"),
        (lose_a_slot, "token 4"),
        (swap_two_slots, "token 4"),
        (miscount, "counts 6 live tokens, has 5"),
        (write_over_another_request, "slot 7 serves"),
    ],
)
def test_a_mapping_that_is_not_unique(damage: Callable[[TokenTable], None], problem: str) -> None:
    table, pool = good_state()
    damage(table)
    check_found(unique_mapping(table, pool), problem)


# I4


def test_a_plan_of_another_layout() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [0, 1], 6)
    for token_id in (1, 3, 4):
        table.evict_token("a", token_id)
    relocation = plan_relocation(table, "a", "in_place", lambda block_id: False)
    assert relocation is not None

    def problems(relocation: Relocation, shared: frozenset[int] = frozenset()) -> list[str]:
        return layout_aware_planning(
            table, "a", "in_place", relocation, shared.__contains__, lambda block_id: False
        )

    assert problems(relocation) == []
    check_found(problems(relocation, frozenset({1})), "VT-PLAN-003")
    check_found(problems(relocation._replace(source_blocks=(1,))), "VT-PLAN-004")
    table.apply_moves("a", relocation.moves)
    check_found(problems(relocation), "VT-PLAN-002")


# I6


def good_pool() -> BlockPool:
    """Blocks 0 and 1 held (1 by two requests), 2 leased, 3 fenced, 4 free."""
    pool = BlockPool(range(5), headroom=1)
    pool.alloc("a", [0, 1, 3])
    pool._hold("b", 1)
    pool.lease("a", [2])
    pool.release("a", [3], frozenset({4}))
    return pool


def test_a_good_pool() -> None:
    assert pool_accounting(good_pool()) == []
    assert pool_accounting(BlockPool(range(7, 9), headroom=0)) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda pool: pool.free_blocks.remove(4), "in no state or in two"),
        (lambda pool: pool.free_blocks.add(0), "in no state or in two"),
        (lambda pool: pool.free_blocks.add(9), "in no state or in two"),
        (lambda pool: pool.fences.pop(3), "in no state or in two"),
        (lambda pool: pool.leases.update({0: "a"}), "in no state or in two"),
        (lambda pool: (pool.free_blocks.remove(4), pool.free_blocks.add(0)), "in no state or in two"),
        (lambda pool: pool.holders.update({0: set()}), "block 0 is held by nobody"),
        (lambda pool: pool._held_by["b"].remove(1), "b does not know that it holds block 1"),
        (lambda pool: pool._held_by["b"].add(0), "b .* block 0"),
        (lambda pool: pool._held_by.update({"c": {4}}), "c .* block 4"),
        (lambda pool: (pool.free_blocks.remove(4), pool.leases.update({4: "a"})), "2 blocks are leased"),
    ],
)
def test_a_pool_that_miscounts(damage: Callable[[BlockPool], object], problem: str) -> None:
    pool = good_pool()
    damage(pool)
    check_found(pool_accounting(pool), problem)


# I7


def test_a_packed_request() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [4, 1, 2], 5)
    table.evict_token("a", 1)
    table.evict_token("a", 4)
    assert packed_layout(table, "a") == []
    table.apply_moves("a", [Move(2, 14, 13), Move(3, 3, 14)])
    assert packed_layout(table, "a") == []
    table.sync_new_tokens("b", [], 0)
    assert packed_layout(table, "b") == []


def test_a_hole_before_the_resident_length() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [0, 1], 5)
    table.apply_moves("a", [Move(1, 1, 5)])
    check_found(packed_layout(table, "a"), "hole at index 1")


def test_a_block_without_tokens_before_the_resident_length() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [0], 3)
    table.apply_moves("a", (), [1, 0])
    check_found(packed_layout(table, "a"), "hole at index 0")


def test_tokens_out_of_order() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [0, 1], 6)
    table.apply_moves("a", (), [1, 0])
    check_found(packed_layout(table, "a"), "out of order")


def test_a_token_twice_in_a_row() -> None:
    table = TokenTable(3)
    table.sync_new_tokens("a", [0], 3)
    table._requests["a"].rows[0][1] = 0
    check_found(packed_layout(table, "a"), "out of order")


# What `vtoken replay --paranoid` makes of them.


def damage_the_table(machine: Machine) -> None:
    machine.table.sync_new_tokens("a", [0], 2)
    machine.table._requests["a"].num_live = 0


def damage_the_pool(machine: Machine) -> None:
    machine.pool.free_blocks.remove(1)


def damage_the_layout(machine: Machine) -> None:
    machine.table.sync_new_tokens("a", [0], 3)
    machine.table.apply_moves("a", [Move(0, 0, 1), Move(1, 1, 0)])


@pytest.mark.parametrize(
    ("damage", "code"),
    [(damage_the_table, "slot-used-twice"), (damage_the_pool, "leak"), (damage_the_layout, "plan-packed")],
)
def test_check_invariants_raises_the_rule_of_the_invariant(
    damage: Callable[[Machine], None], code: str
) -> None:
    machine = Machine(MachineConfig(block_size=3, block_ids=range(4), strategy="in_place"))
    check_invariants(machine)
    damage(machine)
    with pytest.raises(VTokenError) as error:
        check_invariants(machine)
    assert error.value.code == code
