"""Writes metrics in the Prometheus text format, or in OpenMetrics where the scraper prefers it.

prometheus.io/docs/instrumenting/exposition_formats, and OpenMetrics 1.0.0. prometheus_client writes the same, at 5 us
per sample: with 200 deployments that would block the event loop for 100 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from llm_guard.proxy.telemetry.recorder import Distribution, Exemplar

PIECE_SAMPLES = 500
"""Samples written without a pause: they take a quarter of a millisecond."""

_LABELS = "\0"
"""Placeholder for the labels in a pattern. No value contains it."""
_MOST_LABEL_VALUES = 8192

Format = Literal["text", "openmetrics"]
Row = tuple[tuple[str, ...], float]
"""Label values, and the sample's value."""

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_MEDIA_TYPES = {"text/plain": "text", "text/*": "text", "*/*": "text", "application/openmetrics-text": "openmetrics"}
_OPENMETRICS_VERSIONS = ("", "0.0.1", "1.0.0")


@dataclass(frozen=True, slots=True)
class Family:
    """A counter or gauge, with a value for each combination of labels."""

    name: str
    """Name of the metric, of a counter without `_total`."""
    kind: Literal["counter", "gauge"]
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Row]]
    """Returns the values at one moment, which are then written with pauses in between."""

    def samples(self, _form: Format) -> Iterator[tuple[int, str]]:
        """Yields numbers of samples, and their lines."""
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        pairs = ",".join(f'{label}="%s"' for label in self.labels)
        pattern = f"{name}{{{pairs}}} %s\n" if pairs else f"{name} %s\n"
        for values, number in self.read():
            yield 1, pattern % (*map(_escaped, values), number)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram, with a distribution for each combination of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[tuple[tuple[str, ...], Distribution]]]
    kind = "histogram"

    def samples(self, form: Format) -> Iterator[tuple[int, str]]:
        """Yields numbers of samples, and their lines. Empty distributions are left out."""
        seen = [
            (values, distribution.bounds, distribution.counts.copy(), distribution.sum, _exemplars(distribution, form))
            for values, distribution in self.read()
        ]
        for values, bounds, counts, total, exemplars in seen:
            upto = tuple(accumulate(counts))
            if not upto[-1]:
                continue
            pairs = _pairs(self.labels, values)
            pattern = _histogram_pattern(self.name, bounds, has_labels=bool(pairs), has_exemplars=bool(exemplars))
            numbers = _interleaved(upto, exemplars) if exemplars else upto
            lines = pattern.replace(_LABELS, pairs.replace("%", "%%"))
            yield len(upto) + 2, lines % (*numbers, total, upto[-1])


def pieces(metrics: Iterable[Family | Histogram], form: Format) -> Iterator[str]:
    """Yields a page in pieces of about `PIECE_SAMPLES` samples. Values may change between pieces, but those of one
    metric are read at one moment."""
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
    """Returns the format that an Accept header prefers (RFC 9110, section 12.5.1); the text format if both are
    equal."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        media, *texts = part.split(";")
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
def _histogram_pattern(name: str, bounds: tuple[float, ...], *, has_labels: bool, has_exemplars: bool) -> str:
    number = "%d%s" if has_exemplars else "%d"
    before, alone = (f"{_LABELS},", f"{{{_LABELS}}}") if has_labels else ("", "")
    limits = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    buckets = [f'{name}_bucket{{{before}le="{limit}"}} {number}\n' for limit in limits]
    return "".join((*buckets, f"{name}_sum{alone} %s\n", f"{name}_count{alone} %d\n"))


def _pairs(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))


def _exemplars(seen: Distribution, form: Format) -> Sequence[Exemplar | None]:
    return seen.exemplars.copy() if form == "openmetrics" and any(seen.exemplars) else ()


def _interleaved(upto: Sequence[int], exemplars: Sequence[Exemplar | None]) -> Iterator[int | str]:
    for number, exemplar in zip(upto, exemplars, strict=True):
        yield number
        yield _exemplar(exemplar)


def _exemplar(one: Exemplar | None) -> str:
    """Returns the exemplar of a bucket: the call's id, its duration, and when it ended."""
    if one is None:
        return ""
    request_id, trace_id, value, at = one
    trace = f',trace_id="{trace_id:032x}"' if trace_id else ""
    return f' # {{request_id="{request_id}"{trace}}} {value!r} {at:.3f}'


@lru_cache(maxsize=_MOST_LABEL_VALUES)
def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
