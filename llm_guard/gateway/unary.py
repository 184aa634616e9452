"""A unary answer up to commit: read whole and judged where the endpoint returns JSON, else passed on as it comes.

Owns how much of it is read, and in what form it is judged. Does not own the shapes (`dialect.shapes`), the words for
what is wrong (`policy.wrong_answer`), nor the way on to the client (`gateway.relay`).
"""

from __future__ import annotations

import json
import zlib
from typing import Literal

from llm_guard.call import Attempt, Call, Exchange, Headers, Inbox, Opened, Wire
from llm_guard.dialect import DIALECTS
from llm_guard.dialect.shapes import Shape
from llm_guard.dialect.sse import Usage
from llm_guard.dialect.tally import mapping
from llm_guard.dialect.whole_as_stream import stream_of
from llm_guard.gateway.answer_shape import Fields, Reader, value_of
from llm_guard.gateway.lesser import wants
from llm_guard.gateway.stream_view import view_of
from llm_guard.outcome import Failure
from llm_guard.policy.answer_memory import UNCOUNTED_BYTES, AnswerMemory, MemoryLease
from llm_guard.policy.in_band import error_in
from llm_guard.policy.wrong_answer import Fault, Seen, media_type, page_in, wrong_answer

_HEAD_BYTES = 4096
_MOST_INFLATED_BYTES = 4 << 20
_MOST_RATIO = 20
"""Beyond both, what inflates is a decompression bomb: JSON shrinks to a twentieth at most. It is left as it is."""
_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Of an event stream, whatever its content type says."""
_FILES = ("/content", "/results")
"""At the end of paths whose answers are callers' own files, which may be anything."""

_READERS = {
    (name, *place): Reader(shape) for name, dialect in DIALECTS.items() for place, shape in dialect.ANSWERS.items()
}
_UNKNOWN = Reader(None)


def reader_of(call: Call, attempt: Attempt) -> Reader | None:
    """By what the answer is judged; None: its shape is not."""
    if not attempt.target.deployment.upstream.judges_answers:
        return None
    return _READERS.get((call.dialect, call.method, call.path))


def wrong_form(call: Call, exchange: Exchange, shape: Shape | None) -> Failure | None:
    """The failure of an event stream where the endpoint sends one only on request."""
    is_requested = call.is_stream or call.may_stream
    if shape is None or shape.streaming == "optional" or (is_requested and shape.streaming == "required"):
        return None
    return wrong_answer(_seen(exchange, b"", b""), shape.name, "stream")


async def read_unary(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    reader: Reader | None,
    memory: AnswerMemory,
) -> Opened | Failure | bytes:
    """The answer, its failure, or the error that stands in its place. Raises UpstreamError."""
    shape = reader.shape if reader is not None else None
    if (reader is None or not reader.is_json) and not _is_read_whole(call, headers, shape):
        return await _begin(exchange, shape)
    outcome: Opened | Failure | bytes | None = None
    most_bytes = attempt.target.max_buffered_answer
    try:
        body, is_whole = await _read(attempt, exchange, most_bytes, memory)
        if not is_whole and _is_stream_required(call, shape):
            outcome = _wrong(exchange, body, b"", shape, "unary")
        elif not is_whole:
            outcome = _opened(exchange, body, exchange)
            outcome.is_plain_json = "content-encoding" not in headers and body.lstrip()[:1] in (b"{", b"[")
        else:
            outcome = _judge(call, attempt, exchange, body, headers, reader or _UNKNOWN, most_bytes)
        return outcome
    finally:
        if attempt.buffer is not None and not isinstance(outcome, Opened):
            attempt.buffer.release()


def _is_read_whole(call: Call, headers: dict[str, str], shape: Shape | None) -> bool:
    media = media_type(headers.get("content-type", ""))
    if shape is not None:
        return _is_json(media) or media.startswith("text/")
    return _is_json(media) and not call.path.endswith(_FILES)


async def _begin(exchange: Exchange, shape: Shape | None) -> Opened | Failure:
    """Passed on from its first bytes: before them it may still fail, and another deployment be tried."""
    first = await exchange.read()
    if shape is not None and (not first or page_in(first, "") is not None):
        return wrong_answer(_seen(exchange, first, first), shape.name, "text" if first else "empty")
    return _opened(exchange, first, exchange if first else None)


async def _read(attempt: Attempt, exchange: Exchange, most_bytes: int, memory: AnswerMemory) -> tuple[bytes, bool]:
    """The body, and whether that is all of it: what is larger than `most_bytes`, or finds no room, is cut here."""
    first = await exchange.read()
    chunk = await exchange.read() if first else b""
    if not chunk:
        return first, True
    # Grown in place: thousands of small chunks would leave holes in the heap as large as the answer.
    body = bytearray(first)
    while chunk:
        body += chunk
        size = len(body)
        if size > UNCOUNTED_BYTES:
            lease = attempt.buffer = attempt.buffer or MemoryLease(memory)
            if size > most_bytes or not lease.try_take(size - lease.bytes):
                return bytes(body), False
        chunk = await exchange.read()
    return bytes(body), True


def _judge(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    body: bytes,
    headers: dict[str, str],
    reader: Reader,
    most_bytes: int,
) -> Opened | Failure | bytes:
    shape = reader.shape
    encoding = headers.get("content-encoding")
    plain = body if encoding is None else _decoded(body, encoding, most_bytes)
    if plain is None or (shape is None and isinstance(plain, str)):
        return _opened(exchange, body, None)  # more than is read, or a caller's own file
    if isinstance(plain, str):
        return _wrong(exchange, body, b"", shape, plain)
    fields = reader.read(plain)
    if isinstance(fields, Fields):
        return _judge_fields(call, attempt, exchange, body, plain, fields, reader)
    if shape is None:
        return _wrong(exchange, body, plain, shape, fields) if fields == "cut" else _opened(exchange, body, None)
    if fields == "shape" and _has_error(plain):
        return plain
    if fields == "text" and _may_be_text(call, shape) and page_in(plain, headers.get("content-type", "")) is None:
        return _opened(exchange, body, None)
    return _wrong(exchange, body, plain, shape, fields)


def _judge_fields(
    call: Call, attempt: Attempt, exchange: Exchange, body: bytes, plain: bytes, fields: Fields, reader: Reader
) -> Opened | Failure | bytes:
    """JSON that is whole, and has the shape of a good answer if one is known."""
    shape = reader.shape
    if (shape is not None or call.model is not None) and reader.is_error(fields):
        return plain
    if shape is not None and not reader.is_json:
        return _wrong(exchange, body, plain, shape, "shape")
    usage = DIALECTS[call.dialect].usage_in({"usage": fields.usage}) if fields.usage is not None else None
    if call.is_stream and _is_stream_required(call, shape):
        return _as_stream(call, attempt, exchange, plain, usage) or _wrong(exchange, body, plain, shape, "unary")
    return Opened(exchange.status, exchange.reason, exchange.headers, body, None, None, usage)


def _is_stream_required(call: Call, shape: Shape | None) -> bool:
    return call.is_stream and shape is not None and shape.streaming == "required"


def _as_stream(call: Call, attempt: Attempt, exchange: Exchange, plain: bytes, usage: Usage | None) -> Opened | None:
    """A whole answer, written as the stream that the client waits for; None if it cannot be, or if the stream is to go
    on where another has died."""
    if attempt.manner is not None:
        return None
    try:
        answer = json.loads(plain)
    except (ValueError, RecursionError):
        return None
    is_usage_wanted = mapping(wants(call).get("stream_options")).get("include_usage") is True
    events = stream_of(call.path, answer, is_usage_wanted=is_usage_wanted)
    if events is None:
        return None
    view = view_of(DIALECTS[call.dialect].stream_reader(call.path, call.choices), "")
    passed, watch = view.feed(events), view.watch
    if watch.error is not None or not (watch.has_token and watch.may_end):
        return None
    attempt.watch, watch.usage = watch, usage or watch.usage
    kept = tuple(pair for pair in exchange.headers if not pair[0].lower().startswith("content-"))
    headers = (*kept, ("Content-Type", "text/event-stream; charset=utf-8"))
    return Opened(exchange.status, exchange.reason, headers, passed, None, view)


def _may_be_text(call: Call, shape: Shape) -> bool:
    """Of a body other than a form it is not known what it requests."""
    is_form = media_type(call.content_type) == "multipart/form-data"
    return bool(shape.text_formats) and (not is_form or call.response_format in shape.text_formats)


def _has_error(plain: bytes) -> bool:
    """Whether JSON in another shape is an error, in the words of any provider."""
    try:
        return error_in(value_of(plain)) is not None
    except (ValueError, RecursionError):
        return False


def _wrong(exchange: Exchange, body: bytes, plain: bytes, shape: Shape | None, fault: Fault) -> Failure:
    return wrong_answer(_seen(exchange, body, plain), "JSON" if shape is None else shape.name, fault)


def _seen(exchange: Exchange, body: bytes, plain: bytes) -> Seen:
    return Seen(exchange.status, _content_type(exchange.headers), len(body), plain[:_HEAD_BYTES])


def _content_type(headers: Headers) -> str:
    return next((value for name, value in headers if name.lower() == "content-type"), "")


def _is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def _opened(exchange: Exchange, held: bytes, rest: Exchange | None) -> Opened:
    return Opened(exchange.status, exchange.reason, exchange.headers, held, rest)


# encodings


def _decoded(body: bytes, encoding: str, most_bytes: int) -> bytes | Literal["cut", "encoding"] | None:
    """The body as text, what is wrong with its encoding, or None: it comes to more than `most_bytes`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        return "encoding"
    if not body:
        return body
    most_bytes = min(most_bytes, max(_MOST_INFLATED_BYTES, _MOST_RATIO * len(body)))
    try:
        return _inflated(body, most_bytes, 47)
    except zlib.error:
        pass
    try:
        return _inflated(body, most_bytes, -15) if name == "deflate" else "encoding"  # some send it without its frame
    except zlib.error:
        return "encoding"


def _inflated(body: bytes, most_bytes: int, wbits: int) -> bytes | Literal["cut"] | None:
    """All streams of it, one after the other. Raises zlib.error."""
    plain = b""
    while body:
        inflater = zlib.decompressobj(wbits)
        plain += inflater.decompress(body, most_bytes + 1 - len(plain))
        if len(plain) > most_bytes:
            return None
        if not inflater.eof:
            return "cut"
        body = inflater.unused_data
    return plain


# a stream in disguise


async def peek(exchange: Exchange) -> Peeked:
    """The exchange with the beginning of its body read. Raises UpstreamError."""
    return Peeked(exchange, await exchange.read())


class Peeked:
    """An exchange whose first bytes have been looked at; they are read again."""

    def __init__(self, exchange: Exchange, first: bytes) -> None:
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._first = first

    @property
    def is_event_stream(self) -> bool:
        """Whether the body begins as an event stream does."""
        return self._first.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").startswith(_BEGINNINGS)

    async def read(self) -> bytes:
        """As of the exchange."""
        first, self._first = self._first, b""
        return first or await self._exchange.read()

    def abort(self) -> None:
        """As of the exchange."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """As of the exchange."""
        return self._exchange.take_over(inbox)
