"""What a scheduler makes of a worker's report: the rule by which block lists stay in agreement.

A report is absolute and tagged. It replaces the list that it was made for; what the scheduler has
appended since stays. A report of another epoch than the present one is dropped by its receiver.

Source: paper 3.4.
Differs from source: the paper does not say how scheduler and worker agree.
"""

from collections.abc import Sequence

from vtoken_ref.rules import Rule, VTokenError


def merged_block_list(
    req_id: str, current: Sequence[int], made_for: Sequence[int], block_ids: Sequence[int]
) -> list[int]:
    """Return the scheduler's block list after a report.

    Args:
        req_id: whose list it is.
        current: the scheduler's list now.
        made_for: the list that the report was made for.
        block_ids: the list that it is now, as the worker says.

    Raises:
        VTokenError: report-base, when the scheduler's list does not begin with ``made_for``.

    """
    if list(current[: len(made_for)]) != list(made_for):
        raise VTokenError(
            Rule.REPORT_BASE,
            f"the report of request {req_id} was made for blocks {list(made_for)}, it has {list(current)}",
        )
    return [*block_ids, *current[len(made_for) :]]


def given_up(made_for: Sequence[int], block_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the blocks that a report gives back."""
    return tuple(block_id for block_id in made_for if block_id not in block_ids)
