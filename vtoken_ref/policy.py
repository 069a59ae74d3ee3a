"""What an eviction policy sees and gives back.

Source: paper 4 (a policy defines only SelectVictims); design 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as a policy may see it: token ids and numbers about them, never blocks or slots.

    Attributes:
        req_key: stable name of the request; the same request has it again in another run.
        live_ids: ids of the live tokens, ascending. A token's id is its position.
        num_tokens: tokens computed so far, evicted ones included.
        budget: the most tokens to keep.
        protected: ids that may not be evicted now.
        scores: importance by token id, for policies that use it.
        state: the policy's own memory of this request, empty at first and after preemption.

    """

    req_key: str
    live_ids: Sequence[int]
    num_tokens: int
    budget: int
    protected: frozenset[int] = frozenset()
    scores: Mapping[int, float] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def num_excess(self) -> int:
        """How many live tokens are above the budget."""
        return max(len(self.live_ids) - self.budget, 0)


class Policy(Protocol):
    """An eviction policy."""

    @property
    def min_budget(self) -> int:
        """The smallest budget that leaves room for what the policy never evicts."""
        ...

    def select_victims(self, view: RequestView) -> Sequence[int]:
        """Return ``view.num_excess`` distinct live, unprotected ids; ties go to the lowest id."""
        ...
