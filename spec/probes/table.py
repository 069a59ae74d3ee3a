"""The token table by itself: where each token is."""

from collections.abc import Iterator

from spec.probes.probe import Arguments, Probe, on_method
from vtoken_ref.events import Move
from vtoken_ref.rules import Rule
from vtoken_ref.table import TokenTable


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    yield from _naming()
    yield from _growing()
    yield from _evicting()
    yield from _moving()
    yield from _replacing()
    yield Probe(
        "ValueError/block-size",
        ValueError,
        object,
        lambda _: lambda: TokenTable(0),
        (lambda _: lambda: TokenTable(1),),
    )


def _table() -> TokenTable:
    """Return a table with blocks of four slots.

    Request a has ten tokens in blocks 0, 1 and 2, of which 1, 2, 6 are dead; b has five in blocks 0, 3,
    the first four of them shared, of which 3 is dead.
    """
    table = TokenTable(4)
    table.sync_new_tokens("a", [0, 1, 2], 10)
    table.sync_new_tokens("b", [0, 3], 5)
    for token_id in (1, 2, 6):
        table.evict_token("a", token_id)
    table.evict_token("b", 3)
    return table


def _all_dead_of_b() -> TokenTable:
    """Return that table after the last token of b, in block 3, died."""
    table = _table()
    table.evict_token("b", 4)
    return table


def _retreated() -> TokenTable:
    """Return that table after the last two tokens of a died and its length retreated."""
    table = _table()
    for token_id in (8, 9):
        table.evict_token("a", token_id)
    table.release_blocks("a", [2])
    return table


def _on(rule: Rule, case: str, forbidden: Arguments, *legal: Arguments) -> Probe:
    return on_method(rule, f"table-{case}", _table, forbidden, *legal)


def _naming() -> Iterator[Probe]:
    calls: tuple[Arguments, ...] = (
        ("slot", "a", 0),
        ("evict_token", "a", 0),
        ("apply_moves", "a", ()),
        ("release_blocks", "a", ()),
        ("recycle_slot", "a", 1),
        ("replace_block", "a", 1, 7),
        ("drop", "a"),
        ("live_tokens", "a"),
        ("check_live", "a", 0, Rule.DEAD_MOVE),
    )
    for name, _, *rest in calls:
        yield _on(Rule.UNKNOWN_REQUEST, name, (name, "x", *rest), (name, "a", *rest))
    for token_id in (-1, 10):
        yield _on(Rule.UNKNOWN_TOKEN, f"slot-{token_id}", ("slot", "a", token_id), ("slot", "a", 1))
        evicted = ("evict_token", "a", token_id)
        yield _on(Rule.UNKNOWN_TOKEN, f"evict-{token_id}", evicted, ("evict_token", "a", 9))
    yield on_method(
        Rule.UNKNOWN_TOKEN, "table-slot-reclaimed", _retreated, ("slot", "a", 9), ("slot", "a", 6)
    )


def _growing() -> Iterator[Probe]:
    name = "sync_new_tokens"
    grown = (name, "a", [0, 1, 2], 11)
    yield _on(Rule.LENGTH_SHRANK, "sync", (name, "a", [0, 1, 2], 9), (name, "a", [0, 1, 2], 10))
    for case, blocks in {
        "other": [0, 2, 1],
        "shorter": [0, 1],
        "twice": [0, 1, 2, 2],
        "below": [0, 1, 2, -1],
    }.items():
        yield _on(Rule.BLOCK_LIST_CHANGED, f"sync-{case}", (name, "a", blocks, 10), grown)
    yield _on(Rule.BLOCK_LIST_CHANGED, "sync-below-first", (name, "c", [-1], 1), (name, "c", [], 0))
    yield _on(Rule.BLOCK_LIST_SHORT, "sync", (name, "a", [0, 1, 2], 13), (name, "a", [0, 1, 2, 7], 13))
    yield _on(Rule.BLOCK_LIST_SHORT, "sync-full", (name, "a", [0, 1, 2], 13), (name, "a", [0, 1, 2], 12))
    yield _on(Rule.SLOT_OCCUPIED, "sync-other", (name, "b", [0, 3, 1], 10), (name, "b", [0, 3, 7], 10))
    yield _on(Rule.SLOT_OCCUPIED, "sync-new", (name, "c", [3], 1), (name, "c", [0], 3))
    dead = (name, "c", [0], 4)
    yield on_method(
        Rule.SLOT_OCCUPIED, "table-sync-dead", _all_dead_of_b, (name, "c", [1], 1), dead, (name, "c", [3], 1)
    )


def _evicting() -> Iterator[Probe]:
    yield _on(Rule.EVICTED_TWICE, "evict", ("evict_token", "a", 1), ("evict_token", "a", 3))
    dead = ("check_live", "a", 1, Rule.DEAD_MOVE)
    yield _on(Rule.DEAD_MOVE, "check-live", dead, ("check_live", "a", 0, Rule.DEAD_MOVE))
    yield _on(Rule.RECYCLE, "live", ("recycle_slot", "a", 3), ("recycle_slot", "a", 2))
    yield _on(Rule.RECYCLE, "unwritten", ("recycle_slot", "a", 10), ("recycle_slot", "a", 6))
    yield _on(Rule.RECYCLE, "outside", ("recycle_slot", "a", 15), ("recycle_slot", "a", 1))


def _moving() -> Iterator[Probe]:
    def refused(rule: Rule, case: str, *moves: Move, blocks: list[int] | None = None) -> Probe:
        legal = ("apply_moves", "a", (Move(7, 7, 6), Move(9, 9, 7)))
        return _on(rule, f"move-{case}", ("apply_moves", "a", moves, blocks), legal)

    yield refused(Rule.UNKNOWN_TOKEN, "unknown", Move(10, 9, 6))
    yield refused(Rule.UNKNOWN_TOKEN, "below", Move(-1, 9, 6))
    yield refused(Rule.DEAD_MOVE, "dead", Move(6, 6, 11))
    yield refused(Rule.STALE_SOURCE, "elsewhere", Move(9, 8, 6))
    yield refused(Rule.SLOT_USED_TWICE, "one-token", Move(9, 9, 6), Move(9, 9, 11))
    yield refused(Rule.SLOT_USED_TWICE, "one-place", Move(8, 8, 6), Move(9, 9, 6))
    yield refused(Rule.SLOT_OUTSIDE, "outside", Move(9, 9, 28))
    yield refused(Rule.SLOT_OUTSIDE, "below", Move(9, 9, -1))
    yield refused(Rule.SLOT_OUTSIDE, "left", Move(9, 9, 8), Move(8, 8, 6), blocks=[0, 1])
    yield refused(Rule.SLOT_OCCUPIED, "own", Move(9, 9, 5))
    yield refused(Rule.SLOT_OCCUPIED, "of-another", Move(9, 9, 1))
    yield refused(Rule.BLOCK_LIST_CHANGED, "twice", blocks=[0, 1, 2, 2])
    yield refused(Rule.BLOCK_LIST_CHANGED, "below", blocks=[0, 1, 2, -1])
    yield refused(Rule.BLOCK_STILL_LIVE, "staying", Move(9, 9, 6), blocks=[0, 1])
    yield _on(
        Rule.BLOCK_STILL_LIVE,
        "all-gone",
        ("release_blocks", "a", [2]),
        ("apply_moves", "a", (Move(8, 8, 6), Move(9, 9, 28)), [0, 1, 7]),
        ("apply_moves", "a", (Move(4, 4, 9), Move(9, 9, 4))),
    )
    yield on_method(
        Rule.BLOCK_STILL_LIVE,
        "table-holes",
        _with_hole,
        ("release_blocks", "a", [0]),
        ("release_blocks", "a", [1]),
    )


def _with_hole() -> TokenTable:
    """Return a table where a's block 1 has only holes and dead tokens."""
    table = TokenTable(4)
    table.sync_new_tokens("a", [0, 1, 2], 12)
    for token_id in (1, 2, 5, 6, 7):
        table.evict_token("a", token_id)
    table.apply_moves("a", (Move(4, 4, 1),))
    return table


def _replacing() -> Iterator[Probe]:
    legal = ("replace_block", "a", 1, 7)
    yield _on(Rule.SLOT_OUTSIDE, "replace", ("replace_block", "a", 3, 7), legal)
    yield _on(Rule.BLOCK_LIST_CHANGED, "replace-twice", ("replace_block", "a", 1, 2), legal)
    yield _on(Rule.BLOCK_LIST_CHANGED, "replace-below", ("replace_block", "a", 1, -1), legal)
