"""``python -m spec.machines --seconds N``: random examples until the time is over or one fails."""

import argparse
import random
import sys
import time

from spec.machines.catalogue import MACHINES, Entry
from spec.machines.runner import Limits, run_machine
from spec.machines.tally import Tally

EXAMPLES_A_ROUND = 200
SHRINK_S = 60.0


def run_long(seconds: float, only: str = "", seed: int | None = None) -> bool:
    """Run the machines in turn, each round with another seed; print every seed, and a failure.

    Args:
        seconds: how long.
        only: with which the names of the machines begin.
        seed: of the first round; None for a random one.

    Returns:
        Whether nothing failed.

    """
    entries = [entry for entry in MACHINES if entry.name.startswith(only)]
    until = time.monotonic() + seconds
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    while entries and time.monotonic() < until:
        for entry in entries:
            if time.monotonic() < until and not run_round(entry, seed, until):
                return False
        seed += 1
    return True


def run_round(entry: Entry, seed: int, until: float) -> bool:
    """Run one round of one machine; tell whether nothing failed."""
    tally, _ = run_machine(entry.machine, Limits(EXAMPLES_A_ROUND, 60, SHRINK_S, until + SHRINK_S, seed))
    print(f"{entry.name} seed {seed}: {tally.examples} examples, {tally.steps} steps", flush=True)
    if tally.problem:
        _print_failure(tally)
    return not tally.problem


def _print_failure(tally: Tally) -> None:
    print(tally.problem)
    if tally.failure is not None:
        print(tally.failure.config)
        for event in tally.failure.events:
            print(f"  {event}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m spec.machines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--only", default="", help="with which the names of the machines begin")
    parser.add_argument("--seed", type=int, help="of the first round, to repeat one")
    arguments = parser.parse_args()
    sys.exit(0 if run_long(arguments.seconds, arguments.only, arguments.seed) else 1)


if __name__ == "__main__":
    main()
