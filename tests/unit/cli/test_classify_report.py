from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llm_guard.cli.classify_report import evidence_of, explanation, report, report_lines
from llm_guard.cli.main import main
from llm_guard.outcome import FailureKind

WALL = 1_800_000_000.0
FIELDS = ["id", "retriable", "category", "retry_after_s", "counts_against_breaker", "other_deployment_may_help"]
LIMITED = {
    "id": "a",
    "provider": "openai",
    "transport": "http",
    "status": 429,
    "headers": {"Retry-After": "7"},
    "body": '{"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"}}',
}


# reports


def test_report_has_the_documented_fields() -> None:
    assert list(report(LIMITED, WALL)) == FIELDS
    assert list(report(LIMITED, WALL).values()) == ["a", True, "rate_limit", 7.0, False, True]


@pytest.mark.parametrize("headers", [{"retry-after": "600"}, {"x-should-retry": "false"}])
def test_report_marks_non_repeatable_calls_as_not_retriable(headers: dict[str, str]) -> None:
    told = report({**LIMITED, "status": 503, "headers": headers, "body": ""}, WALL)
    assert (told["retriable"], told["other_deployment_may_help"]) == (False, True)


def test_success_is_unknown_and_all_its_flags_are_false() -> None:
    healthy = {"id": "n", "transport": "http", "status": 200, "body": '{"choices": []}'}
    assert list(report(healthy, WALL).values()) == ["n", False, "unknown", None, False, False]


@pytest.mark.parametrize(
    ("record", "category"),
    [
        ({"status": 503, "body": None}, "server_error"),
        ({"status": "503"}, "server_error"),
        ({"status": 429, "body": {"error": {"code": "insufficient_quota"}}}, "quota_exhausted"),
        ({"status": 429, "headers": None}, "rate_limit"),
        ({"transport": "stream", "status": 200, "stream_events": [{"error": "Overloaded"}]}, "overloaded"),
        ({"transport": "stream", "status": 200, "stream_events": None}, "server_error"),
        ({"transport": "network", "network_kind": "dns"}, "network"),
        ({"body": "Connection refused"}, "network"),
        ({"status": 400, "provider": "http://127.0.0.1:11434", "body": '{"error":"input too long"}'}, "context_length"),
        ({}, "network"),
    ],
)
def test_record_is_read_with_tolerance(record: dict[str, object], category: str) -> None:
    assert report(record, WALL)["category"] == category


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{bad", "Expecting property name"),
        ("[]", "not a JSON object"),
        ("1", "not a JSON object"),
        ('{"id": 4, "status": "soon"}', "status must be a number from 100 to 999"),
        ('{"id": 4, "status": true}', "status must be a number from 100 to 999"),
        ('{"id": 4, "status": 9}', "status must be a number from 100 to 999"),
        ('{"id": 4, "headers": []}', "headers must be an object"),
        ('{"id": 4, "transport": "pigeon"}', "transport must be http"),
        ('{"id": 4, "transport": "stream", "stream_events": 4}', "stream_events must be a list"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_unreadable_line_gives_a_line_with_an_error(line: str, reason: str) -> None:
    (answer,) = report_lines([line], WALL)
    told = json.loads(answer)
    assert reason in told["error"]
    assert told["id"] == (4 if '"id": 4' in line else None)


def test_every_line_but_a_blank_one_is_answered_in_order() -> None:
    lines = [json.dumps({**LIMITED, "id": number}) for number in range(3)]
    lines.insert(1, "  \n")
    lines.insert(2, "{bad")
    assert [json.loads(line)["id"] for line in report_lines(lines, WALL)] == [0, None, 1, 2]


# explanations


def explained(record: dict[str, object]) -> dict[str, str]:
    lines = explanation(evidence_of(record), WALL).splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


def test_explanation_states_meaning_action_and_reason() -> None:
    told = explained(LIMITED)
    assert told == {
        "meaning": "rate_limit: too many requests or tokens in a short window",
        "evidence": 'the phrase "rate limit" (HTTP 429, openai)',
        "message": '"Rate limit reached"',
        "retry here": "yes, after the requested wait",
        "fall back": "yes: the next deployment is tried",
        "wait": "7 s, as the provider requests",
        "breaker": "not counted",
        "affects": "this deployment",
        "kind": "rate_limit, as in logs, metrics and upstreams.X.errors",
    }


@pytest.mark.parametrize(
    ("record", "row", "text"),
    [
        ({"status": 503}, "retry here", "yes, with backoff"),
        ({"status": 503, "headers": {"x-should-retry": "false"}}, "retry here", "no: the provider forbids it"),
        ({"status": 429, "headers": {"retry-after": "600"}}, "retry here", "no: the wait is longer than 120 s"),
        ({"status": 401}, "retry here", "no: the same request would fail again"),
        ({"status": 401}, "affects", "the credential"),
        ({"status": 400}, "fall back", "no: it would fail there as well"),
        ({"status": 400, "body": '{"error":{"message":"prompt is too long"}}'}, "fall back", "only to another model"),
        ({"status": 503}, "breaker", "counted as a failure"),
        ({"status": 503}, "message", "none found"),
        ({"status": 503}, "wait", "none requested"),
    ],
)
def test_explanation_states_what_the_gateway_does(record: dict[str, object], row: str, text: str) -> None:
    assert explained(record)[row].startswith(text)


def test_every_kind_can_be_explained() -> None:
    from llm_guard.cli import classify_report

    assert set(classify_report._MEANING) == set(FailureKind)


# the command


def run(*arguments: str, stdin: str | bytes = "") -> tuple[int, str]:
    result = CliRunner().invoke(main, ["classify", *arguments], input=stdin)
    return result.exit_code, result.output


def test_command_prints_json_lines() -> None:
    code, output = run("--jsonl", stdin=json.dumps(LIMITED) + "\n{bad\n\n" + json.dumps(LIMITED))
    first, bad, last = [json.loads(line) for line in output.splitlines()]
    assert (code, first, last) == (0, report(LIMITED, WALL), report(LIMITED, WALL))
    assert bad["error"]


def test_command_survives_bytes_that_are_no_text() -> None:
    code, output = run("--jsonl", stdin=b'\xff\xfe\n{"id": 1, "status": 503, "body": "\xff"}\n')
    assert code == 0
    assert [json.loads(line)["id"] for line in output.splitlines()] == [None, 1]


def test_command_explains_one_error_from_its_options_or_from_standard_input() -> None:
    said = '{"error": {"code": "insufficient_quota", "message": "no money"}}'
    code, output = run("--status", "429", "--header", "Retry-After: 3", "--provider", "openai", "--body", said)
    assert code == 0
    assert "quota_exhausted: the account has no credit" in output
    assert run("--status", "429", "--provider", "openai", "--header", "retry-after:3", stdin=said) == (0, output)


def test_command_explains_a_broken_connection() -> None:
    code, output = run("--body", "ssl.SSLCertVerificationError: certificate has expired")
    assert code == 0
    assert "TLS is misconfigured" in output


def test_command_reports_when_there_is_no_error() -> None:
    assert run("--status", "200", "--body", '{"choices": []}') == (0, "no error: the response is valid\n")


@pytest.mark.parametrize("arguments", [("--status", "soon"), ("--status", "9"), ("--header", "x"), ("--header", ":x")])
def test_command_refuses_unreadable_input(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2
