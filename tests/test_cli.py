"""The command line: what it prints, and that a mistake is one sentence and exit status 2."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import cli
from tests.toy_runtime import sample_run


@pytest.fixture
def vtoken(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vtoken", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run().write(tmp_path_factory.mktemp("trace") / "trace.jsonl")


def is_one_sentence(err: str) -> bool:
    return err.startswith("vtoken: ") and err.count("\n") == 1 and "Traceback" not in err


def test_replay_of_a_correct_trace(vtoken, trace: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, err = vtoken("replay", trace)
    assert (status, out.startswith("PASS: "), err) == (0, True, "")
    status, out, _ = vtoken("replay", trace, "--json", "--paranoid")
    num_events = len(trace.read_text().splitlines()) - 1
    assert (status, json.loads(out)) == (0, {"verdict": "pass", "events": num_events})


def test_replay_of_a_tampered_trace(vtoken, trace: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lines = trace.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(b'{"event":"free"'))
    tampered = tmp_path / "tampered.jsonl"
    tampered.write_bytes(b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    status, out, _ = vtoken("replay", tampered, "--json")
    found = json.loads(out)
    assert status == 1
    assert (found["verdict"], found["rule"], found["line"]) == ("fail", "VT-POOL-004", at + 2)
    assert found["detail"] and found["state"]["num_events"] == found["events"]
    status, out, _ = vtoken("replay", tampered)
    assert status == 1 and f"FAIL at line {at + 2}: VT-POOL-004 not-fenced (I6)" in out


def test_replay_of_a_truncated_trace_is_no_pass(vtoken, trace: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(trace.read_bytes()[:-20])
    status, out, _ = vtoken("replay", cut)
    assert status == 3 and out.startswith("INCONCLUSIVE")


@pytest.mark.parametrize(
    "content", [b"no json\n", b"{}\n", b"\xff\xfe\x00\n", b'{"format":"vtoken-trace"}\n']
)
def test_a_file_that_is_no_trace(vtoken, tmp_path: Path, content: bytes) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "other"
    path.write_bytes(content)
    status, out, err = vtoken("replay", path, "--json")
    assert status == 2 and is_one_sentence(err)
    assert json.loads(out)["verdict"] == "harness_error"


def test_a_trace_that_cannot_be_opened(vtoken, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for path in (tmp_path / "missing", tmp_path):
        status, out, err = vtoken("replay", path)
        assert (status, out) == (2, "") and is_one_sentence(err), err


def test_a_broken_harness_is_no_verdict(vtoken, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(cli, "replay_trace", broken)
    status, out, err = vtoken("replay", trace)
    assert (status, out) == (2, "")
    assert "broken on purpose" in err and err.endswith("nothing was judged\n")


PHASES_ON_A_TERMINAL = """
import sys
from pathlib import Path
from conformance.capture import captured_output
from conformance.progress import Phases

with Phases() as phases:
    advance = phases.start("serve", unit="tokens")
    with captured_output(Path(sys.argv[1])):
        print("noise on stdout")
        print("noise on stderr", file=sys.stderr)
        advance(3, 7)
"""


def test_on_a_terminal_there_are_bars_and_no_noise_of_the_engine(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    command = [sys.executable, "-c", PHASES_ON_A_TERMINAL, str(tmp_path / "engine.log")]
    subprocess.run(command, check=True, stdout=terminal, stderr=terminal, stdin=terminal)
    os.close(terminal)
    shown = os.read(main, 1 << 16).decode()
    os.close(main)
    assert "serve" in shown and "3/7" in shown and "noise" not in shown
    assert (tmp_path / "engine.log").read_text() == "noise on stdout\nnoise on stderr\n"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--prompts", "no-such-file"], "no-such-file"),
        (["--budget", "4"], "at least 5"),
        (["--block-size", "48"], "multiple of 32"),
        (["--num-blocks", "3"], "blocks cannot hold one request"),
        (["--policy", "none"], "no policy 'none'"),
        (["--policy", "nowhere.at:All"], "cannot be loaded"),
        (["--policy-arg", "num_sinks=many"], "not NAME=INTEGER"),
        (["--policy-arg", "sinks=4"], "unexpected keyword argument 'sinks'"),
        (["--port", "none"], "no port 'none'"),
        (["--theta-f", "high"], "no fraction"),
        (["--theta-f", "2"], "outside 0 to 1"),
        (["--max-tokens", "8000"], "maximum model length"),
    ],
)
def test_a_job_that_cannot_be_served(vtoken, tmp_path: Path, options: list[str], words: str) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "run"
    status, printed, err = vtoken("verify", "--out", out, *options)
    assert (status, printed) == (2, "") and is_one_sentence(err) and words in err, err
    assert not out.exists()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no prompts"),
        ('{"conversations": [', "prompts"),
        ('{"prompt": "%s"}' % ("word " * 9000), "maximum model length"),
    ],
)
def test_prompts_that_cannot_be_served(vtoken, tmp_path: Path, content: str, words: str) -> None:  # type: ignore[no-untyped-def]
    prompts, out = tmp_path / "prompts", tmp_path / "run"
    prompts.write_text(content)
    status, printed, err = vtoken("verify", "--out", out, "--prompts", prompts)
    assert (status, printed) == (2, "") and is_one_sentence(err) and words in err, err
    assert not out.exists()


@pytest.mark.engine
def test_a_run_folder_is_never_overwritten(vtoken, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "kept").write_text("kept")
    status, _, err = vtoken("verify", "--out", tmp_path)
    assert status == 2 and is_one_sentence(err) and "exists" in err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.engine
def test_another_vllm_is_refused(vtoken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from gpu_impl.vllm.port import import_vllm

    import_vllm()
    monkeypatch.setattr("gpu_impl.vllm.config.vllm_version", lambda: "0.31.0")
    status, _, err = vtoken("verify", "--out", tmp_path / "run")
    assert status == 2 and is_one_sentence(err) and "found 0.31.0" in err
    assert not (tmp_path / "run").exists()
