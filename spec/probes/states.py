"""States that the probes start from, each made by legal events. Blocks have four slots.

Most are of the packed view and async depth 0. Request a has a prompt of six tokens in blocks 0 and 1.
"""

from spec.probes.hand import Hand
from vtoken_ref.events import Abort, Alloc, Cache, Evict, Finish, Free, Lease, Preempt, Uncache


def fresh() -> Hand:
    """Return a run in which nothing has happened."""
    return Hand()


def admitted() -> Hand:
    """Return a run in which request a has blocks, and nothing is computed."""
    return Hand().admit("a", 6, 0, 1, budget=8)


def in_forward() -> Hand:
    """Return one in which a forward is to compute a's prompt."""
    hand = admitted()
    return hand.apply(hand.begin(a=6))


def written() -> Hand:
    """Return one in which the forward has written all tokens and not ended."""
    return admitted().write(a=6)


def running() -> Hand:
    """Return one in which b has two tokens in block 2; a and b each have an output to compute."""
    return admitted().forward(a=6).admit("b", 2, 2).forward(b=2)


def decoding() -> Hand:
    """Return one in which a and b are in a forward that has written nothing."""
    hand = running()
    return hand.apply(hand.begin(a=1, b=1))


def scattered() -> Hand:
    """Return one in which tokens 0 and 5 of a are live; blocks 8 and 9 are leased to a."""
    return running().apply(Evict("a", 0, (1, 2, 3, 4)), Lease("a", 0, (8, 9)))


def planned() -> Hand:
    """Return one in which token 5 is to move into block 0, where token 0 stays."""
    hand = scattered()
    return hand.apply(hand.plan("a"))


def copied() -> Hand:
    """Return one in which it has moved."""
    hand = planned()
    return hand.apply(hand.copy("a"))


def committed() -> Hand:
    """Return one in which the table says so, and a still holds block 1."""
    hand = copied()
    return hand.apply(hand.commit("a"))


def planned_out() -> Hand:
    """Return one in which tokens 0 and 5 are to move to block 8."""
    hand = scattered()
    return hand.apply(hand.plan("a", "out_of_place", (8,)))


def copied_out() -> Hand:
    """Return one in which they have moved."""
    hand = planned_out()
    return hand.apply(hand.copy("a"))


def sparse() -> Hand:
    """Return one in which tokens 0 and 9 of a are live, in the first and the last of three blocks."""
    return Hand().admit("a", 10, 0, 1, 2).forward(a=10).apply(Evict("a", 0, tuple(range(1, 9))))


def holed() -> Hand:
    """Return one in which all of twelve tokens are live but for two in each of the last two blocks."""
    return Hand().admit("a", 12, 0, 1, 2).forward(a=12).apply(Evict("a", 0, (4, 6, 9, 11)))


def dead_block() -> Hand:
    """Return one in which block 0 of a is wholly dead."""
    return running().apply(Evict("a", 0, (0, 1, 2, 3)))


def aborted_in_forward() -> Hand:
    """Return one in which a was aborted while a forward is in flight with it."""
    return decoding().apply(Abort("a", 0))


def chunk_done() -> Hand:
    """Return one in which four of the six prompt tokens are computed."""
    return admitted().forward(a=4)


def over_budget() -> Hand:
    """Return one in which a has one live token too many to be decoded."""
    return Hand().admit("a", 6, 0, 1, budget=5).forward(a=6)


def preempted() -> Hand:
    """Return one in which a has started over; its old blocks are fenced."""
    return running().apply(Preempt("a", 0))


def ended() -> Hand:
    """Return one in which both requests have ended; their blocks are fenced."""
    return running().apply(Finish("a", 0, "stop"), Abort("b", 0))


def all_free() -> Hand:
    """Return one in which their blocks are free as well."""
    hand = ended()
    return hand.apply(Free(tuple(hand.machine.pool.fences)))


def over() -> Hand:
    """Return a run that has ended."""
    hand = all_free()
    return hand.apply(hand.end_of_run())


# The indirect view.


def indirect() -> Hand:
    """Return one in which tokens 0, 3, 5, 6 and 8 of nine are live; block 3 is leased to a."""
    hand = Hand(view="indirect").admit("a", 9, 0, 1, 2).forward(a=9)
    return hand.apply(Evict("a", 0, (1, 2, 4, 7)), Lease("a", 0, (3, 4)))


def indirect_planned() -> Hand:
    """Return one in which the tokens of blocks 0 and 1 are to move to block 3."""
    hand = indirect()
    return hand.apply(hand.plan("a", "out_of_place", (3,)))


# The prefix cache.


def cached() -> Hand:
    """Return one in which a has cached its two full blocks 0 and 1; b has nothing yet."""
    hand = Hand().admit("a", 9, 0, 1, 2).forward(a=9).apply(Cache("a", 0, (0, 1)))
    return hand.admit("b", 11)


def cached_partly() -> Hand:
    """Return one in which a has also cached block 2, with its one token."""
    hand = Hand().admit("a", 9, 0, 1, 2).forward(a=9).apply(Cache("a", 0, (0, 1, 2)))
    return hand.admit("b", 11)


def shared() -> Hand:
    """Return one in which b has blocks 0 and 1 as well, and block 4 of its own."""
    hand = cached()
    hand.apply(hand.share("b", (0, 1), 8))
    return hand.apply(Alloc("b", (4,)))


def shared_only() -> Hand:
    """Return one in which blocks 0 and 1 are shared and no longer cached."""
    return shared().apply(Uncache((0, 1)))


def shared_partly() -> Hand:
    """Return one in which b shares block 2 with its one token, too; block 8 is leased to b."""
    hand = cached_partly()
    hand.apply(hand.share("b", (0, 1, 2), 9))
    return hand.apply(Alloc("b", (4,)), Lease("b", 0, (8,)))


# Async depth 1.


def ahead() -> Hand:
    """Return one in which a is admitted and the worker has not heard of it."""
    return Hand(async_depth=1, max_query=8).admit("a", 6, 0, 1, budget=8)


def begun() -> Hand:
    """Return one in which the message of a's first step is on its way."""
    hand = ahead()
    return hand.apply(hand.begin(a=6))


def started() -> Hand:
    """Return one in which the worker has taken it."""
    hand = begun()
    return hand.apply(hand.start())


def in_window() -> Hand:
    """Return one in which the forward has ended and the step is not reported."""
    return ahead().forward(a=6)


def reported() -> Hand:
    """Return one in which the report of the step is on its way."""
    hand = in_window()
    return hand.apply(hand.report())


def settled() -> Hand:
    """Return one in which it is delivered, and the output of a is told."""
    return in_window().hand_over()


def two_ahead() -> Hand:
    """Return one in which the worker is in the window of step 0 and step 1 has begun."""
    hand = ahead()
    hand.apply(hand.begin(a=6)).run_begun()
    hand.apply(hand.begin(a=1))
    return hand.apply(hand.end())


def leased_ahead() -> Hand:
    """Return one in which the worker, in its window, has tokens 0 and 5 of a alive and block 8 lent."""
    hand = settled().apply(Lease("a", 0, (8, 9)))
    return hand.forward(a=1).apply(Evict("a", 0, (1, 2, 3, 4)))
