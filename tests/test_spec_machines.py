"""The state machines of the spec: sound as they are, able to fail, never idle, the same in every run."""

import inspect
import pkgutil
import sys
import textwrap
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vtoken_ref
from spec.machines import MACHINES, check, covers, idle_parts, run, verdict
from spec.machines.__main__ import run_long
from spec.machines.catalogue import Entry
from spec.machines.oracle import Disagreement, Oracle
from spec.machines.planning import check_plan
from spec.machines.runner import Limits, run_machine
from spec.machines.tally import Tally
from spec.report import Options, Status
from vtoken_ref import planner, state
from vtoken_ref.machine import TRANSITIONS, Machine
from vtoken_ref.pool import BlockPool
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.table import TokenTable
from vtoken_ref.transitions import blocks, forwards, messages, prefix_cache, relocation, requests

for module in pkgutil.walk_packages(vtoken_ref.__path__, "vtoken_ref."):
    import_module(module.name)

ENTRIES = {entry.name: entry for entry in MACHINES}
FEW = 400
"""Examples within which a seeded fault must be found."""
PATIENCE_S = 9.0


class Fault(NamedTuple):
    """One fragment of the spec changed, and the machine that must notice."""

    name: str
    machine: str
    function: Callable[..., Any]
    old: str
    new: str


FAULTS = (
    Fault("fence-ignored", "machine.packed", BlockPool.free, "if outstanding:", "if False:"),
    Fault("fence-ignored-ahead", "machine.ahead.packed", BlockPool.free, "if outstanding:", "if False:"),
    Fault("fence-ignored-pool", "machine.pool", BlockPool.free, "if outstanding:", "if False:"),
    Fault(
        "late-copies-not-waited-for",
        "machine.indirect",
        state.State.hazards_of,
        "if (req_id, epoch) in self.retiring:",
        "if False:",
    ),
    Fault("epoch-ignored", "machine.packed", state._check_epoch, "epoch != present", "False"),
    Fault("commit-before-copies", "machine.indirect", relocation.commit, "if flight.remaining:", "if False:"),
    Fault(
        "copy-order-ignored",
        "machine.packed",
        relocation.copy,
        "if flight.moves[token_id].src_slot in written:",
        "if False:",
    ),
    Fault("holder-not-counted", "machine.sharing", BlockPool.share, "self._hold(req_id, block_id)", "pass"),
    Fault("holder-not-counted-pool", "machine.pool", BlockPool._hold, ".add(req_id)", ".update(())"),
    Fault(
        "fenced-while-held",
        "machine.sharing",
        BlockPool.release,
        "if not self.holders[block_id]:",
        "if True:",
    ),
    Fault(
        "list-kept-on-deliver", "machine.ahead.packed", messages._apply, "request.block_ids = merged", "pass"
    ),
    Fault(
        "length-of-before",
        "machine.ahead.packed",
        messages._apply,
        "layout.length + sum",
        "layout.length + 0 * sum",
    ),
    Fault(
        "stale-report-taken",
        "machine.ahead.indirect",
        messages.deliver,
        "if state.is_current(layout.req_id, layout.epoch)",
        "if layout.req_id in state.requests",
    ),
    Fault(
        "live-block-released",
        "machine.packed",
        relocation.release,
        "or _num_live_in(state, event.req_id, block_id)",
        "",
    ),
    Fault(
        "recycled-into-shared",
        "machine.sharing",
        forwards.recyclable_slots,
        "not is_protected(block_id) and",
        "",
    ),
    Fault(
        "cached-after-compaction",
        "machine.sharing",
        prefix_cache._check_cacheable,
        "in_place != list(range(num_tokens)) or",
        "",
    ),
    Fault("cached-after-eviction", "machine.sharing", prefix_cache._check_cacheable, "or not is_pure", ""),
    Fault(
        "reservation-ignored",
        "machine.packed",
        BlockPool._check_reserve,
        "if num_taken and num_left < self.num_reserved:",
        "if False:",
    ),
    Fault(
        "reservation-ignored-pool",
        "machine.pool",
        BlockPool._check_reserve,
        "if num_taken and num_left < self.num_reserved:",
        "if False:",
    ),
    Fault(
        "forward-in-the-middle",
        "machine.packed",
        forwards._check_start,
        'state.config.view == "packed" or',
        "",
    ),
    Fault("forward-over-half-moved", "machine.indirect", forwards._check_start, "is_overwriting or", ""),
    Fault("moving-token-evicted", "machine.packed", relocation.evict, "or block_id in sources", ""),
    Fault("evicted-while-read", "machine.indirect", relocation.evict, "worker.in_forward is not None or", ""),
    Fault(
        "shared-block-emptied",
        "machine.planning",
        planner._check_sources,
        "if is_protected(block_id):",
        "if False:",
    ),
    Fault("two-owners", "machine.packed", BlockPool._check_free, "block_id not in self.free_blocks or", ""),
    Fault(
        "not-adopted",
        "machine.indirect",
        relocation.commit,
        "state.pool.adopt(event.req_id, plan.destination_blocks)",
        "pass",
    ),
    Fault(
        "written-anywhere",
        "machine.packed",
        forwards._check_slots,
        "if list(event.slots) != expected:",
        "if False:",
    ),
    Fault(
        "other-prefix-shared",
        "machine.sharing",
        prefix_cache._check_content,
        "or prefix.vocab_ids[:last] != event.vocab_ids[:last]",
        "",
    ),
    Fault(
        "tail-not-kept", "machine.ahead.packed", relocation._num_tail_slots, "return min(", "return 0 * min("
    ),
    Fault(
        "backpressure-ignored", "machine.packed", blocks.check_backpressure, "if state.deferred:", "if False:"
    ),
    Fault("lease-out-of-turn", "machine.packed", blocks.lease, "if oldest != event.req_id:", "if False:"),
    Fault(
        "end-moved-under-forward",
        "machine.indirect",
        relocation.commit,
        "(is_moved or _is_recycling(state, event.req_id, worker))",
        "False",
    ),
    Fault(
        "refused-too-late",
        "machine.packed",
        BlockPool.alloc,
        "self._check_reserve(len(block_ids))",
        "self.free_blocks -= set(block_ids); self._check_reserve(0); self.free_blocks |= set(block_ids); self._check_reserve(len(block_ids))",
    ),
    Fault(
        "no-retreat",
        "machine.table",
        TokenTable._retreat,
        "while request.num_written_blocks:",
        "while False:",
    ),
    Fault(
        "dead-token-keeps-slot",
        "machine.table",
        TokenTable._reclaim,
        "= NO_SLOT",
        "= request.slots[token_id]",
    ),
    Fault(
        "one-source-too-few",
        "machine.planning",
        planner._emptiest_blocks,
        "max_sources, max_destinations)\n",
        "max_sources - 1, max_destinations)\n",
    ),
    Fault(
        "report-forgets-blocks",
        "machine.ahead.packed",
        messages._apply,
        "*given_up(layout.made_for, layout.block_ids)",
        "*()",
    ),
    Fault(
        "shared-write-allowed",
        "machine.sharing",
        forwards._check_scheduled,
        "if state.pool.is_protected(block_id):",
        "if False:",
    ),
)


def seed_fault(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Replace a function of the spec by one with a fragment changed, wherever it is known."""
    original = fault.function
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(fault.old) == 1, f"{fault.old!r} is {source.count(fault.old)} times in {original}"
    names: dict[str, Any] = {}
    exec(
        compile(source.replace(fault.old, fault.new), f"<{fault.name}>", "exec"), original.__globals__, names
    )
    (changed,) = names.values()
    if "." in original.__qualname__:
        owner = original.__globals__[original.__qualname__.split(".")[0]]
        monkeypatch.setattr(owner, original.__name__, changed)
        return
    for module in [module for name, module in sys.modules.items() if name.startswith("vtoken_ref")]:
        if getattr(module, original.__name__, None) is original:
            monkeypatch.setattr(module, original.__name__, changed)
    for event_type, transition in TRANSITIONS.items():
        if transition is original:
            monkeypatch.setitem(TRANSITIONS, event_type, changed)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    seed_fault(monkeypatch, fault)
    limits = Limits(FEW, shrink_s=0.5, deadline=time.monotonic() + PATIENCE_S)
    tally, _ = run_machine(ENTRIES[fault.machine].machine, limits)
    assert tally.problem, f"nothing in {tally.examples} examples"
