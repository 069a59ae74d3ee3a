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


@pytest.mark.parametrize(
    ("options", "min_preemptions"),
    [
        (["--policy", "streaming_llm"], 0),
        (["--policy", "sliding_window"], 0),
        # A pool that holds both prompts but not both until they are first evicted and then grow.
        (["--policy", "random", "--num-blocks", "52", "--seed", "1"], 0),
    ],
)
def test_a_real_model_on_real_text_is_verified(
    tmp_path: Path, options: list[str], min_preemptions: int
) -> None:
    out = tmp_path / "run"
    small = ["--num-prompts", 2, "--max-tokens", 40, "--budget", 128]
    done = vtoken("verify", "--json", "--out", out, *small, *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    for name, kind in REPORT_FIELDS.items():
        assert isinstance(report[name], kind), name
    assert report["verdict"] == "pass"
    assert report["oracle"]["mismatched"] == 0
    assert report["oracle"]["matched"] + report["oracle"]["ties"] == report["oracle"]["tokens"] > 40
    assert report["tokens_evicted"] > 0 and report["blocks_reclaimed"] > 0
    assert report["preemptions"] >= min_preemptions
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


def test_an_engine_that_serves_another_model_fails(tmp_path: Path) -> None:
    """The whole job can fail: outputs that the model would not give are found by the oracle."""
    code = """
import sys
from pathlib import Path
import conformance.verify as verify
from conformance import cli
real = verify.Oracle
verify.Oracle = lambda model: real(Path(sys.argv.pop()))
cli.main()
"""
    tiny = save_tiny_model(tmp_path / "tiny", num_hidden_layers=2)
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
