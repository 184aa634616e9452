"""What is sent of alerts, in the words of whoever is told.

Owns the bodies and the signature. Does not own when they are sent, nor what becomes of them (`ops.webhook`).

No text of a provider is in an alert; but names come from the config and may be anything, so each format is told only
what it cannot take for its own markup: one line, printable, of bounded length, and escaped where the format says so.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from llm_guard.config import WebhookConfig, WebhookFormat
from llm_guard.ops.changes import iso
from llm_guard.policy.alert import Severity
from llm_guard.version import __version__

MOST: dict[WebhookFormat, int] = {"generic": 50, "slack": 20, "pagerduty": 1, "alertmanager": 100}
"""Alerts in one request."""

RESENT_EVERY_S = 60.0
"""An Alertmanager wants to hear of a firing alert again (prometheus.io/docs/alerting/clients: 30 s to 3 minutes)."""
_ENDS_AFTER_S = 4 * RESENT_EVERY_S
"""When it is to take one for resolved of which it hears nothing more; Prometheus too gives itself four times."""

_LONGEST_CHARS = 300
_LONGEST_KEY_CHARS = 255
_MARKS: dict[Severity, str] = {
    "critical": "\N{LARGE RED CIRCLE}",
    "warning": "\N{LARGE ORANGE CIRCLE}",
    "info": "\N{LARGE BLUE CIRCLE}",
}

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Notice(msgspec.Struct, frozen=True):
    """One alert, when it has fired or resolved. Instants in seconds since the epoch."""

    id: str
    """Of this firing: the same when it resolves."""
    state: Literal["firing", "resolved"]
    alert: str
    severity: Severity
    subject: str
    summary: str
    value: float
    threshold: float
    since: float
    """When it fired."""
    at: float
    """When this happened."""


def body(config: WebhookConfig, notices: Sequence[Notice], source: str, wall: float) -> bytes:
    """The JSON for so many notices, at most `MOST` of the format. `source`: the name of this machine."""
    match config.format:
        case "generic":
            return _encode(_generic(notices, source, wall))
        case "slack":
            return _encode(_slack(notices, source))
        case "pagerduty":
            return _encode(_pagerduty(notices[0], source, config.routing_key or ""))
        case "alertmanager":
            return _encode([_prometheus(each, source, wall) for each in notices])
        case other:
            assert_never(other)


def url(config: WebhookConfig) -> str:
    """Where that goes."""
    path = "/api/v2/alerts"
    if config.format != "alertmanager" or config.url.endswith(path):
        return config.url
    return config.url.rstrip("/") + path


def headers(config: WebhookConfig, content: bytes, delivery: str, wall: float) -> dict[str, str]:
    """Beside the config's own; `delivery` is the same for the same body, however often it is sent."""
    ours = {
        **config.headers,
        "content-type": "application/json",
        "user-agent": f"llm-guard/{__version__}",
        "x-llm-guard-delivery": delivery,
    }
    if config.secret is not None:
        ours["x-llm-guard-signature"] = signature(config.secret, content, int(wall))
    return ours


def signature(secret: str, content: bytes, at: int) -> str:
    """`t=UNIX,v1=HEX`, as Stripe signs its webhooks (docs.stripe.com/webhooks/signature): who checks it can refuse
    what is old, and replayed."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + content, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"


def plain(text: str) -> str:
    """One printable line of at most 300 characters."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= _LONGEST_CHARS else line[: _LONGEST_CHARS - 1] + "…"


def _generic(notices: Sequence[Notice], source: str, wall: float) -> dict[str, object]:
    alerts = [
        {
            **msgspec.to_builtins(each),
            "subject": plain(each.subject),
            "summary": plain(each.summary),
            "since": iso(each.since),
            "at": iso(each.at),
        }
        for each in notices
    ]
    return {"version": 1, "source": source, "sent_at": iso(wall), "alerts": alerts}


def _slack(notices: Sequence[Notice], source: str) -> dict[str, object]:
    """Text alone: that is what the many servers understand that take Slack's webhooks. Without mrkdwn, in which the
    name gpt_4_turbo would have italics; the three characters are escaped in any case."""
    lines = [f"{_mark(each)} {each.severity} {each.alert} {each.state}: {plain(each.summary)}" for each in notices]
    lines[0] += f" [llm_guard on {plain(source)}]"
    text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": text, "mrkdwn": False}


def _mark(notice: Notice) -> str:
    return _MARKS[notice.severity] if notice.state == "firing" else "\N{WHITE HEAVY CHECK MARK}"


def _pagerduty(notice: Notice, source: str, routing_key: str) -> dict[str, object]:
    """Events API v2. Without this machine's name in its key: what all replicas see is one incident."""
    event: dict[str, object] = {
        "routing_key": routing_key,
        "event_action": "trigger" if notice.state == "firing" else "resolve",
        "dedup_key": _dedup_key(notice),
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
            "custom_details": {"value": notice.value, "threshold": notice.threshold, "id": notice.id},
        }
    return event


def _dedup_key(notice: Notice) -> str:
    key = f"llm_guard/{notice.alert}/{notice.subject}"
    if len(key) <= _LONGEST_KEY_CHARS and key.isprintable():
        return key
    digest = hashlib.sha256(notice.subject.encode("utf-8", "surrogatepass")).hexdigest()
    return f"llm_guard/{notice.alert}/{digest}"


def _prometheus(notice: Notice, source: str, wall: float) -> dict[str, object]:
    return {
        "labels": {
            "alertname": f"llm_guard_{notice.alert}",
            "severity": notice.severity,
            "subject": plain(notice.subject),
            "job": "llm_guard",
            "instance": source,
        },
        "annotations": {
            "summary": plain(notice.summary),
            "value": f"{notice.value:g}",
            "threshold": f"{notice.threshold:g}",
        },
        "startsAt": iso(notice.since),
        "endsAt": iso(wall + _ENDS_AFTER_S if notice.state == "firing" else notice.at),
    }
