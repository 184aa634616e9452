"""An engine is neither forgotten nor restarted too often, under any requests and events."""

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

from llm_guard.resilience.health.engine_state import Engine, EngineCommand, EngineEvent, EngineEventKind
from llm_guard.resilience.health.restart_policy import HOUR_S, RestartSettings, delay_s
from tests.effort import repeated

EXAMPLES = repeated(400)
STEPS = 40
BOOT_S = 30.0
draws = st.floats(0.0, 1.0, exclude_max=True)
rules = st.builds(
    RestartSettings,
    base_delay=st.sampled_from([1.0, 5.0]),
    max_delay=st.sampled_from([5.0, 300.0]),
    jitter=st.sampled_from([0.0, 0.5, 1.0]),
    max_attempts=st.sampled_from([1, 2, 6]),
    max_per_hour=st.sampled_from([1, 2, 4]),
    reset_after=st.sampled_from([1.0, 60.0]),
)


class EngineWalk(RuleBasedStateMachine):
    """An engine that goes through any events, in any order, and at any pace."""

    happened: ClassVar[set[str]] = set()

    @initialize(settings=rules)
    def begin(self, settings: RestartSettings) -> None:
        self.settings = settings
        self.now = 1000.0
        self.engine = Engine(settings, BOOT_S, self.now)
        self.work: EngineCommand | None = None
        self.automatic: list[float] = []
        self.in_a_row = 0
        self.is_given_up = False

    def note(self, turn: EngineEvent | None) -> None:
        if turn is None:
            return
        assert turn.after == self.engine.state
        EngineWalk.happened.add(turn.what)
        if turn.before == "stopped":
            assert turn.what in ("start", "restart", "reset", "stop_failed"), "nobody wants it to run"
        if turn.what == "auto_restart":
            assert not self.is_given_up
            self.in_a_row += 1
            assert self.in_a_row <= self.settings.max_attempts
            self.automatic.append(self.now)
            lately = [at for at in self.automatic if at > self.now - HOUR_S + 1e-6]
            assert len(lately) <= self.settings.max_per_hour
        if turn.what in ("reset", "restart", "start", "came_back"):
            self.is_given_up = False
            self.in_a_row = 0 if turn.what != "came_back" or turn.before == "failed" else self.in_a_row
        if turn.what == "stop":
            self.is_given_up = False
        if turn.what == "reset":
            self.automatic.clear()
        if turn.what == "auto_restart_gave_up":
            assert turn.attempt == self.settings.max_attempts
            self.is_given_up = True
        if turn.what == "health_failed" and turn.attempt == 0:
            self.in_a_row = 0
        if turn.what in ("health_failed", "auto_restart_failed", "restart_failed"):
            self.check_wait(turn.attempt + 1)

    def check_wait(self, attempt: int) -> None:
        due = self.engine.wakes_at
        assert due is not None
        shortest, longest = (delay_s(self.settings, attempt, u) for u in (0.0, 1.0))
        assert shortest - 1e-6 <= due - self.now <= longest + 1e-6

    @rule()
    def start(self) -> None:
        self.note(self.engine.start(self.now))

    @rule()
    def stop(self) -> None:
        self.note(self.engine.stop(self.now))
        assert self.engine.state == "stopped"

    @rule()
    def restart(self) -> None:
        self.note(self.engine.restart(self.now))
        assert self.engine.state == "restarting"

    @rule()
    def reset(self) -> None:
        self.note(self.engine.reset(self.now))
        assert self.engine.state != "failed"

    @rule()
    def take(self) -> None:
        taken = self.engine.take()
        assert taken is None or self.work is None, "two things are done to it at once"
        self.work = taken or self.work

    @precondition(lambda self: self.work is not None)
    @rule(problem=st.sampled_from([None, "no"]), u=draws)
    def finish(self, problem: str | None, u: float) -> None:
        self.work = None
        self.note(self.engine.finish(problem, self.now, u))

    @rule(age_s=st.sampled_from([0.0, 1.0, 100.0]))
    def good_probe(self, age_s: float) -> None:
        self.note(self.engine.note_up(self.now - age_s, self.now))

    @rule(u=draws)
    def bad_probe(self, u: float) -> None:
        self.note(self.engine.note_down("503", self.now, u))

    @rule(u=draws)
    def end(self, u: float) -> None:
        self.note(self.engine.note_gone("it ended", self.now, u))

    @rule(seconds=st.sampled_from([0.5, 5.0, 100.0, 5000.0]), u=draws)
    def wait(self, seconds: float, u: float) -> None:
        self.now += seconds
        self.note(self.engine.pass_time(self.now, u))

    @precondition(lambda self: self.engine.wakes_at is not None)
    @rule(u=draws)
    def wait_until_due(self, u: float) -> None:
        due = self.engine.wakes_at
        assert due is not None
        self.now = max(self.now, due)
        before = self.engine.snapshot(self.now)
        self.note(self.engine.pass_time(self.now, u))
        assert self.engine.snapshot(self.now) != before, "it is due for ever"

    @precondition(lambda self: self.engine.state in ("stopped", "failed"))
    @rule(u=draws)
    def nothing_happens(self, u: float) -> None:
        assert self.engine.pass_time(self.now + 1e6, u) is None

    # Steps that belong together: random choice seldom finds them in a row.

    @precondition(lambda self: self.work is None and self.engine.state != "running")
    @rule(u=draws)
    def come_up(self, u: float) -> None:
        if self.engine.state in ("stopped", "failed"):
            self.note(self.engine.start(self.now))
        self.carry_out(None, u)
        self.note(self.engine.note_up(self.now, self.now))

    @precondition(lambda self: self.engine.state == "running")
    @rule(u=draws)
    def die(self, u: float) -> None:
        self.note(self.engine.note_gone("it ended", self.now, u))

    @precondition(lambda self: self.work is None and self.engine.state in ("unhealthy", "restart_failed"))
    @rule(problems=st.lists(st.sampled_from([None, "no"]), min_size=1, max_size=4), u=draws)
    def be_tried(self, problems: list[str | None], u: float) -> None:
        for problem in problems:
            if (due := self.engine.wakes_at) is not None:
                self.now = max(self.now, due)
                self.note(self.engine.pass_time(self.now, u))
                self.carry_out(problem, u)
        self.note(self.engine.note_up(self.now, self.now))

    @precondition(lambda self: self.work is None and self.engine.state in ("unhealthy", "restart_failed"))
    @rule(u=draws)
    def be_given_up(self, u: float) -> None:
        for _ in range(3 * self.settings.max_attempts):
            if (due := self.engine.wakes_at) is not None:
                self.now = max(self.now, due)
                self.note(self.engine.pass_time(self.now, u))
                self.carry_out("no", u)
        assert self.engine.state == "failed"

    @precondition(lambda self: self.work is None)
    @rule(u=draws)
    def not_be_stopped(self, u: float) -> None:
        self.stop()
        self.carry_out("no", u)

    @precondition(lambda self: self.work is None and self.engine.state == "running")
    @rule(u=draws)
    def not_be_restarted(self, u: float) -> None:
        self.restart()
        self.carry_out("no", u)

    def carry_out(self, problem: str | None, u: float) -> None:
        if self.engine.take() is not None:
            self.note(self.engine.finish(problem, self.now, u))

    @invariant()
    def is_never_forgotten(self) -> None:
        engine = self.engine
        seen = engine.snapshot(self.now)
        match seen.state:
            case "starting" | "restarting":
                assert seen.doing is not None or engine.wakes_at is not None, "nobody would ever start it"
            case "unhealthy" | "restart_failed":
                assert seen.next_attempt_s is not None
            case "running" | "failed" | "stopped":
                assert engine.wakes_at is None
        assert (seen.state == "failed") == self.is_given_up

    @invariant()
    def wanted_down_is_never_started(self) -> None:
        if self.engine.state == "stopped" and self.engine.snapshot(self.now).doing not in (None, "stop"):
            assert self.work is not None, "it is to be started though it is stopped"


def test_engine_holds_on_every_walk() -> None:
    EngineWalk.happened.clear()
    walk = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=True)
    run_state_machine_as_test(EngineWalk, settings=walk)
    assert EngineWalk.happened == set(get_args(EngineEventKind)), "a walk that misses a turn proves nothing of it"
