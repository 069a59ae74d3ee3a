"""The oracle: one masked forward of the same model in transformers says what each output had to be.

Keys are cached after rotary embedding at their logical positions, so an engine that evicts, moves
and reads correctly computes what one forward over the whole sequence computes under the mask
``M[q, k] = k <= q and k visible when q was computed``. Nothing of vToken is needed to believe it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.history import EpochHistory
from conformance.model import quiet_transformers

# See Oracle's docstring for their derivation.
TIE_GAPS = {"float32": 5e-4, "float16": 0.2, "bfloat16": 1.5}


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
    """How many outputs agree; ``tokens`` is the sum of ``matched``, ``ties`` and ``mismatched``.

    ``largest_tie_gap`` is the largest gap that passed as a tie, ``smallest_top2_gap`` the smallest
    between the two best logits of an output; None where there was no tie, or no output.
    """

    tokens: int = 0
    matched: int = 0
    ties: int = 0
    mismatched: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    largest_tie_gap: float | None = None
    smallest_top2_gap: float | None = None


class Oracle:
    """Checks greedy outputs against a masked forward of the same model, with eager attention on the CPU.

    An output that is not the oracle's best token is a tie when ``best logit - logit of the sampled
    token <= tie_gap``. That is stricter than to ask that the two best logits lie that close: a third
    token is no tie. Two implementations whose logits differ by at most e can disagree only on tokens
    whose logits lie at most 2e apart, so the default gaps are 2e with a margin. e is the largest
    difference between the 20 best logits of vLLM 0.32 on a CPU and those of transformers 5.19, on
    greedy outputs of SmolLM2-135M-Instruct to prompts of ``prompts.python_reference`` (300 to 1,500
    tokens, best logits about 40):

    ========  =======  =======  ========  =======================================================
    dtype     e        tie gap  outputs   top-2 gaps within the tie gap
    ========  =======  =======  ========  =======================================================
    float32   9.0e-5   5e-4     512       0
    bfloat16  0.625    1.5      192       104: ties say little, so check in float32 where you can
    float16   0.079    0.2      192       30, measured once and not recorded
    ========  =======  =======  ========  =======================================================

    ``python -m benchmarks.oracle_gap`` makes benchmarks/results/oracle_gap_*.json.
    Another model with larger logits, or a device that multiplies float32 in lower precision, needs
    its own gap.
    """

    def __init__(
        self,
        model_path: Path | str,
        dtype: str = "float32",
        tie_gap: float | None = None,
        threads: int | None = None,
    ) -> None:
        """Load the model, offline.

        Args:
            model_path: folder of the model that the engine served.
            dtype: the engine's: float32, bfloat16 or float16.
            tie_gap: largest gap of a tie in logits; None for the default of the dtype.
            threads: CPU threads during a check; None leaves torch's setting.

        Raises UsageError when the model cannot be loaded or does not attend as a given mask says.
        """
        if dtype not in TIE_GAPS:
            raise UsageError(f"the oracle cannot run in {dtype}: use one of {', '.join(TIE_GAPS)}")
        if tie_gap is not None and not tie_gap >= 0:
            raise UsageError(f"the tie gap {tie_gap} is not a distance between logits: give 0 or more")
        if threads is not None and threads < 1:
            raise UsageError(f"the oracle cannot run on {threads} threads: give 1 or more")
        self.tie_gap = TIE_GAPS[dtype] if tie_gap is None else tie_gap
        self.threads = threads
        self.model = load_model(model_path, dtype)
        refuse_unless_mask_is_used(self.model)

    def check(self, history: EpochHistory) -> OracleResult:
        """Compare every output of one epoch with what the model says under the epoch's visibility.

        Takes one forward over all computed tokens: memory and time grow with their square. An epoch
        without outputs has nothing to compare, and the model does not run.

        Raises ValueError when the history is not that of one epoch of this model: see
        ``validate_history``.
        """
        validate_history(history, self.model.config.get_text_config().vocab_size)
        if not history.outputs:
            return OracleResult()
        num_tokens = end_of(history)
        with torch_threads(self.threads):
            logits = masked_logits(
                self.model,
                history.vocab_ids[:num_tokens],
                visibility_mask(history),
                [output.token_id for output in history.outputs],
            )
        return compare(history, logits, self.tie_gap)


def compare(history: EpochHistory, logits: Any, tie_gap: float) -> OracleResult:
    """Compare the outputs of an epoch with the logits that they were sampled from.

    Args:
        history: the epoch; it has outputs.
        logits: torch float32 tensor [num_outputs, vocab_size], in the order of the outputs.
        tie_gap: largest gap of a tie.

    Raises ValueError when a logit is not a finite number: such logits order nothing.
    """
    if not bool(logits.isfinite().all()):
        raise ValueError(f"the oracle's logits for request {history.req_id} are not all finite")
    best, expected = logits.topk(2, dim=-1)
    result = OracleResult(tokens=len(history.outputs))
    result.smallest_top2_gap = float((best[:, 0] - best[:, 1]).min())
    for row, output in enumerate(history.outputs):
        gap = float(best[row, 0] - logits[row, output.vocab_id])
        if int(expected[row, 0]) == output.vocab_id:
            result.matched += 1
        elif gap <= tie_gap:
            result.ties += 1
            result.largest_tie_gap = max(gap, result.largest_tie_gap or 0.0)
        else:
            result.mismatched += 1
            result.mismatches.append(
                Mismatch(
                    req_id=history.req_id,
                    epoch=history.epoch,
                    token_id=output.token_id,
                    expected=int(expected[row, 0]),
                    sampled=output.vocab_id,
                    gap=gap,
                )
            )
    return result


def validate_history(history: EpochHistory, vocab_size: int) -> None:
    """Raise ValueError unless the spans cover tokens 0 and on, each sees itself, and outputs are theirs.

    Args:
        history: the epoch.
        vocab_size: of the model; every vocabulary id is below it.
    """
    name = f"request {history.req_id}, epoch {history.epoch}"
    covered = 0
    for span in history.spans:
        first, end = span.first_token_id, span.first_token_id + span.num_query
        if first != covered or span.num_query < 1 or end > len(history.vocab_ids):
            raise ValueError(
                f"{name}: a forward computed {span.num_query} tokens from {first} on, where tokens from "
                f"{covered} on of {len(history.vocab_ids)} were to come"
            )
        visible = set(span.visible)
        if len(visible) != len(span.visible) or not visible.issuperset(range(first, end)):
            raise ValueError(f"{name}: the tokens visible to the forward at {first} repeat or miss its own")
        if min(visible) < 0 or max(visible) >= end:
            raise ValueError(f"{name}: the forward at {first} sees tokens that have not been computed")
        covered = end
    for output in history.outputs:
        if not 0 <= output.token_id < covered:
            raise ValueError(f"{name}: no forward computed the token {output.token_id} of an output")
    vocab_ids = [*history.vocab_ids[:covered], *(output.vocab_id for output in history.outputs)]
    if vocab_ids and not 0 <= min(vocab_ids) <= max(vocab_ids) < vocab_size:
        raise ValueError(f"{name}: a vocabulary id is outside the model's 0 to {vocab_size - 1}")


def end_of(history: EpochHistory) -> int:
    """Return how many tokens the epoch's forwards computed."""
    return sum(span.num_query for span in history.spans)


def visibility_mask(history: EpochHistory) -> Any:
    """Return the epoch's mask M[q, k], a torch bool tensor [num_tokens, num_tokens]."""
    import torch

    num_tokens = end_of(history)
    mask = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    for span in history.spans:
        queries = slice(span.first_token_id, span.first_token_id + span.num_query)
        mask[queries, list(span.visible)] = True
    return mask.tril_()


def masked_logits(model: Any, vocab_ids: list[int], mask: Any, positions: list[int]) -> Any:
    """Return a model's logits at some positions of a sequence under a mask.

    Args:
        model: a transformers causal language model with eager attention.
        vocab_ids: the sequence; token q has position q.
        mask: torch bool tensor [num_tokens, num_tokens]: query q may read key k. Each reads itself.
        positions: where logits are wanted; the others never meet the vocabulary.

    Returns: torch float32 tensor [len(positions), vocab_size].
    """
    import torch

    additive = torch.zeros(1, 1, *mask.shape, dtype=model.dtype).masked_fill_(~mask, float("-inf"))
    with torch.inference_mode():
        outputs = model(
            input_ids=torch.tensor([vocab_ids]),
            attention_mask=additive,
            use_cache=False,
            logits_to_keep=torch.tensor(positions),
        )
    return outputs.logits[0].float()


def load_model(model_path: Path | str, dtype: str) -> Any:
    """Load a causal language model with eager attention; raises UsageError when that is not possible."""
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise UsageError(f"the oracle needs torch and transformers: pip install them ({error})") from error
    try:
        with quiet_transformers():
            model, loading = AutoModelForCausalLM.from_pretrained(
                str(model_path),
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"transformers cannot load a causal language model with eager attention from {model_path}, give "
            f"the folder of the model that was served: {reason}"
        ) from error
    # transformers makes up the weights that a folder lacks.
    if loading["missing_keys"]:
        raise UsageError(
            f"the model folder {model_path} has no {min(loading['missing_keys'])}: give one with all weights"
        )
    return model.eval()


def refuse_unless_mask_is_used(model: Any) -> None:
    """Raise UsageError unless the model reads exactly the tokens that a mask shows it.

    Under a mask that hides token 0 from the last query, and from every token that this query reads,
    the logits must not depend on token 0; with nothing hidden they must. Sliding windows are asked
    for by name: they hide nothing in a sequence this short.
    """
    import torch

    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise UsageError("the oracle knows no sliding-window attention: serve a model without it")
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    hidden = causal.clone()
    hidden[1:, 0] = False
    sequences = [0, 1, 2, 3], [4, 1, 2, 3]
    try:
        under_causal = [masked_logits(model, sequence, causal, [3]) for sequence in sequences]
        under_hidden = [masked_logits(model, sequence, hidden, [3]) for sequence in sequences]
        obeys = torch.equal(*under_hidden) and not torch.equal(*under_causal)
    except (RuntimeError, TypeError, ValueError):
        obeys = False
    if not obeys:
        raise UsageError(
            f"the oracle cannot check {type(model).__name__}, which does not attend as a mask says: serve "
            "a decoder-only model with full attention"
        )


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Let torch use that many CPU threads inside the block; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
