"""Contracts of when reclamation is worth an attempt."""

from fractions import Fraction

from spec.contracts.contract import Contract
from spec.contracts.small import Five, is_private, small_table
from vtoken_ref.planner import plan_relocation, wholly_dead_blocks
from vtoken_ref.reclaim import ReclaimConfig, ReclaimGate, eligible
from vtoken_ref.rules import Rule


def an_eligible_request_has_a_plan(is_dead: Five, quarters: int) -> bool:
    """Waste of an eligible request is above the threshold, and a block of it can come free."""
    assert 0 <= quarters <= 2
    table = small_table(2, (4, 2, 3), is_dead)
    table.release_blocks("a", wholly_dead_blocks(table, "a", is_private))
    if not eligible(table, "a", ReclaimConfig(theta_f=Fraction(quarters, 4))):
        return False
    num_slots = 2 * len(table.block_ids("a"))
    assert (num_slots - table.num_live("a")) * 4 > quarters * num_slots
    assert plan_relocation(table, "a", "in_place", is_private) is not None
    return True


def pressure_lasts_from_the_low_to_the_high_watermark(
    low: int, high: int, num_free: int, was_pressed: bool
) -> bool:
    """Pressure sets in at the low watermark, goes at the high one, and stays as it is in between."""
    assert 0 <= low < high and num_free >= 0
    gate = ReclaimGate(is_pressed=was_pressed)
    gate.begin_step(ReclaimConfig(low_watermark=low, high_watermark=high), 0, num_free)
    if num_free <= low:
        assert gate.is_pressed
    elif num_free >= high:
        assert not gate.is_pressed
    else:
        assert gate.is_pressed == was_pressed
    return True


CONTRACTS = (
    Contract(
        an_eligible_request_has_a_plan,
        "5 tokens in 3 blocks of 2, any of them dead, thresholds 0, 1/4 and 1/2",
        ((False, True, False, True, False), 1),
        (Rule.NOT_ELIGIBLE.id, "I9"),
    ),
    Contract(
        pressure_lasts_from_the_low_to_the_high_watermark,
        "any watermarks, any number of free blocks",
        (1, 4, 2, True),
        (Rule.NOT_ELIGIBLE.id,),
    ),
)
