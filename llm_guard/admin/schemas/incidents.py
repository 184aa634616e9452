"""Schemas of an incident: everything that has one cause, and what to do about it."""

from __future__ import annotations

from msgspec import Struct

from llm_guard.admin.schemas.restrictions import Lift, ProviderErrorView, Restriction
from llm_guard.resilience.alerts.alert import Severity
from llm_guard.resilience.causes.cause import CauseKind


class IncidentAlert(Struct, frozen=True):
    """A firing alert of an incident; `GET /admin/alerts` has its figures."""

    id: str
    alert: str
    subject: str
    severity: Severity
    summary: str
    since: str
    is_silenced: bool


class Incident(Struct, frozen=True):
    """One entry of `GET /admin/incidents`."""

    id: str
    """Kind and subject of the cause. Alerts and webhooks have it as `cause`."""
    kind: CauseKind
    severity: Severity
    """critical if a model has no deployment left, else the highest severity of its alerts; without alerts warning."""
    title: str
    """The cause, in a sentence."""
    rule: str
    """The condition that set its first restriction, with its figures; empty: it has none."""
    upstream: str | None
    """null: it is not of one upstream."""
    deployments: list[str]
    """Labels of the restricted deployments."""
    models: list[str]
    """Keys of `models` that it concerns."""
    share: float | None
    """Share of the last minute's calls that failed or were refused, of the models concerned; null: no calls."""
    refused: int
    """Calls that were not sent because of it, since it began."""
    since: str | None
    until: str | None
    """When the gateway tries again, or the restriction ends; null: no known instant."""
    doing: list[str]
    """The gateway's own response to it, in sentences."""
    remedy: str
    """The action for an operator, in a sentence."""
    actions: list[Lift]
    """Requests that end its restrictions. Each body also needs a `reason`."""
    errors: list[ProviderErrorView]
    """The provider's last errors, at most three, the newest first."""
    alerts: list[IncidentAlert]
    restrictions: list[Restriction]
