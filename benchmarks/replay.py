"""How many events a second replay handles on one core, against decoding the same lines with json.

Usage: python -m benchmarks.replay [TRACE] [--json FILE]
Without a trace, one is made by a toy runtime: requests of hundreds of tokens that evict all the time.
"""

import argparse
import json
import random
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from benchmarks.provenance import provenance
from conformance.observers import HistoryRecorder, RunFigures
from conformance.replay import replay
from conformance.verdict import Verdict

REPETITIONS = 5


def make_trace(path: Path) -> Path:
    """Write a trace of 16 requests of 200 to 400 prompt tokens and 300 outputs at budget 160."""
    from tests.toy_runtime import ToyRuntime
    from vtoken_ref.policies import RandomEviction

    runtime = ToyRuntime(num_blocks=16 * 26, block_size=16, policy=RandomEviction())
    lengths = random.Random(0)
    names = [f"request-{index}" for index in range(16)]
    for name in names:
        runtime.admit(name, lengths.randint(200, 400), budget=160)
    for _ in range(300):
        runtime.step(names)
    for name in names:
        runtime.finish(name)
    return runtime.write(path)


def measure(trace: Path) -> dict[str, object]:
    """Return median events a second of replay and of plain JSON decoding, interleaved."""
    lines = trace.read_bytes().splitlines()
    rates: dict[str, list[float]] = {"json": [], "replay": [], "replay_with_observers": []}
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        for line in lines:
            json.loads(line)
        rates["json"].append(len(lines) / (time.perf_counter() - started))
        for name, observers in (("replay", ()), ("replay_with_observers", (RunFigures(), HistoryRecorder()))):
            started = time.perf_counter()
            result = replay(trace, observers)
            rates[name].append(len(lines) / (time.perf_counter() - started))
            if result.verdict is not Verdict.PASS:
                raise SystemExit(f"the trace does not pass: {result}")
    medians = {name: sorted(values)[REPETITIONS // 2] for name, values in rates.items()}
    return {
        "events": len(lines) - 1,
        "bytes": trace.stat().st_size,
        "events_per_second": {name: round(value) for name, value in medians.items()},
        "replay_to_json": float(Fraction(round(medians["replay"]), round(medians["json"]))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.trace or make_trace(Path(folder) / "trace.jsonl"))
    command = "python -m benchmarks.replay" + (" TRACE" if options.trace else "")
    found = {**provenance(command), "seed": 0, **found}
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
