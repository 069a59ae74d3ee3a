"""What an eviction policy may answer."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from spec.probes.probe import Call, Probe
from vtoken_ref.policies.streaming_llm import StreamingLLM
from vtoken_ref.policy import RequestView, ask
from vtoken_ref.rules import Rule

VIEW = RequestView("a", live_ids=(0, 1, 2, 4), num_tokens=5, budget=2, protected=frozenset({1}))


class _Answers:
    """A policy that gives these answers, one after the other, the last again and again."""

    min_budget = 1

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def select_victims(self, view: RequestView) -> Sequence[int]:
        answer: Sequence[int] = self._answers[0]
        if len(self._answers) > 1:
            del self._answers[0]
        return answer


def probes() -> Iterator[Probe]:
    """Yield the probes of this area."""
    right = _asks((0, 2))
    wrong: dict[str, Any] = {
        "dead": (0, 3),
        "protected": (0, 1),
        "twice": (2, 2),
        "later": (0, 5),
        "bool": (0, True),
        "float": (0, 2.0),
        "text": ("0", "2"),
    }
    for case, answer in wrong.items():
        yield Probe(f"policy-victims/{case}", Rule.POLICY_VICTIMS, object, _asks(answer), (right,))
    for case, answer in {"fewer": (0,), "none": (), "more": (0, 2, 4)}.items():
        yield Probe(f"policy-count/{case}", Rule.POLICY_COUNT, object, _asks(answer), (right,))
    fewer = RequestView("a", (0, 1, 2), 5, 1, frozenset({0, 1}))
    yield Probe(
        "policy-count/all-candidates",
        Rule.POLICY_COUNT,
        object,
        _asks((), view=fewer),
        (_asks((2,), view=fewer),),
    )
    yield Probe(
        "ValueError/num-sinks",
        ValueError,
        object,
        lambda _: partial(StreamingLLM, -1),
        (lambda _: partial(StreamingLLM, 0),),
    )
    yield Probe("policy-raised/not-iterable", Rule.POLICY_RAISED, object, _asks(None), (right,))
    yield Probe(
        "policy-changes/second",
        Rule.POLICY_CHANGES,
        object,
        _asks((0, 2), (0, 4), twice=True),
        (_asks((0, 2), twice=True), _asks((0, 2), (0, 4))),
    )


def _asks(*answers: Any, view: RequestView = VIEW, twice: bool = False) -> Callable[[Any], Call]:
    return lambda _: partial(ask, _Answers(*answers), view, twice)
