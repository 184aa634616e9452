"""The log writer: a reader that is stuck or gone costs lines, never a call."""

from __future__ import annotations

import threading

from llm_guard.log import _WAITING_LINES as WAITING_LINES
from llm_guard.log import LogWriter


class Sink:
    """Remembers what was written; waits for `gate` before each line."""

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.lines: list[str] = []
        self.flushes = 0
        self.gate = threading.Event()
        self.error = error
        if is_open:
            self.gate.set()

    def write(self, text: str) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.lines.append(text)

    def flush(self) -> None:
        self.flushes += 1


def test_lines_arrive_in_order_and_are_flushed_when_none_waits() -> None:
    sink = Sink()
    writer = LogWriter(sink)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()
    assert sink.lines == [f"{number}\n" for number in range(100)]
    assert sink.flushes >= 1


def test_stuck_reader_costs_lines_and_never_blocks() -> None:
    sink = Sink(is_open=False)
    writer = LogWriter(sink)
    for number in range(WAITING_LINES + 50):
        writer.write(f"{number}\n")
    assert 49 <= writer.dropped <= 50  # the thread may have taken one already
    sink.gate.set()
    writer.close()
    assert len(sink.lines) == WAITING_LINES + 50 - writer.dropped


def test_reader_that_is_gone_is_no_error() -> None:
    for error in (BrokenPipeError(), ValueError("I/O operation on closed file")):
        writer = LogWriter(Sink(error=error))
        writer.write("lost\n")
        writer.close()
