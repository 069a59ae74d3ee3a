"""Ports: how a runtime is reached, by name and never by import.

An *observed port* runs a job and emits a trace; that is all a new runtime needs for a verdict.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from conformance.errors import UsageError
from vtoken_ref.events import Strategy
from vtoken_ref.policy import Policy
from vtoken_ref.reclaim import DEFAULT_THETA_F

__all__ = [
    "ObservedPort",
    "ServeJob",
    "ServeResult",
    "Served",
    "UsageError",
    "load_policy",
    "load_port",
]

PORT_GROUP = "vtoken.ports"
POLICY_GROUP = "vtoken.policies"


@dataclass(frozen=True, slots=True)
class ServeJob:
    """What an observed port serves.

    Attributes:
        model: folder of a Hugging Face model.
        prompts: token ids of each request, by a name that appears in the trace's request ids.
        max_new_tokens: the most tokens generated for each.
        policy, policy_args, seed: the eviction policy.
        budget: the most live tokens of a request; None for no eviction.
        strategy, theta_f, low_watermark: see ``vtoken_ref.reclaim.ReclaimConfig``.
        concurrency: the most requests running at one time.
        block_size: slots per block.
        num_blocks: usable blocks; None for enough to hold ``concurrency`` full requests.
        trace: where the trace goes; None for none.
        dtype: of weights and KV: float32, bfloat16 or float16.
        ignore_eos: generate ``max_new_tokens`` whatever is sampled.

    """

    model: Path
    prompts: Mapping[str, Sequence[int]]
    max_new_tokens: int
    policy: str = "streaming_llm"
    policy_args: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    budget: int | None = None
    strategy: Strategy = "in_place"
    theta_f: Fraction = DEFAULT_THETA_F
    low_watermark: int | None = None
    concurrency: int = 8
    block_size: int = 32
    num_blocks: int | None = None
    trace: Path | None = None
    dtype: str = "float32"
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """One request's result: sampled vocabulary ids and why it ended."""

    name: str
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class ServeResult:
    """What a port served.

    Attributes:
        requests: one for each prompt, in the order of the job.
        leaked_blocks: usable blocks that are not back in the runtime's pool; None when not known.
        seconds: from the first request to the last token, the start of the engine not counted.
        versions: of the software that matters for the result.

    """

    requests: tuple[Served, ...]
    leaked_blocks: int | None
    seconds: float
    versions: Mapping[str, str]


class ObservedPort(Protocol):
    """A runtime that serves a job and emits a trace of it."""

    def check(self, job: ServeJob) -> None:
        """Raise UsageError when the job cannot be served; start nothing, write nothing."""
        ...

    def serve(self, job: ServeJob, progress: Callable[[int, int], None]) -> ServeResult:
        """Serve the job; ``progress`` is told the tokens generated and the most there can be.

        Raises:
            UsageError: the job cannot be served.

        """
        ...


def load_port(name: str) -> ObservedPort:
    """Return the port of an entry point in ``vtoken.ports``, or of ``package.module:factory``.

    Raises:
        UsageError: no such port, or it cannot be loaded.

    """
    return cast(ObservedPort, _load(name, PORT_GROUP, "port")())


def load_policy(name: str, policy_args: Mapping[str, int], seed: int) -> Policy:
    """Return a policy of an entry point in ``vtoken.policies``, or of ``package.module:Class``.

    Args:
        name: entry point or class.
        policy_args: keyword arguments of the class.
        seed: given to policies that take one.

    Raises:
        UsageError: no such policy, or it does not take these arguments.

    """
    factory = _load(name, POLICY_GROUP, "policy")
    if not hasattr(factory, "select_victims") or not callable(factory):
        raise UsageError(f"policy {name!r} is no class with a method select_victims(view)")
    signature = inspect.signature(factory)
    takes = signature.parameters
    arguments = {**({"seed": seed} if "seed" in takes else {}), **policy_args}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(takes) or "nothing"
        raise UsageError(f"policy {name} takes {known}, and not so: {error}") from error
    try:
        policy = factory(**arguments)
    except ValueError as error:
        raise UsageError(f"policy {name}: {error}") from error
    if type(getattr(policy, "min_budget", None)) is not int:
        raise UsageError(
            f"policy {name!r} has no integer min_budget, the smallest budget that it can keep to"
        )
    return cast(Policy, policy)


def _load(name: str, group: str, kind: str) -> Callable[..., Any]:
    points = {point.name: point for point in entry_points(group=group)}
    if name in points:
        target = points[name].value
    elif all(name.partition(":")) and not name.startswith("."):
        target = name
    else:
        raise UsageError(
            f"there is no {kind} {name!r}; known are {', '.join(sorted(points))} and package.module:name"
        )
    module_name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{kind} {name!r} cannot be loaded from {target}: {error}") from error
    if not callable(found):
        raise UsageError(f"{kind} {name!r} is a value and not a class or a factory")
    return cast(Callable[..., Any], found)
