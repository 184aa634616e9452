"""Each panel of the Grafana dashboard and each alert rule shows something in a scripted outage, in a real Prometheus.

docs/metrics.md says what, step by step; this test reads its table.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.e2e.test_prometheus import Prometheus, watching
from tests.outage.queries import ROOT, Query, alerts, faster, panels
from tests.outage.script import STEPS
from tests.outage.traffic import standing

_POLLS, _PAUSE_S = 180, 0.5
_ROW = re.compile(r"^\| (?P<step>[^|]+) \| (?P<what>[^|]+) \| (?P<panels>[^|]*)\| (?P<alerts>[^|]*)\|$")


def documented() -> dict[str, list[str]]:
    """Panels and rules by step, from the table in the docs."""
    section = (ROOT / "docs" / "metrics.md").read_text().split("## What an outage shows")[1].split("\n## ")[0]
    rows = [match for line in section.splitlines() if (match := _ROW.match(line)) is not None]
    return {row["step"]: _names(row["panels"], ";") + _names(row["alerts"], ",") for row in rows[1:]}


def _names(cell: str, between: str) -> list[str]:
    return [name.strip(" `") for name in cell.split(between) if name.strip(" `")]


def test_documented_steps_panels_and_rules_are_those_that_exist() -> None:
    table = documented()
    assert list(table) == list(STEPS)
    named = [name for names in table.values() for name in names]
    assert sorted(named) == sorted({query.name for query in panels() + alerts()})


@pytest.mark.timeout(600)
async def test_each_panel_and_rule_shows_something_in_an_outage(tmp_path: Path) -> None:
    table, queries = documented(), panels() + alerts()
    async with (
        standing(tmp_path) as outage,
        watching(outage.served.url, tmp_path, faster, [outage.workers.admin_url]) as prometheus,
    ):
        await _until_scraped(prometheus)
        for name, step in STEPS.items():
            await step(outage)
            missing = await _without_data([query for query in queries if query.name in table[name]], prometheus)
            assert not missing, f"after the step {name!r}"


async def _until_scraped(prometheus: Prometheus) -> None:
    async def is_scraped() -> bool:
        return await prometheus.value('sum(up{job="llm-guard"})') == 2 and not await prometheus.firing()

    await prometheus.until(is_scraped)


async def _without_data(queries: list[Query], prometheus: Prometheus) -> list[Query]:
    """Waits until each of them has had data once, and returns those that have had none in time."""
    for _ in range(_POLLS):
        queries = [query for query in queries if not await query.has_data(prometheus)]
        if not queries:
            break
        await asyncio.sleep(_PAUSE_S)
    return queries
