"""Fences (I5, I8): a block given up is reused only when nothing begun before can touch it.

Any number of blocks, steps and copies. What is assumed of the rest of the spec: a step, or a copy,
touches only blocks that its request holds or has leased when it begins. Copies are there because a plan
whose epoch has ended may still be copying.

Source: paper 3.4.
Differs from source: the paper does not say when a block that was given up is free.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula, Proof

GUARDS = {
    "fence_at_release": "a block that is given up is fenced before it is free",
    "fence_waits_for_steps": "it stays so until every step begun before is delivered",
    "fence_waits_for_copies": "and until every copy issued before has retired",
}

COVERS = ("I5", "I8", "VT-POOL-005")

SCRIPTS = ("alloc begin release", "alloc issue release")


def proofs_of_fences(without: str | None = None) -> list[Proof]:
    """Return the proofs that no block is reused while a step or a copy may touch it."""
    return list(_Fences(without).proofs())


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks, and the steps and copies that may touch them, numbered from 1.

    Attributes:
        begun, delivered: steps; those between are in flight.
        issued, retired: copies; those between may still run.
        is_free, is_fenced: per block; one that is neither is held or leased.
        last_step, last_copy: per fenced block, what had begun when it was given up.
        step_touches, copy_touches: per step or copy and block.

    """

    begun: Formula
    delivered: Formula
    issued: Formula
    retired: Formula
    is_free: Callable[..., Formula]
    is_fenced: Callable[..., Formula]
    last_step: Callable[..., Formula]
    last_copy: Callable[..., Formula]
    step_touches: Callable[..., Formula]
    copy_touches: Callable[..., Formula]


class _Fences:
    """A step touches only blocks that its requests hold or have leased when it begins; so does a copy."""

    def __init__(self, without: str | None) -> None:
        self.without = without
        self.sort = z3.DeclareSort("Block")
        self.block, self.other = z3.Consts("block other", self.sort)
        self.step, self.copy = z3.Ints("step copy")
        self.touched = z3.Function("touched", self.sort, z3.BoolSort())

    def guard(self, name: str, formula: Formula) -> Formula:
        return z3.BoolVal(True) if name == self.without else formula

    def pool(self) -> Pool:
        number, truth, block = z3.IntSort(), z3.BoolSort(), self.sort
        return Pool(
            begun=z3.Int("begun"),
            delivered=z3.Int("delivered"),
            issued=z3.Int("issued"),
            retired=z3.Int("retired"),
            is_free=z3.Function("is_free", block, truth),
            is_fenced=z3.Function("is_fenced", block, truth),
            last_step=z3.Function("last_step", block, number),
            last_copy=z3.Function("last_copy", block, number),
            step_touches=z3.Function("step_touches", number, block, truth),
            copy_touches=z3.Function("copy_touches", number, block, truth),
        )

    def touched_by_step(self, pool: Pool) -> Formula:
        """Say that the step is in flight and may touch the block."""
        in_flight = z3.And(pool.delivered < self.step, self.step <= pool.begun)
        return z3.And(in_flight, pool.step_touches(self.step, self.block))

    def touched_by_copy(self, pool: Pool) -> Formula:
        """Say that the copy may still run and touches the block."""
        may_run = z3.And(pool.retired < self.copy, self.copy <= pool.issued)
        return z3.And(may_run, pool.copy_touches(self.copy, self.block))

    def invariants(self, pool: Pool) -> dict[str, Formula]:
        """Return what is always true of a block, a step and a copy."""
        block = self.block
        is_held = z3.And(z3.Not(pool.is_free(block)), z3.Not(pool.is_fenced(block)))
        by_step, by_copy = self.touched_by_step(pool), self.touched_by_copy(pool)
        return {
            "counters": z3.And(
                pool.delivered >= 0,
                pool.delivered <= pool.begun,
                pool.retired >= 0,
                pool.retired <= pool.issued,
            ),
            "one_state": z3.Not(z3.And(pool.is_free(block), pool.is_fenced(block))),
            "steps_are_fenced": z3.Implies(
                by_step, z3.Or(is_held, z3.And(pool.is_fenced(block), self.step <= pool.last_step(block)))
            ),
            "copies_are_fenced": z3.Implies(
                by_copy, z3.Or(is_held, z3.And(pool.is_fenced(block), self.copy <= pool.last_copy(block)))
            ),
        }

    def actions(self, pool: Pool) -> Mapping[str, tuple[Formula, Pool]]:
        """Return all transitions: what each requires, and the pool after it."""
        other = self.other
        is_held = z3.And(z3.Not(pool.is_free(other)), z3.Not(pool.is_fenced(other)))
        held = z3.And(z3.Not(pool.is_free(self.block)), z3.Not(pool.is_fenced(self.block)))
        touches_held = z3.ForAll([self.block], z3.Implies(self.touched(self.block), held))
        may_free = z3.And(
            pool.is_fenced(other),
            self.guard("fence_waits_for_steps", pool.last_step(other) <= pool.delivered),
            self.guard("fence_waits_for_copies", pool.last_copy(other) <= pool.retired),
        )
        is_fenced = self.without != "fence_at_release"
        step, copy = pool.begun + 1, pool.issued + 1
        return {
            "alloc": (pool.is_free(other), replace(pool, is_free=_put(pool.is_free, other, False))),
            "begin": (
                touches_held,
                replace(pool, begun=step, step_touches=_put_row(pool.step_touches, step, self.touched)),
            ),
            "deliver": (pool.delivered < pool.begun, replace(pool, delivered=pool.delivered + 1)),
            "issue": (
                touches_held,
                replace(pool, issued=copy, copy_touches=_put_row(pool.copy_touches, copy, self.touched)),
            ),
            "retire": (pool.retired < pool.issued, replace(pool, retired=pool.retired + 1)),
            "release": (
                is_held,
                replace(
                    pool,
                    is_fenced=_put(pool.is_fenced, other, is_fenced),
                    is_free=_put(pool.is_free, other, not is_fenced),
                    last_step=_put(pool.last_step, other, pool.begun),
                    last_copy=_put(pool.last_copy, other, pool.issued),
                ),
            ),
            "free": (
                may_free,
                replace(
                    pool,
                    is_fenced=_put(pool.is_fenced, other, False),
                    is_free=_put(pool.is_free, other, True),
                ),
            ),
        }

    def proofs(self) -> Iterator[Proof]:
        pool = self.pool()
        names = [self.block, self.step, self.copy]
        invariants = self.invariants(pool)
        always = {name: z3.ForAll(names, formula) for name, formula in invariants.items()}
        yield Proof(
            "protocol.fences.initial",
            COVERS,
            z3.And(list(invariants.values())),
            {"empty": self._is_empty(pool)},
        )
        shown = {
            "block": self.block,
            "step": self.step,
            "delivered": pool.delivered,
            "begun": pool.begun,
            "copy": self.copy,
            "retired": pool.retired,
            "issued": pool.issued,
        }
        for action, (requires, after) in self.actions(pool).items():
            for name, goal in self.invariants(after).items():
                yield Proof(
                    f"protocol.fences.{action}.{name}",
                    COVERS,
                    goal,
                    {**always, action: requires},
                    shown=shown,
                )
        reused = {**always, "is_reused": pool.is_free(self.block)}
        yield Proof("protocol.fences.reuse_after_step", COVERS, z3.Not(self.touched_by_step(pool)), reused)
        yield Proof("protocol.fences.reuse_after_copy", COVERS, z3.Not(self.touched_by_copy(pool)), reused)
        for script in SCRIPTS:
            yield self.run(script)

    def run(self, script: str) -> Proof:
        """Return that after a short run, a block is free, or may be freed, only when nothing touches it."""
        pool, steps = self.pool(), []
        for name in script.split():
            requires, after = self.actions(pool)[name]
            steps.append(requires)
            pool = after
        may_free, _ = self.actions(pool)["free"]
        touched = z3.Or(self.touched_by_step(pool), self.touched_by_copy(pool))
        is_reused = z3.And(self.block == self.other, z3.Or(may_free, pool.is_free(self.other)))
        words = script.replace(" ", ", ")
        return Proof(
            f"protocol.fences.run.{script.split()[1]}",
            COVERS,
            z3.Not(z3.And(is_reused, touched)),
            {"empty": self._is_empty(self.pool()), "run": z3.And(steps)},
            f"the run {words} of one block",
            {
                "schedule": z3.StringVal(f"{words}; then the block is free or may be freed"),
                "a step in flight touches it": self.touched_by_step(pool),
                "a copy that may run touches it": self.touched_by_copy(pool),
            },
        )

    def _is_empty(self, pool: Pool) -> Formula:
        nothing = z3.And(pool.begun == 0, pool.delivered == 0, pool.issued == 0, pool.retired == 0)
        return z3.And(nothing, z3.ForAll([self.block], z3.Not(pool.is_fenced(self.block))))


def _put(function: Callable[..., Formula], key: Formula, value: Any) -> Callable[..., Formula]:
    return lambda at: z3.If(at == key, value, function(at))


def _put_row(
    function: Callable[..., Formula], key: Formula, row: Callable[..., Formula]
) -> Callable[..., Formula]:
    return lambda at, block: z3.If(at == key, row(block), function(at, block))
