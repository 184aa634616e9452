"""Counters of deferred calls and dead letters. `admin.metrics.subsystem_metrics` exports them."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from llm_guard.storage.calls.store import CallStats, Purpose

LossReason = Literal["write_failed", "write_timeout", "body_too_large", "queue_full", "body_unreadable"]
"""Why a dead letter was lost. write_timeout: it may have been written, but its client got no id. queue_full: too many
calls wait for the disk. body_unreadable: its spooled body could not be read again."""
RoundOutcome = Literal["answered", "retry", "dead", "interrupted", "cancelled", "lost"]
"""Result of one execution. retry: it failed and is due again. interrupted: the gateway shut down; it is due again.
cancelled: its client deleted it. lost: the result could not be written, or another gateway has taken the call over."""
WebhookOutcome = Literal["delivered", "failed"]


class DeferredCounters:
    """Counters, used from the event loop only."""

    def __init__(self) -> None:
        self.lost: dict[LossReason, int] = defaultdict(int)
        """Calls that should have been kept as dead letters."""
        self.rounds: dict[tuple[Purpose, RoundOutcome], int] = defaultdict(int)
        self.webhook_requests: dict[tuple[str, WebhookOutcome], int] = defaultdict(int)
        """Webhook requests, by the webhook's name."""
        self.found: CallStats | None = None
        """The last count of the store; None: not counted yet, or the store cannot be read."""
        self.uncounted = 0
        """Calls deferred since that count, less those that have ended since."""

    @property
    def waiting(self) -> int:
        """Deferred calls without a response."""
        count = self.found.count if self.found is not None else {}
        return max(0, count.get("deferred/queued", 0) + count.get("deferred/running", 0) + self.uncounted)
