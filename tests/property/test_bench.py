"""A walk over the bench beside the plainest model of it: every rest ever given, and the longest counts."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.outcome import Failure, FailureKind
from llm_guard.policy.bench import CREDENTIAL_S, MAX_S, Bench, Key, as_of

CREDENTIALS: list[Key] = [("credential", "a"), ("credential", "b")]
DEPLOYMENTS: list[Key] = [("deployment", "a", "x"), ("deployment", "a", "y")]
ALL = tuple(CREDENTIALS + DEPLOYMENTS)

credentials = st.sampled_from(CREDENTIALS)
deployments = st.sampled_from(DEPLOYMENTS)
refusals = st.sampled_from([FailureKind.AUTH, FailureKind.QUOTA_EXHAUSTED, FailureKind.PERMISSION])
asked = st.none() | st.sampled_from([0.25, 5.0, 60.0, 3600.0, 1e6])


class BenchWalk(RuleBasedStateMachine):
    rests_given: ClassVar[int] = 0
    shorter_rests_ignored: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.bench = Bench()
        self.until: dict[Key, float] = {}
        self.refused: dict[Key, int] = {}
        self.accepted_at: dict[Key, float] = {}

    @rule(seconds=st.sampled_from([0.0, 0.25, 4.0, 30.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=credentials, kind=refusals, asked_s=asked)
    def refuse(self, key: Key, kind: FailureKind, asked_s: float | None) -> None:
        before = self.until_of(key)
        self.bench.note_refusal(key, Failure(kind, "refused", asked_s), self.now)
        is_recent = self.now - self.accepted_at.get(key, 0.0) < CREDENTIAL_S
        if kind is FailureKind.PERMISSION or (kind is FailureKind.AUTH and is_recent):
            assert self.until_of(key) == before
            return
        self.refused[key] = self.refused.get(key, 0) + 1
        if self.refused[key] >= 2:
            self.rests(key, CREDENTIAL_S)

    @rule(key=credentials)
    def accept(self, key: Key) -> None:
        before = self.until_of(key)
        self.bench.note_success(key, self.now)
        self.refused[key], self.accepted_at[key] = 0, self.now
        assert self.until_of(key) == before

    @rule(key=deployments, asked_s=asked)
    def ask_for_a_wait(self, key: Key, asked_s: float | None) -> None:
        self.bench.note_wait(key, Failure(FailureKind.RATE_LIMIT, "limited", asked_s), self.now)
        if asked_s is not None:
            self.rests(key, min(asked_s, MAX_S))

    @invariant()
    def each_rests_until_the_latest_instant_that_was_named_for_it(self) -> None:
        if not hasattr(self, "bench"):
            return
        resting = {key: until for key, until in self.until.items() if until > self.now}
        assert {key: rest.until for key, rest in self.bench.snapshot(self.now).items()} == resting
        longest = self.bench.find(ALL, self.now)
        assert self.bench.is_empty(self.now) == (longest is None)
        assert (longest.until if longest else None) == max(resting.values(), default=None)
        if longest is not None:
            assert 0 < (as_of(longest, self.now).retry_after_s or 0) <= MAX_S

    def rests(self, key: Key, seconds: float) -> None:
        until = self.now + seconds
        BenchWalk.rests_given += 1
        BenchWalk.shorter_rests_ignored += until < self.until.get(key, 0.0)
        self.until[key] = max(until, self.until.get(key, 0.0))

    def until_of(self, key: Key) -> float | None:
        rest = self.bench.find((key,), self.now)
        return rest.until if rest is not None else None


def test_rest_is_never_shortened_whatever_happens() -> None:
    run_state_machine_as_test(
        BenchWalk, settings=settings(derandomize=True, deadline=None, max_examples=150, stateful_step_count=40)
    )
    assert BenchWalk.rests_given > 500
    assert BenchWalk.shorter_rests_ignored > 50
