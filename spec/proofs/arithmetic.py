"""The planner's arithmetic for all sizes, and the capacity arithmetic of the paper.

S, the block size, is a variable throughout, and so is every number of blocks and tokens. Sums over a number
of blocks are by induction: base and step are proved apart, and that together they say it for every
number is the one thing done by hand. ``ceil`` is computed here as ``vtoken_ref.planner`` computes it.

Each theorem has its premises by name. Those in ``PREMISES`` are guards of the planner or the pool:
without such a premise a theorem is false, and the numbers that break it are shown.

Source: paper 3.3.1 to 3.3.3, 5.4.
Differs from source: the paper reduces the candidate set when a plan would free nothing; no smaller set
frees anything then, so that helps against a bound on sources or destinations only.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

from spec.proofs.prover import Formula, Proof

PREMISES = {
    "block_capacity": "no block holds more than S live tokens",
    "filled_in_turn": "each destination is filled before the next",
    "slot_order": "in place, tokens move in the order of their slots",
    "drops_a_block": "each round of candidate reduction drops a candidate",
    "drops_fuller": "a candidate is exchanged only for one with as many live tokens or more",
    "unwritten_end": "the unwritten end of the last block counts as holes",
    "reserve_in_end": "a relocation reserves no more than the unwritten end of the last written block",
    "reserve": "a relocation's destinations have room for the reserve",
    "whole_block": "a block's worth of dead tokens is resident",
    "retained_in_context": "no more tokens are retained than were computed",
    "headroom_is_small": "the headroom is at most what packing saves",
    "headroom_reserved": "an allocation leaves the headroom that is not leased",
    "headroom_bounds_leases": "no more blocks than the headroom are leased",
    "less_than_a_block_dead": "no whole block's worth of dead tokens is left resident",
}

PROFIT = ("I4", "VT-PLAN-004", "VT-PLAN-005")
ORDER = ("I4", "VT-PLAN-007")
IN_PLACE = ("I1", "VT-COPY-005")
CANDIDATES = ("I4", "I9", "VT-PLAN-004")
ELIGIBLE = ("I9", "VT-RECLAIM-001")
RESERVE = ("I8", "VT-PLAN-005", "VT-REQ-009")
HEADROOM = ("I6", "VT-POOL-006", "VT-ADM-004")

PAPER = "the numbers of paper 5.4"


def guards() -> tuple[str, ...]:
    """Return the names of the premises that can be left out."""
    return tuple(PREMISES)


def proofs(without: str | None = None) -> list[Proof]:
    """Return the theorems.

    Args:
        without: a premise to leave out wherever it is; the theorems that need it are then refuted.

    Raises:
        ValueError: there is no premise of that name.

    """
    if without is not None and without not in PREMISES:
        raise ValueError(f"there is no premise {without}; there are {', '.join(PREMISES)}")
    make = _Maker(without)
    sections = (_destinations, _sums, _order, _in_place, _candidates, _packed, _eligible, _capacity, _paper)
    return [proof for section in sections for proof in section(make)]


class _Maker:
    """Makes proofs, with one premise left out or none."""

    def __init__(self, without: str | None) -> None:
        self.without = without

    def has(self, premise: str) -> bool:
        return premise != self.without

    def __call__(
        self,
        name: str,
        covers: tuple[str, ...],
        goal: Formula,
        premises: Mapping[str, Formula],
        bounds: str = "",
    ) -> Proof:
        kept = {premise: formula for premise, formula in premises.items() if self.has(premise)}
        shown = _variables([goal, *premises.values()])
        return Proof(f"arithmetic.{name}", covers, goal, kept, bounds, shown)


def ceil_div(number: Formula, size: Formula) -> Formula:
    """Return ceil(number / size) for a positive size."""
    return -((-number) / size)


# How many destinations a plan needs, and what it frees. k sources hold T live tokens.


def _destinations(make: _Maker) -> Iterator[Proof]:
    size, live, sources, reserve = z3.Ints("S T k reserve")
    needed, holes = ceil_div(live, size), sources * size - live
    sound = {"sizes": z3.And(size >= 1, live >= 0, sources >= 0)}
    full = {**sound, "block_capacity": live <= sources * size}
    yield make("destinations.fit_in_sources", PROFIT, needed <= sources, full)
    yield make("destinations.are_enough", PROFIT, live <= needed * size, sound)
    yield make("destinations.are_no_more", PROFIT, (needed - 1) * size < live, sound)
    yield make("destinations.gain_is_a_block_of_holes", PROFIT, (needed < sources) == (holes >= size), full)
    yield make("destinations.freed", PROFIT, sources - needed == holes / size, full)
    yield make("destinations.freed_is_not_negative", PROFIT, holes / size >= 0, full)
    yield make(
        "destinations.freed_with_reserve",
        (*PROFIT, *RESERVE),
        sources - ceil_div(live + reserve, size) == (holes - reserve) / size,
        {**full, "reserve_is_a_number": reserve >= 0},
    )


def _sums(make: _Maker) -> Iterator[Proof]:
    """The live tokens of k blocks fit into k blocks; their holes are what they lack: by induction on k."""
    size, k = z3.Ints("S k")
    live, total = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("live", "total"))
    holes = z3.Function("holes", z3.IntSort(), z3.IntSort())
    base = {"sizes": size >= 1, "no_blocks": z3.And(total(0) == 0, holes(0) == 0)}
    step = {
        "sizes": z3.And(size >= 1, k >= 0, live(k) >= 0),
        "block_capacity": live(k) <= size,
        "one_more": z3.And(total(k + 1) == total(k) + live(k), holes(k + 1) == holes(k) + size - live(k)),
    }

    def fit(count: Formula) -> Formula:
        return total(count) <= count * size

    def lack(count: Formula) -> Formula:
        return holes(count) == count * size - total(count)

    for name, says in {"live_tokens_fit": fit, "holes_are_the_rest": lack}.items():
        yield make(f"sums.{name}.base", PROFIT, says(z3.IntVal(0)), base)
        yield make(f"sums.{name}.step", PROFIT, says(k + 1), {**step, "before": says(k)})


# Where the tokens go: token i of the plan to destination i div S, offset i mod S.


def _order(make: _Maker) -> Iterator[Proof]:
    size, live, i, j, block, offset = z3.Ints("S T i j block offset")
    blocks = ceil_div(live, size)
    place = _in_turn(size) if make.has("filled_in_turn") else _in_rounds(blocks)
    of_i, of_j = place(i), place(j)
    tokens = {"sizes": size >= 1, "tokens": z3.And(i >= 0, i < j, j < live)}
    is_before = z3.Or(of_i[0] < of_j[0], z3.And(of_i[0] == of_j[0], of_i[1] < of_j[1]))
    yield make("order.is_kept", ORDER, is_before, tokens)
    yield make("order.no_slot_twice", ORDER, z3.Not(z3.And(of_i[0] == of_j[0], of_i[1] == of_j[1])), tokens)
    within = z3.And(of_i[0] >= 0, of_i[0] < blocks, of_i[1] >= 0, of_i[1] < size)
    one = {"sizes": size >= 1, "token": z3.And(i >= 0, i < live)}
    yield make("order.within_destinations", ORDER, within, one)
    token = block * size + offset
    filling = place(token)
    earlier = z3.And(block >= 0, block < of_i[0], offset >= 0, offset < size)
    is_filled = z3.And(token >= 0, token < live, filling[0] == block, filling[1] == offset)
    yield make("order.earlier_destinations_are_full", ORDER, is_filled, {**one, "earlier": earlier})


def _in_turn(size: Formula) -> Callable[[Formula], tuple[Formula, Formula]]:
    return lambda token: (token / size, token % size)


def _in_rounds(blocks: Formula) -> Callable[[Formula], tuple[Formula, Formula]]:
    return lambda token: (token % blocks, token / blocks)


# In place: slots are numbered through the request's blocks in the order of its list; token i of the
# plan leaves slot source(i) and goes to slot i.


def _in_place(make: _Maker) -> Iterator[Proof]:
    source = z3.Function("source", z3.IntSort(), z3.IntSort())
    i, j = z3.Ints("i j")
    ascending = {"slot_order": source(i) < source(i + 1)}
    yield make("in_place.never_moves_up.base", IN_PLACE, source(0) >= 0, {"slots": source(0) >= 0})
    yield make(
        "in_place.never_moves_up.step",
        IN_PLACE,
        source(i + 1) >= i + 1,
        {"slots": z3.And(i >= 0, source(i + 1) >= 0), "before": source(i) >= i, **ascending},
    )
    yield make(
        "in_place.no_uncopied_source_is_overwritten",
        IN_PLACE,
        source(j) != i,
        {
            "tokens": z3.And(i >= 0, i < j),
            "sums_up": z3.And(source(i) >= i, source(j) >= 0),
            "slot_order": source(i) < source(j),
        },
    )


# Choosing candidates. A block with n live tokens joins or leaves a set of k blocks with T.


def _candidates(make: _Maker) -> Iterator[Proof]:
    size, live, sources, block, other, bound = z3.Ints("S T k n n_other bound")
    needed, fewer = ceil_div(live, size), ceil_div(live - block, size)
    freed, freed_by_fewer = sources - needed, sources - 1 - fewer
    sound = {"sizes": z3.And(size >= 1, sources >= 1, block >= 0, block <= live)}
    fits = {**sound, "block_capacity": block <= size}
    yield make(
        "candidates.dropping_one_gains_nothing",
        CANDIDATES,
        fewer >= sources - 1,
        {**fits, "no_gain": needed >= sources},
    )
    yield make("candidates.fewer_free_no_more", CANDIDATES, freed_by_fewer <= freed, fits)
    yield make("candidates.one_less_costs_at_most_one", CANDIDATES, freed_by_fewer >= freed - 1, sound)
    yield make("candidates.fewer_need_no_more_destinations", CANDIDATES, fewer <= needed, sound)
    yield make(
        "candidates.emptiest_free_most",
        CANDIDATES,
        sources - ceil_div(live - block + other, size) <= freed,
        {**sound, "other": other >= 0, "drops_fuller": other >= block},
    )
    left = z3.Int("k_left")
    yield make(
        "candidates.reduction_terminates",
        CANDIDATES,
        z3.And(left >= 0, left < sources),
        {**sound, "too_many": needed > bound, "drops_a_block": left == sources - 1, "left": left >= 0},
    )
    yield make(
        "candidates.reduction_ends_at_none",
        CANDIDATES,
        needed <= bound,
        {"sizes": z3.And(size >= 1, live >= 0, bound >= 0), "none_left": live == 0},
    )


# A packed request: resident length L in ceil(L / S) written blocks, T of the tokens live.


def _packed(make: _Maker) -> Iterator[Proof]:
    size, live, dead, reserve = z3.Ints("S T dead reserve")
    length = live + dead
    written = ceil_div(length, size)
    end = written * size - length
    holes = dead + end if make.has("unwritten_end") else dead
    sound = {"sizes": z3.And(size >= 1, live >= 0, dead >= 0)}
    yield make("packed.freed", PROFIT, written - ceil_div(live, size) == holes / size, sound)
    yield make("packed.end_is_less_than_a_block", PROFIT, z3.And(end >= 0, end < size), sound)
    reserved = ceil_div(live + reserve, size)
    yield make(
        "packed.block_of_dead_tokens_is_a_gain",
        (*ELIGIBLE, *PROFIT),
        reserved < written,
        {
            **sound,
            "whole_block": dead >= size,
            "reserve_is_a_number": reserve >= 0,
            "reserve_in_end": reserve <= end,
        },
    )
    unwritten_blocks, most = z3.Ints("unwritten_blocks max_query")
    elsewhere = unwritten_blocks * size
    tail = z3.If(end + elsewhere <= most, end + elsewhere, most)
    missing = tail - elsewhere
    wanted = z3.If(missing > 0, missing, 0) if make.has("reserve") else z3.IntVal(0)
    settings = {**sound, "settings": z3.And(unwritten_blocks >= 0, most >= 1)}
    yield make("packed.reserve_is_in_the_end", RESERVE, wanted <= end, settings)
    yield make(
        "packed.reserve_is_kept",
        RESERVE,
        ceil_div(live + wanted, size) * size - live + elsewhere >= tail,
        settings,
    )


# When a plan is worth making: waste F = 1 - T / (N S) above theta = p / q.


def _eligible(make: _Maker) -> Iterator[Proof]:
    size, live, blocks, dead, over, under = z3.Ints("S T N dead p q")
    waste = 1 - z3.ToReal(live) / z3.ToReal(blocks * size)
    sound = {
        "sizes": z3.And(size >= 1, blocks >= 1, live >= 0, live <= blocks * size),
        "theta": z3.And(over >= 0, over < under),
    }
    in_integers = (blocks * size - live) * under > over * blocks * size
    as_fraction = waste > z3.ToReal(over) / z3.ToReal(under)
    yield make("eligible.integers_compare_like_fractions", ELIGIBLE, in_integers == as_fraction, sound)
    length = live + dead
    yield make(
        "eligible.frees_a_block",
        (*ELIGIBLE, *PROFIT),
        ceil_div(live, size) < blocks,
        {
            **sound,
            "packed": z3.And(dead >= 0, blocks == ceil_div(length, size)),
            "above_theta": in_integers,
            "whole_block": dead >= size,
        },
    )


# Capacity: U usable blocks, H of them headroom, p or n blocks for a packed or a full request.


def _capacity(make: _Maker) -> Iterator[Proof]:
    usable, headroom, packed, full, requests = z3.Ints("U H p n c")
    pool = {"pool": z3.And(headroom >= 0, headroom <= usable, packed >= 1, full >= 1, requests >= 0)}
    most, native = (usable - headroom) / packed, usable / full
    fits = requests * packed + headroom <= usable
    yield make("capacity.most_requests", HEADROOM, fits == (requests <= most), pool)
    yield make(
        "capacity.packed_is_at_least_native",
        HEADROOM,
        most >= native,
        {**pool, "headroom_is_small": headroom <= native * (full - packed)},
    )
    yield make(
        "capacity.packed_is_at_least_native_exactly_when",
        HEADROOM,
        (most >= native) == (native * packed + headroom <= usable),
        pool,
    )
    held, leased = z3.Ints("held leased")
    yield make(
        "capacity.headroom_is_inside",
        HEADROOM,
        held + leased <= usable,
        {
            **pool,
            "headroom_reserved": held <= usable - headroom,
            "headroom_bounds_leases": leased <= headroom,
        },
    )
    size, retained, context, dead = z3.Ints("S R L dead")
    lengths = z3.And(size >= 1, retained >= 0, context >= 0, dead >= 0)
    yield make(
        "capacity.packed_request_is_smaller",
        HEADROOM,
        ceil_div(retained, size) <= ceil_div(context, size),
        {"sizes": lengths, "retained_in_context": retained <= context},
    )
    yield make(
        "capacity.at_most_one_block_more",
        ELIGIBLE,
        ceil_div(retained + dead, size) <= ceil_div(retained, size) + 1,
        {"sizes": lengths, "less_than_a_block_dead": dead < size},
    )
    blocks, over, under = z3.Ints("N p_theta q_theta")
    yield make(
        "capacity.below_theta",
        ELIGIBLE,
        blocks * size * (under - over) <= retained * under,
        {
            "sizes": z3.And(lengths, blocks >= 1, over >= 0, over < under),
            "not_above_theta": (blocks * size - retained) * under <= over * blocks * size,
        },
    )


def _paper(make: _Maker) -> Iterator[Proof]:
    """What the paper says of concurrency follows from its budgets, in whole blocks."""
    requests, headroom, full, packed, tokens = z3.Ints("c H n p tokens")
    facts = {
        "full_at_0.35": z3.And((requests * 1020 <= 5427) == (requests <= 5), z3.IntVal(6) * 1020 == 6120),
        "packed_at_0.35": (requests * 512 <= 5427) == (requests <= 10),
        "eight_packed_at_0.35": z3.And(
            (8 * packed <= 5427) == (packed <= 678), (8 * 512 + headroom <= 5427) == (headroom <= 1331)
        ),
        "full_at_0.50": (requests * 1020 <= 11519) == (requests <= 11),
        "packed_at_0.50": (requests * 512 <= 11519) == (requests <= 22),
        "headroom_at_0.50": (22 * 512 + headroom <= 11519) == (headroom <= 255),
        "one_block_more_at_0.50": (22 * 513 + headroom <= 11519) == (headroom <= 233),
        "full_qwen": z3.And(3 * full <= 3261, 4 * full > 3261) == z3.And(full >= 816, full <= 1087),
        "packed_qwen": z3.And(6 * packed <= 3261, 8 * packed > 3261) == z3.And(packed >= 408, packed <= 543),
        "full_length": (ceil_div(tokens, z3.IntVal(16)) == 1020) == z3.And(tokens >= 16305, tokens <= 16320),
        "packed_length": (ceil_div(tokens, z3.IntVal(16)) == 512) == z3.And(tokens >= 8177, tokens <= 8192),
        "below_theta_of_a_quarter": z3.And(
            (packed * 16 * 3 <= 512 * 16 * 4) == (packed <= 682),
            (requests * 682 <= 5427) == (requests <= 7),
            (requests * 682 <= 11519) == (requests <= 16),
        ),
    }
    for name, fact in facts.items():
        yield make(f"paper.{name}", HEADROOM, fact, {}, PAPER)


def _variables(formulas: list[Formula]) -> dict[str, Formula]:
    """Return the variables of formulas, and the values that they take of functions, by name."""
    found: dict[str, Formula] = {}

    def visit(term: Any) -> None:
        if term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found[str(term)] = term
        for child in term.children():
            visit(child)

    for formula in formulas:
        visit(formula)
    return found
