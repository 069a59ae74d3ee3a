"""Runs of the packed view at async depth 0, by every strategy."""

from fractions import Fraction

from spec.machines.rules import Run, configured
from vtoken_ref.reclaim import ReclaimConfig

GATED = ReclaimConfig("in_place", Fraction(1, 4), low_watermark=4, high_watermark=5, max_attempts=1)


class Packed(Run):
    """Dead tokens stay visible until they are reclaimed."""

    configs = (
        configured(2, range(3, 15), headroom=2),
        configured(2, range(10), headroom=0, strategy="in_place"),
        configured(2, range(12), headroom=2, strategy="out_of_place"),
        configured(3, range(8), headroom=1, strategy="recycle"),
        configured(1, range(18), headroom=3),
        configured(2, range(9), headroom=1, reclaim=GATED),
    )
