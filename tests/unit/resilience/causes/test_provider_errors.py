from __future__ import annotations

import gzip
from typing import Any

import pytest

from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.resilience.causes.provider_errors import KEPT, ErrorLog, ProviderError, latest_of, provider_error
from llm_guard.resilience.causes.refusal_series import SERIES_S, RefusalSeries

BODY = b'{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}'


def error(body: bytes = BODY, at: float = 1.0, call: str = "c-1", **headers: str) -> ProviderError:
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    failure = Failure(FailureKind.AUTH, "answered 401", answer=UpstreamErrorResponse(401, "", pairs, body))
    found = provider_error(failure, 401, call, at)
    assert found is not None
    return found


def test_code_message_and_request_id_are_read_from_the_response() -> None:
    found = error(CF_Ray="7-FRA", X_Request_Id="req-7")
    assert (found.status, found.code, found.request_id) == (401, "invalid_api_key", "req-7")
    assert found.message == "Incorrect API key provided"


def test_compressed_body_is_read_and_one_that_cannot_be_is_not() -> None:
    assert error(gzip.compress(BODY), Content_Encoding="gzip").code == "invalid_api_key"
    assert error(b"\x00\x01", Content_Encoding="gzip").message == ""
    assert error(BODY, Content_Encoding="br").code == ""


def test_message_is_one_bounded_line() -> None:
    found = error(b'{"error":{"message":"a\\n\\u001bb %s"}}' % (b"x" * 300))
    assert found.message.startswith("a b x")
    assert len(found.message) == 120


@pytest.mark.parametrize("text", ["please send \\u00e4 poem", "x" * 200, "<b>"])
def test_code_or_request_id_that_may_be_text_is_not_shown(text: str) -> None:
    assert error(b'{"error":{"code":"%s"}}' % text.encode()).code == ""
    assert error(X_Request_Id=text).request_id == ""


def test_large_body_is_kept_in_part_and_still_read() -> None:
    found = error(b'{"error":{"code":"spent","message":"%s"}}' % (b"x" * 100_000))
    assert len(found.body) == 2048
    assert found.code == "spent"


@pytest.mark.parametrize(
    ("kind", "is_kept"),
    [
        (FailureKind.SERVER_ERROR, True), (FailureKind.RATE_LIMIT, True), (FailureKind.MISROUTED, True),
        (FailureKind.INVALID_REQUEST, False), (FailureKind.CONTEXT_LENGTH, False), (FailureKind.EGRESS, False),
        (FailureKind.CLIENT_CANCELLED, False), (FailureKind.OWN_POOL, False),
    ],
)  # fmt: skip
def test_only_failures_that_say_something_about_the_provider_are_kept(kind: FailureKind, is_kept: bool) -> None:
    assert (provider_error(Failure(kind, ""), None, "c", 1.0) is not None) == is_kept


def test_log_keeps_the_last_three_and_several_are_merged() -> None:
    logs: list[Any] = [ErrorLog(), ErrorLog()]
    for number in range(10):
        logs[number % 2].note(error(at=float(number), call=f"c-{number}"))
    assert [found.at for found in logs[0].latest()] == [8.0, 6.0, 4.0]
    assert [found.call_id for found in latest_of(logs)] == ["c-9", "c-8", "c-7"]
    assert KEPT == 3


def test_series_of_refusals_ends_with_a_pause() -> None:
    series = RefusalSeries()
    assert series.count(0.0) == 0
    for at in (1.0, 30.0, 80.0):
        series.note(at)
    assert series.count(100.0) == 3
    assert series.count(80.0 + SERIES_S) == 0
    series.note(80.0 + SERIES_S)
    assert series.count(80.0 + SERIES_S) == 1
