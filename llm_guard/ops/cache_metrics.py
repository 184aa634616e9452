"""Metrics of the response cache's store, read at each scrape. `ops.call_metrics` has the cache results of calls."""

from __future__ import annotations

from llm_guard.gateway.answer_cache import AnswerCache
from llm_guard.ops.exposition import Family, Row


def cache_metrics(cache: AnswerCache) -> tuple[Family, ...]:
    """Returns the metrics: entries and sizes by route, the others in total."""

    def entries() -> list[Row]:
        return [((route,), held.entries) for route, held in cache.snapshot().routes.items()]

    def sizes() -> list[Row]:
        return [((route,), held.bytes) for route, held in cache.snapshot().routes.items()]

    return (
        Family("llm_guard_cache_entries", "gauge", "Answers that are kept.", ("model",), entries),
        Family("llm_guard_cache_bytes", "gauge", "What they take.", ("model",), sizes),
        Family(
            "llm_guard_cache_evictions",
            "counter",
            "Answers that made room for others.",
            (),
            lambda: [((), cache.snapshot().evictions)],
        ),
        Family(
            "llm_guard_cache_store_failures",
            "counter",
            "What the cache's file could not do, or not in time.",
            ("what",),
            lambda: [((what,), count) for what, count in cache.snapshot().failures.items()],
        ),
    )
