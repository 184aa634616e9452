"""What a request asks for, and that it cannot be read: the words of those that look at requests.

Owns no reading: that is done in `gateway.model_field` and `gateway.body`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_MODEL_CHARS = 256
RARE = frozenset({"n", "previous_response_id", "conversation", "background", "store", "prompt", "input"})
"""Fields that few JSON bodies have."""
FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", *sorted(RARE))
"""All that is read of a JSON body."""
_MOST_TOKENS = 1 << 31


class BadRequest(Exception):
    """A request that no upstream could read; the text is for the caller."""

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
        """The gateway has no room for it now; the request itself is in order."""
        self.retry_after_s = retry_after_s


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a body asks for, as far as the gateway needs to know."""

    model: str | None = None
    is_stream: bool = False
    choices: int = 1
    """For each prompt."""
    prompts: int = 1
    """How many a legacy completion has. 0: an unknown number."""
    is_bound: bool = False
    """It goes on from what one provider keeps: a previous response, a conversation."""
    response_format: str = ""
    """Of a form."""
    may_stream: bool = False
    """`stream` is a value that some servers take for `true`: 1, "true"."""
    max_tokens: int = 0
    """The most tokens of output that it asks for; 0: it does not say."""
    is_stateful: bool = False
    """It asks the provider to keep it, or goes on from what is kept."""
    is_model_doubled: bool = False
    """It names several models. Of a JSON body that was there as a whole: under several names; repetition of
    one is not seen."""
    inputs: int = 0
    """How many inputs an embedding, a moderation or a legacy completion has. 0: unknown."""


NOTHING = Asked()


def token_limit(fields: Mapping[str, Any]) -> int:
    """The most tokens of output that a JSON object asks for; 0: it does not say, or not as a number."""
    number = fields.get("max_tokens") or fields.get("max_completion_tokens") or fields.get("max_output_tokens")
    return number if type(number) is int and 0 < number < _MOST_TOKENS else 0


def inputs_in(value: Any) -> int:
    """Number of inputs in a field `input` or `prompt`. 0: unknown, as in lists of objects, which are parts of one input
    at some endpoints. A list of numbers is one input in tokens."""
    if type(value) is str:
        return 1
    if type(value) is not list or not value:
        return 0
    return inputs_in_list(value[0], len(value))


def inputs_in_list(first: Any, length: int) -> int:
    """The same for a list of this length, by its first item."""
    if type(first) in (str, list):
        return length
    return 1 if type(first) in (int, float) else 0


def checked_model(model: str) -> str:
    """`model`, if it is a name; raises BadRequest when it is none."""
    if not 0 < len(model) <= MAX_MODEL_CHARS:
        raise BadRequest(400, "invalid_model", f"`model` must have 1 to {MAX_MODEL_CHARS} characters", "model")
    return model
