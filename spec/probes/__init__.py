"""Probes: for each rule, an event that it forbids, and the nearest event that it allows.

``section.run`` is the section. A probe says more than that something is refused: by which rule, and
that nothing has changed.
"""
