"""The token table: for every request, which slot each token is in and whether it is live.

Source: paper 3.2, 3.5 (I2).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from vtoken_ref.events import Move
from vtoken_ref.rules import Rule, VTokenError

NO_SLOT = -1
HOLE = -1


def _no_block(block_id: int) -> bool:
    return False


@dataclass(slots=True)
class _Request:
    """Placement of one request. ``rows[block][offset]`` is the token there, or HOLE."""

    block_ids: list[int] = field(default_factory=list)
    num_written_blocks: int = 0
    rows: dict[int, list[int]] = field(default_factory=dict)
    live_in_block: dict[int, int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    live: bytearray = field(default_factory=bytearray)
    num_live: int = 0

    def copy(self) -> "_Request":
        return _Request(
            list(self.block_ids),
            self.num_written_blocks,
            {block_id: list(row) for block_id, row in self.rows.items()},
            dict(self.live_in_block),
            list(self.slots),
            bytearray(self.live),
            self.num_live,
        )


class TokenTable:
    """Where each token of each request is.

    A token is live until it is evicted. A dead token keeps its slot until it is reclaimed: another
    token moves there, its block leaves the request, or the resident length retreats below it. The
    tokens of a request lie in its block list in writing order; the *resident length* counts the
    slots up to the last written one, and after moves or a release it retreats to just after the last
    live token, but not into a protected block, where nothing may be written. Two requests that list
    one block share it: its slots hold the same tokens of both, and neither writes over the other. Every
    operation checks everything first, then changes; an illegal call raises and changes nothing. No
    operation scans all tokens but those that list them.

    Args:
        block_size: slots per block, S.

    Source: paper 3.2.
    Differs from source: ``apply_moves`` may also replace the request's block list, since moving
        tokens out of place is not one step unless the destinations join the list in it.

    """

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self._requests: dict[str, _Request] = {}
        self._users: dict[int, set[str]] = {}
        self._num_live = 0
        self._num_blocks = 0

    def copy(self) -> "TokenTable":
        """Return an independent table in the same state."""
        other = TokenTable(self.block_size)
        other._requests = {req_id: request.copy() for req_id, request in self._requests.items()}
        other._users = {block_id: set(users) for block_id, users in self._users.items()}
        other._num_live, other._num_blocks = self._num_live, self._num_blocks
        return other

    # Growing, evicting, moving, dropping.

    def sync_new_tokens(self, req_id: str, block_ids: Sequence[int], total_len: int) -> range:
        """Register the tokens up to ``total_len`` in the next slots; return their ids.

        Args:
            req_id: the request; a new one is created.
            block_ids: its whole block list; blocks may only have been appended.
            total_len: tokens computed so far in this epoch, evicted ones included.

        Raises:
            VTokenError: length-shrank, block-list-changed, block-list-short.

        """
        request = self._requests.get(req_id, _Request())
        num_new = total_len - len(request.slots)
        new_slots = self.next_slots(req_id, block_ids, num_new)
        self._check_others(req_id, new_slots, range(len(request.slots), total_len))

        self._requests[req_id] = request
        self._set_block_ids(req_id, request, list(block_ids))
        first = len(request.slots)
        for token_id, slot in enumerate(new_slots, first):
            block_id = slot // self.block_size
            request.rows.setdefault(block_id, []).append(token_id)
            request.live_in_block[block_id] = request.live_in_block.get(block_id, 0) + 1
        request.slots.extend(new_slots)
        request.live.extend(b"\x01" * num_new)
        request.num_live += num_new
        request.num_written_blocks = self._count_written(request)
        self._num_live += num_new
        return range(first, total_len)

    def recycle_slot(self, req_id: str, slot: int) -> int:
        """Register the next token in a dead slot of the request; return its id.

        Raises:
            VTokenError: unknown-request, recycle.

        """
        request = self._get(req_id)
        if slot not in self.dead_slots(req_id):
            raise VTokenError(Rule.RECYCLE, f"slot {slot} is no dead slot of request {req_id}")

        block_id, offset = divmod(slot, self.block_size)
        token_id, row = len(request.slots), request.rows.setdefault(block_id, [])
        row.extend([HOLE] * (offset + 1 - len(row)))
        self._reclaim(request, row[offset])
        row[offset] = token_id
        request.live_in_block[block_id] = request.live_in_block.get(block_id, 0) + 1
        request.slots.append(slot)
        request.live.append(1)
        request.num_live += 1
        self._num_live += 1
        return token_id

    def replace_block(self, req_id: str, old_block: int, new_block: int) -> None:
        """Let every token of one block, dead or live, be at the same offset of another block.

        Raises:
            VTokenError: unknown-request, slot-outside, block-list-changed.

        """
        request = self._get(req_id)
        if old_block not in request.block_ids:
            raise VTokenError(Rule.SLOT_OUTSIDE, f"request {req_id} does not list block {old_block}")
        new_list = [new_block if block_id == old_block else block_id for block_id in request.block_ids]
        _check_block_ids(req_id, new_list)

        row = request.rows.pop(old_block, [])
        request.rows[new_block] = row
        request.live_in_block[new_block] = request.live_in_block.pop(old_block, 0)
        for offset, token_id in enumerate(row):
            if token_id != HOLE:
                request.slots[token_id] = new_block * self.block_size + offset
        self._set_block_ids(req_id, request, new_list)

    def evict_token(self, req_id: str, token_id: int) -> None:
        """Mark a live token dead; it keeps its slot.

        Raises:
            VTokenError: unknown-request, unknown-token, evicted-twice.

        """
        request = self._get(req_id)
        self.check_live(req_id, token_id, Rule.EVICTED_TWICE)

        request.live[token_id] = 0
        request.live_in_block[request.slots[token_id] // self.block_size] -= 1
        request.num_live -= 1
        self._num_live -= 1

    def apply_moves(
        self,
        req_id: str,
        moves: Sequence[Move],
        block_ids: Sequence[int] | None = None,
        is_protected: Callable[[int], bool] = _no_block,
    ) -> None:
        """Switch to a new layout in one step, then retreat to just after the last live token.

        Args:
            req_id: the request.
            moves: live tokens with their present and their new slots.
            block_ids: the request's block list afterwards; None keeps it.
            is_protected: blocks into which the length does not retreat.

        Raises:
            VTokenError: unknown-request, unknown-token, dead-move, stale-source, slot-used-twice,
                slot-outside, slot-occupied, block-list-changed, block-still-live.

        """
        request = self._get(req_id)
        new_list = request.block_ids if block_ids is None else list(block_ids)
        self._check_moves(req_id, request, moves, new_list)

        for move in moves:
            block_id, offset = divmod(move.src_slot, self.block_size)
            request.rows[block_id][offset] = HOLE
            request.live_in_block[block_id] -= 1
        for block_id in set(request.block_ids) - set(new_list):
            for token_id in request.rows.pop(block_id, ()):
                self._reclaim(request, token_id)
            request.live_in_block.pop(block_id, None)
        self._set_block_ids(req_id, request, new_list)
        for move in moves:
            self._place(request, move)
        self._retreat(request, is_protected)

    def release_blocks(
        self, req_id: str, block_ids: Sequence[int], is_protected: Callable[[int], bool] = _no_block
    ) -> bool:
        """Take blocks without a live token out of the request's list; tell whether any was in it.

        Raises:
            VTokenError: unknown-request, block-still-live.

        """
        listed = self._get(req_id).block_ids
        kept = [block_id for block_id in listed if block_id not in block_ids]
        if len(kept) == len(listed):
            return False
        self.apply_moves(req_id, (), kept, is_protected)
        return True

    def drop(self, req_id: str) -> None:
        """Forget a request.

        Raises:
            VTokenError: unknown-request.

        """
        request = self._get(req_id)

        self._set_block_ids(req_id, request, [])
        del self._requests[req_id]
        self._num_live -= request.num_live

    # Looking.

    def __contains__(self, req_id: str) -> bool:
        return req_id in self._requests

    def requests(self) -> list[str]:
        """Return the ids of all requests."""
        return list(self._requests)

    def slot(self, req_id: str, token_id: int) -> int:
        """Return a token's slot, dead or live.

        Raises:
            VTokenError: unknown-request, unknown-token (also when it has been reclaimed).

        """
        request = self._get(req_id)
        if not 0 <= token_id < len(request.slots) or request.slots[token_id] == NO_SLOT:
            raise VTokenError(Rule.UNKNOWN_TOKEN, f"request {req_id} has no token {token_id} in any slot")
        return request.slots[token_id]

    def slot_mapping(self, req_id: str) -> list[int]:
        """Return the slots of the live tokens in logical order."""
        request = self._get(req_id)
        return [slot for slot, live in zip(request.slots, request.live, strict=True) if live]

    def live_tokens(self, req_id: str) -> list[int]:
        """Return the ids of the live tokens, ascending."""
        return [token_id for token_id, live in enumerate(self._get(req_id).live) if live]

    def is_live(self, req_id: str, token_id: int) -> bool:
        """Tell whether a token exists and is live."""
        request = self._get(req_id)
        return 0 <= token_id < len(request.live) and bool(request.live[token_id])

    def live_owner(self, slot: int) -> tuple[str, int] | None:
        """Return a request and its live token in a slot, None when the slot serves no live token."""
        block_id, offset = divmod(slot, self.block_size)
        for req_id in self._users.get(block_id, ()):
            request = self._requests[req_id]
            row = request.rows.get(block_id, ())
            if offset < len(row) and row[offset] != HOLE and request.live[row[offset]]:
                return req_id, row[offset]
        return None

    def resident_tokens(self, req_id: str) -> list[int]:
        """Return the token in each slot up to the resident length, in block-list order, or HOLE."""
        request = self._get(req_id)
        tokens: list[int] = []
        for index, block_id in enumerate(request.block_ids[: request.num_written_blocks]):
            tokens.extend([HOLE] * (index * self.block_size - len(tokens)))
            tokens.extend(request.rows.get(block_id, ()))
        return tokens

    def last_tokens(self, req_id: str, count: int) -> list[int]:
        """Return the last ``count`` of ``resident_tokens``, or all when there are fewer."""
        request = self._get(req_id)
        tokens: list[int] = []
        for block_id in reversed(request.block_ids[: request.num_written_blocks]):
            row = request.rows.get(block_id, [])
            tokens[:0] = [*row, *[HOLE] * (self.block_size - len(row))] if tokens else row
            if len(tokens) >= count:
                break
        return tokens[max(len(tokens) - count, 0) :]

    def block_tokens(self, req_id: str, block_id: int) -> list[int]:
        """Return the tokens written in one block by offset, HOLE where there is none."""
        return list(self._get(req_id).rows.get(block_id, ()))

    def num_tokens(self, req_id: str) -> int:
        """Return the tokens registered in this epoch, evicted ones included."""
        return len(self._get(req_id).slots)

    def num_live(self, req_id: str) -> int:
        """Return the number of live tokens."""
        return self._get(req_id).num_live

    def length(self, req_id: str) -> int:
        """Return the resident length: slots up to the last written one."""
        request = self._get(req_id)
        return self._length(request)

    def length_after(
        self,
        req_id: str,
        moves: Sequence[Move],
        block_ids: Sequence[int],
        is_protected: Callable[[int], bool] = _no_block,
    ) -> int:
        """Return the resident length that ``apply_moves`` would leave; change nothing."""
        preview = TokenTable(self.block_size)
        preview._requests[req_id] = self._get(req_id).copy()
        preview._users = {block_id: {req_id} for block_id in self._get(req_id).block_ids}
        preview.apply_moves(req_id, moves, block_ids, is_protected)
        return preview.length(req_id)

    def dead_slots(self, req_id: str) -> list[int]:
        """Return the slots below the resident length that hold no live token, in block-list order."""
        request = self._get(req_id)
        slots = []
        for index, block_id in enumerate(request.block_ids[: request.num_written_blocks]):
            row = request.rows.get(block_id, [])
            is_last = index == request.num_written_blocks - 1
            for offset in range(len(row) if is_last else self.block_size):
                token_id = row[offset] if offset < len(row) else HOLE
                if token_id == HOLE or not request.live[token_id]:
                    slots.append(block_id * self.block_size + offset)
        return slots

    def block_ids(self, req_id: str) -> list[int]:
        """Return the request's block list."""
        return list(self._get(req_id).block_ids)

    def written_blocks(self, req_id: str) -> list[int]:
        """Return the leading part of the block list that holds tokens."""
        request = self._get(req_id)
        return request.block_ids[: request.num_written_blocks]

    def live_in_block(self, req_id: str, block_id: int) -> int:
        """Return n_b, the live tokens of a request in one block."""
        return self._get(req_id).live_in_block.get(block_id, 0)

    def waste(self, req_id: str | None = None) -> Fraction:
        """Return F = 1 - mean(n_b / S) over the blocks of one request, or of all, exactly.

        Source: paper 2.3.1.
        """
        if req_id is None:
            num_live, num_blocks = self._num_live, self._num_blocks
        else:
            request = self._get(req_id)
            num_live, num_blocks = request.num_live, len(request.block_ids)
        num_slots = num_blocks * self.block_size
        return Fraction(num_slots - num_live, num_slots) if num_slots else Fraction(0)

    def next_slots(self, req_id: str, block_ids: Sequence[int], num_new: int) -> list[int]:
        """Return the slots that the next ``num_new`` tokens will take; change nothing.

        Raises:
            VTokenError: length-shrank, block-list-changed, block-list-short.

        """
        request = self._requests.get(req_id, _Request())
        if num_new < 0:
            raise VTokenError(Rule.LENGTH_SHRANK, f"request {req_id} would lose {-num_new} tokens")
        known = request.block_ids
        if list(block_ids[: len(known)]) != known:
            raise VTokenError(
                Rule.BLOCK_LIST_CHANGED,
                f"request {req_id} has blocks {known}, which {list(block_ids)} does not extend",
            )
        _check_block_ids(req_id, block_ids)
        start = self._length(request)
        if start + num_new > len(block_ids) * self.block_size:
            raise VTokenError(
                Rule.BLOCK_LIST_SHORT,
                f"request {req_id} needs {start + num_new} slots, its {len(block_ids)} blocks"
                f" have {len(block_ids) * self.block_size}",
            )
        return [
            block_ids[index // self.block_size] * self.block_size + index % self.block_size
            for index in range(start, start + num_new)
        ]

    def check_live(self, req_id: str, token_id: int, if_dead: Rule) -> None:
        """Raise unknown-token, or ``if_dead`` when the token is dead."""
        request = self._get(req_id)
        if not 0 <= token_id < len(request.slots):
            raise VTokenError(Rule.UNKNOWN_TOKEN, f"request {req_id} has no token {token_id}")
        if not request.live[token_id]:
            raise VTokenError(if_dead, f"token {token_id} of request {req_id} is dead")

    def check_moved_tokens(self, req_id: str, moves: Sequence[Move]) -> None:
        """Hold moves to what any relocation must keep: live tokens from where they are, each slot once.

        Raises:
            VTokenError: unknown-request, unknown-token, dead-move, stale-source, slot-used-twice.

        """
        for token_id, src_slot, _ in moves:
            self.check_live(req_id, token_id, Rule.DEAD_MOVE)
            if self.slot(req_id, token_id) != src_slot:
                raise VTokenError(
                    Rule.STALE_SOURCE,
                    f"token {token_id} of request {req_id} is in slot {self.slot(req_id, token_id)},"
                    f" not {src_slot}",
                )
        for slot in _duplicates([move.src_slot for move in moves]):
            raise VTokenError(Rule.SLOT_USED_TWICE, f"slot {slot} is the source of two moves")
        for slot in _duplicates([move.dst_slot for move in moves]):
            raise VTokenError(Rule.SLOT_USED_TWICE, f"slot {slot} is the destination of two moves")

    # Inside.

    def _get(self, req_id: str) -> _Request:
        request = self._requests.get(req_id)
        if request is None:
            raise VTokenError(Rule.UNKNOWN_REQUEST, f"the table has no request {req_id}")
        return request

    def _length(self, request: _Request) -> int:
        if not request.num_written_blocks:
            return 0
        last = request.num_written_blocks - 1
        return last * self.block_size + len(request.rows[request.block_ids[last]])

    def _count_written(self, request: _Request) -> int:
        count = len(request.block_ids)
        while count and not request.rows.get(request.block_ids[count - 1]):
            count -= 1
        return count

    def _check_moves(
        self, req_id: str, request: _Request, moves: Sequence[Move], new_list: list[int]
    ) -> None:
        _check_block_ids(req_id, new_list)
        self.check_moved_tokens(req_id, moves)
        self._check_destinations(req_id, request, moves, set(new_list))
        self._check_others(req_id, [move.dst_slot for move in moves], [HOLE] * len(moves))
        leaving = {move.token_id for move in moves}
        for block_id in set(request.block_ids) - set(new_list):
            staying = [
                token_id
                for token_id in request.rows.get(block_id, ())
                if token_id != HOLE and request.live[token_id] and token_id not in leaving
            ]
            if staying:
                raise VTokenError(
                    Rule.BLOCK_STILL_LIVE,
                    f"block {block_id} would leave request {req_id} with live token {staying[0]}",
                )

    def _check_destinations(
        self, req_id: str, request: _Request, moves: Sequence[Move], new_blocks: set[int]
    ) -> None:
        moving = {move.token_id for move in moves}
        for token_id, _, dst_slot in moves:
            block_id, offset = divmod(dst_slot, self.block_size)
            if block_id not in new_blocks:
                raise VTokenError(
                    Rule.SLOT_OUTSIDE,
                    f"token {token_id} would go to slot {dst_slot}, outside the blocks of {req_id}",
                )
            row = request.rows.get(block_id, ())
            occupant = row[offset] if offset < len(row) else HOLE
            if occupant != HOLE and request.live[occupant] and occupant not in moving:
                raise VTokenError(
                    Rule.SLOT_OCCUPIED,
                    f"token {token_id} would go to slot {dst_slot}, where live token {occupant} is",
                )

    def _check_others(self, req_id: str, slots: Sequence[int], same: Sequence[int]) -> None:
        """Refuse slots where another request has a live token, unless it is the ``same`` one, shared."""
        for slot, token_id in zip(slots, same, strict=True):
            block_id, offset = divmod(slot, self.block_size)
            for other_id in self._users.get(block_id, ()):
                if other_id == req_id:
                    continue
                other = self._requests[other_id]
                row = other.rows.get(block_id, ())
                occupant = row[offset] if offset < len(row) else HOLE
                if occupant not in (HOLE, token_id) and other.live[occupant]:
                    raise VTokenError(
                        Rule.SLOT_OCCUPIED,
                        f"request {req_id} would write slot {slot} of live token {occupant} of {other_id}",
                    )

    def _set_block_ids(self, req_id: str, request: _Request, block_ids: list[int]) -> None:
        before, after = set(request.block_ids), set(block_ids)
        for block_id in before - after:
            self._users[block_id].remove(req_id)
            if not self._users[block_id]:
                del self._users[block_id]
        for block_id in after - before:
            self._users.setdefault(block_id, set()).add(req_id)
        self._num_blocks += len(block_ids) - len(request.block_ids)
        request.block_ids = block_ids

    def _reclaim(self, request: _Request, token_id: int) -> None:
        if token_id != HOLE and not request.live[token_id]:
            request.slots[token_id] = NO_SLOT

    def _place(self, request: _Request, move: Move) -> None:
        block_id, offset = divmod(move.dst_slot, self.block_size)
        row = request.rows.setdefault(block_id, [])
        row.extend([HOLE] * (offset + 1 - len(row)))
        self._reclaim(request, row[offset])
        row[offset] = move.token_id
        request.slots[move.token_id] = move.dst_slot
        request.live_in_block[block_id] = request.live_in_block.get(block_id, 0) + 1

    def _retreat(self, request: _Request, is_protected: Callable[[int], bool]) -> None:
        """Cut everything after the last live token or protected block; dead tokens there lose their slots."""
        request.num_written_blocks = self._count_written(request)
        while request.num_written_blocks:
            block_id = request.block_ids[request.num_written_blocks - 1]
            if is_protected(block_id):
                return
            row = request.rows[block_id]
            while row and (row[-1] == HOLE or not request.live[row[-1]]):
                self._reclaim(request, row.pop())
            if row:
                return
            request.num_written_blocks = self._count_written(request)


def _check_block_ids(req_id: str, block_ids: Sequence[int]) -> None:
    if len(set(block_ids)) != len(block_ids) or (block_ids and min(block_ids) < 0):
        raise VTokenError(
            Rule.BLOCK_LIST_CHANGED, f"request {req_id} would list a block twice, or one below 0"
        )


def _duplicates(values: Sequence[int]) -> Iterator[int]:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            yield value
        seen.add(value)
