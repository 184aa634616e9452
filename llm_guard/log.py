"""Where log lines go: one JSON object a line, to standard output, by a thread of its own.

Owns that a reader who is slow, stuck or gone never stops a call: lines wait in a bounded queue, and what does not fit
is dropped and counted. Does not own what is logged.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from typing import Protocol

import structlog

_WAITING_LINES = 10_000
_LAST_LINES_S = 1.0


class Sink(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class LogWriter:
    """A file for structlog that never blocks and never raises; `close()` writes what waits."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self.dropped = 0
        """Lines that found no place since the start."""
        self._told = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Leaves a line for the thread."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Nothing: the thread flushes when no line waits."""

    def close(self) -> None:
        """Returns when every line is written, after a second at the latest."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_LAST_LINES_S)
        self._thread.join(_LAST_LINES_S)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more, or the file is closed
                self._sink.write(line)
                if self._lines.empty():
                    self._tell()
                    self._sink.flush()
        with contextlib.suppress(OSError, ValueError):
            self._sink.flush()

    def _tell(self) -> None:
        """Says, once the reader has caught up, how many lines it will never see."""
        dropped = self.dropped
        if dropped > self._told:
            self._sink.write(_to_json({"event": "log lines dropped", "count": dropped - self._told}) + "\n")
            self._told = dropped


def configure_logging() -> LogWriter:
    """Sends structlog's lines to standard output; the caller closes what is returned."""
    writer = LogWriter(sys.stdout)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it writes and flushes, no more
        cache_logger_on_first_use=True,
    )
    return writer


def _to_json(event: object, **_: object) -> str:
    return json.dumps(event, separators=(",", ":"), default=str)
