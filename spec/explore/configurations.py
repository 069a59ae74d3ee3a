"""The small systems that are searched: each is there for what it enables, and its bounds are stated here.

Blocks have two slots: one token more or less makes a hole or a whole block. Prompts that differ in the
first token share nothing; those that differ in the last share a full block and a part of one. The *small*
ones are searched completely, or far enough to take every action, and make up the quick check; the others
go on from there without limits, or with more than one request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import permutations

from spec.explore.openings import Opening, admitted, first_cached, first_prefilled, nothing
from spec.runtime import Job
from vtoken_ref import events as ev
from vtoken_ref.machine import MachineConfig
from vtoken_ref.profiles import Profile
from vtoken_ref.reclaim import ReclaimConfig

Order = tuple[int, ...]
"""Positions of the jobs, in the order in which they are looked at."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One small system and what is searched of it.

    Attributes:
        name: unique.
        about: one sentence: what it is for.
        config: of the machine.
        jobs: the requests that may enter.
        opening: what has happened when the search begins.
        limits: by event kind, how often it may be chosen on one path; 0 leaves it out. A kind that is
            not named is not limited.
        max_states: the search is cut when it has found so many distinct states.
        is_quick: it is part of the quick check.
        is_tempted: events that only a wrong runtime would emit are offered as well.

    """

    name: str
    about: str
    config: MachineConfig
    jobs: tuple[Job, ...]
    opening: Opening = nothing
    limits: Mapping[str, int] = field(default_factory=dict)
    max_states: int = 100_000
    is_quick: bool = False
    is_tempted: bool = True

    def symmetries(self) -> list[Order]:
        """Return the orders of the jobs that only rename them: same size, same tokens in common."""
        numbers = range(len(self.jobs))
        return [order for order in permutations(numbers) if self._is_symmetry(order)]

    def _is_symmetry(self, order: Order) -> bool:
        jobs = self.jobs
        return all(_shape(jobs[at]) == _shape(jobs[to]) for at, to in enumerate(order)) and all(
            num_common(jobs[at], jobs[other]) == num_common(jobs[to], jobs[order[other]])
            for at, to in enumerate(order)
            for other in range(len(order))
        )


def _shape(job: Job) -> tuple[int, int, int | None]:
    return len(job.prompt), job.num_outputs, job.budget


def num_common(job: Job, other: Job) -> int:
    """Return how many leading tokens two prompts share."""
    count = 0
    for mine, others in zip(job.prompt, other.prompt, strict=False):
        if mine != others:
            break
        count += 1
    return count


def configurations(profile: Profile) -> tuple[Configuration, ...]:
    """Return everything that is searched: the systems of this file, and a profile's."""
    return (*_SMALL, *_LARGE, of_profile(profile))


def of_profile(profile: Profile) -> Configuration:
    """Return a profile's system, with requests that share nothing."""
    jobs = tuple(
        Job(
            chr(ord("a") + number),
            tuple(range(10 * number, 10 * number + profile.num_prompt_tokens)),
            profile.num_outputs,
            profile.budget,
        )
        for number in range(profile.num_requests)
    )
    about = "what the profile says, after the first prompt"
    return Configuration("profile", about, profile.config, jobs, first_prefilled, max_states=20_000)


# Building blocks.

_FEW = {"preempt": 0, "abort": 0, "cache": 0, "uncache": 0, "defer": 0}
_THREE, _FOUR = (1, 2, 3), (1, 2, 3, 4)


def _config(
    num_blocks: int,
    headroom: int,
    strategy: ev.Strategy | None,
    view: ev.View,
    depth: int,
    max_query: int = 1,
) -> MachineConfig:
    return MachineConfig(
        2, range(num_blocks), headroom, strategy=strategy, view=view, async_depth=depth, max_query=max_query
    )


def _gated(config: MachineConfig, **reclaim: int) -> MachineConfig:
    strategy = config.strategy or "in_place"
    gate = ReclaimConfig(strategy, Fraction(1, 4), headroom=config.headroom, **reclaim)
    return replace(config, reclaim=gate)


def _one(prompt: tuple[int, ...], num_outputs: int, budget: int | None = None) -> tuple[Job, ...]:
    return (Job("a", prompt, num_outputs, budget),)


def _sharing(num_outputs: int, num_more: int) -> tuple[Job, ...]:
    return Job("a", (1, 2, 3), num_outputs), Job("b", (1, 2, 4), num_more)


# The quick ones.

_SMALL = tuple(
    replace(configuration, is_quick=True)
    for configuration in (
        Configuration(
            "small.packed-in-place",
            "packing onto own slots, late copies of a preempted or aborted request",
            _config(2, 0, "in_place", "packed", 0),
            _one(_THREE, 2),
            first_prefilled,
            {"preempt": 1, "cache": 0, "evict": 2, "plan": 1},
        ),
        Configuration(
            "small.packed-out-of-place",
            "leases, deferral, copies in any order",
            _config(3, 1, "out_of_place", "packed", 0),
            _one(_THREE, 2),
            first_prefilled,
            {"preempt": 0, "cache": 0, "evict": 2, "lease": 1, "defer": 1, "plan": 1},
        ),
        Configuration(
            "small.indirect-in-place",
            "the paper's planner on own slots",
            _config(2, 0, "in_place", "indirect", 0),
            _one(_THREE, 2),
            first_prefilled,
            {"preempt": 1, "cache": 0, "evict": 2, "plan": 1},
        ),
        Configuration(
            "small.indirect-out-of-place",
            "plans in flight over forwards of their request",
            _config(4, 1, "out_of_place", "indirect", 0),
            _one(_FOUR, 2),
            first_prefilled,
            {**_FEW, "evict": 2, "lease": 1, "plan": 1},
        ),
        Configuration(
            "small.recycle",
            "new tokens over dead ones",
            _config(2, 0, "recycle", "packed", 0),
            _one((1, 2), 2),
            nothing,
            {"preempt": 1, "cache": 0, "evict": 2, "plan": 0},
        ),
        Configuration(
            "small.cache",
            "caching full and partly filled blocks",
            _config(2, 0, "in_place", "packed", 0),
            _one(_THREE, 2),
            first_prefilled,
            {"preempt": 0, "cache": 1, "uncache": 1, "evict": 1},
        ),
        Configuration(
            "small.shared",
            "a second request with the same prefix, while the first is alive and after it",
            _config(3, 0, "in_place", "packed", 0),
            _sharing(1, 1),
            first_cached,
            {"preempt": 0, "cache": 0, "uncache": 1, "evict": 0},
        ),
        Configuration(
            "small.copy-on-write-packed",
            "writing where a partly filled block is cached",
            _config(4, 1, "recycle", "packed", 0),
            _one(_THREE, 2),
            first_cached,
            {"preempt": 0, "cache": 0, "uncache": 0, "evict": 1, "lease": 1, "plan": 1},
        ),
        Configuration(
            "small.copy-on-write-indirect",
            "the same, while forwards read the block",
            _config(4, 1, "recycle", "indirect", 0),
            _one(_THREE, 2),
            first_cached,
            {"preempt": 0, "cache": 0, "uncache": 0, "evict": 1, "lease": 1, "plan": 1},
        ),
        Configuration(
            "small.async-packed-in-place",
            "packing in the worker's window",
            _config(2, 0, "in_place", "packed", 1),
            _one((1, 2), 4),
            first_prefilled,
            {**_FEW, "abort": 1, "evict": 2, "plan": 1, "cancel": 1},
        ),
        Configuration(
            "small.async-packed-out-of-place",
            "leases by message, plans in flight over a report",
            _config(3, 1, "out_of_place", "packed", 1),
            _one(_THREE, 2),
            first_prefilled,
            {**_FEW, "abort": 1, "defer": 1, "evict": 2, "lease": 1, "plan": 1, "cancel": 1},
        ),
        Configuration(
            "small.async-preempted",
            "reports, copies and steps of an epoch that has ended",
            _config(3, 1, "out_of_place", "packed", 1),
            _one(_THREE, 2),
            first_prefilled,
            {**_FEW, "preempt": 1, "evict": 2, "lease": 1, "plan": 1, "cancel": 1},
            max_states=8_000,
        ),
        Configuration(
            "small.async-indirect-in-place",
            "the paper's planner in the worker's window",
            _config(3, 0, "in_place", "indirect", 1),
            _one(_FOUR, 2),
            first_prefilled,
            {**_FEW, "evict": 2, "plan": 1, "cancel": 1},
        ),
        Configuration(
            "small.async-indirect-out-of-place",
            "commits under a running forward",
            _config(4, 1, "out_of_place", "indirect", 1),
            _one(_FOUR, 3),
            first_prefilled,
            {**_FEW, "evict": 2, "lease": 1, "plan": 1, "cancel": 0},
            max_states=8_000,
        ),
        Configuration(
            "small.async-recycle",
            "the worker writes over a dead token, the scheduler hears of it later",
            _config(2, 0, "recycle", "packed", 1),
            _one((1, 2), 3),
            nothing,
            {**_FEW, "evict": 2, "plan": 0},
            max_states=6_000,
        ),
        Configuration(
            "small.async-cache",
            "caching between steps",
            _config(2, 0, "in_place", "packed", 1),
            _one(_THREE, 1),
            first_prefilled,
            {**_FEW, "cache": 1, "uncache": 1, "evict": 1},
        ),
        Configuration(
            "small.async-shared",
            "sharing by message",
            _config(3, 0, "in_place", "packed", 1),
            _sharing(1, 1),
            first_cached,
            {**_FEW, "uncache": 1, "evict": 0},
        ),
        Configuration(
            "small.async-copy-on-write-packed",
            "a copy of a cached block of one's own",
            _config(4, 1, "in_place", "packed", 1),
            _one(_THREE, 2),
            first_cached,
            {**_FEW, "evict": 0, "lease": 1, "plan": 1, "cancel": 1},
        ),
        Configuration(
            "small.async-copy-on-write-indirect",
            "the same under a running forward",
            _config(4, 1, "in_place", "indirect", 1),
            _one(_THREE, 3),
            first_cached,
            {**_FEW, "abort": 1, "evict": 0, "lease": 1, "plan": 1, "cancel": 1},
        ),
    )
)

# The large ones. Where pools are tight and nothing that leads out of need is limited, they look for I9.

_TWO = (Job("a", (1, 2), 2), Job("b", (3, 4), 2))
_BUDGETS = (Job("a", (1, 2), 3, 2), Job("b", (3, 4), 3, 2))
_ONCE = {"preempt": 1, "cache": 1, "uncache": 1}

_LARGE = (
    Configuration(
        "packed-in-place",
        "every order of everything, one request",
        _config(3, 0, "in_place", "packed", 0),
        _one(_THREE, 2),
        limits={"preempt": 1},
    ),
    Configuration(
        "packed-out-of-place",
        "the same with a lease",
        _config(4, 1, "out_of_place", "packed", 0),
        _one(_THREE, 2),
        limits=_ONCE,
        max_states=80_000,
    ),
    Configuration(
        "packed-recycle",
        "the same by recycling",
        _config(3, 0, "recycle", "packed", 0),
        _one(_THREE, 2),
        limits=_ONCE,
        max_states=60_000,
    ),
    Configuration(
        "packed-two-requests",
        "any strategy, two requests that compete for blocks",
        _config(4, 1, None, "packed", 0),
        _TWO,
        admitted,
        {"preempt": 1, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "packed-shared",
        "prefix sharing and packing, two requests",
        _config(4, 0, "in_place", "packed", 0),
        _sharing(1, 2),
        first_cached,
        {"preempt": 0, "cache": 0, "uncache": 1, "evict": 2, "plan": 1},
    ),
    Configuration(
        "packed-budgets",
        "two requests with budgets, in blocks for one and a half",
        _config(3, 0, "in_place", "packed", 0),
        _BUDGETS,
        admitted,
        {"preempt": 0, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "gated-in-place",
        "checks every second step, one attempt each, watermarks",
        _gated(_config(3, 0, "in_place", "packed", 0), low_watermark=0, check_interval=2, max_attempts=1),
        (Job("a", _THREE, 3), Job("b", (4,), 2)),
        admitted,
        {"preempt": 0, "cache": 0, "abort": 0},
        max_states=60_000,
    ),
    Configuration(
        "gated-out-of-place",
        "the same with headroom and deferral",
        _gated(_config(3, 1, "out_of_place", "packed", 0), low_watermark=1, check_interval=2, max_attempts=1),
        _one(_THREE, 3),
        limits={"preempt": 0, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "indirect-out-of-place",
        "every order of everything under the indirect view",
        _config(4, 1, "out_of_place", "indirect", 0),
        _one(_THREE, 3),
        first_prefilled,
        _ONCE,
        max_states=80_000,
    ),
    Configuration(
        "indirect-in-place",
        "the same on own slots",
        _config(3, 0, "in_place", "indirect", 0),
        _one(_THREE, 3),
        first_prefilled,
        _ONCE,
        max_states=60_000,
    ),
    Configuration(
        "indirect-any",
        "recycling, relocation and copy on write together",
        _config(4, 1, None, "indirect", 0),
        _one(_THREE, 3),
        first_cached,
        {"preempt": 1, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "async-packed-in-place",
        "every order of messages and packing",
        _config(3, 0, "in_place", "packed", 1, 2),
        _one(_THREE, 2),
        limits=_ONCE,
    ),
    Configuration(
        "async-packed-out-of-place",
        "the same with leases by message",
        _config(4, 1, "out_of_place", "packed", 1, 2),
        _one(_THREE, 2),
        limits=_ONCE,
        max_states=80_000,
    ),
    Configuration(
        "async-packed-recycle",
        "the same by recycling",
        _config(3, 0, "recycle", "packed", 1, 2),
        _one(_THREE, 2),
        limits=_ONCE,
        max_states=80_000,
    ),
    Configuration(
        "async-packed-two-requests",
        "any strategy, two requests, one step ahead",
        _config(4, 1, None, "packed", 1, 2),
        _TWO,
        first_prefilled,
        {"preempt": 1, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "async-packed-shared",
        "a shared block whose other holder has ended, and the worker does not know",
        _config(4, 0, "in_place", "packed", 1, 2),
        _sharing(1, 2),
        first_cached,
        {"preempt": 0, "cache": 0, "uncache": 1, "evict": 2, "plan": 1},
        max_states=90_000,
    ),
    Configuration(
        "async-indirect-shared",
        "the same, recycled into",
        _config(4, 0, "recycle", "indirect", 1, 2),
        _sharing(1, 2),
        first_cached,
        {"preempt": 0, "cache": 0, "uncache": 1, "evict": 2, "plan": 1},
        max_states=60_000,
    ),
    Configuration(
        "async-budgets",
        "a budget that the worker keeps while the scheduler is ahead",
        _config(3, 1, None, "packed", 1),
        _one((1, 2), 4, 2),
        first_prefilled,
        _ONCE,
        max_states=60_000,
    ),
    Configuration(
        "async-gated",
        "amortised checks, blocks for less than the request needs",
        _gated(_config(2, 0, "in_place", "packed", 1), low_watermark=0, check_interval=2, max_attempts=1),
        _one(_THREE, 3),
        limits={"preempt": 0, "cache": 0},
        max_states=60_000,
    ),
    Configuration(
        "async-indirect-any",
        "relocation, recycling and commits under forwards, one step ahead",
        _config(4, 1, None, "indirect", 1),
        _one(_THREE, 3),
        first_prefilled,
        {"preempt": 1, "cache": 0},
        max_states=80_000,
    ),
)
