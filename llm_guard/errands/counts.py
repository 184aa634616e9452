"""What is counted of errands, in plain numbers.

Owns the numbers. Does not own what is counted of clients' calls (`gateway.counters`), nor how a scrape sees either
(`ops.kept_metrics`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from llm_guard.store.kept import Found, Purpose

LostWhy = Literal["disk", "slow", "too_large", "too_many", "body"]
"""disk: it could not be written; slow: the disk has not answered in time (it may have been kept, but nobody was told);
too_large; too_many: so much waits for the disk already; body: what it asked for could not be read again."""
RoundOutcome = Literal["answered", "again", "dead", "put_back", "given_up", "lost"]
"""lost: what came of it could not be written, or belongs to another gateway by now."""
ToldOutcome = Literal["taken", "failed"]


class ErrandCounts:
    """Of the event loop alone."""

    def __init__(self) -> None:
        self.lost: dict[LostWhy, int] = defaultdict(int)
        """Calls that should have been kept as letters."""
        self.rounds: dict[tuple[Purpose, RoundOutcome], int] = defaultdict(int)
        self.told: dict[tuple[str, ToldOutcome], int] = defaultdict(int)
        """Requests to webhooks, by the webhook's name."""
        self.found: Found | None = None
        """What is kept, as it was lately; None: nobody has looked, or could."""
        self.promised = 0
        """Since then, less those that are over since then."""

    @property
    def waiting(self) -> int:
        """Calls that are to be answered later, and are not."""
        count = self.found.count if self.found is not None else {}
        return max(0, count.get("later/queued", 0) + count.get("later/running", 0) + self.promised)
