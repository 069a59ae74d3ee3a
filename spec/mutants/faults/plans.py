"""Faults of plans, copies and commits: every guard of the planner, and the orderings of memory."""

from spec.mutants.mutant import Fault
from vtoken_ref.rules import Rule

PLANNER = "vtoken_ref/planner.py"
PAPER = "vtoken_ref/indirect_planner.py"
RELOCATION = "vtoken_ref/transitions/relocation.py"
FORWARDS = "vtoken_ref/transitions/forwards.py"

FAULTS = (
    # The contract of a plan.
    Fault(
        "plan-no-gain",
        PLANNER,
        """    if len(destinations) >= len(sources):
""",
        """    if len(destinations) > len(sources):
""",
        "guard of the planner: a plan wins no block",
        (Rule.PLAN_NO_GAIN,),
        (5,),
    ),
    Fault(
        "plan-too-few-destinations",
        PLANNER,
        """    return -(-num_tokens // block_size)
""",
        """    return num_tokens // block_size
""",
        "guard of the planner: the last tokens have no destination",
        (Rule.PLAN_DESTINATIONS, Rule.PLAN_TOKEN_LOST),
    ),
    Fault(
        "plan-destination-count",
        PLANNER,
        """    if len(destinations) != needed:
""",
        """    if len(destinations) < needed:
""",
        "guard of the planner: a plan takes more destinations than it needs",
        (Rule.PLAN_DESTINATIONS,),
        (19,),
    ),
    Fault(
        "plan-any-source-as-destination",
        PLANNER,
        "destinations != sources[:needed]",
        "not set(destinations) <= set(sources)",
        "guard of the planner: in place, tokens are moved up",
        (Rule.PLAN_DESTINATIONS,),
    ),
    Fault(
        "plan-unleased",
        PLANNER,
        "len(set(destinations)) != len(destinations) or not all(map(is_leased, destinations)):",
        "len(set(destinations)) != len(destinations) or not any(map(is_leased, destinations)):",
        "guard of the planner: a destination is nobody's, or another request's",
        (Rule.PLAN_DESTINATIONS,),
        (10, 17),
    ),
    Fault(
        "plan-leased-twice",
        PLANNER,
        "    if len(set(destinations)) != len(destinations) or not all(",
        "    if not all(",
        "guard of the planner: one destination is filled twice",
        (Rule.PLAN_DESTINATIONS,),
    ),
    Fault(
        "plan-shared-source",
        PLANNER,
        """        if is_protected(block_id):
            raise VTokenError(Rule.PLAN_SHARED""",
        """        if False:
            raise VTokenError(Rule.PLAN_SHARED""",
        "guard of the planner: a shared or cached block is a source",
        (Rule.PLAN_SHARED,),
        (3,),
    ),
    Fault(
        "plan-not-packed",
        PLANNER,
        "list(sources) != written[-len(sources) :]:",
        "len(sources) > len(written):",
        "guard of the planner: the packed view gets a partly filled block in the middle",
        (Rule.PLAN_PACKED,),
        (7,),
    ),
    Fault(
        "plan-foreign-sources",
        PLANNER,
        """    if not num_live_in(table, req_id, sources):
""",
        """    if not sources:
""",
        "guard of the planner: wholly dead blocks get a plan",
        (Rule.PLAN_SOURCES,),
    ),
    Fault(
        "plan-dead-source",
        PLANNER,
        """        if view == "indirect" and not table.live_in_block(req_id, block_id):
""",
        """        if view == "indirect" and table.live_in_block(req_id, block_id) < 0:
""",
        "guard of the planner: a wholly dead block is a source",
        (Rule.PLAN_SOURCES,),
    ),
    Fault(
        "plan-loses-token",
        PLANNER,
        """    if lost:
""",
        """    if len(lost) > 1:
""",
        "guard of the planner: one live token stays behind in a source",
        (Rule.PLAN_TOKEN_LOST,),
    ),
    Fault(
        "plan-any-order",
        PLANNER,
        """    if tuple(moves) != tuple(expected):
""",
        """    if {move.token_id for move in moves} != {move.token_id for move in expected}:
""",
        "guard of the planner: tokens change their order, slots stay empty",
        (Rule.PLAN_ORDER,),
    ),
    Fault(
        "plan-reversed",
        PLANNER,
        'enumerate(tokens if strategy == "in_place" else sorted(tokens))',
        'enumerate(tokens if strategy == "in_place" else sorted(tokens, reverse=True))',
        "guard of the planner: out of place, the order is turned round",
        (Rule.PLAN_ORDER,),
    ),
    Fault(
        "plan-logical-in-place",
        PLANNER,
        'enumerate(tokens if strategy == "in_place" else sorted(tokens))',
        "enumerate(sorted(tokens))",
        "guard of the planner: after recycling, ascending copies overwrite tokens that are still to move",
        (Rule.COPY_ORDER,),
    ),
    Fault(
        "on-write-private",
        PLANNER,
        """    if not is_protected(sources[0]):
""",
        """    if not sources:
""",
        "guard of the planner: a private block is copied on write",
        (Rule.PLAN_SOURCES,),
        (19,),
    ),
    Fault(
        "on-write-live-only",
        PLANNER,
        """        for offset, token_id in enumerate(table.block_tokens(req_id, source))
        if token_id != HOLE
""",
        """        for offset, token_id in enumerate(table.block_tokens(req_id, source))
        if table.is_live(req_id, token_id)
""",
        "copy on write leaves dead tokens, which attention still reads",
        (Rule.PLAN_TOKEN_LOST,),
    ),
    Fault(
        "blocks-after-at-front",
        PLANNER,
        """    place_of = dict(zip(source_blocks[num_leaving:], destination_blocks, strict=True))
    leaving = set(source_blocks[:num_leaving])
""",
        """    num_staying = len(destination_blocks)
    place_of = dict(zip(source_blocks[:num_staying], destination_blocks, strict=True))
    leaving = set(source_blocks[num_staying:])
""",
        "a partly filled destination stands in the middle of the request",
        (Rule.COMMIT_DIFFERS,),
        (7,),
    ),
    Fault(
        "reduce-keeps-lease",
        PLANNER,
        """"packed", reserve) <= max_destinations:
""",
        """"packed", reserve) <= max_destinations + 1:
""",
        "the planner counts on one destination more than it has",
        (Rule.PLAN_DESTINATIONS,),
        (19,),
    ),
    Fault(
        "reduce-never-ends",
        PLANNER,
        """            return sources
        first += 1
""",
        """            return sources
        first += 0
""",
        "guard of the planner: the reduction of the candidates never ends",
        (Rule.PLAN_DESTINATIONS,),
        terminates=True,
    ),
    Fault(
        "fullest-first",
        PAPER,
        "key=lambda index: num_live[index])",
        "key=lambda index: -num_live[index])",
        "the paper's planner empties the fullest blocks",
        (Rule.PLAN_NO_GAIN,),
    ),
    Fault(
        "too-many-sources",
        PAPER,
        "enumerate(fewest_first[:max_sources], 1):",
        "enumerate(fewest_first[: max_sources + 1], 1):",
        "a round takes one source more than the bound",
        (Rule.PLAN_SOURCES,),
    ),
    Fault(
        "reserve-forgotten",
        RELOCATION,
        """    return max(_num_tail_slots(state, req_id) - num_unwritten_slots, 0)
""",
        """    return 0
""",
        "a relocation takes the slots that a step under way counts on",
        (Rule.PLAN_DESTINATIONS, Rule.CAPACITY),
        (2, 7),
    ),
    # The four orderings.
    Fault(
        "plan-over-forward",
        RELOCATION,
        """    if state.config.view == "packed" or event.strategy == "in_place" or is_recycling:
""",
        """    if event.strategy == "in_place" or is_recycling:
""",
        "ordering, copy after write: sources are copied while a forward writes them",
        (Rule.LAYOUT_DURING_FORWARD,),
        (9,),
    ),
    Fault(
        "plan-over-unwritten",
        RELOCATION,
        """    if written & {*event.source_blocks, *event.destination_blocks}:
""",
        """    if False:
""",
        "ordering, copy after write: a source is copied before the running forward has written it",
        (Rule.LAYOUT_DURING_FORWARD,),
        (9,),
    ),
    Fault(
        "commit-before-copy",
        RELOCATION,
        """    if flight.remaining:
        raise VTokenError(
            Rule.COMMIT_BEFORE_COPY,""",
        """    if len(flight.remaining) > 1:
        raise VTokenError(
            Rule.COMMIT_BEFORE_COPY,""",
        "ordering, read after copy: the table switches before the last copy is complete",
        (Rule.COMMIT_BEFORE_COPY,),
        (9,),
    ),
    Fault(
        "forward-during-plan",
        FORWARDS,
        """    is_overwriting = worker.plan.plan.strategy == "in_place"
""",
        """    is_overwriting = False
""",
        "ordering, read after copy: a forward begins while its request is packed in place",
        (Rule.FORWARD_DURING_PLAN,),
        (9,),
    ),
    Fault(
        "copy-over-read",
        RELOCATION,
        """                if slots & written:
""",
        """                if False:
""",
        "ordering, write after read: a copy overwrites what a forward in flight reads",
        (Rule.COPY_OVER_READ,),
        (10,),
    ),
    Fault(
        "copy-over-read-of-dead",
        "vtoken_ref/state.py",
        """            if req_id in forward.frozen_reads:
                yield req_id, forward.frozen_reads[req_id]
            elif""",
        "            if",
        "ordering, write after read: a late copy overwrites what the forward of a dead epoch reads",
        (Rule.COPY_OVER_READ,),
        (10, 13),
    ),
    Fault(
        "copy-order",
        RELOCATION,
        """        if flight.moves[token_id].src_slot in written:
""",
        """        if flight.moves[token_id].src_slot in written and len(written) > 1:
""",
        "in place, a copy overwrites a token that is still to be copied",
        (Rule.COPY_ORDER,),
    ),
    Fault(
        "copy-not-counted",
        RELOCATION,
        """    flight.copied |= tokens
""",
        """    flight.copied |= set(list(tokens)[1:])
""",
        "a copy that is complete does not count as complete",
        (Rule.COPY_NOT_PLANNED,),
        terminates=True,
    ),
    Fault(
        "copy-one-after-another",
        RELOCATION,
        """    contents = [state.memory[move.src_slot] for move in moves]
    for move, content in zip(moves, contents, strict=True):
        state.memory[move.dst_slot] = content
""",
        """    for move in moves:
        state.memory[move.dst_slot] = state.memory[move.src_slot]
""",
        "the copies of one launch see each other's writes",
        (Rule.KV_CHANGED,),
    ),
    Fault(
        "overlapping-plans",
        RELOCATION,
        """    if worker.plan is not None:
        raise VTokenError(Rule.PLAN_OVERLAP""",
        """    if worker.plan is not None and worker.plan.copied:
        raise VTokenError(Rule.PLAN_OVERLAP""",
        "two plans of one request are in flight",
        (Rule.PLAN_OVERLAP,),
    ),
    Fault(
        "evict-moving",
        RELOCATION,
        "worker.in_forward is not None or block_id in sources:",
        "worker.in_forward is not None:",
        "a token is evicted while it is moved",
        (Rule.PROTECTED_TOKEN,),
        (2,),
    ),
    Fault(
        "evict-in-forward",
        RELOCATION,
        "worker.in_forward is not None or block_id in sources:",
        "block_id in sources:",
        "a token is evicted while a forward reads it",
        (Rule.PROTECTED_TOKEN,),
        (2, 4),
    ),
    Fault(
        "release-source",
        RELOCATION,
        """        if block_id in in_plan or _num_live_in(state, event.req_id, block_id):
""",
        """        if _num_live_in(state, event.req_id, block_id):
""",
        "a source is given up before its plan commits",
        (Rule.BLOCK_STILL_LIVE,),
        (15, 17),
    ),
    Fault(
        "cancel-half-packed",
        RELOCATION,
        'flight.plan.strategy == "in_place" and flight.copied:',
        'flight.plan.strategy == "in_place" and not flight.remaining:',
        "a plan in place is cancelled when half of its tokens have moved",
        (Rule.CANCEL_OVERWRITTEN,),
    ),
    Fault(
        "commit-other-blocks",
        RELOCATION,
        "event.moves != plan.moves or list(event.block_ids) != expected_blocks:",
        "event.moves != plan.moves or set(event.block_ids) != set(expected_blocks):",
        "a commit lists the blocks in another order",
        (Rule.COMMIT_DIFFERS,),
        (16,),
    ),
    Fault(
        "commit-keeps-old-list",
        RELOCATION,
        """    worker.block_ids = expected_blocks
    worker.leased""",
        "    worker.leased",
        "after a commit attention is given the old block list",
        (Rule.KV_VISIBLE, Rule.BLOCK_LIST_CHANGED),
        (16,),
    ),
)
