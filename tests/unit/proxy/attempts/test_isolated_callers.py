"""A caller with failing calls does not block a deployment for others. Simulated on a virtual clock."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.virtual import answers
from benchmarks.virtual.clients import Load
from benchmarks.virtual.provider import Answer, Request
from benchmarks.virtual.world import Played, play
from tests.effort import some

BY_CLIENT_KEY = """
server:
  client_keys:
    - {name: victim, key: sk-victim}
    - {name: other, key: sk-other}
    - {name: poisoner, key: sk-poisoner}
upstreams:
  provider: {dialect: openai, base_url: https://provider.test/v1, api_key: sk-provider}
models:
  m: {deployments: [{upstream: provider}]}
"""
BY_OWN_KEY = """
upstreams:
  provider: {dialect: openai, base_url: https://provider.test/v1}
models:
  m: {deployments: [{upstream: provider}]}
"""
CROWD = 40
BY_MANY_CLIENT_KEYS = BY_CLIENT_KEY.replace(
    "    - {name: poisoner, key: sk-poisoner}\n",
    "".join(f"    - {{name: poisoner-{number}, key: sk-poisoner-{number}}}\n" for number in range(CROWD)),
)
LITERAL = f"{BY_CLIENT_KEY}\ndefaults: {{breaker: {{sensitivity: literal}}}}\n"


class Poisoned:
    """Answers, but for a share of one caller's calls and a share of all calls, which fail."""

    def __init__(self, share: float, share_of_all: float = 0.0, fails_after_s: float = 0.05) -> None:
        self._share = share
        self._share_of_all = share_of_all
        self._fails_after_s = fails_after_s
        self._draw = Random("poisoned").random

    def answer(self, request: Request) -> Answer:
        is_poisoned = request.user == "poisoner" and self._draw() < self._share
        if is_poisoned or self._draw() < self._share_of_all:
            return answers.error("openai", "500", request.model, None, self._fails_after_s)
        return answers.right("openai", request.model, 0.2)


class LimitedKey:
    """Refuses one caller's key with 429, and fails a share of the other calls."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._draw = Random("limited").random

    def answer(self, request: Request) -> Answer:
        if request.user == "limited":
            return answers.error("openai", "429", request.model, "1", 0.05)
        if self._draw() < self._share:
            return answers.error("openai", "503", request.model, None, 0.05)
        return answers.right("openai", request.model, 0.2)


class Crowd:
    """Fails every caller of a crowd and answers the victim."""

    def answer(self, request: Request) -> Answer:
        if request.user == "victim":
            return answers.right("openai", request.model, 0.2)
        return answers.error("openai", "500", request.model, None, 0.05)


class Down:
    """Fails all calls during an outage."""

    def __init__(self, begins_at: float, ends_at: float) -> None:
        self._times = begins_at, ends_at

    def answer(self, request: Request) -> Answer:
        begins_at, ends_at = self._times
        if begins_at <= request.at < ends_at:
            return answers.error("openai", "500", request.model, None, 0.05)
        return answers.right("openai", request.model, 0.2)


class Overloaded:
    """Serves `per_s` requests a second and fails the rest."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._free_at = 0.0

    def answer(self, request: Request) -> Answer:
        if self._free_at > request.at + 0.2:
            return answers.error("openai", "503", request.model, None, 0.01)
        self._free_at = max(self._free_at, request.at) + 1 / self._per_s
        return answers.right("openai", request.model, 0.2)


def served(played: Played, caller: str) -> float:
    calls = [call for call in played.calls if call.caller == caller]
    return sum(call.outcome == "served" for call in calls) / len(calls)


@pytest.mark.parametrize(
    ("config", "share", "begins_at"),
    some(
        [
            (BY_CLIENT_KEY, 1.0, 0.0),
            (BY_CLIENT_KEY, 0.9, 10.0),
            (BY_OWN_KEY, 1.0, 10.0),
            (LITERAL, 1.0, 10.0),
            (BY_OWN_KEY, 0.6, 0.0),
        ]
    ),
)
def test_poisoner_does_not_take_the_service_from_a_victim(config: str, share: float, begins_at: float) -> None:
    loads = [Load("m", 5.0, 60.0, caller="victim"), Load("m", 25.0, 60.0, begins_at, caller="poisoner")]
    assert served(play(config, Poisoned(share), loads), "victim") >= 0.95


@pytest.mark.parametrize(
    ("config", "fails_after_s", "calls_per_s"),
    some(
        [
            (BY_CLIENT_KEY, 10.0, 5.0),
            (BY_CLIENT_KEY, 0.2, 1.0),
            (BY_CLIENT_KEY, 3.0, 0.2),
            (BY_OWN_KEY, 3.0, 0.2),
            (LITERAL, 0.5, 0.2),
            (LITERAL, 3.0, 5.0),
            (LITERAL, 10.0, 0.2),
        ]
    ),
)
def test_poisoner_that_fails_slowly_does_not_take_the_service_from_a_victim(
    config: str, fails_after_s: float, calls_per_s: float
) -> None:
    """Its failing probes keep the breaker half-open, and its many calls in flight look like an overload."""
    loads = [
        Load("m", calls_per_s, 120.0, arrivals="even", caller="victim"),
        Load("m", 25.0, 120.0, 10.0, caller="poisoner"),
    ]
    assert served(play(config, Poisoned(1.0, fails_after_s=fails_after_s), loads), "victim") >= 0.95


@pytest.mark.parametrize(
    ("config", "begins_at"), some([(BY_MANY_CLIENT_KEYS, 0.0), (BY_MANY_CLIENT_KEYS, 5.0), (BY_OWN_KEY, 0.0)])
)
def test_crowd_of_poisoners_does_not_take_the_service_from_a_victim(config: str, begins_at: float) -> None:
    """Where a provider accepts any key, one client can pose as many callers."""
    loads = [Load("m", 5.0, 60.0, begins_at, caller="victim")]
    loads += [Load("m", 25.0 / CROWD, 60.0, caller=f"poisoner-{number}") for number in range(CROWD)]
    assert served(play(config, Crowd(), loads), "victim") >= 0.95


def test_poisoner_does_not_take_the_retries_of_a_victim() -> None:
    loads = [Load("m", 5.0, 60.0, caller="victim"), Load("m", 50.0, 60.0, caller="poisoner")]
    assert served(play(BY_CLIENT_KEY, Poisoned(1.0, share_of_all=0.4), loads), "victim") >= 0.95


@pytest.mark.parametrize("per_s", some([25.0, 200.0]))
def test_caller_that_exceeds_the_rate_limit_of_its_own_key_does_not_take_the_retries_of_a_victim(per_s: float) -> None:
    loads = [Load("m", 5.0, 60.0, caller="victim"), Load("m", per_s, 60.0, caller="limited")]
    assert served(play(BY_OWN_KEY, LimitedKey(0.4), loads), "victim") >= 0.95


@pytest.mark.parametrize("gap_s", some([10.0, 200.0]))
def test_victim_that_calls_seldom_is_served(gap_s: float) -> None:
    loads = [
        Load("m", 1 / gap_s, 5 * gap_s, arrivals="even", caller="victim"),
        Load("m", 25.0, 5 * gap_s, caller="poisoner"),
    ]
    assert served(play(BY_CLIENT_KEY, Poisoned(1.0), loads), "victim") == 1.0


def test_poisoner_is_refused_by_its_own_failures_alone() -> None:
    loads = [Load("m", 5.0, 40.0, caller="victim"), Load("m", 25.0, 40.0, caller="poisoner")]
    played = play(BY_CLIENT_KEY, Poisoned(1.0), loads)
    assert sum(request.user == "poisoner" for request in played.requests) <= 120, "1,000 calls"


def test_outage_is_noticed_and_over_for_many_callers_as_for_one() -> None:
    callers = ("victim", "other", "poisoner")
    loads = [Load("m", 20.0, 80.0, caller=caller) for caller in callers]
    played = play(BY_CLIENT_KEY, Down(20.0, 60.0), loads)
    assert sum(20.0 <= request.at < 60.0 for request in played.requests) <= 100, "2,400 calls"
    later = [call for call in played.calls if call.arrived_at >= 64.0]
    assert sum(call.outcome == "served" for call in later) / len(later) >= 0.99


def test_random_failures_make_no_caller_a_suspect_for_long() -> None:
    loads = [Load("m", 10.0, 60.0, caller=caller) for caller in ("victim", "other", "poisoner")]
    played = play(BY_CLIENT_KEY, Poisoned(0.0, share_of_all=0.6), loads)
    assert min(served(played, caller) for caller in ("victim", "other", "poisoner")) >= 0.8


def test_overload_by_many_callers_is_throttled_as_by_one() -> None:
    loads = [
        Load("m", 30.0, 40.0, caller="other"),
        Load("m", 10.0, 40.0, caller="victim"),
    ]
    played = play(BY_CLIENT_KEY, Overloaded(20.0), loads)
    reached = [request for request in played.requests if 10.0 <= request.at < 40.0]
    assert len(reached) <= 1.2 * 20 * 30
    assert sum(each.status == 200 for each in reached) >= 0.9 * 20 * 30
