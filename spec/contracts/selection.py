"""Contracts of the paper's choice of source blocks."""

from itertools import combinations

from spec.contracts.contract import Contract
from vtoken_ref.indirect_planner import choose_sources
from vtoken_ref.rules import Rule

Three = tuple[int, int, int]


def a_choice_is_allowed_and_pays(
    num_live: Three, block_size: int, max_sources: int, max_destinations: int
) -> bool:
    """Chosen sources are distinct, in order and within both bounds, and free at least one block."""
    assert all(0 < count < block_size for count in num_live) and max_sources >= 0 and max_destinations >= 0
    chosen = choose_sources(num_live, block_size, max_sources, max_destinations)
    num_moved = sum(num_live[index] for index in chosen)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= max_sources
    assert num_moved <= max_destinations * block_size
    assert not chosen or len(chosen) * block_size - num_moved >= block_size
    return bool(chosen)


def no_choice_frees_more_nor_as_many_with_fewer_tokens(
    num_live: Three, block_size: int, max_sources: int, max_destinations: int
) -> bool:
    """Of all allowed choices none frees more blocks, and none that frees as many moves fewer tokens."""
    assert 2 <= block_size <= 4 and all(0 < count < block_size for count in num_live)
    assert max_sources >= 0 and max_destinations >= 0
    chosen = choose_sources(num_live, block_size, max_sources, max_destinations)
    num_moved = sum(num_live[index] for index in chosen)
    num_freed = (len(chosen) * block_size - num_moved) // block_size
    for count in range(len(num_live) + 1):
        for others in combinations(range(len(num_live)), count):
            moved = sum(num_live[index] for index in others)
            if count <= max_sources and moved <= max_destinations * block_size:
                freed = (count * block_size - moved) // block_size
                assert freed < num_freed or (freed == num_freed and moved >= num_moved)
    return bool(chosen)


def one_destination_more_never_frees_less(num_live: Three, block_size: int, max_destinations: int) -> bool:
    """With one more block to be had as a destination, no fewer blocks come free."""
    assert all(0 < count < block_size for count in num_live) and max_destinations >= 0
    few = choose_sources(num_live, block_size, len(num_live), max_destinations)
    more = choose_sources(num_live, block_size, len(num_live), max_destinations + 1)
    holes_of_few = sum(block_size - num_live[index] for index in few)
    holes_of_more = sum(block_size - num_live[index] for index in more)
    assert holes_of_more // block_size >= holes_of_few // block_size
    return len(more) > len(few)


CONTRACTS = (
    Contract(
        a_choice_is_allowed_and_pays,
        "3 candidates, any block size, any bounds",
        ((3, 1, 2), 4, 3, 2),
        (Rule.PLAN_NO_GAIN.id, Rule.PLAN_DESTINATIONS.id, "I4"),
    ),
    Contract(
        no_choice_frees_more_nor_as_many_with_fewer_tokens,
        "3 candidates, block size 2 to 4, any bounds",
        ((3, 1, 2), 4, 3, 2),
        (Rule.PLAN_NO_GAIN.id, "I4", "I9"),
    ),
    Contract(
        one_destination_more_never_frees_less,
        "3 candidates, any block size, any number of destinations",
        ((3, 1, 2), 4, 0),
        (Rule.PLAN_NO_GAIN.id, "I9"),
    ),
)
