"""How far logits of vLLM and of transformers lie apart: what the oracle's tie gap is made of.

Usage: python -m benchmarks.oracle_gap [--dtype float32] [--prompts 8] [--json FILE]
Serves greedy outputs with plain vLLM, asks for its 20 best raw logits, and compares each with that of
the same token in an eager transformers forward of the same sequence.
"""

import argparse
import json
from pathlib import Path

import torch

from benchmarks.provenance import provenance
from conformance.model import load_tokenizer, resolve_model
from conformance.oracle import TIE_GAPS, load_model, masked_logits
from conformance.prompts import python_reference
from gpu_impl.vllm.port import import_vllm

NUM_LOGITS, NUM_OUTPUTS = 20, 64


def served_logits(model: Path, prompts: list[list[int]], dtype: str) -> list[list[dict[int, float]]]:
    """Return, for each prompt and output, the best raw logits of vLLM by vocabulary id, the sampled first."""
    import_vllm()
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    args = EngineArgs(
        model=str(model),
        dtype=dtype,
        max_model_len=2048,
        enforce_eager=True,
        enable_prefix_caching=False,
        logprobs_mode="raw_logits",
        max_logprobs=NUM_LOGITS,
    )
    engine = LLMEngine.from_engine_args(args)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, logprobs=NUM_LOGITS, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update({output.request_id: output.outputs[0] for output in engine.step()})
    engine.engine_core.shutdown()
    served = []
    for index in range(len(prompts)):
        output = outputs[str(index)]
        rows = zip(output.token_ids, output.logprobs, strict=True)
        served.append(
            [
                {sampled: row[sampled].logprob, **{token: entry.logprob for token, entry in row.items()}}
                for sampled, row in rows
            ]
        )
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=sorted(TIE_GAPS), default="float32")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = resolve_model(None)
    found = python_reference(load_tokenizer(model), options.prompts)
    prompts = [list(prompt.token_ids) for prompt in found]
    reference = load_model(model, options.dtype)
    differences, gaps = [], []
    for prompt, rows in zip(prompts, served_logits(model, prompts, options.dtype), strict=True):
        sequence = [*prompt, *[next(iter(row)) for row in rows][:-1]]
        causal = torch.ones(len(sequence), len(sequence), dtype=torch.bool).tril()
        positions = list(range(len(prompt) - 1, len(sequence)))
        logits = masked_logits(reference, sequence, causal, positions)
        for row, expected in zip(rows, logits, strict=True):
            differences += [abs(float(expected[token]) - logit) for token, logit in row.items()]
            best = expected.topk(2).values
            gaps.append(float(best[0] - best[1]))
    tie_gap = TIE_GAPS[options.dtype]
    report = {
        **provenance(f"python -m benchmarks.oracle_gap --dtype {options.dtype} --prompts {options.prompts}"),
        "seed": 0,
        "dtype": options.dtype,
        "outputs": len(gaps),
        "logits_compared": len(differences),
        "largest_difference": max(differences),
        "tie_gap": tie_gap,
        "tie_gap_over_twice_the_difference": tie_gap / (2 * max(differences)),
        "top2_gaps_within_the_tie_gap": sum(gap <= tie_gap for gap in gaps),
    }
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
