"""Faults put into the spec on purpose: a checker that misses all of them is no checker.

``engine.run`` is the section. This package imports nothing of the spec by itself, because a child
process imports the changed one.
"""
