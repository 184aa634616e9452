from __future__ import annotations

from collections import Counter

from llm_guard.admin.metrics.call_metrics import CALL_METRICS
from llm_guard.admin.metrics.declaration import DeclaredFamily, bound, counter, gauge, histogram, single
from llm_guard.admin.metrics.exposition import pieces
from llm_guard.admin.metrics.state_metrics import STATE_METRICS
from llm_guard.admin.metrics.subsystem_metrics import SUBSYSTEM_METRICS
from llm_guard.proxy.telemetry.recorder import Distribution


class Ovens:
    def __init__(self) -> None:
        self.loaves = {"rye": 2}
        self.took = Distribution((1.0,))
        self.heat = 180.5


TABLE: tuple[DeclaredFamily[Ovens], ...] = (
    counter("loaves", "Loaves.", ("kind",), lambda ovens: [((kind,), count) for kind, count in ovens.loaves.items()]),
    gauge("heat", "Heat.", (), single(lambda ovens: ovens.heat)),
    histogram("baking", "Time in the oven.", ("oven",), lambda ovens: [(("big",), ovens.took)]),
)


def test_table_becomes_families_with_full_names_in_its_order() -> None:
    ovens = Ovens()
    ovens.took.note(0.5)
    assert "".join(pieces(bound(TABLE, ovens), "text")).splitlines() == [
        "# HELP llm_guard_loaves_total Loaves.",
        "# TYPE llm_guard_loaves_total counter",
        'llm_guard_loaves_total{kind="rye"} 2',
        "# HELP llm_guard_heat Heat.",
        "# TYPE llm_guard_heat gauge",
        "llm_guard_heat 180.5",
        "# HELP llm_guard_baking_seconds Time in the oven.",
        "# TYPE llm_guard_baking_seconds histogram",
        'llm_guard_baking_seconds_bucket{oven="big",le="1.0"} 1',
        'llm_guard_baking_seconds_bucket{oven="big",le="+Inf"} 1',
        'llm_guard_baking_seconds_sum{oven="big"} 0.5',
        'llm_guard_baking_seconds_count{oven="big"} 1',
    ]


def test_values_are_read_at_each_scrape() -> None:
    ovens = Ovens()
    families = bound(TABLE, ovens)
    ovens.loaves["white"] = 7
    assert 'llm_guard_loaves_total{kind="white"} 7' in "".join(pieces(families, "text"))


def test_each_family_is_declared_once() -> None:
    tables = (CALL_METRICS, STATE_METRICS, SUBSYSTEM_METRICS)
    names = Counter(family.name for table in tables for family in table)
    assert {name: count for name, count in names.items() if count > 1} == {}
