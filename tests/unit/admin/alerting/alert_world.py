"""A gateway on a manual clock and without a socket. Tests write its counters directly."""

from __future__ import annotations

import json
from typing import Any

from llm_guard.admin.alerting.alerts import Alerts
from llm_guard.admin.alerting.engine_signals import EngineSignals
from llm_guard.admin.alerting.signals import AlertSignals
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.incidents.alert_causes import AlertCauses
from llm_guard.config import Config, parse_config
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy.telemetry.recorder import CallCounters
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.routing.deployment import Deployment
from llm_guard.webhooks.notice_sharing import NoticeSharing, NotShared
from llm_guard.webhooks.payloads import Notice
from tests.fakes.clock import ManualClock
from tests.fakes.gateway import new_gateway


def config_of(**ops: Any) -> Config:
    """Returns a config with three models, one with two deployments and one a pattern. Upstream `one` has a key, `two`
    passes on the callers' keys."""
    config = {
        "ops": {**ops, "alerts": {"group_wait": "0s", **ops.get("alerts", {})}},
        "upstreams": {
            "one": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-one"},
            "two": {"dialect": "openai", "base_url": "http://127.0.0.1:2/v1"},
        },
        "defaults": {"breaker": {"consecutive_failures": 2, "early_probes": False}},
        "models": {
            "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "two"}]},
            "x-*": {"deployments": [{"upstream": "two"}]},
            "small": {"deployments": [{"upstream": "one"}], "retry": {"budget": {"ratio": 0, "min_per_second": 0}}},
        },
    }
    return parse_config(json.dumps(config), "test.yaml", {})


class RecordingWebhooks:
    """A stand-in for webhooks that keeps the notices it gets."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.reminders: list[Notice] = []
        self.underway: set[str] = set()
        """Ids of notices that have not been delivered yet."""
        self.is_listening = True
        self.is_broken = False
        """No notice is ever delivered."""

    def tell(self, notice: Notice) -> None:
        if self.is_broken:
            self.underway.add(notice.id)
        else:
            self.notices.append(notice)

    def remind(self, notice: Notice) -> None:
        self.reminders.append(notice)

    def undelivered(self) -> set[str]:
        return self.underway

    def said(self) -> list[tuple[str, str, str]]:
        return [(notice.state, notice.alert, notice.subject) for notice in self.notices]


class World:
    """A gateway with alerts; `pass_s` advances the clock and evaluates them each second."""

    def __init__(self, clock: ManualClock | None = None, sharing: NoticeSharing | None = None, **alerts: Any) -> None:
        self.clock = clock or ManualClock()
        self.config = config_of(alerts=alerts)
        self.counters = CallCounters()
        self.gateway = new_gateway(self.config, self.clock, counters=self.counters)
        self.journal = EventLog(self.clock)
        self.told = RecordingWebhooks()
        self.lag_s = 0.0
        self.is_reload_good = True
        self.file_problems: dict[str, str | None] = {}
        self.credential_problems: dict[str, str | None] = {}
        self.engine_problems: dict[str, str | None] = {}
        self.engines = EngineSignals(self.journal, lambda: self.engine_problems)
        rules, lag, reload = self.config.ops.alerts, lambda: self.lag_s, lambda: self.is_reload_good
        self.signals = AlertSignals(
            rules, self.gateway, self.counters, self.engines, lag, reload, lambda: self.file_problems,
            lambda: self.credential_problems,
        )  # fmt: skip
        causes = AlertCauses(self.config, self.gateway, self.clock, self.engines.concerned)
        self.alerts = Alerts(rules, self.signals, causes, self.told, sharing or NotShared(), self.journal, self.clock)
        self.look()

    def problems(self) -> dict[str, str | None]:
        """Returns the problems of files named in the config."""
        return self.file_problems

    def look(self) -> None:
        self.alerts.look(self.clock.now())

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            self.look()

    def firing(self) -> set[tuple[str, str]]:
        return {(alert.alert, alert.subject) for alert in self.alerts.firing()}

    def end_engine(self, engine: str, times: int = 1) -> None:
        """Reports that an engine ended and is restarted, so many times."""
        self.engine_problems[engine] = "restarting: it ended with exit code 3"
        for _ in range(times):
            self.journal.note("engine", engine=engine, state="restarting", event="auto_restart")

    def end_calls(self, model: str, good: int = 0, bad: int = 0) -> None:
        counts = self.counters.models[model]
        counts.judged += good + bad
        counts.recent.extend([False] * bad + [True] * good)

    def refuse_calls(self, model: str, count: int, by: str) -> None:
        counts = self.counters.models[model]
        counts.calls["refused"] += count
        counts.refusals[by] += count

    def pass_calls(self, model: str, count: int) -> None:
        """Counts successful calls."""
        self.counters.models[model].calls["ok"] += count

    def answer(self, model: str, count: int, each_s: float) -> None:
        """Counts complete responses and their duration."""
        counts = self.counters.models[model]
        counts.answered += count
        counts.answered_s += count * each_s

    def stream(self, model: str, count: int, first_token_s: float) -> None:
        for _ in range(count):
            self.counters.models[model].time_to_first_token.note(first_token_s)

    def fail_attempts(self, label: str, count: int, outcome: str = "server_error") -> None:
        self.counters.deployments[label].attempts[outcome] += count

    def deployment(self, label: str) -> Deployment:
        return next(each for each in self.gateway.deployments() if each.label == label)

    def break_down(self, label: str) -> None:
        """Opens the deployment's breaker."""
        open_breaker(self.deployment(label).breaker, self.clock.now())

    def repair(self, label: str) -> None:
        """Closes the deployment's breaker."""
        now = self.clock.now()
        breaker = self.deployment(label).breaker
        breaker.force("forced_closed", now)
        breaker.force("auto", now)

    def refuse_credential(self, *key: str) -> None:
        for _ in range(2):
            self.gateway.cooldowns.note_refusal(key, "m", Failure(FailureKind.AUTH, "refused"), self.clock.now())


def open_breaker(breaker: Breaker, now: float) -> None:
    """Opens the breaker by failures."""
    while breaker.state == "closed":
        permit = breaker.try_acquire(now)
        assert permit is not None
        breaker.settle(permit, Signal.UNHEALTHY, now)
