"""The CrossHair contracts: each can fail, and each verdict says no more than was checked.

PYTEST_DONT_REWRITE: what pytest makes of an assert is nothing that CrossHair can follow.
"""

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import pytest

from spec import contracts
from spec.contracts import acceptance, arithmetic, planning, reclaiming, selection
from spec.contracts.contract import Contract
from spec.contracts.crosshair_check import check_contract, check_same_behavior
from spec.report import Options, Status
from vtoken_ref import planner
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.planner import (
    blocks_after,
    check_relocation,
    copy_on_write_moves,
    num_blocks_for,
    plan_relocation,
    planned_moves,
    wholly_dead_blocks,
)
from vtoken_ref.reclaim import ReclaimConfig, ReclaimGate
from vtoken_ref.rules import Rule
from vtoken_ref.table import TokenTable

ENOUGH_S = 30.0
BY_NAME = {contract.name: contract for contract in contracts.CONTRACTS}

# One wrong version for each contract.


def nothing(*args: object, **options: object) -> None:
    return None


def private(block_id: int) -> bool:
    return False


def whole_blocks_only(num_tokens: int, block_size: int) -> int:
    return num_tokens // block_size


def at_most_three_blocks(num_tokens: int, block_size: int) -> int:
    return min(num_blocks_for(num_tokens, block_size), 3)


def choose_beyond_the_leases(num_live: Sequence[int], block_size: int, most: int, leases: int) -> list[int]:
    return choose_sources(num_live, block_size, most, len(num_live))


def choose_the_first(num_live: Sequence[int], block_size: int, most: int, leases: int) -> list[int]:
    chosen = list(range(min(most, len(num_live))))
    num_moved = sum(num_live[index] for index in chosen)
    pays = len(chosen) * block_size - num_moved >= block_size and num_moved <= leases * block_size
    return chosen if pays else []


def choose_only_if_all_leases_are_used(
    num_live: Sequence[int], block_size: int, most: int, leases: int
) -> list[int]:
    chosen = choose_sources(num_live, block_size, most, leases)
    needed = num_blocks_for(sum(num_live[index] for index in chosen), block_size)
    return chosen if needed == leases else []


def plan_without_the_reserve(*args: Any, **options: Any) -> Any:
    return plan_relocation(*args, **{**options, "reserve": 0})


def plan_with_protected_blocks(
    table: TokenTable, req_id: str, strategy: Any, is_protected: Any, *args: Any, **options: Any
) -> Any:
    return plan_relocation(table, req_id, strategy, private, *args, **options)


def plan_without_the_bound(
    table: TokenTable, req_id: str, strategy: Any, is_protected: Any, leased: Any = (), bound: Any = None
) -> Any:
    return plan_relocation(table, req_id, strategy, is_protected, leased)


def no_open_block(table: TokenTable, req_id: str) -> None:
    return None


def moves_in_logical_order(
    table: TokenTable, req_id: str, strategy: Any, sources: Sequence[int], destinations: Sequence[int]
) -> Any:
    return planned_moves(table, req_id, "out_of_place", sources, destinations)


def moves_but_the_last(*args: Any) -> Any:
    return planned_moves(*args)[:-1]


def destinations_where_the_sources_began(
    block_ids: Sequence[int], sources: Sequence[int], destinations: Sequence[int]
) -> list[int]:
    start = list(block_ids).index(sources[0])
    rest = [block_id for block_id in block_ids[start:] if block_id not in sources]
    return [*block_ids[:start], *destinations, *rest]


def copies_of_live_tokens(table: TokenTable, req_id: str, source: int, destination: int) -> Any:
    moves = copy_on_write_moves(table, req_id, source, destination)
    return tuple(move for move in moves if table.is_live(req_id, move.token_id))


def keep_dead_protected_blocks(table: TokenTable, req_id: str, is_protected: Any) -> tuple[int, ...]:
    return tuple(b for b in wholly_dead_blocks(table, req_id, is_protected) if not is_protected(b))


def accept_protected_sources(
    table: TokenTable,
    req_id: str,
    strategy: Any,
    relocation: Any,
    is_protected: Any,
    is_leased: Any,
    **options: Any,
) -> None:
    check_relocation(table, req_id, strategy, relocation, private, is_leased, **options)


NEXT_SLOTS = TokenTable.next_slots


def one_slot_too_early(self: TokenTable, *args: Any) -> list[int]:
    return [slot - 1 for slot in NEXT_SLOTS(self, *args)]


def waste_of_written_blocks(self: TokenTable, req_id: str | None = None) -> Fraction:
    num_slots = len(self.written_blocks("a")) * self.block_size
    return Fraction(num_slots - self.num_live("a"), num_slots) if num_slots else Fraction(0)


def every_slot(self: TokenTable, req_id: str) -> list[int]:
    return [
        b * self.block_size + offset for b in self.written_blocks(req_id) for offset in range(self.block_size)
    ]


def eligible_by_waste_alone(table: TokenTable, req_id: str, config: ReclaimConfig) -> bool:
    return table.waste() > config.theta_f


def pressed_below_the_low_watermark(
    self: ReclaimGate, config: ReclaimConfig, step: int, num_free_blocks: int
) -> None:
    assert config.low_watermark is not None
    self.is_pressed = num_free_blocks <= config.low_watermark


Fault = tuple[object, str, Callable[..., object]]

FAULTS: dict[str, Fault] = {
    "arithmetic.num_blocks_for_is_the_least_that_hold": (arithmetic, "num_blocks_for", whole_blocks_only),
    "arithmetic.one_more_block_holds_one_block_more": (arithmetic, "num_blocks_for", at_most_three_blocks),
    "selection.a_choice_is_allowed_and_pays": (selection, "choose_sources", choose_beyond_the_leases),
    "selection.no_choice_frees_more_nor_as_many_with_fewer_tokens": (
        selection,
        "choose_sources",
        choose_the_first,
    ),
    "selection.one_destination_more_never_frees_less": (
        selection,
        "choose_sources",
        choose_only_if_all_leases_are_used,
    ),
    "planning.packed_plan_in_place": (planning, "plan_relocation", plan_without_the_reserve),
    "planning.packed_plan_out_of_place": (planning, "plan_relocation", plan_with_protected_blocks),
    "planning.packed_plan_within_a_bound": (planning, "plan_relocation", plan_without_the_bound),
    "planning.indirect_plan_spares_a_protected_block": (
        planning,
        "plan_relocation",
        plan_with_protected_blocks,
    ),
    "planning.indirect_plan_out_of_place": (planner, "open_block", no_open_block),
    "planning.ascending_copies_in_place": (planner, "planned_moves", moves_in_logical_order),
    "planning.moves_fill_the_destinations_in_order": (planning, "planned_moves", moves_but_the_last),
    "planning.a_commit_replaces_the_last_sources": (
        planning,
        "blocks_after",
        destinations_where_the_sources_began,
    ),
    "planning.copy_on_write_takes_every_resident_token": (
        planning,
        "copy_on_write_moves",
        copies_of_live_tokens,
    ),
    "planning.wholly_dead_blocks_are_all_that_can_go": (
        planning,
        "wholly_dead_blocks",
        keep_dead_protected_blocks,
    ),
    "acceptance.accepted_sources_are_safe": (acceptance, "check_relocation", accept_protected_sources),
    "acceptance.accepted_moves_out_of_place_are_safe": (planner, "_check_moves", nothing),
    "acceptance.accepted_moves_in_place_are_safe": (planner, "_check_moves", nothing),
    "acceptance.accepted_copies_on_write_are_safe": (planner, "_check_moves", nothing),
    "refusal.faults_out_of_place_are_refused": (planner, "_check_leased", nothing),
    "refusal.faults_in_place_are_refused": (planner, "_check_destinations", nothing),
    "refusal.an_open_source_keeps_the_reserve": (planner, "open_block", no_open_block),
    "refusal.dead_sources_are_refused": (planner, "_check_sources", nothing),
    "refusal.faults_of_a_copy_on_write_are_refused": (planner, "_check_copy_on_write", nothing),
    "tables.new_tokens_take_the_next_slots": (TokenTable, "next_slots", one_slot_too_early),
    "tables.a_token_is_evicted_once": (TokenTable, "check_live", nothing),
    "tables.waste_is_the_share_of_slots_without_a_live_token": (
        TokenTable,
        "waste",
        waste_of_written_blocks,
    ),
    "tables.a_move_keeps_every_live_token_or_changes_nothing": (TokenTable, "check_moved_tokens", nothing),
    "tables.a_release_keeps_every_live_token_or_changes_nothing": (TokenTable, "_check_moves", nothing),
    "tables.a_recycled_slot_was_dead": (TokenTable, "dead_slots", every_slot),
    "reclaiming.an_eligible_request_has_a_plan": (reclaiming, "eligible", eligible_by_waste_alone),
    "reclaiming.pressure_lasts_from_the_low_to_the_high_watermark": (
        ReclaimGate,
        "begin_step",
        pressed_below_the_low_watermark,
    ),
}


def test_every_contract_has_a_wrong_version_and_its_own_name() -> None:
    assert FAULTS.keys() == BY_NAME.keys()
    assert len(BY_NAME) == len(contracts.CONTRACTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_version_is_refuted_by_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    check = check_contract(BY_NAME[name], ENOUGH_S)
    assert check.status is Status.REFUTED
    assert f"when calling {name.split('.')[1]}(" in check.detail


def test_the_section_finds_nothing_wrong_with_the_spec() -> None:
    seen: list[tuple[str, int, int | None]] = []
    section = contracts.run(Options(quick=True), lambda *progress: seen.append(progress))
    assert {check.name for check in section.checks} == set(contracts.QUICK)
    assert not [check.detail for check in section.checks if check.status.is_failure]
    assert sum(int(str(figure)) for figure in section.figures.values()) == len(section.checks)
    assert section.figures["confirmed"] == section.count(Status.CONFIRMED) > 0
    assert seen[-1] == ("contracts", len(contracts.QUICK), len(contracts.QUICK))


def test_only_what_is_asked_for_is_run() -> None:
    section = contracts.run(Options(only=("arithmetic.",)), nothing)
    assert [(check.name.split(".")[0], check.status) for check in section.checks] == [
        ("arithmetic", Status.CONFIRMED)
    ] * 2


def test_out_of_time_is_unknown() -> None:
    section = contracts.run(Options(deadline_s=0), nothing)
    assert {check.status for check in section.checks} == {Status.UNKNOWN}
    assert section.figures["unknown"] == len(BY_NAME)


def test_without_crosshair_the_section_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spec.contracts.crosshair_check")
    monkeypatch.setitem(sys.modules, "crosshair.core_and_libs", None)
    with pytest.raises(ImportError, match="crosshair"):
        contracts.run(Options(), nothing)


def test_every_covered_id_is_a_rule_or_an_invariant() -> None:
    known = {rule.id for rule in Rule} | {f"I{number}" for number in range(1, 10)}
    for contract in contracts.CONTRACTS:
        assert contract.covers and set(contract.covers) <= known


# The words of a verdict.


def counts_up(number: int) -> bool:
    """A number is reached by counting."""
    assert number >= 0
    count = 0
    while count < number:
        count += 1
    assert count == number
    return True


def assumes_the_impossible(number: int) -> bool:
    """No number is below and above 0."""
    assert number < 0
    assert number > 0
    return True


def has_only_assumptions(number: int) -> bool:
    """A number is above 0, says an assert that CrossHair takes for an assumption."""
    assert number >= 0
    assert number > 0
    return number == 0


def never_gets_there(number: int) -> bool:
    """A number is itself."""
    assert number >= 0
    return number < 0


def assumes_nothing(number: int) -> bool:
    """A number is itself."""
    return number == number


def holds_but_for_its_example(number: int) -> bool:
    """The next number is above 0."""
    assert number >= 0
    following = number + 1
    assert following > 0
    return True


def verdict(
    function: Callable[..., bool], *example: object, timeout_s: float = 0.5, **options: bool
) -> tuple[Status, str]:
    check = check_contract(Contract(function, "any number", example, ("I1",)), timeout_s, **options)
    return check.status, check.detail


def test_a_contract_with_more_paths_than_time_is_not_confirmed() -> None:
    assert verdict(counts_up, 3) == (
        Status.NOT_CONFIRMED,
        "A number is reached by counting. For any number.",
    )


def test_a_contract_that_was_given_less_than_its_time_is_unknown() -> None:
    status, detail = verdict(counts_up, 3, is_cut_short=True)
    assert status is Status.UNKNOWN and detail.startswith("out of time")
    assert verdict(holds_but_for_its_example, 2, timeout_s=5, is_cut_short=True)[0] is Status.CONFIRMED


@pytest.mark.parametrize("function", [never_gets_there, assumes_nothing, has_only_assumptions])
def test_a_contract_that_states_nothing_is_vacuous(function: Callable[..., bool]) -> None:
    assert verdict(function, 1)[0] is Status.VACUOUS


def test_a_contract_whose_example_does_not_meet_its_assumptions_is_a_failure() -> None:
    for function in (assumes_the_impossible, holds_but_for_its_example):
        status, detail = verdict(function, -1)
        assert status is Status.REFUTED and "its example raises AssertionError" in detail


# Two versions of one function.


def ceil_by_negation(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size > 0
    return -(-num_tokens // block_size)


def ceil_by_addition(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size > 0
    return (num_tokens + block_size - 1) // block_size


def ceil_wrong_when_it_is_exact(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size > 0
    return num_tokens // block_size + 1


def is_full(num_tokens: int) -> bool:
    return num_tokens >= 16


def is_above_fifteen(num_tokens: int) -> bool:
    return num_tokens > 15


def test_two_versions_that_differ_are_refuted_by_a_call() -> None:
    check = check_same_behavior("ceil", ceil_by_negation, ceil_wrong_when_it_is_exact, 10.0, ("I4",))
    assert (check.name, check.status, check.covers) == ("ceil", Status.REFUTED, ("I4",))
    assert "ceil_by_negation returns" in check.detail
    assert "ceil_wrong_when_it_is_exact returns" in check.detail


def test_two_versions_that_agree_have_no_counterexample_and_are_not_confirmed() -> None:
    check = check_same_behavior("full", is_full, is_above_fifteen, 10.0)
    assert check.status is Status.NO_COUNTEREXAMPLE
    assert check.detail.endswith("paths, all there are")
    check = check_same_behavior("ceil", ceil_by_negation, ceil_by_addition, 4.0)
    assert check.status is Status.NO_COUNTEREXAMPLE


NUM_CALLS = count(1)


def changes_its_mind(number: int) -> bool:
    return number > (5 if next(NUM_CALLS) % 3 == 0 else 6)


def test_a_function_that_does_not_always_do_the_same_is_unknown() -> None:
    check = check_same_behavior("mind", changes_its_mind, changes_its_mind, 2.0)
    assert check.status is Status.UNKNOWN


def test_blocks_after_is_not_the_version_that_puts_destinations_first() -> None:
    def ours(is_source: tuple[bool, bool, bool]) -> list[int]:
        return blocks_after((7, 3, 5), sources_of(is_source), (9,))

    def theirs(is_source: tuple[bool, bool, bool]) -> list[int]:
        return destinations_where_the_sources_began((7, 3, 5), sources_of(is_source), (9,))

    assert check_same_behavior("blocks_after", ours, theirs, 10.0).status is Status.REFUTED


def sources_of(is_source: tuple[bool, bool, bool]) -> tuple[int, ...]:
    return (7, *(block_id for block_id, chosen in zip((3, 5), is_source, strict=False) if chosen))
