"""How metrics are written down: the Prometheus text format, and OpenMetrics where the scraper asks for it.

Owns both spellings, and in what pieces a page is written. Does not own what is shown (`ops.call_metrics`,
`ops.state_metrics`), nor when (`ops.metrics`).

prometheus.io/docs/instrumenting/exposition_formats, and OpenMetrics 1.0.0. prometheus_client writes the same in 5 us a
sample: of 200 deployments that would hold the event loop for 100 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from llm_guard.gateway.counters import Distribution, Exemplar

PIECE_SAMPLES = 500
"""What is written in one go: for a quarter of a millisecond."""

_VALUE = "\0"
"""Stands in a pattern for a label's value; no value has it."""
_MOST_LABEL_VALUES = 8192

Format = Literal["text", "openmetrics"]
Row = tuple[tuple[str, ...], float]
"""The labels' values, and the sample's."""

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_MEDIA_TYPES = {"text/plain": "text", "text/*": "text", "*/*": "text", "application/openmetrics-text": "openmetrics"}
_OPENMETRICS_VERSIONS = ("", "0.0.1", "1.0.0")


@dataclass(frozen=True, slots=True)
class Family:
    """One counter or gauge: a value for each combination of labels."""

    name: str
    """Of a counter without `_total`."""
    kind: Literal["counter", "gauge"]
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Row]]
    """As they were at one moment: gone through with pauses."""

    def samples(self, _form: Format) -> Iterator[tuple[int, str]]:
        """How many samples, and their lines."""
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        pairs = ",".join(f'{label}="%s"' for label in self.labels)
        pattern = f"{name}{{{pairs}}} %s\n" if pairs else f"{name} %s\n"
        for values, number in self.read():
            yield 1, pattern % (*map(_escaped, values), number)


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram: a distribution for each value of its label."""

    name: str
    text: str
    label: str
    read: Callable[[], Iterable[tuple[str, Distribution]]]
    kind = "histogram"

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,)

    def samples(self, form: Format) -> Iterator[tuple[int, str]]:
        """How many samples, and their lines; what was never counted has none."""
        seen = [
            (value, each.bounds, each.counts.copy(), each.sum, _exemplars(each, form)) for value, each in self.read()
        ]
        for value, bounds, counts, total, exemplars in seen:
            upto = tuple(accumulate(counts))
            if not upto[-1]:
                continue
            pattern = _histogram_pattern(self.name, self.label, bounds, bool(exemplars))
            numbers = _interleaved(upto, exemplars) if exemplars else upto
            lines = pattern.replace(_VALUE, _escaped(value).replace("%", "%%"))
            yield len(upto) + 2, lines % (*numbers, total, upto[-1])


def pieces(metrics: Iterable[Family | Histogram], form: Format) -> Iterator[str]:
    """A page, in pieces of about `PIECE_SAMPLES` samples. Between two of them the numbers may change, but not those of
    one metric: they are read at one moment."""
    piece, size = [], 0
    for metric in metrics:
        piece.append(_head(metric, form))
        for count, lines in metric.samples(form):
            piece.append(lines)
            size += count
            if size >= PIECE_SAMPLES:
                yield "".join(piece)
                piece, size = [], 0
    if form == "openmetrics":
        piece.append("# EOF\n")
    yield "".join(piece)


def wanted(accept: str) -> Format:
    """What an Accept header prefers (RFC 9110, section 12.5.1); the text format where both are as welcome."""
    weights: dict[str, float] = {}
    for each in accept.lower().split(","):
        media, *texts = each.split(";")
        parameters = {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in texts)}
        form = _MEDIA_TYPES.get(media.strip())
        if form == "openmetrics" and parameters.get("version", "").strip('"') not in _OPENMETRICS_VERSIONS:
            continue
        if form is not None:
            weights[form] = max(weights.get(form, 0.0), _weight(parameters.get("q", "1")))
    return "openmetrics" if weights.get("openmetrics", 0.0) > weights.get("text", 0.0) else "text"


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _head(metric: Family | Histogram, form: Format) -> str:
    name, text = metric.name, metric.text.replace("\\", "\\\\").replace("\n", "\\n")
    if form == "openmetrics":
        text = text.replace('"', '\\"')
    elif metric.kind == "counter":
        name = f"{name}_total"
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n"


@lru_cache(maxsize=256)
def _histogram_pattern(name: str, label: str, bounds: tuple[float, ...], has_exemplars: bool) -> str:
    number = "%d%s" if has_exemplars else "%d"
    limits = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    buckets = [f'{name}_bucket{{{label}="{_VALUE}",le="{limit}"}} {number}\n' for limit in limits]
    rest = (f'{name}_{part}{{{label}="{_VALUE}"}} {number}\n' for part, number in (("sum", "%s"), ("count", "%d")))
    return "".join((*buckets, *rest))


def _exemplars(seen: Distribution, form: Format) -> Sequence[Exemplar | None]:
    return seen.exemplars.copy() if form == "openmetrics" and any(seen.exemplars) else ()


def _interleaved(upto: Sequence[int], exemplars: Sequence[Exemplar | None]) -> Iterator[int | str]:
    for number, exemplar in zip(upto, exemplars, strict=True):
        yield number
        yield _exemplar(exemplar)


def _exemplar(one: Exemplar | None) -> str:
    """What stands behind a bucket's number: which call it was, how long that took, and when it ended."""
    if one is None:
        return ""
    request_id, trace_id, value, at = one
    trace = f',trace_id="{trace_id:032x}"' if trace_id else ""
    return f' # {{request_id="{request_id}"{trace}}} {value!r} {at:.3f}'


@lru_cache(maxsize=_MOST_LABEL_VALUES)
def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
