"""The oracle: one masked forward of the same model in transformers says what each output had to be.

Keys are cached after rotary embedding at their logical positions, so an engine that evicts, moves
and reads correctly computes what one forward over the whole sequence computes under the mask
``M[q, k] = k <= q and k visible when q was computed``. Nothing of vToken is needed to believe it.

Source: design 10.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.history import EpochHistory
from conformance.model import quiet_transformers

TIE_GAPS = {"float32": 2e-3, "bfloat16": 1.0, "float16": 0.1}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An output that the oracle contradicts: its best token beats the sampled one by ``gap``, in logits."""

    req_id: str
    epoch: int
    token_id: int
    expected: int
    sampled: int
    gap: float


@dataclass(slots=True)
class OracleResult:
    """How many outputs agree; ``tokens == matched + ties + mismatched``.

    ``largest_tie_gap`` is the largest gap that was excused as a tie, ``smallest_top2_gap`` the closest
    that the two best logits of any output came: below the tie gap an output proves little.
    """

    tokens: int = 0
    matched: int = 0
    ties: int = 0
    mismatched: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    largest_tie_gap: float | None = None
    smallest_top2_gap: float | None = None
