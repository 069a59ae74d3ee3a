"""Illegal events: legal ones with one field changed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from vtoken_ref import events as ev

NOT_ALTERED = frozenset({"vocab_ids", "num_prompt_tokens", "budget"})
"""What a machine cannot know better than the runtime: the client's wishes, and what was sampled."""
WORDS: dict[str, tuple[str, ...]] = {
    "strategy": get_args(ev.PlanStrategy),
    "phase": get_args(ev.Phase),
    "reason": get_args(ev.FinishReason),
}
NOBODY = "nobody"


def altered(event: ev.Event, req_ids: tuple[str, ...]) -> list[ev.Event]:
    """Return the events that differ from this one in one field.

    Args:
        event: any event.
        req_ids: requests that may be put in the place of its own.

    """
    return [
        replace(event, **{name: value})
        for name in event.__slots__
        if name not in NOT_ALTERED
        for value in _values(name, getattr(event, name), req_ids)
    ]


def _values(name: str, value: Any, req_ids: tuple[str, ...]) -> Iterator[Any]:
    """Yield other values of the same type."""
    if name == "req_id":
        yield from (req_id for req_id in (*req_ids, NOBODY) if req_id != value)
    elif name in WORDS:
        yield from (word for word in WORDS[name] if word != value)
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        yield value[::-1] if value[::-1] != value else "0" * 32
    elif hasattr(value, "_fields"):
        for field in value._fields:
            for other in _values(field, getattr(value, field), req_ids):
                yield value._replace(**{field: other})
    elif isinstance(value, tuple):
        yield from _tuples(value, req_ids)


def _tuples(value: tuple[Any, ...], req_ids: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    if value:
        yield ()
        yield (*value, value[0])
    for index, item in enumerate(value):
        if len(value) > 1:
            yield value[:index] + value[index + 1 :]
        for other in _values("", item, req_ids):
            yield (*value[:index], other, *value[index + 1 :])
    if len(value) > 1:
        yield (value[1], value[0], *value[2:])
