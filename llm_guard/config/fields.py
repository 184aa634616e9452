"""Value types that several parts of the config use (ports, texts, secrets), and the base class of all parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, JsonValue, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from llm_guard.resilience.units import nullable


def key_of(field: str) -> str:
    """The key in the file of a field, which ends with an underscore if the key is a keyword of Python."""
    return field.removesuffix("_")


def wrong(reason: str) -> PydanticCustomError:
    """Creates an error with a reason that does not quote the value, which may be a secret."""
    return PydanticCustomError("config", "{reason}", {"reason": reason})


def _port(value: object) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,5}", value) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 65535:
        raise wrong("must be a port: a whole number from 0 to 65535; 0 takes a free port")
    return number


def _header_value(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch("[\x21-\x7e]*", value):
        raise wrong("must be printable ASCII without spaces and line breaks: it is sent in an HTTP header")
    return value


def _optional_secret(value: object) -> object:
    return None if value == "" else _header_value(value)


class AlsoWritten:
    """Annotation with the JSON Schema of another form in which the file may contain a value."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._written = written

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), dict(self._written)]}


_PORT = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 65535}, {"type": "string", "pattern": "^[0-9]{1,5}$"}]}
_SECRET = {"type": "string", "pattern": r"^(?:[!-#%-~]|\$\$|\$\{[^{}]*\}|\$(?![A-Za-z_{$]))*$"}
"""A dollar sign begins a variable, or is doubled."""
URL = {"type": "string", "pattern": r"^https?://[^\s/?#@]+[^\s#]*$"}
UNGUESSABLE: dict[str, JsonValue] = {"pattern": r"^$|\$\{|^.{16,}$"}
"""JSON Schema of a token, beside that of a secret: short ones can be guessed."""

NonEmptyText = Annotated[str, Field(min_length=1)]
Port = Annotated[int, BeforeValidator(_port), WithJsonSchema(_PORT)]
Secret = Annotated[NonEmptyText, BeforeValidator(_header_value), WithJsonSchema({**_SECRET, "minLength": 1})]
OptionalSecret = Annotated[str | None, BeforeValidator(_optional_secret), WithJsonSchema(nullable(_SECRET))]
"""An empty text is None, because an unset variable with an empty default produces one."""


class Strict(BaseModel):
    """A part of the file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
