"""Two sizes of the same system, for whatever runs the spec: checkers, state machines, examples.

``minimal`` is as small as it can be and still have a block to win, a block shared, and a request that has
to wait: a solver or a search gets through it. ``default`` is what a person would try by hand.
"""

from dataclasses import dataclass

from vtoken_ref.machine import MachineConfig


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration and the load on it.

    Attributes:
        config: of the machine; a checker varies view, strategy and async depth where it checks all.
        num_requests: requests that enter.
        num_prompt_tokens: of each request.
        num_outputs: tokens that each request generates.
        budget: the most live tokens that a request keeps while it generates.

    """

    config: MachineConfig
    num_requests: int
    num_prompt_tokens: int
    num_outputs: int
    budget: int | None


PROFILES: dict[str, Profile] = {
    # Two slots a block: a block is partly live in one way only. A request fills two blocks and has one
    # to win; the fourth block is headroom, so the second request waits for what the first one wins.
    "minimal": Profile(
        MachineConfig(block_size=2, block_ids=range(4), headroom=1),
        num_requests=2,
        num_prompt_tokens=3,
        num_outputs=2,
        budget=2,
    ),
    # Four slots a block, and blocks for two and a half of three requests.
    "default": Profile(
        MachineConfig(block_size=4, block_ids=range(12), headroom=3),
        num_requests=3,
        num_prompt_tokens=8,
        num_outputs=8,
        budget=6,
    ),
}
"""The profiles by name."""
