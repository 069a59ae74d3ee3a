"""The eviction policies in the box, one a file, by the names that ``--policy`` takes."""

from vtoken_ref.policies.random_eviction import RandomEviction
from vtoken_ref.policies.sliding_window import SlidingWindow
from vtoken_ref.policies.streaming_llm import StreamingLLM

__all__ = ["RandomEviction", "SlidingWindow", "StreamingLLM"]
