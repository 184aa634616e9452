"""Unary answers are read once: what is whole, what has its shape, and what reports an error."""

from __future__ import annotations

import pytest

from llm_guard.dialect.anthropic import ANSWERS as ANTHROPIC
from llm_guard.dialect.openai import ANSWERS as OPENAI
from llm_guard.gateway.answer_shape import Fields, Reader

CHAT = Reader(OPENAI["POST", "/v1/chat/completions"])
EMBEDDINGS = Reader(OPENAI["POST", "/v1/embeddings"])
IMAGES = Reader(OPENAI["POST", "/v1/images/generations"])
JOB = Reader(OPENAI["POST", "/v1/fine_tuning/jobs"])
MESSAGE = Reader(ANTHROPIC["POST", "/v1/messages"])
CHOICES = b'"choices":[{"message":{"content":"hi"}}]'


def found(reader: Reader, body: bytes) -> str:
    fields = reader.read(body)
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
        (IMAGES, b'{"data":[{"b64_json":null,"url":"u"}]}', "good"),
        (IMAGES, b'{"data":[{"b64_json":null,"url":null}]}', "shape"),
        (MESSAGE, b'{"role":"assistant","content":[]}', "good"),
        (MESSAGE, b'{"role":"assistant","content":null}', "shape"),
        (MESSAGE, b'{"role":"assistant","content":[{"text":"no type"}]}', "shape"),
        (JOB, b'{"id":"j","error":{"message":"failed"}}', "good"),
        (JOB, b'{"id":"j","object":"error"}', "error"),
        (Reader(None), b'{"object":"video","error":{"message":"failed"}}', "good"),
        (Reader(None), b'{"error":{"message":"failed"}}', "error"),
        (Reader(None), b'{"error":{"message":null}}', "good"),
        (Reader(None), b'{"type":"error"}', "error"),
    ],
)
def test_other_endpoints(reader: Reader, body: bytes, expected: str) -> None:
    assert found(reader, body) == expected
