"""The oracle: it agrees with correct engines, contradicts wrong ones, and attends exactly as it is told."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from conformance.errors import UsageError
from conformance.history import EpochHistory, QuerySpan, Sampled
from conformance.oracle import (
    Mismatch,
    Oracle,
    OracleResult,
    compare,
    masked_logits,
    refuse_unless_mask_is_used,
)

VOCAB_SIZE = 61
PROMPT = [7, 3, 50, 22, 9, 41, 13, 60, 2, 35, 18, 27]
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    # Ten times the usual: attention and logits are far from uniform.
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def oracle(model_path: Path) -> Oracle:
    return Oracle(model_path)


class TinyEngine:
    """An incremental Llama that keeps each token's keys and values by id and reads those it is told to.

    Written from the architecture's definition and without any mask: what the oracle is judged by.
    """

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.weights = dict(model.state_dict())
        self.cache: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = [
            {} for _ in range(self.config.num_hidden_layers)
        ]

    def step(self, token_id: int, vocab_id: int, visible: Iterable[int]) -> torch.Tensor:
        """Compute one token that reads those visible, itself among them; return its logits."""
        hidden = self.weights["model.embed_tokens.weight"][vocab_id]
        for layer, cache in enumerate(self.cache):
            normed = self.norm(hidden, f"model.layers.{layer}.input_layernorm")
            hidden = hidden + self.attend(normed, layer, token_id, cache, visible)
            normed = self.norm(hidden, f"model.layers.{layer}.post_attention_layernorm")
            gate = self.linear(normed, f"model.layers.{layer}.mlp.gate_proj")
            up = self.linear(normed, f"model.layers.{layer}.mlp.up_proj")
            hidden = hidden + self.linear(
                gate * torch.sigmoid(gate) * up, f"model.layers.{layer}.mlp.down_proj"
            )
        return self.linear(self.norm(hidden, "model.norm"), "lm_head")

    def attend(
        self,
        hidden: torch.Tensor,
        layer: int,
        token_id: int,
        cache: dict[int, tuple[torch.Tensor, torch.Tensor]],
        visible: Iterable[int],
    ) -> torch.Tensor:
        """Cache the token's key and value, and return what its heads read."""
        query, key, value = (
            self.linear(hidden, f"model.layers.{layer}.self_attn.{part}_proj").view(-1, self.config.head_dim)
            for part in "qkv"
        )
        cache[token_id] = self.rotate(key, token_id), value
        query = self.rotate(query, token_id)
        keys = torch.stack([cache[key_id][0] for key_id in visible])
        values = torch.stack([cache[key_id][1] for key_id in visible])
        heads = []
        for head in range(self.config.num_attention_heads):
            kv_head = head * self.config.num_key_value_heads // self.config.num_attention_heads
            scores = keys[:, kv_head] @ query[head] / self.config.head_dim**0.5
            heads.append(scores.softmax(0) @ values[:, kv_head])
        return self.linear(torch.cat(heads), f"model.layers.{layer}.self_attn.o_proj")

    def rotate(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        """Turn each pair (i, i + half) of a head by its angle at a position."""
        half = self.config.head_dim // 2
        theta = self.config.rope_parameters["rope_theta"]
        angles = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        pairs = torch.complex(heads[:, :half].double(), heads[:, half:].double())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=1).float()

    def norm(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        scale = (hidden.square().mean() + self.config.rms_norm_eps).rsqrt()
        return hidden * scale * self.weights[f"{name}.weight"]

    def linear(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        return self.weights[f"{name}.weight"] @ hidden


def serve(model: Any, num_outputs: int, keep: float = 1.0, seed: int = 0, prefill: int = 4) -> EpochHistory:
    """Serve PROMPT greedily in prefill chunks, and before each forward evict tokens at random."""
    rng, engine = random.Random(seed), TinyEngine(model)
    history = EpochHistory("r", 0, vocab_ids=list(PROMPT))
    live: list[int] = []
    while len(history.outputs) < num_outputs:
        first = history.spans[-1].first_token_id + history.spans[-1].num_query if history.spans else 0
        queries = range(first, min(first + prefill, len(history.vocab_ids)))
        live = [token_id for token_id in live if rng.random() < keep] + list(queries)
        history.spans.append(QuerySpan(first, len(queries), tuple(live)))
        for query in queries:
            seen = [token_id for token_id in live if token_id <= query]
            logits = engine.step(query, history.vocab_ids[query], seen)
        if queries.stop == len(history.vocab_ids):
            sampled = int(logits.argmax())
            history.outputs.append(Sampled(queries.stop - 1, sampled))
            history.vocab_ids.append(sampled)
    return history


class TestAgreement:
    @pytest.mark.parametrize("seed", range(4))
    def test_an_engine_that_evicts_correctly_matches_token_for_token(self, oracle: Oracle, seed: int) -> None:
        result = oracle.check(serve(oracle.model, num_outputs=30, keep=0.9, seed=seed))
        assert (result.tokens, result.matched, result.ties, result.mismatched) == (30, 30, 0, 0)
        assert result.mismatches == []
        assert result.smallest_top2_gap is not None and result.smallest_top2_gap > 0

    def test_full_visibility_is_plain_greedy_generation(self, oracle: Oracle) -> None:
        generated = oracle.model.generate(
            torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()
        ends = range(len(PROMPT), len(generated) + 1)
        spans = [QuerySpan(0, len(PROMPT), tuple(range(len(PROMPT))))]
        spans += [QuerySpan(end - 1, 1, tuple(range(end))) for end in ends[1:-1]]
        outputs = [Sampled(end - 1, generated[end]) for end in ends[:-1]]
        result = oracle.check(EpochHistory("r", 0, generated[:-1], spans, outputs))
        assert (result.tokens, result.matched) == (20, 20)

    def test_how_a_prompt_is_cut_into_chunks_does_not_matter(self, oracle: Oracle) -> None:
        histories = [serve(oracle.model, num_outputs=10, prefill=prefill) for prefill in (1, 5, 100)]
        assert [len(history.spans) for history in histories] == [21, 12, 10]
        results = [oracle.check(history) for history in histories]
        assert [result.matched for result in results] == [10, 10, 10]

    def test_an_epoch_without_outputs_does_not_run_the_model(
        self, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: object) -> None:
            raise AssertionError("the model ran")

        monkeypatch.setattr(oracle.model, "forward", refuse)
        assert oracle.check(EpochHistory("r", 0)) == OracleResult()
        unfinished = EpochHistory("r", 0, PROMPT, [QuerySpan(0, 4, (0, 1, 2, 3))])
        assert oracle.check(unfinished) == OracleResult()

    def test_tokens_known_but_never_computed_are_left_out(self, oracle: Oracle) -> None:
        history = serve(oracle.model, num_outputs=10)
        before = oracle.check(history)
        history.vocab_ids += [1, 2, 3]
        assert oracle.check(history) == before


class TestDisagreement:
    def test_an_engine_that_reads_evicted_tokens_is_contradicted(self, oracle: Oracle) -> None:
        history = serve(oracle.model, num_outputs=30, keep=1.0)
        for span in history.spans[3:]:
            span.visible = span.visible[:2] + span.visible[-4:]
        assert oracle.check(history).mismatched > 0

    def test_an_engine_that_loses_a_live_token_is_contradicted(self, oracle: Oracle) -> None:
        history = serve(oracle.model, num_outputs=30, keep=0.9)
        for span in history.spans:
            span.visible = tuple(range(span.first_token_id + span.num_query))
        assert oracle.check(history).mismatched > 0

    def test_one_wrong_output_is_reported_with_its_place_and_gap(self, oracle: Oracle) -> None:
        history = serve(oracle.model, num_outputs=10, keep=0.9)
        last = history.outputs[-1]
        right = last.vocab_id
        last.vocab_id = (right + 1) % VOCAB_SIZE
        result = oracle.check(history)
        assert (result.tokens, result.matched, result.mismatched) == (10, 9, 1)
        (mismatch,) = result.mismatches
        assert (mismatch.req_id, mismatch.epoch, mismatch.token_id) == ("r", 0, last.token_id)
        assert (mismatch.expected, mismatch.sampled) == (right, last.vocab_id)
        assert mismatch.gap > oracle.tie_gap


class TestMask:
    def test_hiding_a_token_equals_attention_that_never_held_it(self, oracle: Oracle) -> None:
        num_tokens = len(PROMPT)
        mask = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
        full = masked_logits(oracle.model, PROMPT, mask, list(range(num_tokens)))
        mask[5:, 3] = False
        mask[8:, 0] = False
        masked = masked_logits(oracle.model, PROMPT, mask, list(range(num_tokens)))
        engine = TinyEngine(oracle.model)
        expected = torch.stack(
            [
                engine.step(query, PROMPT[query], mask[query].nonzero().flatten().tolist())
                for query in range(num_tokens)
            ]
        )
        # float32 sums of at most 48 terms through 2 layers: about 100 roundings of 6e-8 on logits below 10.
        torch.testing.assert_close(masked, expected, rtol=0, atol=6e-5)
        assert (masked - full).abs().amax(dim=1)[5:].min() > 1e-2

    def test_logits_come_for_the_asked_positions_in_their_order(self, oracle: Oracle) -> None:
        mask = torch.ones(len(PROMPT), len(PROMPT), dtype=torch.bool).tril()
        everywhere = masked_logits(oracle.model, PROMPT, mask, list(range(len(PROMPT))))
        some = masked_logits(oracle.model, PROMPT, mask, [9, 2, 9])
        assert everywhere.shape == (len(PROMPT), VOCAB_SIZE)
        torch.testing.assert_close(some, everywhere[[9, 2, 9]], rtol=0, atol=6e-5)


class TestTies:
    """Logits are multiples of 1/4, so gaps are exact."""

    def outcome(self, logits: list[float], sampled: int, tie_gap: float) -> OracleResult:
        history = EpochHistory("r", 2, [0], [QuerySpan(0, 1, (0,))], [Sampled(0, sampled)])
        return compare(history, torch.tensor([logits]), tie_gap)

    @pytest.mark.parametrize("tie_gap", [0.0, 0.5])
    def test_the_best_token_matches(self, tie_gap: float) -> None:
        assert self.outcome([1.0, 3.0, 2.75], 1, tie_gap) == OracleResult(
            1, matched=1, smallest_top2_gap=0.25
        )

    def test_a_gap_up_to_the_tie_gap_is_a_tie(self) -> None:
        expected = OracleResult(1, ties=1, largest_tie_gap=0.25, smallest_top2_gap=0.25)
        assert self.outcome([1.0, 3.0, 2.75], 2, 0.25) == expected

    def test_a_gap_above_it_is_a_mismatch(self) -> None:
        mismatch = Mismatch("r", 2, token_id=0, expected=1, sampled=2, gap=0.5)
        expected = OracleResult(1, mismatched=1, mismatches=[mismatch], smallest_top2_gap=0.5)
        assert self.outcome([1.0, 3.0, 2.5], 2, 0.25) == expected

    def test_a_third_token_is_no_tie_however_close_the_two_best(self) -> None:
        result = self.outcome([1.0, 3.0, 3.0], 0, 0.25)
        assert (result.mismatched, result.smallest_top2_gap) == (1, 0.0)

    def test_equal_logits_tie_at_any_tie_gap(self) -> None:
        for sampled in (1, 2):
            result = self.outcome([1.0, 3.0, 3.0], sampled, 0.0)
            assert result.matched + result.ties == 1

    def test_counts_add_up_and_gaps_are_extremes(self) -> None:
        logits = torch.tensor([[4.0, 3.0, 0.0], [4.0, 3.75, 0.0], [4.0, 3.5, 0.0], [4.0, 3.0, 0.0]])
        outputs = [Sampled(0, 0), Sampled(1, 1), Sampled(2, 1), Sampled(3, 1)]
        history = EpochHistory("r", 0, [0] * 4, [QuerySpan(0, 4, (0, 1, 2, 3))], outputs)
        result = compare(history, logits, 0.5)
        assert (result.tokens, result.matched, result.ties, result.mismatched) == (4, 1, 2, 1)
        assert (result.largest_tie_gap, result.smallest_top2_gap) == (0.5, 0.25)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_logits_that_order_nothing_are_no_verdict(self, value: float) -> None:
        with pytest.raises(ValueError, match="not all finite"):
            self.outcome([1.0, value, 0.5], 0, 0.25)


@pytest.mark.parametrize(
    ("spans", "outputs", "complaint"),
    [
        ([QuerySpan(1, 2, (1, 2))], [], "tokens from 0 on"),
        ([QuerySpan(0, 2, (0, 1)), QuerySpan(3, 1, (0, 1, 3))], [], "tokens from 2 on"),
        ([QuerySpan(0, 2, (0, 1)), QuerySpan(1, 1, (0, 1))], [], "tokens from 2 on"),
        ([QuerySpan(0, 0, ())], [], "computed 0 tokens"),
        ([QuerySpan(0, 5, (0, 1, 2, 3, 4))], [], "of 4 were to come"),
        ([QuerySpan(0, 3, (0, 2))], [], "repeat or miss"),
        ([QuerySpan(0, 2, (0, 0, 1))], [], "repeat or miss"),
        ([QuerySpan(0, 2, (0, 1, 2))], [], "not been computed"),
        ([QuerySpan(0, 2, (-1, 0, 1))], [], "not been computed"),
        ([QuerySpan(0, 2, (0, 1))], [Sampled(2, 5)], "no forward computed"),
        ([QuerySpan(0, 2, (0, 1))], [Sampled(-1, 5)], "no forward computed"),
        ([], [Sampled(0, 5)], "no forward computed"),
        ([QuerySpan(0, 2, (0, 1))], [Sampled(1, VOCAB_SIZE)], "outside the model's 0 to 60"),
        ([QuerySpan(0, 4, (0, 1, 2, 3))], [Sampled(3, 5)], "outside the model's 0 to 60"),
    ],
)
def test_a_history_that_is_none_is_refused(
    oracle: Oracle, spans: list[QuerySpan], outputs: list[Sampled], complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"request r, epoch 3: .*{complaint}"):
        oracle.check(EpochHistory("r", 3, [1, 2, 3, -1], spans, outputs))


class TestLoading:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_it_runs_in_the_engines_dtype(self, model_path: Path, dtype: str) -> None:
        oracle = Oracle(model_path, dtype=dtype)
        assert oracle.model.dtype == getattr(torch, dtype)
        assert oracle.check(serve(oracle.model.float(), num_outputs=3)).matched == 3

    def test_it_is_quiet_and_leaves_torchs_threads_alone(
        self, model_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        before = torch.get_num_threads()
        oracle = Oracle(model_path, threads=before + 1)
        oracle.check(serve(oracle.model, num_outputs=1))
        assert torch.get_num_threads() == before
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"dtype": "int8"}, "use one of float32"),
            ({"tie_gap": -0.1}, "give 0 or more"),
            ({"tie_gap": float("nan")}, "give 0 or more"),
            ({"threads": 0}, "give 1 or more"),
        ],
    )
    def test_settings_that_make_no_sense_are_refused(
        self, model_path: Path, settings: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(UsageError, match=complaint):
            Oracle(model_path, **settings)

    def test_a_folder_that_is_no_model_is_refused(self, tmp_path: Path, model_path: Path) -> None:
        with pytest.raises(UsageError, match="give the folder of the model"):
            Oracle(tmp_path / "missing")
        (tmp_path / "config.json").write_bytes((model_path / "config.json").read_bytes())
        with pytest.raises(UsageError, match="give the folder of the model"):
            Oracle(tmp_path)
        (tmp_path / "model.safetensors").write_bytes((model_path / "model.safetensors").read_bytes()[:-99])
        with pytest.raises(UsageError, match="give the folder of the model"):
            Oracle(tmp_path)

    def test_weights_that_are_missing_are_not_made_up(self, tmp_path: Path, model_path: Path) -> None:
        config = json.loads((model_path / "config.json").read_text())
        config["num_hidden_layers"] = 3
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes((model_path / "model.safetensors").read_bytes())
        with pytest.raises(UsageError, match=r"has no model\.layers\.2\."):
            Oracle(tmp_path)

    def test_a_model_with_sliding_windows_is_refused(self, tmp_path: Path) -> None:
        MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)).save_pretrained(tmp_path)
        with pytest.raises(UsageError, match="sliding-window"):
            Oracle(tmp_path)

    def test_a_model_without_attention_is_refused(self, tmp_path: Path) -> None:
        config = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=16, state_size=4, num_hidden_layers=1)
        MambaForCausalLM(config).save_pretrained(tmp_path)
        with pytest.raises(UsageError, match="cannot check MambaForCausalLM"):
            Oracle(tmp_path)

    def test_a_model_that_does_not_use_the_mask_is_refused(self) -> None:
        class CausalOnly(LlamaForCausalLM):
            def forward(self, attention_mask: torch.Tensor, **inputs: Any) -> Any:
                return super().forward(**inputs)

        class Blind(LlamaForCausalLM):
            def forward(self, attention_mask: torch.Tensor, **inputs: Any) -> Any:
                itself_only = torch.full_like(attention_mask, float("-inf"))
                itself_only.diagonal(dim1=2, dim2=3).zero_()
                return super().forward(attention_mask=itself_only, **inputs)

        for model_class in (CausalOnly, Blind):
            model = model_class(LlamaConfig(**SHAPE, attn_implementation="eager"))
            with pytest.raises(UsageError, match=f"cannot check {model_class.__name__}"):
                refuse_unless_mask_is_used(model.eval())
