"""Serves `GET /v1/llm-guard/status`: the states of the models that a client key may use, once or as an event stream.

A stream has the whole state first, then an event for each change. One look a second serves all streams, and none is
taken without them. What a subscriber has not been sent yet is the difference between two states: one that reads slowly
misses states in between, and costs no memory.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf

from llm_guard.clock import Alarm, Clock, iso
from llm_guard.outcome import Disposition, Refusal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.error_responses import DRAINED, refuse
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.model_status import ModelStatuses
from llm_guard.resilience.health.model_status import REASONS, ModelState, ModelStatus
from llm_guard.routing.route_table import RouteTable

STATUS_PATH = "/v1/llm-guard/status"
MAX_SUBSCRIBERS = 1000
MAX_PER_KEY = 10
LOOK_S = 1.0
BEAT_S = 15.0

_BEAT = b":\n\n"
_TOO_MANY = Refusal(
    429, "too_many_subscribers", "there are too many streams of this kind: close one, or retry later", by="limit",
    retry_after_s=30.0, should_retry=True,
)  # fmt: skip
_EVENTS: Mapping[ModelState, str] = {"ok": "recovered", "degraded": "degraded", "down": "down"}
_RANK: Mapping[ModelState, int] = {"ok": 0, "degraded": 1, "down": 2}


@dataclass(frozen=True, slots=True)
class ModelStatusView:
    """State of one model. Instants as ISO 8601, in UTC; None: unknown, or the model is ok."""

    model: str
    state: ModelState
    since: str | None
    expected_end: str | None
    reason: str | None


@dataclass(slots=True, eq=False)
class _Subscriber:
    client: str | None
    """Name of its client key."""
    key: str
    """The client that counts its streams."""
    models: tuple[str, ...]
    reply: ResponseWriter
    sent: dict[str, ModelState] = field(default_factory=dict)
    """The states that were last sent."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    def end(self) -> None:
        """Ends the stream. One that does not read is aborted: it would hold up a shutdown."""
        self.is_over = True
        self.wake.set()
        if self.reply.connection.is_stuck:
            self.reply.connection.abort()


class StatusEndpoint:
    """Answers requests for `STATUS_PATH`."""

    def __init__(self, statuses: ModelStatuses, clock: Clock) -> None:
        self._statuses = statuses
        self._clock = clock
        self._subscribers: set[_Subscriber] = set()
        self._per_key = Counter[str]()
        self._views: dict[str | None, dict[str, ModelStatusView]] = {}
        """The states as of the last look, by client key."""
        self._looked_at: dict[str | None, float] = {}
        self._table: RouteTable | None = None
        """The table at the last look."""
        self._alarm: Alarm | None = None
        self._beat_at = 0.0
        self._is_over = False

    @property
    def subscribers(self) -> int:
        """Number of open streams."""
        return len(self._subscribers)

    async def serve(self, call: Call, reply: ResponseWriter) -> None:
        """Answers one request, with a stream if it accepts events."""
        call.disposition = Disposition(background_purpose="status")
        if "text/event-stream" in reply.request.names.get("accept", ""):
            await self._stream(call, reply)
            return
        views = self._refreshed(call.client_key)
        body = _encoded(_whole(views[model] for model in self._statuses.names_for(call)))
        call.sent_status = 200
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        await reply.send(200, "", [*headers, *header_rules.ours(call, None)], body)

    def end_streams(self) -> None:
        """Ends all streams and accepts no more: the gateway shuts down."""
        self._is_over = True
        self._end_all()

    async def _stream(self, call: Call, reply: ResponseWriter) -> None:
        key = call.client_key or call.key_digest
        if self._is_over:
            return await refuse(call, DRAINED, reply)
        if len(self._subscribers) >= MAX_SUBSCRIBERS or self._per_key[key] >= MAX_PER_KEY:
            return await refuse(call, _TOO_MANY, reply)
        call.sent_status = 200
        reply.closes_connection = True  # an endless response: no other request can follow it
        headers = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-store")]
        headers += [("X-Accel-Buffering", "no"), *header_rules.ours(call, None)]  # no buffering in nginx
        if call.method == "HEAD":
            return await reply.send(200, "", headers, b"")
        self._refreshed(call.client_key)
        subscriber = _Subscriber(call.client_key, key, self._statuses.names_for(call), reply)
        self._join(subscriber)
        try:
            reply.begin(200, "", headers)
            await self._feed(subscriber)
            await reply.end()
        finally:
            self._leave(subscriber)

    async def _feed(self, subscriber: _Subscriber) -> None:
        reply = subscriber.reply
        known = self._views[subscriber.client]
        views = [known[model] for model in subscriber.models]
        subscriber.sent = {view.model: view.state for view in views}
        await reply.write(_event("status", _whole(views)))
        while not subscriber.is_over:
            await subscriber.wake.wait()
            subscriber.wake.clear()
            if not subscriber.is_over:
                await reply.write(self._news(subscriber) or _BEAT)

    def _news(self, subscriber: _Subscriber) -> bytes:
        """Returns an event for each state that differs from the one sent last, and notes them as sent."""
        found = []
        for model, before in subscriber.sent.items():
            view = self._views[subscriber.client][model]
            if view.state != before:
                subscriber.sent[model] = view.state
                found.append(_event(_EVENTS[view.state], asdict(view)))
        return b"".join(found)

    def _join(self, subscriber: _Subscriber) -> None:
        self._subscribers.add(subscriber)
        self._per_key[subscriber.key] += 1
        if self._alarm is None:
            self._beat_at = self._clock.now() + BEAT_S
            self._alarm = self._clock.call_at(self._clock.now() + LOOK_S, self._on_alarm)

    def _leave(self, subscriber: _Subscriber) -> None:
        self._subscribers.discard(subscriber)
        self._per_key[subscriber.key] -= 1
        if not self._per_key[subscriber.key]:
            del self._per_key[subscriber.key]
        if not self._subscribers and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _on_alarm(self) -> None:
        now = self._clock.now()
        self._alarm = self._clock.call_at(now + LOOK_S, self._on_alarm)
        self._check_table()
        common = self._statuses.all(None) if self._statuses.are_common else None
        for client in {subscriber.client for subscriber in self._subscribers if not subscriber.is_over}:
            self._update(client, common)
        is_beat = now >= self._beat_at
        if is_beat:
            self._beat_at = now + BEAT_S
        for subscriber in tuple(self._subscribers):
            if subscriber.is_over:
                continue  # its models may be gone
            if is_beat and subscriber.reply.connection.is_stuck:
                subscriber.end()
            elif is_beat or self._has_news(subscriber):
                subscriber.wake.set()

    def _has_news(self, subscriber: _Subscriber) -> bool:
        views = self._views[subscriber.client]
        return any(views[model].state != state for model, state in subscriber.sent.items())

    def _refreshed(self, client: str | None) -> Mapping[str, ModelStatusView]:
        """Returns the states, at most a second old: polls must not cost more than streams."""
        self._check_table()
        if self._clock.now() - self._looked_at.get(client, -inf) >= LOOK_S:
            self._update(client, None)
        return self._views[client]

    def _update(self, client: str | None, statuses: Mapping[str, ModelStatus] | None) -> None:
        """Updates a client's states. `statuses`: those of all clients; None: they must be found."""
        now, wall, before = self._clock.now(), self._clock.wall(), self._views.get(client, {})
        found = self._statuses.all(client) if statuses is None else statuses
        self._views[client] = {model: _view(model, found[model], before.get(model), now, wall) for model in found}
        self._looked_at[client] = now

    def _check_table(self) -> None:
        """Ends the streams after a reload, as models and keys may have changed: clients reconnect."""
        table = self._statuses.table
        if table is not self._table:
            self._end_all()
            self._table, self._views, self._looked_at = table, {}, {}

    def _end_all(self) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber.end()


def _view(model: str, status: ModelStatus, before: ModelStatusView | None, now: float, wall: float) -> ModelStatusView:
    if status.state == "ok" or status.kind is None:
        return ModelStatusView(model, "ok", None, None, None)
    since = iso(wall if status.since is None else wall - (now - status.since))
    if status.since is None and before is not None and before.state == status.state and before.since is not None:
        since = before.since
    expected_end = None if status.expected_end is None else iso(wall + status.expected_end - now)
    return ModelStatusView(model, status.state, since, expected_end, REASONS[status.kind])


def _whole(views: Iterable[ModelStatusView]) -> dict[str, object]:
    models = list(views)
    state = max((view.state for view in models), key=_RANK.__getitem__, default="ok")
    return {"object": "llm_guard.status", "state": state, "models": [asdict(view) for view in models]}


def _event(kind: str, data: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encoded(data))


def _encoded(data: Mapping[str, object]) -> bytes:
    return json.dumps(data).encode()
