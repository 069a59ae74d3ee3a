"""The small systems that are searched: each is there for what it enables, and its bounds are stated here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

from spec.explore.openings import Opening, nothing
from spec.runtime import Job
from vtoken_ref.machine import MachineConfig

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
