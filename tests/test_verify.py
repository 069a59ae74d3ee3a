"""``vtoken verify`` as a person runs it: the real model, real text, a real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.model import resolve_model
from tests.engine_support import save_tiny_model

pytestmark = pytest.mark.engine

REPORT_FIELDS = {
    "verdict": str,
    "events": int,
    "tokens_evicted": int,
    "kv_hashes_compared": int,
    "relocations": int,
    "blocks_reclaimed": int,
    "bytes_moved": int,
    "oracle": dict,
    "blocks": dict,
    "leaked_blocks": int,
    "trace": str,
    "versions": dict,
}


@pytest.fixture(scope="module", autouse=True)
def converted_model() -> None:
    resolve_model(None)


def vtoken(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conformance", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("policy", ["streaming_llm", "sliding_window", "random"])
def test_a_real_model_on_real_text_is_verified(tmp_path: Path, policy: str) -> None:
    out = tmp_path / "run"
    small = ["--num-prompts", 2, "--max-tokens", 40, "--budget", 128]
    done = vtoken("verify", "--json", "--out", out, "--policy", policy, *small)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    for name, kind in REPORT_FIELDS.items():
        assert isinstance(report[name], kind), name
    assert report["verdict"] == "pass"
    assert report["oracle"]["mismatched"] == 0
    assert report["oracle"]["matched"] + report["oracle"]["ties"] == report["oracle"]["tokens"] > 40
    assert report["tokens_evicted"] > 0 and report["blocks_reclaimed"] > 0
    assert bool(report["notes"]) == (report["relocations"] == 0)
    assert report["blocks"]["retained"] <= report["blocks"]["packed_ideal"] + 1
    outputs = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
    assert sum(len(row["token_ids"]) for row in outputs) == report["oracle"]["tokens"]
    replayed = vtoken("replay", report["trace"], "--json")
    assert json.loads(replayed.stdout) == {"verdict": "pass", "events": report["events"]}


def test_the_table_ends_with_the_verdict(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        json.dumps({"conversations": [{"from": "human", "value": "Name three colours. " * 20}]})
        + "\n"
        + json.dumps({"context": "Water boils at 100 degrees. " * 20, "input": "When does water boil?"})
        + "\n"
    )
    done = vtoken(
        "verify", "--prompts", prompts, "--max-tokens", 24, "--budget", 64, "--out", tmp_path / "run"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[-1] == "PASS"
    assert "2 requests" in done.stdout and "oracle matches" in done.stdout


def test_a_preempted_request_of_a_real_model_is_verified(tmp_path: Path) -> None:
    # 85 to 100 tokens each, so two start in 8 blocks and cannot both grow to 5.
    prompts = tmp_path / "prompts.txt"
    topics = ("country there is", "river in Europe", "word that rhymes with tree", "planet", "kind of bread")
    prompts.write_text("".join(f"Name every {topic}. " * 13 + "\n" for topic in topics))
    options = ["--policy", "random", "--budget", 112, "--max-tokens", 60, "--num-blocks", 8]
    done = vtoken("verify", "--json", "--prompts", prompts, "--out", tmp_path / "run", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = json.loads(done.stdout)
    assert report["preemptions"] > 0 and report["tokens_evicted"] > 0
    assert (report["oracle"]["mismatched"], report["leaked_blocks"]) == (0, 0)


def test_a_policy_that_breaks_its_contract_fails(tmp_path: Path) -> None:
    (tmp_path / "greedy_policy.py").write_text(
        "class Greedy:\n    min_budget = 1\n\n"
        "    def select_victims(self, view):\n        return view.live_ids\n"
    )
    options = ["--policy", "greedy_policy:Greedy", "--num-prompts", 1, "--max-tokens", 8, "--budget", 128]
    done = vtoken("verify", "--json", "--out", tmp_path / "run", *options, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "fail"
    (problem,) = report["problems"]
    assert problem.startswith("engine: VT-POLICY-002 policy-count: Greedy returned ")


def test_an_engine_that_serves_another_model_fails(tmp_path: Path) -> None:
    """The whole job can fail: outputs that the model would not give are found by the oracle."""
    code = """
import sys
from pathlib import Path
import conformance.verify as verify
from conformance import cli
real, other = verify.Oracle, Path(sys.argv.pop())
verify.Oracle = lambda model: real(other)
cli.main()
"""
    tiny = save_tiny_model(tmp_path / "tiny", vocab_size=49152)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", str(tiny), str(other)], check=True)
    from safetensors.torch import load_file, save_file

    weights = load_file(other / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / name).write_bytes((resolve_model(None) / name).read_bytes())
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("!\"#$%&'()*+,-./0123456789 " * 8 + "\n")
    arguments = ["verify", "--json", "--model", tiny, "--prompts", prompts, "--max-tokens", "24"]
    arguments += ["--budget", "64", "--out", tmp_path / "run", other]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "fail" and report["oracle"]["mismatched"] > 0
    assert report["replay"]["verdict"] == "pass"
