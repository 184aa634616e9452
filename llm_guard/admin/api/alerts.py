"""/admin/alerts: firing and resolved alerts, silences, webhooks, and a test notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from llm_guard.admin.alerting.alerts import Alerts
from llm_guard.admin.alerting.raised_alert import RaisedAlert
from llm_guard.admin.api.parameters import Duration, seconds_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import Clock, iso
from llm_guard.config import Config
from llm_guard.resilience.alerts.alert import Severity
from llm_guard.resilience.alerts.rules import RuleName
from llm_guard.resilience.alerts.silences import EVERY, MOST, Silence
from llm_guard.webhooks.alert_webhook import WebhookView
from llm_guard.webhooks.payloads import Notice, plain
from llm_guard.webhooks.queue import Webhooks

AlertSubject = Annotated[
    str, Meta(min_length=1, max_length=600, description="Subject of the alert, as in /admin/alerts; null: any.")
]


class AlertView(Struct, frozen=True):
    """An alert that fires, or has fired."""

    id: str
    alert: RuleName
    severity: Severity
    subject: str
    state: Literal["firing", "resolved"]
    summary: str
    value: float
    threshold: float
    since: str
    resolved_at: str | None
    is_silenced: bool
    cause: str
    """Kind and subject of the cause, the id of an entry of `GET /admin/incidents`. Alerts with one cause share a
    notice."""
    incident: str
    """Id of that notice."""


class SilenceView(Struct, frozen=True):
    """A silence: no notices are sent of the alerts that it covers."""

    alert: str
    """Name of the rule; `*`: all rules."""
    subject: str | None
    """Subject of the alert; null: any."""
    until: str
    reason: str
    operator: str


class RuleView(Struct, frozen=True):
    """A rule with its settings, durations in seconds; null: it is off."""

    alert: RuleName
    settings: dict[str, Any] | None
    fired: int
    """How often it has fired since the start."""


class AlertsView(Struct, frozen=True):
    """Response of `GET /admin/alerts`."""

    firing: list[AlertView]
    resolved: list[AlertView]
    """The last hundred, newest first."""
    silences: list[SilenceView]
    rules: list[RuleView]
    webhooks: list[WebhookView]


class Unsilence(Change):
    """The silence to remove; `*`: the silence of all rules."""

    alert: RuleName | Literal["*"]
    subject: AlertSubject | None = None


class PutSilence(Unsilence, kw_only=True):
    """The alerts to silence, and for how long."""

    for_: Duration = field(name="for")


class TryWebhook(Change):
    """Name of the webhook to test."""

    webhook: str


class WebhookTestResult(Struct, frozen=True):
    """Result of the test."""

    is_delivered: bool
    problem: str | None


class AlertApi(EndpointGroup):
    """Endpoints of alerts. A silence only suppresses notices; it changes nothing about the alert itself."""

    def __init__(self, alerts: Alerts, webhooks: Webhooks, changes: Changes, clock: Clock) -> None:
        self._alerts = alerts
        self._webhooks = webhooks
        self._changes = changes
        self._clock = clock

    def adopt(self, config: Config) -> None:
        """Applies new rules and webhooks. A new webhook gets the notices of alerts that fire."""
        self._alerts.adopt(config.ops.alerts)
        self._webhooks.adopt(config.ops.webhooks, self._alerts.told())

    def look(self, now: float) -> None:
        self._alerts.look(now)

    def pages(self) -> list[Endpoint]:
        silences, path = Changed[list[SilenceView]], "/admin/alerts"
        return [
            Endpoint("GET", path, "Lists alerts, silences, rules and webhooks.", self._give, gives=AlertsView),
            Endpoint("POST", f"{path}/silence", "Silences alerts.", self._silence, takes=PutSilence, gives=silences),
            Endpoint("POST", f"{path}/unsilence", "Ends a silence.", self._unsilence, takes=Unsilence, gives=silences),
            Endpoint(
                "POST", f"{path}/test", "Sends a test alert to a webhook.", self._test, takes=TryWebhook,
                gives=Changed[WebhookTestResult],
            ),
        ]  # fmt: skip

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        alerts = self._alerts
        fired: dict[str, int] = {}
        for (alert, _), count in alerts.counts().items():
            fired[alert] = fired.get(alert, 0) + count
        view = AlertsView(
            [_view(raised, is_silenced=alerts.is_silenced(raised)) for raised in alerts.firing()],
            [_view(raised, is_silenced=False) for raised in alerts.resolved()],
            [*self._silences()],
            [
                RuleView(name, None if settings is None else asdict(settings), fired.get(name, 0))
                for name, settings in alerts.rules()
            ],
            self._webhooks.views(),
        )
        return answer(view)

    async def _silence(self, asked: AdminRequest) -> AdminResponse:
        body: PutSilence = asked.body
        seconds = seconds_of(body.for_)

        def do() -> ChangeResult:
            until = self._clock.now() + seconds
            if not self._alerts.try_silence(Silence(body.alert, body.subject, until, body.reason, asked.who)):
                raise Refused(
                    409, "too_many_silences", f"there are already {MOST} silences: remove some, or silence whole rules"
                )
            is_of_use = any(self._alerts.is_silenced(alert) for alert in self._alerts.firing())
            return ChangeResult(
                [*self._silences()], {"for": body.for_}, [] if is_of_use else ["no firing alert matches this silence"]
            )

        return await self._changes.make(asked, "alerts.silence", _target(body), do)

    async def _unsilence(self, asked: AdminRequest) -> AdminResponse:
        body: Unsilence = asked.body

        def do() -> ChangeResult:
            silence = self._alerts.try_unsilence(body.alert, body.subject)
            if silence is None:
                raise Refused(404, "unknown_silence", "there is no such silence: GET /admin/alerts lists all silences")
            return ChangeResult([*self._silences()], {"was": silence.reason})

        return await self._changes.make(asked, "alerts.unsilence", _target(body), do)

    async def _test(self, asked: AdminRequest) -> AdminResponse:
        name: str = asked.body.webhook
        webhook = self._webhooks.find(name)
        if webhook is None:
            known = ", ".join(view.name for view in self._webhooks.views()) or "none"
            raise Refused(404, "unknown_webhook", f"there is no webhook {name!r}; known: {known}")

        async def do() -> ChangeResult:
            wall = self._clock.wall()
            sent = await webhook.send_at_once(_test_notice("firing", asked.who, wall))
            if sent.is_delivered:  # else an incident would stay open
                sent = await webhook.send_at_once(_test_notice("resolved", asked.who, wall))
            tried = WebhookTestResult(sent.is_delivered, sent.problem or None)
            return ChangeResult(tried, {"is_delivered": tried.is_delivered, "problem": tried.problem})

        return await self._changes.make(asked, "alerts.test", name, do)

    def _silences(self) -> Iterator[SilenceView]:
        past = self._clock.wall() - self._clock.now()
        for silence in self._alerts.silences():
            yield SilenceView(silence.alert, silence.subject, iso(past + silence.until), silence.reason, silence.who)


def _view(raised: RaisedAlert, *, is_silenced: bool) -> AlertView:
    finding, resolved_at = raised.finding, raised.resolved_at
    return AlertView(
        raised.id,
        raised.alert,
        raised.severity,
        raised.subject,
        "firing" if resolved_at is None else "resolved",
        plain(finding.summary),
        round(finding.value, 6),
        round(finding.threshold, 6),
        iso(raised.since),
        None if resolved_at is None else iso(resolved_at),
        is_silenced,
        raised.cause.key,
        raised.incident,
    )


def _test_notice(state: Literal["firing", "resolved"], who: str, wall: float) -> Notice:
    summary = f"test alert sent by {who}; nothing is wrong"
    return Notice(f"{wall:.0f}-test", state, "test", "info", "webhook", summary, 0.0, 0.0, wall, wall)


def _target(body: Unsilence) -> str:
    alert = "all" if body.alert == EVERY else body.alert
    return alert if body.subject is None else f"{alert}: {body.subject}"
