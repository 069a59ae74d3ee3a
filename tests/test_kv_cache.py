"""Layout adapters: which bytes of the engine's memory a slot stands for."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_impl.kv_cache import KVCache, LayerKV, cpu_attention_layout, generic_layout
from vtoken_ref.rules import Rule, VTokenError

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]
DIMS = ("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")


def random_bits(shape, dtype, seed):
    """Any bit pattern, NaNs among them: what is copied must come out bit by bit."""
    generator = torch.Generator().manual_seed(seed)
    nbytes = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, 256, nbytes, dtype=torch.uint8, generator=generator).view(dtype)


def bits(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same_bits(left, right):
    return left.shape == right.shape and torch.equal(bits(left), bits(right))


@st.composite
def geometries(draw):
    sizes = [draw(st.integers(1, most)) for most in (3, 4, 4, 5, 6)]
    return SimpleNamespace(**dict(zip(DIMS, sizes, strict=True)), dtype=draw(st.sampled_from(DTYPES)))


def strided_layers(geometry, order, num_spare, seed):
    """Layers of the logical shape that lie in memory in any order of the axes, with spare elements."""
    shape = (geometry.num_blocks, geometry.num_kv_heads, geometry.block_size, 2 * geometry.head_dim)
    memory_shape = [shape[axis] for axis in order]
    memory_shape[-1] += num_spare
    memory = random_bits((geometry.num_layers, *memory_shape), geometry.dtype, seed)
    used = memory[..., : memory_shape[-1] - num_spare]
    return [layer.permute([order.index(axis) for axis in range(4)]) for layer in used]


def cpu_layers(geometry, seed):
    shape = (geometry.num_layers, geometry.num_blocks, geometry.num_kv_heads, geometry.block_size)
    return list(random_bits((*shape, 2 * geometry.head_dim), geometry.dtype, seed))


def any_cache(seed=0):
    return generic_layout([random_bits((4, 2, 8, 6), torch.float32, seed) for _ in range(3)], 8)


def draw_slots(data, cache, unique=False):
    slots = data.draw(st.lists(st.integers(0, cache.num_slots - 1), max_size=12, unique=unique))
    return torch.tensor(slots, dtype=torch.int64)


@settings(deadline=None)
@given(geometries(), st.permutations(range(4)), st.integers(0, 2), st.data())
def test_generic_layout_reads_each_element_where_the_shape_says(geometry, order, num_spare, data):
    layers = strided_layers(geometry, order, num_spare, seed=1)
    cache = generic_layout(layers, geometry.block_size)
    slots = draw_slots(data, cache)
    tokens = cache.gather(slots)
    assert tokens.is_contiguous() and tokens.dtype == geometry.dtype
    for row, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, geometry.block_size)
        for layer, tensor in enumerate(layers):
            for head in range(geometry.num_kv_heads):
                expected = tensor[block, head, offset]
                assert same_bits(tokens[row, layer, 0, head], expected[: geometry.head_dim])
                assert same_bits(tokens[row, layer, 1, head], expected[geometry.head_dim :])


@settings(deadline=None)
@given(geometries(), st.data())
def test_cpu_attention_layout_reads_keys_transposed(geometry, data):
    layers = cpu_layers(geometry, seed=2)
    cache = cpu_attention_layout(layers, geometry.block_size)
    slots = draw_slots(data, cache)
    tokens = cache.gather(slots)
    block_size, head_dim = geometry.block_size, geometry.head_dim
    dims = torch.arange(head_dim)
    for row, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        for layer, tensor in enumerate(layers):
            for head in range(geometry.num_kv_heads):
                memory = tensor[block, head].flatten()
                keys = memory[dims * block_size + offset]
                values = memory[block_size * head_dim + offset * head_dim + dims]
                assert same_bits(tokens[row, layer, 0, head], keys)
                assert same_bits(tokens[row, layer, 1, head], values)


@settings(deadline=None)
@given(geometries(), st.sampled_from(["generic", "cpu"]), st.permutations(range(4)), st.data())
def test_scatter_writes_the_slots_and_nothing_else(geometry, layout, order, data):
    if layout == "cpu":
        layers = cpu_layers(geometry, seed=3)
        cache = cpu_attention_layout(layers, geometry.block_size)
    else:
        layers = strided_layers(geometry, order, num_spare=1, seed=3)
        cache = generic_layout(layers, geometry.block_size)
    expected = cache.gather(torch.arange(cache.num_slots))
    slots = draw_slots(data, cache, unique=True)
    tokens = random_bits((len(slots), *expected.shape[1:]), geometry.dtype, seed=4)
    cache.scatter(slots, tokens)
    expected[slots] = tokens
    assert same_bits(cache.gather(torch.arange(cache.num_slots)), expected)


@settings(deadline=None)
@given(geometries())
def test_sizes_follow_from_the_tensors(geometry):
    cache = cpu_attention_layout(cpu_layers(geometry, seed=5), geometry.block_size)
    assert {name: getattr(cache, name) for name in DIMS} == {name: getattr(geometry, name) for name in DIMS}
    assert cache.dtype == geometry.dtype
    assert cache.num_slots == geometry.num_blocks * geometry.block_size
    assert cache.nbytes_per_token == cache.gather(torch.tensor([0])).nbytes


@pytest.fixture(scope="module")
def cpu_attention():
    """The backend's module, whose cache-update op is compiled into vLLM's CPU build only."""
    vllm_ops = pytest.importorskip("vllm._custom_ops", reason="vLLM is not installed")
    if not hasattr(vllm_ops.torch.ops._C, "cpu_attn_reshape_and_cache"):
        pytest.skip("this vLLM is not built for the CPU")
    from vllm.v1.attention.backends import cpu_attn

    return cpu_attn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("isa", "block_size", "head_dim"), [("vec", 32, 64), ("vec", 64, 96), ("vec16", 32, 80)]
)
def test_cpu_attention_layout_reads_back_what_the_backend_wrote(
    cpu_attention, dtype, isa, block_size, head_dim
):
    num_blocks, num_kv_heads = 4, 3
    layers = [random_bits((num_blocks, num_kv_heads, block_size, 2 * head_dim), dtype, n) for n in (6, 7)]
    cache = cpu_attention_layout(layers, block_size, isa)
    slots = torch.randperm(cache.num_slots, generator=torch.Generator().manual_seed(8))[: block_size + 5]
    before = cache.gather(torch.arange(cache.num_slots))
    written = torch.randn(len(slots), 2, 2, num_kv_heads, head_dim).to(dtype)
    impl = SimpleNamespace(attn_type="decoder", kv_cache_dtype="auto")
    attention = SimpleNamespace(isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)
    for index, tensor in enumerate(layers):
        keys, values = written[:, index, 0].contiguous(), written[:, index, 1].contiguous()
        cpu_attention.CPUAttentionBackendImpl.do_kv_cache_update(impl, attention, keys, values, tensor, slots)
    assert same_bits(cache.gather(slots), written)
    before[slots] = written
    assert same_bits(cache.gather(torch.arange(cache.num_slots)), before)


def test_amx_stores_keys_in_another_layout_and_is_refused(cpu_attention):
    tensor = torch.zeros(1, 1, 32, 128, dtype=torch.bfloat16)
    impl = SimpleNamespace(attn_type="decoder", kv_cache_dtype="auto")
    attention = SimpleNamespace(isa="amx", _k_scale_float=1.0, _v_scale_float=1.0)
    written = torch.randn(32, 2, 1, 64).to(torch.bfloat16)
    cpu_attention.CPUAttentionBackendImpl.do_kv_cache_update(
        impl, attention, written[:, 0].contiguous(), written[:, 1].contiguous(), tensor, torch.arange(32)
    )
    assert not same_bits(cpu_attention_layout([tensor], 32).gather(torch.arange(32))[:, 0], written)
    with pytest.raises(ValueError, match="'amx'.*dtype float32 or float16"):
        cpu_attention_layout([tensor], 32, isa="amx")


@pytest.mark.parametrize("slot", [-1, 32])
@pytest.mark.parametrize("call", ["gather", "scatter"])
def test_a_slot_outside_the_pool_is_refused(slot, call):
    cache = any_cache()
    slots = torch.tensor([3, slot])
    with pytest.raises(VTokenError) as error:
        cache.gather(slots) if call == "gather" else cache.scatter(slots, torch.zeros(2, 3, 2, 2, 3))
    assert error.value.rule == Rule.UNKNOWN_BLOCK.id


@pytest.mark.parametrize("slots", [torch.tensor([1.0]), torch.tensor([[1]]), torch.tensor([1]).int()])
def test_slots_of_another_type_are_refused(slots):
    with pytest.raises(ValueError, match="int64"):
        any_cache().gather(slots)


@pytest.mark.parametrize(
    "tokens", [torch.zeros(1, 3, 2, 2, 3), torch.zeros(2, 3, 2, 2, 3).half(), torch.zeros(2, 36)]
)
def test_tokens_of_another_shape_or_dtype_are_refused_and_nothing_is_written(tokens):
    cache = any_cache()
    before = cache.gather(torch.arange(32))
    with pytest.raises(ValueError, match=r"tokens must be torch.float32 \[2, 3, 2, 2, 3\]"):
        cache.scatter(torch.tensor([0, 1]), tokens)
    assert same_bits(cache.gather(torch.arange(32)), before)


def test_two_tokens_for_one_slot_are_refused():
    with pytest.raises(VTokenError) as error:
        any_cache().scatter(torch.tensor([5, 5]), torch.zeros(2, 3, 2, 2, 3))
    assert error.value.rule == Rule.SLOT_USED_TWICE.id


@pytest.mark.parametrize("layout", [generic_layout, cpu_attention_layout])
@pytest.mark.parametrize(
    "layers",
    [
        [],
        [torch.zeros(0, 2, 8, 6)],
        [torch.zeros(4, 2, 8)],
        [torch.zeros(4, 2, 8, 5)],
        [torch.zeros(4, 2, 16, 6)],
        [torch.zeros(4, 2, 8, 6), torch.zeros(5, 2, 8, 6)],
        [torch.zeros(4, 2, 8, 6), torch.zeros(4, 2, 8, 6).half()],
    ],
    ids=["none", "empty", "three-axes", "odd-last-axis", "other-block-size", "other-shape", "other-dtype"],
)
def test_layers_that_do_not_fit_are_refused(layout, layers):
    with pytest.raises(ValueError):
        layout(layers, 8)


def test_cpu_attention_layout_needs_each_block_and_head_in_one_piece():
    with pytest.raises(ValueError, match="contiguous"):
        cpu_attention_layout([torch.zeros(4, 8, 2, 6).transpose(1, 2)], 8)


def test_cpu_attention_layout_takes_layers_that_share_one_buffer():
    buffer = random_bits((4, 3, 2, 8, 6), torch.float32, seed=9)
    apart = cpu_attention_layout([buffer[:, layer].clone() for layer in range(3)], 8)
    shared = cpu_attention_layout([buffer[:, layer] for layer in range(3)], 8)
    assert same_bits(shared.gather(torch.arange(32)), apart.gather(torch.arange(32)))


def test_views_of_another_rank_are_refused():
    with pytest.raises(ValueError, match="num_blocks, num_kv_heads"):
        KVCache([LayerKV(torch.zeros(4, 8, 6), torch.zeros(4, 8, 6))])
