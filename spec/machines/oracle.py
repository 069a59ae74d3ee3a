"""What is true of the tokens of each request, said naively: lists, no blocks, no slots.

A machine of this folder tells the oracle what a run has done; the oracle says which tokens are there
and which attention must see. Nothing here uses the spec's table, planner or digests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Epoch = tuple[str, int]
"""A request in one of its epochs."""


class Disagreement(Exception):
    """What happened is not what the oracle says must happen; one sentence."""


@dataclass(slots=True)
class Token:
    """A token that has been computed: its position, what its KV is, whether the policy keeps it."""

    token_id: int
    content: str
    is_live: bool = True


@dataclass(slots=True)
class Tokens:
    """One epoch of a request.

    Attributes:
        tokens: in the order in which attention sees them.
        vocab_ids: of all tokens computed, by position.
        is_pure: whether no token was evicted so far.
        is_recycled: whether a token was ever written over a dead one, so that order is lost.

    """

    tokens: list[Token] = field(default_factory=list)
    vocab_ids: list[int] = field(default_factory=list)
    is_pure: bool = True
    is_recycled: bool = False


class Oracle:
    """The tokens of every epoch of every request.

    Args:
        is_exact: whether a dead token leaves the visible set at once; otherwise when it is reclaimed.

    """

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact
        self.epochs: dict[Epoch, Tokens] = {}
        self.vocab_ids: dict[str, dict[int, int]] = {}
        self.stands_for: dict[str, tuple[tuple[int, ...], bool]] = {}
        """By content: the vocabulary ids up to its token, and whether all of them were visible."""

    def visible(self, epoch: Epoch) -> list[tuple[int, str]]:
        """Return the tokens that attention must see, each with its content, in order."""
        tokens = self.epochs[epoch].tokens
        if self.is_exact:
            return sorted((token.token_id, token.content) for token in tokens if token.is_live)
        return [(token.token_id, token.content) for token in tokens]

    def live(self, epoch: Epoch) -> list[tuple[int, str]]:
        """Return the tokens that the policy keeps, in logical order."""
        return sorted((token.token_id, token.content) for token in self.epochs[epoch].tokens if token.is_live)

    def dead(self, epoch: Epoch) -> list[int]:
        """Return the tokens that were evicted and not yet reclaimed."""
        return [token.token_id for token in self.epochs[epoch].tokens if not token.is_live]

    def begin(self, epoch: Epoch) -> None:
        """A request starts, or starts over, with no token."""
        self.epochs[epoch] = Tokens()
        self.vocab_ids.setdefault(epoch[0], {})

    def write(
        self,
        epoch: Epoch,
        first: int,
        vocab_ids: Sequence[int],
        contents: Sequence[str],
        over: int | None = None,
    ) -> None:
        """A forward has computed the next tokens, or one of them in the place of a dead token."""
        self._append(epoch, first, vocab_ids)
        tokens = self.epochs[epoch]
        new = [Token(first + index, content) for index, content in enumerate(contents)]
        for token in new:
            if token.content in self.stands_for:
                raise Disagreement(f"two tokens were computed with the content {token.content}")
            prefix = tuple(tokens.vocab_ids[: token.token_id + 1])
            self.stands_for[token.content] = (prefix, tokens.is_pure)
        if over is None:
            tokens.tokens += new
            return
        place = next(index for index, token in enumerate(tokens.tokens) if token.token_id == over)
        if tokens.tokens[place].is_live or len(new) != 1:
            raise Disagreement(f"live token {over} of {epoch} is written over")
        tokens.tokens[place : place + 1] = new
        tokens.is_recycled = True

    def share(self, epoch: Epoch, vocab_ids: Sequence[int], contents: Sequence[str]) -> None:
        """A request gets its first tokens from the prefix cache: their KV must be what it would compute."""
        if self.epochs[epoch].tokens:
            raise Disagreement(f"{epoch} gets first tokens and has some")
        self._append(epoch, 0, vocab_ids)
        for token_id, content in enumerate(contents):
            prefix = tuple(vocab_ids[: token_id + 1])
            if self.stands_for.get(content) != (prefix, True):
                raise Disagreement(f"shared token {token_id} of {epoch} is not the KV of {prefix}")
            self.epochs[epoch].tokens.append(Token(token_id, content))

    def sample(self, req_id: str, position: int, vocab_id: int) -> None:
        """An output is told: the token at that position."""
        if self.vocab_ids[req_id].setdefault(position, vocab_id) != vocab_id:
            raise Disagreement(f"output {position} of {req_id} is {vocab_id}, and was computed as another")

    def _append(self, epoch: Epoch, first: int, vocab_ids: Sequence[int]) -> None:
        tokens, known = self.epochs[epoch], self.vocab_ids[epoch[0]]
        if first != len(tokens.vocab_ids):
            raise Disagreement(f"token {first} of {epoch} is computed after {len(tokens.vocab_ids)} tokens")
        for position, vocab_id in enumerate(vocab_ids, first):
            if known.setdefault(position, vocab_id) != vocab_id:
                raise Disagreement(f"token {position} of {epoch} is computed as {vocab_id}")
        tokens.vocab_ids += vocab_ids

    def evict(self, epoch: Epoch, token_ids: Sequence[int]) -> None:
        """The policy drops tokens; each was there and is gone."""
        kept = {token.token_id: token for token in self.epochs[epoch].tokens if token.is_live}
        for token_id in token_ids:
            if token_id not in kept:
                raise Disagreement(f"token {token_id} of {epoch} is evicted and is not there")
            kept.pop(token_id).is_live = False
            self.epochs[epoch].is_pure = False

    def lay_out(self, epoch: Epoch, token_ids: Sequence[int]) -> None:
        """The tokens were moved or cut: these are left, in this order; only dead ones may be missing."""
        tokens = self.epochs[epoch]
        before = {token.token_id: token for token in tokens.tokens}
        lost = [t.token_id for t in tokens.tokens if t.is_live and t.token_id not in token_ids]
        if lost or len(set(token_ids)) != len(token_ids) or not set(token_ids) <= before.keys():
            raise Disagreement(f"{epoch} had {list(before)} and is left with {list(token_ids)}")
        if not tokens.is_recycled and list(token_ids) != sorted(token_ids):
            raise Disagreement(f"the tokens of {epoch} are out of order: {list(token_ids)}")
        tokens.tokens = [before[token_id] for token_id in token_ids]
