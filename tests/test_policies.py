"""The eviction policies: what every one must keep, and examples of what each one evicts."""

import random
from dataclasses import fields, replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.errors import UsageError
from conformance.port import load_policy
from vtoken_ref.policies import RandomEviction, SlidingWindow, StreamingLLM
from vtoken_ref.policy import Policy, RequestView, ask
from vtoken_ref.rules import VTokenError

POLICIES = [
    SlidingWindow(),
    StreamingLLM(),
    StreamingLLM(num_sinks=0),
    StreamingLLM(num_sinks=2),
    RandomEviction(),
    RandomEviction(seed=-5),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


def kept_always(policy: Policy, view: RequestView) -> set[int]:
    """The ids that a policy never evicts, by its description."""
    if isinstance(policy, StreamingLLM):
        return set(range(policy.num_sinks))
    return {view.num_tokens - 1} if isinstance(policy, RandomEviction) else set()


@st.composite
def views(draw: st.DrawFn) -> RequestView:
    num_tokens = draw(st.integers(1, 40))
    live = draw(st.sets(st.integers(0, num_tokens - 1)))
    return RequestView(
        req_key=draw(st.text(max_size=3)),
        live_ids=sorted(live),
        num_tokens=num_tokens,
        budget=draw(st.integers(1, 45)),
        protected=frozenset(draw(st.sets(st.integers(0, num_tokens)))),
    )


@every_policy
@settings(max_examples=80, deadline=None)
@given(view=views())
def test_victims_are_distinct_live_and_unprotected_and_as_many_as_are_above_the_budget(
    policy: Policy, view: RequestView
) -> None:
    victims = list(policy.select_victims(view))
    candidates = set(view.live_ids) - view.protected - kept_always(policy, view)
    assert len(set(victims)) == len(victims)
    assert set(victims) <= candidates
    assert len(victims) == min(view.num_excess, len(candidates))


@every_policy
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_request_kept_at_its_budget_never_has_more(policy: Policy, data: st.DataObject) -> None:
    budget = policy.min_budget + data.draw(st.integers(0, 10))
    live = list(range(data.draw(st.integers(1, 30))))
    for num_tokens in range(len(live), len(live) + 8):
        live = [*live, num_tokens - 1] if num_tokens - 1 not in live else live
        victims = policy.select_victims(RequestView("r", live, num_tokens, budget))
        before, live = live, [token_id for token_id in live if token_id not in victims]
        assert len(live) == min(len(before), budget)
        assert num_tokens - 1 in live


@every_policy
@settings(max_examples=40, deadline=None)
@given(view=views(), scores=st.dictionaries(st.integers(0, 40), st.floats()))
def test_the_same_view_gives_the_same_victims_whatever_else_runs(
    policy: Policy, view: RequestView, scores: dict[int, float]
) -> None:
    expected = list(policy.select_victims(view))
    random.seed(len(expected))
    policy.select_victims(replace(view, req_key="another", budget=1))
    assert list(policy.select_victims(view)) == expected
    assert list(policy.select_victims(replace(view, live_ids=tuple(view.live_ids)))) == expected
    # None of these three looks at scores.
    assert list(policy.select_victims(replace(view, scores=scores))) == expected


@every_policy
def test_a_view_is_not_changed(policy: Policy) -> None:
    view = RequestView("r", list(range(20)), 20, budget=8, protected=frozenset({3}))
    policy.select_victims(view)
    assert view == RequestView("r", list(range(20)), 20, budget=8, protected=frozenset({3}))


def test_a_view_tells_nothing_about_blocks_or_slots() -> None:
    names = {field.name for field in fields(RequestView)}
    assert names == {"req_key", "live_ids", "num_tokens", "budget", "protected", "scores", "state"}


@pytest.mark.parametrize(("num_live", "budget", "excess"), [(5, 3, 2), (3, 3, 0), (2, 3, 0), (0, 1, 0)])
def test_the_excess_is_what_is_above_the_budget(num_live: int, budget: int, excess: int) -> None:
    assert RequestView("r", range(num_live), 5, budget).num_excess == excess


def victims(
    policy: Policy, live: list[int], budget: int, protected: frozenset[int] = frozenset()
) -> list[int]:
    return list(policy.select_victims(RequestView("r", live, live[-1] + 1, budget, protected)))


def test_sliding_window_evicts_the_oldest() -> None:
    policy = SlidingWindow()
    assert policy.min_budget == 1
    assert victims(policy, [0, 1, 2, 3, 4, 5], 4) == [0, 1]
    assert victims(policy, [2, 3, 7, 9], 1) == [2, 3, 7]
    assert victims(policy, [0, 1, 2, 3], 2, frozenset({0, 2})) == [1, 3]
    assert victims(policy, [0, 1, 2], 3) == []


def test_streaming_llm_keeps_sinks_and_the_most_recent() -> None:
    policy = StreamingLLM(num_sinks=2)
    assert policy.min_budget == 3
    assert victims(policy, [0, 1, 2, 3, 4, 5], 4) == [2, 3]
    assert victims(policy, [0, 1, 4, 5, 6], 4) == [4]
    assert victims(policy, [0, 1, 2, 3, 4], 3, frozenset({2})) == [3, 4]
    assert victims(policy, [0, 1, 2], 1) == [2]
    assert StreamingLLM().min_budget == 5
    assert victims(StreamingLLM(), list(range(10)), 6) == [4, 5, 6, 7]


def test_random_depends_on_seed_request_and_length_only() -> None:
    live = list(range(30))
    base = RequestView("r", live, 30, budget=20)
    policy = RandomEviction(seed=1)
    assert policy.min_budget == 1
    expected = policy.select_victims(base)
    assert RandomEviction(seed=1).select_victims(replace(base, state={"x": 1})) == expected
    assert RandomEviction(seed=2).select_victims(base) != expected
    assert policy.select_victims(replace(base, req_key="s")) != expected
    assert policy.select_victims(replace(base, num_tokens=31)) != expected


def test_random_evicts_each_candidate_equally_often() -> None:
    """Binomial counts: 2000 draws of 3 from 9, mean 667, six standard deviations are 127."""
    counts = dict.fromkeys(range(10), 0)
    for number in range(2000):
        view = RequestView(f"r{number}", range(10), 10, budget=7)
        for token_id in RandomEviction().select_victims(view):
            counts[token_id] += 1
    assert counts.pop(9) == 0
    assert all(540 <= count <= 794 for count in counts.values()), counts


# By name.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("streaming_llm", StreamingLLM),
        ("sliding_window", SlidingWindow),
        ("random", RandomEviction),
        ("vtoken_ref.policies:SlidingWindow", SlidingWindow),
    ],
)
def test_a_policy_is_loaded_by_its_name(name: str, kind: type) -> None:
    assert type(load_policy(name, {}, seed=3)) is kind


def test_arguments_and_seed_reach_the_policy() -> None:
    streaming, seeded = load_policy("streaming_llm", {"num_sinks": 7}, 3), load_policy("random", {}, 3)
    assert isinstance(streaming, StreamingLLM) and streaming.num_sinks == 7
    assert isinstance(seeded, RandomEviction) and seeded.seed == 3
    explicit = load_policy("random", {"seed": 9}, 3)
    assert isinstance(explicit, RandomEviction) and explicit.seed == 9


@pytest.mark.parametrize(
    ("name", "policy_args", "message"),
    [
        ("h3o", {}, "known are random, sliding_window, streaming_llm"),
        ("", {}, "there is no policy ''"),
        ("no_such_module:Policy", {}, "no_such_module"),
        ("vtoken_ref.policies:NoSuch", {}, "NoSuch"),
        ("streaming_llm", {"sinks": 4}, "takes num_sinks, .*'sinks'"),
        ("sliding_window", {"num_sinks": 4}, "takes nothing"),
        ("streaming_llm", {"num_sinks": -1}, "at least 0, not -1"),
        (":Policy", {}, "Policy"),
        (".policies:SlidingWindow", {}, "policies"),
        ("vtoken_ref.reclaim:DEFAULT_THETA_F", {}, "DEFAULT_THETA_F"),
        ("vtoken_ref.policy:RequestView", {}, "RequestView"),
    ],
)
def test_a_policy_that_cannot_be_loaded(name: str, policy_args: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_policy(name, policy_args, seed=0)


# The contract of a policy, held wherever one is asked.

VIEW = RequestView("a", live_ids=range(10), num_tokens=10, budget=7, protected=frozenset({9}))


def answering(*victims: object) -> Policy:
    class Answers:
        min_budget = 1

        def select_victims(self, view: RequestView) -> list[object]:
            return list(victims)

    return cast(Policy, Answers())


def test_a_right_answer_is_returned() -> None:
    assert ask(answering(3, 0, 8), VIEW, twice=True) == (3, 0, 8)
    few = replace(VIEW, budget=1, protected=frozenset(range(2, 10)))
    assert ask(answering(0, 1), few) == (0, 1), "all that may be evicted, when that is less than the excess"


@pytest.mark.parametrize(
    ("victims", "code"),
    [
        ((0, 1, 1), "policy-victims"),
        ((0, 1, 10), "policy-victims"),
        ((0, 1, -1), "policy-victims"),
        ((0, 1, 9), "policy-victims"),
        ((0, 1, 2.0), "policy-victims"),
        ((0, 1, True), "policy-victims"),
        ((0, 1), "policy-count"),
        ((), "policy-count"),
        ((0, 1, 2, 3), "policy-count"),
    ],
)
def test_a_wrong_answer_is_refused(victims: tuple[object, ...], code: str) -> None:
    with pytest.raises(VTokenError) as error:
        ask(answering(*victims), VIEW)
    assert error.value.code == code


def test_an_exception_names_the_policy_and_its_line() -> None:
    class Broken(SlidingWindow):
        def select_victims(self, view: RequestView) -> list[int]:
            return [1 // 0]

    with pytest.raises(
        VTokenError, match=r"Broken raised ZeroDivisionError: .*\(line \d+, in select_victims\)"
    ) as error:
        ask(Broken(), VIEW)
    assert error.value.code == "policy-raised"


def test_an_answer_that_changes_is_refused_only_when_asked_twice() -> None:
    class Changes(SlidingWindow):
        calls = 0

        def select_victims(self, view: RequestView) -> list[int]:
            self.calls += 1
            return [self.calls, 5, 6]

    with pytest.raises(VTokenError) as error:
        ask(Changes(), VIEW, twice=True)
    assert error.value.code == "policy-changes"
    assert ask(Changes(), VIEW) == (1, 5, 6)


def test_a_policy_may_change_its_state() -> None:
    class Remembers(SlidingWindow):
        def select_victims(self, view: RequestView) -> list[int]:
            view.state["calls"] = view.state.get("calls", 0) + 1
            return [view.state["calls"], 5, 6]

    view = replace(VIEW, state={})
    assert [ask(Remembers(), view, twice=True)[0] for _ in range(3)] == [1, 2, 3]
