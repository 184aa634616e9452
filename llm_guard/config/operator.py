"""The `ops` section: the operator's interface, and what is kept for it.

Defines these keys, their ranges and their defaults. They are used in `admin`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from llm_guard.config.alerts import AlertRules, WebhookConfig, check_webhook_names
from llm_guard.config.fields import UNGUESSABLE, NonEmptyText, OptionalSecret, Port, Secret, Strict, wrong
from llm_guard.log.levels import LevelName, is_logger
from llm_guard.resilience.health.status import HealthSettings
from llm_guard.resilience.units import Ratio, Seconds, Size

_OTEL = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
CallCount = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
_TAKEN = ("anybody", "expiry", "file", "operator", "reload", "signal", "start")
"""Names that the audit trail uses for the gateway itself and for `ops.token`."""


def _own_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", name):
        raise wrong("must have 1 to 64 letters, digits, dots, dashes, underscores and at signs")
    if name in _TAKEN:
        raise wrong(f"must be another name: {name} is reserved for the audit trail")
    return name


class RecentCallsSettings(Strict):
    """Finished calls that are kept in memory."""

    calls: CallCount = 1000
    """Number of calls for each outcome (`proxy.telemetry.access_log.CallFate`)."""
    memory: Size = 16 * 1024**2
    """Maximum size in bytes of all together."""


class TraceSettings(Strict):
    """OpenTelemetry traces, exported by OTLP over HTTP."""

    endpoint: NonEmptyText | None = None
    """The complete URL; None: no traces."""
    sample: Ratio = 1.0
    """Share of the calls to trace if the caller does not decide it."""
    service_name: NonEmptyText = "llm-guard"
    """The resource attribute `service.name` of the spans."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        return _checked_collector(endpoint, "http://127.0.0.1:4318/v1/traces")


class MetricsExportSettings(Strict):
    """The metrics of `/metrics`, sent to an OpenTelemetry collector by OTLP over HTTP."""

    otlp: NonEmptyText | None = None
    """The complete URL; None: not sent."""
    interval: Seconds = 60.0
    """Seconds between two exports, at least 1."""
    service_name: NonEmptyText = "llm-guard"
    """The resource attribute `service.name` of the metrics."""

    @field_validator("interval")
    @classmethod
    def _check_interval(cls, interval: float) -> float:
        if interval < 1:
            raise wrong("must be at least 1s")
        return interval

    @field_validator("otlp")
    @classmethod
    def _check_collector(cls, otlp: str | None) -> str | None:
        return _checked_collector(otlp, "http://127.0.0.1:4318/v1/metrics")


class LogSettings(Strict):
    """Which log lines are written, and in which format."""

    format: Literal["json", "console"] = "json"
    """`console` is readable by people."""
    level: LevelName = "info"
    """The least severe level that is written. The line of a call is `info`."""
    levels: dict[str, LevelName] = Field(default_factory=dict)
    """Levels by logger: llm_guard.access (one line per call), llm_guard.breaker (changes of breakers), or a module or
    package; for each logger the most specific entry applies."""

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, levels: dict[str, LevelName]) -> dict[str, LevelName]:
        for name in levels:
            if not name or not is_logger(name):
                raise wrong(
                    f"{name:.60}: give llm_guard.access, llm_guard.breaker, or a module or package of llm_guard"
                )
        return levels


class OperatorTokenConfig(Strict):
    """A token of one person or one program."""

    name: Annotated[NonEmptyText, AfterValidator(_own_name)]
    """Author of changes in the audit trail."""
    token: Secret = Field(repr=False, json_schema_extra=UNGUESSABLE)
    """At least 16 characters are recommended."""
    role: Literal["viewer", "operator"]
    """A viewer can read, but changes nothing."""


class Ops(Strict):
    """The operator's interface; `port` None: on the server's port."""

    port: Port | None = None
    """None: the server's port; a number: only on that second listener."""
    host: NonEmptyText = "127.0.0.1"
    """Address of the second listener."""
    token: OptionalSecret = Field(default=None, repr=False, json_schema_extra=UNGUESSABLE)
    """None: one is generated and kept in `store`, unless `tokens` has one with the role `operator`."""
    tokens: tuple[OperatorTokenConfig, ...] = ()
    """A token for each person or program, recorded by its name in the audit log."""
    hosts: tuple[NonEmptyText, ...] = ()
    """Host names accepted for /admin, besides localhost, the listeners' own and IP addresses; `*`: any."""
    store: NonEmptyText | None = None
    """The state folder; None: XDG_STATE_HOME/llm-guard, and memory if that is not available."""
    recent_calls: RecentCallsSettings = RecentCallsSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()
    metrics: MetricsExportSettings = MetricsExportSettings()
    chaos: bool = False
    """True: operators may inject faults into calls (POST /admin/chaos)."""
    alerts: AlertRules = AlertRules()
    webhooks: Annotated[tuple[WebhookConfig, ...], AfterValidator(check_webhook_names)] = ()
    """Webhooks that are notified of alerts."""

    @property
    def fleet_token(self) -> str | None:
        """The token from which the gateways of a fleet derive a common secret: `token`, or the first operator's."""
        return self.token or next((named.token for named in self.tokens if named.role == "operator"), None)


def _checked_collector(url: str | None, example: str) -> str | None:
    if url is None:
        return None
    if not re.fullmatch(r"https?://[^\s/@?#]+/[^\s?#]*", url):
        raise wrong(f"must be the full URL, such as {example}")
    if not _has_opentelemetry():
        raise wrong("needs OpenTelemetry, which is not installed: pip install 'llm-guard-proxy[otel]'")
    return url


def _has_opentelemetry() -> bool:
    try:
        return all(find_spec(name) is not None for name in _OTEL)
    except ModuleNotFoundError:  # a parent package is missing
        return False
