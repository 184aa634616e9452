"""The endpoints that have a counterpart in the other dialect, and the functions that the gateway calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.dialects import DialectName
from llm_guard.dialects.translation.canonical import (
    CanonicalRequest,
    JsonObject,
    RequestTarget,
    ResponseSink,
    UnreadableRequestError,
)
from llm_guard.dialects.translation.chat_request_reader import read_chat_request
from llm_guard.dialects.translation.chat_request_writer import write_chat_request
from llm_guard.dialects.translation.chat_response_reader import ChatResponseReader
from llm_guard.dialects.translation.chat_response_writer import ChatStreamWriter
from llm_guard.dialects.translation.identifiers import CHAT_NAME_LENGTH, ID_LENGTH, MESSAGES_NAME_LENGTH, NameMap
from llm_guard.dialects.translation.loss_table import CHAT_ROWS, MESSAGES_ROWS, LossRow
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.messages_request_reader import read_messages_request
from llm_guard.dialects.translation.messages_request_writer import write_messages_request
from llm_guard.dialects.translation.messages_response_reader import MessagesResponseReader
from llm_guard.dialects.translation.messages_response_writer import MessagesStreamWriter
from llm_guard.dialects.translation.stream_translation import StreamTranslator
from llm_guard.dialects.translation.whole_response import WholeResponse
from llm_guard.dialects.translation.wire_json import decode, encode

_RequestReader = Callable[[JsonObject], CanonicalRequest]
_RequestWriter = Callable[[CanonicalRequest, RequestTarget, NameMap, NameMap, Losses], JsonObject]
_ResponseReader = type[ChatResponseReader] | type[MessagesResponseReader]


@dataclass(frozen=True, slots=True)
class TranslatedEndpoint:
    """An endpoint of one dialect that has a counterpart in the other."""

    dialect: DialectName
    path: str
    rows: tuple[LossRow, ...]
    """The table of losses of its requests."""
    read_request: _RequestReader
    write_request: _RequestWriter
    read_response: _ResponseReader
    name_length: int
    """Longest name of a tool."""


CHAT = TranslatedEndpoint(
    "openai", "/v1/chat/completions", CHAT_ROWS, read_chat_request, write_chat_request, ChatResponseReader,
    CHAT_NAME_LENGTH,
)  # fmt: skip
MESSAGES = TranslatedEndpoint(
    "anthropic", "/v1/messages", MESSAGES_ROWS, read_messages_request, write_messages_request, MessagesResponseReader,
    MESSAGES_NAME_LENGTH,
)  # fmt: skip
_ENDPOINTS = (CHAT, MESSAGES)


_UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)


def _unreadable(error: Exception) -> UnreadableRequestError:
    deep = isinstance(error, RecursionError)
    return UnreadableRequestError("", "it is nested too deeply" if deep else "a field has an unexpected form")


def endpoint_of(dialect: DialectName, method: str, path: str) -> TranslatedEndpoint | None:
    """Returns the endpoint of a client's call; None if it has no counterpart in other dialects."""
    if method != "POST":
        return None
    return next((one for one in _ENDPOINTS if one.dialect == dialect and one.path == path), None)


def counterpart(endpoint: TranslatedEndpoint) -> TranslatedEndpoint:
    """Returns the endpoint of the other dialect."""
    return MESSAGES if endpoint is CHAT else CHAT


def read_request(endpoint: TranslatedEndpoint, body: bytes) -> CanonicalRequest:
    """Reads a client's request. Raises UnreadableRequestError."""
    try:
        fields = decode(body)
    except ValueError:
        raise UnreadableRequestError("", "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise UnreadableRequestError("", "the body must be a JSON object")
    try:
        return endpoint.read_request(fields)
    except _UNEXPECTED as error:
        raise _unreadable(error) from None


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request for one deployment, and what its response needs to be read."""

    endpoint: TranslatedEndpoint
    """The upstream's."""
    body: bytes
    losses: Losses
    names: NameMap
    ids: NameMap
    wants_usage: bool

    def stream(self, created: int, *, shows_reasoning: bool) -> StreamTranslator:
        """Returns the translator of a stream that responds to it. `created`: now, in seconds since the epoch."""
        writer: ChatStreamWriter | MessagesStreamWriter
        if self.endpoint is MESSAGES:
            writer = ChatStreamWriter(wants_usage=self.wants_usage, shows_reasoning=shows_reasoning)
        else:
            writer = MessagesStreamWriter(shows_reasoning=shows_reasoning)
        return StreamTranslator(self._reader(writer, created), writer)

    def whole(self, body: bytes, created: int, *, shows_reasoning: bool) -> bytes:
        """Returns the client's body for a response that is not streamed. Raises ValueError if it cannot be read or
        expressed."""
        collected = WholeResponse(shows_reasoning=shows_reasoning)
        fields = decode(body)
        if not isinstance(fields, dict):
            raise ValueError("the response is no object")
        try:
            self._reader(collected, created).whole(fields)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None
        return encode(collected.chat_body() if self.endpoint is MESSAGES else collected.messages_body())

    def _reader(self, sink: ResponseSink, created: int) -> ChatResponseReader | MessagesResponseReader:
        return self.endpoint.read_response(sink, self.names, self.ids.copy(), created)


def write_request(request: CanonicalRequest, client: TranslatedEndpoint, target: RequestTarget) -> TranslatedRequest:
    """Writes a request of a client at the endpoint `client` for a deployment of the other dialect. Raises
    UnreadableRequestError for a part that was read as it is, such as a schema, and has an unexpected form."""
    endpoint, losses = counterpart(client), request.losses.copy()
    names, ids = NameMap(endpoint.name_length), NameMap(ID_LENGTH)
    try:
        body = encode(endpoint.write_request(request, target, names, ids, losses))
    except (*_UNEXPECTED, ValueError) as error:
        raise _unreadable(error) from None
    return TranslatedRequest(endpoint, body, losses, names, ids, request.wants_usage)
