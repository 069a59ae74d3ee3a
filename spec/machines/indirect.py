"""Runs of the paper's view at async depth 0: attention takes any slots, copies go on over forwards."""

from spec.machines.rules import Overtaking, configured


class Indirect(Overtaking):
    """A dead token leaves the visible set at once."""

    configs = (
        configured(3, range(10), headroom=3, view="indirect", strategy="out_of_place"),
        configured(2, range(3, 14), headroom=2, view="indirect"),
        configured(4, range(8), headroom=2, view="indirect", strategy="out_of_place"),
        configured(3, range(10), headroom=2, view="indirect"),
        configured(2, range(10), headroom=1, view="indirect", strategy="recycle"),
    )
