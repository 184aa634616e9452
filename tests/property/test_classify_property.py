from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from llm_guard.cli.classify_report import evidence_of
from llm_guard.outcome import FailureKind
from llm_guard.resilience.classification.classify import (
    Evidence,
    classify,
    classify_answer,
    classify_event,
    classify_network,
)
from llm_guard.resilience.classification.phrase_match import Phrase, words_of
from llm_guard.resilience.classification.rules import user_rule

WALL = 1_800_000_000.0
DATA = Path(__file__).parent.parent / "data"
LINES = [line for name in ("corpus", "errors") for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def is_object(body: str) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


OBJECTS = [
    record
    for record in map(json.loads, LINES)
    if record["transport"] == "http" and record["status"] >= 400 and is_object(record["body"])
]

NAMES = [
    "error", "message", "code", "type", "status", "detail", "details", "metadata", "raw", "headers", "choices",
    "param", "finish_reason", "response", "reason", "retryDelay", "violations", "quotaId", "base_resp", "data",
    "object", "n_ctx", "estimated_time", "innererror", "promptFeedback", "candidates", "delta", "stop_reason",
    "limit_source", "errors",
]  # fmt: skip
WORDS = [
    "rate limit", "try again in 5s", "overloaded", "Error code: 429 - {", "{'error': ", '{"error":', "[503] x",
    "余额不足", "limit: 0", "<html>", "error code: 1015", "\\", "'", '"', "data: ", "<EOF>", ":message-type=exception",
    "\ud800", "\x00",
]  # fmt: skip
HEADERS = [
    "retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-remaining", "date", "x-should-retry", "server",
    "anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset", "x-amzn-errortype", "ratelimit",
]  # fmt: skip

texts = st.one_of(st.text(max_size=30), st.sampled_from(WORDS), st.lists(st.sampled_from(WORDS)).map("".join))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(NAMES), texts), inner, max_size=6)
    ),
    max_leaves=20,
)
bodies = st.one_of(st.binary(max_size=200), texts.map(lambda t: t.encode("utf-8", "replace")),
                   values.map(lambda value: json.dumps(value).encode()))  # fmt: skip
header_values = st.one_of(texts, st.floats().map(str), st.integers().map(str))
all_headers = st.dictionaries(st.one_of(st.sampled_from(HEADERS), texts), header_values, max_size=5)


# totality


@given(
    st.integers(100, 999),
    all_headers,
    bodies,
    st.floats(allow_nan=False),
    st.sampled_from(["", "openai", "tgi", "lmstudio"]),
)
@example(500, {"date": "Mon, 01 Jan 0001 00:00:00 GMT", "retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"}, b"", 0.0, "")
@example(429, {}, b'{"error": ' * 5000, 0.0, "")
@example(429, {}, b'{"code": 1' + b"0" * 5000 + b"}", 0.0, "")
def test_no_evidence_raises_and_every_wait_is_usable(
    status: int, headers: dict[str, str], body: bytes, wall: float, family: str
) -> None:
    seen = [
        classify(Evidence(status, headers, body, family=family), wall),
        classify_answer(status, headers, body, wall, family),
        classify_event(body, wall, family),
        classify_network(body.decode("utf-8", "replace"), body.decode("utf-8", "replace")),
    ]
    for verdict in seen:
        if verdict is not None:
            assert verdict.retry_after_s is None or verdict.retry_after_s > 0
            assert verdict.why
            assert 100 <= verdict.status <= 999


@given(st.lists(st.one_of(texts, values.map(lambda value: f"data: {json.dumps(value)}")), max_size=5), texts)
def test_no_stream_raises(events: list[str], family: str) -> None:
    classify(Evidence(200, events=events, family=family), WALL)


@given(bodies, all_headers)
def test_same_evidence_has_the_same_verdict(body: bytes, headers: dict[str, str]) -> None:
    assert classify_answer(429, headers, body, WALL) == classify_answer(429, headers, body, WALL)


# order and planting


def shuffled(value: Any, dice: random.Random) -> Any:
    if isinstance(value, dict):
        names = list(value)
        dice.shuffle(names)
        return {name: shuffled(value[name], dice) for name in names}
    return [shuffled(item, dice) for item in value] if isinstance(value, list) else value


@given(st.sampled_from(OBJECTS), st.randoms(use_true_random=False))
def test_order_of_keys_changes_nothing(record: dict[str, Any], dice: random.Random) -> None:
    evidence = evidence_of(record)
    body = json.dumps(shuffled(json.loads(record["body"]), dice))
    assert classify(evidence_of({**record, "body": body}), WALL) == classify(evidence, WALL)


@given(values, st.randoms(use_true_random=False))
def test_order_of_keys_changes_nothing_in_any_json(value: Any, dice: random.Random) -> None:
    assume(isinstance(value, dict))
    one, other = json.dumps(value).encode(), json.dumps(shuffled(value, dice)).encode()
    assume(len(one) < 8000)
    assert classify_answer(429, {}, one, WALL) == classify_answer(429, {}, other, WALL)


PLANTED = [
    "req_429_503_529", "429", "rate limit reached, please try again in 20s", "The model is overloaded",
    "insufficient_quota", "401 Unauthorized",
    '{"error": {"code": 529, "type": "overloaded_error", "message": "Overloaded"}}', "timeout", "invalid_api_key",
    "maximum context length exceeded", "out of memory", "content_policy_violation", "403 Forbidden",
]  # fmt: skip
ECHOES = [
    "id",
    "request_id",
    "input",
    "prompt",
    "failed_generation",
    "messages",
    "user_id",
    "model",
    "trace_id",
    "docs",
]


@given(st.sampled_from(OBJECTS), st.sampled_from(ECHOES), st.sampled_from(PLANTED), st.booleans())
def test_texts_planted_in_ids_and_echoes_change_nothing(
    record: dict[str, Any], name: str, planted: str, is_nested: bool
) -> None:
    value = json.loads(record["body"])
    holder = value["error"] if is_nested and isinstance(value.get("error"), dict) else value
    assume(name not in holder)
    before = classify(evidence_of(record), WALL)
    holder[name] = [{"content": planted}] if name == "messages" else planted
    after = classify(evidence_of({**record, "body": json.dumps(value)}), WALL)
    assert after == before


@given(st.sampled_from([400, 422]), st.sampled_from(PLANTED), st.sampled_from(["'{}'", '"{}"', "`{}`"]))
def test_prompt_that_a_bad_request_quotes_changes_nothing(status: int, planted: str, quotes: str) -> None:
    assume(" " in planted and '"' not in planted)
    message = f"Invalid value for messages[0].content: {quotes.format(planted)} is not of type array"
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None}}).encode()
    assert classify_answer(status, {}, body, WALL).kind is FailureKind.INVALID_REQUEST


# phrases and rules


@given(st.lists(st.sampled_from("ab"), max_size=12), st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=6))
def test_phrase_match_equals_a_plain_search(said: list[str], pattern: list[str]) -> None:
    words = tuple(said)

    def finds(rest: tuple[str, ...], left: tuple[str, ...]) -> bool:
        if not left:
            return not rest
        if left[0] == "*":
            return any(finds(rest[start:], left[1:]) for start in range(len(rest) + 1))
        return bool(rest) and rest[0] == left[0] and finds(rest[1:], left[1:])

    phrase = " ".join(pattern)
    assume(any(word != "*" for word in pattern))
    assert Phrase(phrase).matches(words_of(" ".join(words))) is finds(words, tuple(pattern))


@given(texts, texts)
def test_no_rule_of_a_config_makes_the_classifier_raise(pattern: str, message: str) -> None:
    try:
        rule = user_rule(FailureKind.OVERLOADED, message=pattern)
    except ValueError:
        return
    body = json.dumps({"error": {"message": message}}).encode()
    classify_answer(400, {}, body, WALL, rules=[rule])
