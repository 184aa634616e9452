"""Wire formats of the providers. Nothing here reads a socket.

openai, anthropic   all that differs between dialects, behind `Dialect`
event_inspection    quick checks of an event
sse                 SSE and its JSON for both, and the observer of a stream; sse_framing: where events begin and end
response_schemas    the minimum of a valid unary response
synthetic_stream    converts a unary response into the requested stream
static_answer       a static response; event_writer encodes both
prefill             which providers accept the beginning of a response
resume/             continues a stream that died, at another deployment
translation/        translates requests, responses and errors between the dialects
forms/              the forms in which clouds take a dialect's requests; imported for a config that uses one
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal, Protocol

from llm_guard.dialects import anthropic, openai
from llm_guard.dialects.response_schemas import ResponseSchema
from llm_guard.dialects.resume.transcript import Prefill, Transcript
from llm_guard.dialects.sse import StreamReader, Usage
from llm_guard.outcome import Refusal

DialectName = Literal["openai", "anthropic"]
FormName = Literal["vertex", "bedrock-invoke"]
"""Forms in which clouds take the requests of a dialect: Google's Vertex AI, and InvokeModel of Amazon Bedrock."""


class Dialect(Protocol):
    """Interface of the dialect modules. A new dialect is one more module, and one more entry of `DialectName` and
    `DIALECTS`."""

    OWN_PATHS: tuple[str, ...]
    """Beginnings of the paths that identify the dialect of a request."""
    DEFAULT_PATH: str
    """Path of a completion: of probes, and of predictions for a call of which only the model is known."""
    MODELS_PATH: str
    """Path of the list of models."""
    PATH_IN_BASE_URL: str
    """Beginning of each call's path that a base URL already contains, as in the official SDKs."""
    DEFAULT_AUTH: Literal["bearer", "x-api-key"]
    """Header that carries the API key, unless the config names another one."""
    REQUIRED_HEADERS: tuple[tuple[str, str], ...]
    """Headers that every request needs besides the key."""
    BASE_URL: str
    """Base URL of the provider that defines the dialect."""
    KEY_VARIABLE: str
    """Variable of the environment in which its SDKs look for the key."""
    MODEL_PATTERN: str
    """Pattern of the names of its models."""
    OVERLOADED_STATUS: int | None
    """Status with which a provider says that it is overloaded; None: no status of its own."""
    WHOLE_LIST: str
    """Query for a list of models that is not cut into pages."""
    PAGE_CURSOR: str
    """Query parameter with the id after which the next page of a list begins."""
    END_EVENT: str | None
    """The event that ends every stream; None if some compatible servers leave the end out."""
    SHARED_OBJECT_TYPES: frozenset[str]
    """Values of `type` in objects that the provider offers to all accounts, so that no caller owns their ids."""

    @property
    def RESPONSES_PATH(self) -> str | None:  # noqa: N802  # a constant of the module
        """Path of the Responses API, which many compatible servers lack; None if the dialect has none."""

    @property
    def NEEDS_MODEL(self) -> frozenset[str]: ...  # noqa: N802  # a constant of the module
    @property
    def ANSWERS(self) -> Mapping[tuple[str, str], ResponseSchema]: ...  # noqa: N802  # a constant of the module
    def is_marked_by(self, headers: Container[str]) -> bool: ...
    def probe_body(self, model: str, family: str) -> dict[str, Any]: ...
    def prefill_body(self, model: str, family: str, prefill: Prefill) -> dict[str, Any]: ...
    def answer_text(self, body: dict[str, Any]) -> str: ...
    def transcript(self, path: str) -> Transcript | None: ...
    def stream_reader(self, path: str, choices: int, *, is_lenient: bool = False) -> StreamReader: ...
    def usage_of(self, usage: dict[str, Any]) -> Usage: ...
    def refusal_body(self, refusal: Refusal, request_id: str) -> dict[str, Any]: ...
    def limit_headers(
        self, what: str, allowed: str, left: str, reset_s: float, wall: float
    ) -> tuple[tuple[str, str], ...]: ...
    def model_entry(self, name: str) -> dict[str, Any]: ...
    def model_list(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]: ...
    def error_event(self, refusal: Refusal, request_id: str) -> bytes: ...


DIALECTS: Mapping[DialectName, Dialect] = {"openai": openai, "anthropic": anthropic}
FORM_DIALECTS: Mapping[FormName, DialectName] = {"vertex": "anthropic", "bedrock-invoke": "anthropic"}
"""The dialect whose requests take each form."""
FORM_FAMILIES: Mapping[FormName, str] = {"vertex": "vertex", "bedrock-invoke": "bedrock"}
"""The family of each form's errors (`resilience.classification.vocabulary.families`)."""
DEFAULT_DIALECT: DialectName = "openai"
"""Dialect of a request that neither its path nor its headers identify."""
_OWN_PATHS = tuple((dialect.OWN_PATHS, name) for name, dialect in DIALECTS.items())
"""In this order: `/v1/complete` is also the beginning of OpenAI's `/v1/completions`."""


def dialect_of(path: str, headers: Container[str]) -> DialectName:
    """The dialect of a request, from its path (without query); the lower-case names of its headers decide for paths
    that several dialects have."""
    for own_paths, name in _OWN_PATHS:
        if path.startswith(own_paths):
            return name
    for name, dialect in DIALECTS.items():
        if dialect.is_marked_by(headers):
            return name
    return DEFAULT_DIALECT


ENDPOINT_DIALECTS: Mapping[str, DialectName] = {
    path: dialect_of(path, ())
    for dialect in DIALECTS.values()
    for _, path in dialect.ANSWERS
    if path.startswith(dialect.OWN_PATHS)
}
"""The results of `dialect_of` for the endpoints that their path alone identifies, whatever the headers."""
