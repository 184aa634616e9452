"""Reads a metrics page with prometheus_client's own parsers and finds samples in it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from llm_guard.admin.metrics.exposition import Family, Format, Histogram, pieces


class Scraped:
    """A parsed page: `scraped("calls_total", model="m", outcome="ok")` is that sample's value, None if it is absent."""

    def __init__(self, page: str, form: Format = "text") -> None:
        """Parses the page. Raises ValueError if it is not in that format."""
        read = read_openmetrics if form == "openmetrics" else read_text
        self.families: list[Metric] = list(read(page))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value for sample in self.samples if sample.name == f"llm_guard_{name}" and sample.labels == labels
        ]
        assert len(found) <= 1, f"{name}{labels} is there {len(found)} times"
        return found[0] if found else None


def scraped(metrics: Iterable[Family | Histogram], form: Format = "text") -> Scraped:
    """Renders these metrics and parses the result."""
    return Scraped("".join(pieces(metrics, form)), form)
