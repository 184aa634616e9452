"""Log lines as shown on a terminal."""

from __future__ import annotations

import json
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.log import configure_logging, to_line
from llm_guard.log.console import to_console
from tests.effort import repeated

AT = "2026-01-31T23:59:58.123456Z"


def shown(more: dict[str, Any] | None = None, *, is_coloured: bool = False, **fields: Any) -> str:
    line = to_line({"event": "breaker", "level": "warning", "timestamp": AT, **fields, **(more or {})})
    return to_console(line, is_coloured=is_coloured).decode()


def test_time_level_and_event_precede_the_details() -> None:
    line = shown(logger="llm_guard.breaker", reason="5 in a row", before="closed", after="open", deployment="a/x")
    assert line == (
        "23:59:58.123 warning  breaker  deployment=a/x  before=closed  after=open"
        '  reason="5 in a row"  logger=llm_guard.breaker\n'
    )


def test_attempts_are_summarized() -> None:
    tried = {"deployment": "a/x", "outcome": "timeout", "waited_s": 0.0, "started_s": 0.1, "duration_s": 30.0,
             "reason": "too slow", "budget_left": 3.0}  # fmt: skip
    line = shown(event="call", outcome="ok", attempts=[tried, {**tried, "outcome": "ok", "waited_s": 0.5}])
    assert 'attempts=[a/x timeout 30.0 "too slow", a/x ok 0.5 30.0 "too slow"]' in line


def test_absent_fields_are_left_out() -> None:
    assert shown(refused_by=None, attempts=[], model=None) == "23:59:58.123 warning  breaker\n"


def test_line_without_time_or_level_is_shown() -> None:
    assert to_console(b'{"event":"log lines dropped","count":50}\n', is_coloured=False) == (
        b"          log lines dropped  count=50\n"
    )


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\x7f", "\x9b31m", "\u202egpj", "\u2028", "\udc80", "\0"])
@pytest.mark.parametrize("key", ["event", "reason", "level", "timestamp", "exception", "strange"])
def test_no_text_controls_a_terminal_or_resembles_another_line(key: str, text: str) -> None:
    line = shown({key: f"word {text} word"})
    assert line[:-1].replace("\n    ", "").isprintable()
    assert line.endswith("\n")


def test_name_of_a_field_is_escaped_too() -> None:
    assert shown({"a\x1b": 1, "b": {"c\x1b": 2}})[:-1].isprintable()


def test_text_of_a_provider_does_not_resemble_another_field() -> None:
    assert 'reason="x\\"  outcome=ok  a=\\"\\\\"' in shown(reason='x"  outcome=ok  a="\\')


def test_traceback_is_indented_so_that_it_cannot_pass_for_a_line() -> None:
    line = shown(exception=f"Traceback\n  File\n23:59:58.123 error    forged\r{AT}\n")
    first, *rest = line.splitlines()
    assert first == "23:59:58.123 warning  breaker"
    assert rest == ["    Traceback", "      File", "    23:59:58.123 error    forged", f"    {AT}"]


def test_long_values_are_cut_and_long_lists_too() -> None:
    line = shown(reason="x" * 10_000, all=list(range(100)))
    assert len(line) < 500
    assert "[0, 1, 2, 3, 4, 5, 6, 7, ...]" in line


def test_colour_is_for_terminals_and_ends_before_the_fields() -> None:
    assert shown(is_coloured=True, reason="x") == "\x1b[33m23:59:58.123 warning  breaker\x1b[0m  reason=x\n"
    assert "\x1b" not in shown(is_coloured=True, level="info")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(), inner, max_size=10),
    max_leaves=20,
)


@settings(max_examples=repeated(100))
@given(st.dictionaries(st.text() | st.sampled_from(["event", "attempts", "reason", "deployment"]), JSON))
def test_every_line_can_be_shown(fields: dict[str, Any]) -> None:
    shown_line = to_console(to_line(fields), is_coloured=False).decode()
    assert "\x1b" not in shown_line
    assert len(shown_line.split("  ")) >= 1


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "is_coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_console_is_coloured_on_a_terminal_unless_disabled(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, is_coloured: bool
) -> None:
    sink = BytesIO()
    fake = SimpleNamespace(buffer=sink, isatty=lambda: is_terminal)
    monkeypatch.setattr("llm_guard.log.writer.sys", SimpleNamespace(stdout=fake))
    monkeypatch.setenv("NO_COLOR", no_color)
    writer = configure_logging("console")
    structlog.get_logger("llm_guard.app").warning("a thing", x=1)
    writer.write(to_line({"event": "call", "level": "info"}))
    writer.close()
    structlog.reset_defaults()
    first, second = sink.getvalue().splitlines()
    assert (b"\x1b[33m" in first) == is_coloured
    assert b"x=1" in first
    assert second.endswith(b"info     call")
    with pytest.raises(json.JSONDecodeError):
        json.loads(first)
