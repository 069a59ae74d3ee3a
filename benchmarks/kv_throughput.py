"""Throughput of fingerprints and relocation, as ratios to a plain copy of the same bytes in the same run.

OMP_NUM_THREADS=1 python -m benchmarks.kv_throughput --json kv_throughput.json
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch

from benchmarks.provenance import provenance
from gpu_impl.fingerprint import fingerprints
from gpu_impl.kv_cache import cpu_attention_layout, generic_layout
from gpu_impl.relocate import relocate
from vtoken_ref.events import Move

# SmolLM2-135M: 46,080 bytes a token in float32.
NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 30, 3, 64, 32
LAYOUTS = {"generic": generic_layout, "cpu_attention": cpu_attention_layout}


def make_cache(layout, num_blocks, dtype):
    shape = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
    return LAYOUTS[layout]([torch.randn(shape).to(dtype) for _ in range(NUM_LAYERS)], BLOCK_SIZE)


def choose_slots(pattern, num_tokens, num_slots):
    """Sources and destinations of ``num_tokens`` moves."""
    if pattern == "contiguous":
        return range(num_slots - num_tokens, num_slots), range(num_tokens)
    chosen = random.Random(0).sample(range(num_slots), 2 * num_tokens)
    return sorted(chosen[:num_tokens]), sorted(chosen[num_tokens:])


def seconds_of_each(functions, num_repeats):
    """Least seconds of each function, the functions in turn so that a busy machine slows all alike."""
    least = [float("inf")] * len(functions)
    for _ in range(num_repeats):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            least[index] = min(least[index], time.perf_counter() - start)
    return least


def measure(layout, pattern, num_tokens, dtype, num_repeats):
    # Four times as many slots as tokens: isolated tokens rarely share a block's cache lines.
    cache = make_cache(layout, -(-4 * num_tokens // BLOCK_SIZE), dtype)
    sources, destinations = choose_slots(pattern, num_tokens, cache.num_slots)
    moves = list(map(Move, range(num_tokens), sources, destinations))
    slots = torch.tensor(sources, dtype=torch.int64)
    nbytes = num_tokens * cache.nbytes_per_token
    plain, plain_copy = torch.ones(2, nbytes, dtype=torch.uint8)
    operations = {
        "copy": lambda: plain_copy.copy_(plain),
        "fingerprint": lambda: fingerprints(cache, slots),
        "relocate": lambda: relocate(cache, moves),
    }
    copy_seconds, *seconds = seconds_of_each(list(operations.values()), num_repeats)
    return [
        {
            "operation": operation,
            "layout": layout,
            "pattern": pattern,
            "num_tokens": num_tokens,
            "nbytes": nbytes,
            "gigabytes_per_second": nbytes / least / 1e9,
            "copy_gigabytes_per_second": nbytes / copy_seconds / 1e9,
            "ratio_to_copy": copy_seconds / least,
        }
        for operation, least in zip(list(operations)[1:], seconds, strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description="KV throughput: fingerprints and relocation against a copy")
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 1000, 4000], help="tokens per call")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    arguments = parser.parse_args()

    results = []
    print(f"{arguments.dtype}, {torch.get_num_threads()} thread(s)")
    print(f"{'operation':12} {'layout':14} {'pattern':11} tokens   GB/s copy GB/s  ratio")
    for num_tokens in arguments.tokens:
        for layout in LAYOUTS:
            for pattern in ("contiguous", "isolated"):
                dtype = getattr(torch, arguments.dtype)
                for result in measure(layout, pattern, num_tokens, dtype, arguments.repeats):
                    results.append(result)
                    print(
                        f"{result['operation']:12} {layout:14} {pattern:11} {num_tokens:6}"
                        f" {result['gigabytes_per_second']:6.2f} {result['copy_gigabytes_per_second']:9.2f}"
                        f" {result['ratio_to_copy']:6.3f}"
                    )
    if arguments.json:
        command = f"python -m benchmarks.kv_throughput --dtype {arguments.dtype}"
        report = {
            **provenance(command),
            "dtype": arguments.dtype,
            "num_threads": torch.get_num_threads(),
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
