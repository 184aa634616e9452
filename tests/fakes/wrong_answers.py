"""Answers with status 200 that are wrong for their endpoint, and good ones: what a provider sends, and to what request.

Owns the cases that the integration tests and `benchmarks/wrong_answers.py` play over real sockets.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES
from tests.fakes.keep_alives import EVERY_S, begun, for_ever, hangs
from tests.fakes.provider import END, Pause, Respond, Step, chunk, stream_head, whole

PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in &amp; continue</title></head><body>secret words</body></html>"
TITLE = 'titled "Sign in & continue"'
_PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt\r\n'
    b'--x\r\nContent-Disposition: form-data; name="response_format"\r\n\r\n%b\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--x--\r\n'
)
_FORM = {"content-type": "multipart/form-data; boundary=x"}
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint, how it is called, and its good answer."""

    name: str
    path: str
    request: bytes
    answer: bytes
    wrong: bytes
    """Valid JSON without what the endpoint returns."""
    headers: dict[str, str] = field(default_factory=lambda: dict(_JSON))
    content_type: str = "application/json"
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """What a provider answers to a call."""

    form: str
    endpoint: Endpoint
    script: tuple[Step, ...]
    kind: str
    """Of the failure; empty: the answer is good."""
    is_stream: bool = False
    has_begun: bool = False
    """The client has the first token before anything is wrong."""

    def __str__(self) -> str:
        return f"{self.endpoint.name}: {self.form}"

    @property
    def request(self) -> bytes:
        body = self.endpoint.request
        return body.replace(b'"stream":false', b'"stream":true') if self.is_stream else body


def _request(**fields: object) -> bytes:
    return json.dumps({"model": "gpt", **fields, "stream": False}, separators=(",", ":")).encode()


ENDPOINTS = (
    Endpoint("chat", "/v1/chat/completions", _request(messages=[]), CHAT.answer, b'{"choices":[]}'),
    Endpoint(
        "completions", "/v1/completions", _request(prompt="hi"), b'{"choices":[{"text":"hi"}]}', b'{"choices":null}'
    ),
    Endpoint("responses", "/v1/responses", _request(input="hi"), RESPONSES.answer, b'{"id":"resp_1","output":null}'),
    Endpoint(
        "messages", "/v1/messages", MESSAGES.body().replace(b'": ', b'":'), MESSAGES.answer,
        b'{"role":"assistant","content":null}',
    ),
    Endpoint(
        "embeddings", "/v1/embeddings", _request(input="hi"), b'{"data":[{"embedding":[0.5]}]}', b'{"data":[{}]}'
    ),
    Endpoint("images", "/v1/images/generations", _request(prompt="a cat"), b'{"data":[{"url":"u"}]}', b'{"data":[{}]}'),
    Endpoint(
        "transcriptions", "/v1/audio/transcriptions", _PARTS % b"json", b'{"text":"hi"}', b'{"words":[]}', _FORM
    ),
    Endpoint(
        "speech", "/v1/audio/speech", _request(input="hi", voice="alloy"), b"ID3\x04" + bytes(range(256)),
        b'{"detail":"no voice"}', content_type="audio/mpeg",
    ),
    Endpoint(
        "files", "/v1/files", _PARTS % b"", b'{"id":"file-1","object":"file"}', b'{"detail":"no"}', _FORM,
        is_repeatable=False,
    ),
)  # fmt: skip
STREAMED = ("chat", "completions", "responses", "messages")


def wrong_cases() -> Iterator[Case]:
    """Every wrong answer."""
    for endpoint in ENDPOINTS:
        good = endpoint.answer
        yield Case("HTML", endpoint, (whole(200, PAGE, {"content-type": "Text/HTML; charset=utf-8"}),), "misrouted")
        yield Case("empty", endpoint, (whole(200, b""),), "malformed")
        yield Case("null", endpoint, (whole(200, b"null"),), "malformed")
        yield Case("another shape", endpoint, (whole(200, endpoint.wrong),), "malformed")
        text = whole(200, b"no healthy upstream", {"content-type": "text/plain"})
        yield Case("text of a proxy", endpoint, (text,), "malformed")
        if endpoint.name == "speech":
            yield from _wrong_as_audio(endpoint)
        else:
            bom = whole(200, b"\xef\xbb\xbf" + PAGE)
            yield Case("HTML behind a byte order mark", endpoint, (bom,), "misrouted")
            yield Case("{}", endpoint, (whole(200, b"{}"),), "malformed")
            yield Case("HTML as JSON", endpoint, (whole(200, PAGE),), "misrouted")
            yield Case("cut, as text", endpoint, (whole(200, good[:-2], {"content-type": "text/plain"}),), "truncated")
            yield Case("cut, without a type", endpoint, (_untyped(good[:-2]),), "truncated")
            yield Case("wrong encoding", endpoint, (whole(200, good, {"content-encoding": "gzip"}),), "malformed")
        if endpoint.name in (*STREAMED, "images", "transcriptions"):
            yield Case("a stream, unrequested", endpoint, (stream_head(), chunk(b"data: {}\n\n"), END), "malformed")
        if endpoint.name in STREAMED:
            page = whole(200, PAGE, {"content-type": "text/html"})
            yield Case("HTML for a stream", endpoint, (page,), "misrouted", is_stream=True)
            yield Case("{} for a stream", endpoint, (whole(200, b"{}"),), "malformed", is_stream=True)
    chat, legacy = ENDPOINTS[:2]
    stream = (stream_head(), chunk(CHAT.token), chunk(CHAT.end), END)
    yield Case("a chat's stream", legacy, stream, "malformed", is_stream=True)
    stream = (stream_head(), chunk(LEGACY.token), chunk(LEGACY.end), END)
    yield Case("a completion's stream", chat, stream, "malformed", is_stream=True)
    brotli = whole(200, b"\x8b\x00\x80hi\x03", {"content-encoding": "br"})
    yield Case("an encoding that was not requested", chat, (brotli,), "malformed")
    yield Case("a list", chat, (whole(200, b"[]"),), "malformed")
    yield Case("detail", chat, (whole(200, b'{"detail":"Not authenticated"}'),), "malformed")
    cut = gzip.compress(chat.answer)[:-12]
    yield Case("gzip that was cut", chat, (whole(200, cut, {"content-encoding": "gzip"}),), "truncated")


def _wrong_as_audio(speech: Endpoint) -> Iterator[Case]:
    """Text whose headers say that it is audio, or nothing."""
    audio, packed = {"content-type": "audio/mpeg"}, {"content-type": "audio/mpeg", "content-encoding": "gzip"}
    yield Case("HTML as audio", speech, (whole(200, PAGE, audio),), "misrouted")
    yield Case("compressed HTML as audio", speech, (whole(200, gzip.compress(PAGE), packed),), "misrouted")
    yield Case("JSON as audio", speech, (whole(200, speech.wrong, audio),), "malformed")
    yield Case("text without a type", speech, (_untyped(b"upstream connect error"),), "malformed")
    text = (stream_head(200, audio), *(chunk(bytes([byte])) for byte in b"upstream connect error"), END)
    yield Case("text as audio, in chunks", speech, text, "malformed")
    brotli = whole(200, speech.answer, {"content-type": "audio/mpeg", "content-encoding": "br"})
    yield Case("an encoding that was not requested", speech, (brotli,), "malformed")


def hang_cases() -> Iterator[Case]:
    """Models that are dead behind keep-alives of each kind, before the first token and after it."""
    by_path = {endpoint.path: endpoint for endpoint in ENDPOINTS}
    for hang in hangs():
        endpoint, form = by_path[hang.form.path], hang.form
        script = (stream_head(), *map(chunk, form.preamble), *for_ever(hang.keep_alive))
        yield Case(f"hang behind {hang.name}", endpoint, script, "timeout", is_stream=True)
        script = (*begun(form), Pause(EVERY_S), *for_ever(hang.keep_alive))
        name = f"hang after the first token behind {hang.name}"
        yield Case(name, endpoint, script, "timeout", is_stream=True, has_begun=True)


def good_cases() -> Iterator[Case]:
    """Answers that must pass as they come."""
    for endpoint in ENDPOINTS:
        plain = {"content-type": endpoint.content_type}
        yield Case("as it is", endpoint, (whole(200, endpoint.answer, plain),), "")
        in_chunks = stream_head(200, plain)
        yield Case("in chunks", endpoint, (in_chunks, *(chunk(bytes([c])) for c in endpoint.answer), END), "")
        if endpoint.name == "speech":
            yield Case("as HTML", endpoint, (whole(200, endpoint.answer, {"content-type": "text/html"}),), "")
            continue
        for encoding in ("none", "utf-8", "identity, identity"):
            as_it_is = whole(200, endpoint.answer, {"content-encoding": encoding})
            yield Case(f"in the encoding {encoding}", endpoint, (as_it_is,), "")
        padded = whole(200, gzip.compress(endpoint.answer) + bytes(8), {"content-encoding": "gzip, identity"})
        yield Case("compressed, with padding", endpoint, (padded,), "")
        yield Case("without a type", endpoint, (_untyped(endpoint.answer),), "")
        yield Case("as text", endpoint, (whole(200, endpoint.answer, {"content-type": "text/plain"}),), "")
        vendor = {"content-type": "Application/Vnd.API+JSON; charset=utf-8"}
        yield Case("of another JSON type", endpoint, (whole(200, b" \n" + endpoint.answer, vendor),), "")
        yield Case("with odd JSON", endpoint, (whole(200, _odd(endpoint.answer)),), "")
    for text in (b"text", b"srt", b"vtt"):
        named = Endpoint(f"transcriptions, {text.decode()}", "/v1/audio/transcriptions", _PARTS % text, b"", b"", _FORM)
        for said in (b"hello\n", b"\n", b"", b"[BLANK_AUDIO]", b'"quoted"', b"5", b"null"):
            heard = whole(200, said, {"content-type": "text/plain"})
            yield Case(f"the text {said.decode()!r}", named, (heard,), "")


def _untyped(body: bytes) -> Respond:
    return Respond(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def _odd(answer: bytes) -> bytes:
    """With numbers of any size, half of a surrogate pair and text that is no UTF-8."""
    return b'{"odd":[1e400,-1e400,%b,"\\ud83d"],"bad":"\xff",%b' % (b"9" * 5000, answer[1:])
