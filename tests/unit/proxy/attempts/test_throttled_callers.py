"""A caller that alone gets 429 waits alone; a limit of the whole account is shared. Simulated on a virtual clock."""

from __future__ import annotations

import pytest

from benchmarks.virtual import answers
from benchmarks.virtual.answers import ErrorName
from benchmarks.virtual.clients import Load
from benchmarks.virtual.provider import Answer, Request
from benchmarks.virtual.world import Played, play
from tests.effort import IS_FULL, some
from tests.unit.proxy.attempts.test_isolated_callers import (
    BY_CLIENT_KEY,
    BY_MANY_CLIENT_KEYS,
    BY_OWN_KEY,
    CROWD,
    served,
)

FEW_AT_ONCE = "\ndefaults: {capacity: {concurrency: 20}}\n"


class OneUserLimited:
    """Accepts `per_s` calls a second from the poisoner, and all calls of others."""

    def __init__(self, error: ErrorName, retry_after: str | None, per_s: float = 0.0, *, answer_s: float = 0.2) -> None:
        self._error: ErrorName = error
        self._retry_after = retry_after
        self._per_s = per_s
        self._answer_s = answer_s
        self._free_at = 0.0

    def answer(self, request: Request) -> Answer:
        if request.user == "poisoner":
            if not self._per_s or request.at < self._free_at:
                return answers.error("openai", self._error, request.model, self._retry_after, 0.05)
            self._free_at = max(self._free_at, request.at - 1) + 1 / self._per_s
        return answers.right("openai", request.model, self._answer_s)


class AccountLimited:
    """A token bucket for all callers; the poisoner's calls get a 429 even when it has tokens."""

    def __init__(self, per_s: float) -> None:
        self._per_s = self._tokens = per_s
        self._at = 0.0

    def answer(self, request: Request) -> Answer:
        self._tokens = min(self._per_s, self._tokens + (request.at - self._at) * self._per_s)
        self._at = request.at
        if self._tokens < 1 or request.user == "poisoner":
            return answers.error("openai", "429", request.model, None, 0.05)
        self._tokens -= 1
        return answers.right("openai", request.model, 0.2)


def half_waited_s(played: Played, caller: str) -> float:
    took = sorted(call.ended_at - call.arrived_at for call in played.calls if call.caller == caller and call.ended_at)
    return took[len(took) // 2]


@pytest.mark.parametrize("begins_at", some([0.0, 10.0]))
@pytest.mark.parametrize(
    ("config", "provider"),
    [
        (BY_CLIENT_KEY, OneUserLimited("429", None)),
        (BY_CLIENT_KEY, OneUserLimited("429", "30")),
        (BY_CLIENT_KEY, OneUserLimited("429", "300")),
        (BY_CLIENT_KEY, OneUserLimited("quota", None)),
        (BY_CLIENT_KEY, OneUserLimited("429", None, 2.0)),
        (BY_CLIENT_KEY + FEW_AT_ONCE, OneUserLimited("429", None)),
        (BY_OWN_KEY + FEW_AT_ONCE, OneUserLimited("429", "30")),
        (BY_OWN_KEY + FEW_AT_ONCE, OneUserLimited("429", "300", answer_s=2.0)),
    ],
)
def test_caller_that_is_limited_alone_slows_no_other(config: str, provider: OneUserLimited, begins_at: float) -> None:
    loads = [Load("m", 5.0, 40.0, begins_at, caller="victim"), Load("m", 25.0, 40.0, caller="poisoner")]
    played = play(config, provider, loads)
    assert served(played, "victim") == 1.0
    assert half_waited_s(played, "victim") == pytest.approx(provider._answer_s, abs=0.1)
    assert sum(request.user == "poisoner" for request in played.requests) <= 500, "1,000 calls"


def test_limit_of_the_account_is_shared_by_the_callers_that_meet_it() -> None:
    loads = [Load("m", 25.0, 60.0, caller=caller) for caller in ("other", "victim")]
    played = play(BY_CLIENT_KEY, AccountLimited(10.0), loads)
    shares = [served(played, caller) for caller in ("other", "victim")]
    assert min(shares) >= 0.9 * max(shares)
    assert sum(request.status == 429 for request in played.requests) <= 0.1 * len(played.requests)


@pytest.mark.parametrize(
    ("config", "per_s", "rates"),
    some(
        [
            (BY_CLIENT_KEY, 10.0, {"other": 25.0, "victim": 2.0}),
            (BY_CLIENT_KEY, 20.0, {"other": 40.0, "victim": 0.5}),
            (BY_MANY_CLIENT_KEYS, 20.0, {"victim": 25.0, **{f"poisoner-{number}": 0.2 for number in range(CROWD)}}),
        ]
    ),
)
def test_limit_of_the_account_binds_callers_of_few_calls_as_well(
    config: str, per_s: float, rates: dict[str, float]
) -> None:
    """Otherwise no rate could be learned: their calls would use an unknown part of the limit."""
    played = play(
        config, AccountLimited(per_s), [Load("m", rate, 90.0, caller=caller) for caller, rate in rates.items()]
    )
    assert sum(request.status == 429 for request in played.requests) <= 0.08 * len(played.requests)
    assert sum(call.outcome == "served" for call in played.calls) >= 0.95 * per_s * 90.0
    assert all(served(played, caller) == 1.0 for caller, rate in rates.items() if rate <= 2.0)


def test_poisoner_does_not_take_the_share_of_others_in_a_limit_of_the_account() -> None:
    """All three are refused at first, so their limit seems shared; later the poisoner alone is always refused."""
    seconds = 120.0 if IS_FULL else 80.0
    loads = [Load("m", 12.0, seconds, caller=caller) for caller in ("other", "victim", "poisoner")]
    played = play(BY_CLIENT_KEY, AccountLimited(10.0), loads)
    later = [call for call in played.calls if call.arrived_at >= 60.0 and call.caller != "poisoner"]
    assert sum(call.outcome == "served" for call in later) >= 0.8 * 10.0 * (seconds - 60.0)
