"""The fields that the gateway reads from a request, and the error for requests that it cannot read.

`proxy.request_body.model_field` and `proxy.request_body.reader` read them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

MAX_MODEL_CHARS = 256
NAMES_IN_MODEL = ("id", "name")
"""Name fields of a model that is an object (Anthropic's agents)."""
_NUMBERS_AND_TEXT = frozenset({int, float, str})
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


def json_fields(value: dict[str, Any]) -> JsonFields:
    """Returns the fields that are read, of an object with these members."""
    return msgspec.convert(value, JsonFields)


def body_fields(fields: JsonFields) -> BodyFields:
    """Returns the fields of a JSON object. Raises BadRequest if its model is not a valid name."""
    (
        model, stream, max_tokens, max_completion_tokens, max_output_tokens, n,
        previous_response, conversation, background, store, prompt, inputs,
    ) = astuple(fields)  # fmt: skip
    is_bound = _says(previous_response) or _says(conversation)
    return BodyFields(
        None if model is None else _model_of(model),
        stream is True,
        n if type(n) is int and 0 < n < 1000 else 1,
        inputs_in(prompt) if prompt else 1,
        is_bound,
        "",
        type(stream) in _NUMBERS_AND_TEXT and bool(stream),
        token_limit(max_tokens or max_completion_tokens or max_output_tokens),
        is_bound or _says(background) or _says(store),
        False,
        inputs_in(prompt if inputs is UNSET else inputs),
    )


def token_limit(number: Any) -> int:
    """Returns a limit of the output tokens, as it is written in a body; 0: there is none, or it is not a number."""
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


def no_string() -> BadRequest:
    return BadRequest(400, "invalid_model", "`model` must be a string", "model")


def _model_of(model: Any) -> str | None:
    """Returns the name in a field `model`; None if that is an object without one. Raises BadRequest."""
    if type(model) is dict:
        named = {model[name] for name in NAMES_IN_MODEL if type(model.get(name)) is str}
        if len(named) > 1:
            raise no_string()
        if not named:
            return None
        model = named.pop()
    if type(model) is not str:
        raise no_string()
    return checked_model(model)


def _says(value: Any) -> bool:
    return value is not None and value is not False and value != ""
