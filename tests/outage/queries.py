"""The queries of the Grafana dashboard and the alert rules, in a time that runs sixty times as fast: a rule's five
minutes are five seconds."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.test_prometheus import Prometheus

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "config" / "grafana" / "dashboards" / "llm_guard.json"
RULES = ROOT / "config" / "prometheus" / "rules"
_DURATION = re.compile(r"(?<=\[)\d+[mh](?=\])|(?<=offset )\d+[mh]\b|(?<=for: )\d+[mh]\b")
_VARIABLES = {"$model": ".*", "$deployment": ".*", "$__rate_interval": "5s"}


_ZERO_IS_GOOD = (
    "llm_guard_cache_evictions", "llm_guard_fleet_paces", "llm_guard_fleet_unreadable", "llm_guard_log_lines_dropped",
)  # fmt: skip
"""Numbers of what this outage does not do."""
_LONG = ("LlmGuardEngineDownForLong",)
"""Rules that wait for so long, even here, that it is enough if they are pending."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, or one alert rule, which has data if it fires."""

    name: str
    """Title of the panel, or name of the rule."""
    expression: str

    async def has_data(self, prometheus: Prometheus) -> bool:
        """True if it yields a number that is not zero, or any number if it counts what should not happen."""
        found = (await prometheus.api("query", query=self.expression))["result"]
        values = [float(series["value"][1]) for series in found]
        is_zero_good = any(name in self.expression for name in _ZERO_IS_GOOD)
        return any(not math.isnan(value) and (is_zero_good or value != 0) for value in values)


def faster(text: str) -> str:
    """The same rules with windows of a sixtieth of their length. Rates per second stay as they are."""
    return _DURATION.sub(lambda found: _sixtieth(found[0]), text)


def _sixtieth(duration: str) -> str:
    return f"{int(duration[:-1]) * {'m': 1, 'h': 60}[duration[-1]]}s"


def panels() -> list[Query]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [
        Query(panel["title"], _without_variables(target["expr"]))
        for panel in panels
        for target in panel.get("targets", ())
    ]


def alerts() -> list[Query]:
    groups = [group for path in RULES.glob("*.yml") for group in yaml.safe_load(path.read_text())["groups"]]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return [Query(rule["alert"], _raised(rule["alert"])) for rule in rules]


def _raised(name: str) -> str:
    return f'ALERTS{{alertname="{name}", alertstate=~"{"pending|firing" if name in _LONG else "firing"}"}}'


def _without_variables(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression
