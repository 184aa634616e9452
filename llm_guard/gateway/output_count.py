"""The output of a stream, counted as it passes, for client keys whose tokens are limited.

Owns the count. Does not own what a call has used (`gateway.client_quotas`). In a stream of the openai dialect providers
send no usage unless the client asks for it, so that without a count of its own the gateway would charge none of it.
"""

from __future__ import annotations

from llm_guard.call import Served
from llm_guard.gateway.response_tap import ResponseTap
from llm_guard.policy.client_limits import Reservation

_EVENT = b"data:"


class EventCount:
    """Adds to a reservation a token for each event: most servers send one with each token."""

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation

    def feed(self, chunk: bytes) -> None:
        """The next piece of the stream. A mark that is cut in two by chunks is missed, which an estimate bears."""
        self._reservation.streamed_tokens += chunk.count(_EVENT)


def count_output(served: Served, reservation: Reservation) -> None:
    """Has a stream counted, if its call has reserved tokens."""
    opened = served.opened
    if opened.view is None or not reservation.owner.settings.limits_tokens:
        return
    count = EventCount(reservation)
    count.feed(opened.held)
    opened.exchange = opened.exchange and ResponseTap(opened.exchange, count)
