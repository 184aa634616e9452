"""A walk over the cooldowns beside the simplest model of them: all cooldowns ever set, of which the longest counts."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.circuit_breaker.cooldown import (
    CREDENTIAL_S,
    PROBE_S,
    CooldownKey,
    Cooldowns,
    deployment_key,
    quota_key,
)
from tests.effort import repeated

MODELS = ["x", "y"]
CREDENTIALS: list[CooldownKey] = [("credential", "a")]
CAP_S = 60.0

credentials = st.sampled_from(CREDENTIALS)
models = st.sampled_from(MODELS)
refusals = st.sampled_from([FailureKind.AUTH, FailureKind.QUOTA_EXHAUSTED, FailureKind.PERMISSION])
hints = st.none() | st.sampled_from([0.25, 5.0, 60.0, 3600.0, 1e6])


class CooldownsWalk(RuleBasedStateMachine):
    cooldowns: ClassVar[int] = 0
    probes: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.bench = Cooldowns()
        self.quiet_since = self.now
        """Instant since which nothing was refused."""

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_for_the_end_of_one(self) -> None:
        self.now = min((stop.until for stop in self.bench.snapshot(self.now).values()), default=self.now)

    @rule(key=credentials, model=models, kind=refusals, hint_s=hints)
    def refuse(self, key: CooldownKey, model: str, kind: FailureKind, hint_s: float | None) -> None:
        self.bench.note_refusal(key, model, Failure(kind, "refused", hint_s), self.now)
        self.quiet_since = self.now

    @rule(key=credentials, model=models, hint_s=hints)
    def send_a_hint(self, key: CooldownKey, model: str, hint_s: float | None) -> None:
        failure = Failure(FailureKind.RATE_LIMIT, "limited", hint_s)
        self.bench.note_wait(deployment_key(key, model), failure, CAP_S, self.now)
        self.quiet_since = self.now

    @rule(key=credentials, model=models, took_s=st.sampled_from([0.0, 1.0, 5.0]))
    def call(self, key: CooldownKey, model: str, took_s: float) -> None:
        """A call that is allowed succeeds, which ends every cooldown that began before it was sent."""
        keys = (key, quota_key(key, model), deployment_key(key, model))
        if self.is_stopped(key, model):
            return
        self.bench.note_sent(keys, self.now)
        if self.is_stopped(key, model):
            CooldownsWalk.probes += 1
        sent_at, self.now = self.now, self.now + took_s
        self.bench.note_success(key, model, sent_at, self.now)
        assert not self.is_stopped(key, model)

    @rule(key=credentials, model=models)
    def call_at_the_end_of_a_cooldown(self, key: CooldownKey, model: str) -> None:
        stops = [self.bench.find(key, model, self.now), self.bench.find_hint(deployment_key(key, model), self.now)]
        self.now = max((stop.until for stop in stops if stop is not None), default=self.now)
        self.call(key, model, 0.0)

    @rule(key=credentials, model=models)
    def lift(self, key: CooldownKey, model: str) -> None:
        keys = (key, quota_key(key, model), deployment_key(key, model))
        lifted = self.bench.lift(keys, self.now)
        assert set(lifted) <= set(keys)
        assert not self.is_stopped(key, model)

    @invariant()
    def no_cooldown_is_longer_than_the_cap_or_outlives_its_refusals(self) -> None:
        if not hasattr(self, "bench"):
            return
        stops = self.bench.snapshot(self.now)
        CooldownsWalk.cooldowns += len(stops)
        assert all(self.now < stop.until <= self.now + max(CAP_S, CREDENTIAL_S) for stop in stops.values())
        for key in CREDENTIALS:
            for model in MODELS:
                stop = self.bench.find(key, model, self.now)
                assert stop is None or stop in stops.values()
        if self.now - self.quiet_since >= CAP_S + PROBE_S:
            assert all(self.now - stop.until < PROBE_S for stop in stops.values())

    def is_stopped(self, key: CooldownKey, model: str) -> bool:
        hint = self.bench.find_hint(deployment_key(key, model), self.now)
        return hint is not None or self.bench.find(key, model, self.now) is not None


def test_no_cooldown_shuts_anything_out_for_longer_than_it_may() -> None:
    run_state_machine_as_test(
        CooldownsWalk,
        settings=settings(
            derandomize=True, deadline=None, max_examples=repeated(200, least=100), stateful_step_count=40
        ),
    )
    assert CooldownsWalk.cooldowns > repeated(500)
    assert CooldownsWalk.probes > repeated(20)


def test_refused_target_is_soon_served_a_call_a_second_again() -> None:
    """The provider has recovered: of calls a second apart none waits for long, regardless of earlier failures."""
    cooldowns, key = Cooldowns(), CREDENTIALS[0]
    for kind in (FailureKind.AUTH, FailureKind.QUOTA_EXHAUSTED):
        for model in MODELS:
            for _ in range(5):
                cooldowns.note_refusal(key, model, Failure(kind, "refused"), 0.0)
                cooldowns.note_wait(deployment_key(key, model), Failure(kind, "limited", 1e6), CAP_S, 0.0)
    served = []
    for second in range(100):
        now = float(second)
        model = MODELS[second % 2]
        hint = cooldowns.find_hint(deployment_key(key, model), now)
        if hint is None and cooldowns.find(key, model, now) is None:
            keys = (key, quota_key(key, model), deployment_key(key, model))
            cooldowns.note_sent(keys, now)
            cooldowns.note_success(key, model, now, now + 0.5)
            served.append(second)
    assert served == list(range(60, 100))
