"""Responses with status 200 that are wrong for their endpoint, and good ones, with the requests they answer.

The integration tests and `benchmarks/wrong_answers.py` play these cases over real sockets.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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
    """An endpoint, a request to it, and its good response."""

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
    """A provider's response to one call, and the expected result."""

    form: str
    endpoint: Endpoint
    script: tuple[Step, ...]
    kind: str
    """Kind of the expected failure; empty if the response is good."""
    is_stream: bool = False
    has_begun: bool = False
    """The client has received the first token before anything is wrong."""

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
_BINARY = bytes(range(256)) * 2
OTHER_FORMATS = {
    "multipart": b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + _BINARY + b"\r\n--x--\r\n",
    "an HTTP message": b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\n\r\nID3\x04" + _BINARY,
    "PNG": b"\x89PNG\r\n\x1a\n" + _BINARY,
    "JPEG": b"\xff\xd8\xff\xe0" + _BINARY,
    "WebP": b"RIFF\x24\x00\x00\x00WEBPVP8 " + _BINARY,
    "PDF": b"%PDF-1.7\n" + _BINARY,
    "ZIP": b"PK\x03\x04" + _BINARY,
    "gzip": gzip.compress(_BINARY),
    "UTF-16": "\ufeff<html><title>Sign in".encode("utf-16-le"),
    "Latin-1": "Erreur : le délai a été dépassé, réessayez plus tard".encode("latin-1"),
}
"""Bodies that are not audio, regardless of their headers."""
STREAMED = ("chat", "completions", "responses", "messages")


def wrong_cases() -> Iterator[Case]:
    """Yields every wrong response."""
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
    yield from _too_few_or_many()
    cut = gzip.compress(chat.answer)[:-12]
    yield Case("gzip that was cut", chat, (whole(200, cut, {"content-encoding": "gzip"}),), "truncated")


def _too_few_or_many() -> Iterator[Case]:
    """Yields responses to another number of inputs, and items that lack their payload."""
    text, verdict = b'{"index":0,"text":"hi"}', b'{"flagged":false}'
    for inputs in (["a", "b", "c"], [[1, 2], [3], [4]], ["a" * 70_000, "b" * 70_000, "c"]):
        size = "large " if len(str(inputs)) > 1000 else "token " if inputs[0] == [1, 2] else ""
        batch = Endpoint("embeddings", "/v1/embeddings", _request(input=inputs), vectors(0, 1, 2), b"")
        for name, answer in (
            ("too few", vectors(0, 1)), ("too many", vectors(0, 1, 2, 3)), ("one twice", vectors(0, 1, 1)),
            ("one left out", vectors(0, 2, 3)), ("empty vectors", b'{"data":[{"embedding":{}},{},{}]}'),
        ):  # fmt: skip
            yield Case(f"{size}inputs, {name}", batch, (whole(200, answer),), "malformed")
        batch = Endpoint("completions", "/v1/completions", _request(prompt=inputs), _list(b"choices", text, 3), b"")
        yield Case(f"{size}prompts, too few", batch, (whole(200, _list(b"choices", text, 2)),), "malformed")
    moderated = _request(input=["a", "b"])
    batch = Endpoint("moderations", "/v1/moderations", moderated, _list(b"results", verdict, 2), b"")
    yield Case("too few verdicts", batch, (whole(200, _list(b"results", verdict, 1)),), "malformed")
    yield Case("empty verdicts", batch, (whole(200, _list(b"results", b"{}", 2)),), "malformed")
    for endpoint, answer in zip(
        (ENDPOINTS[0], ENDPOINTS[2], ENDPOINTS[3]),
        (b'{"choices":[{"message":{}}]}', b'{"id":"a","output":[{}]}', b'{"role":"assistant","content":[{}]}'),
        strict=True,
    ):
        yield Case("an empty object", endpoint, (whole(200, answer),), "malformed")


def vectors(*indexes: int | None) -> bytes:
    """Returns embeddings with these indexes; None omits the index."""
    items = [{"embedding": [0.5]} | ({} if index is None else {"index": index}) for index in indexes]
    return json.dumps({"data": items}).encode()


def _list(name: bytes, item: bytes, count: int) -> bytes:
    return b'{"%b":[%b]}' % (name, b",".join([item] * count))


def _wrong_as_audio(speech: Endpoint) -> Iterator[Case]:
    """Yields text with an audio content type, or with none."""
    audio, packed = {"content-type": "audio/mpeg"}, {"content-type": "audio/mpeg", "content-encoding": "gzip"}
    yield Case("HTML as audio", speech, (whole(200, PAGE, audio),), "misrouted")
    yield Case("compressed HTML as audio", speech, (whole(200, gzip.compress(PAGE), packed),), "misrouted")
    yield Case("JSON as audio", speech, (whole(200, speech.wrong, audio),), "malformed")
    yield Case("text without a type", speech, (_untyped(b"upstream connect error"),), "malformed")
    text = (stream_head(200, audio), *(chunk(bytes([byte])) for byte in b"upstream connect error"), END)
    yield Case("text as audio, in chunks", speech, text, "malformed")
    for name, other in OTHER_FORMATS.items():
        yield Case(f"{name} as audio", speech, (whole(200, other, audio),), "malformed")
        in_chunks = (stream_head(200, audio), *(chunk(bytes([byte])) for byte in other[:300]), END)
        yield Case(f"{name} as audio, in chunks", speech, in_chunks, "malformed")
    form = {"content-type": "multipart/mixed; boundary=x"}
    yield Case("a multipart type", speech, (whole(200, speech.answer, form),), "malformed")
    yield Case("an image's type", speech, (whole(200, speech.answer, {"content-type": "image/png"}),), "malformed")
    brotli = whole(200, speech.answer, {"content-type": "audio/mpeg", "content-encoding": "br"})
    yield Case("an encoding that was not requested", speech, (brotli,), "malformed")


def hang_cases() -> Iterator[Case]:
    """Yields models that hang behind keep-alives of each kind, before and after the first token."""
    by_path = {endpoint.path: endpoint for endpoint in ENDPOINTS}
    for hang in hangs():
        endpoint, form = by_path[hang.form.path], hang.form
        script = (stream_head(), *map(chunk, form.preamble), *for_ever(hang.keep_alive))
        yield Case(f"hang behind {hang.name}", endpoint, script, "timeout", is_stream=True)
        script = (*begun(form), Pause(EVERY_S), *for_ever(hang.keep_alive))
        name = f"hang after the first token behind {hang.name}"
        yield Case(name, endpoint, script, "timeout", is_stream=True, has_begun=True)


def good_cases() -> Iterator[Case]:
    """Yields responses that must pass unmodified."""
    for endpoint in ENDPOINTS:
        plain = {"content-type": endpoint.content_type}
        yield Case("as it is", endpoint, (whole(200, endpoint.answer, plain),), "")
        in_chunks = stream_head(200, plain)
        yield Case("in chunks", endpoint, (in_chunks, *(chunk(bytes([c])) for c in endpoint.answer), END), "")
        if endpoint.name == "speech":
            yield Case("as HTML", endpoint, (whole(200, endpoint.answer, {"content-type": "text/html"}),), "")
            yield from _good_audio(endpoint)
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
    yield from _good_but_odd()
    for text in (b"text", b"srt", b"vtt"):
        named = Endpoint(f"transcriptions, {text.decode()}", "/v1/audio/transcriptions", _PARTS % text, b"", b"", _FORM)
        for said in (b"hello\n", b"\n", b"", b"[BLANK_AUDIO]", b'"quoted"', b"5", b"null"):
            heard = whole(200, said, {"content-type": "text/plain"})
            yield Case(f"the text {said.decode()!r}", named, (heard,), "")


def _good_but_odd() -> Iterator[Case]:
    """Yields correct responses that look incomplete."""
    chat, messages, responses = ENDPOINTS[0], ENDPOINTS[3], ENDPOINTS[2]
    for name, message in {
        "role alone": b'{"role":"assistant"}',
        "tool calls": b'{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{}}]}',
        "no role": b'{"content":"hi"}',
        "empty text": b'{"role":"assistant","content":""}',
        "refusal": b'{"content":null,"refusal":"no"}',
        "reasoning alone": b'{"content":null,"reasoning_content":"so"}',
    }.items():
        answer = b'{"choices":[{"message":%b,"finish_reason":"length"}]}' % message
        yield Case(name, replace(chat, answer=answer), (whole(200, answer),), "")
    asked_twice = _request(messages=[], n=2)
    for count in (1, 2, 3):  # servers ignore `n`, or put tool calls into a choice of their own
        answer = _list(b"choices", b'{"message":{"role":"assistant","content":"hi"}}', count)
        yield Case(
            f"{count} of 2 choices", replace(chat, request=asked_twice, answer=answer), (whole(200, answer),), ""
        )
    for endpoint, answer in (
        (messages, b'{"role":"assistant","content":[],"stop_reason":"end_turn"}'),
        (messages, b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}'),
        (responses, b'{"id":"resp_1","status":"incomplete","output":[]}'),
        (responses, b'{"id":"resp_1","output":[{"type":"reasoning","summary":[]}]}'),
    ):
        yield Case(answer.decode(), replace(endpoint, answer=answer), (whole(200, answer),), "")
    for inputs, count in (
        ("hi", 1), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["a"], 1), (["a", "b"], 2), (["a" * 70_000, "b" * 70_000], 2),
        ([{"text": "a"}, {"text": "b"}], 1), ([7] * 70_000, 1), ([[7] * 30_000, [8] * 30_000, [9]], 3),
    ):  # fmt: skip
        request = _request(input=inputs)
        for indexes in (range(count), [0] * count, [None] * count, [None, *range(1, count)], [*range(count)][::-1]):
            answer = vectors(*indexes)
            batch = Endpoint("embeddings", "/v1/embeddings", request, answer, b"")
            name = f"{len(request)} bytes of inputs, numbered {list(indexes)}"
            yield Case(name, batch, (whole(200, answer),), "")
    base64 = b'{"data":[{"index":0,"embedding":"AACAPw=="}]}'
    yield Case(
        "base64",
        Endpoint("embeddings", "/v1/embeddings", _request(input=["a"]), base64, b""),
        (whole(200, base64),),
        "",
    )
    multimodal = _request(input=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])
    verdict = b'{"results":[{"flagged":false}]}'
    yield Case(
        "one verdict", Endpoint("moderations", "/v1/moderations", multimodal, verdict, b""), (whole(200, verdict),), ""
    )
    filtered = b'{"data":[{"b64_json":"aGk="}]}'
    images = Endpoint("images", "/v1/images/generations", _request(prompt="a cat", n=2), filtered, b"")
    yield Case("fewer images than n", images, (whole(200, filtered),), "")


def _good_audio(speech: Endpoint) -> Iterator[Case]:
    """Yields speech formats, and raw samples with first bytes that may look like any other format."""
    for name, begin in {
        "WAV": b"RIFF\xff\xff\xff\xffWAVEfmt ", "Opus": b"OggS\x00\x02", "FLAC": b"fLaC\x00", "MP3": b"\xff\xfb\x90",
        "AAC": b"\xff\xf1\x50", "MP4": b"\x00\x00\x00\x20ftypM4A ", "WebM": b"\x1aE\xdf\xa3", "PCM": b"--",
        "PCM like gzip": b"\x1f\x8b\x00", "PCM of silence": bytes(9), "mu-law of silence": b"\xff" * 2000,
        "PCM like UTF-16": b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe", "MP3 of layer I": b"\xff\xfe\x90\x44",
    }.items():  # fmt: skip
        audio = Endpoint("speech", speech.path, speech.request, begin + _BINARY, b"", content_type="audio/mpeg")
        yield Case(name, audio, (whole(200, audio.answer, {"content-type": "application/octet-stream"}),), "")
        in_chunks = (stream_head(200, {"content-type": "audio/x"}), *(chunk(bytes([c])) for c in audio.answer), END)
        yield Case(f"{name} in chunks", audio, in_chunks, "")


def _untyped(body: bytes) -> Respond:
    return Respond(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def _odd(answer: bytes) -> bytes:
    """Adds numbers of any size, half of a surrogate pair and invalid UTF-8."""
    return b'{"odd":[1e400,-1e400,%b,"\\ud83d"],"bad":"\xff",%b' % (b"9" * 5000, answer[1:])
