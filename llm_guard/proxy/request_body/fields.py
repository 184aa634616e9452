"""The fields that the gateway reads from a request, and the error for requests that it cannot read.

`proxy.request_body.model_field` and `proxy.request_body.reader` read them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

MAX_MODEL_CHARS = 256
NAMES_IN_MODEL = ("id", "name")
"""Name fields of a model that is an object (Anthropic's agents)."""


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


class JsonFields(msgspec.Struct, gc=False):
    """The fields that are read from a JSON body, with any value."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    store: Any = None
    prompt: Any = None
    input: Any = UNSET


FIELDS = JsonFields.__struct_fields__
"""Their names."""


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
    """The request names several models. Not detected in a JSON body that was inspected as a whole: see
    `duplicate_models.check_single_model`."""
    inputs: int = 0
    """Number of inputs of an embedding, a moderation or a legacy completion; 0: unknown."""
    inflated_bytes: int = 0
    """Size of a compressed body once it is inflated; 0 for any other body."""


NOTHING = BodyFields()


def inputs_in_list(first: Any, length: int) -> int:
    """Returns the number of inputs in a list of this length, judged by its first item."""
    if type(first) in (str, list):
        return length
    return 1 if type(first) in (int, float) else 0
