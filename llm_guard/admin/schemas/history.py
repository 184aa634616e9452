"""Schemas of the history and of the event stream's first messages, with the conventions of `admin.schemas.models`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Series(Struct, frozen=True):
    """Time series of one name. All lists are as long as `HistoryView.at`, with null where nothing is known."""

    calls_per_second: list[float | None]
    """Calls per second in each step."""
    success_rate: list[float | None]
    """Success rate in each step; failures that the client caused do not count."""
    duration_p50_s: list[float | None]
    """Seconds that half of a step's successful calls did not exceed."""
    duration_p95_s: list[float | None]
    """Seconds that 95 % of a step's successful calls did not exceed."""
    first_token_p50_s: list[float | None]
    """Seconds to the first token that half of a step's streams did not exceed."""
    first_token_p95_s: list[float | None]
    """Seconds to the first token that 95 % of a step's streams did not exceed."""


class HistoryView(Struct, frozen=True):
    """Response of `GET /admin/history`."""

    step_s: float
    """Seconds from one point to the next."""
    at: list[float]
    """Ends of the steps in seconds since the epoch, oldest first."""
    total: Series
    """Sum over all models."""
    models: dict[str, Series]
    """The busiest models; `(others)` has the sum of the rest."""
    deployment: Series | None
    """Attempts on the requested deployment; null: none was requested, or others are busier."""


class Hello(Struct, frozen=True, tag_field="kind", tag="hello"):
    """First message of `GET /admin/events`, and of its WebSocket."""

    version: str
    """Version of the gateway."""
    boot: str
    """Identifier of this process; prefix of every event id."""
    last_id: int
    """Number of the last event so far."""


class Missed(Struct, frozen=True, tag_field="kind", tag="missed"):
    """Sent when events after the requested one are missing; those that are known follow."""

    after: str
    """The event that was requested."""
    reason: Literal["expired", "other_process"]
    """expired: the events are no longer stored. other_process: the id is of an earlier process."""
