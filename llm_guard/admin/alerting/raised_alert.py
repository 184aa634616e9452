"""An alert that fires or has fired, and its saved form."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from llm_guard.resilience.alerts.alert import RuleFinding, Severity
from llm_guard.resilience.alerts.rules import RuleName
from llm_guard.resilience.causes.cause import IncidentCause


@dataclass(slots=True, eq=False)
class RaisedAlert:
    """An alert that fires or has fired. Instants in seconds since the epoch."""

    id: str
    alert: RuleName
    subject: str
    severity: Severity
    since: float
    finding: RuleFinding
    cause: IncidentCause
    """Alerts with the same cause share a notice."""
    incident: str = ""
    """Id of the notice: that of the first alert with this cause."""
    resolved_at: float | None = None
    is_told: bool = False
    """Webhooks were notified, so they must also be notified when it resolves."""
    first: RuleFinding = field(init=False)
    """The finding with which it fired."""

    def __post_init__(self) -> None:
        self.first = self.finding
        self.incident = self.incident or self.id


class SavedAlert(Struct, frozen=True):
    """A firing alert, or a resolved one with an undelivered notice, saved for the next process."""

    id: str
    alert: str
    subject: str
    severity: Severity
    since: float
    summary: str
    value: float
    threshold: float
    is_told: bool
    cause: str = ""
    incident: str = ""


def saved(raised: RaisedAlert, is_told: bool) -> SavedAlert:
    """Returns the saved form. `is_told`: its notice was delivered."""
    first = raised.first
    return SavedAlert(
        raised.id, raised.alert, raised.subject, raised.severity, raised.since, first.summary, first.value,
        first.threshold, is_told, raised.cause.key, raised.incident,
    )  # fmt: skip
