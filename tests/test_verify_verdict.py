"""The verdict of ``vtoken verify``: each thing that can be wrong makes it no pass."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from conformance.history import EpochHistory, Sampled
from conformance.observers import HistoryRecorder, RunFigures
from conformance.oracle import Mismatch, OracleResult
from conformance.port import Served, ServeJob, ServeResult
from conformance.replay import ReplayResult
from conformance.verdict import Verdict
from conformance.verify import VerifyOptions, _report

OPTIONS = VerifyOptions(
    model=None,
    prompts=None,
    num_prompts=None,
    policy="streaming_llm",
    policy_args={},
    budget=8,
    max_tokens=4,
    concurrency=1,
    block_size=32,
    num_blocks=None,
    theta_f=Fraction(0),
    low_watermark=None,
    seed=0,
    port="vllm",
    out=None,
)
JOB = ServeJob(model=Path("model"), prompts={"p": [1]}, max_new_tokens=4, trace=Path("trace.jsonl"))


def report(
    served: tuple[int, ...] = (5, 6),
    traced: tuple[int, ...] = (5, 6),
    leaked: int = 0,
    replayed: ReplayResult | None = None,
    judged: OracleResult | None = None,
) -> dict[str, Any]:
    """A report of one request; a pass unless something is given."""
    history = HistoryRecorder()
    outputs = [Sampled(at, vocab_id) for at, vocab_id in enumerate(traced)]
    history.epochs["p", 0] = EpochHistory("p", 0, outputs=outputs)
    result = ServeResult((Served("p", served, "length"),), leaked, 1.0, {})
    passed = replayed or ReplayResult(Verdict.PASS, 10)
    agreed = judged or OracleResult(tokens=len(traced), matched=len(traced))
    return _report(JOB, OPTIONS, result, passed, RunFigures(), history, [agreed])


def mismatches(count: int) -> OracleResult:
    found = [Mismatch("p", 0, at, 1, 2, 0.5) for at in range(count)]
    return OracleResult(tokens=2, matched=2 - count, mismatched=count, mismatches=found)


def test_everything_right_is_a_pass() -> None:
    assert (report()["verdict"], report()["problems"]) == ("pass", [])


@pytest.mark.parametrize(
    ("wrong", "verdict", "words"),
    [
        ({"judged": mismatches(1)}, "fail", "1 of 2 tokens are not what the model says"),
        ({"judged": OracleResult(tokens=2, ties=2)}, "fail", "2 ties in 2 tokens"),
        ({"judged": OracleResult(tokens=1499, matched=1496, ties=3)}, "fail", "3 ties"),
        ({"leaked": 1}, "fail", "1 blocks are not back"),
        ({"served": (5, 7)}, "fail", "does not hold the tokens that were served"),
        ({"served": (5,)}, "fail", "does not hold the tokens that were served"),
        (
            {"replayed": ReplayResult(Verdict.FAIL, 3, rule="VT-KV-001", line=5)},
            "fail",
            "replay, line 5: VT-KV-001",
        ),
        (
            {"replayed": ReplayResult(Verdict.INCONCLUSIVE, 3, rule="VT-TRACE-004")},
            "inconclusive",
            "VT-TRACE-004",
        ),
        ({"replayed": ReplayResult(Verdict.HARNESS_ERROR, 0, line=1)}, "harness_error", "replay"),
        ({"replayed": ReplayResult(Verdict.FAIL, 0, rule="VT-POLICY-001")}, "fail", "engine: VT-POLICY-001"),
        ({"served": (), "traced": ()}, "inconclusive", "no token was generated"),
    ],
)
def test_anything_wrong_is_no_pass(wrong: dict[str, Any], verdict: str, words: str) -> None:
    found = report(**wrong)
    assert found["verdict"] == verdict
    assert any(words in problem for problem in found["problems"]), found["problems"]


def test_few_ties_are_chance() -> None:
    assert report(judged=OracleResult(tokens=2, matched=1, ties=1))["verdict"] == "pass"
    assert report(judged=OracleResult(tokens=1500, matched=1497, ties=3))["verdict"] == "pass"


def test_the_counts_of_the_oracle_are_summed_and_its_mismatches_named() -> None:
    found = report(judged=mismatches(2))
    assert found["oracle"] == {"tokens": 2, "matched": 0, "ties": 0, "mismatched": 2}
    assert found["mismatches"][1] == {
        "req_id": "p",
        "epoch": 0,
        "token_id": 1,
        "expected": 1,
        "sampled": 2,
        "gap": 0.5,
    }
