"""Where log lines go: to standard output, by a thread of its own.

Owns that a reader who is slow, stuck or gone never stops a call: lines wait in a bounded queue, and what does not fit
is dropped and counted. Does not own what is logged, nor from which level on (`log.levels`).
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
"""Lines of this long are one block: to wake the thread for each costs more than the line does."""
_LAST_LINES_S = 1.0

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Sink(Protocol):
    """What lines are written to."""

    def write(self, block: bytes, /) -> object: ...
    def flush(self) -> object: ...


class LogWriter:
    """Takes lines, never blocks and never raises; `close()` writes what waits.

    A line is written 50 ms after it came, if its reader keeps up: that much is lost when the process is killed. Lines
    keep their order, whichever way they came.
    """

    def __init__(self, sink: Sink, look: Callable[[bytes], bytes] | None = None) -> None:
        """`look`: what becomes of each line, in the thread, before it is written."""
        self._sink = sink
        self._look = look
        self._lines: deque[bytes] = deque()
        self._bytes_in = 0
        """Of all lines that found a place: counted by who writes lines, and by nobody else."""
        self._bytes_out = 0
        """Of all lines that were taken out: counted by the thread, and by nobody else."""
        self.dropped = 0
        """Lines that found no place since the start."""
        self._told = 0
        self._has_lines = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Leaves a whole line, or several, for the thread. To be called from one thread, the event loop's."""
        if len(self._lines) >= _WAITING_LINES or self._bytes_in - self._bytes_out + len(line) > _WAITING_BYTES:
            self.dropped += 1
            return
        self._bytes_in += len(line)
        self._lines.append(line)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Returns when every line is written, after a second at the latest."""
        self._is_closing.set()
        self._has_lines.set()
        self._thread.join(_LAST_LINES_S)

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            self._has_lines.wait()
            is_last = self._is_closing.wait(_GATHER_S)
            self._has_lines.clear()  # before they are taken: a line that comes now is taken, or sets it again
            block = self._take()
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more, or the file is closed
                self._sink.write(block)
                self._sink.flush()

    def _take(self) -> bytes:
        """All that waits, then how many lines since the last time found no place behind it."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._bytes_out += sum(map(len, lines))
        dropped = self.dropped
        if dropped > self._told:
            lines.append(to_line({"event": "log lines dropped", "count": dropped - self._told}))
            self._told = dropped
        return b"".join(lines if self._look is None else map(self._look, lines))


def configure_logging(form: LogFormat = "json") -> LogWriter:
    """Sends structlog's lines to standard output, from the level on that `LEVELS` says; the caller closes what is
    returned. A console is coloured if it is a terminal and NO_COLOR is not set (no-color.org)."""
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
    """Where `configure_logging` has sent structlog's lines, for those that are not worth its way; else None."""
    factory = structlog.get_config()["logger_factory"]
    return factory.writer if isinstance(factory, _LoggerFactory) else None


def to_line(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """A line of JSON in printable ASCII: what a terminal would obey is escaped, and what no Unicode can say."""
    try:
        line = _encode(fields)
        if not line.isascii():
            line = _escaped(fields)
    except UnicodeEncodeError:  # half of a surrogate pair: bytes of a path that are no UTF-8
        line = _escaped(fields)
    return line.replace(b"\x7f", b"\\u007f") + b"\n"  # JSON lets that one pass


def _escaped(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    return json.dumps(msgspec.to_builtins(fields, enc_hook=str), separators=(",", ":")).encode()


class _LoggerFactory:
    """Makes the loggers that structlog hands its lines to."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer

    def __call__(self, name: str = "", *_: object) -> _Logger:
        return _Logger(self.writer, name)


class _Logger:
    """A logger for lines that are ready to be written."""

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
