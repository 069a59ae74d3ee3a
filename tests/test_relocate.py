"""Relocation: every moved token arrives, bit by bit, and nothing else changes."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_impl.kv_cache import cpu_attention_layout, generic_layout
from gpu_impl.relocate import relocate
from vtoken_ref.events import Move
from vtoken_ref.rules import Rule, VTokenError

LAYOUTS = [generic_layout, cpu_attention_layout]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]


def random_cache(layout, num_blocks, block_size, num_kv_heads=2, head_dim=3, dtype=torch.float32):
    shape = (2, num_blocks, num_kv_heads, block_size, 2 * head_dim * dtype.itemsize)
    generator = torch.Generator().manual_seed(0)
    memory = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(dtype)
    return layout(list(memory), block_size)


def all_tokens(cache):
    return cache.gather(torch.arange(cache.num_slots)).flatten(1).view(torch.uint8)


def check_relocation(cache, moves):
    expected = all_tokens(cache)
    before = expected.clone()
    for move in moves:
        expected[move.dst_slot] = before[move.src_slot]
    nbytes = relocate(cache, moves)
    assert nbytes == len(moves) * cache.nbytes_per_token
    assert torch.equal(all_tokens(cache), expected)


@settings(deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(DTYPES),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 5),
    st.data(),
)
def test_any_moves_even_overlapping_ones(layout, dtype, num_blocks, block_size, num_kv_heads, head_dim, data):
    cache = random_cache(layout, num_blocks, block_size, num_kv_heads, head_dim, dtype)
    slots = st.permutations(range(cache.num_slots))
    num_moves = data.draw(st.integers(0, cache.num_slots))
    sources, destinations = data.draw(slots)[:num_moves], data.draw(slots)[:num_moves]
    check_relocation(cache, list(map(Move, range(num_moves), sources, destinations)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("distance", [-33, -1, 1, 33])
def test_a_run_shifted_onto_itself(layout, distance):
    cache = random_cache(layout, num_blocks=8, block_size=16)
    moves = [Move(token_id, slot, slot + distance) for token_id, slot in enumerate(range(40, 90))]
    check_relocation(cache, moves)
    check_relocation(cache, moves[::-1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cycle_over_the_whole_pool(layout):
    cache = random_cache(layout, num_blocks=8, block_size=16)
    slots = list(range(128))
    random.Random(0).shuffle(slots)
    check_relocation(cache, [Move(n, slots[n], slots[n - 1]) for n in range(128)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_survivors_of_an_eviction_packed_in_place(layout):
    cache = random_cache(layout, num_blocks=8, block_size=16)
    live = sorted(random.Random(1).sample(range(128), 50))
    moves = [Move(slot, slot, rank) for rank, slot in enumerate(live)]
    tokens = all_tokens(cache)[live]
    check_relocation(cache, moves)
    assert torch.equal(all_tokens(cache)[:50], tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_moves_move_nothing(layout):
    check_relocation(random_cache(layout, num_blocks=2, block_size=4), [])


@pytest.mark.parametrize(
    ("moves", "rule"),
    [
        ([Move(0, 1, 2), Move(1, 3, 2)], Rule.SLOT_USED_TWICE),
        ([Move(0, 1, 2), Move(1, 1, 3)], Rule.SLOT_USED_TWICE),
        ([Move(0, 1, 2), Move(1, 8, 3)], Rule.UNKNOWN_BLOCK),
        ([Move(0, 1, 2), Move(1, 3, -1)], Rule.UNKNOWN_BLOCK),
    ],
    ids=["one-destination-twice", "one-source-twice", "source-outside", "destination-outside"],
)
def test_illegal_moves_are_refused_and_nothing_is_copied(moves, rule):
    cache = random_cache(generic_layout, num_blocks=2, block_size=4)
    before = all_tokens(cache)
    with pytest.raises(VTokenError) as error:
        relocate(cache, moves)
    assert error.value.rule == rule.id
    assert torch.equal(all_tokens(cache), before)
