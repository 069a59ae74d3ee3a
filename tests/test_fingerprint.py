"""Batched fingerprints equal the spec's, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_impl import fingerprint as batched
from gpu_impl.kv_cache import cpu_attention_layout, generic_layout
from gpu_impl.relocate import relocate
from vtoken_ref import kv_hash
from vtoken_ref.events import Move
from vtoken_ref.rules import Rule, VTokenError

LAYOUTS = [generic_layout, cpu_attention_layout]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e4m3fn]


def random_cache(layout, num_layers, num_blocks, num_kv_heads, block_size, head_dim, dtype):
    shape = (num_layers, num_blocks, num_kv_heads, block_size, 2 * head_dim * dtype.itemsize)
    generator = torch.Generator().manual_seed(0)
    memory = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(dtype)
    return layout(list(memory), block_size)


def spec_fingerprints(cache, slots):
    """What the spec says of each token's canonical bytes."""
    tokens = cache.gather(slots).flatten(1).view(torch.uint8).numpy()
    return [kv_hash.fingerprint(token.tobytes()) for token in tokens]


@settings(deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(DTYPES),
    st.tuples(*[st.integers(1, most) for most in (5, 3, 5, 4, 7)]),
    st.sampled_from([1, 40, 1 << 17]),
    st.data(),
)
def test_equal_to_the_spec_whatever_the_tiles(layout, dtype, sizes, tile_words, data):
    cache = random_cache(layout, *sizes, dtype)
    slots = torch.tensor(
        data.draw(st.lists(st.integers(0, cache.num_slots - 1), max_size=10)), dtype=torch.int64
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "CPU_TILE_WORDS", tile_words)
        assert batched.fingerprints(cache, slots) == spec_fingerprints(cache, slots)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_to_the_spec_at_a_real_geometry(layout, dtype):
    cache = random_cache(layout, 30, 16, 3, 32, 64, dtype)
    slots = torch.randperm(cache.num_slots, generator=torch.Generator().manual_seed(1))[:400]
    found = batched.fingerprints(cache, slots)
    sample = [0, 1, 169, 170, 171, 399]  # around the edge of a tile in float32
    assert [found[row] for row in sample] == spec_fingerprints(cache, slots[sample])
    assert len(set(found)) == 400


@pytest.mark.parametrize("fill", [0x00, 0x80, 0xFF])
def test_equal_to_the_spec_on_extreme_words(fill):
    cache = generic_layout([torch.full((1, 8, 4, 256), fill, dtype=torch.uint8) for _ in range(4)], 4)
    slots = torch.arange(4)
    assert batched.fingerprints(cache, slots) == spec_fingerprints(cache, slots)


def test_the_layout_does_not_show():
    generic = random_cache(generic_layout, 3, 4, 2, 8, 6, torch.float16)
    transposed = random_cache(cpu_attention_layout, 3, 4, 2, 8, 6, torch.float16)
    slots = torch.arange(generic.num_slots)
    transposed.scatter(slots, generic.gather(slots))
    assert batched.fingerprints(transposed, slots) == batched.fingerprints(generic, slots)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_relocated_token_keeps_its_fingerprint(layout):
    cache = random_cache(layout, 3, 4, 2, 8, 6, torch.bfloat16)
    sources, destinations = torch.arange(5, 25), torch.arange(2, 22)
    before = batched.fingerprints(cache, sources)
    relocate(cache, list(map(Move, range(20), sources.tolist(), destinations.tolist())))
    assert batched.fingerprints(cache, destinations) == before


def test_any_changed_element_shows():
    cache = random_cache(cpu_attention_layout, 2, 1, 2, 2, 3, torch.bfloat16)
    slots = torch.arange(2)
    before = batched.fingerprints(cache, slots)
    for layer in cache.layers:
        for view in layer:
            bits = view.view(torch.int16)
            for head in range(2):
                for dim in range(3):
                    bits[0, head, 1, dim] ^= 1
                    after = batched.fingerprints(cache, slots)
                    bits[0, head, 1, dim] ^= 1
                    assert after[0] == before[0] and after[1] != before[1]


def test_a_slot_outside_the_pool_is_refused():
    cache = random_cache(generic_layout, 1, 2, 1, 4, 2, torch.float32)
    with pytest.raises(VTokenError) as error:
        batched.fingerprints(cache, torch.tensor([0, 8]))
    assert error.value.rule == Rule.UNKNOWN_BLOCK.id


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_device_computes_the_same(dtype):
    host = random_cache(generic_layout, 4, 8, 3, 16, 64, dtype)
    memory = [torch.cat(layer, dim=3).cuda() for layer in host.layers]
    slots = torch.randperm(host.num_slots)[:100]
    assert batched.fingerprints(generic_layout(memory, 16), slots) == spec_fingerprints(host, slots)
