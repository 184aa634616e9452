"""The limits of a client key against a model that charges each call as it comes: never more calls are let in, and a
call is only refused if the model would refuse it 20 ms earlier."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_guard.resilience.client_keys.limit_states import Exceeded
from llm_guard.resilience.client_keys.limits import ClientLimits, Reservation
from llm_guard.resilience.client_keys.settings import ClientLimitSettings
from llm_guard.resilience.client_keys.token_sums import DAY_S
from tests.effort import repeated

LAG_S = 0.02
ROUNDING = 1e-6
BEGAN = 20_000 * DAY_S + DAY_S - 5  # midnight comes within most walks


class Bucket:
    """A leaking bucket."""

    def __init__(self) -> None:
        self.held, self.at = 0.0, 0.0

    def level(self, now: float, per_s: float) -> float:
        return max(0.0, self.held - (now - self.at) * per_s)

    def add(self, amount: float, now: float, per_s: float) -> None:
        self.held, self.at = self.level(now, per_s) + amount, now


class Model:
    """Charges each call as it comes."""

    def __init__(self, limits: ClientLimitSettings) -> None:
        self.limits = limits
        self.calls, self.tokens = Bucket(), Bucket()
        self.in_flight = 0
        self.used: dict[int, int] = {}

    def enter(self, tokens: int, now: float, day: int) -> None:
        self.calls.add(1, now, self.limits.rate or 0)
        self.tokens.add(tokens, now, (self.limits.tokens_per_minute or 0) / 60)
        self.in_flight += 1
        self.used[day] = self.used.get(day, 0) + tokens

    def refuses(self, tokens: int, now: float, day: int, lag_s: float = 0.0) -> bool:
        rate, per_minute, per_day = self.limits.rate, self.limits.tokens_per_minute, self.limits.tokens_per_day
        if rate is not None:
            over = self.calls.level(now, rate) + 1 - max(1.0, rate)
            if over + lag_s * rate > ROUNDING:
                return True
        if per_minute is not None:
            over = self.tokens.level(now, per_minute / 60) + min(tokens, per_minute) - per_minute
            if over + lag_s * per_minute / 60 > ROUNDING * per_minute:
                return True
        if per_day is not None and (self.used.get(day, 0) >= per_day or self.used.get(day, 0) + tokens > per_day):
            return True
        return self.limits.concurrency is not None and self.in_flight >= self.limits.concurrency


def walk(limits: ClientLimitSettings, dice: random.Random, gap_s: float, largest: int, *, is_exact: bool) -> int:
    """Makes calls at random and compares each decision; returns how many were let in and how many were not."""
    model, now, wall = Model(limits), 1000.0, BEGAN
    key, running, decided = ClientLimits(limits, now, wall), list[tuple[Reservation, int]](), [0, 0]
    for _ in range(500):
        step = dice.choice((0.0, dice.random() * gap_s, gap_s))
        now, wall = now + step, wall + step
        if running and dice.random() < 0.4:
            reservation, day = running.pop(dice.randrange(len(running)))
            used = reservation.tokens if limits.tokens_per_minute is not None else dice.randrange(2 * largest)
            key.leave(reservation, used)
            model.in_flight -= 1
            model.used[day] += used - reservation.tokens
        tokens, day = dice.randrange(largest), int(wall // DAY_S)
        found = key.try_enter(tokens, now, wall)
        if isinstance(found, Exceeded):
            assert model.refuses(tokens, now, day, 0.0 if is_exact else LAG_S), (found, now)
            decided[1] += 1
            continue
        assert not model.refuses(tokens, now, day), now
        model.enter(tokens, now, day)
        running.append((found, day))
        decided[0] += 1
    return min(decided)


seeds = st.integers(0, 1 << 32)
limits_of_keys = st.builds(
    ClientLimitSettings,
    rate=st.sampled_from([None, 0.5, 3.0, 60.0, 400.0, 5000.0]),
    concurrency=st.sampled_from([None, 1, 5, 30]),
    tokens_per_minute=st.sampled_from([None, 60, 3000, 1_000_000]),
    tokens_per_day=st.sampled_from([None, 500, 20_000]),
)


@settings(max_examples=repeated(400))
@given(limits_of_keys, seeds, st.sampled_from([0.0001, 0.004, 0.02, 0.3, 8.0]))
@example(ClientLimitSettings(rate=400.0), 1, 0.004)
@example(ClientLimitSettings(tokens_per_minute=1_000_000), 1, 0.02)
def test_never_more_calls_enter_than_if_each_were_charged_as_it_came(
    limits: ClientLimitSettings, seed: int, gap_s: float
) -> None:
    walk(limits, random.Random(seed), gap_s, 400, is_exact=False)


@settings(max_examples=repeated(200))
@given(st.sampled_from([0.5, 3.0, 20.0, 50.0]), seeds, st.sampled_from([0.004, 0.02, 0.3]))
def test_rate_of_up_to_fifty_calls_a_second_is_exact(rate: float, seed: int, gap_s: float) -> None:
    walk(ClientLimitSettings(rate=rate), random.Random(seed), gap_s, 1, is_exact=True)


def test_walks_reach_both_decisions() -> None:
    dice = random.Random(1)
    for limits in (
        ClientLimitSettings(rate=60.0),
        ClientLimitSettings(tokens_per_minute=3000),
        ClientLimitSettings(tokens_per_day=20_000),
        ClientLimitSettings(concurrency=5),
    ):
        assert sum(walk(limits, dice, 0.004, 400, is_exact=False) for _ in range(10)) > 10, limits
