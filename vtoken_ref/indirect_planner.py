"""The paper's planner: which blocks to empty when attention takes any layout.

Source: paper 3.3.3.
"""

from collections.abc import Sequence


def choose_sources(
    num_live: Sequence[int], block_size: int, max_sources: int, max_destinations: int
) -> list[int]:
    """Return the indices of the candidates to empty, ascending; none when no block comes free.

    The k candidates with the fewest live tokens come free of ``k * block_size`` slots less their live
    tokens, in whole blocks. No other k candidates free more, and one candidate more never frees less,
    so the most blocks come free with as many candidates as the two bounds allow. Of the numbers of
    candidates that free as many, the least is taken: no other choice that frees as many has fewer live
    tokens to move.

    Args:
        num_live: [num_candidates], live tokens of each candidate, 1 to ``block_size - 1``.
        block_size: slots per block, S.
        max_sources: B, the most sources of one round.
        max_destinations: blocks that can be had as destinations.

    Source: paper 3.3.3.
    Differs from source: the paper does not say which low-utilization blocks are selected, nor how the
        candidate set is reduced; here the fullest candidates are left out, ties the last in the list.
    """
    fewest_first = sorted(range(len(num_live)), key=lambda index: num_live[index])
    num_sources = num_freed = num_moved = 0
    for count, index in enumerate(fewest_first[:max_sources], 1):
        num_moved += num_live[index]
        if num_moved > max_destinations * block_size:
            break
        if (count * block_size - num_moved) // block_size > num_freed:
            num_sources, num_freed = count, (count * block_size - num_moved) // block_size
    return sorted(fewest_first[:num_sources])
