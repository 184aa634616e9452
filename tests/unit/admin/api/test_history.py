from __future__ import annotations

import msgspec
import pytest

from llm_guard.admin.api.history import MODELS, STEP_S, STEPS, HistoryApi, SavedHistory
from llm_guard.admin.monitor.series_buffer import OTHERS
from llm_guard.proxy.telemetry.recorder import CallCounters
from tests.fakes.clock import ManualClock


class Past:
    """A history with counters and a clock that the test controls."""

    def __init__(self) -> None:
        self.clock, self.counters = ManualClock(), CallCounters()
        self.history = HistoryApi(self.counters, self.clock)

    def call(self, model: str, times: int = 1, *, seconds: float = 0.2, outcome: str = "ok") -> None:
        counts = self.counters.models[model]
        for _ in range(times):
            counts.calls[outcome] += 1
            counts.judged += 1
            counts.call_duration["ok" if outcome == "ok" else "failed"].note(seconds)

    def attempt(self, label: str, outcome: str = "ok", times: int = 1) -> None:
        counts = self.counters.deployments[label]
        for _ in range(times):
            counts.attempts[outcome] += 1
            counts.upstream_duration["ok" if outcome == "ok" else "failed"].note(0.2)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(STEP_S)
            self.history.look(self.clock.now())


def test_nothing_is_known_before_the_first_step() -> None:
    past = Past()
    past.call("gpt")
    past.clock.advance(STEP_S - 0.1)
    past.history.look(past.clock.now())
    view = past.history.view()
    assert (view.at, view.total.calls_per_second, view.models) == ([], [], {})


def test_step_shows_its_events() -> None:
    past = Past()
    past.call("gpt", 10)
    past.step()
    past.call("gpt", 3)
    past.call("gpt", 1, seconds=45.0)
    past.call("gpt", 1, outcome="timeout", seconds=600.0)
    past.step()
    past.step()
    view = past.history.view()
    assert view.at == [1_800_000_005.0, 1_800_000_010.0, 1_800_000_015.0]
    line = view.models["gpt"]
    assert line.calls_per_second == [2.0, 1.0, 0.0]
    assert line.success_rate == [1.0, 0.8, None]
    assert line.duration_p50_s[0] == pytest.approx(0.175)
    assert line.duration_p95_s[1] == pytest.approx(54.0)
    assert line.duration_p50_s[2] is line.first_token_p50_s[0] is None
    assert view.total == line


def test_late_step_has_its_true_length() -> None:
    past = Past()
    past.call("gpt", 10)
    past.clock.advance(20.0)
    past.history.look(past.clock.now())
    assert past.history.view().total.calls_per_second == [0.5]


def test_series_that_begins_later_is_unknown_before() -> None:
    past = Past()
    past.step(2)
    past.call("gpt", 5)
    past.step()
    view = past.history.view()
    assert view.models["gpt"].calls_per_second == [None, None, 1.0]
    assert view.total.calls_per_second == [0.0, 0.0, 1.0]


def test_quarter_of_an_hour_is_stored() -> None:
    past = Past()
    past.call("gpt", 5)
    past.step(STEPS + 3)
    view = past.history.view()
    assert STEPS * STEP_S == 900
    for line in (view.at, view.total.calls_per_second, view.models["gpt"].duration_p50_s):
        assert len(line) == STEPS
    assert view.total.calls_per_second == [0.0] * STEPS


def test_only_the_busiest_have_series_and_the_others_share_one() -> None:
    past = Past()
    for number in range(MODELS + 3):
        past.call(f"m{number}", number + 1)
    past.step()
    view = past.history.view()
    assert len(view.models) == MODELS + 1
    assert set(view.models) == {OTHERS, *(f"m{number}" for number in range(3, MODELS + 3))}
    assert view.models[OTHERS].calls_per_second == [(1 + 2 + 3) / STEP_S]
    lines = view.models.values()
    assert sum(line.calls_per_second[0] or 0.0 for line in lines) == pytest.approx(view.total.calls_per_second[0])


def test_model_that_becomes_busy_takes_the_idlest_ones_place() -> None:
    past = Past()
    for number in range(MODELS):
        past.call(f"m{number}", 10 + number)
    past.step()
    assert OTHERS not in past.history.view().models
    past.call("quiet", 2)
    past.call("new", 100)
    past.step()
    view = past.history.view()
    assert "new" in view.models
    assert "m0" not in view.models
    assert view.models["new"].calls_per_second == [None, 20.0]
    assert view.models[OTHERS].calls_per_second == [None, 0.4]


def test_memory_does_not_grow_with_temporary_models() -> None:
    past = Past()
    for number in range(500):
        past.call(f"m{number}", 5)
        past.step()
    assert len(past.history._recent._lines) == MODELS
    assert len(past.history.view().models) == MODELS


# the last minute


def test_last_minute_is_known_at_once_and_forgets() -> None:
    past = Past()
    past.call("gpt", 30)
    past.step()
    past.call("gpt", 6)
    lately = past.history.model("gpt")
    assert lately.tally.calls == 36
    assert lately.calls_per_second == pytest.approx(36 / 5)
    past.step(11)
    assert past.history.model("gpt").tally.calls == 36
    past.step()
    assert past.history.model("gpt").tally.calls == 6
    past.step()
    assert past.history.model("gpt").tally.calls == 0
    assert past.history.model("gpt").seconds == pytest.approx(60.0)


def test_last_minute_of_a_deployment_is_that_of_its_attempts() -> None:
    past = Past()
    past.attempt("a/x", times=3)
    past.attempt("a/x", "timeout")
    past.attempt("a/x", "client_cancelled")
    tally = past.history.deployment("a/x").tally
    assert (tally.attempts, tally.judged, tally.ok) == (5, 4, 3)
    past.step(14)
    assert past.history.deployment("a/x").tally.attempts == 0


def test_names_that_were_never_requested_have_no_history_and_create_none() -> None:
    past = Past()
    assert past.history.model("never").tally.calls == past.history.deployment("never").tally.calls == 0
    assert not past.counters.models
    assert not past.counters.deployments


def test_rate_of_the_first_moments_is_not_exaggerated() -> None:
    past = Past()
    past.call("gpt", 10)
    past.clock.advance(0.01)
    assert past.history.model("gpt").calls_per_second == 10 / STEP_S


def test_refusals_began_after_the_last_step_that_saw_none() -> None:
    past = Past()
    past.call("gpt", 10)
    past.step(2)
    past.counters.models["gpt"].refusals["deadline"] = 1
    past.call("gpt", 1)
    past.step(3)
    began_at = past.clock.now() - 3 * STEP_S
    assert past.history.refused_since("gpt", "deadline") == began_at
    past.counters.models["gpt"].refusals["breaker"] = 5
    past.call("gpt", 1)
    assert past.history.refused_since("gpt", "breaker") == past.clock.now()
    assert past.history.refused_since("gpt", "deadline") == began_at


def test_refusals_of_the_last_minute_are_those_of_the_models_tally() -> None:
    past = Past()
    assert past.history.refusals("gpt") == (0, {})
    past.counters.models["gpt"].refusals["breaker"] = 4
    past.call("gpt", 10)
    past.step(6)
    past.counters.models["gpt"].refusals["limit"] = 2
    past.call("gpt", 3)
    for _ in range(12):
        lately = past.history.model("gpt").tally
        assert past.history.refusals("gpt") == (lately.calls, lately.refused_by)
        past.step()
    assert past.history.refusals("gpt") == (3, {"limit": 2})
    past.step()
    assert past.history.refusals("gpt") == (0, {})


def minutes(past: Past, *calls: int) -> None:
    """Passes so many minutes, with so many calls in each."""
    for count in calls:
        past.call("gpt", count)
        past.step(12)


def test_day_has_a_point_for_each_minute() -> None:
    past = Past()
    minutes(past, 60, 0, 120)
    day = past.history.view("24h")
    assert day.step_s == 60.0
    assert day.at == [1_800_000_060.0, 1_800_000_120.0, 1_800_000_180.0]
    assert day.models["gpt"].calls_per_second == day.total.calls_per_second == [1.0, 0.0, 2.0]
    assert day.models["gpt"].success_rate == [1.0, None, 1.0]


def test_day_survives_a_restart_with_a_gap() -> None:
    before, after = Past(), Past()
    minutes(before, 60, 120)
    after.clock.advance(600.0)
    after.history = HistoryApi(after.counters, after.clock)
    saved = msgspec.json.decode(msgspec.json.encode(before.history.snapshot()), type=SavedHistory)
    after.history.restore(saved)
    minutes(after, 180)
    day = after.history.view("24h")
    assert day.at == [1_800_000_060.0, 1_800_000_120.0, 1_800_000_660.0]
    assert day.models["gpt"].calls_per_second == [1.0, 2.0, 3.0]
    assert day.total.duration_p50_s[0] == pytest.approx(0.175)


def test_history_of_a_deployment_is_returned_on_request() -> None:
    past = Past()
    past.attempt("one/gpt", times=10)
    past.step()
    past.attempt("one/gpt", times=4)
    past.attempt("one/gpt", "timeout", times=1)
    past.step(11)
    recent = past.history.view("15m", "one/gpt")
    assert recent.deployment is not None
    assert recent.deployment.calls_per_second == [2.0, 1.0, *[0.0] * 10]
    assert recent.deployment.success_rate[:3] == [1.0, 0.8, None]
    assert past.history.view("15m").deployment is None
    assert past.history.view("15m", "one/other").deployment is None
    day = past.history.view("24h", "one/gpt")
    assert day.deployment is not None
    assert day.deployment.calls_per_second == [0.25]


def test_points_of_more_than_a_day_ago_are_not_restored() -> None:
    before, after = Past(), Past()
    minutes(before, 60, 120)
    after.clock.advance(24 * 3600 + 90.0)
    after.history.restore(before.history.snapshot())
    assert after.history.view("24h").at == [1_800_000_120.0]
    assert after.history.view("24h").models["gpt"].calls_per_second == [2.0]
    after.clock.advance(60.0)
    fresh = HistoryApi(after.counters, after.clock)
    fresh.restore(before.history.snapshot())
    assert fresh.view("24h").at == []
    assert fresh.view("24h").total.calls_per_second == []


def test_model_that_is_new_after_a_restart_has_no_past() -> None:
    before, after = Past(), Past()
    minutes(before, 60)
    after.clock.advance(120.0)
    after.history = HistoryApi(after.counters, after.clock)
    after.history.restore(before.history.snapshot())
    after.call("new", 60)
    minutes(after, 0)
    day = after.history.view("24h")
    assert day.models["new"].calls_per_second == [None, 1.0]
    assert day.models["gpt"].calls_per_second == [1.0, 0.0]
