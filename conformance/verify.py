"""``vtoken verify``: serve real text under eviction, replay the trace, ask the oracle, and say so."""

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.capture import captured_output
from conformance.errors import UsageError
from conformance.model import load_tokenizer, resolve_model
from conformance.observers import HistoryRecorder, RunFigures
from conformance.oracle import Oracle, OracleResult
from conformance.port import ObservedPort, ServeJob, ServeResult, load_policy, load_port
from conformance.progress import Phases
from conformance.prompts import Prompt, check_lengths, load, python_reference
from conformance.replay import ReplayResult, replay
from conformance.verdict import Verdict
from vtoken_ref.rules import VTokenError

DEFAULT_NUM_PROMPTS = 8
TIES_ALLOWED_PER = 500  # One tie is always allowed, then one in so many tokens.


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of the command; see ``vtoken verify --help``."""

    model: str | None
    prompts: Path | None
    num_prompts: int | None
    policy: str
    policy_args: dict[str, int]
    budget: int
    max_tokens: int
    concurrency: int
    block_size: int
    num_blocks: int | None
    theta_f: Fraction
    low_watermark: int | None
    seed: int
    port: str
    out: Path | None


def run(options: VerifyOptions, phases: Phases) -> dict[str, Any]:
    """Do the whole job and return the report, which is also in the run folder.

    Raises:
        UsageError: the options cannot be served; no run folder is left behind.

    """
    port = load_port(options.port)
    load_policy(options.policy, options.policy_args, options.seed)
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"vtoken verify needs {name} and an engine: use the environment that `make env` makes"
            )
    advance = phases.start("model", unit="")
    model = resolve_model(options.model, progress=lambda _: advance(0, None))
    prompts = _prompts(options, model)
    advance(1, 1)
    check_lengths(prompts, _max_model_len(model), options.max_tokens)
    out = options.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{options.policy.replace(':', '.')}"
    job = _job(options, model, prompts, out / "trace.jsonl")
    with captured_output(Path(os.devnull)):
        port.check(job)
    with _run_folder(out):
        return _run(port, job, options, out, phases)


def _run(
    port: ObservedPort, job: ServeJob, options: VerifyOptions, out: Path, phases: Phases
) -> dict[str, Any]:
    figures, history = RunFigures(), HistoryRecorder()
    judged: list[OracleResult] = []
    try:
        with captured_output(out / "engine.log"):
            served = port.serve(job, phases.start("serve", unit="tokens"))
    except VTokenError as error:
        # The runtime itself noticed that a rule broke, or a policy did: there is no run to judge.
        served = ServeResult((), None, 0.0, {})
        replayed = ReplayResult(
            Verdict.FAIL, 0, None, error.rule, error.code, error.invariant, detail=error.detail
        )
    else:
        _write_outputs(out / "outputs.jsonl", served, load_tokenizer(job.model))
        advance = phases.start("replay", unit="events")
        assert job.trace is not None
        replayed = replay(job.trace, (figures, history), progress=lambda events: advance(events, None))
        advance(replayed.events, replayed.events)
        # A trace that breaks a rule does not say what was visible: there is nothing for the oracle to judge.
        if replayed.verdict is Verdict.PASS:
            judged = _judge(job.model, history, phases)
    report = _report(job, options, served, replayed, figures, history, judged)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _prompts(options: VerifyOptions, model: Path) -> list[Prompt]:
    tokenizer = load_tokenizer(model)
    if options.prompts is not None:
        return load(options.prompts, tokenizer, limit=options.num_prompts)
    return python_reference(tokenizer, options.num_prompts or DEFAULT_NUM_PROMPTS, seed=options.seed)


def _max_model_len(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["max_position_embeddings"])


def _job(options: VerifyOptions, model: Path, prompts: list[Prompt], trace: Path) -> ServeJob:
    return ServeJob(
        model=model,
        prompts={prompt.name: prompt.token_ids for prompt in prompts},
        max_new_tokens=options.max_tokens,
        policy=options.policy,
        policy_args=options.policy_args,
        seed=options.seed,
        budget=options.budget,
        theta_f=options.theta_f,
        low_watermark=options.low_watermark,
        concurrency=options.concurrency,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        trace=trace,
    )


@contextlib.contextmanager
def _run_folder(out: Path) -> Iterator[None]:
    """Make a new folder, and take it away again when the job turns out to be no job."""
    try:
        out.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"run folder {out} exists; give another one with --out") from error
    except OSError as error:
        raise UsageError(
            f"cannot make run folder {out}: {error.strerror}; give another one with --out"
        ) from error
    try:
        yield
    except UsageError:
        shutil.rmtree(out)
        raise


def _write_outputs(path: Path, served: ServeResult, tokenizer: Any) -> None:
    with path.open("w") as file:
        for request in served.requests:
            row = {
                "name": request.name,
                "text": tokenizer.decode(list(request.token_ids), skip_special_tokens=True),
                "token_ids": list(request.token_ids),
                "finish_reason": request.finish_reason,
            }
            file.write(json.dumps(row) + "\n")


def _judge(model: Path, history: HistoryRecorder, phases: Phases) -> list[OracleResult]:
    advance = phases.start("oracle", unit="sequences")
    oracle = Oracle(model)
    results: list[OracleResult] = []
    for epoch in history.epochs.values():
        advance(len(results), len(history.epochs))
        results.append(oracle.check(epoch))
    advance(len(results), len(history.epochs))
    return results


def _report(
    job: ServeJob,
    options: VerifyOptions,
    served: ServeResult,
    replayed: ReplayResult,
    figures: RunFigures,
    history: HistoryRecorder,
    judged: list[OracleResult],
) -> dict[str, Any]:
    counts = {
        name: sum(getattr(result, name) for result in judged)
        for name in ("tokens", "matched", "ties", "mismatched")
    }
    same_outputs = sorted(history.outputs().values()) == sorted(list(r.token_ids) for r in served.requests)
    problems = _problems(served, replayed, counts, same_outputs)
    verdict = replayed.verdict
    if problems and verdict is Verdict.PASS:
        verdict = Verdict.FAIL
    if not problems and not counts["tokens"]:
        verdict, problems = Verdict.INCONCLUSIVE, ["no token was generated, so nothing was verified"]
    return {
        "verdict": verdict.value,
        "problems": problems,
        "notes": _notes(figures),
        "events": replayed.events,
        "requests": len(served.requests),
        "preemptions": figures.preemptions,
        "tokens_evicted": figures.tokens_evicted,
        "kv_hashes_compared": figures.kv_hashes_compared,
        "relocations": figures.relocations,
        "blocks_reclaimed": figures.blocks_reclaimed,
        "bytes_moved": figures.bytes_moved,
        "oracle": counts,
        "mismatches": [vars_of(m) for result in judged for m in result.mismatches],
        "blocks": figures.blocks(),
        "leaked_blocks": served.leaked_blocks,
        "replay": replayed.to_json(),
        "trace": str(job.trace),
        "serve_seconds": round(served.seconds, 3),
        "options": _options(job, options),
        "versions": dict(served.versions),
    }


def _options(job: ServeJob, options: VerifyOptions) -> dict[str, Any]:
    return {
        "model": job.model.name,
        "prompts": str(options.prompts) if options.prompts else "python reference",
        "port": options.port,
        "policy": options.policy,
        "policy_args": options.policy_args,
        "budget": options.budget,
        "max_tokens": options.max_tokens,
        "concurrency": options.concurrency,
        "block_size": options.block_size,
        "num_blocks": options.num_blocks,
        "low_watermark": options.low_watermark,
        "theta_f": str(options.theta_f),
        "seed": options.seed,
    }


def _notes(figures: RunFigures) -> list[str]:
    """Say what a pass does not show, since the run did not do it."""
    if not figures.tokens_evicted:
        return ["nothing was evicted: give a smaller --budget or more --max-tokens to test eviction"]
    if not figures.relocations:
        return ["no token was moved: this policy's dead tokens filled whole blocks, or the run was too short"]
    return []


def vars_of(value: Any) -> dict[str, Any]:
    """Return the fields of a slotted dataclass by name."""
    return {name: getattr(value, name) for name in value.__slots__}


def _problems(
    served: ServeResult, replayed: ReplayResult, counts: dict[str, int], same_outputs: bool
) -> list[str]:
    problems = []
    if replayed.verdict is not Verdict.PASS:
        where = "engine" if replayed.line is None else f"replay, line {replayed.line}"
        problems.append(f"{where}: {replayed.rule} {replayed.code}: {replayed.detail}")
    if counts["mismatched"]:
        problems.append(
            f"oracle: {counts['mismatched']} of {counts['tokens']} tokens are not what the model says"
        )
    if counts["ties"] > max(1, counts["tokens"] // TIES_ALLOWED_PER):
        problems.append(
            f"oracle: {counts['ties']} ties in {counts['tokens']} tokens are too many to be chance"
        )
    if served.leaked_blocks:
        problems.append(f"pool: {served.leaked_blocks} blocks are not back in the runtime's pool")
    if replayed.verdict is Verdict.PASS and not same_outputs:
        problems.append("outputs: the trace does not hold the tokens that were served")
    return problems


def print_report(report: dict[str, Any]) -> None:
    """Print the table that ends with the verdict."""
    console = Console(highlight=False)
    oracle, blocks = report["oracle"], report["blocks"]
    rows = [
        ("events replayed", f"{report['events']:,}"),
        ("KV hashes compared", f"{report['kv_hashes_compared']:,}"),
        ("tokens evicted", f"{report['tokens_evicted']:,}"),
        ("relocations", f"{report['relocations']:,}"),
        ("bytes moved", f"{report['bytes_moved']:,}"),
        ("blocks reclaimed", f"{report['blocks_reclaimed']:,}"),
        ("blocks per request", _mean(blocks["retained"])),
        ("  packed ideal", _mean(blocks["packed_ideal"])),
        ("  without reclamation", _mean(blocks["no_reclamation"])),
        ("blocks leaked", "not known" if report["leaked_blocks"] is None else str(report["leaked_blocks"])),
        ("oracle matches", f"{oracle['matched']:,} of {oracle['tokens']:,}, {oracle['ties']} ties"),
        ("oracle mismatches", str(oracle["mismatched"])),
        ("run folder", str(Path(report["trace"]).parent)),
    ]
    options = report["options"]
    table = Table(
        title=f"{plural(report['requests'], 'request')}, {options['policy']}, budget {options['budget']}",
        show_header=False,
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for problem in (*report["problems"], *report["notes"]):
        console.print(problem, soft_wrap=True)
    console.print(report["verdict"].upper())


def plural(count: int, noun: str) -> str:
    """Return ``1 request``, ``2 requests``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _mean(value: float | None) -> str:
    return "nothing was evicted" if value is None else f"{value:.2f}"
