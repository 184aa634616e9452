from __future__ import annotations

import gzip

import pytest
from multidict import CIMultiDict

from llm_guard.mock.exchange import MockRequest, Upload, dialect_of, understand

FORM = "multipart/form-data; boundary=XX"


def ask(target: str, body: bytes = b"", method: str = "POST", **headers: str) -> MockRequest:
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return understand(1, method, target, named, body)


def test_the_prefix_v1_may_be_left_out() -> None:
    assert ask("/v1/embeddings?x=1").path == ask("/embeddings").path == "/embeddings"


@pytest.mark.parametrize(
    ("target", "headers", "dialect"),
    [
        ("/v1/messages", {}, "anthropic"),
        ("/messages/batches", {}, "anthropic"),
        ("/v1/models", {}, "openai"),
        ("/v1/models", {"Anthropic-Version": "2023-06-01"}, "anthropic"),
        ("/v1/models", {"X-Api-Key": "k"}, "anthropic"),
        ("/v1/chat/completions", {}, "openai"),
    ],
)
def test_the_dialect_follows_from_path_and_headers(target: str, headers: dict[str, str], dialect: str) -> None:
    assert dialect_of(target, CIMultiDict(headers)) == dialect


def test_the_model_is_found_in_body_form_and_query() -> None:
    form = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1+reset\r\n--XX--\r\n'
    assert ask("/v1/chat/completions", b'{"model": "a+cut:1"}').model_text == "a+cut:1"
    assert ask("/v1/audio/transcriptions", form, content_type=FORM).model_text == "whisper-1+reset"
    assert ask("/v1/realtime?model=r%2Breset", method="GET").model_text == "r+reset"
    assert ask("/v1/realtime?model=r+reset", method="GET").model_text == "r+reset"
    assert ask("/v1/models", method="GET").model_text == ""


def test_a_file_in_a_form_arrives_byte_for_byte() -> None:
    data = bytes(range(256)) + b"\r\n\r\n--X\r\n"
    head = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: x/y\r\n\r\n'
    asked = ask("/v1/files", head + data + b"\r\n--XX--\r\n", content_type=FORM)
    assert asked.fields["file"] == Upload("a.bin", data)


def test_a_compressed_body_is_understood() -> None:
    asked = ask("/v1/chat/completions", gzip.compress(b'{"stream": true}'), content_encoding="gzip")
    assert asked.wants_stream


def test_a_content_type_without_a_body_is_not_bad_json() -> None:
    assert ask("/v1/files/f", method="DELETE", content_type="application/json").fields == {}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"[1]", {}),
        (b"plain", {"content_encoding": "gzip"}),
        (b"x", {"content_type": "multipart/form-data"}),
        (b"--XX\r\n\r\nx\r\n--XX--", {"content_type": FORM}),
    ],
)
def test_body_of_another_type_than_declared_is_an_error(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ask("/v1/chat/completions", body, **headers)
