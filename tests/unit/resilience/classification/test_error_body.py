from __future__ import annotations

import json

import pytest

from llm_guard.resilience.classification.error_body import MAX_BODY_BYTES, read_body
from llm_guard.resilience.classification.error_codes import plain_code
from llm_guard.resilience.classification.lenient_json import embedded, loads

INNER = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


def said(body: object) -> tuple[str, str, int | None]:
    """Returns the shape, the innermost message and the innermost status."""
    read = read_body(body if isinstance(body, str | bytes) else json.dumps(body))
    return read.shape, read.message, read.status


def codes(body: object) -> set[str]:
    read = read_body(body if isinstance(body, str | bytes) else json.dumps(body))
    return {code for layer in read.layers for code in layer.codes}


# shapes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "it failed", "type": "t", "code": None}}, "it failed"),
        ({"error": "it failed"}, "it failed"),
        ([{"error": {"message": "it failed"}}], "it failed"),
        ({"message": "it failed", "code": "3505"}, "it failed"),
        ({"detail": "it failed"}, "it failed"),
        ({"status": 402, "title": "Payment Required", "detail": "it failed"}, "it failed"),
        ({"detail": [{"loc": ["body"], "msg": "it failed", "input": "rate limit"}]}, "it failed"),
        ({"object": "error", "message": {"detail": [{"msg": "it failed"}]}}, "it failed"),
        ({"error": {"message": '{"error": {"message": "it failed"}}'}}, "it failed"),
        ({"error": '{"error": {"message": "it failed"}}'}, "it failed"),
        ({"error": {"message": "E - Error code: 429 - {'error': {'message': 'it failed'}}"}}, "it failed"),
        ({"error": {"message": 'litellm.Timeout: XException - {"error": {"message": "it failed"}}'}}, "it failed"),
        ({"type": "error", "error": {"type": "api_error", "message": "it failed"}}, "it failed"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": "it failed"}}}, "it failed"),
        ({"errors": [{"code": 7003, "message": "it failed"}], "success": False}, "it failed"),
        ({"base_resp": {"status_code": 1002, "status_msg": "it failed"}}, "it failed"),
        ('\n\n  {"error": {"message": "it failed"}}', "it failed"),
        ('\ufeff{"error": {"message": "it failed"}}', "it failed"),
        ('{"error": {"message": "it fai', "it fai"),
        ('{"error": {"message": "it failed", "para', "it failed"),
        ('{"error": {"message": "it failed\\', "it failed"),
        ('{"error": {"message": "it failed"}, "input": [1, {"a": "b', "it failed"),
    ],
)
def test_sentence_is_found_in_every_envelope(body: object, message: str) -> None:
    shape, found, _ = said(body)
    assert (shape, found) == ("json", message)


def test_plain_text_html_and_nothing_are_distinguished() -> None:
    assert said("upstream connect error") == ("text", "upstream connect error", None)
    assert said("<html><head><title>502 Bad &amp; Gateway</title></head></html>") == ("html", "502 Bad & Gateway", 502)
    assert said(b" \n ") == ("empty", "", None)
    assert said("error code: 1015")[2] is None
    assert codes("error code: 1015") == {"cloudflare1015"}


def test_innermost_status_is_the_one_that_counts() -> None:
    assert said({"error": {"message": json.dumps(INNER), "code": 500}})[2] == 503
    assert said({"message": "x", "originalStatusCode": 429, "code": 424})[2] == 429
    assert said({"error": {"code": "429", "message": "x"}})[2] == 429
    assert said({"error": {"message": "[503] The request queue is full."}})[2] == 503


@pytest.mark.parametrize("code", [200, 42, 4290, "42", "4290", True, 4.29, None, [], {}, "429a"])
def test_other_status_is_no_error(code: object) -> None:
    assert said({"error": {"code": code, "message": "500 tokens of 9"}})[2] is None


# codes, echoes and hints


@pytest.mark.parametrize(
    "spelling",
    [
        "rate_limit_error", "RateLimitError", "rate-limit", "RATE_LIMIT", "Rate Limit", "litellm.RateLimitError",
        "RateLimitException:http://internal.amazon.com/coral/", "com.amazon.coral.service#RateLimitException",
    ],
)  # fmt: skip
def test_spelling_of_a_code_does_not_matter(spelling: str) -> None:
    assert plain_code(spelling) == "ratelimit"


def test_codes_are_gathered_from_where_providers_put_them() -> None:
    assert "enforcedspendlimitreached" in codes({"error": {"details": {"error_code": "enforced_spend_limit_reached"}}})
    assert "responsibleaipolicyviolation" in codes({"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}}})
    assert "apikeyinvalid" in codes({"error": {"details": [{"reason": "API_KEY_INVALID"}]}})
    violations = [{"quotaId": "GenerateRequestsPerDayPerProject"}, {"quotaId": "PerMinutePerUser"}]
    assert {"quotaperday", "quotaperminute"} <= codes({"error": {"details": [{"violations": violations}]}})
    assert "throttling" in codes("An error occurred (ThrottlingException) when calling the InvokeModel operation")
    assert "enginedead" in codes({"error": {"message": "EngineDeadError: it died"}})


@pytest.mark.parametrize("field", ["input", "failed_generation", "param", "request", "prompt", "model", "messages"])
def test_echo_of_the_request_is_never_read(field: str) -> None:
    echo = {"error": {"code": "insufficient_quota", "type": "overloaded_error", "message": "429 rate limit"}}
    for planted in (json.dumps(echo), [json.dumps(echo)]):
        read = read_body(json.dumps({"error": {"message": "bad", field: planted}}))
        assert [layer.message for layer in read.layers] == ["bad"]
        assert read.layers[0].codes == frozenset()


def test_waits_and_headers_of_a_body_are_preserved() -> None:
    error = {"metadata": {"headers": {"Retry-After": 5}}, "details": [{"retryDelay": "3s"}]}
    read = read_body(json.dumps({"error": error}))
    assert (read.waits, read.headers) == (["3s"], {"retry-after": "5"})


# bounds


def test_body_is_read_up_to_its_bound() -> None:
    beyond = b'{"error": {"x": "' + b"x" * MAX_BODY_BYTES + b'", "message": "late"}}'
    assert said(beyond) == ("json", "", None)


@pytest.mark.parametrize("text", ["{" * 9000, "[" * 9000, '{"a":' * 3000, '"' * 9000, "'" * 9000, "{'a': " * 1500])
def test_nesting_has_a_bound(text: str) -> None:
    assert read_body(text).shape in ("json", "text")


# lenient JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': None, 'b': (True, False), 'c': \"it's\", 'd': 'say \"x\"', 'e': 'it\\'s'}",
         {"a": None, "b": [True, False], "c": "it's", "d": 'say "x"', "e": "it's"}),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": {"b": "c"}, "d": 12', {"a": {"b": "c"}}),
        ('{"a": "b"} trailing', {"a": "b"}),
        ('{"a": "b\\u12', {"a": "b"}),
    ],
)  # fmt: skip
def test_readable_parts_are_used(text: str, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize("text", ["", "x", "}", "]", ":", "nul"])
def test_text_that_is_no_json_is_marked_as_such(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        loads(text)


def test_only_an_exception_is_taken_to_quote_an_answer() -> None:
    assert embedded('Error code: 429 - {"error": 1}') == ("Error code: 429 - ", {"error": 1})
    assert embedded('Invalid value {"error": 1}') is None
    assert embedded('{"error": 1}') is None
    assert embedded("nothing") is None
