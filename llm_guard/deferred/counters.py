"""Counters of deferred calls and dead letters. `admin.metrics.subsystem_metrics` exports them."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from llm_guard.storage.calls.store import CallStats, Purpose

LossReason = Literal["disk", "slow", "too_large", "too_many", "body"]
"""Why a dead letter was lost. disk: the write failed. slow: the disk did not answer in time (it may have been written,
but its client got no id). too_large: its body. too_many: too many calls wait for the disk. body: its spooled body could
not be read again."""
RoundOutcome = Literal["answered", "again", "dead", "put_back", "given_up", "lost"]
"""Result of one round. lost: it could not be written, or another gateway has taken the call over."""
WebhookOutcome = Literal["taken", "failed"]


class DeferredCounters:
    """Counters, used from the event loop only."""

    def __init__(self) -> None:
        self.lost: dict[LossReason, int] = defaultdict(int)
        """Calls that should have been kept as dead letters."""
        self.rounds: dict[tuple[Purpose, RoundOutcome], int] = defaultdict(int)
        self.told: dict[tuple[str, WebhookOutcome], int] = defaultdict(int)
        """Webhook requests, by the webhook's name."""
        self.found: CallStats | None = None
        """The last count of the store; None: not counted yet, or the store cannot be read."""
        self.promised = 0
        """Calls deferred since that count, less those that have ended since."""

    @property
    def waiting(self) -> int:
        """Deferred calls without a response."""
        count = self.found.count if self.found is not None else {}
        return max(0, count.get("later/queued", 0) + count.get("later/running", 0) + self.promised)
