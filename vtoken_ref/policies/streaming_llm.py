"""StreamingLLM: keep the first tokens (attention sinks) and the most recent ones."""

from collections.abc import Sequence

from vtoken_ref.policy import RequestView


class StreamingLLM:
    """Evict the oldest tokens after the sinks.

    Args:
        num_sinks: tokens at the start that are never evicted.

    Source: Xiao et al., "Efficient streaming language models with attention sinks" (2023).
    Differs from source: positions stay the logical ones; the paper re-numbers them in the cache.

    """

    def __init__(self, num_sinks: int = 4) -> None:
        if num_sinks < 0:
            raise ValueError(f"num_sinks must be at least 0, not {num_sinks}")
        self.num_sinks = num_sinks

    @property
    def min_budget(self) -> int:
        """The sinks and one recent token."""
        return self.num_sinks + 1

    def select_victims(self, view: RequestView) -> Sequence[int]:
        """Return the oldest live tokens that are neither sinks nor protected."""
        candidates = [
            token_id
            for token_id in view.live_ids
            if token_id >= self.num_sinks and token_id not in view.protected
        ]
        return candidates[: view.num_excess]
