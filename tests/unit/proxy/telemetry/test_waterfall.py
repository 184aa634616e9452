"""The terminal view of a call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.proxy.telemetry.access_log import AttemptLine, CallLine, SkippedLine
from llm_guard.proxy.telemetry.waterfall import PLAIN, UNICODE, table, took, waterfall


def attempt(start: float, length: float, *, label: str = "a/x", outcome: str = "ok", **facts: Any) -> AttemptLine:
    return AttemptLine(label, outcome, facts.pop("waited_s", 0.0), start, length, **facts)


def call(*attempts: AttemptLine, duration_s: float = 4.0, **facts: Any) -> CallLine:
    usual = {
        "request_id": "lg-1", "method": "POST", "path": "/v1/chat/completions", "model": "gpt", "route": "gpt",
        "outcome": "ok", "status": 200, "stream": False, "timestamp": "2026-01-31T23:59:58.123456Z",
        "overhead_s": 0.0002,
    }  # fmt: skip
    return CallLine(duration_s=duration_s, attempts=list(attempts), **{**usual, **facts})


def drawn(*attempts: AttemptLine, **facts: Any) -> list[str]:
    """Returns the bars, forty cells wide."""
    one = call(*attempts, **facts)
    lines = waterfall(one, PLAIN, len("1. a/x  ok  ") + 40 + len(" 999 ms")).splitlines()
    return [line[len("1. a/x  ok  ") :] for line in lines if line[:3] in ("1. ", "2. ", "3. ")]


def test_bars_are_as_long_as_their_durations() -> None:
    first, second = drawn(attempt(0.0, 1.0), attempt(2.0, 2.0, waited_s=1.0))
    assert first == f"{'=' * 10}{' ' * 30} 1 s"
    assert second == f"{' ' * 10}{'.' * 10}{'=' * 20} 2 s"


def test_hedge_is_drawn_next_to_the_first() -> None:
    first, second = drawn(attempt(0.0, 4.0), attempt(1.0, 2.0, hedge=True))
    assert first == f"{'=' * 40} 4 s"
    assert second == f"{' ' * 10}{'=' * 20}{' ' * 10} 2 s"


def test_stream_is_drawn_in_two_parts() -> None:
    assert drawn(attempt(0.0, 4.0, answered_s=1.0)) == [f"{'=' * 10}{'#' * 30} 4 s"]


@pytest.mark.parametrize(("start", "column"), [(0.0, 0), (2.0, 20), (4.0, 39)])
def test_attempt_that_is_too_short_to_be_seen_is_marked(start: float, column: int) -> None:
    (line,) = drawn(attempt(start, 0.0001))
    assert line == f"{' ' * column}|{' ' * (39 - column)} 100 us"


def test_call_that_took_no_time_at_all_is_drawn() -> None:
    assert drawn(attempt(0.0, 0.0), duration_s=0.0) == [f"|{' ' * 39} 0 us"]


def test_each_attempt_has_its_reason_and_decision() -> None:
    tried = attempt(
        0.0, 1.0, outcome="timeout", waited_s=0.5, waited_for="queue", breaker="half_open", hedge=True,
        resume_mode="prefill", reason="too slow", next_step="give up: deadline", budget_left=7.5,
    )  # fmt: skip
    text = waterfall(call(tried), PLAIN, 100)
    assert (
        "   hedge; resumes a broken stream (prefill); waited 500 ms (queue); its breaker was half_open;"
        " too slow\n   -> give up: deadline; 7.5 left in the retry budget\n"
    ) in text


def test_head_states_the_outcome() -> None:
    failed = call(outcome="timeout", status=504, route="g*", client="app", reason="it took too long",
                  gave_up="deadline", ttft_s=0.5)  # fmt: skip
    assert waterfall(failed, PLAIN, 100) == (
        "lg-1  2026-01-31 23:59:58.123 UTC  POST /v1/chat/completions\n"
        "gpt via route g*: timeout, status 504 after 4 s, first token after 500 ms, gateway overhead"
        " 200 us\n"
        "client       app\n"
        "reason       it took too long\n"
        "stopped      deadline"
    )


def test_refusal_states_its_cause_and_skipped_deployments() -> None:
    refused = call(outcome="refused", status=503, refused_by="breaker", reason="failing",
                   skipped=[SkippedLine("a/x", "breaker open")])  # fmt: skip
    assert waterfall(refused, PLAIN, 100).splitlines()[-2:] == [
        "reason       by breaker: failing",
        "skipped: a/x: breaker open",
    ]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"cache": "hit", "age_s": 12.0}, ["cache        hit, 12 s old"]),
        ({"cache": "stale_if_error", "age_s": 90.0},
         ["cache        stale, because the provider failed, 90 s old"]),
        ({"cache": "miss"}, ["cache        miss"]),
        ({"fallback_response": "static", "dead_letter_id": "ab12"},
         ["fallback     static response", "dead letter  ab12, can be requeued"]),
        ({"deferred_id": "cd34"}, ["deferred     cd34, the id under which the client fetches the response"]),
        ({"deferred_id": "cd34", "background_purpose": "deferred"},
         ["deferred     cd34, the id under which the client fetches the response",
          "origin       execution of a deferred call"]),
        ({"injected_faults": ["chaos-1: hang on a/x", "chaos-2: cut on b/x"]},
         ["injected     chaos-1: hang on a/x; chaos-2: cut on b/x, by an operator (/admin/chaos)"]),
        ({"cache": "of a newer gateway", "background_purpose": "another"},
         ["cache        of a newer gateway", "origin       another"]),
    ],
)  # fmt: skip
def test_facts_of_a_call_outside_its_attempts_are_shown(facts: dict[str, Any], said: list[str]) -> None:
    assert waterfall(call(**facts), PLAIN, 100).splitlines()[2:] == said


def test_running_call_shows_its_age() -> None:
    assert "gpt: running for 4 s" in waterfall(call(outcome="running", status=None), PLAIN, 100)


HOSTILE = "a\x1b[2J\nb\u202e\x9b"


def test_no_text_of_a_provider_controls_a_terminal() -> None:
    hostile = text_everywhere(HOSTILE)
    for text in (waterfall(hostile, UNICODE, 100), table([hostile])):
        assert all(line.isprintable() for line in text.split("\n"))
    harmless = waterfall(text_everywhere("w"), UNICODE, 100)
    assert len(waterfall(hostile, UNICODE, 100).split("\n")) == len(harmless.split("\n"))


def text_everywhere(text: str) -> CallLine:
    tried = attempt(0.0, 1.0, label=text, outcome=text, reason=text, next_step=text)
    beyond: dict[str, Any] = dict.fromkeys(
        ("cache", "fallback_response", "dead_letter_id", "deferred_id", "background_purpose"), text
    )
    return call(tried, model=text, path=text, reason=text, skipped=[SkippedLine(text, text)], **beyond)


def test_table_has_a_row_for_each_call() -> None:
    lines = table([call(outcome="timeout", status=504, reason="x" * 100), call(model=None, status=None)]).splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["23:59:58", "lg-1", "gpt", "timeout", "504", "4"],
        ["23:59:58", "lg-1", "-", "ok", "-", "4"],
    ]
    assert lines[1].endswith("x...")
    assert table([]) == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 us"), (0.0004, "400 us"), (0.001, "1 ms"), (0.0483, "48.3 ms"), (0.9994, "999 ms"), (0.9996, "1 s"),
     (1.5, "1.5 s"), (99.94, "99.9 s"), (99.96, "100 s"), (12345.6, "12346 s")],
)  # fmt: skip
def test_times_are_written_for_people(seconds: float, said: str) -> None:
    assert took(seconds) == said


TIMES = st.floats(0, 1000)
ATTEMPTS = st.builds(
    attempt,
    TIMES,
    TIMES,
    waited_s=TIMES,
    answered_s=TIMES | st.just(None).map(lambda _: 0.0),
    label=st.text(max_size=60),
)


@given(st.lists(ATTEMPTS, max_size=5), TIMES, st.integers(0, 300))
def test_every_call_can_be_drawn(attempts: list[AttemptLine], duration_s: float, width: int) -> None:
    for line in waterfall(call(*attempts, duration_s=duration_s), PLAIN, width).split("\n"):
        assert line.isprintable()
        assert len(line) <= max(width, 10) + 120
