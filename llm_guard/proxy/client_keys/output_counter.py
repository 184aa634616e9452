"""Counts the output tokens of streams as they are relayed, for client keys with token limits.

OpenAI-style streams carry no usage unless the client requests it: without its own count the gateway would charge
nothing. `proxy.client_keys.quotas` has the totals.
"""

from __future__ import annotations

from llm_guard.proxy.call import Delivered
from llm_guard.proxy.client_keys.response_tap import ResponseTap
from llm_guard.resilience.client_keys.limits import Reservation

_EVENT = b"data:"


class EventCount:
    """Adds one token to a reservation for each event: most servers send one event per token."""

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation

    def feed(self, chunk: bytes) -> None:
        """Counts the events in the next chunk. Misses a `data:` that is split between chunks: this is an estimate."""
        self._reservation.streamed_tokens += chunk.count(_EVENT)


def count_output(served: Delivered, reservation: Reservation) -> None:
    """Starts counting a response's tokens, if it is a stream and its client key has a token limit."""
    opened = served.opened
    if opened.view is None or not reservation.owner.settings.limits_tokens:
        return
    count = EventCount(reservation)
    count.feed(opened.buffered)
    opened.exchange = opened.exchange and ResponseTap(opened.exchange, count)
