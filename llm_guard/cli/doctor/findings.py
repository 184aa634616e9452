"""What a check of `llm-guard doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. No text quotes a secret."""

    place: str
    """Key of the config that it is about."""
    check: str
    verdict: Verdict
    detail: str
    """What was found, in a phrase."""
    remedy: str = ""
    """What to do about it; empty: nothing."""


class Report:
    """Collects the results of the checks of one place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.results: list[CheckResult] = []

    def ok(self, check: str, detail: str) -> None:
        self.results.append(CheckResult(self.place, check, "ok", detail))

    def warn(self, check: str, detail: str, remedy: str) -> None:
        self.results.append(CheckResult(self.place, check, "warning", detail, remedy))

    def fail(self, check: str, detail: str, remedy: str) -> None:
        self.results.append(CheckResult(self.place, check, "failed", detail, remedy))

    def skip(self, check: str, detail: str, remedy: str = "") -> None:
        self.results.append(CheckResult(self.place, check, "skipped", detail, remedy))
