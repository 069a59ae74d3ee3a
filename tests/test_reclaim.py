"""When a plan is worth an attempt: each condition at its exact threshold."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtoken_ref.planner import plan_relocation
from vtoken_ref.reclaim import DEFAULT_THETA_F, ReclaimConfig, ReclaimGate, eligible, parse_theta_f
from vtoken_ref.rules import VTokenError
from vtoken_ref.table import TokenTable

BLOCK_SIZE = 4


def table_of(num_tokens: int, num_evicted: int, num_blocks: int | None = None) -> TokenTable:
    """Request "a" with its first tokens evicted."""
    table = TokenTable(BLOCK_SIZE)
    blocks = list(range(num_blocks or -(-num_tokens // BLOCK_SIZE)))
    table.sync_new_tokens("a", blocks, num_tokens)
    for token_id in range(num_evicted):
        table.evict_token("a", token_id)
    return table


def always(theta_f: Fraction = Fraction(0), low_watermark: int | None = None) -> ReclaimConfig:
    return ReclaimConfig(theta_f=theta_f, low_watermark=low_watermark)


def test_the_default_threshold_is_a_quarter() -> None:
    assert ReclaimConfig().theta_f == DEFAULT_THETA_F == Fraction(1, 4)


@pytest.mark.parametrize(("num_evicted", "expected"), [(4, False), (5, True)])
def test_waste_must_be_above_the_threshold_not_at_it(num_evicted: int, expected: bool) -> None:
    table = table_of(16, num_evicted)
    assert table.waste() == Fraction(num_evicted, 16)
    assert eligible(table, "a", ReclaimConfig()) is expected


def test_the_threshold_is_exact_where_floats_are_not() -> None:
    # 3/10 as a float is below three tenths and would let this request through.
    table = table_of(40, 12)
    assert table.waste() == Fraction(3, 10)
    assert not eligible(table, "a", always(Fraction(3, 10)))
    assert eligible(table, "a", always(Fraction(3, 10) - Fraction(1, 10**30)))


def test_waste_is_that_of_all_requests() -> None:
    table = table_of(16, 8)
    assert eligible(table, "a", ReclaimConfig())
    table.sync_new_tokens("b", [10, 11, 12, 13], 16)
    assert table.waste() == Fraction(1, 4)
    assert not eligible(table, "a", ReclaimConfig())


@pytest.mark.parametrize(
    ("watermark", "num_free", "expected"),
    [(None, 10**9, True), (3, 4, False), (3, 3, True), (3, 0, True), (0, 1, False), (0, 0, True)],
)
def test_free_blocks_must_fall_to_the_watermark(watermark: int | None, num_free: int, expected: bool) -> None:
    gate = ReclaimGate()
    gate.begin_step(always(low_watermark=watermark), 0, num_free)
    assert gate.is_pressed is expected


def test_pressure_lasts_until_the_high_watermark_is_reached() -> None:
    config = ReclaimConfig(low_watermark=2, high_watermark=5)
    gate, pressed = ReclaimGate(), []
    for step, num_free in enumerate([3, 2, 4, 5, 3, 2]):
        gate.begin_step(config, step, num_free)
        pressed.append(gate.is_pressed)
    assert pressed == [False, True, True, False, False, True]


def test_attempts_are_made_in_every_nth_step_and_are_counted() -> None:
    config = ReclaimConfig(check_interval=3, max_attempts=2)
    gate, allowed = ReclaimGate(), []
    for step in range(7):
        gate.begin_step(config, step, 0)
        while gate.may_attempt(config):
            gate.num_attempts += 1
        allowed.append(gate.num_attempts)
    assert allowed == [2, 0, 0, 2, 0, 0, 2]


def test_a_run_that_recycles_packs_in_place() -> None:
    assert ReclaimConfig(strategy="recycle").plan_strategy == "in_place"
    assert ReclaimConfig(strategy="out_of_place").plan_strategy == "out_of_place"


@pytest.mark.parametrize(("num_evicted", "expected"), [(3, False), (4, True)])
def test_a_whole_block_must_come_free(num_evicted: int, expected: bool) -> None:
    assert eligible(table_of(8, num_evicted), "a", always()) is expected


def test_unwritten_blocks_are_no_block_to_win() -> None:
    table = table_of(8, 3, num_blocks=6)
    assert table.waste() > Fraction(1, 2)
    assert not eligible(table, "a", always())


@pytest.mark.parametrize(("num_evicted", "expected"), [(3, False), (4, True)])
def test_a_blocks_worth_of_dead_tokens_must_be_resident(num_evicted: int, expected: bool) -> None:
    # Nine tokens in three blocks: two blocks would do after one eviction, but see the next test.
    assert eligible(table_of(9, num_evicted), "a", always()) is expected


def test_a_request_at_its_budget_is_not_repacked_for_every_token() -> None:
    """With a budget of two full blocks, one relocation pays for four new tokens."""
    table = table_of(8, 0)
    free, attempts = list(range(2, 40)), []
    for token_id in range(8, 28):
        blocks = table.block_ids("a")
        if table.length("a") == len(blocks) * BLOCK_SIZE:
            blocks.append(free.pop(0))
        table.sync_new_tokens("a", blocks, token_id + 1)
        table.evict_token("a", 1 + token_id - 8)
        if eligible(table, "a", always()):
            relocation = plan_relocation(table, "a", "in_place", lambda block_id: False)
            assert relocation is not None
            kept = list(table.block_ids("a"))
            for block_id in relocation.source_blocks[len(relocation.destination_blocks) :]:
                kept.remove(block_id)
            table.apply_moves("a", relocation.moves, kept)
            attempts.append(token_id)
    assert attempts == [11, 15, 19, 23, 27]
    assert len(table.block_ids("a")) == 2


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.data())
def test_an_eligible_private_request_always_has_a_plan(num_tokens: int, data: st.DataObject) -> None:
    table = table_of(num_tokens, 0)
    for token_id in data.draw(st.sets(st.integers(0, num_tokens - 1))):
        table.evict_token("a", token_id)
    dead = [b for b in table.written_blocks("a") if not table.live_in_block("a", b)]
    table.apply_moves("a", (), [b for b in table.block_ids("a") if b not in dead])
    if eligible(table, "a", always()):
        assert plan_relocation(table, "a", "in_place", lambda block_id: False) is not None


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(VTokenError) as error:
        eligible(table_of(4, 0), "x", ReclaimConfig())
    assert error.value.code == "unknown-request"


@pytest.mark.parametrize(
    ("text", "theta_f"), [("1/4", Fraction(1, 4)), ("0.25", Fraction(1, 4)), ("0", Fraction(0))]
)
def test_a_threshold_is_read_exactly(text: str, theta_f: Fraction) -> None:
    assert parse_theta_f(text) == theta_f


@pytest.mark.parametrize("text", ["", "high", "1/0", "1", "-1/4", "nan"])
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give (one|a fraction) such as 1/4"):
        parse_theta_f(text)
