"""Bodies of webhook requests about alerts, in the receivers' formats.

Alerts contain no text of a provider, but names from the config may be anything. So each text is one printable line of
bounded length, escaped where the format has markup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from llm_guard.clock import iso
from llm_guard.config import WebhookConfig, WebhookFormat
from llm_guard.resilience.alerts.alert import Severity, rank

MOST: dict[WebhookFormat, int] = {"generic": 50, "slack": 20, "pagerduty": 1, "alertmanager": 100}
"""Alerts in one request."""

RESENT_EVERY_S = 60.0
"""Seconds between repeats: an Alertmanager expects them (prometheus.io/docs/alerting/clients: 30 s to 3 minutes)."""
_ENDS_AFTER_S = 4 * RESENT_EVERY_S
"""Seconds after which an Alertmanager resolves an alert without repeats; Prometheus also allows four intervals."""

_LONGEST_CHARS = 300
_LONGEST_KEY_CHARS = 255
_MOST_NAMED = 5
"""Other alerts that one line names."""
_MOST_DETAILED = 50
_MARKS: dict[Severity, str] = {
    "critical": "\N{LARGE RED CIRCLE}",
    "warning": "\N{LARGE ORANGE CIRCLE}",
    "info": "\N{LARGE BLUE CIRCLE}",
}

_LABELS = {
    "success_rate": "model",
    "calls_refused": "model",
    "breaker_open": "deployment",
    "failure_spike": "deployment",
    "budget_exhausted": "deployment",
    "credential_cooldown": "upstream",
}
_ENDINGS = {" (first token)": "model", " (whole answer)": "model", " (model)": "model", " (host)": "upstream"}
"""Labels of subjects with a suffix (`admin.alerting.signals`)."""
_ACTIONS = {
    "success_rate": "GET /admin/calls?failed=true: the attempts of a call name the deployment and the reason.",
    "latency": "Open a slow call in the dashboard: its waterfall shows provider time, queueing and retries.",
    "calls_refused": "GET /admin/restrictions: what refuses the calls, since when, until when, and how to lift it.",
    "breaker_open": "None if it closes again. GET /admin/breakers shows when the next call is let through.",
    "failure_spike": "GET /admin/metrics: its attempts' outcomes show how it fails. Drain it if it only adds latency.",
    "budget_exhausted": "Retries do not help now: find the cause of the failures before you raise retry.budget.",
    "credential_cooldown": "Renew the upstream's api_key or its quota, and reload; of a cloud, its credentials.",
    "engine_gave_up": "Check its log, and start it by hand.",
    "engine_down": "GET /admin/engines: the reason and its last output. Correct the cause, then start it again.",
    "engines_down": "GET /admin/engines: what the engines that are down have in common, such as a host or an image.",
    "engine_restarts": "GET /admin/engines: the engines' last output says why they end. Stop those that cannot run.",
    "reload_failed": "Run llm-guard check -c FILE: it shows line and key. A restart now would fail.",
    "loop_lag": "Is the machine short of CPU, or does it swap? Add a replica.",
}

_encode = msgspec.json.Encoder(enc_hook=str).encode


class NoticeAlert(msgspec.Struct, frozen=True):
    """A further alert of a notice. Instants in seconds since the epoch."""

    alert: str
    severity: Severity
    subject: str
    summary: str
    value: float
    threshold: float
    since: float
    resolved_at: float | None = None
    """When it resolved; None: it fires."""


class Notice(msgspec.Struct, frozen=True):
    """Alerts with one cause that have fired or resolved: the most severe one, and `others`. Instants in seconds since
    the epoch."""

    id: str
    """Identifier of this firing; the same when it resolves, and when a more severe alert joins."""
    state: Literal["firing", "resolved"]
    alert: str
    severity: Severity
    subject: str
    summary: str
    value: float
    threshold: float
    since: float
    """When the first of the alerts fired."""
    at: float
    """When it was sent, or the last of the alerts resolved."""
    cause: str = ""
    """Kind and subject of the cause, the id of an entry of `GET /admin/incidents`."""
    others: tuple[NoticeAlert, ...] = ()
    """All other alerts with this cause."""


def body(config: WebhookConfig, notices: Sequence[Notice], source: str, wall: float) -> bytes:
    """Returns the JSON body, for at most `MOST` notices of the format. `source`: the name of this machine, or of its
    fleet."""
    match config.format:
        case "generic":
            return _encode(_generic(notices, source, wall))
        case "slack":
            return _encode(_slack(notices, source))
        case "pagerduty":
            return _encode(_pagerduty(notices[0], source, config.routing_key or ""))
        case "alertmanager":
            least = rank(config.min_severity)
            return _encode(
                [
                    _prometheus(notice, alert, source, wall)
                    for notice in notices
                    for alert in _alerts(notice)
                    if rank(alert.severity) <= least
                ]
            )
        case other:
            assert_never(other)


def url(config: WebhookConfig) -> str:
    """Returns the URL to which the body is sent."""
    path = "/api/v2/alerts"
    if config.format != "alertmanager" or config.url.endswith(path):
        return config.url
    return config.url.rstrip("/") + path


def plain(text: str) -> str:
    """Returns the text as one printable line of at most 300 characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _LONGEST_CHARS else line[: _LONGEST_CHARS - 1] + "…"


def _generic(notices: Sequence[Notice], source: str, wall: float) -> dict[str, object]:
    alerts = [
        {
            **msgspec.to_builtins(notice),
            "subject": plain(notice.subject),
            "summary": plain(notice.summary),
            "since": iso(notice.since),
            "at": iso(notice.at),
            "cause": plain(notice.cause),
            "others": [
                {
                    **msgspec.to_builtins(other),
                    "subject": plain(other.subject),
                    "summary": plain(other.summary),
                    "since": iso(other.since),
                    "resolved_at": None if other.resolved_at is None else iso(other.resolved_at),
                }
                for other in notice.others
            ],
        }
        for notice in notices
    ]
    return {"version": 2, "source": source, "sent_at": iso(wall), "alerts": alerts}


def _slack(notices: Sequence[Notice], source: str) -> dict[str, object]:
    """Builds plain text, which is what the many servers that accept Slack's webhooks understand. Without mrkdwn, in
    which gpt_4_turbo would have italics; the three special characters are escaped in any case."""
    lines = [
        f"{_mark(notice)} {notice.severity} {notice.alert} {notice.state}: {plain(notice.summary)}{_and_others(notice)}"
        for notice in notices
    ]
    lines[0] += f" [llm_guard on {plain(source)}]"
    text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": text, "mrkdwn": False}


def _and_others(notice: Notice) -> str:
    if not notice.others:
        return ""
    named = [f"{other.alert} {plain(other.subject)}" for other in notice.others[:_MOST_NAMED]]
    more = f", and {len(notice.others) - _MOST_NAMED} more" if len(notice.others) > _MOST_NAMED else ""
    return f" (one cause, {plain(notice.cause)}, also: {', '.join(named)}{more})"


def _mark(notice: Notice) -> str:
    return _MARKS[notice.severity] if notice.state == "firing" else "\N{WHITE HEAVY CHECK MARK}"


def _pagerduty(notice: Notice, source: str, routing_key: str) -> dict[str, object]:
    """Builds an event of the Events API v2. The deduplication key includes the machine, or the fleet: with a key that
    gateways without a fleet share, the first one to recover would resolve an incident that another one still sees, and
    no notice would follow. Duplicate incidents are the lesser harm, and an Alertmanager in between merges them."""
    event: dict[str, object] = {
        "routing_key": routing_key,
        "event_action": "trigger" if notice.state == "firing" else "resolve",
        "dedup_key": _dedup_key(notice, source),
    }
    if notice.state == "firing":
        event["payload"] = {
            "summary": plain(notice.summary),
            "source": source,
            "severity": notice.severity,
            "timestamp": iso(notice.since),
            "component": plain(notice.subject),
            "group": "llm_guard",
            "class": notice.alert,
            "custom_details": {
                "value": notice.value,
                "threshold": notice.threshold,
                "id": notice.id,
                "cause": plain(notice.cause),
                "others": [f"{other.alert}: {plain(other.summary)}" for other in notice.others[:_MOST_DETAILED]],
            },
        }
    return event


def _dedup_key(notice: Notice, source: str) -> str:
    of_alert = f"{notice.alert}/{notice.subject}"
    key = f"llm_guard/{source}/{notice.cause or of_alert}"
    if len(key) <= _LONGEST_KEY_CHARS and key.isprintable():
        return key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"llm_guard/{digest}"


def _alerts(notice: Notice) -> tuple[NoticeAlert, ...]:
    """Returns each alert of a notice on its own: an Alertmanager groups them itself, by the label `cause`."""
    lead = NoticeAlert(
        notice.alert, notice.severity, notice.subject, notice.summary, notice.value, notice.threshold, notice.since,
        notice.at if notice.state == "resolved" else None,
    )  # fmt: skip
    return (lead, *notice.others)


def _prometheus(notice: Notice, alert: NoticeAlert, source: str, wall: float) -> dict[str, object]:
    """Builds an alert with the labels and annotations of the rules in config/prometheus, so that one Alertmanager
    config serves both."""
    return {
        "labels": {
            "alertname": f"llm_guard_{alert.alert}",
            "severity": alert.severity,
            "subject": plain(alert.subject),
            **_whose(alert),
            **({"cause": plain(notice.cause)} if notice.cause else {}),
            "job": "llm-guard",
            "instance": source,
        },
        "annotations": {
            "summary": plain(alert.summary),
            "description": f"Measured by the gateway on {plain(source)}: {alert.value:g}, threshold "
            f"{alert.threshold:g}.",
            "action": _ACTIONS.get(alert.alert, "None: this is a test."),
            "value": f"{alert.value:g}",
            "threshold": f"{alert.threshold:g}",
        },
        "startsAt": iso(alert.since),
        "endsAt": iso(wall + _ENDS_AFTER_S if alert.resolved_at is None else alert.resolved_at),
    }


def _whose(alert: NoticeAlert) -> dict[str, str]:
    """Returns the label by which Prometheus' alerts of the same subject are grouped and inhibited."""
    for ending, label in _ENDINGS.items():
        if alert.subject.endswith(ending):
            return {label: plain(alert.subject.removesuffix(ending))}
    label_of_rule = _LABELS.get(alert.alert)
    return {} if label_of_rule is None else {label_of_rule: plain(alert.subject)}
