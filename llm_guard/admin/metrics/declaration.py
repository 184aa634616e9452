"""Declares metric families: name, kind, help text, labels and the function that reads the values, each in one place.

A table of declarations is constant; `bound` connects it to the object that its functions read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.proxy.telemetry.recorder import Distribution

_Source = TypeVar("_Source")
"""Type of the object that the values are read from."""


@dataclass(frozen=True, slots=True)
class DeclaredFamily(Generic[_Source]):
    """A counter, gauge or histogram."""

    name: str
    """Full name, of a counter without `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]
    read: Callable[[_Source], Iterable[Any]]
    """Returns the values at one moment: rows, of a histogram distributions with their label values."""

    def of(self, source: _Source) -> Family | Histogram:
        """Returns the family; each scrape reads `source`."""
        read = partial(self.read, source)
        if self.kind == "histogram":
            return Histogram(self.name, self.text, self.labels, read)
        return Family(self.name, self.kind, self.text, self.labels, read)


def bound(table: Iterable[DeclaredFamily[_Source]], source: _Source) -> tuple[Family | Histogram, ...]:
    """Returns the families of a table, in its order."""
    return tuple(family.of(source) for family in table)


def counter(
    name: str, text: str, labels: tuple[str, ...], read: Callable[[_Source], Iterable[Row]]
) -> DeclaredFamily[_Source]:
    """Declares `llm_guard_{name}_total`."""
    return DeclaredFamily(f"llm_guard_{name}", "counter", text, labels, read)


def gauge(
    name: str, text: str, labels: tuple[str, ...], read: Callable[[_Source], Iterable[Row]]
) -> DeclaredFamily[_Source]:
    """Declares `llm_guard_{name}`."""
    return DeclaredFamily(f"llm_guard_{name}", "gauge", text, labels, read)


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    read: Callable[[_Source], Iterable[tuple[tuple[str, ...], Distribution]]],
) -> DeclaredFamily[_Source]:
    """Declares `llm_guard_{name}_seconds`."""
    return DeclaredFamily(f"llm_guard_{name}_seconds", "histogram", text, labels, read)


def single(read: Callable[[_Source], float]) -> Callable[[_Source], list[Row]]:
    """Returns a reader of one sample without labels."""
    return lambda source: [((), read(source))]
