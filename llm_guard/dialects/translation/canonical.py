"""The canonical form between the dialects: a request as data, and a response as a sequence of method calls.

It is structured like Messages, in blocks, because that is a superset of what a chat can express. A whole response and
a stream are read into the same sequence, so that they cannot disagree.

The data are structs of msgspec, which C code creates: a call makes about twenty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.dialects.translation.losses import Losses

JsonObject = dict[str, Any]
"""A JSON object."""

StopCause = Literal["end", "stop_sequence", "length", "context", "tool_calls", "refusal", "pause"]
"""Why a response ended. `context`: the model's context window is full. `pause`: the provider interrupted a long turn.
"""


class UnreadableRequestError(ValueError):
    """A request that does not have its endpoint's form."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class InvalidCallError(ValueError):
    """A response that ended well, with a tool call whose arguments are not JSON: the model's mistake."""


class TextBlock(Struct):
    text: str


class MediaBlock(Struct):
    """An image or a document. One of `data`, `url` and `text` is set."""

    kind: Literal["image", "document"]
    media_type: str = ""
    data: str = ""
    """Base64."""
    url: str = ""
    text: str = ""
    """Content of a document in plain text."""
    title: str = ""


class ToolCallBlock(Struct):
    id: str
    name: str
    arguments: str | JsonObject
    """A text in a chat, an object in Messages."""


class ToolResultBlock(Struct):
    id: str
    content: list[TextBlock | MediaBlock]
    is_error: bool = False


ConversationBlock = TextBlock | MediaBlock | ToolCallBlock | ToolResultBlock


class ConversationTurn(Struct):
    """A message of the conversation. `system`: an instruction after the beginning."""

    role: Literal["user", "assistant", "system"]
    blocks: list[ConversationBlock]


class ToolDefinition(Struct):
    name: str
    description: str | None
    schema: JsonObject
    is_strict: bool | None = None


class ToolOrigin(Struct, frozen=True):
    """How a Responses request defines a tool that is more than a function."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    """True if it is called with a text. The other dialects call it with an object that has only `CUSTOM_INPUT`."""


CUSTOM_INPUT = "input"
"""Member with the text for a custom tool."""


class ToolChoice(Struct):
    """`named`: the tool `name`. `none` and `any` as in Messages."""

    mode: Literal["auto", "any", "none", "named"]
    name: str = ""


class OutputSchema(Struct):
    """The JSON schema that the response has to match."""

    schema: JsonObject
    name: str = "response"
    description: str | None = None
    is_strict: bool = True


class CanonicalRequest(Struct):
    """The request of a client, in any dialect."""

    losses: Losses = field(default_factory=Losses)
    """Fields that the other dialect cannot express."""
    system: list[str] = []
    turns: list[ConversationTurn] = []
    tools: list[ToolDefinition] = []
    tool_choice: ToolChoice | None = None
    is_parallel: bool | None = None
    """False: one tool call at most; None: the provider's default."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stops: list[str] = []
    output: OutputSchema | None = None
    effort: str | None = None
    """In the words of the client's dialect; None: not mentioned."""
    thinking_budget: int | None = None
    """Tokens; 0: thinking is off; None: not mentioned."""
    has_signed_thinking: bool = False
    """True if the last turn of the assistant has thinking with a signature."""
    is_stream: bool = False
    wants_usage: bool = False
    """True if the client of a streamed chat wants its usage."""
    continues_last_turn: bool = False
    """True if a last turn of the assistant is the beginning of the response, as in Messages."""
    echoed: JsonObject = {}
    """Fields of a Responses request that its response repeats."""
    tool_origins: dict[str, ToolOrigin] = {}
    """Tools that are more than a function, by the name that they have in `tools`."""


class RequestTarget(Struct, frozen=True):
    """Facts about the deployment that the writer of a request needs."""

    model: str
    family: str = ""
    """Family of the provider (`resilience.classification.vocabulary.families`)."""
    default_max_tokens: int = 32_000
    """Limit for a request without one, where the dialect requires it."""
    most_tokens: int | None = None
    """The model's largest limit, as learned from its errors; None: not known."""
    prefill: Prefill = "none"
    """How it accepts the beginning of a response."""


class TokenCounts(Struct):
    """Usage of one response. `prompt` includes the tokens that were read from or written to a cache."""

    prompt: int | None = None
    cached: int | None = None
    created: int | None = None
    """Written to the cache."""
    output: int | None = None
    reasoning: int | None = None


class ResponseSink(Protocol):
    """Receives a response piece by piece. `begin` comes first, `end` last; `key` identifies a tool call within it."""

    def begin(self, response_id: str, model: str, created: int) -> None: ...
    def text(self, text: str) -> None: ...
    def reasoning(self, text: str) -> None: ...
    def call(self, key: object, call_id: str, name: str) -> None: ...
    def arguments(self, key: object, text: str) -> None: ...
    def end_block(self) -> None:
        """Ends the present text: the next one is a block of its own."""

    def refusal(self, text: str) -> None: ...
    def keep_alive(self) -> None: ...
    def end(self, stop: StopCause, stop_sequence: str | None, counts: TokenCounts) -> None:
        """Ends the response. Raises ValueError if it cannot be expressed, as a tool call whose arguments are not
        JSON."""


def stop_with_calls(stop: StopCause, *, has_calls: bool) -> StopCause:
    """Returns the reason to report: a response with tool calls ends for them, whatever the provider says, or the agent
    would stop without a word. An early end stays one."""
    if has_calls:
        return "tool_calls" if stop in ("end", "stop_sequence", "pause") else stop
    return "end" if stop == "tool_calls" else stop


def texts_of(blocks: Sequence[ConversationBlock]) -> list[str]:
    """Returns the texts among blocks."""
    return [block.text for block in blocks if isinstance(block, TextBlock)]
