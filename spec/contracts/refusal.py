"""Contracts of the check that every plan passes: each fault of a plan is refused by the rule it breaks."""

from collections.abc import Iterator

from spec.contracts.contract import Contract
from spec.contracts.small import Five, Four, is_private, small_table
from vtoken_ref.events import PlanStrategy, View
from vtoken_ref.planner import (
    Relocation,
    check_relocation,
    copy_on_write_moves,
    plan_relocation,
    planned_moves,
)
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import TokenTable

LEASED = (10, 11, 12)
Fault = tuple[Relocation, Rule]


def faults_out_of_place_are_refused(is_dead: Five) -> bool:
    """A packed plan with one fault is refused by the rule that the fault breaks."""
    assert len(is_dead) == 5
    table = small_table(2, (4, 2, 3, 9), is_dead)
    relocation = plan_relocation(table, "a", "out_of_place", is_private, LEASED)
    if relocation is None:
        return False
    assert _verdict(table, "out_of_place", "packed", relocation) is None
    assert _verdict(table, "out_of_place", "packed", relocation, protected=3) is Rule.PLAN_SHARED
    for faulty, rule in (*_faults_of_sources(relocation), *_faults_of_moves(relocation)):
        assert _verdict(table, "out_of_place", "packed", faulty) is rule
    for faulty, rule in _faults_of_destinations(relocation):
        assert _verdict(table, "out_of_place", "packed", faulty) is rule
    return True


def faults_in_place_are_refused(is_dead: Five) -> bool:
    """A plan in place with other destinations than its first sources is refused."""
    assert len(is_dead) == 5
    table = small_table(2, (4, 2, 3, 9), is_dead)
    relocation = plan_relocation(table, "a", "in_place", is_private)
    if relocation is None:
        return False
    for destinations in (relocation.source_blocks[1:], LEASED):
        faulty = relocation._replace(destination_blocks=destinations[: len(relocation.destination_blocks)])
        assert _verdict(table, "in_place", "packed", faulty) is Rule.PLAN_DESTINATIONS
    reserve = 2 * len(relocation.destination_blocks)
    assert _verdict(table, "in_place", "packed", relocation, reserve=reserve) is Rule.PLAN_DESTINATIONS
    return True


def an_open_source_keeps_the_reserve(is_dead: Five, reserve: int) -> bool:
    """Under the indirect view the reserve counts where the next token's block is a source, only there."""
    assert 0 <= reserve <= 2
    table = small_table(2, (4, 2, 3, 9), is_dead)
    num_live = {block_id: table.live_in_block("a", block_id) for block_id in (4, 2, 3)}
    if num_live != {4: 1, 2: 1, 3: 1}:
        return False
    for sources, is_refused in (((2, 3), reserve > 0), ((4, 2), False)):
        moves = planned_moves(table, "a", "out_of_place", sources, (10,))
        relocation = Relocation(sources, (10,), moves)
        expected = Rule.PLAN_DESTINATIONS if is_refused else None
        assert _verdict(table, "out_of_place", "indirect", relocation, reserve=reserve) is expected
    return True


def dead_sources_are_refused(is_dead: Five, is_packed: bool) -> bool:
    """Sources without a live token need no plan; under the indirect view that is so of each one."""
    assert len(is_dead) == 5
    table = small_table(2, (4, 2, 3, 9), is_dead)
    view: View = "packed" if is_packed else "indirect"
    if not all(is_dead[2:]):
        return False
    nothing_live = Relocation((2, 3), (), ())
    assert _verdict(table, "out_of_place", view, nothing_live) is Rule.PLAN_SOURCES
    if is_dead[0] and not is_dead[1]:
        with_two_dead = plan_relocation(table, "a", "out_of_place", is_private, LEASED)
        assert with_two_dead is not None
        expected = None if is_packed else Rule.PLAN_SOURCES
        assert _verdict(table, "out_of_place", view, with_two_dead) is expected
    return True


def faults_of_a_copy_on_write_are_refused(is_dead: Four) -> bool:
    """A copy on write with one fault is refused by the rule that the fault breaks."""
    assert len(is_dead) == 4
    table = small_table(2, (4, 2), is_dead)
    good = Relocation((2,), (10,), copy_on_write_moves(table, "a", 2, 10))
    if all(is_dead[2:]):
        assert _verdict(table, "copy_on_write", "packed", good, protected=2) is Rule.PLAN_SOURCES
        return False
    assert _verdict(table, "copy_on_write", "packed", good, protected=2) is None
    assert _verdict(table, "copy_on_write", "packed", good) is Rule.PLAN_SOURCES
    faults = (
        (good._replace(source_blocks=(2, 4)), Rule.PLAN_SOURCES),
        (good._replace(destination_blocks=()), Rule.PLAN_DESTINATIONS),
        (good._replace(destination_blocks=(10, 11)), Rule.PLAN_DESTINATIONS),
        (good._replace(destination_blocks=(99,)), Rule.PLAN_DESTINATIONS),
        (good._replace(moves=good.moves[:1]), Rule.PLAN_TOKEN_LOST),
        (good._replace(moves=good.moves[::-1]), Rule.PLAN_ORDER),
    )
    for faulty, rule in faults:
        assert _verdict(table, "copy_on_write", "packed", faulty, protected=2) is rule
    return True


def _faults_of_sources(relocation: Relocation) -> Iterator[Fault]:
    sources, destinations, moves = relocation
    yield relocation._replace(source_blocks=sources[::-1]), Rule.PLAN_SOURCES
    yield relocation._replace(source_blocks=(*sources, 9)), Rule.PLAN_SOURCES
    yield relocation._replace(source_blocks=(sources[0], *sources)), Rule.PLAN_SOURCES
    yield Relocation((), destinations, moves), Rule.PLAN_SOURCES


def _faults_of_destinations(relocation: Relocation) -> Iterator[Fault]:
    sources, destinations, _ = relocation
    yield relocation._replace(destination_blocks=LEASED[: len(sources)]), Rule.PLAN_NO_GAIN
    yield relocation._replace(destination_blocks=destinations[:-1]), Rule.PLAN_DESTINATIONS
    yield relocation._replace(destination_blocks=(*destinations[:-1], 99)), Rule.PLAN_DESTINATIONS
    if len(destinations) == 2:
        yield relocation._replace(destination_blocks=(10, 10)), Rule.PLAN_DESTINATIONS


def _faults_of_moves(relocation: Relocation) -> Iterator[Fault]:
    moves = relocation.moves
    yield relocation._replace(moves=moves[1:]), Rule.PLAN_TOKEN_LOST
    yield relocation._replace(moves=()), Rule.PLAN_TOKEN_LOST
    if len(moves) > 1:
        yield relocation._replace(moves=moves[::-1]), Rule.PLAN_ORDER


def _verdict(
    table: TokenTable,
    strategy: PlanStrategy,
    view: View,
    relocation: Relocation,
    protected: int = -1,
    reserve: int = 0,
) -> Rule | None:
    try:
        check_relocation(
            table,
            "a",
            strategy,
            relocation,
            lambda block_id: block_id == protected,
            LEASED.__contains__,
            view=view,
            reserve=reserve,
        )
    except VTokenError as error:
        return next(rule for rule in Rule if rule.id == error.rule)
    return None


CONTRACTS = (
    Contract(
        faults_out_of_place_are_refused,
        "5 tokens in 3 blocks of 2, any of them dead",
        ((False, True, False, False, False),),
        (
            Rule.PLAN_SOURCES.id,
            Rule.PLAN_SHARED.id,
            Rule.PLAN_NO_GAIN.id,
            Rule.PLAN_DESTINATIONS.id,
            Rule.PLAN_TOKEN_LOST.id,
            Rule.PLAN_ORDER.id,
            "I4",
        ),
    ),
    Contract(
        faults_in_place_are_refused,
        "5 tokens in 3 blocks of 2, any of them dead",
        ((False, True, False, False, False),),
        (Rule.PLAN_DESTINATIONS.id, "I4"),
    ),
    Contract(
        an_open_source_keeps_the_reserve,
        "5 tokens in 3 blocks of 2, any of them dead, reserve 0 to 2",
        ((False, True, True, False, False), 1),
        (Rule.PLAN_DESTINATIONS.id, "I4", "I8"),
    ),
    Contract(
        dead_sources_are_refused,
        "5 tokens in 3 blocks of 2, any of them dead, either view",
        ((True, False, True, True, True), False),
        (Rule.PLAN_SOURCES.id, "I4"),
    ),
    Contract(
        faults_of_a_copy_on_write_are_refused,
        "4 tokens in 2 blocks of 2, any of them dead",
        ((False, False, True, False),),
        (
            Rule.PLAN_SOURCES.id,
            Rule.PLAN_DESTINATIONS.id,
            Rule.PLAN_TOKEN_LOST.id,
            Rule.PLAN_ORDER.id,
            "I4",
        ),
    ),
)
