"""The limiter with calls that come and go, under any settings and ramps."""

from __future__ import annotations

from typing import ClassVar, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_guard.resilience.capacity.gate import RAMP_SHARE, RAMP_START, Ending, Limiter
from llm_guard.resilience.capacity.settings import LimiterSettings
from tests.effort import repeated

chosen_settings = st.builds(
    LimiterSettings,
    concurrency=st.sampled_from([None, 1, 3, 20, "adaptive"]),
    min_concurrency=st.integers(1, 5),
    max_concurrency=st.integers(5, 40),
    latency_threshold=st.sampled_from([None, 1.0]),
)


endings = st.sampled_from(get_args(Ending))


class LimiterWalk(RuleBasedStateMachine):
    met: ClassVar[dict[str, int]] = dict.fromkeys(("full", "ramping", "lowered", "raised"), 0)

    @initialize(chosen=chosen_settings)
    def begin(self, chosen: LimiterSettings) -> None:
        self.limiter = Limiter(chosen)
        self.now = 100.0
        self.out: list[float] = []
        self.most_in_flight = 0
        self.ramp: tuple[float, float, int] | None = None
        """Begin and end of the ramp, and the highest limit it may have reached."""

    def limit(self) -> int | None:
        return self.limiter.limit(self.now)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 5.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 30))
    def calls_come(self, count: int) -> None:
        for _ in range(count):
            if self.limiter.opens_at(len(self.out), self.now) > self.now:
                limit = self.limit()
                assert limit is not None
                assert len(self.out) >= limit, "somebody waits though there is room"
                type(self).met["full"] += 1
                return
            limit = self.limit()
            assert limit is None or len(self.out) < limit, "one too many was let in"
            self.out.append(self.now)
            self.most_in_flight = max(self.most_in_flight, len(self.out))

    @precondition(lambda self: self.limiter.settings.concurrency == "adaptive")
    @rule(ending=st.sampled_from(["ok", "overloaded"]))
    def a_busy_while(self, ending: Ending) -> None:
        """Steers the walk: the limit moves only under load, and once per round trip."""
        for _ in range(6):
            self.calls_come(40)
            self.now += 0.2
            for _ in range(len(self.out)):
                self.a_call_ends(0, ending, 0.2)

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 99), ending=endings, latency_s=st.sampled_from([None, 0.1, 3.0]))
    def a_call_ends(self, pick: int, ending: Ending, latency_s: float | None) -> None:
        entered_at = self.out.pop(pick % len(self.out))
        before = self.limit()
        self.limiter.note(ending, entered_at, self.now, latency_s, len(self.out) + 1)
        if self.ramp is not None:
            began_at, ends_at, most = self.ramp
            change = -1 if entered_at < began_at else 1 if ending == "ok" else 0
            self.ramp = (began_at, ends_at, most + change)
        after = self.limit()
        if before is not None and after is not None:
            type(self).met["lowered"] += after < before
            type(self).met["raised"] += after > before
            is_idle = (len(self.out) + 1) * 2 < before
            assert after <= before or self.ramp is not None or not is_idle, "it grows though half of it is unused"

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]))
    def its_breaker_has_closed(self, seconds: float) -> None:
        in_flight = len(self.out)
        self.limiter.ramp(self.now, seconds, in_flight)
        most = in_flight + max(RAMP_START, int(self.most_in_flight * RAMP_SHARE))
        self.ramp = (self.now, self.now + seconds, most) if seconds else None

    @rule(chosen=chosen_settings)
    def the_config_is_reloaded(self, chosen: LimiterSettings) -> None:
        self.limiter.settings = chosen

    @invariant()
    def limit_is_within_its_bounds(self) -> None:
        limit, chosen = self.limit(), self.limiter.settings
        is_ramping = self.ramp is not None and self.now < self.ramp[1]
        if is_ramping:
            type(self).met["ramping"] += 1
            assert self.ramp is not None
            assert limit is not None
            assert 1 <= limit <= self.ramp[2]
        elif chosen.concurrency == "adaptive":
            assert limit is not None
            assert chosen.min_concurrency <= limit <= chosen.max_concurrency
        else:
            assert limit == chosen.concurrency


def test_limiter_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        LimiterWalk,
        settings=settings(derandomize=True, deadline=None, max_examples=repeated(100), stateful_step_count=40),
    )
    # A walk that never gets far proves nothing.
    assert min(LimiterWalk.met.values()) > repeated(3), LimiterWalk.met
