"""Faults of epochs, forwards, and the messages between scheduler and worker."""

from spec.mutants.mutant import Fault
from vtoken_ref.rules import Rule

STATE = "vtoken_ref/state.py"
PROTOCOL = "vtoken_ref/protocol.py"
FORWARDS = "vtoken_ref/transitions/forwards.py"
MESSAGES = "vtoken_ref/transitions/messages.py"
RELOCATION = "vtoken_ref/transitions/relocation.py"
REQUESTS = "vtoken_ref/transitions/requests.py"
PREFIX_CACHE = "vtoken_ref/transitions/prefix_cache.py"

FAULTS = (
    # Every epoch check.
    Fault(
        "epoch-of-request",
        STATE,
        """        _check_epoch(req_id, request.epoch, epoch)
""",
        "",
        "epoch check: the scheduler takes events of a dead epoch",
        (Rule.STALE_EPOCH,),
        (12,),
    ),
    Fault(
        "epoch-of-worker",
        STATE,
        """        _check_epoch(req_id, worker.epoch, epoch)
""",
        "",
        "epoch check: the worker goes on with a dead epoch as if it were the new one",
        (Rule.STALE_EPOCH,),
        (12, 13),
    ),
    Fault(
        "epoch-only-later",
        STATE,
        """    if epoch is not None and epoch != present:
""",
        """    if epoch is not None and epoch > present:
""",
        "epoch check: events of earlier epochs are taken",
        (Rule.STALE_EPOCH,),
        (12,),
    ),
    Fault(
        "epoch-not-bumped",
        REQUESTS,
        """        epoch=request.epoch + 1,
""",
        """        epoch=request.epoch,
""",
        "epoch check: preemption begins no new epoch",
        (Rule.STALE_EPOCH,),
        (1, 12),
    ),
    Fault(
        "epoch-of-report",
        MESSAGES,
        """        if state.is_current(layout.req_id, layout.epoch)
    ]
""",
        """        if layout.req_id in state.requests
    ]
""",
        "epoch check: a late report of a dead epoch is applied to the new one",
        (Rule.REPORT_BASE, Rule.LENGTH_MISMATCH),
        (1, 2),
    ),
    Fault(
        "epoch-of-forward-end",
        FORWARDS,
        """    ended = [(read.req_id, read.epoch) for read in event.reads]
""",
        """    ended = [(read.req_id, forward.reads[read.req_id].epoch) for read in event.reads if forward]
""",
        "epoch check: a forward ends with other epochs than it began with",
        (Rule.STEP_ORDER,),
        (13,),
    ),
    Fault(
        "epoch-of-worked",
        STATE,
        """        return worker is not None and worker.epoch == epoch
""",
        """        return worker is not None
""",
        "epoch check: the worker takes a step of a new epoch for one of the old",
        (Rule.LENGTH_MISMATCH, Rule.STALE_EPOCH),
        (1, 13),
    ),
    Fault(
        "epoch-of-share",
        PREFIX_CACHE,
        """    request = state.request(event.req_id, event.epoch)
    check_backpressure""",
        """    request = state.request(event.req_id)
    check_backpressure""",
        "epoch check: a request shares blocks for an epoch that is over",
        (Rule.STALE_EPOCH,),
    ),
    # What an ended epoch leaves behind.
    Fault(
        "count-survives-preemption",
        REQUESTS,
        """        epoch=request.epoch + 1,
        vocab_ids""",
        """        epoch=request.epoch + 1,
        length=request.length,
        vocab_ids""",
        "the length is not reset when a request starts over",
        (Rule.LENGTH_MISMATCH,),
        (1,),
    ),
    Fault(
        "released-without-fence",
        REQUESTS,
        "state.pool.release_all(req_id, state.hazards_of(req_id, epoch))",
        "state.pool.release_all(req_id, frozenset())",
        "blocks of a finished or preempted request are reused while a step is in flight",
        (Rule.FENCE,),
        (12, 13),
    ),
    Fault(
        "leases-survive",
        "vtoken_ref/pool.py",
        "[*sorted(self.held_by(req_id)), *self.leased_to(req_id)]",
        "sorted(self.held_by(req_id))",
        "a request that ended keeps its leases",
        (Rule.LEAK, Rule.HEADROOM),
        (19,),
    ),
    Fault(
        "waits-after-end",
        REQUESTS,
        """    state.deferred.pop(req_id, None)
""",
        "",
        "a request that ended still waits for destinations, and everybody with it",
        (Rule.BACKPRESSURE,),
        (5,),
    ),
    Fault(
        "table-keeps-ended",
        REQUESTS,
        """    if req_id in state.table:
        state.table.drop(req_id)
""",
        "",
        "the table still has a request that ended",
        (Rule.SLOT_OCCUPIED,),
        (1,),
    ),
    Fault(
        "copies-forgotten",
        REQUESTS,
        """        state.orphans[req_id, worker.epoch] = worker.plan
""",
        """        worker.plan = None
""",
        "copies that still run when their request is preempted are forgotten",
        (Rule.FENCE,),
        (12,),
    ),
    Fault(
        "output-survives-preemption",
        REQUESTS,
        """    state.awaiting_output.pop(req_id, None)
""",
        "",
        "a request that starts over is given the output of its last epoch",
        (Rule.OUTPUT_UNKNOWN,),
        (1,),
    ),
    # Forwards.
    Fault(
        "capacity-one-less",
        FORWARDS,
        """    if read.length > len(request.block_ids) * block_size:
""",
        """    if read.length > len(request.block_ids) * block_size + 1:
""",
        "a forward begins with no slot for its last token",
        (Rule.CAPACITY,),
        (18,),
    ),
    Fault(
        "capacity-by-tokens",
        FORWARDS,
        """    length = request.length + read.num_query
    may_recycle""",
        """    length = request.num_tokens + read.num_query
    may_recycle""",
        "the scheduler counts logical tokens: memory never shrinks",
        (Rule.LENGTH_MISMATCH,),
        (5, 7),
    ),
    Fault(
        "sync-once-more",
        FORWARDS,
        "num_new > state.num_unwritten(event.req_id, worker):",
        "num_new > state.num_unwritten(event.req_id, worker) + 1:",
        "a forward writes one token more than it computes",
        (Rule.SYNC_OUTSIDE_FORWARD,),
        (13,),
    ),
    Fault(
        "end-unread",
        FORWARDS,
        """    if read.digest != state.visible_digest(read.req_id):
""",
        """    if not read.digest:
""",
        "attention may read anything",
        (Rule.KV_VISIBLE,),
        (9, 16),
    ),
    Fault(
        "two-forwards",
        FORWARDS,
        "len(state.steps) > state.config.async_depth",
        "len(state.steps) > state.config.async_depth + 1",
        "the scheduler runs one step further ahead",
        (Rule.STEP_ORDER,),
        (11,),
    ),
    # Messages.
    Fault(
        "report-drops-appended",
        PROTOCOL,
        """    return [*block_ids, *current[len(made_for) :]]
""",
        """    return [*block_ids]
""",
        "a report drops the blocks appended since",
        (Rule.REPORT_BASE, Rule.CAPACITY),
        (7,),
    ),
    Fault(
        "report-of-any-list",
        PROTOCOL,
        """    if list(current[: len(made_for)]) != list(made_for):
""",
        """    if len(current) < len(made_for):
""",
        "a report made for another list is applied",
        (Rule.REPORT_BASE,),
        (7,),
    ),
    Fault(
        "report-given-up-later",
        PROTOCOL,
        "tuple(block_id for block_id in made_for if block_id not in block_ids)",
        "tuple(block_id for block_id in made_for[1:] if block_id not in block_ids)",
        "the first block that a report gives back is lost",
        (Rule.LEAK,),
        (5, 7),
    ),
    Fault(
        "report-absolute-length",
        MESSAGES,
        """    request.length = layout.length + sum(
        read.num_query for read in state.steps_of(layout.req_id, layout.epoch)
    )
""",
        """    request.length = layout.length
""",
        "a stale length replaces that of the steps begun since",
        (Rule.LENGTH_MISMATCH,),
        (2, 7),
    ),
    Fault(
        "report-length-from-tokens",
        MESSAGES,
        "    request.length = layout.length + sum(",
        "    request.length = layout.num_tokens + sum(",
        "the resident length is inferred from the number of tokens",
        (Rule.LENGTH_MISMATCH,),
        (5, 18),
    ),
    Fault(
        "report-not-merged",
        MESSAGES,
        """    request.block_ids = merged
""",
        """    request.block_ids = list(layout.block_ids)
""",
        "the reported list replaces the scheduler's whole list",
        (Rule.CAPACITY, Rule.REPORT_BASE),
        (7,),
    ),
    Fault(
        "report-releases-early",
        MESSAGES,
        """    pool.release(layout.req_id, released, state.hazards_of(layout.req_id, layout.epoch))
""",
        """    pool.release(layout.req_id, released, frozenset())
""",
        "what a report gives back is reused one step early",
        (Rule.FENCE,),
        (11, 15),
    ),
    Fault(
        "report-leases-lost",
        MESSAGES,
        """    pool.adopt(layout.req_id, adopted)
""",
        "",
        "a destination stays leased after its plan committed",
        (Rule.NOT_HELD, Rule.LEAK),
        (17,),
    ),
    Fault(
        "report-takes-new-leases",
        MESSAGES,
        """    not_heard = {*request.new_leases, *(b for told in state.told_leases.values() for b in told)}
""",
        """    not_heard = {*(b for told in state.told_leases.values() for b in told)}
""",
        "a lease that the worker has not heard of is taken back",
        (Rule.NOT_HELD,),
        (17,),
    ),
    Fault(
        "told-twice",
        FORWARDS,
        """    request.new_blocks, request.new_leases, request.new_shared = [], [], ()
""",
        """    request.new_leases, request.new_shared = [], ()
""",
        "the worker is told of a block twice",
        (Rule.BLOCK_LIST_CHANGED,),
        (16,),
    ),
    Fault(
        "made-for-not-kept",
        MESSAGES,
        """        worker.made_for, worker.known_leases = list(worker.block_ids), list(worker.leased)
""",
        """        worker.known_leases = list(worker.leased)
""",
        "the next report is made for a list that the scheduler has no more",
        (Rule.REPORT_BASE,),
        (7,),
    ),
    Fault(
        "retired-when-told",
        MESSAGES,
        """        if told is not None and told <= event.step:
""",
        """        if told is None or told <= event.step:
""",
        "a dead epoch counts as over before the worker has heard of it",
        (Rule.FENCE,),
        (12, 13),
    ),
    Fault(
        "unfinished-report",
        MESSAGES,
        """    if unfinished or state.orphans:
""",
        """    if state.orphans:
""",
        "a step is reported while its request is packed in place",
        (Rule.PLAN_UNFINISHED,),
        (9,),
    ),
    Fault(
        "change-not-told",
        MESSAGES,
        """        or state.length(req_id) != worker.told_length
""",
        "",
        "a length that has changed is not reported",
        (Rule.REPORT_DIFFERS,),
        (7,),
    ),
    Fault(
        "tail-given-up",
        RELOCATION,
        """    if is_counted_on or num_left < _num_tail_slots(state, event.req_id):
""",
        """    if num_left < 0:
""",
        "a block is given up in which a step under way is to write",
        (Rule.TAIL_CAPACITY, Rule.CAPACITY),
        (2, 18),
    ),
    Fault(
        "decides-outside-window",
        RELOCATION,
        """    if state.is_async and state.reported is None:
""",
        """    if False:
""",
        "the worker changes a layout after it has reported it",
        (Rule.WORKER_IDLE,),
        (2,),
    ),
)
