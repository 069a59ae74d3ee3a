"""The block pool: four states, refcounts, fences, headroom, and nothing changed by a refused call."""

import copy
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vtoken_ref.invariants import pool_accounting
from vtoken_ref.pool import BlockPool, CachedPrefix, Hazard
from vtoken_ref.rules import VTokenError

NOTHING_IN_FLIGHT: frozenset[Hazard] = frozenset()
NUM_BLOCKS, HEADROOM = 6, 2
REQ_IDS = ["a", "b"]


def steps(*numbers: int) -> frozenset[Hazard]:
    """Steps that may still touch a block."""
    return frozenset(Hazard("step", step=number) for number in numbers)


def state_of(pool: BlockPool) -> dict[str, object]:
    return copy.deepcopy(vars(pool))


def check_refused(pool: BlockPool, code: str, call: Callable[[], object]) -> None:
    """The call raises this code, and not one attribute of the pool differs afterwards."""
    before = state_of(pool)
    with pytest.raises(VTokenError) as error:
        call()
    assert error.value.code == code
    assert state_of(pool) == before


def pool_in_every_state() -> BlockPool:
    """Blocks 0 to 2 are held by a, 3 is leased to a, 4 is fenced behind forward 7, 5 is free."""
    pool = BlockPool(range(NUM_BLOCKS), HEADROOM)
    pool.alloc("a", [0, 1, 2, 4])
    pool.lease("a", [3])
    pool.release("a", [4], steps(7))
    return pool


def test_a_block_is_free_then_held_then_fenced_then_free() -> None:
    pool = BlockPool(range(10, 14), headroom=0)
    assert {pool.state(block_id) for block_id in range(10, 14)} == {"free"}
    pool.alloc("a", [13, 10])
    assert (pool.state(13), pool.refcount(13), set(pool.held_by("a")), pool.num_held_by("a")) == (
        "held",
        1,
        {10, 13},
        2,
    )
    pool.release("a", [13], NOTHING_IN_FLIGHT)
    assert (pool.state(13), pool.refcount(13), set(pool.held_by("a"))) == ("fenced", 0, {10})
    pool.free([13], NOTHING_IN_FLIGHT)
    assert (pool.state(13), pool.free_blocks) == ("free", {11, 12, 13})


def test_a_leased_block_is_adopted_or_given_back() -> None:
    pool = BlockPool(range(4), headroom=2)
    pool.lease("a", [0, 1])
    assert (pool.state(0), pool.refcount(0), pool.num_held_by("a")) == ("leased", 0, 0)
    pool.adopt("a", [0])
    pool.release("a", [1], NOTHING_IN_FLIGHT)
    assert (pool.state(0), pool.state(1), set(pool.held_by("a"))) == ("held", "fenced", {0})


def test_adopting_makes_headroom_again() -> None:
    pool = BlockPool(range(4), headroom=1)
    pool.lease("a", [0])
    check_refused(pool, "headroom", lambda: pool.lease("b", [1]))
    pool.adopt("a", [0])
    pool.lease("b", [1])
    assert pool.leases == {1: "b"}


def test_a_shared_block_is_fenced_by_its_last_holder() -> None:
    pool = BlockPool(range(2), headroom=0)
    pool.alloc("a", [0])
    pool.cache(0, CachedPrefix((1,), ("0" * 16,)))
    pool.share("b", [0])
    pool.uncache([0])
    assert (pool.refcount(0), pool.is_protected(0)) == (2, True)
    pool.release("a", [0], steps(1))
    assert (pool.state(0), pool.refcount(0), pool.is_protected(0), set(pool.held_by("a"))) == (
        "held",
        1,
        False,
        set(),
    )
    pool.release("b", [0], steps(2))
    assert pool.fences == {0: steps(2)}


def test_the_fence_waits_for_the_forwards_of_that_moment_and_no_others() -> None:
    pool = BlockPool(range(1), headroom=0)
    pool.alloc("a", [0])
    pool.release("a", [0], steps(3, 4))
    check_refused(pool, "fence", lambda: pool.free([0], steps(3, 4, 5)))
    check_refused(pool, "fence", lambda: pool.free([0], steps(4, 5)))
    pool.free([0], steps(5))
    assert pool.state(0) == "free"


def test_everything_of_a_request_is_released_at_once() -> None:
    pool = pool_in_every_state()
    pool.release_all("a", steps(8))
    assert pool.fences == {block_id: steps(8) for block_id in range(4)} | {4: steps(7)}
    assert not pool.held_by("a") and not pool.leases
    pool.release_all("a", steps(8))
    pool.release_all("nobody", steps(8))
    assert pool_accounting(pool) == []


def test_empty_lists_change_nothing() -> None:
    pool = pool_in_every_state()
    before = state_of(pool)
    pool.alloc("a", [])
    pool.lease("a", [])
    pool.adopt("a", [])
    pool.release("a", [], NOTHING_IN_FLIGHT)
    pool.free([], NOTHING_IN_FLIGHT)
    assert state_of(pool) == before


@pytest.mark.parametrize(
    ("block_ids", "code"),
    [
        ([0], "not-free"),
        ([3], "not-free"),
        ([4], "not-free"),
        ([5, 0], "not-free"),
        ([5, 5], "not-free"),
        ([-1], "unknown-block"),
        ([6], "unknown-block"),
        ([5, 10**20], "unknown-block"),
    ],
)
def test_only_free_blocks_are_given_out(block_ids: list[int], code: str) -> None:
    pool = pool_in_every_state()
    check_refused(pool, code, lambda: pool.alloc("b", block_ids))
    check_refused(pool, code, lambda: pool.lease("b", block_ids))


def test_no_more_is_leased_than_the_headroom() -> None:
    pool = BlockPool(range(4), headroom=2)
    check_refused(pool, "headroom", lambda: pool.lease("a", [0, 1, 2]))
    pool.lease("a", [0, 1])
    check_refused(pool, "headroom", lambda: pool.lease("b", [2]))


@pytest.mark.parametrize(
    ("req_id", "block_ids", "code"),
    [
        ("b", [3], "not-held"),
        ("a", [0], "not-held"),
        ("a", [5], "not-held"),
        ("a", [3, 0], "not-held"),
        ("a", [3, 3], "not-held"),
        ("a", [3, -1], "unknown-block"),
    ],
)
def test_only_leased_blocks_are_adopted(req_id: str, block_ids: list[int], code: str) -> None:
    pool = pool_in_every_state()
    check_refused(pool, code, lambda: pool.adopt(req_id, block_ids))


@pytest.mark.parametrize(
    ("req_id", "block_ids", "code"),
    [
        ("b", [0], "not-held"),
        ("b", [3], "not-held"),
        ("a", [4], "not-held"),
        ("a", [5], "not-held"),
        ("a", [0, 1, 0], "not-held"),
        ("a", [3, 3], "not-held"),
        ("a", [0, 4], "not-held"),
        ("a", [0, 6], "unknown-block"),
        ("a", [-1], "unknown-block"),
    ],
)
def test_only_held_or_leased_blocks_are_released(req_id: str, block_ids: list[int], code: str) -> None:
    pool = pool_in_every_state()
    check_refused(pool, code, lambda: pool.release(req_id, block_ids, NOTHING_IN_FLIGHT))


@pytest.mark.parametrize(
    ("block_ids", "in_flight", "code"),
    [
        ([0], set(), "not-fenced"),
        ([3], set(), "not-fenced"),
        ([5], set(), "not-fenced"),
        ([4, 4], set(), "not-fenced"),
        ([4, 0], set(), "not-fenced"),
        ([4, -1], set(), "unknown-block"),
        ([6], set(), "unknown-block"),
        ([4], steps(7), "fence"),
    ],
)
def test_only_fenced_blocks_are_freed(block_ids: list[int], in_flight: set[Hazard], code: str) -> None:
    pool = pool_in_every_state()
    check_refused(pool, code, lambda: pool.free(block_ids, frozenset(in_flight)))


def test_a_double_free_is_refused() -> None:
    pool = pool_in_every_state()
    pool.free([4], NOTHING_IN_FLIGHT)
    check_refused(pool, "not-fenced", lambda: pool.free([4], NOTHING_IN_FLIGHT))


SMALL_POOL = range(3)
BlockLists = st.sampled_from([[], [0], [1], [2], [0, 1], [2, 1], [0, 1, 2], [0, 0], [1, 1], [0, 3], [-1]])


class PoolHistories(RuleBasedStateMachine):
    """Any calls, legal or not: a model of one state a block says which are accepted."""

    @initialize()
    def start(self) -> None:
        self.pool = BlockPool(SMALL_POOL, HEADROOM)
        self.states: dict[int, tuple[str, object]] = dict.fromkeys(SMALL_POOL, ("free", None))
        self.running: set[Hazard] = set()
        self.step = 0

    def call(
        self, block_ids: list[int], legal: bool, call: Callable[[], object], after: tuple[str, object]
    ) -> None:
        """Expect the call to be accepted exactly if it is legal and lists no block twice."""
        before = state_of(self.pool)
        if legal and len(set(block_ids)) == len(block_ids):
            call()
            self.states.update(dict.fromkeys(block_ids, after))
        else:
            with pytest.raises(VTokenError):
                call()
            assert state_of(self.pool) == before

    def are(self, block_ids: list[int], *states: tuple[str, object]) -> bool:
        return all(self.states.get(block_id) in states for block_id in block_ids)

    @rule()
    def begin_a_forward(self) -> None:
        self.step += 1
        self.running.add(Hazard("step", step=self.step))

    @rule(data=st.data())
    def end_a_forward(self, data: st.DataObject) -> None:
        if self.running:
            self.running.remove(data.draw(st.sampled_from(sorted(self.running))))

    @rule(req_id=st.sampled_from(REQ_IDS), block_ids=BlockLists)
    def alloc(self, req_id: str, block_ids: list[int]) -> None:
        states = [state for state, _ in self.states.values()]
        num_kept_back = HEADROOM - states.count("leased")
        num_left = states.count("free") - len(block_ids)
        legal = self.are(block_ids, ("free", None)) and (not block_ids or num_left >= num_kept_back)
        self.call(block_ids, legal, lambda: self.pool.alloc(req_id, block_ids), ("held", req_id))

    @rule(req_id=st.sampled_from(REQ_IDS), block_ids=BlockLists)
    def lease(self, req_id: str, block_ids: list[int]) -> None:
        num_leased = sum(state == "leased" for state, _ in self.states.values())
        legal = self.are(block_ids, ("free", None)) and num_leased + len(block_ids) <= HEADROOM
        self.call(block_ids, legal, lambda: self.pool.lease(req_id, block_ids), ("leased", req_id))

    @rule(req_id=st.sampled_from(REQ_IDS), block_ids=BlockLists)
    def adopt(self, req_id: str, block_ids: list[int]) -> None:
        legal = self.are(block_ids, ("leased", req_id))
        self.call(block_ids, legal, lambda: self.pool.adopt(req_id, block_ids), ("held", req_id))

    @rule(req_id=st.sampled_from(REQ_IDS), block_ids=BlockLists)
    def release(self, req_id: str, block_ids: list[int]) -> None:
        legal = self.are(block_ids, ("held", req_id), ("leased", req_id))
        in_flight = frozenset(self.running)
        self.call(
            block_ids, legal, lambda: self.pool.release(req_id, block_ids, in_flight), ("fenced", in_flight)
        )

    @rule(req_id=st.sampled_from(REQ_IDS))
    def release_all(self, req_id: str) -> None:
        theirs = [block_id for block_id, (_, owner) in self.states.items() if owner == req_id]
        in_flight = frozenset(self.running)
        self.call(theirs, True, lambda: self.pool.release_all(req_id, in_flight), ("fenced", in_flight))

    @rule(block_ids=BlockLists)
    def free(self, block_ids: list[int]) -> None:
        running = frozenset(self.running)
        fences = [self.states[b][1] for b in block_ids if b in self.states and self.states[b][0] == "fenced"]
        legal = len(fences) == len(block_ids) and not any(running & fence for fence in fences)  # type: ignore[operator]
        self.call(block_ids, legal, lambda: self.pool.free(block_ids, running), ("free", None))

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        assert pool_accounting(self.pool) == []
        for block_id, (state, _) in self.states.items():
            assert self.pool.state(block_id) == state
            assert self.pool.refcount(block_id) == (state == "held")
        for req_id in REQ_IDS:
            held = {block_id for block_id, who in self.states.items() if who == ("held", req_id)}
            assert self.pool.held_by(req_id) == held
            assert self.pool.num_held_by(req_id) == len(held)


TestPoolHistories = PoolHistories.TestCase
TestPoolHistories.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_request_that_gave_up_everything_is_forgotten() -> None:
    pool = BlockPool(range(4), headroom=0)
    pool.alloc("a", (0,))
    pool.release_all("a", frozenset())
    assert pool.requests() == []
