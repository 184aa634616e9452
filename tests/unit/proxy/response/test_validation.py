"""Inspection of unary responses: which are complete, which have the endpoint's shape, and which report an error."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from llm_guard.dialects.anthropic import ANSWERS as ANTHROPIC
from llm_guard.dialects.openai import ANSWERS as OPENAI
from llm_guard.proxy.response.validation import Fields, ResponseValidator

CHAT = ResponseValidator(OPENAI["POST", "/v1/chat/completions"])
EMBEDDINGS = ResponseValidator(OPENAI["POST", "/v1/embeddings"])
MODERATIONS = ResponseValidator(OPENAI["POST", "/v1/moderations"])
RESPONSES = ResponseValidator(OPENAI["POST", "/v1/responses"])
TEXTS = ResponseValidator(OPENAI["POST", "/v1/completions"])
IMAGES = ResponseValidator(OPENAI["POST", "/v1/images/generations"])
JOB = ResponseValidator(OPENAI["POST", "/v1/fine_tuning/jobs"])
RERANK = ResponseValidator(OPENAI["POST", "/v1/rerank"])
MESSAGE = ResponseValidator(ANTHROPIC["POST", "/v1/messages"])
CHOICES = b'"choices":[{"message":{"content":"hi"}}]'


def found(reader: ResponseValidator, body: bytes, inputs: int = 0) -> str:
    fields = reader.read(body, inputs)
    if isinstance(fields, Fields):
        return "error" if reader.is_error(fields) else "good"
    return fields


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{%b}" % CHOICES, "good"),
        (b'{%b,"error":null}' % CHOICES, "good"),
        (b'{%b,"error":{"code":null,"message":null}}' % CHOICES, "good"),
        (b'{%b,"usage":{"a":1e400,"b":%b}}' % (CHOICES, b"9" * 5000), "good"),
        (b'{%b,"x":"\\ud83d"}' % CHOICES, "good"),
        (b'{%b,"x":"\xff"}' % CHOICES, "good"),
        (b'\xef\xbb\xbf{%b,"x":NaN}' % CHOICES, "good"),
        (b'{%b,"error":{"message":"no"}}' % CHOICES, "error"),
        (b'{"choices":[{"message":{},"finish_reason":"error"}]}', "error"),
        (b'{"choices":[{"message":{},"finish_reason":"Network-Error"}]}', "error"),
        (b'{"choices":[{"message":{},"finish_reason":"stop","native_finish_reason":"network_error"}]}', "error"),
        (
            b'{"choices":[{"message":{"role":"assistant"},"finish_reason":"stop","native_finish_reason":"STOP"}]}',
            "good",
        ),
        (b'{"choices":[{"message":{},"error":{"code":502,"message":"no"}}]}', "error"),
        (b'{"choices":[{"message":{"role":"assistant"},"error":null}]}', "good"),
        (b'{"choices":[{"message":{"role":"assistant"},"finish_reason":"length"}]}', "good"),
        (b'{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[]}}]}', "good"),
        (b'{"choices":[{"message":{"content":""}}]}', "good"),
        (b'{"choices":[{"message":{"content":null,"reasoning_content":"so"}}]}', "good"),
        (b'{"choices":[{"message":{"refusal":"no"}}]}', "good"),
        (b'{"choices":[{"message":{}}]}', "shape"),
        (b'{"choices":[{"message":{"content":null}}]}', "shape"),
        (b'{"choices":[{"message":{"role":"assistant"}},{"message":{}}]}', "shape"),
        (b'{"choices":[]}', "shape"),
        (b'{"choices":null}', "shape"),
        (b'{"choices":[null]}', "shape"),
        (b'{"choices":[{"message":null}]}', "shape"),
        (b'{"choices":[{}]}', "shape"),
        (b"{}", "shape"),
        (b"[]", "shape"),
        (b"null", "shape"),
        (b'"text"', "shape"),
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"{%b" % CHOICES, "cut"),
        (b'{"choices":null,"x', "cut"),
        (b'{%b,"x":"\\ud83d' % CHOICES, "cut"),
        (b"{%b}x" % CHOICES, "text"),
        (b"upstream connect error", "text"),
        (b"<html>", "text"),
    ],
)
def test_chat_completion(body: bytes, expected: str) -> None:
    assert found(CHAT, body) == expected


@pytest.mark.parametrize("at", range(1, 40))
def test_answer_cut_at_any_byte_is_cut(at: int) -> None:
    body = b'{"choices":[{"message":{"a":[1.5,true]}}]}'
    assert found(CHAT, body[:at]) == "cut"


@pytest.mark.parametrize(
    ("reader", "body", "expected"),
    [
        (EMBEDDINGS, b'{"data":[{"embedding":[1]},{"embedding":"AAAA"}]}', "good"),
        (EMBEDDINGS, b'{"data":[{"embedding":[1]},{"embedding":[]}]}', "shape"),
        (EMBEDDINGS, b'{"data":[{"embedding":null}]}', "shape"),
        (EMBEDDINGS, b'{"data":[{"embedding":{"a":1}}]}', "shape"),
        (EMBEDDINGS, b'{"data":[{"embedding":5}]}', "shape"),
        (IMAGES, b'{"data":[{"b64_json":null,"url":"u"}]}', "good"),
        (IMAGES, b'{"data":[{"b64_json":null,"url":null}]}', "shape"),
        (MESSAGE, b'{"role":"assistant","content":[]}', "good"),
        (MESSAGE, b'{"role":"assistant","content":null}', "shape"),
        (MESSAGE, b'{"role":"assistant","content":[{"text":"no type"}]}', "shape"),
        (JOB, b'{"id":"j","error":{"message":"failed"}}', "good"),
        (JOB, b'{"id":"j","object":"error"}', "error"),
        (ResponseValidator(None), b'{"object":"video","error":{"message":"failed"}}', "good"),
        (ResponseValidator(None), b'{"error":{"message":"failed"}}', "error"),
        (ResponseValidator(None), b'{"error":{"message":null}}', "good"),
        (ResponseValidator(None), b'{"type":"error"}', "error"),
        (
            ResponseValidator(None),
            b'{"type":"external_key_validation","status":"failure","error":"KMS is down"}',
            "good",
        ),
        (ResponseValidator(None), b'{"type":"deployment_run","error":{"type":"environment_archived_error"}}', "good"),
        (ResponseValidator(None), b'{"type":"invalid_request_error","error":"no such model"}', "error"),
        (ResponseValidator(None), b'{"type":"RateLimited","error":{"message":"slow down"}}', "error"),
        (ResponseValidator(None), b'{"type":"backend_out_of_capacity","error":"later"}', "error"),
        (ResponseValidator(None), b'{"type":"urn:problem-details:x","error":"later"}', "error"),
        (ResponseValidator(None), b'{"type":null,"error":"model not loaded"}', "error"),
        (CHAT, b'{"type":"chat",%b,"error":"model not loaded"}' % CHOICES, "error"),
    ],
)
def test_other_endpoints(reader: ResponseValidator, body: bytes, expected: str) -> None:
    assert found(reader, body) == expected


def recorded_errors() -> list[dict[str, object]]:
    """Returns every recorded error that is a JSON object with a member `error`, regardless of its status."""
    folder = Path(__file__).parents[3] / "data"
    lines = [line for name in ("corpus.jsonl", "errors.jsonl") for line in (folder / name).read_text().splitlines()]
    found: list[dict[str, object]] = []
    for record in map(json.loads, lines):
        with suppress(ValueError, TypeError):
            body = json.loads(record.get("body"))
            if isinstance(body, dict) and body.get("error") and "id" not in body:
                found.append(body)
    return found


@pytest.mark.parametrize("reader", [ResponseValidator(None), JOB, CHAT])
def test_recorded_errors_are_errors_at_any_endpoint(reader: ResponseValidator) -> None:
    bodies = recorded_errors()
    assert len(bodies) > 100
    for body in bodies:
        assert found(reader, json.dumps(body).encode()) in ("error", "shape"), body
        assert found(reader, json.dumps(body | {"type": "server_error"}).encode()) in ("error", "shape"), body


def vectors(*indexes: object) -> bytes:
    """Returns embeddings with these indexes; `...` stands for an absent one."""
    items = [{"embedding": [0.5]} | ({} if index is ... else {"index": index}) for index in indexes]
    return json.dumps({"data": items}).encode()


@pytest.mark.parametrize(
    ("indexes", "inputs", "expected"),
    [
        ([0, 1, 2], 3, "good"),
        ([2, 0, 1], 3, "good"),
        ([0, 1, 2], 0, "good"),  # the number of inputs is unknown
        ([0, 0, 0], 3, "good"),  # a server that does not number its vectors
        ([..., ..., ...], 3, "good"),
        ([..., 1, 2], 3, "good"),  # Gemini omits an index of 0
        ([None, None], 2, "good"),
        ([1], 1, "good"),  # the only input
        ([1], 0, "shape"),
        ([-1], 1, "shape"),
        ([0, 1], 3, "shape"),
        ([0, 1, 2, 3], 3, "shape"),
        ([0, 1, 1], 3, "shape"),
        ([0, 2, 3], 3, "shape"),
        ([1, 2, 3], 3, "shape"),
        ([0, 1, 1], 0, "shape"),
        ([..., 1, ...], 3, "shape"),
        ([0, "1"], 2, "shape"),
        ([0, -1], 2, "shape"),
    ],
)
def test_each_input_has_one_embedding(indexes: list[object], inputs: int, expected: str) -> None:
    assert found(EMBEDDINGS, vectors(*indexes), inputs) == expected
    odd = vectors(*indexes)[:-1] + b',"x":1e400}'
    assert found(EMBEDDINGS, odd, inputs) == expected


@pytest.mark.parametrize("vector", [b"[0.5]", b"[-1]", b"[ 1e-3]", b'"AACAPw=="', b"[[0.5],[1]]", b"[NaN,1]"])
def test_vector_is_a_list_of_numbers_or_base64(vector: bytes) -> None:
    assert found(EMBEDDINGS, b'{"data":[{"embedding":%b}]}' % vector, 1) == "good"


@pytest.mark.parametrize("vector", [b"[]", b'""', b"{}", b"null", b"[null]", b"[{}]", b'["a"]', b"1", b"true"])
def test_anything_else_is_no_vector(vector: bytes) -> None:
    assert found(EMBEDDINGS, b'{"data":[{"embedding":%b}]}' % vector, 1) == "shape"


def test_each_input_has_a_verdict_and_each_prompt_a_text() -> None:
    verdict, text = b'{"flagged":false}', b'{"text":""}'
    for inputs, expected in [(0, "good"), (1, "shape"), (2, "good"), (3, "shape")]:
        assert found(MODERATIONS, b'{"results":[%b,%b]}' % (verdict, verdict), inputs) == expected
    for inputs, expected in [(0, "good"), (1, "good"), (2, "good"), (3, "shape")]:
        assert found(TEXTS, b'{"choices":[%b,%b]}' % (text, text), inputs) == expected
    assert found(MODERATIONS, b'{"results":[{}]}') == "shape"
    assert found(MODERATIONS, b'{"results":[{"categories":{}}]}') == "shape"
    assert found(MODERATIONS, b'{"results":[{"category_scores":{"hate":0.1}}]}') == "good"


@pytest.mark.parametrize(
    ("reader", "item", "expected"),
    [
        (MESSAGE, b'{"type":"text","text":""}', "good"),
        (MESSAGE, b'{"type":"tool_use","id":"a","name":"f","input":{}}', "good"),
        (MESSAGE, b'{"type":"redacted_thinking","data":"x"}', "good"),
        (MESSAGE, b'{"type":"text"}', "shape"),
        (MESSAGE, b'{"type":"text","text":null}', "shape"),
        (MESSAGE, b'{"type":"tool_use"}', "shape"),
        (MESSAGE, b"{}", "shape"),
        (RESPONSES, b'{"type":"message","content":[]}', "good"),
        (RESPONSES, b'{"type":"reasoning","summary":[]}', "good"),
        (RESPONSES, b'{"type":"function_call","name":"f","arguments":"{}"}', "good"),
        (RESPONSES, b'{"type":"message"}', "shape"),
        (RESPONSES, b'{"type":"function_call"}', "shape"),
        (RESPONSES, b"{}", "shape"),
    ],
)
def test_item_has_the_members_of_its_type(reader: ResponseValidator, item: bytes, expected: str) -> None:
    name = b'"role":"assistant","content"' if reader is MESSAGE else b'"id":"resp_1","output"'
    assert found(reader, b"{%b:[%b]}" % (name, item)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"results":[{"index":1,"relevance_score":0.5,"document":{"text":"a"}}]}', "good"),
        (b'{"object":"list","data":[{"index":0,"relevance_score":1e400}]}', "good"),
        (b'[{"index":0,"score":0.5}]', "good"),
        (b"{}", "shape"),
        (b"[]", "shape"),
        (b"null", "shape"),
        (b'{"results":[]}', "shape"),
        (b'{"data":[{"embedding":[0.5]}]}', "shape"),
        (b'{"results":[{"index":0}]}', "shape"),
        (b'[{"index":0,"sc', "cut"),
        (b'{"results":[{"index":0,"rel', "cut"),
        (b"no healthy upstream", "text"),
    ],
)
def test_rankings_of_all_servers_have_a_shape(body: bytes, expected: str) -> None:
    assert found(RERANK, body) == expected


def test_error_without_any_text_is_none() -> None:
    assert found(CHAT, b'{%b,"error":{"code":0,"message":""}}' % CHOICES) == "good"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"data":[{"index":0,"embeddings":[[0.5],[1]]},{"index":1,"embeddings":[[2]]}]}', "good"),
        (b'{"data":[{"index":0,"embeddings":[[0.5],[1]]}]}', "shape"),
        (b'{"data":[{"index":0,"embeddings":[]},{"index":1,"embeddings":[]}]}', "shape"),
    ],
)
def test_list_of_vectors_for_each_input_is_good(body: bytes, expected: str) -> None:
    assert found(EMBEDDINGS, body, inputs=2) == expected
