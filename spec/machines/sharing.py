"""Runs with a prefix cache: requests that begin alike share blocks, and copy before they write."""

from hypothesis.stateful import precondition

from spec.machines.base import PICK
from spec.machines.rules import Run, configured
from spec.machines.tally import rule

NUM_COMMON = 2


class Sharing(Run):
    """Cache, share, uncache, copy on write; at depth 0 and 1, in both views."""

    configs = (
        configured(2, range(12), headroom=2),
        configured(2, range(12), headroom=2, view="indirect"),
        configured(2, range(12), headroom=2, async_depth=1, max_query=8),
        configured(1, range(16), headroom=2),
        configured(3, range(8), headroom=1, strategy="recycle"),
    )

    def prompt_of(self, index: int, length: int) -> tuple[int, ...]:
        """Return a prompt that begins as every other one; some differ from there."""
        own = 100 * index + 100 if index % 3 == 1 else 500
        return (*range(400, 400 + min(length, NUM_COMMON)), *range(own, own + length - NUM_COMMON))

    def enter(self) -> None:
        """Let one request enter; the others come when there is something to share."""
        self.offer("admits", 0)

    def make_ready(self, pick: int) -> None:
        """Let one request more enter, sometimes, before everybody gets blocks."""
        if pick & 1:
            self.offer("admits", pick)
        if pick & 2:
            self.tempt("cached", pick, pick >> 2, pick >> 3)
        for req_id in self.machine.requests:
            self.keep_budget(req_id, pick)
            while self.runtime.needs_block(req_id) and self.give_block(req_id, pick):
                pass

    def give_block(self, req_id: str, pick: int) -> bool:
        """Give a request cached blocks first, if some hold what it begins with; sometimes without a look."""
        if pick & 12 == 0:
            self.tempt("cached", pick, pick >> 4, pick >> 3)
        return self.try_any("shares", req_id, pick) or super().give_block(req_id, pick)

    def decide(self, pick: int, mask: int) -> None:
        """Cache blocks sometimes before they are evicted from."""
        if mask & 128:
            self.offer("caches", pick)
        super().decide(pick, mask)

    @precondition(lambda self: self.found("caches"))
    @rule(pick=PICK)
    def cache(self, pick: int) -> None:
        """Blocks of a request become shareable."""
        self.offer("caches", pick)

    @precondition(lambda self: self.found("uncaches"))
    @rule(pick=PICK)
    def uncache(self, pick: int) -> None:
        """A block leaves the cache."""
        self.offer("uncaches", pick)

    @precondition(lambda self: self.found("shares"))
    @rule(pick=PICK)
    def share(self, pick: int) -> None:
        """A request gets its first tokens from the cache."""
        self.offer("shares", pick)
