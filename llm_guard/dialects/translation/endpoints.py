"""The endpoints whose calls are translated, and the functions that the gateway calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from msgspec import Struct

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
from llm_guard.dialects.translation.responses_loss_table import RESPONSES_ROWS
from llm_guard.dialects.translation.responses_output import ResponseFrame
from llm_guard.dialects.translation.responses_request_reader import read_responses_request
from llm_guard.dialects.translation.responses_response_writer import ResponsesStreamWriter
from llm_guard.dialects.translation.stream_translation import StreamTranslator
from llm_guard.dialects.translation.whole_response import WholeResponse
from llm_guard.dialects.translation.wire_json import decode, encode

_RequestReader = Callable[[JsonObject], CanonicalRequest]
_RequestWriter = Callable[[CanonicalRequest, RequestTarget, NameMap, NameMap, Losses], JsonObject]
_ResponseReader = type[ChatResponseReader] | type[MessagesResponseReader]


@dataclass(frozen=True, slots=True)
class ClientEndpoint:
    """An endpoint whose requests can be written for another one."""

    dialect: DialectName
    path: str
    rows: tuple[LossRow, ...]
    """The table of losses of its requests."""
    read_request: _RequestReader


@dataclass(frozen=True, slots=True)
class TranslatedEndpoint(ClientEndpoint):
    """An endpoint for which requests of others can be written."""

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
RESPONSES = ClientEndpoint("openai", "/v1/responses", RESPONSES_ROWS, read_responses_request)
CLIENT_ENDPOINTS: tuple[ClientEndpoint, ...] = (CHAT, RESPONSES, MESSAGES)
_BY_PATH: dict[tuple[str, str], ClientEndpoint] = {(one.dialect, one.path): one for one in CLIENT_ENDPOINTS}
_SEED_BYTES = 16


_UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)


def _unreadable(error: Exception) -> UnreadableRequestError:
    deep = isinstance(error, RecursionError)
    return UnreadableRequestError("", "it is nested too deeply" if deep else "a field has an unexpected form")


def endpoint_of(dialect: DialectName, method: str, path: str) -> ClientEndpoint | None:
    """Returns the endpoint of a client's call; None if its calls are not translated."""
    if method != "POST":
        return None
    return _BY_PATH.get((dialect, path))


def upstream_endpoint(dialect: DialectName) -> TranslatedEndpoint:
    """Returns the endpoint to which translated calls are sent at upstreams of a dialect."""
    return MESSAGES if dialect == "anthropic" else CHAT


def read_request(endpoint: ClientEndpoint, body: bytes) -> CanonicalRequest:
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


class TranslatedRequest(Struct, frozen=True):
    """A request for one deployment, and what its response needs to be read."""

    client: ClientEndpoint
    endpoint: TranslatedEndpoint
    """The upstream's."""
    request: CanonicalRequest
    body: bytes
    losses: Losses
    names: NameMap
    ids: NameMap

    def stream(self, created: int, *, shows_reasoning: bool) -> StreamTranslator:
        """Returns the translator of a stream that responds to it. `created`: now, in seconds since the epoch."""
        writer: ChatStreamWriter | MessagesStreamWriter | ResponsesStreamWriter
        if self.client is RESPONSES:
            writer = self._responses_writer(shows_reasoning=shows_reasoning)
        elif self.client is CHAT:
            writer = ChatStreamWriter(wants_usage=self.request.wants_usage, shows_reasoning=shows_reasoning)
        else:
            writer = MessagesStreamWriter(shows_reasoning=shows_reasoning)
        return StreamTranslator(self._reader(writer, created), writer)

    def whole(self, body: bytes, created: int, *, shows_reasoning: bool) -> bytes:
        """Returns the client's body for a response that is not streamed. Raises ValueError if it cannot be read or
        expressed."""
        fields = decode(body)
        if not isinstance(fields, dict):
            raise ValueError("the response is no object")
        if self.client is RESPONSES:
            writer = self._responses_writer(shows_reasoning=shows_reasoning)
            self._read_whole(fields, writer, created)
            return encode(writer.response)
        collected = WholeResponse(shows_reasoning=shows_reasoning)
        self._read_whole(fields, collected, created)
        return encode(collected.chat_body() if self.client is CHAT else collected.messages_body())

    def _read_whole(self, fields: JsonObject, sink: ResponseSink, created: int) -> None:
        try:
            self._reader(sink, created).whole(fields)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None

    def _responses_writer(self, *, shows_reasoning: bool) -> ResponsesStreamWriter:
        seed = blake2b(self.body, digest_size=_SEED_BYTES).hexdigest()
        frame = ResponseFrame(self.request.echoed, self.request.tool_origins, seed)
        return ResponsesStreamWriter(frame, shows_reasoning=shows_reasoning)

    def _reader(self, sink: ResponseSink, created: int) -> ChatResponseReader | MessagesResponseReader:
        return self.endpoint.read_response(sink, self.names, self.ids.copy(), created)


def write_request(
    request: CanonicalRequest, client: ClientEndpoint, endpoint: TranslatedEndpoint, target: RequestTarget
) -> TranslatedRequest:
    """Writes a request of a client at the endpoint `client` for a deployment that serves `endpoint`. Raises
    UnreadableRequestError for a part that was read as it is, such as a schema, and has an unexpected form."""
    losses = request.losses.copy()
    names, ids = NameMap(endpoint.name_length), NameMap(ID_LENGTH)
    try:
        body = encode(endpoint.write_request(request, target, names, ids, losses))
    except (*_UNEXPECTED, ValueError) as error:
        raise _unreadable(error) from None
    return TranslatedRequest(client, endpoint, request, body, losses, names, ids)
