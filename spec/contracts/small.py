"""Small token tables for contracts: request "a" with one bool for each token, dead or not."""

from collections.abc import Sequence

from vtoken_ref.planner import Relocation, blocks_after
from vtoken_ref.table import TokenTable

Three = tuple[bool, bool, bool]
Four = tuple[bool, bool, bool, bool]
Five = tuple[bool, bool, bool, bool, bool]
Six = tuple[bool, bool, bool, bool, bool, bool]


def small_table(block_size: int, block_ids: Sequence[int], is_dead: Sequence[bool]) -> TokenTable:
    """Return a table in which "a" has one token for each bool, evicted where it is true."""
    table = TokenTable(block_size)
    table.sync_new_tokens("a", block_ids, len(is_dead))
    for token_id, dead in enumerate(is_dead):
        if dead:
            table.evict_token("a", token_id)
    return table


def commit(table: TokenTable, relocation: Relocation) -> None:
    """Switch the table to the layout after a relocation."""
    sources, destinations, moves = relocation
    table.apply_moves("a", moves, blocks_after(table.block_ids("a"), sources, destinations))


def is_private(block_id: int) -> bool:
    """No block is protected."""
    del block_id
    return False


def holds_each_live_token_once(table: TokenTable, live: Sequence[int]) -> bool:
    """Tell whether exactly these tokens are live, each in a slot of its own in a block of the request."""
    slots = table.slot_mapping("a")
    block_ids = table.block_ids("a")
    return (
        table.live_tokens("a") == list(live)
        and len(set(slots)) == len(slots)
        and all(slot // table.block_size in block_ids for slot in slots)
    )
