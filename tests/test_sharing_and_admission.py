"""By example: the prefix cache, admission, deferral, eligibility, recycling, and copies beside forwards."""

from dataclasses import replace
from fractions import Fraction

from tests.test_machine import Hand, check_refused, planned, running, scattered
from vtoken_ref.events import (
    Abort,
    Admit,
    Alloc,
    Cache,
    Cancel,
    Copy,
    Defer,
    Evict,
    Free,
    Lease,
    Preempt,
    Share,
    Uncache,
)
from vtoken_ref.machine import Machine
from vtoken_ref.reclaim import ReclaimConfig
from vtoken_ref.rules import Rule

PROMPT = tuple(range(6))


def cached() -> Hand:
    """Blocks 0 and 1 of a are cached, the second holds two tokens; c waits with the same prompt."""
    return running().apply(Cache("a", 0, (0, 1)), Admit("c", 8, None))


# The prefix cache.


def test_only_what_was_computed_before_an_eviction_is_cached() -> None:
    hand = running().apply(Evict("a", 0, (2,)))
    hand.apply(Cache("a", 0, (0,)))
    hand.forward(a=1)
    check_refused(hand, Cache("a", 0, (0, 1)), Rule.CACHE_PREFIX.code)
    check_refused(hand, Cache("a", 0, (1,)), Rule.CACHE_PREFIX.code)


def test_nothing_is_cached_while_it_is_relocated() -> None:
    check_refused(planned(), Cache("a", 0, (0,)), Rule.CACHE_BUSY.code)


def test_only_cached_blocks_are_shared() -> None:
    hand = cached().apply(Uncache((1,)))
    check_refused(hand, Share("c", 0, (0, 1), PROMPT), Rule.NOT_CACHED.code)
    check_refused(hand, Uncache((1,)), Rule.NOT_CACHED.code)
    hand.apply(Share("c", 0, (0,), PROMPT[:4]))


def test_a_request_shares_exactly_its_own_first_tokens() -> None:
    hand = cached()
    for block_ids, vocab_ids in [((0, 1), (0, 1, 2, 3, 9, 5)), ((1,), PROMPT[4:]), ((0,), PROMPT), ((), ())]:
        check_refused(hand, Share("c", 0, block_ids, vocab_ids), Rule.SHARE_PREFIX.code)
    hand.apply(Share("c", 0, (0, 1), PROMPT[:5]))
    assert hand.machine.table.resident_tokens("c") == [0, 1, 2, 3, 4]
    assert hand.machine.pool.refcount(1) == 2


def test_a_cached_block_survives_its_holders_and_is_given_out_last() -> None:
    hand = cached().apply(Abort("a", 0), Free((0, 1)))
    assert hand.machine.pool.state(0) == "free" and 0 in hand.machine.pool.cached
    hand.apply(Share("c", 0, (0,), PROMPT[:4]))
    assert hand.machine.pool.holders[0] == {"c"}
    hand.apply(Alloc("c", (1,)))
    assert 1 not in hand.machine.pool.cached, "given out for something else"


# Admission.


def deferred() -> Hand:
    """The plan of a waits for two destinations; c is admitted and has no blocks."""
    return running().apply(Defer("a", 0, 2), Admit("c", 4, None))


def test_a_new_request_waits_while_a_plan_does() -> None:
    hand = deferred()
    check_refused(hand, Alloc("c", (9,)), Rule.BACKPRESSURE.code)
    hand.apply(Alloc("b", (9,)))
    hand.apply(Lease("a", 0, (5, 6)), Alloc("c", (10,)))


def test_a_plan_is_deferred_once_and_for_what_can_be_had() -> None:
    for num_blocks in (0, 4):
        check_refused(running(), Defer("a", 0, num_blocks), Rule.DEFER.code)
    check_refused(deferred(), Defer("a", 0, 1), Rule.DEFER.code)
    check_refused(planned(), Defer("a", 0, 3), Rule.DEFER.code)


def test_the_plan_that_waits_longest_gets_the_lease() -> None:
    hand = deferred().apply(Defer("b", 0, 1))
    check_refused(hand, Lease("b", 0, (5,)), Rule.LEASE_ORDER.code)
    hand.apply(Lease("a", 0, (5, 6)), Lease("b", 0, (7,)))


def test_an_allocation_leaves_the_headroom() -> None:
    hand = running()
    check_refused(hand, Alloc("a", tuple(range(3, 10))), Rule.HEADROOM_RESERVED.code)
    hand.apply(Alloc("a", tuple(range(3, 9))))
    hand.apply(Lease("a", 0, (9, 10, 11)))


# When plans are made.


def with_reclaim(hand: Hand, config: ReclaimConfig) -> Hand:
    """The same run under this configuration, with a step behind it."""
    hand.machine.config = replace(hand.machine.config, reclaim=config)
    hand.machine.gate.begin_step(config, hand.machine.last_step, len(hand.machine.pool.free_blocks))
    return hand


def test_a_plan_without_need_is_refused() -> None:
    for config in (ReclaimConfig(low_watermark=2), ReclaimConfig(theta_f=Fraction(99, 100))):
        hand = with_reclaim(scattered(), config)
        check_refused(hand, hand.plan("a"), Rule.NOT_ELIGIBLE.code)
    hand = with_reclaim(scattered(), ReclaimConfig())
    hand.apply(hand.plan("a"))


def test_one_attempt_too_many_is_refused() -> None:
    hand = with_reclaim(scattered(), ReclaimConfig(max_attempts=1)).apply(Defer("b", 0, 3))
    check_refused(hand, hand.plan("a"), Rule.RATE_LIMIT.code)
    hand = with_reclaim(scattered(), ReclaimConfig(check_interval=7))
    check_refused(hand, hand.plan("a"), Rule.RATE_LIMIT.code)


# Recycling, cancelling, copying beside a forward.


def test_a_token_is_recycled_where_its_forward_was_announced_to_do_so() -> None:
    hand = running().apply(Evict("a", 0, (1,)))
    begun = hand.begin(a=1)
    hand.apply(replace(begun, reads=(begun.reads[0]._replace(length=6),)))
    check_refused(hand, hand.sync("a"), "length-mismatch")
    hand.apply(replace(hand.sync("a"), slots=(1,)))
    assert hand.machine.table.resident_tokens("a") == [0, 6, 2, 3, 4, 5]


def test_a_slot_of_a_cached_block_is_not_recycled() -> None:
    hand = running().apply(Cache("a", 0, (0,)), Evict("a", 0, (1, 5)))
    begun = hand.begin(a=1)
    hand.apply(replace(begun, reads=(begun.reads[0]._replace(length=6),)))
    check_refused(hand, replace(hand.sync("a"), slots=(1,)), Rule.RECYCLE.code)
    hand.apply(replace(hand.sync("a"), slots=(5,)))


def test_a_plan_in_place_is_not_cancelled_after_a_move() -> None:
    hand = planned()
    hand.machine.copy().apply(Cancel("a", 0, 1))
    hand.apply(hand.copy("a"))
    check_refused(hand, Cancel("a", 0, 1), Rule.CANCEL_OVERWRITTEN.code)


def test_a_copy_does_not_write_what_a_forward_reads() -> None:
    hand = running().apply(Lease("b", 0, (5,)))
    hand.apply(hand.begin(a=1))
    late = hand.machine.copy()
    flight = planned().machine.workers["a"].plan
    assert flight is not None
    late.orphans["b", 7] = flight
    late.retiring["b", 7] = None
    assert isinstance(late, Machine)
    hand.machine = late
    check_refused(hand, Copy("b", 7, 1, (5,), 16), Rule.COPY_OVER_READ.code)


def test_late_copies_of_a_dead_epoch_keep_its_blocks_fenced() -> None:
    hand = scattered()
    hand.apply(hand.plan("a", "out_of_place", (8,)), Preempt("a", 0))
    check_refused(hand, Free((8,)), "fence")
    hand.apply(Copy("a", 0, 1, (5,), 16))
    check_refused(hand, Free((8,)), "fence")
    hand.apply(Cancel("a", 0, 1), Free((8,)))
