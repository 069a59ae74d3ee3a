"""The token table against a naive model, and every illegal call: its code, and that nothing changed."""

import copy
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vtoken_ref.events import Move
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import HOLE, TokenTable

BLOCK_SIZE = 3
REQ_IDS = ["a", "b", "c"]


def state_of(table: TokenTable) -> dict[str, object]:
    return copy.deepcopy(vars(table))


def check_refused(table: TokenTable, code: str, call: Callable[[], object]) -> None:
    """The call raises this code, and not one attribute of the table differs afterwards."""
    before = state_of(table)
    with pytest.raises(VTokenError) as error:
        call()
    assert error.value.code == code
    assert state_of(table) == before


def table_of(num_tokens: int, block_ids: list[int], evicted: tuple[int, ...] = ()) -> TokenTable:
    """A table of blocks of three with one request "a"."""
    table = TokenTable(BLOCK_SIZE)
    table.sync_new_tokens("a", block_ids, num_tokens)
    for token_id in evicted:
        table.evict_token("a", token_id)
    return table


# What a person would look up.


def test_new_tokens_take_the_next_slots_of_the_block_list() -> None:
    table = TokenTable(BLOCK_SIZE)
    assert table.sync_new_tokens("a", [7, 2], 4) == range(0, 4)
    assert table.slot_mapping("a") == [21, 22, 23, 6]
    assert table.next_slots("a", [7, 2, 5], 3) == [7, 8, 15]
    assert table.sync_new_tokens("a", [7, 2, 5], 7) == range(4, 7)
    assert table.slot_mapping("a") == [21, 22, 23, 6, 7, 8, 15]
    assert (table.num_tokens("a"), table.length("a")) == (7, 7)


def test_a_call_without_new_tokens_registers_blocks_only() -> None:
    table = TokenTable(BLOCK_SIZE)
    assert list(table.sync_new_tokens("a", [4], 0)) == []
    assert "a" in table
    assert (table.block_ids("a"), table.written_blocks("a"), table.length("a")) == ([4], [], 0)


def test_a_dead_token_keeps_its_slot_until_it_is_reclaimed() -> None:
    table = table_of(6, [0, 1], evicted=(1, 4))
    assert table.live_tokens("a") == [0, 2, 3, 5]
    assert table.resident_tokens("a") == [0, 1, 2, 3, 4, 5]
    assert (table.slot("a", 1), table.slot("a", 4)) == (1, 4)
    assert not table.is_live("a", 1)
    table.apply_moves("a", [Move(2, 2, 1)])
    assert table.resident_tokens("a") == [0, 2, HOLE, 3, 4, 5]
    check_refused(table, "unknown-token", lambda: table.slot("a", 1))


def test_a_token_is_recycled_into_a_dead_slot() -> None:
    table = table_of(5, [0, 1], evicted=(1, 3))
    assert table.dead_slots("a") == [1, 3]
    assert table.recycle_slot("a", 1) == 5
    assert table.resident_tokens("a") == [0, 5, 2, 3, 4]
    assert (table.length("a"), table.num_live("a"), table.live_in_block("a", 0)) == (5, 4, 3)
    check_refused(table, "unknown-token", lambda: table.slot("a", 1))
    for slot in (1, 0, 5, 40, -1):
        check_refused(table, "recycle", lambda slot=slot: table.recycle_slot("a", slot))  # type: ignore[misc]


def test_the_free_slots_of_a_partly_filled_block_in_the_middle_are_dead_slots() -> None:
    table = table_of(6, [0, 1], evicted=(1, 2))
    table.apply_moves("a", [Move(0, 0, 6)], [2, 1])
    assert table.resident_tokens("a") == [0, HOLE, HOLE, 3, 4, 5]
    assert table.dead_slots("a") == [7, 8]
    assert table.recycle_slot("a", 8) == 6
    assert table.resident_tokens("a") == [0, HOLE, 6, 3, 4, 5]


def test_a_block_is_replaced_with_every_token_in_it_dead_or_live() -> None:
    table = table_of(5, [0, 1], evicted=(3,))
    table.replace_block("a", 1, 7)
    assert table.block_ids("a") == [0, 7]
    assert (table.slot("a", 3), table.slot("a", 4), table.live_in_block("a", 7)) == (21, 22, 1)
    check_refused(table, "slot-outside", lambda: table.replace_block("a", 1, 8))
    check_refused(table, "block-list-changed", lambda: table.replace_block("a", 7, 0))


def test_a_live_slot_has_an_owner() -> None:
    table = table_of(5, [0, 1], evicted=(3,))
    assert [table.live_owner(slot) for slot in (0, 3, 4, 5, 9)] == [("a", 0), None, ("a", 4), None, None]


def test_the_length_after_moves_is_told_without_making_them() -> None:
    table = table_of(6, [0, 1], evicted=(1, 3, 4))
    before = state_of(table)
    assert table.length_after("a", [Move(2, 2, 1), Move(5, 5, 2)], [0]) == 3
    assert state_of(table) == before


def test_a_copy_of_the_table_is_equal_and_independent() -> None:
    table = table_of(5, [0, 1], evicted=(3,))
    other = table.copy()
    assert state_of(other) == state_of(table)
    before = state_of(table)
    other.recycle_slot("a", 3)
    other.sync_new_tokens("b", [4], 1)
    assert state_of(table) == before


def test_packing_in_place_frees_the_last_block() -> None:
    table = table_of(6, [0, 1], evicted=(1, 3, 4))
    table.apply_moves("a", [Move(2, 2, 1), Move(5, 5, 2)], [0])
    assert table.resident_tokens("a") == [0, 2, 5]
    assert table.block_ids("a") == table.written_blocks("a") == [0]
    assert table.length("a") == 3


def test_packing_out_of_place_switches_the_block_list_in_one_step() -> None:
    table = table_of(6, [0, 1], evicted=(1, 3, 4))
    table.apply_moves("a", [Move(0, 0, 15), Move(2, 2, 16), Move(5, 5, 17)], [5])
    assert table.slot_mapping("a") == [15, 16, 17]
    assert table.block_ids("a") == [5]


def test_moves_may_overlap_each_other() -> None:
    table = table_of(3, [0])
    table.apply_moves("a", [Move(0, 0, 1), Move(1, 1, 2), Move(2, 2, 0)])
    assert table.slot_mapping("a") == [1, 2, 0]
    assert table.resident_tokens("a") == [2, 0, 1]


def test_the_length_retreats_below_dead_tokens_at_the_end() -> None:
    table = table_of(8, [0, 1, 2], evicted=(4, 5, 6, 7))
    assert table.length("a") == 8
    table.apply_moves("a", ())
    assert (table.length("a"), table.written_blocks("a"), table.block_ids("a")) == (4, [0, 1], [0, 1, 2])
    assert table.sync_new_tokens("a", [0, 1, 2], 9) == range(8, 9)
    assert table.slot("a", 8) == 4


def test_a_request_without_a_live_token_has_no_length() -> None:
    table = table_of(4, [0, 1], evicted=(0, 1, 2, 3))
    table.apply_moves("a", (), [1])
    assert (table.length("a"), table.written_blocks("a"), table.resident_tokens("a")) == (0, [], [])
    assert table.num_tokens("a") == 4


def test_waste_is_an_exact_fraction_of_all_slots_held() -> None:
    table = TokenTable(BLOCK_SIZE)
    assert table.waste() == Fraction(0)
    table.sync_new_tokens("a", [0, 1, 2], 7)
    table.sync_new_tokens("b", [5], 3)
    assert (table.waste("a"), table.waste("b"), table.waste()) == (
        Fraction(2, 9),
        Fraction(0),
        Fraction(1, 6),
    )
    table.evict_token("b", 0)
    assert (table.waste("b"), table.waste()) == (Fraction(1, 3), Fraction(1, 4))
    assert isinstance(table.waste(), Fraction) and isinstance(table.waste("a"), Fraction)


def test_waste_of_a_request_without_blocks_is_zero() -> None:
    table = TokenTable(BLOCK_SIZE)
    table.sync_new_tokens("a", [], 0)
    assert table.waste("a") == 0


def test_released_blocks_leave_the_list_with_their_dead_tokens() -> None:
    table = table_of(8, [0, 1, 2], evicted=(3, 4, 5, 7))
    assert table.release_blocks("a", [1, 9])
    assert (table.block_ids("a"), table.resident_tokens("a")) == ([0, 2], [0, 1, 2, 6])
    assert not table.release_blocks("a", [1])
    before = state_of(table)
    with pytest.raises(VTokenError) as error:
        table.release_blocks("a", [2])
    assert error.value.code == "block-still-live"
    assert state_of(table) == before


@pytest.mark.parametrize(
    ("evicted", "kept", "reclaimed"),
    [((0, 1, 2), [1], 0), ((4, 5), [0, 1], 4)],
    ids=["block leaves", "retreat"],
)
def test_a_reclaimed_token_has_no_slot(evicted: tuple[int, ...], kept: list[int], reclaimed: int) -> None:
    table = table_of(6, [0, 1], evicted)
    table.apply_moves("a", (), kept)
    check_refused(table, "unknown-token", lambda: table.slot("a", reclaimed))


def test_a_request_does_not_write_over_a_live_token_of_another() -> None:
    table = table_of(4, [0, 1])
    check_refused(table, "slot-occupied", lambda: table.sync_new_tokens("b", [1], 1))
    table.sync_new_tokens("b", [2, 3], 4)
    table.evict_token("b", 0)
    moves = [Move(1, 7, 0), Move(2, 8, 1), Move(3, 9, 2)]
    check_refused(table, "slot-occupied", lambda: table.apply_moves("b", moves, [0]))
    for token_id in range(3):
        table.evict_token("a", token_id)
    table.apply_moves("b", moves, [0])
    assert table.slot_mapping("b") == [0, 1, 2]
    table.drop("a")
    assert table.sync_new_tokens("c", [1], 3) == range(3)


def test_block_ids_are_not_negative() -> None:
    table = table_of(4, [0, 1])
    check_refused(table, "block-list-changed", lambda: table.sync_new_tokens("b", [-1], 1))
    check_refused(table, "block-list-changed", lambda: table.apply_moves("a", [], [0, 1, -1]))


def test_requests_are_independent_and_dropping_one_forgets_it() -> None:
    table = table_of(3, [0])
    table.sync_new_tokens("b", [1], 2)
    table.drop("a")
    assert table.requests() == ["b"]
    assert table.waste() == Fraction(1, 3)
    assert table.sync_new_tokens("a", [4], 1) == range(0, 1)


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size"):
        TokenTable(0)


def test_an_unwritten_block_in_the_middle_shows_as_holes() -> None:
    table = table_of(2, [0, 1, 2])
    table.apply_moves("a", [Move(1, 1, 6)])
    assert table.length("a") == 7
    assert table.resident_tokens("a") == [0, HOLE, HOLE, HOLE, HOLE, HOLE, 1]
    assert table.last_tokens("a", 2) == [HOLE, 1]
    assert table.last_tokens("a", 6) == [HOLE, HOLE, HOLE, HOLE, HOLE, 1]
    assert table.last_tokens("a", 9) == table.resident_tokens("a")


# Every illegal call.


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.evict_token("x", 0),
        lambda table: table.apply_moves("x", ()),
        lambda table: table.drop("x"),
        lambda table: table.slot("x", 0),
        lambda table: table.slot_mapping("x"),
        lambda table: table.live_tokens("x"),
        lambda table: table.is_live("x", 0),
        lambda table: table.resident_tokens("x"),
        lambda table: table.last_tokens("x", 1),
        lambda table: table.block_tokens("x", 0),
        lambda table: table.num_tokens("x"),
        lambda table: table.num_live("x"),
        lambda table: table.length("x"),
        lambda table: table.block_ids("x"),
        lambda table: table.written_blocks("x"),
        lambda table: table.live_in_block("x", 0),
        lambda table: table.waste("x"),
    ],
)
def test_an_unknown_request_is_refused(call: Callable[[TokenTable], object]) -> None:
    table = table_of(4, [0, 1])
    check_refused(table, "unknown-request", lambda: call(table))


@pytest.mark.parametrize("token_id", [-1, 4, 10**20])
def test_an_unknown_token_is_refused(token_id: int) -> None:
    table = table_of(4, [0, 1])
    check_refused(table, "unknown-token", lambda: table.evict_token("a", token_id))
    check_refused(table, "unknown-token", lambda: table.slot("a", token_id))
    check_refused(table, "unknown-token", lambda: table.apply_moves("a", [Move(token_id, 0, 5)]))
    assert not table.is_live("a", token_id)


def test_a_token_is_evicted_once_even_after_it_is_reclaimed() -> None:
    table = table_of(6, [0, 1], evicted=(4,))
    check_refused(table, "evicted-twice", lambda: table.evict_token("a", 4))
    table.apply_moves("a", [Move(5, 5, 4)])
    check_refused(table, "evicted-twice", lambda: table.evict_token("a", 4))


@pytest.mark.parametrize(
    ("req_id", "block_ids", "total_len", "code"),
    [
        ("a", [0, 1], 3, "length-shrank"),
        ("b", [2], -1, "length-shrank"),
        ("a", [0, 1], 7, "block-list-short"),
        ("b", [], 1, "block-list-short"),
        ("b", [2], 10**20, "block-list-short"),
        ("a", [0], 4, "block-list-changed"),
        ("a", [], 4, "block-list-changed"),
        ("a", [1, 0], 5, "block-list-changed"),
        ("a", [2, 0, 1], 5, "block-list-changed"),
        ("a", [0, 1, 0], 5, "block-list-changed"),
        ("b", [2, 2], 1, "block-list-changed"),
    ],
)
def test_illegal_growth_is_refused(req_id: str, block_ids: list[int], total_len: int, code: str) -> None:
    table = table_of(4, [0, 1])
    check_refused(table, code, lambda: table.sync_new_tokens(req_id, block_ids, total_len))


@pytest.mark.parametrize(
    ("moves", "block_ids", "code"),
    [
        ([(1, 1, 5)], None, "dead-move"),
        ([(0, 1, 5)], None, "stale-source"),
        ([(0, -7, 5)], None, "stale-source"),
        ([(0, 0, 5), (0, 0, 1)], None, "slot-used-twice"),
        ([(0, 0, 5), (2, 2, 5)], None, "slot-used-twice"),
        ([(0, 0, 6)], None, "slot-outside"),
        ([(0, 0, -1)], None, "slot-outside"),
        ([(0, 0, 10**20)], None, "slot-outside"),
        ([(3, 3, 5)], [0], "slot-outside"),
        ([(0, 0, 2)], None, "slot-occupied"),
        ([(0, 0, 2), (3, 3, 5)], None, "slot-occupied"),
        ([(0, 0, 1)], [0, 0], "block-list-changed"),
        ([], [0], "block-still-live"),
        ([(0, 0, 15)], [1, 5], "block-still-live"),
        # The first move is legal; the last one is not: all or nothing.
        ([(2, 2, 1), (9, 0, 5)], None, "unknown-token"),
        ([(2, 2, 1), (3, 3, 9)], None, "slot-outside"),
    ],
)
def test_illegal_moves_are_refused(
    moves: list[tuple[int, int, int]], block_ids: list[int] | None, code: str
) -> None:
    table = table_of(4, [0, 1], evicted=(1,))
    check_refused(table, code, lambda: table.apply_moves("a", [Move(*move) for move in moves], block_ids))


def test_a_dead_token_lets_its_slot_go() -> None:
    table = table_of(4, [0, 1], evicted=(1,))
    table.apply_moves("a", [Move(0, 0, 1)])
    assert table.slot("a", 0) == 1
    assert table.block_tokens("a", 0) == [HOLE, 0, 2]


class NaiveRequest:
    """Token to slot, and nothing else that could be kept incrementally."""

    def __init__(self) -> None:
        self.block_ids: list[int] = []
        self.num_tokens = 0
        self.slots: dict[int, int] = {}
        self.live: set[int] = set()

    def index(self, token_id: int) -> int:
        """The place of a token among all slots of the block list."""
        block_id, offset = divmod(self.slots[token_id], BLOCK_SIZE)
        return self.block_ids.index(block_id) * BLOCK_SIZE + offset

    def length(self) -> int:
        return max((self.index(token_id) + 1 for token_id in self.slots), default=0)

    def resident(self) -> list[int]:
        tokens = {self.index(token_id): token_id for token_id in self.slots}
        return [tokens.get(index, HOLE) for index in range(self.length())]

    def slot_at(self, index: int) -> int:
        return self.block_ids[index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE

    def move(self, moves: list[Move], block_ids: list[int]) -> None:
        taken = {move.dst_slot for move in moves}
        self.block_ids = block_ids
        dead = {token_id: slot for token_id, slot in self.slots.items() if token_id not in self.live}
        self.slots = {token_id: slot for token_id, slot in self.slots.items() if token_id in self.live}
        self.slots.update((move.token_id, move.dst_slot) for move in moves)
        last_live = self.length()
        for token_id, slot in dead.items():
            if slot not in taken and slot // BLOCK_SIZE in block_ids:
                self.slots[token_id] = slot
                if self.index(token_id) >= last_live:
                    del self.slots[token_id]


class TableAgainstModel(RuleBasedStateMachine):
    """Any legal history, in place and out of place, with any order of blocks."""

    @initialize()
    def start(self) -> None:
        self.table = TokenTable(BLOCK_SIZE)
        self.model: dict[str, NaiveRequest] = {}
        self.next_block = 0

    def new_blocks(self, count: int) -> list[int]:
        self.next_block += count
        return list(range(self.next_block - count, self.next_block))

    def live(self) -> list[tuple[str, int]]:
        return [(req_id, token_id) for req_id, model in self.model.items() for token_id in sorted(model.live)]

    @rule(req_id=st.sampled_from(REQ_IDS), num_new=st.integers(0, 7), num_spare=st.integers(0, 2))
    def sync(self, req_id: str, num_new: int, num_spare: int) -> None:
        model = self.model.setdefault(req_id, NaiveRequest())
        start = model.length()
        needed = -(-(start + num_new) // BLOCK_SIZE) - len(model.block_ids)
        model.block_ids = model.block_ids + self.new_blocks(max(needed, 0) + num_spare)
        new_ids = range(model.num_tokens, model.num_tokens + num_new)
        expected = [model.slot_at(start + index) for index in range(num_new)]
        assert self.table.next_slots(req_id, model.block_ids, num_new) == expected
        assert self.table.sync_new_tokens(req_id, model.block_ids, new_ids.stop) == new_ids
        model.slots.update(zip(new_ids, expected, strict=True))
        model.live.update(new_ids)
        model.num_tokens = new_ids.stop

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        req_id, token_id = data.draw(st.sampled_from(self.live()))
        self.table.evict_token(req_id, token_id)
        self.model[req_id].live.remove(token_id)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), num_new_blocks=st.integers(0, 2))
    def move_anything_anywhere(self, data: st.DataObject, num_new_blocks: int) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.model)))
        model = self.model[req_id]
        blocks = data.draw(st.permutations(model.block_ids + self.new_blocks(num_new_blocks)))
        live = sorted(model.live)
        moving = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        staying = {model.slots[token_id] for token_id in model.live - set(moving)}
        places = [block_id * BLOCK_SIZE + offset for block_id in blocks for offset in range(BLOCK_SIZE)]
        targets = data.draw(st.permutations([slot for slot in places if slot not in staying]))
        moves = [
            Move(token_id, model.slots[token_id], slot)
            for token_id, slot in zip(moving, targets, strict=False)
        ]
        used = {slot // BLOCK_SIZE for slot in staying} | {move.dst_slot // BLOCK_SIZE for move in moves}
        dropped = (
            data.draw(st.sets(st.sampled_from(sorted(set(blocks) - used)))) if set(blocks) - used else ()
        )
        kept = [block_id for block_id in blocks if block_id not in dropped]
        self.table.apply_moves(req_id, moves, kept)
        model.move(moves, kept)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def keep_the_block_list(self, data: st.DataObject) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.model)))
        self.table.apply_moves(req_id, ())
        self.model[req_id].move([], self.model[req_id].block_ids)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        req_id = data.draw(st.sampled_from(sorted(self.model)))
        self.table.drop(req_id)
        del self.model[req_id]

    @rule(req_id=st.sampled_from(REQ_IDS), token_id=st.integers(-2, 20))
    def evict_what_cannot_be(self, req_id: str, token_id: int) -> None:
        model = self.model.get(req_id)
        if model is None:
            code = "unknown-request"
        elif not 0 <= token_id < model.num_tokens:
            code = "unknown-token"
        elif token_id not in model.live:
            code = "evicted-twice"
        else:
            return
        check_refused(self.table, code, lambda: self.table.evict_token(req_id, token_id))

    @invariant()
    def table_says_what_the_model_says(self) -> None:
        assert set(self.table.requests()) == set(self.model)
        for req_id, model in self.model.items():
            live = sorted(model.live)
            assert self.table.live_tokens(req_id) == live
            assert self.table.slot_mapping(req_id) == [model.slots[token_id] for token_id in live]
            assert self.table.block_ids(req_id) == model.block_ids
            assert self.table.num_tokens(req_id) == model.num_tokens
            assert self.table.length(req_id) == model.length()
            assert self.table.resident_tokens(req_id) == model.resident()
            for count in (0, 1, 2, BLOCK_SIZE + 1, 10**6):
                assert self.table.last_tokens(req_id, count) == (model.resident()[-count:] if count else [])
            num_written = -(-model.length() // BLOCK_SIZE)
            assert self.table.written_blocks(req_id) == model.block_ids[:num_written]
            for token_id, slot in model.slots.items():
                assert self.table.slot(req_id, token_id) == slot

    @invariant()
    def counts_kept_incrementally_are_recounts(self) -> None:
        for req_id, model in self.model.items():
            assert self.table.num_live(req_id) == len(model.live)
            for block_id in range(self.next_block):
                in_block = [t for t in model.live if model.slots[t] // BLOCK_SIZE == block_id]
                assert self.table.live_in_block(req_id, block_id) == len(in_block)
            if model.block_ids:
                num_slots = len(model.block_ids) * BLOCK_SIZE
                assert self.table.waste(req_id) == 1 - Fraction(len(model.live), num_slots)
        num_slots = sum(len(model.block_ids) for model in self.model.values()) * BLOCK_SIZE
        num_live = sum(len(model.live) for model in self.model.values())
        assert self.table.waste() == (1 - Fraction(num_live, num_slots) if num_slots else 0)


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
