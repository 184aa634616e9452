"""What an endpoint's answer must have at least, as data: enough for the official SDKs to read it.

Owns the vocabulary of shapes, and which answers are errors. Does not own the endpoints' shapes (`dialect.openai`,
`dialect.anthropic`), nor how a body is read by one (`gateway.answer_shape`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Member = Literal["count", "message", "object", "text", "vector"]
"""`message`: an object with a role, or at least one field of what a model can say. `vector`: a list of numbers or a
string (base64) that is not empty."""

PerInput = Literal["", "each", "some"]
"""`each`: exactly one item for each input of the request, numbered like them or not at all. `some`: one or more for
each."""

Streaming = Literal["never", "optional", "required", "any"]
"""`required`: `stream: true` is answered with an event stream, and without it there is none. `optional`: it may be
answered without one as well. `any`: other fields of the request may ask for an event stream."""

_TYPE_OF_RESOURCE = re.compile(
    r"(?!.*(?:error|exception|fail|fault|invalid|limit|exceed|capacity|quota|overload|throttl|timeout|unavailable|denied"
    r"|forbidden|unauthorized|not_found|unsupported|reject|refus|bad_|missing|insufficient|internal))[a-z][a-z_.]*"
)
"""Types are written like `deployment_run`. Servers' own types of errors are often named by no more than their cause."""
_BROKEN_OFF = frozenset({
    "error", "error_finish", "server_error", "internal_error", "failed", "abort", "aborted", "timeout", "network_error",
    "insufficient_system_resource",
})  # fmt: skip
"""Finish reasons of OpenRouter, Mistral, vLLM, SGLang, Z.ai, DeepSeek and servers behind them."""
_WORDS_OF_ERRORS = ("message", "code", "type", "detail", "status")


@dataclass(frozen=True, slots=True)
class Items:
    """A list of objects."""

    members: Mapping[str, Member]
    """Each item has all of these."""
    one_of: tuple[str, ...] = ()
    """Each item has one of these, and it is not null."""
    at_least: int = 1
    needed: Mapping[str, str] = field(default_factory=dict)
    """The member that an item of this `type` has, not null."""
    per_input: PerInput = ""
    may_break_off: bool = False
    """Each says how its generation ended: in full, or by a failure (`has_broken_off`)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The smallest good answer of an endpoint."""

    name: str
    """With its article, for messages: `a chat completion`."""
    members: Mapping[str, Member | Items]
    """Of the JSON object; empty: it is not JSON, and passes as it comes."""
    streaming: Streaming = "never"
    carries_error: bool = False
    """Its `error` belongs to a resource, and is the client's to read: a failed response, a failed job."""
    text_formats: frozenset[str] = frozenset()
    """Values of the request's `response_format` for which the answer is plain text."""

    @property
    def is_json(self) -> bool:
        return bool(self.members)


def resource(name: str) -> Shape:
    """A created object with an id of its own."""
    return Shape(name, {"id": "text"}, carries_error=True)


def is_error_answer(error: object, kind: object, object_name: object, identity: object) -> bool:
    """Whether a JSON object with these members `error`, `type`, `object` and `id` is an error and nothing else.

    A resource (a job, a video, the outcome of a check) may have a member `error` of its own, filled or not. It is named
    by its id, its object or a type that is none of an error.
    """
    if kind == "error" or object_name == "error":
        return True
    is_resource = isinstance(identity, str) or isinstance(object_name, str)
    is_resource = is_resource or (isinstance(kind, str) and _TYPE_OF_RESOURCE.fullmatch(kind) is not None)
    return not is_resource and reports(error)


def reports(error: object) -> bool:
    """Whether the value of a member `error` reports one: neither null nor an object of nulls."""
    if isinstance(error, dict):
        return any(error.get(name) is not None for name in _WORDS_OF_ERRORS)
    return bool(error)


def has_broken_off(choice: Mapping[str, object]) -> bool:
    """Whether a choice reports that its generation failed, and did not end.

    OpenRouter calls it `stop` at times, and has the reason of the provider behind it in `native_finish_reason`.
    """
    return has_ended_badly(choice.get("finish_reason"), choice.get("native_finish_reason"), choice.get("error"))


def has_ended_badly(reason: object, native_reason: object, error: object) -> bool:
    """As `has_broken_off`, of the values of a choice's members; None: the choice does not have it."""
    if is_breakage(reason) or (native_reason is not None and is_breakage(native_reason)):
        return True
    return error is not None and reports(error)


def is_breakage(reason: object) -> bool:
    """Whether a finish reason, in any spelling, is a failure of the server."""
    return isinstance(reason, str) and reason.lower().replace("-", "_") in _BROKEN_OFF
