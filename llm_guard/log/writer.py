"""Writes log lines to standard output in its own thread.

A reader that is slow, stuck or gone never blocks a call: lines wait in a bounded queue, and lines that do not fit are
dropped and counted. The levels are in `log.levels`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
import structlog

from llm_guard.log.console import to_console
from llm_guard.log.levels import LEVEL_NUMBERS, LEVELS

LogFormat = Literal["json", "console"]

_WAITING_LINES = 40_000
_WAITING_BYTES = 1 << 24
_GATHER_S = 0.05
"""Lines that come within this time are written together: waking the thread for each costs more than the line does."""
_LAST_LINES_S = 1.0

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Sink(Protocol):
    """Where lines are written."""

    def write(self, block: bytes, /) -> object: ...
    def flush(self) -> object: ...


class LogWriter:
    """Queues lines; never blocks and never raises. `close()` writes the remaining ones.

    A line is written 50 ms after it came if its reader keeps up; if the process is killed, that much is lost. Lines
    keep their order, whichever way they are logged."""

    def __init__(self, sink: Sink, look: Callable[[bytes], bytes] | None = None) -> None:
        """`look`: formats each line, in the thread, before it is written."""
        self._sink = sink
        self._look = look
        self._lines: deque[bytes] = deque()
        self._bytes_in = 0
        """Bytes of all queued lines; changed only by the thread that logs."""
        self._bytes_out = 0
        """Bytes of all lines taken from the queue; changed only by the writing thread."""
        self.dropped = 0
        """Lines dropped since the start."""
        self._told = 0
        self._has_lines = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queues one or several complete lines. Must be called from one thread only, the event loop's."""
        if len(self._lines) >= _WAITING_LINES or self._bytes_in - self._bytes_out + len(line) > _WAITING_BYTES:
            self.dropped += 1
            return
        self._bytes_in += len(line)
        self._lines.append(line)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Returns when every line is written, after a second at most."""
        self._is_closing.set()
        self._has_lines.set()
        self._thread.join(_LAST_LINES_S)

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            self._has_lines.wait()
            is_last = self._is_closing.wait(_GATHER_S)
            self._has_lines.clear()  # cleared first: a line that comes now is taken below, or sets it again
            block = self._take()
            with contextlib.suppress(OSError, ValueError):  # the reader is gone or the file is closed
                self._sink.write(block)
                self._sink.flush()

    def _take(self) -> bytes:
        """Takes all queued lines, and adds a line with the number dropped since the last time."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._bytes_out += sum(map(len, lines))
        dropped = self.dropped
        if dropped > self._told:
            lines.append(to_line({"event": "log lines dropped", "count": dropped - self._told}))
            self._told = dropped
        return b"".join(lines if self._look is None else map(self._look, lines))


def configure_logging(form: LogFormat = "json") -> LogWriter:
    """Sends structlog's lines to standard output, filtered by `LEVELS`; the caller must close the returned writer. The
    console format is coloured on a terminal unless NO_COLOR is set (no-color.org)."""
    is_coloured = form == "console" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    writer = LogWriter(sys.stdout.buffer, partial(to_console, is_coloured=is_coloured) if form == "console" else None)
    structlog.configure(
        processors=[
            _drop_quiet,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _logger, _name, fields: to_line(fields),
        ],
        logger_factory=_LoggerFactory(writer),
        cache_logger_on_first_use=True,
    )
    return writer


def direct_writer() -> LogWriter | None:
    """The writer set up by `configure_logging`, for lines that skip structlog's overhead; else None."""
    factory = structlog.get_config()["logger_factory"]
    return factory.writer if isinstance(factory, _LoggerFactory) else None


def to_line(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """A line of JSON in printable ASCII: escapes control characters, and surrogates that cannot be encoded."""
    try:
        line = _encode(fields)
        if not line.isascii():
            line = _escaped(fields)
    except UnicodeEncodeError:  # half of a surrogate pair, as in a path that is not UTF-8
        line = _escaped(fields)
    return line.replace(b"\x7f", b"\\u007f") + b"\n"  # JSON does not escape DEL


def _escaped(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    return json.dumps(msgspec.to_builtins(fields, enc_hook=str), separators=(",", ":")).encode()


class _LoggerFactory:
    """Creates the loggers that structlog passes its lines to."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer

    def __call__(self, name: str = "", *_: object) -> _Logger:
        return _Logger(self.writer, name)


class _Logger:
    """A logger for formatted lines."""

    def __init__(self, writer: LogWriter, name: str) -> None:
        self.name = name
        self.threshold = LEVELS.threshold(name)
        self.msg = self.debug = self.info = self.warning = self.error = self.critical = writer.write


def _drop_quiet(logger: _Logger, level: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if LEVEL_NUMBERS[level] < logger.threshold.level:
        raise structlog.DropEvent
    if logger.name:
        fields["logger"] = logger.name
    return fields
