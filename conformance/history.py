"""What one epoch of one request computed and could see, as a trace tells it: the oracle's input."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class QuerySpan:
    """Tokens computed together by one forward, and what attention could read then.

    Token ids ``first_token_id .. first_token_id + num_query - 1`` were computed; each could read
    the ids of ``visible`` (ascending, the query tokens among them) that are not above its own.
    """

    first_token_id: int
    num_query: int
    visible: tuple[int, ...]


@dataclass(slots=True)
class Sampled:
    """``vocab_id`` was sampled from the logits of token ``token_id``."""

    token_id: int
    vocab_id: int


@dataclass(slots=True)
class EpochHistory:
    """One epoch: ``vocab_ids`` by token id, its forwards in order, and what was sampled from them."""

    req_id: str
    epoch: int
    vocab_ids: list[int] = field(default_factory=list)
    spans: list[QuerySpan] = field(default_factory=list)
    outputs: list[Sampled] = field(default_factory=list)
