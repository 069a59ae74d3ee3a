"""Runs with a prefix cache: requests that begin alike share blocks, and copy before they write."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from spec.machines.base import PICK
from spec.machines.rules import Run
from vtoken_ref.machine import MachineConfig


def common_prompt(index: int, length: int) -> tuple[int, ...]:
    """Return a prompt of which the first tokens are those of every other one; odd ones differ from there."""
    own = 100 * index + 100 if index % 2 else 500
    return tuple(range(400, 400 + min(length, 4))) + tuple(range(own, own + length - 4))


class Sharing(Run):
    """Cache, share, uncache, copy on write; at depth 0 and 1, in both views."""

    configs = (
        MachineConfig(2, range(12), headroom=2),
        MachineConfig(2, range(12), headroom=2, view="indirect"),
        MachineConfig(2, range(12), headroom=2, async_depth=1, max_query=8),
        MachineConfig(1, range(16), headroom=2),
        MachineConfig(3, range(8), headroom=1, strategy="recycle"),
    )
    prompt_of = staticmethod(common_prompt)

    @precondition(lambda self: self.found("caches"))
    @rule(pick=PICK)
    def cache(self, pick: int) -> None:
        """Blocks of a request become shareable."""
        self.fire("cache", "caches", pick)

    @precondition(lambda self: self.found("uncaches"))
    @rule(pick=PICK)
    def uncache(self, pick: int) -> None:
        """A block leaves the cache."""
        self.fire("uncache", "uncaches", pick)

    @precondition(lambda self: self.found("shares"))
    @rule(pick=PICK)
    def share(self, pick: int) -> None:
        """A request gets its first tokens from the cache."""
        self.fire("share", "shares", pick)
