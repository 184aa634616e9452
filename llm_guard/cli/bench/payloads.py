"""Request bodies for a load, from a JSONL file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode


class PayloadError(ValueError):
    """A file without usable request bodies; the message names the line."""


def read_payloads(path: Path, *, needs_model: bool) -> tuple[dict[str, Any], ...]:
    """Returns the body in each line; empty lines are left out. Raises OSError and PayloadError."""
    found = tuple(_payloads(path, needs_model=needs_model))
    if not found:
        raise PayloadError(f"{path}: has no lines; write one request body, a JSON object, in each")
    return found


def _payloads(path: Path, *, needs_model: bool) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            payload = decode(line)
        except DecodeError as error:
            raise PayloadError(f"{path}:{number}: is not JSON: {error}") from None
        if not isinstance(payload, dict):
            raise PayloadError(f"{path}:{number}: is not a JSON object, as a request body must be")
        if needs_model and not isinstance(payload.get("model"), str):
            raise PayloadError(f"{path}:{number}: has no model; add one, or give --model")
        yield payload
