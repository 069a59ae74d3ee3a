"""A correct run passes replay; every single tampering is caught with its rule and its line."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.replay import replay
from conformance.verdict import Verdict
from gpu_impl.kv_cache import KVCache
from gpu_impl.reclaimer import Reclaimer
from tests.toy_runtime import ToyRuntime, sample_run
from vtoken_ref.events import Alloc, Commit, Copy, Event, Evict, Finish, Forward, Free, Move, Plan, Sync
from vtoken_ref.machine import Machine
from vtoken_ref.policies import RandomEviction, SlidingWindow

HEADER_LINES = 1


@pytest.fixture(scope="module")
def run() -> ToyRuntime:
    return sample_run()


def find(events: list[Event], kind: type, at: int = 0, having: Callable[[Event], bool] = bool) -> int:
    return [i for i, event in enumerate(events) if isinstance(event, kind) and having(event)][at]


def line_of(index: int) -> int:
    return index + HEADER_LINES + 1


@pytest.mark.parametrize("policy", [None, SlidingWindow(), RandomEviction(seed=3)])
def test_a_correct_run_passes_with_every_invariant_evaluated(tmp_path: Path, policy: object) -> None:
    run = sample_run(policy=policy)  # type: ignore[arg-type]
    result = replay(run.write(tmp_path / "trace.jsonl"), paranoid=True)
    assert result.verdict is Verdict.PASS, result
    assert result.events == len(run.events) + 1
    assert any(isinstance(event, Evict) for event in run.events)


def check_caught(run: ToyRuntime, events: list[Event], tmp_path: Path, rule: str, line: int) -> None:
    result = replay(run.write(tmp_path / "trace.jsonl", events))
    assert (result.verdict, result.rule, result.line) == (Verdict.FAIL, rule, line), result


def test_two_tokens_swapped_in_a_commit(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Commit)
    first, second, *rest = events[at].moves
    swapped = (
        first._replace(dst_slot=second.dst_slot),
        second._replace(dst_slot=first.dst_slot),
        *rest,
    )
    events[at] = dataclasses.replace(events[at], moves=swapped)
    check_caught(run, events, tmp_path, "VT-COPY-003", line_of(at))


def test_two_tokens_swapped_in_plan_and_commit(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    plan_at, commit_at = find(events, Plan), find(events, Commit)
    first, second, *rest = events[plan_at].moves
    swapped = (
        first._replace(dst_slot=second.dst_slot),
        second._replace(dst_slot=first.dst_slot),
        *rest,
    )
    for at in (plan_at, commit_at):
        events[at] = dataclasses.replace(events[at], moves=swapped)
    check_caught(run, events, tmp_path, "VT-PLAN-007", line_of(plan_at))


def test_a_slot_used_twice(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Sync, at=5)
    live = run.machine()
    for event in events[:at]:
        live.apply(event)
    other = live.table.slot_mapping("a" if events[at].req_id == "b" else "b")[0]
    events[at] = dataclasses.replace(events[at], slots=(other,))
    check_caught(run, events, tmp_path, "VT-MAP-009", line_of(at))


def test_a_slot_used_twice_in_one_plan(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Plan)
    first, second, *rest = events[at].moves
    events[at] = dataclasses.replace(
        events[at], moves=(first, second._replace(dst_slot=first.dst_slot), *rest)
    )
    check_caught(run, events, tmp_path, "VT-MAP-010", line_of(at))


def test_a_block_freed_twice(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Free)
    events.insert(at + 1, events[at])
    check_caught(run, events, tmp_path, "VT-POOL-004", line_of(at + 1))


def test_a_block_freed_that_is_in_use(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Alloc)
    events.insert(at + 1, Free(events[at].block_ids[:1]))
    check_caught(run, events, tmp_path, "VT-POOL-004", line_of(at + 1))


def test_a_move_of_a_dead_token(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Plan)
    evicted = find(events[:at], Evict, at=-1, having=lambda e: e.req_id == events[at].req_id)
    dead = Move(events[evicted].token_ids[0], events[at].moves[0].src_slot, events[at].moves[0].dst_slot)
    events[at] = dataclasses.replace(events[at], moves=(dead, *events[at].moves[1:]))
    check_caught(run, events, tmp_path, "VT-MAP-007", line_of(at))


def test_a_plan_that_frees_nothing(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Plan)
    events[at] = dataclasses.replace(events[at], destination_blocks=events[at].source_blocks)
    check_caught(run, events, tmp_path, "VT-PLAN-004", line_of(at))


def test_a_token_lost_by_a_plan(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Plan)
    events[at] = dataclasses.replace(events[at], moves=events[at].moves[:-1])
    check_caught(run, events, tmp_path, "VT-PLAN-006", line_of(at))


def test_a_token_lost_by_a_forward(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Sync, at=4)
    del events[at]
    end = find(events[at:], Forward, having=lambda e: e.phase == "end") + at
    check_caught(run, events, tmp_path, "VT-REQ-004", line_of(end))


def test_a_commit_before_its_copy(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Copy)
    events[at], events[at + 1] = events[at + 1], events[at]
    check_caught(run, events, tmp_path, "VT-COPY-002", line_of(at))


def test_a_copy_before_its_plan(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Plan)
    events[at], events[at + 1] = events[at + 1], events[at]
    check_caught(run, events, tmp_path, "VT-PLAN-009", line_of(at))


def test_a_block_freed_before_it_is_released(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Free)
    events.insert(at - 2, events.pop(at))
    result = replay(run.write(tmp_path / "trace.jsonl", events))
    assert (result.verdict, result.rule) == (Verdict.FAIL, "VT-POOL-004"), result


def test_a_fingerprint_that_differs_from_what_attention_read(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Sync, at=3)
    events[at] = dataclasses.replace(events[at], fingerprints=("0" * 16,))
    end = find(events[at:], Forward, having=lambda e: e.phase == "end") + at
    check_caught(run, events, tmp_path, "VT-KV-003", line_of(end))


def test_a_request_that_never_ends(run: ToyRuntime, tmp_path: Path) -> None:
    events = list(run.events)
    at = find(events, Finish, at=-1)
    events = events[:at]
    check_caught(run, events, tmp_path, "VT-REQ-007", line_of(at))


def test_a_block_that_is_not_given_back(run: ToyRuntime, tmp_path: Path) -> None:
    events = run.events[:-1]
    assert isinstance(run.events[-1], Free)
    check_caught(run, events, tmp_path, "VT-POOL-007", line_of(len(events)))


def flip_one_byte(cache: KVCache, slot: int) -> None:
    where = torch.tensor([slot])
    token = cache.gather(where)
    token.view(torch.uint8).flatten()[-3] ^= 1
    cache.scatter(where, token)


class OneByteFlips(Reclaimer):
    """One byte of KV changes between the copy and the commit of the first relocation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flipped = False

    def _copy(self, moves):  # type: ignore[no-untyped-def]
        nbytes = super()._copy(moves)
        if not self.flipped:
            self.flipped = True
            flip_one_byte(self.cache, moves[-1].dst_slot)
        return nbytes


def test_one_kv_byte_changed_in_memory_between_copy_and_commit(tmp_path: Path) -> None:
    run = sample_run(OneByteFlips)
    assert run.reclaimer.flipped  # type: ignore[attr-defined]
    check_caught(run, run.events, tmp_path, "VT-KV-001", line_of(find(run.events, Commit)))


class SwapsTwoTokens(Reclaimer):
    """The copy puts two tokens in each other's place."""

    def _copy(self, moves):  # type: ignore[no-untyped-def]
        first, second, *rest = moves
        swapped = [
            first._replace(dst_slot=second.dst_slot),
            second._replace(dst_slot=first.dst_slot),
            *rest,
        ]
        return super()._copy(swapped)


def test_two_tokens_swapped_in_memory(tmp_path: Path) -> None:
    run = sample_run(SwapsTwoTokens)
    check_caught(run, run.events, tmp_path, "VT-KV-001", line_of(find(run.events, Commit)))


# What cannot be read as a trace at all.


def lines_of(run: ToyRuntime, tmp_path: Path) -> list[bytes]:
    return run.write(tmp_path / "trace.jsonl").read_bytes().splitlines(keepends=True)


def replay_lines(lines: list[bytes], tmp_path: Path) -> tuple[Verdict, str | None, int | None]:
    path = tmp_path / "tampered.jsonl"
    path.write_bytes(b"".join(lines))
    result = replay(path)
    return result.verdict, result.rule, result.line


def test_a_truncated_file(run: ToyRuntime, tmp_path: Path) -> None:
    lines = lines_of(run, tmp_path)
    assert replay_lines(lines[:10], tmp_path) == (Verdict.INCONCLUSIVE, "VT-TRACE-004", 10)
    assert replay_lines([*lines[:9], lines[9][:7]], tmp_path) == (Verdict.INCONCLUSIVE, "VT-TRACE-004", 10)
    assert replay_lines([], tmp_path) == (Verdict.INCONCLUSIVE, "VT-TRACE-004", 1)


def test_a_wrong_version(run: ToyRuntime, tmp_path: Path) -> None:
    lines = lines_of(run, tmp_path)
    lines[0] = lines[0].replace(b'"version":1', b'"version":2')
    assert replay_lines(lines, tmp_path) == (Verdict.HARNESS_ERROR, "VT-TRACE-002", 1)


def test_a_wrong_format(run: ToyRuntime, tmp_path: Path) -> None:
    lines = lines_of(run, tmp_path)
    lines[0] = lines[0].replace(b"vtoken-trace", b"other-trace")
    assert replay_lines(lines, tmp_path) == (Verdict.HARNESS_ERROR, "VT-TRACE-002", 1)


@pytest.mark.parametrize(
    ("line", "old", "new", "rule"),
    [
        (5, b'"event":', b'"surplus":1,"event":', "VT-TRACE-003"),
        (5, b'"event":', b'"happening":', "VT-TRACE-003"),
        (2, b'"req_id"', b'"request"', "VT-TRACE-003"),
        (1, b'"policy":', b'"surplus":1,"policy":', "VT-TRACE-003"),
        (5, b"{", b"", "VT-TRACE-001"),
        (1, b"{", b"", "VT-TRACE-001"),
    ],
)
def test_a_line_that_is_not_of_the_format(
    run: ToyRuntime, tmp_path: Path, line: int, old: bytes, new: bytes, rule: str
) -> None:
    lines = lines_of(run, tmp_path)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    assert replay_lines(lines, tmp_path) == (Verdict.HARNESS_ERROR, rule, line)


def test_an_event_after_the_end(run: ToyRuntime, tmp_path: Path) -> None:
    lines = lines_of(run, tmp_path)
    lines.append(lines[-2])
    assert replay_lines(lines, tmp_path) == (Verdict.FAIL, "VT-TRACE-006", len(lines))


def test_counts_that_are_not_those_of_the_trace(run: ToyRuntime, tmp_path: Path) -> None:
    lines = lines_of(run, tmp_path)
    lines[-1] = lines[-1].replace(b'"num_requests":3', b'"num_requests":2')
    assert replay_lines(lines, tmp_path) == (Verdict.FAIL, "VT-TRACE-005", len(lines))


def test_replay_needs_neither_torch_nor_vllm() -> None:
    code = "import sys, conformance.cli; print('torch' in sys.modules, 'vllm' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_paranoid_replay_evaluates_the_invariants(run: ToyRuntime, tmp_path: Path) -> None:
    class Damages:
        def observe(self, event: Event, machine: Machine) -> None:
            if isinstance(event, Alloc):
                machine.pool.leases[event.block_ids[0]] = event.req_id

    path = run.write(tmp_path / "trace.jsonl")
    result = replay(path, (Damages(),), paranoid=True)
    assert (result.verdict, result.code) == (Verdict.FAIL, "leak")
    assert result.line == line_of(find(run.events, Alloc)) + 1
