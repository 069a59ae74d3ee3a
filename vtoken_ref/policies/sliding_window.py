"""Sliding window: keep only the most recent tokens."""

from collections.abc import Sequence

from vtoken_ref.policy import RequestView


class SlidingWindow:
    """Evict the oldest tokens.

    Source: paper 2.2.
    """

    min_budget = 1

    def select_victims(self, view: RequestView) -> Sequence[int]:
        """Return the oldest live tokens that are not protected."""
        candidates = [token_id for token_id in view.live_ids if token_id not in view.protected]
        return candidates[: view.num_excess]
