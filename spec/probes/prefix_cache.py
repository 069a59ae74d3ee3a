"""What may enter the prefix cache, and what may be shared from it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from spec.probes import states
from spec.probes.hand import Hand
from spec.probes.probe import Make, Probe, State, on_event
from vtoken_ref.events import Abort, Alloc, Cache, Event, Evict, Free, Lease, Preempt, Release, Share, Uncache
from vtoken_ref.rules import Rule


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _caching()
    yield from _caching_while()
    yield from _sharing()
    yield from _uncaching()


def _first_block(hand: Hand) -> Event:
    return Cache("a", 0, (0,))


# Caching.


def _caching() -> Iterator[Probe]:
    def refused(case: str, *block_ids: int) -> Probe:
        return on_event(
            Rule.CACHE_PREFIX,
            case,
            _three_blocks,
            lambda h: Cache("a", 0, block_ids),
            lambda h: Cache("a", 0, (0, 1)),
        )

    yield refused("second", 1)
    yield refused("order", 1, 0)
    yield refused("twice", 0, 0)
    yield refused("unwritten", 0, 1, 2)
    yield refused("of-another", 0, 1, 3)
    yield on_event(
        Rule.CACHE_PREFIX,
        "partly-filled-ahead",
        states.settled,
        lambda h: Cache("a", 0, (0, 1)),
        _first_block,
        (states.running, lambda h: Cache("a", 0, (0, 1))),
    )
    yield on_event(
        Rule.CACHE_PREFIX, "moved", states.committed, _first_block, (states.scattered, _first_block)
    )
    yield on_event(
        Rule.CACHE_PREFIX,
        "after-eviction",
        _grown_after_eviction,
        lambda h: Cache("a", 0, (0, 1)),
        _first_block,
    )


def _three_blocks() -> Hand:
    """Return a run in which a has six tokens in blocks 0 and 1, and an empty block 2; b has block 3."""
    return Hand().admit("a", 6, 0, 1, 2).forward(a=6).admit("b", 6, 3)


def _grown_after_eviction() -> Hand:
    """Return a run in which the last two of a's eight tokens were computed after an eviction."""
    return Hand().admit("a", 6, 0, 1).forward(a=6).apply(Evict("a", 0, (5,))).forward(a=1).forward(a=1)


def _caching_while() -> Iterator[Probe]:
    yield on_event(
        Rule.CACHE_BUSY,
        "planned",
        states.planned,
        _first_block,
        lambda h: (h.cancel("a"), _first_block(h)),
    )
    yield on_event(Rule.CACHE_BUSY, "running", states.decoding, _first_block, (states.running, _first_block))
    yield on_event(
        Rule.CACHE_BUSY, "undelivered", states.reported, _first_block, (states.settled, _first_block)
    )
    yield on_event(
        Rule.CACHE_BUSY,
        "leased-ahead",
        lambda: states.settled().apply(Lease("a", 0, (8,))),
        _first_block,
        (states.settled, _first_block),
        (lambda: states.running().apply(Lease("a", 0, (8,))), _first_block),
        (lambda: states.settled().admit("b", 2).apply(Lease("b", 0, (8,))), _first_block),
    )
    for epoch in (0, 1):
        yield on_event(
            Rule.STALE_EPOCH,
            f"cache-untold-{epoch}",
            lambda: states.settled().apply(Preempt("a", 0)),
            _cache_nothing(epoch),
            (states.settled, lambda h: Cache("a", 0, ())),
        )


def _cache_nothing(epoch: int) -> Make:
    return lambda hand: Cache("a", epoch, ())


# Sharing.


def _share(hand: Hand) -> Event:
    return hand.share("b", (0, 1), 8)


def _with(**changes: Any) -> Make:
    return lambda hand: replace(hand.share("b", (0, 1), 8), **changes)


def _sharing() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, forbidden: Make, state: State = states.cached, *twins: Any) -> Probe:
        return on_event(rule, f"share-{case}", state, forbidden, (states.cached, _share), *twins)

    yield refused(Rule.SHARE_PREFIX, "not-first", _share, lambda: states.cached().apply(Alloc("b", (4,))))
    yield refused(Rule.SHARE_PREFIX, "not-first-tokens", _share, _first_tokens_gone)
    yield refused(Rule.SHARE_PREFIX, "too-few-blocks", _with(block_ids=(0,)))
    yield refused(Rule.SHARE_PREFIX, "too-many-blocks", lambda h: h.share("b", (0, 1), 4))
    yield refused(Rule.SHARE_PREFIX, "nothing", lambda h: Share("b", 0, (), ()))
    for num_prompt_tokens in (7, 8):
        yield on_event(
            Rule.SHARE_PREFIX,
            f"share-of-{num_prompt_tokens}",
            partial(_with_c, num_prompt_tokens),
            _share_c,
            (lambda: _with_c(9), _share_c),
        )
    yield refused(Rule.SHARE_PREFIX, "other-token", _with(vocab_ids=(0, 1, 2, 3, 4, 5, 6, 99)))
    yield refused(Rule.SHARE_PREFIX, "other-first-token", _with(vocab_ids=(99, 1, 2, 3, 4, 5, 6, 7)))
    yield refused(
        Rule.SHARE_PREFIX,
        "other-place",
        lambda h: Share("b", 0, (1,), (0, 1, 2, 3)),
        states.cached,
        lambda h: h.share("b", (0,), 4),
    )
    yield on_event(
        Rule.SHARE_PREFIX,
        "share-of-two",
        _cached_by_two,
        lambda h: Share("b", 0, (4, 1), (0, 1, 2, 3, 4, 5, 6, 99)),
        lambda h: Share("b", 0, (0, 5), tuple(range(8))),
        lambda h: Share("b", 0, (4, 1), tuple(range(8))),
    )
    yield on_event(Rule.SHARE_PREFIX, "share-known", _other_prompt, _share, (_same_prompt, _share))
    yield on_event(
        Rule.SHARE_PREFIX,
        "share-partly-ahead",
        _cached_ahead,
        lambda h: h.share("b", (0,), 3),
        lambda h: h.share("b", (0,), 4),
        (states.cached, lambda h: h.share("b", (0,), 3)),
    )
    yield refused(Rule.NOT_CACHED, "private", _with(block_ids=(0, 2)))
    yield refused(Rule.NOT_CACHED, "uncached", _with_uncached, states.cached)
    yield on_event(
        Rule.NOT_CACHED,
        "share-fenced",
        lambda: states.cached().apply(Abort("a", 0)),
        _share,
        lambda h: (Free((0, 1, 2)), _share(h)),
    )
    yield on_event(
        Rule.HEADROOM_RESERVED,
        "share-free",
        _cached_and_free,
        _share,
        (_cached_and_held, _share),
        lambda h: h.share("b", (0,), 4),
    )


def _first_tokens_gone() -> Hand:
    """Return a run in which b has computed four tokens, and has given up the block that held them."""
    hand = states.cached().apply(Alloc("b", (4,))).forward(b=4)
    return hand.apply(Evict("b", 0, (0, 1, 2, 3)), Release("b", 0, (4,)))


def _with_uncached(hand: Hand) -> Event:
    return replace(hand.share("b", (0, 1), 8), block_ids=(2, 1))


def _share_c(hand: Hand) -> Event:
    return hand.share("c", (0, 1), 8)


def _with_c(num_prompt_tokens: int) -> Hand:
    return states.cached().admit("c", num_prompt_tokens)


def _other_prompt() -> Hand:
    """Return a run in which b has computed a prompt of its own, and has lost it."""
    return _prompt_of_b((0, 1, 2, 3, 4, 5, 6, 77, 8, 9, 10))


def _same_prompt() -> Hand:
    return _prompt_of_b(tuple(range(11)))


def _prompt_of_b(vocab_ids: tuple[int, ...]) -> Hand:
    hand = states.cached().apply(Alloc("b", (4, 5, 6)))
    hand.apply(hand.begin(b=11)).apply(replace(hand.sync("b"), vocab_ids=vocab_ids))
    return hand.apply(hand.end()).apply(Preempt("b", 0))


def _cached_by_two() -> Hand:
    """Return a run in which c has cached the same prefix as a, in blocks 4 and 5 and with KV of its own."""
    hand = states.cached().admit("c", 9, 4, 5, 6).forward(c=9)
    return hand.apply(Cache("c", 0, (4, 5)))


def _cached_ahead() -> Hand:
    """Return a run with async depth 1 in which a has cached block 0."""
    return states.settled().apply(Cache("a", 0, (0,))).admit("b", 11)


def _cached_and_free() -> Hand:
    """Return a run in which cached blocks 0 and 1 are two of the three free ones, all reserved."""
    hand = states.cached().apply(Abort("a", 0), Free((0, 1, 2))).admit("c", 1, 2, 3, 4, 5, 6, 7, 8)
    return hand.apply(Alloc("c", (9,)))


def _cached_and_held() -> Hand:
    """Return one in which a holds them."""
    return states.cached().admit("c", 1, 3, 4, 5, 6, 7, 8)


def _uncaching() -> Iterator[Probe]:
    yield on_event(
        Rule.NOT_CACHED, "uncache-private", states.cached, lambda h: Uncache((2,)), lambda h: Uncache((1,))
    )
