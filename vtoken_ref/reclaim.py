"""When reclamation is worth an attempt.

Source: paper 3.3.1, 3.3.2.
"""

from dataclasses import dataclass
from fractions import Fraction

from vtoken_ref.events import Strategy
from vtoken_ref.table import TokenTable

DEFAULT_THETA_F = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class ReclaimConfig:
    """How eagerly and how to reclaim.

    Attributes:
        strategy: ``in_place`` or ``out_of_place``.
        theta_f: waste F must be above this; exact, compared as integers.
        low_watermark: attempt only when at most this many blocks are free; None for always.
        max_source_blocks: B, the most source blocks of one plan; None for no bound.
        headroom: the most blocks leased at one time, inside the same budget.

    """

    strategy: Strategy = "in_place"
    theta_f: Fraction = DEFAULT_THETA_F
    low_watermark: int | None = None
    max_source_blocks: int | None = None
    headroom: int = 0


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


def eligible(table: TokenTable, req_id: str, config: ReclaimConfig, num_free_blocks: int) -> bool:
    """Tell whether a plan for this request is worth making now.

    Waste is above the threshold, free blocks are near the low watermark, and a block's worth of dead
    tokens is resident, so that at least one whole block comes free. That is more than one block to
    win, and so the hysteresis: a request whose live tokens just fill its blocks would otherwise be
    repacked for every new token.

    Source: paper 3.3.1.
    Differs from source: the paper has no hysteresis and does not require a whole block to win.
    """
    num_dead = table.length(req_id) - table.num_live(req_id)
    return (
        (config.low_watermark is None or num_free_blocks <= config.low_watermark)
        and num_dead >= table.block_size
        and table.waste() > config.theta_f
    )
