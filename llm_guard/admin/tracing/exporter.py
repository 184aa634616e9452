"""Turns traces on and off by the config. When off, they cost a call nothing.

A slow or unreachable collector only causes a log line now and then. `admin.tracing.spans` builds the spans,
`proxy.telemetry.trace_propagation` a call's trace context.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import structlog

from llm_guard.clock import Clock
from llm_guard.config import TraceSettings
from llm_guard.proxy.call import Call
from llm_guard.proxy.telemetry.trace_propagation import Tracer
from llm_guard.trace_context import TraceContext
from llm_guard.worker_thread import WorkerThread

if TYPE_CHECKING:
    from llm_guard.admin.tracing.spans import Spans

_log = structlog.get_logger("llm_guard.admin.tracing.exporter")

_CLOSING_S = 2.0
_QUIET_S = 60.0


class Traces:
    """Exports traces according to the current settings: `proxy.telemetry.trace_propagation.Tracing`."""

    def __init__(self, settings: TraceSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._random = Random()  # noqa: S311  # for ids, not for secrets
        self.tracer: Tracer | None = None
        """None if calls are not traced."""
        self._spans: Spans | None = None
        self._complaints = _Complaints(clock)

    def start(self) -> None:
        """Starts the export. Must be called in the event loop."""
        self._begin(_spans(self._settings))

    def adopt(self, settings: TraceSettings) -> None:
        """Applies new settings. Calls that run while tracing is turned on or off are not exported; running calls that
        are traced already go to the new endpoint. If it raises, nothing has changed."""
        if settings == self._settings:
            return
        spans = _spans(settings)
        self._end()
        self._settings = settings
        self._begin(spans)

    async def stop(self) -> None:
        """Sends pending spans for up to 2 s."""
        if (closing := self._end()) is not None:
            await asyncio.wait((closing,), timeout=_CLOSING_S)

    def export(self, call: Call, trace: TraceContext, now: float) -> None:
        """Exports the spans of a call, if calls are still traced at its end."""
        if self._spans is not None:
            self._spans.note(call, trace, now, self._clock.wall())

    def _begin(self, spans: Spans | None) -> None:
        if spans is None:
            return
        self._complaints.listen()
        self._spans = spans
        self.tracer = Tracer(self._random, self._settings.sample)

    def _end(self) -> asyncio.Future[None] | None:
        spans, self._spans, self.tracer = self._spans, None, None
        if spans is None:
            return None
        self._complaints.end()
        return WorkerThread("traces").run(spans.close)


def _spans(settings: TraceSettings) -> Spans | None:
    """Returns None if nothing is traced."""
    if settings.endpoint is None:
        return None
    from llm_guard.admin.tracing.spans import Spans  # noqa: PLC0415  # an optional dependency

    return Spans(settings.endpoint, settings.service_name)


class _Complaints(logging.Handler):
    """Forwards OpenTelemetry's own log records, from any thread, to the log, at most once a minute."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._said_at = float("-inf")
        self._untold = 0
        self._tell: Callable[[str], object] = str

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._tell = lambda text: loop.call_soon_threadsafe(self._say, text)
        source = logging.getLogger("opentelemetry")
        source.handlers = [self]
        source.propagate = False

    def end(self) -> None:
        """Drops later records of its threads. It stays the handler: without one, `logging` would write to standard
        error."""
        self._tell = str

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tell(record.getMessage())
        except RuntimeError:
            self._tell = str  # the loop is closed

    def _say(self, text: str) -> None:
        now = self._clock.now()
        if now - self._said_at < _QUIET_S:
            self._untold += 1
            return
        self._said_at = now
        _log.warning("spans lost", reason=text[:300], dropped=self._untold)
        self._untold = 0
