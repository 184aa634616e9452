"""The minimum that an endpoint's response must contain, as data: enough for the official SDKs to read it.

Also decides which responses are errors. The endpoints' shapes are in `dialects.openai` and `dialects.anthropic`; bodies
are validated in `proxy.response.validation`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Member = Literal["count", "message", "object", "text", "vector"]
"""`message`: an object with a role, or at least one field of model output. `vector`: a list of numbers or a string
(base64) that is not empty.
"""

PerInput = Literal["", "each", "some"]
"""`each`: exactly one item for each input of the request, numbered like them or not at all. `some`: one or more for
each.
"""

Streaming = Literal["never", "optional", "required", "any"]
"""`required`: `stream: true` must be answered with an event stream, and only then. `optional`: `stream: true` may also
be answered without one. `any`: other fields of the request may ask for an event stream.
"""

_TYPE_OF_RESOURCE = re.compile(
    r"(?!.*(?:error|exception|fail|fault|invalid|limit|exceed|capacity|quota|overload|throttl|timeout|unavailable|denied"
    r"|forbidden|unauthorized|not_found|unsupported|reject|refus|bad_|missing|insufficient|internal))[a-z][a-z_.]*"
)
"""Types of resources are written like `deployment_run`. Excludes servers' own error types, which often name only the
cause.
"""
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
    """Maps an item's `type` to the member that it must have, not null."""
    per_input: PerInput = ""
    may_break_off: bool = False
    """True if an item may report that its generation failed (`has_broken_off`)."""


@dataclass(frozen=True, slots=True)
class ResponseSchema:
    """The minimum of a valid response of an endpoint."""

    name: str
    """Name with its article, for messages: `a chat completion`."""
    members: Mapping[str, Member | Items]
    """Required members of the JSON object; empty: not JSON, and relayed without validation."""
    streaming: Streaming = "never"
    carries_error: bool = False
    """True if a member `error` belongs to the resource and is meant for the client: a failed response, a failed job."""
    otherwise: Mapping[str, Items] = field(default_factory=dict)
    """Members that other servers have in the place of all of `members`."""
    list_of: str = ""
    """The list that some servers answer bare, without the object around it."""
    text_formats: frozenset[str] = frozenset()
    """Values of the request's `response_format` for which the response is plain text."""

    @property
    def is_json(self) -> bool:
        return bool(self.members)

    @property
    def always(self) -> list[str]:
        """The members that a good answer of any server has."""
        return [name for name in self.members if not self.otherwise or name in self.otherwise]


def resource(name: str) -> ResponseSchema:
    """The shape of a created object with an id of its own."""
    return ResponseSchema(name, {"id": "text"}, carries_error=True)


def is_error_answer(error: object, kind: object, object_name: object, identity: object) -> bool:
    """True if a JSON object with these members `error`, `type`, `object` and `id` is an error and nothing else.

    A resource (a job, a video, the result of a check) may have a member `error` of its own, filled or not. It is
    recognised by its id, its object, or a type that is not an error's."""
    if kind == "error" or object_name == "error":
        return True
    is_resource = isinstance(identity, str) or isinstance(object_name, str)
    is_resource = is_resource or (isinstance(kind, str) and _TYPE_OF_RESOURCE.fullmatch(kind) is not None)
    return not is_resource and reports(error)


def reports(error: object) -> bool:
    """True if the value of a member `error` reports one: neither null nor an object without any words."""
    if isinstance(error, dict):
        return any(error.get(name) for name in _WORDS_OF_ERRORS)
    return bool(error)


def has_broken_off(choice: Mapping[str, object]) -> bool:
    """True if a choice reports that its generation failed.

    OpenRouter sometimes reports `stop`, and the provider's own reason in `native_finish_reason`."""
    return has_ended_badly(choice.get("finish_reason"), choice.get("native_finish_reason"), choice.get("error"))


def has_ended_badly(reason: object, native_reason: object, error: object) -> bool:
    """Like `has_broken_off`, from the values of a choice's members; None: the choice does not have it."""
    if is_breakage(reason) or (native_reason is not None and is_breakage(native_reason)):
        return True
    return error is not None and reports(error)


def is_breakage(reason: object) -> bool:
    """True if a finish reason, in any spelling, is a failure of the server."""
    return isinstance(reason, str) and reason.lower().replace("-", "_") in _BROKEN_OFF
