"""What a request form is: the path, headers and body that a cloud expects in place of its dialect's own."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from llm_guard.dialects.translation.wire_json import decode, encode

_MOST_SEGMENT = 512
"""The longest model id that is sent; Amazon's resource names have up to 2048 characters, in practice below 200."""
_REPLACED_HEADERS = frozenset({"accept", "accept-encoding", "anthropic-version", "api-key", "x-api-key"})
"""Headers that the clouds do not read, or that the form sets itself."""
_BETAS = "anthropic-beta"


class FormError(ValueError):
    """Raised for a request that has no such form. `param` is the field that is to blame; empty for the whole body."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class FormRequest(NamedTuple):
    """A request in its form. The path begins after that of the base URL."""

    path: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestForm:
    """One form. `write` makes path and fields of the body, from the path, the fields and the betas of a request."""

    paths: tuple[str, ...]
    """Paths of the dialect that have this form, all with POST."""
    has_frames: bool
    """True if streams come in Amazon's frames."""
    moves_betas: bool
    """True if betas belong into the body."""
    write: Callable[[str, dict[str, Any], list[str]], str]
    """Changes the fields in place, and returns the path. Raises FormError."""

    def serves(self, method: str, path: str) -> bool:
        return method == "POST" and path in self.paths

    def request(self, path: str, headers: list[tuple[str, str]], body: bytes, model: str | None) -> FormRequest:
        """Returns the form of a request of the dialect. `headers` have the credential, `model` is the deployment's;
        None: that of the body. Raises FormError."""
        fields = _fields_of(body)
        if model is not None:
            fields["model"] = model
        betas = _betas_of(headers) if self.moves_betas else []
        written = self.write(path, fields, betas)
        return FormRequest(written, self.headers(headers), encode(fields))

    def headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the headers of a request in this form. A key in a header of the dialect becomes a bearer token."""
        names = {name.lower(): value for name, value in headers}
        dropped = _REPLACED_HEADERS | {_BETAS} if self.moves_betas else _REPLACED_HEADERS
        kept = [pair for pair in headers if pair[0].lower() not in dropped]
        key = names.get("x-api-key") or names.get("api-key")
        if key is not None and "authorization" not in names:
            kept.append(("Authorization", f"Bearer {key}"))
        return [*kept, ("Accept", "application/json"), ("Accept-Encoding", "identity")]


def model_segment(fields: dict[str, Any], safe: str) -> str:
    """Takes the model out of the fields; returns it as one segment of a path, in which only the characters of `safe`
    are not escaped. Raises FormError for one that cannot be a segment."""
    model = fields.pop("model", None)
    # Servers that strip parameters from a segment see only what precedes the first semicolon.
    if not isinstance(model, str) or model.partition(";")[0] in ("", ".", "..") or len(model) > _MOST_SEGMENT:
        raise FormError("model", f"{model!r:.80} is not the id of a model")
    return urllib.parse.quote(model, safe=safe, errors="replace")


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        fields = decode(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise FormError("", "the body is not a JSON object")
    return fields


def _betas_of(headers: list[tuple[str, str]]) -> list[str]:
    listed = ",".join(value for name, value in headers if name.lower() == _BETAS)
    return [beta.strip() for beta in listed.split(",") if beta.strip()]
