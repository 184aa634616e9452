"""Metrics of deferred calls and dead letters. `errands.counts` counts them."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.errands.counts import ErrandCounts
from llm_guard.ops.exposition import Family, Row


def kept_metrics(counts: ErrandCounts) -> tuple[Family, ...]:
    """Returns the metrics. The stored calls are as of some seconds ago; if there never were any, there are no
    samples."""

    def kept() -> Iterator[Row]:
        if counts.found is not None:
            for key, count in counts.found.count.items():
                purpose, _, state = key.partition("/")
                yield (purpose, state), count

    def size() -> Iterator[Row]:
        if counts.found is not None and counts.found.count:
            yield (), counts.found.size

    return (
        Family(
            "llm_guard_kept_calls", "gauge", "Calls kept beyond their clients: letters, and those answered later.",
            ("purpose", "state"), kept,
        ),
        Family("llm_guard_kept_calls_bytes", "gauge", "What they take on the disk.", (), size),
        Family(
            "llm_guard_dead_letters_lost", "counter", "Calls that should have been kept as letters, and were not.",
            ("why",), lambda: [((why,), count) for why, count in counts.lost.items()],
        ),
        Family(
            "llm_guard_errands", "counter", "Kept calls asked for, by what came of it.", ("purpose", "outcome"),
            lambda: list(counts.rounds.items()),
        ),
        Family(
            "llm_guard_completion_webhooks", "counter", "Webhooks told that a promised call is over.",
            ("webhook", "outcome"), lambda: list(counts.told.items()),
        ),
    )  # fmt: skip
