"""When reclamation is worth an attempt.

Source: paper 3.3.1, 3.3.2.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vtoken_ref.events import Strategy
from vtoken_ref.table import TokenTable

DEFAULT_THETA_F = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class ReclaimConfig:
    """How eagerly and how to reclaim.

    Attributes:
        strategy: ``in_place``, ``out_of_place`` or ``recycle``.
        theta_f: waste F must be above this; exact, compared as integers.
        low_watermark: reclamation sets in when at most this many blocks are free; None for always.
        high_watermark: it goes on until at least this many are free; None for the low one plus 1.
        check_interval: steps from one check to the next.
        max_attempts: the most plans and deferrals of one check; None for no limit.
        max_source_blocks: B, the most source blocks of one plan; None for no bound.
        headroom: the most blocks leased at one time, inside the same budget.

    """

    strategy: Strategy = "in_place"
    theta_f: Fraction = DEFAULT_THETA_F
    low_watermark: int | None = None
    high_watermark: int | None = None
    check_interval: int = 1
    max_attempts: int | None = None
    max_source_blocks: int | None = None
    headroom: int = 0

    @property
    def plan_strategy(self) -> Literal["in_place", "out_of_place"]:
        """The strategy of plans: a run that recycles packs in place what it cannot recycle."""
        return "out_of_place" if self.strategy == "out_of_place" else "in_place"


@dataclass(slots=True)
class ReclaimGate:
    """When attempts may be made at all: checks amortised over steps, attempts rate-limited.

    Attributes:
        is_pressed: free blocks fell to the low watermark and are not yet back at the high one.
        is_check: whether this step is one in which attempts are made.
        num_attempts: plans and deferrals of this step.

    Source: paper 3.3.1.
    Differs from source: the paper names amortisation and a rate limit without saying which; the two
        watermarks are ours.
    """

    is_pressed: bool = False
    is_check: bool = False
    num_attempts: int = 0

    def begin_step(self, config: ReclaimConfig, step: int, num_free_blocks: int) -> None:
        """Take in the free blocks at the begin of a step."""
        low, high = config.low_watermark, config.high_watermark
        if low is None or num_free_blocks <= low:
            self.is_pressed = True
        elif num_free_blocks >= (low + 1 if high is None else high):
            self.is_pressed = False
        self.is_check = step % config.check_interval == 0
        self.num_attempts = 0

    def may_attempt(self, config: ReclaimConfig) -> bool:
        """Tell whether one more attempt is within the rate limit."""
        return self.is_check and (config.max_attempts is None or self.num_attempts < config.max_attempts)


def parse_theta_f(text: str) -> Fraction:
    """Return a waste threshold written as ``1/4`` or ``0.25``.

    Raises:
        ValueError: no number of 0 or more and below 1; the message is a sentence.

    """
    try:
        theta_f = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"theta_f {text!r} is no fraction; give one such as 1/4") from error
    if not 0 <= theta_f < 1:
        raise ValueError(f"theta_f {text} is outside 0 to 1; give a fraction such as 1/4")
    return theta_f


def eligible(table: TokenTable, req_id: str, config: ReclaimConfig) -> bool:
    """Tell whether a plan for this request is worth making while blocks are short.

    Waste is above the threshold, and a block's worth of dead tokens is resident, so that at least one
    whole block comes free. That is more than one block to win, and so a hysteresis: a request whose
    live tokens just fill its blocks would otherwise be repacked for every new token.

    Source: paper 3.3.1.
    Differs from source: the paper does not require a whole block to win.
    """
    num_dead = table.length(req_id) - table.num_live(req_id)
    return num_dead >= table.block_size and table.waste() > config.theta_f
