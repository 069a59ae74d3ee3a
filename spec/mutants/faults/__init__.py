"""The seeded faults, by what they spoil; ``FAULTS`` are all of them."""

from spec.mutants.faults import blocks, plans, steps, tokens
from spec.mutants.mutant import Fault

FAULTS: tuple[Fault, ...] = (*blocks.FAULTS, *tokens.FAULTS, *plans.FAULTS, *steps.FAULTS)

MATRIX = frozenset(
    (
        *("alloc-not-held", "share-still-free", "share-replaces-holders", "release-keeps-holder"),
        *("release-fences-shared", "adopt-keeps-lease", "free-keeps-fence", "cached-not-protected"),
        *("no-fence", "fence-forgets-copies", "headroom-one-more", "no-backpressure"),
        *("evict-keeps-count", "move-leaves-copy", "move-keeps-slot", "no-retreat"),
        *("occupied-destination", "replace-keeps-slots", "recycle-live", "write-into-shared"),
        *("cache-after-eviction", "budget-one-more"),
        *("plan-no-gain", "plan-destination-count", "plan-unleased", "plan-shared-source"),
        *("plan-not-packed", "plan-loses-token", "plan-any-order", "plan-over-forward"),
        *("commit-before-copy", "forward-during-plan", "copy-over-read", "copy-order"),
        *("evict-moving", "evict-in-forward", "release-source"),
        *("epoch-of-request", "epoch-of-worker", "epoch-not-bumped", "epoch-of-report"),
        *("count-survives-preemption", "released-without-fence", "capacity-by-tokens", "sync-once-more"),
        *("report-drops-appended", "report-absolute-length", "report-releases-early"),
        *("told-twice", "tail-given-up"),
    )
)
"""Fifty of every kind, which are shown to every checker; the others only until the first one notices."""

__all__ = ["FAULTS", "MATRIX"]
