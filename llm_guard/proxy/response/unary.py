"""Reads a unary response up to commit: JSON is read whole and validated, anything else is relayed from its start.

`dialects.response_schemas` has the expected shapes, `resilience.classification.invalid_response` the descriptions of
what is wrong with a response.
"""

from __future__ import annotations

import json

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.dialects.response_schemas import ResponseSchema
from llm_guard.dialects.resume.base import mapping
from llm_guard.dialects.sse import Usage
from llm_guard.dialects.synthetic_stream import stream_of
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Attempt, Call, Exchange, Headers, Opened, endpoint_of
from llm_guard.proxy.headers import value_of as value_of_header
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.proxy.response.content_decoding import decoded, head_of, unreadable
from llm_guard.proxy.response.fallback_response import wants
from llm_guard.proxy.response.json_completeness import CheckedExchange, JsonCompleteness
from llm_guard.proxy.response.media_signatures import may_be_audio
from llm_guard.proxy.response.validation import Fields, ResponseValidator, value_of
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.resilience.capacity.response_memory import UNCOUNTED_BYTES, MemoryLease, ResponseMemory
from llm_guard.resilience.classification.in_band_errors import error_in
from llm_guard.resilience.classification.invalid_response import (
    InvalidReason,
    ObservedResponse,
    media_type,
    page_in,
    wrong_answer,
)

_HEAD_BYTES = 4096
_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""First bytes of an event stream, which is recognised under any content type."""
_BOM = b"\xef\xbb\xbf"
_FILES = ("/content", "/results")
"""Ends of paths that return callers' own files, which may have any content."""

_READERS = {
    (name, *place): ResponseValidator(shape)
    for name, dialect in DIALECTS.items()
    for place, shape in dialect.ANSWERS.items()
}
_UNKNOWN = ResponseValidator(None)


def reader_of(call: Call, attempt: Attempt) -> ResponseValidator | None:
    """Returns the reader that validates the response; None if its shape is not checked."""
    if not attempt.target.deployment.upstream.judges_answers:
        return None
    at = call if attempt.translation is None else attempt.translation
    return _READERS.get((at.dialect, call.method, at.path))


def may_be_stream(call: Call, shape: ResponseSchema | None) -> bool:
    """Returns True if an endpoint of this shape can respond with an event stream; False if its shape is not known."""
    if shape is None or shape.streaming == "never":
        return False
    return shape.streaming == "any" or call.is_stream or call.may_stream


def wrong_form(call: Call, exchange: Exchange, shape: ResponseSchema | None) -> Failure | None:
    """Returns the failure of an event stream from an endpoint that sends none, or only on request; else None."""
    if shape is None or may_be_stream(call, shape):
        return None
    return wrong_answer(_seen(exchange, b"", b""), shape.name, "stream")


async def read_unary(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    reader: ResponseValidator | None,
    memory: ResponseMemory,
    clock: Clock,
) -> Opened | Failure | bytes:
    """Returns the response, its failure, or the body of an error that was sent in its place. Raises UpstreamError."""
    if reader is not None and not reader.is_json:
        return await _begin_media(call, attempt, exchange, headers, reader)
    if reader is None and (not _is_json(media_type(headers.get("content-type", ""))) or call.path.endswith(_FILES)):
        return await _begin(call, attempt, exchange, headers)
    shape = reader.shape if reader is not None else None
    outcome: Opened | Failure | bytes | None = None
    try:
        first = await exchange.read()
        second = await exchange.read() if first else b""
        body, is_whole = first, not second
        if second:
            body, is_whole = await _read_on(attempt, exchange, first + second, memory)
        if is_whole:
            outcome = _judge(call, attempt, exchange, body, headers, reader or _UNKNOWN)
        if outcome is None:
            outcome = _relayed(call, exchange, body, headers, shape, clock)
        return outcome
    finally:
        if attempt.buffer is not None and not isinstance(outcome, Opened):
            attempt.buffer.release()


def _relayed(
    call: Call, exchange: Exchange, body: bytes, headers: dict[str, str], shape: ResponseSchema | None, clock: Clock
) -> Opened | Failure:
    """Opens JSON that is too large to be read whole: it is validated by its beginning and by its end."""
    encoding = headers.get("content-encoding", "")
    head = head_of(body, encoding)
    if shape is not None and unreadable(encoding):
        return _wrong(exchange, body, b"", shape, "encoding")
    if shape is not None and head.removeprefix(_BOM).lstrip()[:1] not in (b"{", b""):
        return _wrong(exchange, body, head, shape, "text")
    if _is_stream_required(call, shape):
        return _wrong(exchange, body, b"", shape, "unary")
    if unreadable(encoding):
        return _opened(exchange, body, exchange)
    end = JsonCompleteness(encoding, shape.always if shape is not None else ())
    held = body[:-1]
    return _opened(exchange, held, CheckedExchange(exchange, held, body[-1:], end, clock))


async def _begin(call: Call, attempt: Attempt, exchange: Exchange, headers: dict[str, str]) -> Opened | Failure:
    """Opens a response of unknown shape, which is relayed from its first bytes; until then it may still fail."""
    first = await exchange.read()
    head = head_of(first, headers.get("content-encoding", ""))
    if _is_page_wrong(call, attempt) and page_in(head, headers.get("content-type", "")) is not None:
        return _wrong(exchange, first, head, None, "text")
    return _opened(exchange, first, exchange if first else None)


async def _begin_media(
    call: Call, attempt: Attempt, exchange: Exchange, headers: dict[str, str], reader: ResponseValidator
) -> Opened | Failure | bytes:
    """Opens audio, which is relayed as soon as its first bytes rule out text and other formats."""
    body, content_type = bytearray(), headers.get("content-type", "")
    encoding = headers.get("content-encoding", "")
    if unreadable(encoding):
        return _wrong(exchange, b"", b"", reader.shape, "encoding")
    while chunk := await exchange.read():
        body += chunk
        head = head_of(bytes(body[:_HEAD_BYTES]), encoding)
        is_undecided = not head and len(body) <= UNCOUNTED_BYTES  # so far only the encoding's header is here
        is_audio = None if is_undecided else may_be_audio(head, content_type)
        if is_audio:
            return _opened(exchange, bytes(body), exchange)
        if is_audio is False or len(body) > UNCOUNTED_BYTES:
            return _wrong(exchange, bytes(body), head, reader.shape, "text")
    judged = _judge(call, attempt, exchange, bytes(body), headers, reader)
    return _wrong(exchange, bytes(body), b"", reader.shape, "text") if judged is None else judged


def _is_page_wrong(call: Call, attempt: Attempt) -> bool:
    """Returns True if an HTML page cannot be the right response: the request names a model, or comes from an API
    client, which accepts JSON. Browsers accept HTML."""
    if not attempt.target.deployment.upstream.judges_answers or call.path.endswith(_FILES):
        return False
    accepted = value_of_header(call.headers, "accept").lower()
    return (call.model is not None or "json" in accepted) and "html" not in accepted


async def _read_on(
    attempt: Attempt, exchange: Exchange, beginning: bytes, memory: ResponseMemory
) -> tuple[bytes, bool]:
    """Returns the body that begins so, and whether it is complete: reading stops at the target's limit, or when the
    memory budget is full."""
    most_bytes = attempt.target.max_buffered_answer
    # Grown in place: thousands of small chunks would leave holes in the heap as large as the answer.
    body, chunk = bytearray(), beginning
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
    reader: ResponseValidator,
) -> Opened | Failure | bytes | None:
    """Validates a complete body; returns None if it decompresses to more than `max_buffered_answer`."""
    shape = reader.shape
    encoding = headers.get("content-encoding")
    plain = body if encoding is None else decoded(body, encoding, attempt.target.max_buffered_answer)
    if plain is None:
        return None
    if isinstance(plain, str):
        # A response of unknown shape may be a caller's own file.
        return _opened(exchange, body, None) if shape is None else _wrong(exchange, body, b"", shape, plain)
    fields = reader.read(plain, call.inputs)
    if not isinstance(fields, str):
        return _judge_fields(call, attempt, exchange, body, plain, fields, reader)
    page = page_in(plain, headers.get("content-type", ""))
    if shape is None:
        is_wrong = fields == "cut" or (page is not None and _is_page_wrong(call, attempt))
        return _wrong(exchange, body, plain, shape, fields) if is_wrong else _opened(exchange, body, None)
    if page is None and _may_be_text(call, shape) and _is_any_text(plain, fields, headers):
        return _opened(exchange, body, None)
    if fields == "shape" and has_error(plain):
        return plain
    return _wrong(exchange, body, plain, shape, fields)


def _judge_fields(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    body: bytes,
    plain: bytes,
    fields: Fields,
    reader: ResponseValidator,
) -> Opened | Failure | bytes:
    """Validates complete JSON that has the endpoint's shape, if that is known."""
    shape = reader.shape
    if (shape is not None or call.model is not None) and reader.is_error(fields):
        return plain
    if shape is not None and not reader.is_json:
        return _wrong(exchange, body, plain, shape, "shape")
    dialect = call.dialect if attempt.translation is None else attempt.translation.dialect
    usage = DIALECTS[dialect].usage_of(fields.usage) if type(fields.usage) is dict else None
    if call.is_stream and _is_stream_required(call, shape):
        return _as_stream(call, attempt, exchange, plain, usage) or _wrong(exchange, body, plain, shape, "unary")
    return Opened(exchange.status, exchange.reason, exchange.headers, body, None, None, usage)


def _is_stream_required(call: Call, shape: ResponseSchema | None) -> bool:
    return call.is_stream and shape is not None and shape.streaming == "required"


def _as_stream(call: Call, attempt: Attempt, exchange: Exchange, plain: bytes, usage: Usage | None) -> Opened | None:
    """Converts a whole response into the stream that the client expects; None if that is not possible, or if this
    attempt continues a stream that died."""
    if attempt.resume_mode is not None:
        return None
    try:
        answer = json.loads(plain)
    except (ValueError, RecursionError):
        return None
    (dialect, path), translation = endpoint_of(call, attempt), attempt.translation
    is_usage_wanted = mapping(wants(call).get("stream_options")).get("include_usage") is True
    events = stream_of(path, answer, is_usage_wanted=is_usage_wanted or translation is not None)
    if events is None:
        return None
    plain_view = view_of(DIALECTS[dialect].stream_reader(path, call.choices), "")
    view = plain_view if translation is None else translation.decoder(plain_view)
    passed, watch = view.feed(events) + view.trailing_bytes(), view.watch
    if watch.error is not None or view.failure is not None or not (watch.has_token and watch.may_end):
        return None
    attempt.watch, watch.usage = watch, usage or watch.usage
    kept = tuple(pair for pair in exchange.headers if not pair[0].lower().startswith("content-"))
    headers = (*kept, ("Content-Type", "text/event-stream; charset=utf-8"))
    return Opened(exchange.status, exchange.reason, headers, passed, None, view)


def _may_be_text(call: Call, shape: ResponseSchema) -> bool:
    """Returns True if plain text may be what the request wants: only a form shows its response format."""
    is_form = media_type(call.content_type) == "multipart/form-data"
    return bool(shape.text_formats) and (not is_form or call.response_format in shape.text_formats)


def _is_any_text(plain: bytes, fault: InvalidReason, headers: dict[str, str]) -> bool:
    """Returns True if a body that is no JSON object is a valid text: a transcript of silence is empty, and one of a
    single word or number may also be a JSON value."""
    if fault == "empty":
        return bool(plain) or media_type(headers.get("content-type", "")).startswith("text/")
    return fault == "text" or (fault == "shape" and plain.lstrip()[:1] not in (b"{", b"["))


def no_stream(exchange: Exchange, body: bytes, shape: ResponseSchema | None) -> UpstreamError:
    """Returns the failure of a declared event stream that ended without any meaningful event."""
    if not body.removeprefix(_BOM).lstrip().startswith((b"<", b"{", b"[")):
        return UpstreamError(FailureKind.TRUNCATED, "the stream ended before its first token")
    failure = _wrong(exchange, body, body, shape, "text")
    return UpstreamError(failure.kind, failure.detail, is_shape_only=failure.is_shape_only)


def has_error(plain: bytes) -> bool:
    """Returns True if JSON in another shape is an error of any provider's format."""
    try:
        return error_in(value_of(plain)) is not None
    except (ValueError, RecursionError):
        return False


def _wrong(
    exchange: Exchange, body: bytes, plain: bytes, shape: ResponseSchema | None, fault: InvalidReason
) -> Failure:
    return wrong_answer(_seen(exchange, body, plain), "JSON" if shape is None else shape.name, fault)


def _seen(exchange: Exchange, body: bytes, plain: bytes) -> ObservedResponse:
    return ObservedResponse(exchange.status, _content_type(exchange.headers), len(body), plain[:_HEAD_BYTES])


def _content_type(headers: Headers) -> str:
    return next((value for name, value in headers if name.lower() == "content-type"), "")


def _is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def _opened(exchange: Exchange, held: bytes, rest: Exchange | None) -> Opened:
    return Opened(exchange.status, exchange.reason, exchange.headers, held, rest)


# streams sent under another content type


async def peek(exchange: Exchange) -> PeekedExchange:
    """Returns the exchange with the beginning of its body already read. Raises UpstreamError."""
    return PeekedExchange(exchange, await exchange.read())


class PeekedExchange:
    """An exchange with its first bytes inspected; `read` returns them again."""

    def __init__(self, exchange: Exchange, first: bytes) -> None:
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._first = first

    @property
    def is_event_stream(self) -> bool:
        """True if the body begins as an event stream does."""
        return self._first.removeprefix(_BOM).lstrip(b"\r\n").startswith(_BEGINNINGS)

    async def read(self) -> bytes:
        """Implements `proxy.call.Exchange`."""
        first, self._first = self._first, b""
        return first or await self._exchange.read()

    def abort(self) -> None:
        """Implements `proxy.call.Exchange`."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Implements `proxy.call.Exchange`."""
        return self._exchange.take_over(inbox)
