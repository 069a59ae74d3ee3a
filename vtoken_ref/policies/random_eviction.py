"""Random: evict any tokens, to show the worst scatter that a policy can leave behind."""

import random
from collections.abc import Sequence

from vtoken_ref.policy import RequestView


class RandomEviction:
    """Evict a uniform sample of the live tokens, the newest one apart.

    The same seed, request key and number of tokens give the same victims, whatever else runs.

    Args:
        seed: any integer.

    Source: paper 2.2.

    """

    min_budget = 1

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def select_victims(self, view: RequestView) -> Sequence[int]:
        """Return a seeded sample of the tokens that are neither the newest nor protected."""
        newest = view.num_tokens - 1
        candidates = [
            token_id for token_id in view.live_ids if token_id != newest and token_id not in view.protected
        ]
        generator = random.Random(f"{self.seed}/{view.req_key}/{view.num_tokens}")
        return sorted(generator.sample(candidates, min(view.num_excess, len(candidates))))
