"""The command ``vtoken`` (also ``python -m conformance``)."""

import json
import os
import sys
import traceback
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from conformance.errors import UsageError
from conformance.progress import Phases
from conformance.replay import ReplayResult
from conformance.replay import replay as replay_trace
from conformance.verdict import Verdict
from spec.rules import sentence_of
from vtoken_ref.reclaim import parse_theta_f

DEFAULT_JOBS = os.cpu_count() or 1

app = typer.Typer(
    help="Check token-level KV-cache eviction: replay a trace, serve and judge the run, or check the spec.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="Trace file, JSON Lines (docs/trace-format.md).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    paranoid: Annotated[
        bool, typer.Option(help="Evaluate every invariant on the whole state after every event (slow).")
    ] = False,
) -> None:
    """Replay a trace through the executable spec; needs no torch and no vLLM."""
    with Phases() as phases:
        advance = phases.start("replay", unit="events")
        result = replay_trace(trace, paranoid=paranoid, progress=lambda events: advance(events, None))
    if as_json:
        print(json.dumps(result.to_json()))
    elif result.verdict is not Verdict.HARNESS_ERROR:
        print(_sentence(result))
    if result.verdict is Verdict.HARNESS_ERROR:
        print(f"vtoken: {trace} is not a readable trace: {result.detail}", file=sys.stderr)
    raise typer.Exit(result.verdict.exit_status)


def _sentence(result: ReplayResult) -> str:
    if result.verdict is Verdict.PASS:
        return f"PASS: {result.events} events"
    lines = [
        f"{result.verdict.upper()} at line {result.line}: {result.rule} {result.code} ({result.invariant})",
        f"  {result.detail}",
        f"  the rule: {sentence_of(result.rule or '')}",
        f"  {result.events} events before it passed",
    ]
    if result.state:
        lines.append(f"  state: {json.dumps(result.state)}")
    return "\n".join(lines)


@app.command()
def verify(
    model: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face model; default SmolLM2-135M-Instruct.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts: JSON Lines (ShareGPT, LongBench, prompt or text) or plain text."),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="How many prompts; default 8, or all of --prompts.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="streaming_llm, sliding_window, random, or package.module:Class.")
    ] = "streaming_llm",
    policy_arg: Annotated[
        list[str] | None, typer.Option(help="Argument of the policy, NAME=INTEGER; may be repeated.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="The most tokens that a request keeps.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens generated per prompt.")] = 128,
    concurrency: Annotated[int, typer.Option(min=1, help="The most requests running at one time.")] = 8,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 32,
    num_blocks: Annotated[
        int | None, typer.Option(min=1, help="Blocks in the pool; default enough for all that run.")
    ] = None,
    theta_f: Annotated[str, typer.Option(help="Reclaim when waste is above this fraction.")] = "0",
    low_watermark: Annotated[
        int | None,
        typer.Option(min=0, help="Reclaim when at most this many blocks are free; default always."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and policy.")] = 0,
    port: Annotated[str, typer.Option(help="vllm, or package.module:factory.")] = "vllm",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/DATE-TIME-POLICY.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json and nothing else.")] = False,
) -> None:
    """Serve real text under eviction, replay the trace, and let the masked-attention oracle judge."""
    from conformance.verify import VerifyOptions, print_report, run

    options = VerifyOptions(
        model=model,
        prompts=prompts,
        num_prompts=num_prompts,
        policy=policy,
        policy_args=_policy_args(policy_arg or []),
        budget=budget,
        max_tokens=max_tokens,
        concurrency=concurrency,
        block_size=block_size,
        num_blocks=num_blocks,
        theta_f=_theta_f(theta_f),
        low_watermark=low_watermark,
        seed=seed,
        port=port,
        out=out,
    )
    with Phases() as phases:
        report = run(options, phases)
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
    raise typer.Exit(Verdict(report["verdict"]).exit_status)


@app.command()
def check(
    section: Annotated[
        str, typer.Argument(help="proofs, explore, machines, probes, contracts, mutants, trace, or all.")
    ] = "all",
    profile: Annotated[str, typer.Option(help="How large the models are: minimal or default.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes at one time.")] = DEFAULT_JOBS,
    quick: Annotated[bool, typer.Option("--quick", help="The small version of every check.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only checks whose name begins so; may be repeated."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for everything; what is not done by then is unknown, never a pass."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for counterexamples, also of mutants; default runs/DATE-TIME-check."),
    ] = None,
) -> None:
    """Check the executable spec itself: proofs, exploration, random runs, contracts, mutants."""
    from conformance.check import SectionBars, folder_for, print_report, save_all
    from spec.check import BadInput, run, to_json
    from spec.report import Options

    options = Options(profile, quick, jobs, only=tuple(only or ()))
    folder = folder_for(out)
    bars = SectionBars()
    try:
        with bars:
            outcome = run(section, options, bars.section, timeout)
    except BadInput as error:
        raise UsageError(str(error)) from error
    found = outcome.counterexamples(everything=out is not None)
    saved, problems = save_all([(name, check.name, e.config, e.events) for name, check, e in found], folder)
    for name, problem in problems:
        outcome = outcome.with_problem(name, problem)
    report = to_json(outcome, options, saved)
    if as_json:
        print(json.dumps(report, default=str))
    else:
        print_report(report)
    raise typer.Exit(Verdict(report["verdict"]).exit_status)


def _policy_args(pairs: list[str]) -> dict[str, int]:
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = int(value)
        except ValueError as error:
            raise UsageError(f"policy argument {pair!r} is not NAME=INTEGER") from error
    return found


def _theta_f(text: str) -> Fraction:
    try:
        return parse_theta_f(text)
    except ValueError as error:
        raise UsageError(f"--theta-f: {error}") from error


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit status 2.

    So is whatever breaks in the harness or the engine, with its traceback.
    """
    try:
        app()
    except UsageError as error:
        print(f"vtoken: {error}", file=sys.stderr)
        sys.exit(Verdict.HARNESS_ERROR.exit_status)
    except Exception:
        # Python would exit with 1, which here means that something was checked and found wrong.
        traceback.print_exc()
        print("vtoken: the harness or the engine broke; nothing was judged", file=sys.stderr)
        sys.exit(Verdict.HARNESS_ERROR.exit_status)
