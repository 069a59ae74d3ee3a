"""What an eviction policy sees and gives back.

Source: paper 4 (a policy defines only SelectVictims).
"""

import copy
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from vtoken_ref.rules import Rule, VTokenError


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


def ask(policy: Policy, view: RequestView, twice: bool = False) -> tuple[int, ...]:
    """Return the victims that a policy selects, held to the contract of a policy.

    Args:
        policy: anyone's.
        view: what it may see.
        twice: ask again with a copy of the state, to see that the answer is the same.

    Raises:
        VTokenError: policy-raised, policy-victims, policy-count, policy-changes.

    """
    again = replace(view, state=copy.deepcopy(view.state)) if twice else None
    victims = _select(policy, view)
    candidates = {token_id for token_id in view.live_ids if token_id not in view.protected}
    for index, token_id in enumerate(victims):
        if type(token_id) is not int or token_id not in candidates or token_id in victims[:index]:
            raise VTokenError(
                Rule.POLICY_VICTIMS,
                f"{type(policy).__name__} returned {token_id!r}, which is not the id of one more live token",
            )
    wanted = min(view.num_excess, len(candidates))
    if len(victims) != wanted:
        raise VTokenError(
            Rule.POLICY_COUNT,
            f"{type(policy).__name__} returned {len(victims)} victims where {wanted} were due",
        )
    if again is not None and _select(policy, again) != victims:
        raise VTokenError(
            Rule.POLICY_CHANGES, f"{type(policy).__name__} answered the same view in two different ways"
        )
    return victims


def _select(policy: Policy, view: RequestView) -> tuple[int, ...]:
    try:
        return tuple(policy.select_victims(view))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise VTokenError(
            Rule.POLICY_RAISED,
            f"{type(policy).__name__} raised {type(error).__name__}: {error}"
            f" (line {frame.lineno}, in {frame.name})",
        ) from error
