"""What must hold of any state, counted anew from what each token says of itself."""

from fractions import Fraction

from vtoken_ref.invariants import violations
from vtoken_ref.machine import Machine
from vtoken_ref.table import HOLE, TokenTable


def problems_of(machine: Machine) -> list[str]:
    """Return what is wrong with a state: the invariants, and the counts that the table keeps."""
    return [text for _, text in violations(machine)] + _miscounts(machine.table)


def _miscounts(table: TokenTable) -> list[str]:
    problems = []
    num_live = num_blocks = 0
    for req_id in table.requests():
        live, block_ids = table.live_tokens(req_id), table.block_ids(req_id)
        num_live, num_blocks = num_live + len(live), num_blocks + len(block_ids)
        for block_id in block_ids:
            tokens = [token_id for token_id in table.block_tokens(req_id, block_id) if token_id != HOLE]
            counted = sum(token_id in live for token_id in tokens)
            if table.live_in_block(req_id, block_id) != counted:
                problems.append(
                    f"block {block_id} of {req_id} has {counted} live tokens, the table says otherwise"
                )
        if table.waste(req_id) != _waste(len(live), len(block_ids), table.block_size):
            problems.append(f"the waste of request {req_id} is counted wrongly")
        problems += [
            f"nobody owns slot {table.slot(req_id, token_id)} of live token {token_id} of {req_id}"
            for token_id in live
            if table.live_owner(table.slot(req_id, token_id)) is None
        ]
    if table.waste() != _waste(num_live, num_blocks, table.block_size):
        problems.append("the waste of all requests is counted wrongly")
    return problems


def _waste(num_live: int, num_blocks: int, block_size: int) -> Fraction:
    num_slots = num_blocks * block_size
    return Fraction(num_slots - num_live, num_slots) if num_slots else Fraction(0)
