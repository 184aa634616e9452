"""The metrics of one process at one moment, in a form that can be sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from llm_guard.admin.metrics.exposition import Family, Histogram
from llm_guard.proxy.telemetry.recorder import Distribution

SentExemplar = tuple[str, str, float, float]
"""Like `counters.Exemplar`, with the id of the trace in hexadecimal: it has 128 bits."""


class SentDistribution(msgspec.Struct, frozen=True, array_like=True):
    """A `Distribution`, with its label values."""

    values: tuple[str, ...]
    bounds: tuple[float, ...]
    counts: list[int]
    sum: float
    exemplars: list[SentExemplar | None]


class FamilySnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The values of a metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]
    """Of a counter or gauge: label values, and the sample's value."""
    distributions: list[SentDistribution]
    """Of a histogram."""


def taken(metrics: Iterable[Family | Histogram]) -> Iterator[FamilySnapshot]:
    """Yields the values of each family at one moment; the caller may pause in between."""
    for metric in metrics:
        if isinstance(metric, Histogram):
            sent = [_sent(values, distribution) for values, distribution in metric.read()]
            yield FamilySnapshot(metric.name, "histogram", metric.text, metric.labels, [], sent)
        else:
            yield FamilySnapshot(metric.name, metric.kind, metric.text, metric.labels, list(metric.read()), [])


def distribution_of(sent: SentDistribution) -> Distribution:
    found = Distribution(sent.bounds)
    found.counts, found.sum = list(sent.counts), sent.sum
    found.exemplars = [
        None if one is None else (one[0], int(one[1], 16), one[2], one[3]) for one in sent.exemplars
    ]  # fmt: skip
    return found


def _sent(values: tuple[str, ...], found: Distribution) -> SentDistribution:
    exemplars = [None if one is None else (one[0], f"{one[1]:x}", one[2], one[3]) for one in found.exemplars]
    return SentDistribution(values, found.bounds, list(found.counts), found.sum, exemplars)
