"""Wire formats of the providers. Nothing here reads a socket.

openai, anthropic   event formats, error shapes, paths that need a model; openai_media: OpenAI's other streams
event_inspection    quick checks of an event; event_json: its JSON
sse                 SSE parsing for both, and the observer of a stream; sse_framing: where events begin and end
response_schemas    the minimum of a valid unary response
synthetic_stream    converts a unary response into the requested stream
static_answer       a static response; event_writer encodes both
prefill             which providers accept the beginning of a response
resume/             continues a stream that died, at another deployment
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from llm_guard.dialects import anthropic, openai
from llm_guard.dialects.response_schemas import ResponseSchema
from llm_guard.dialects.resume.chat import ChatTranscript
from llm_guard.dialects.resume.messages import MessagesTranscript
from llm_guard.dialects.resume.responses import ResponsesTranscript
from llm_guard.dialects.resume.transcript import Transcript
from llm_guard.dialects.sse import StreamReader, Usage
from llm_guard.outcome import Refusal

DialectName = Literal["openai", "anthropic"]


class Dialect(Protocol):
    """Interface of both dialect modules."""

    @property
    def NEEDS_MODEL(self) -> frozenset[str]: ...  # noqa: N802  # a constant of the module
    @property
    def ANSWERS(self) -> Mapping[tuple[str, str], ResponseSchema]: ...  # noqa: N802  # a constant of the module
    def stream_reader(self, path: str, choices: int, *, is_lenient: bool = False) -> StreamReader: ...
    def usage_in(self, body: dict[str, Any]) -> Usage | None: ...
    def refusal_body(self, refusal: Refusal, request_id: str) -> dict[str, Any]: ...
    def limit_headers(
        self, what: str, allowed: str, left: str, reset_s: float, wall: float
    ) -> tuple[tuple[str, str], ...]: ...
    def error_event(self, refusal: Refusal, request_id: str) -> bytes: ...


DIALECTS: Mapping[DialectName, Dialect] = {"openai": openai, "anthropic": anthropic}


def transcript_of(dialect: DialectName, path: str) -> Transcript | None:
    """Creates the transcript for a stream that answers `path`; None if streams of this path cannot be resumed."""
    if dialect == "anthropic":
        return MessagesTranscript() if path == "/v1/messages" else None
    if path in ("/v1/chat/completions", "/v1/completions"):
        return ChatTranscript()
    return ResponsesTranscript() if path == "/v1/responses" else None


_ANTHROPIC_ALONE = ("/v1/messages", "/v1/complete")
_OPENAI_ALONE = (
    "/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/images", "/v1/audio", "/v1/moderations",
    "/v1/batches", "/v1/realtime", "/v1/uploads", "/v1/videos", "/v1/fine_tuning", "/v1/vector_stores",
)  # fmt: skip


def dialect_of(path: str, *, has_anthropic_version: bool, has_x_api_key: bool, has_bearer: bool) -> DialectName:
    """The dialect of a request, from its path (without query); headers decide for paths that both have.

    Newer Anthropic SDKs send their key as a bearer token, always with `anthropic-version`; raw callers of shared paths
    such as `/v1/models` may send only `x-api-key`."""
    if path.startswith(_OPENAI_ALONE):
        return "openai"
    if path.startswith(_ANTHROPIC_ALONE) or has_anthropic_version or (has_x_api_key and not has_bearer):
        return "anthropic"
    return "openai"
