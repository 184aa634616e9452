"""The gate and its pacer during storms of 429s and with small quotas, simulated on a virtual clock."""

from __future__ import annotations

import random
from itertools import product
from statistics import mean, median

import pytest

from benchmarks.storm import header_pacing, rate_limit_storms, small_quotas
from benchmarks.storm.rate_limit_storms import BucketQuota, Provider, Run, Stormy, WindowQuota
from tests.effort import some

HALF_AN_HOUR_S = 1800.0


def run(provider: Provider, calls_per_minute: float, seed: int = 1) -> Run:
    of = Run(provider, seed)
    of.offer(calls_per_minute / 60, 0.0, HALF_AN_HOUR_S)
    of.timeline.run(until=HALF_AN_HOUR_S)
    return of


def used(of: Run, per_minute: float) -> float:
    """Returns the used share of the quota."""
    return (len(of.sent_at) - len(of.limited_at)) / (per_minute * HALF_AN_HOUR_S / 60)


@pytest.mark.parametrize(("rate", "length_s", "hint_s"), some([*product([0.5, 5, 200], [5, 16, 60], [None, 20.0])]))
def test_calls_are_served_ten_seconds_after_a_storm_of_429s(length_s: float, rate: float, hint_s: float | None) -> None:
    cell = rate_limit_storms.storm(length_s, rate, hint_s)
    assert cell.served >= 0.95
    assert cell.limited <= 0.05


@pytest.mark.parametrize(("rate", "share", "hint_s"), some([*product([0.5, 2, 20], [0.5, 0.7, 0.9], [None, 2.0])]))
def test_calls_are_served_ten_seconds_after_a_storm_that_refuses_a_part_of_them(
    rate: float, share: float, hint_s: float | None
) -> None:
    """A storm of ten minutes was taken for an ever smaller quota: of the calls after it 3 % were served."""
    end, shares = 630.0, []
    open_at = end + (hint_s or 0.0) + 10.0
    for seed in range(1, 4):
        of = Run(Stormy(30.0, end, hint_s, share=share, dice=random.Random(seed)), seed)
        of.offer(rate, 0.0, open_at + 60.0)
        of.timeline.run()
        shares.append(of.served_share(open_at))
    assert mean(shares) >= 0.95


@pytest.mark.parametrize(("rate", "seed"), [(0.5, 3), (1.0, 5), (1.5, 5)])
def test_answers_of_thirty_seconds_do_not_delay_the_end_of_a_storm(rate: float, seed: int) -> None:
    end = 90.0
    of = Run(Stormy(30.0, end), seed, answer_s=30.0)
    of.offer(rate, 0.0, 200.0)
    of.timeline.run()
    assert of.served_share(end + 10.0) == 1.0


@pytest.mark.parametrize(("offered", "length_s", "burst", "least"), [
    (0.5, 16.0, 3.0, 0.95), (0.5, 60.0, 3.0, 0.94), (0.5, 600.0, 1.0, 0.9), (0.5, 600.0, 3.0, 0.9),
    (1.0, 16.0, 1.0, 0.95), (1.0, 60.0, 3.0, 0.95), (1.0, 600.0, 3.0, 0.9),
    (1.5, 600.0, 1.0, 0.95), (1.5, 600.0, 3.0, 0.95),
    (2.0, 16.0, 1.0, 0.95), (2.0, 60.0, 3.0, 0.95), (2.0, 600.0, 1.0, 0.95), (2.0, 600.0, 3.0, 0.95),
])  # fmt: skip
def test_provider_that_takes_little_more_than_is_offered_is_used_after_a_storm(
    offered: float, length_s: float, burst: float, least: float
) -> None:
    """A guess of 0.25 calls/s, made while nothing was accepted, used to be kept for minutes; one that was confirmed by
    chance stopped all calls for 55 s, in one run of twelve."""
    end = 30.0 + length_s
    shares = []
    for seed in range(1, 13):
        of = Run(Stormy(30.0, end, rate=1.5 * offered, burst=burst), seed)
        of.offer(offered, 0.0, end + 70.0)
        of.timeline.run(until=end + 70.0)
        shares.append(of.served_share(end + 10.0, end + 60.0))
    assert mean(shares) >= least


class Shrinking(BucketQuota):
    """Allows as many calls a minute as `after` from ten minutes on, to this gateway and to another consumer."""

    def __init__(self, before: int, after: int, others_per_s: float = 0.0) -> None:
        super().__init__(before)
        self.after = after
        self.others_per_s = others_per_s
        self.dice = random.Random(1)
        self.next_other_at = 600.0

    def accepts(self, now: float) -> bool:
        if now >= 600.0:
            self.per_minute = self.capacity = float(self.after)
        while self.others_per_s and self.next_other_at <= now:
            super().accepts(self.next_other_at)
            self.next_other_at += self.dice.expovariate(self.others_per_s)
        return super().accepts(now)


@pytest.mark.parametrize("quota", [(60, 3, 0.0), (20, 3, 0.0), (30, 10, 0.0), (15, 15, 0.5), (15, 15, 2.0)])
def test_quota_that_shrinks_or_is_shared_meets_at_most_one_429_a_second(quota: tuple[int, int, float]) -> None:
    """Its 429s are explained by no quota that was seen before, so they look like those of a storm for ten minutes."""
    before, after, others_per_s = quota
    of = run(Shrinking(before, after, others_per_s), 120.0)
    assert len(of.limited_at) <= 1.02 * (HALF_AN_HOUR_S - 600.0)
    if not others_per_s:
        assert sum(at >= HALF_AN_HOUR_S - 300.0 for at in of.limited_at) <= 10, "it is known by then"


@pytest.mark.parametrize(("load", "hint_s"), some([*product(rate_limit_storms.TAKEN, rate_limit_storms.HINTS)]))
def test_capacity_that_is_left_after_a_storm_is_used(load: tuple[float, float], hint_s: float | None) -> None:
    assert rate_limit_storms.used_share(*load, hint_s) >= 0.9


@pytest.mark.parametrize("times", [2, 10, 50])
@pytest.mark.parametrize("per_minute", [3, 15])
def test_quota_without_bursts_is_used_at_any_load(per_minute: int, times: int) -> None:
    of = run(BucketQuota(per_minute, capacity=1.0), per_minute * times)
    assert used(of, per_minute) >= 0.75
    assert len(of.limited_at) <= 0.08 * len(of.sent_at) + 25


@pytest.mark.parametrize(("per_minute", "times", "has_hint"), some([*product([15, 3], [2, 10, 50], [False, True])]))
def test_fixed_windows_meet_about_one_429_each(per_minute: int, times: int, has_hint: bool) -> None:
    of = run(WindowQuota(per_minute, has_hint), per_minute * times)
    assert used(of, per_minute) >= 0.8
    # The quota is found in the first window, with a probe every four seconds, because it could be a storm.
    assert sum(at >= 60.0 for at in of.limited_at) <= 40


@pytest.mark.parametrize(("times", "most"), [(1.1, 58), (1.5, 63)])
def test_quota_that_is_hardly_exceeded_is_not_found_again_and_again(times: float, most: int) -> None:
    """Its rate is forgotten after a minute in which no call waits. Finding it took a dozen 429s each time: 64 and 83 in
    half an hour, more than the 58 and 64 of commit addab53."""
    runs = [run(WindowQuota(3), 3 * times, seed) for seed in range(1, 7)]
    assert sum(len(of.limited_at) for of in runs) <= most * len(runs)
    assert sum(used(of, 3) for of in runs) >= 0.78 * len(runs)


@pytest.mark.parametrize("cell", some([*small_quotas.CELLS_BEFORE]))
def test_small_quotas_that_are_hard_to_keep_meet_no_more_429s_than_before(cell: tuple[int, float, bool]) -> None:
    """3 a minute with hints met 176 to 319, 15 a minute without hints 159 to 285."""
    assert small_quotas.window_cell(*cell) <= small_quotas.CELLS_BEFORE[cell]


def test_calls_that_a_probe_of_a_fixed_window_took_too_early_are_paid_back_by_a_pause() -> None:
    runs = [run(WindowQuota(15), 30, seed) for seed in range(1, 6)]
    assert median(sum(at >= 60.0 for at in of.limited_at) for of in runs) <= 15


@pytest.mark.parametrize(
    ("kind", "times", "answer_s"),
    some([*product(header_pacing.KINDS, header_pacing.OFFERED_TIMES, header_pacing.ANSWERS_S)]),
)
def test_calls_paced_by_headers_meet_hardly_a_429(kind: str, times: float, answer_s: float) -> None:
    cell = header_pacing.measure(kind, 600, times, answer_s)
    assert cell.limited <= 0.02
    assert cell.used >= 0.95
