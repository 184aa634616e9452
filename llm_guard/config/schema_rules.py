"""Parts of the published JSON Schema that pydantic cannot derive from types: names, URLs, and keys that depend on each
other. The rules themselves are in `config.models`, `config.checks` and `config.warnings`.
"""

from __future__ import annotations

from itertools import combinations

from pydantic import JsonValue

from llm_guard.config.clouds import schema_rules
from llm_guard.dialects import DIALECTS, FORM_DIALECTS, FormName

ENDPOINTS = sorted({path for dialect in DIALECTS.values() for _, path in dialect.ANSWERS}, key=len, reverse=True)
"""Paths of all model calls, the longest first: `/v1/chat/completions` also ends in that of `/v1/completions`."""

_ENDINGS = "|".join(sorted({path.removeprefix("/v1") for path in ENDPOINTS}))
BASE_URL: dict[str, JsonValue] = {
    "pattern": r"^https?://[^\s/?#@]+[^\s?#]*$",
    "not": {"pattern": rf"(?:{_ENDINGS})/*$"},
}
"""A base URL without the path of a call at its end."""
BASE_URL_OF_DIALECT: list[JsonValue] = [
    {
        "if": {"properties": {"dialect": {"const": name}}, "required": ["dialect"]},
        "then": {"properties": {"base_url": {"not": {"pattern": "/v1/*$"}}}},
    }
    for name, dialect in DIALECTS.items()
    if not dialect.PATH_IN_BASE_URL
]
FORM_BASE_URLS: dict[FormName, str] = {"vertex": "/v1[^/]*/projects/[^/]+/locations/[^/]+/*$"}
"""Patterns of the base URLs with which the services of forms have their paths."""
FORMS_OF_DIALECTS: list[JsonValue] = [
    {
        "if": {"properties": {"form": {"const": form}}, "required": ["form"]},
        "then": {
            "properties": {
                "dialect": {"const": dialect},
                "auth": {"not": {"enum": ["x-api-key", "api-key"]}},
                "probe": {"not": {"type": "object", "properties": {"kind": {"const": "models"}}, "required": ["kind"]}},
                **({"base_url": {"pattern": FORM_BASE_URLS[form]}} if form in FORM_BASE_URLS else {}),
            }
        },
    }
    for form, dialect in FORM_DIALECTS.items()
]
"""What a form requires of an upstream's other keys."""
_TEXT: JsonValue = {"type": "string", "pattern": r"^[^$]"}
_SOURCES: dict[str, JsonValue] = {
    "api_key": _TEXT, "api_key_file": _TEXT, "api_keys": {"type": "array", "minItems": 1},
}  # fmt: skip
ONE_KEY_SOURCE: list[JsonValue] = [
    {"not": {"required": list(pair), "properties": {name: _SOURCES[name] for name in pair}}}
    for pair in combinations(_SOURCES, 2)
]
"""At most one source of a key is set. One that is a variable may be empty, and so unset."""
CLOUD_AUTH = schema_rules(_SOURCES)
"""Credentials of a cloud take the place of a key."""
CLIENT_KEYS_FOR_ISOLATION: dict[str, JsonValue] = {
    "if": {"properties": {"isolate_objects": {"const": True}}, "required": ["isolate_objects"]},
    "then": {"properties": {"client_keys": {"minItems": 1}}, "required": ["client_keys"]},
}


def named(pattern: str) -> dict[str, JsonValue]:
    """Returns the schema of a mapping with at least one entry, and with keys that match the pattern."""
    return {"minProperties": 1, "propertyNames": {"pattern": pattern}}
