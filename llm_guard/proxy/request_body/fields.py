"""The fields that the gateway reads from a request, and the error for requests that it cannot read.

`proxy.request_body.model_field` and `proxy.request_body.reader` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_MODEL_CHARS = 256
RARE = frozenset({"n", "previous_response_id", "conversation", "background", "store", "prompt", "input"})
"""Fields that few JSON bodies have."""
FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", *sorted(RARE))
"""All fields that are read from a JSON body."""
_MOST_TOKENS = 1 << 31


class BadRequest(Exception):
    """Raised for a request that no upstream could read; the text is for the caller."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        *,
        should_retry: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.should_retry = should_retry
        """True if the request is in order, and the gateway has no room for it now."""
        self.retry_after_s = retry_after_s


class BodyFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a request body that the gateway uses."""

    model: str | None = None
    is_stream: bool = False
    choices: int = 1
    """Choices for each prompt."""
    prompts: int = 1
    """Number of prompts of a legacy completion; 0: unknown."""
    is_sticky: bool = False
    """The request continues a previous response or a conversation, which only one provider has."""
    response_format: str = ""
    """`response_format` of a form."""
    may_stream: bool = False
    """`stream` has a value that some servers take for `true`: 1, "true"."""
    max_tokens: int = 0
    """The most output tokens that the request allows; 0: it does not say."""
    is_stateful: bool = False
    """The request has the provider store state, or continues from stored state."""
    is_model_doubled: bool = False
    """The request names several models. For a JSON body that was inspected as a whole: under several names; a repeated
    name is not detected."""
    inputs: int = 0
    """Number of inputs of an embedding, a moderation or a legacy completion; 0: unknown."""
    inflated_bytes: int = 0
    """Size of a compressed body once it is inflated; 0 for any other body."""


NOTHING = BodyFields()


def token_limit(fields: Mapping[str, Any]) -> int:
    """Returns the most output tokens that a JSON object allows; 0: it does not say, or not as a number."""
    number = fields.get("max_tokens") or fields.get("max_completion_tokens") or fields.get("max_output_tokens")
    return number if type(number) is int and 0 < number < _MOST_TOKENS else 0


def inputs_in(value: Any) -> int:
    """Returns the number of inputs in a field `input` or `prompt`; 0: unknown, as for lists of objects, which at some
    endpoints are parts of one input. A list of numbers is one tokenized input."""
    if type(value) is str:
        return 1
    if type(value) is not list or not value:
        return 0
    return inputs_in_list(value[0], len(value))


def inputs_in_list(first: Any, length: int) -> int:
    """Returns the number of inputs in a list of this length, judged by its first item."""
    if type(first) in (str, list):
        return length
    return 1 if type(first) in (int, float) else 0


def checked_model(model: str) -> str:
    """Returns `model` if it is a valid name, else raises BadRequest."""
    if not 0 < len(model) <= MAX_MODEL_CHARS:
        raise BadRequest(400, "invalid_model", f"`model` must have 1 to {MAX_MODEL_CHARS} characters", "model")
    return model
