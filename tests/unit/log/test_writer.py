"""The log writer: a blocked or closed reader costs log lines, never a call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from io import BytesIO
from types import SimpleNamespace

import pytest
import structlog

from llm_guard.log import LEVELS, LogWriter, configure_logging, direct_writer, to_line
from llm_guard.log.writer import _WAITING_BYTES as WAITING_BYTES
from llm_guard.log.writer import _WAITING_LINES as WAITING_LINES

A_HANG_S = 30.0


class Sink:
    """Records what was written, and waits for `gate` before each block."""

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.blocks: list[bytes] = []
        self.flushes = 0
        self.is_asked = threading.Event()
        self.has_flushed = threading.Event()
        self.gate = threading.Event()
        self.error = error
        if is_open:
            self.gate.set()

    def write(self, block: bytes) -> None:
        self.is_asked.set()
        self.gate.wait(A_HANG_S)
        if self.error is not None:
            raise self.error
        self.blocks.append(block)

    def flush(self) -> None:
        self.flushes += 1
        self.has_flushed.set()

    @property
    def text(self) -> bytes:
        return b"".join(self.blocks)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d\n" % number for number in range(start, start + count)]


@pytest.fixture
def never_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents writing before the writer is closed."""
    monkeypatch.setattr("llm_guard.log.writer._GATHER_S", A_HANG_S)


def test_lines_arrive_in_order_and_are_flushed() -> None:
    sink = Sink()
    writer = LogWriter(sink)
    for line in numbered(100):
        writer.write(line)
    writer.close()
    assert sink.text == b"".join(numbered(100))
    assert sink.flushes == len(sink.blocks)


def test_each_line_is_visible_at_once_and_the_thread_idles_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llm_guard.log.writer._GATHER_S", 0.0)
    sink = Sink()
    writer = LogWriter(sink)
    for line in numbered(3):
        sink.has_flushed.clear()
        writer.write(line)
        assert sink.has_flushed.wait(A_HANG_S)
        assert sink.text.endswith(line)
    writer.close()
    assert sink.text == b"".join(numbered(3))
    assert len(sink.blocks) <= 4


@pytest.mark.usefixtures("never_gathered")
def test_simultaneous_lines_are_written_together() -> None:
    sink = Sink()
    writer = LogWriter(sink)
    for line in numbered(1000):
        writer.write(line)
    assert not sink.is_asked.wait(0.05)
    writer.close()
    assert [block for block in sink.blocks if block] == [b"".join(numbered(1000))]


def test_writer_with_nothing_to_write_can_be_closed() -> None:
    sink = Sink()
    writer = LogWriter(sink)
    writer.close()
    assert sink.text == b""
    assert not writer._thread.is_alive()


def test_stuck_reader_loses_lines_and_gets_their_number() -> None:
    sink = Sink(is_open=False)
    writer = LogWriter(sink)
    writer.write(b"first\n")
    assert sink.is_asked.wait(A_HANG_S)
    for line in numbered(WAITING_LINES + 50):
        writer.write(line)
    assert writer.dropped == 50
    sink.gate.set()
    writer.close()
    told = to_line({"event": "log lines dropped", "count": 50})
    assert sink.text == b"first\n" + b"".join(numbered(WAITING_LINES)) + told


def test_lines_are_accepted_again_when_the_reader_has_caught_up() -> None:
    sink = Sink(is_open=False)
    writer = LogWriter(sink)
    writer.write(b"first\n")
    assert sink.is_asked.wait(A_HANG_S)
    for _ in range(17):
        writer.write(b"x" * (WAITING_BYTES // 16))
    writer.write(b"not even this\n")
    assert writer.dropped == 2
    sink.has_flushed.clear()
    sink.gate.set()
    while b"dropped" not in sink.text:
        assert sink.has_flushed.wait(A_HANG_S)
        sink.has_flushed.clear()
    writer.write(b"last\n")
    writer.close()
    assert writer.dropped == 2
    assert sink.text.count(b"x") == WAITING_BYTES
    assert sink.text.endswith(b'{"event":"log lines dropped","count":2}\nlast\n')


def test_lines_left_while_the_last_block_is_written_are_written_at_the_close() -> None:
    sink = Sink(is_open=False)
    writer = LogWriter(sink)
    writer.write(b"first\n")
    assert sink.is_asked.wait(A_HANG_S)
    writer.write(b"second\n")
    closing = threading.Thread(target=writer.close)
    closing.start()
    sink.gate.set()
    closing.join()
    assert sink.text == b"first\nsecond\n"


def test_missing_reader_is_no_error() -> None:
    for error in (BrokenPipeError(), ValueError("I/O operation on closed file")):
        sink = Sink(error=error)
        writer = LogWriter(sink)
        writer.write(b"lost\n")
        assert sink.is_asked.wait(A_HANG_S)
        writer.write(b"lost as well\n")
        writer.close()
        assert sink.blocks == []


# contents of a line


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        'quote" and \\',
        "a\nb\r\x00\x1b[2J",
        "\x7f",
        "é\x7f",
        "é\x9b31m\u202e\u2028",
        "\U0001f600",
        "\udc80 half",
    ],
)
def test_line_is_printable_ascii_and_preserves_the_message(text: str) -> None:
    line = to_line({"event": text, "more": [text, {"in": text}]})
    assert line.endswith(b"\n")
    assert line[:-1].decode("ascii").isprintable()
    assert json.loads(line) == {"event": text, "more": [text, {"in": text}]}


@pytest.mark.parametrize("text", ["plain", "é"])
def test_value_that_json_cannot_encode_is_written_as_text(text: str) -> None:
    line = json.loads(to_line({"event": text, "error": BrokenPipeError("gone")}))
    assert line == {"event": text, "error": "gone"}


# structlog's lines


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[BytesIO]:
    stdout = BytesIO()
    monkeypatch.setattr("llm_guard.log.writer.sys", SimpleNamespace(stdout=SimpleNamespace(buffer=stdout)))
    LEVELS.adopt("debug", {})
    yield stdout
    structlog.reset_defaults()
    LEVELS.adopt("info", {})


def test_lines_of_structlog_and_direct_ones_stay_in_order(stdout: BytesIO) -> None:
    assert direct_writer() is None
    writer = configure_logging()
    assert direct_writer() is writer
    log = structlog.get_logger("test")
    log.warning("breaker", deployment="a/x")
    writer.write(to_line({"event": "call"}))
    try:
        raise ValueError("é")
    except ValueError:
        log.exception("broken", error=ValueError("x"))
    writer.close()
    first, second, third = (json.loads(line) for line in stdout.getvalue().splitlines())
    assert list(first) == ["deployment", "event", "logger", "level", "timestamp"]
    assert first["logger"] == "test"
    assert (first["event"], first["level"], second["event"]) == ("breaker", "warning", "call")
    assert (third["event"], third["level"], third["error"]) == ("broken", "error", "x")
    assert "ValueError: é" in third["exception"]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_every_level_is_written(stdout: BytesIO, level: str) -> None:
    writer = configure_logging()
    getattr(structlog.get_logger("test"), level)("said")
    writer.close()
    assert json.loads(stdout.getvalue())["level"] == level
