"""What a page of metrics says, as prometheus_client's own parsers read it.

Owns how a test finds a sample. Does not own the page.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from llm_guard.ops.exposition import Family, Format, Histogram, pieces


class Scraped:
    """`scraped("calls_total", model="m", outcome="ok")` is that sample's value, None where there is none."""

    def __init__(self, page: str, form: Format = "text") -> None:
        """Raises ValueError when the page is not in that format."""
        read = read_openmetrics if form == "openmetrics" else read_text
        self.families: list[Metric] = list(read(page))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        found = [each.value for each in self.samples if each.name == f"llm_guard_{name}" and each.labels == labels]
        assert len(found) <= 1, f"{name}{labels} is there {len(found)} times"
        return found[0] if found else None


def scraped(metrics: Iterable[Family | Histogram], form: Format = "text") -> Scraped:
    """These, written and read again."""
    return Scraped("".join(pieces(metrics, form)), form)
