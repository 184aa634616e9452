"""One row of the results: expected figure, measured figure, and whether it holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "broken", "differs", "reference"]
"""`differs`: on purpose, for the reason in `why`. `reference`: figures of others, which validate the simulation."""


@dataclass(frozen=True, slots=True)
class Row:
    """`scenario`: its id, A01 to A50."""

    scenario: str
    what: str
    expected: str
    measured: str
    verdict: Verdict
    why: str = ""

    @property
    def broken(self) -> str | None:
        """The promise, if it does not hold."""
        is_broken = self.verdict == "broken"
        return f"{self.scenario} {self.what}: {self.measured} against {self.expected}" if is_broken else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def promised(scenario: str, what: str, expected: str, measured: str, holds: bool, why: str = "") -> Row:
    """A row about the gateway's own policies."""
    return Row(scenario, what, expected, measured, "holds" if holds else "broken", why)


def reference(scenario: str, what: str, expected: float, measured: float, within: float, unit: str = "") -> Row:
    """A row about others: it must agree with the literature, or the simulation is wrong (`within`: a share)."""
    agrees = abs(measured - expected) <= within * expected
    shown = f"{measured:,.0f}{unit}"
    return Row(scenario, what, f"{expected:,g}{unit}", shown, "reference" if agrees else "broken")
