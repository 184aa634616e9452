"""When an alert fires and when it resolves, once each.

Owns the life of one alert: of one rule, for one subject. Does not own what is found of the subject
(`policy.alert_rules`), nor who is told (`ops.webhooks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from llm_guard.policy.units import Pause

Severity = Literal["critical", "warning", "info"]
Verdict = Literal["bad", "between", "good"]
"""`between`: no longer bad enough to fire, not yet good enough to resolve."""

QUIET_S = 600.0
"""An alert of whose subject nothing has been heard for so long resolves."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """What all rules have in common; durations in seconds."""

    severity: Severity = "warning"
    after: Pause = 0.0
    """It must be bad for so long without a break before the alert fires."""
    calm: Pause = 60.0
    """It must be good for so long without a break before the alert resolves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look has found of one subject."""

    verdict: Verdict
    value: float
    threshold: float
    """What the value is held against."""
    summary: str
    """One line for people."""


@dataclass(frozen=True, slots=True)
class AlertSnapshot:
    is_firing: bool
    lasts_s: float | None
    """Since it fired, or was first bad; None: it is not bad."""
    finding: Finding | None
    """The last one of which something was known."""


class Alert:
    """One rule and one subject, from its first bad moment on."""

    __slots__ = ("_bad_since", "_fired_at", "_good_since", "_heard_at", "finding")

    def __init__(self) -> None:
        self._bad_since: float | None = None
        self._fired_at: float | None = None
        self._good_since: float | None = None
        self._heard_at = 0.0
        self.finding: Finding | None = None

    @property
    def is_firing(self) -> bool:
        return self._fired_at is not None

    @property
    def is_idle(self) -> bool:
        """It neither fires nor is about to: it may be forgotten."""
        return self._bad_since is None

    def note(self, finding: Finding | None, settings: RuleSettings, now: float) -> Literal["fired", "resolved"] | None:
        """Takes what was found, None where there is nothing new; returns what has become of it just now.

        What was found last stands for ten minutes. Then the alert is over: of a model that nobody asks any more nobody
        knows whether it is well.
        """
        if finding is not None:
            self.finding = finding
            self._heard_at = now
        if self.finding is None or now - self._heard_at >= QUIET_S:
            return self.end()
        verdict = self.finding.verdict
        if self._fired_at is None:
            return self._wait(verdict, settings, now)
        if verdict != "good":
            self._good_since = None
            return None
        if self._good_since is None:
            self._good_since = now
        return self.end() if now - self._good_since >= settings.calm else None

    def resume(self, finding: Finding, now: float) -> None:
        """It fires, and did so before this process began."""
        self.finding = finding
        self._heard_at = self._bad_since = self._fired_at = now

    def end(self) -> Literal["resolved"] | None:
        """It is over, whatever is found."""
        was_firing = self.is_firing
        self._bad_since = self._fired_at = self._good_since = None
        return "resolved" if was_firing else None

    def snapshot(self, now: float) -> AlertSnapshot:
        since = self._bad_since if self._fired_at is None else self._fired_at
        return AlertSnapshot(self.is_firing, None if since is None else now - since, self.finding)

    def _wait(self, verdict: Verdict, settings: RuleSettings, now: float) -> Literal["fired"] | None:
        if verdict != "bad":
            self._bad_since = None
            return None
        if self._bad_since is None:
            self._bad_since = now
        if now - self._bad_since < settings.after:
            return None
        self._fired_at = now
        return "fired"


def rank(severity: Severity) -> int:
    """0 for the gravest."""
    return get_args(Severity).index(severity)
