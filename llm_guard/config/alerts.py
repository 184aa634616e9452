"""`ops.alerts` and `ops.webhooks`: alert rules, and the webhooks that are notified.

Defines these keys and their ranges. The rules' settings are in `resilience.alerts.rules`.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from llm_guard.config.fields import URL, NonEmptyText, OptionalSecret, Strict, wrong
from llm_guard.resilience.alerts.alert import RuleSettings, Severity
from llm_guard.resilience.alerts.rules import (
    BreakerOpenSettings,
    BudgetExhaustedSettings,
    CallsRefusedSettings,
    CredentialCooldownSettings,
    EngineDownSettings,
    EngineGaveUpSettings,
    EngineRestartsSettings,
    EnginesDownSettings,
    FailureSpikeSettings,
    LatencySettings,
    LoopLagSettings,
    ReloadFailedSettings,
    RuleName,
    SuccessRateSettings,
)
from llm_guard.resilience.units import Pause

WebhookFormat = Literal["generic", "slack", "pagerduty", "alertmanager"]

_RATE = "^([1-9][0-9]{0,5})/([smh])$"
_PER_S = {"s": 1.0, "m": 1 / 60, "h": 1 / 3600}
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_OUR_HEADERS = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


def _on(value: object) -> object:
    """Reads `off` as None; rejects a key without a value."""
    if value is None:
        raise wrong("has no value; write off, or settings such as {severity: warning}")
    return None if value == "off" else value


class _OffForNull:
    """Annotation: in the file, `off` stands for None."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        settings, _null = handler(schema)["anyOf"]
        return {"anyOf": [settings, {"const": "off"}]}


_Settings = TypeVar("_Settings", bound=RuleSettings)
OptionalRule = Annotated[_Settings | None, BeforeValidator(_on), _OffForNull()]
"""Settings of a rule; None: off."""


class AlertRules(Strict):
    """Settings of each rule; `off` turns a rule off."""

    group_wait: Pause = 3.0
    """How long the first notice waits for further alerts with the same cause."""
    success_rate: OptionalRule[SuccessRateSettings] = SuccessRateSettings()
    latency: OptionalRule[LatencySettings] = LatencySettings()
    calls_refused: OptionalRule[CallsRefusedSettings] = CallsRefusedSettings()
    breaker_open: OptionalRule[BreakerOpenSettings] = BreakerOpenSettings()
    failure_spike: OptionalRule[FailureSpikeSettings] = FailureSpikeSettings()
    budget_exhausted: OptionalRule[BudgetExhaustedSettings] = BudgetExhaustedSettings()
    credential_cooldown: OptionalRule[CredentialCooldownSettings] = CredentialCooldownSettings()
    engine_gave_up: OptionalRule[EngineGaveUpSettings] = EngineGaveUpSettings()
    engine_down: OptionalRule[EngineDownSettings] = EngineDownSettings()
    engines_down: OptionalRule[EnginesDownSettings] = EnginesDownSettings()
    engine_restarts: OptionalRule[EngineRestartsSettings] = EngineRestartsSettings()
    reload_failed: OptionalRule[ReloadFailedSettings] = ReloadFailedSettings()
    loop_lag: OptionalRule[LoopLagSettings] = LoopLagSettings()

    def of(self, name: RuleName) -> RuleSettings | None:
        """Settings of a rule; None: off."""
        settings: RuleSettings | None = getattr(self, name)
        return settings


def _url(value: object) -> object:
    if not isinstance(value, str):
        return value  # rejected by the type itself
    try:
        parts = urllib.parse.urlsplit(value)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not re.fullmatch("[\x21-\x7e]+", value):
        raise wrong("must be a URL such as https://hooks.example.com/llm-guard")
    if "@" in urllib.parse.urlsplit(value).netloc:
        raise wrong("must not contain a user or password; put an authorization header in headers")
    if "#" in value:
        raise wrong("must not contain a fragment")
    return value


def _rate(value: object) -> float:
    match = re.fullmatch(_RATE, value) if isinstance(value, str) else None
    if match is None:
        raise wrong("must be a rate such as 1/s, 30/m or 100/h")
    return int(match[1]) * _PER_S[match[2]]


WebhookRate = Annotated[float, BeforeValidator(_rate), WithJsonSchema({"type": "string", "pattern": _RATE})]
"""Requests a second, > 0."""


class WebhookTarget(Strict):
    """Destination of a webhook. The URL is a secret too: for Slack it is the only one."""

    url: Annotated[str, BeforeValidator(_url), WithJsonSchema(URL)] = Field(repr=False)
    """An http or https URL. Redirects are not followed."""
    name: NonEmptyText = Field(default_factory=lambda data: _host(data.get("url", "")), max_length=64)
    """Name in API responses, logs and commands; by default the URL's host."""
    secret: OptionalSecret = Field(default=None, repr=False)
    """Signs the requests."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Further headers of each request."""

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name) or not re.fullmatch("[\x20-\x7e]*", value):
                raise wrong("must be names of headers and their values, in printable ASCII without line breaks")
            if name.lower() in _OUR_HEADERS or name.lower().startswith("x-llm-guard-"):
                raise wrong(f"the gateway itself sets {name}")
        return headers


class WebhookConfig(WebhookTarget):
    """A webhook for alerts. For Alertmanager the URL is its base address, without /api/v2/alerts."""

    format: WebhookFormat = "generic"
    """Payload of the requests."""
    routing_key: OptionalSecret = Field(default=None, repr=False)
    """PagerDuty's routing key."""
    min_severity: Severity = "info"
    """Alerts below it are not sent."""
    send_resolved: bool = True
    """True: also sent when an alert resolves."""
    rate: WebhookRate = 0.5
    """Requests a second, in the file `1/s`, `30/m` or `100/h`. Alerts above the rate wait, and are sent together."""

    @model_validator(mode="after")
    def _check_routing_key(self) -> Self:
        if (self.format == "pagerduty") != (self.routing_key is not None):
            raise wrong("routing_key is needed for the format pagerduty, and for no other")
        return self


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc


_Target = TypeVar("_Target", bound=WebhookTarget)


def check_webhook_names(webhooks: tuple[_Target, ...]) -> tuple[_Target, ...]:
    """Raises PydanticCustomError if two have the same name."""
    names = [webhook.name for webhook in webhooks]
    for name in names:
        if names.count(name) > 1:
            raise wrong(f"the name {name} is used twice: names must be unique")
    return webhooks
