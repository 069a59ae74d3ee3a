"""Exhaustive search of small configurations, breadth first, over the executable spec itself.

``configurations`` says what is searched, ``choices`` what may happen next, ``canonical`` which states are
the same, ``judge`` and ``progress`` what must hold, ``search`` how one is searched, ``section`` all of them.
"""

from spec.explore.section import covers, run

__all__ = ["covers", "run"]
