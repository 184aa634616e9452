"""What a check of `llm-guard doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "skipped"]

Check = Literal[
    "name", "connection", "certificate", "api", "key", "clock", "latency", "models", "model", "pattern", "call",
    "stream", "limits", "prefill", "store", "settings", "receiver",
]  # fmt: skip
"""What is checked: the first twelve of an upstream, the next two of calls (`--calls`), the others of what stands beside
the upstreams."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. No text quotes a secret."""

    place: str
    """Key of the config that it is about."""
    check: Check
    model: str
    """The model or pattern that it is about; empty: the place as a whole."""
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

    def ok(self, check: Check, detail: str, model: str = "") -> None:
        self.results.append(CheckResult(self.place, check, model, "ok", detail))

    def warn(self, check: Check, detail: str, remedy: str, model: str = "") -> None:
        self.results.append(CheckResult(self.place, check, model, "warning", detail, remedy))

    def fail(self, check: Check, detail: str, remedy: str, model: str = "") -> None:
        self.results.append(CheckResult(self.place, check, model, "failed", detail, remedy))

    def skip(self, check: Check, detail: str, remedy: str = "", model: str = "") -> None:
        self.results.append(CheckResult(self.place, check, model, "skipped", detail, remedy))
