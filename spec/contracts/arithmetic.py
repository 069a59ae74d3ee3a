"""Contracts of the planner's arithmetic."""

from spec.contracts.contract import Contract
from vtoken_ref.planner import num_blocks_for
from vtoken_ref.rules import Rule


def num_blocks_for_is_the_least_that_hold(num_tokens: int, block_size: int) -> bool:
    """The blocks for some tokens hold them, and one block fewer does not."""
    assert num_tokens >= 0 and block_size >= 1
    num_blocks = num_blocks_for(num_tokens, block_size)
    assert num_tokens <= num_blocks * block_size
    assert (num_blocks - 1) * block_size < num_tokens
    return num_blocks > 0


def one_more_block_holds_one_block_more(num_tokens: int, block_size: int) -> bool:
    """A block's worth of tokens more needs exactly one block more."""
    assert num_tokens >= 0 and block_size >= 1
    num_blocks = num_blocks_for(num_tokens, block_size)
    assert num_blocks_for(num_tokens + block_size, block_size) == num_blocks + 1
    return True


CONTRACTS = (
    Contract(
        num_blocks_for_is_the_least_that_hold,
        "any number of tokens, any block size",
        (5, 4),
        (Rule.PLAN_DESTINATIONS.id, "I4"),
    ),
    Contract(
        one_more_block_holds_one_block_more,
        "any number of tokens, any block size",
        (5, 4),
        (Rule.PLAN_DESTINATIONS.id, "I4"),
    ),
)
