"""State of an alert: when it fires and when it resolves, once each.

An alert is one rule for one subject. Findings come from `resilience.alerts.rules`, notifications are sent by
`webhooks.queue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from llm_guard.resilience.units import Pause

Severity = Literal["critical", "warning", "info"]
RuleVerdict = Literal["bad", "between", "good"]
"""`between`: no longer bad enough to fire, not yet good enough to resolve."""

QUIET_S = 600.0
"""An alert without a finding for this long resolves."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings that all rules have in common; durations in seconds."""

    # Read by pydantic: `for_` is written `for` in the config, which no attribute of Python can be called.
    __pydantic_config__ = MappingProxyType({
        "alias_generator": lambda name: name.removesuffix("_"), "extra": "forbid", "hide_input_in_errors": True,
    })  # fmt: skip

    severity: Severity = "warning"
    """Severity of the alert in the payload of webhooks."""
    for_: Pause = 0.0
    """How long the condition must hold without a break before the alert fires."""
    resolve_after: Pause = 60.0
    """How long it must be good without a break before the alert resolves."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """Result of evaluating a rule for one subject."""

    verdict: RuleVerdict
    value: float
    threshold: float
    """The value that `value` is compared with."""
    summary: str
    """One line to be read by people."""


@dataclass(frozen=True, slots=True)
class AlertSnapshot:
    is_firing: bool
    lasts_s: float | None
    """Seconds since it fired, or was first bad; None: it is not bad."""
    finding: RuleFinding | None
    """The last finding."""


class Alert:
    """State of one rule for one subject, from its first bad finding on."""

    __slots__ = ("_bad_since", "_fired_at", "_good_since", "_heard_at", "finding")

    def __init__(self) -> None:
        self._bad_since: float | None = None
        self._fired_at: float | None = None
        self._good_since: float | None = None
        self._heard_at = 0.0
        self.finding: RuleFinding | None = None

    @property
    def is_firing(self) -> bool:
        return self._fired_at is not None

    @property
    def is_idle(self) -> bool:
        """True if it neither fires nor is about to, and so may be dropped."""
        return self._bad_since is None

    def note(
        self, finding: RuleFinding | None, settings: RuleSettings, now: float
    ) -> Literal["fired", "resolved"] | None:
        """Takes a finding, or None if there is none; returns the change that follows.

        The last finding stands for ten minutes. Then the alert ends: whether a model without calls works is unknown.
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
        return self.end() if now - self._good_since >= settings.resolve_after else None

    def resume(self, finding: RuleFinding, now: float) -> None:
        """Restores an alert that fired before this process began."""
        self.finding = finding
        self._heard_at = self._bad_since = self._fired_at = now

    def end(self) -> Literal["resolved"] | None:
        """Ends the alert regardless of its findings."""
        was_firing = self.is_firing
        self._bad_since = self._fired_at = self._good_since = None
        return "resolved" if was_firing else None

    def snapshot(self, now: float) -> AlertSnapshot:
        since = self._bad_since if self._fired_at is None else self._fired_at
        return AlertSnapshot(self.is_firing, None if since is None else now - since, self.finding)

    def _wait(self, verdict: RuleVerdict, settings: RuleSettings, now: float) -> Literal["fired"] | None:
        if verdict != "bad":
            self._bad_since = None
            return None
        if self._bad_since is None:
            self._bad_since = now
        if now - self._bad_since < settings.for_:
            return None
        self._fired_at = now
        return "fired"


def rank(severity: Severity) -> int:
    """Returns the rank of a severity, 0 for the most severe."""
    return get_args(Severity).index(severity)
