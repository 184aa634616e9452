"""Cache key: what makes two requests the same in the response cache.

`resilience.caching.cacheability` decides which requests have a key, `proxy.handler` identifies the caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_CANONICAL_BYTES = 1 << 16
"""A longer body is compared byte by byte: parsing the costliest one of this size takes 5 ms."""

_SILENT = frozenset({
    "accept-charset", "accept-encoding", "accept-language", "authorization", "b3", "baggage", "cache-control", "cf-ray",
    "connection", "content-encoding", "content-length", "content-type", "cookie", "dnt", "elastic-apm-traceparent",
    "host", "idempotency-key", "newrelic", "openai-organization", "openai-project", "origin", "pragma", "priority",
    "referer", "request-id", "sentry-trace", "traceparent", "tracestate", "uber-trace-id", "user-agent", "x-amz-cf-id",
    "x-amzn-trace-id", "x-api-key", "api-key", "x-client-request-id", "x-cloud-trace-context", "x-correlation-id",
    "x-request-id", "x-requested-with",
})  # fmt: skip
"""Headers that do not affect the response, and those with a field of their own in `CacheKeyFields`: credentials,
account, media type. All others count, including unknown ones: a provider may distinguish users by its own header."""
_SILENT_KINDS = ("x-stainless-", "x-datadog-", "x-b3-", "x-llm-guard-", "sec-")


@dataclass(frozen=True, slots=True)
class CacheKeyFields:
    """Everything that a response depends on."""

    dialect: str
    method: str
    path: str
    query: str
    upstream: str
    """Upstream of an `/upstreams/NAME` path; empty: a model's route."""
    route: str
    targets: tuple[str, ...]
    """Targets without fallbacks: an alias that a reload points elsewhere has other responses."""
    model: str
    """The requested name."""
    is_stream: bool
    media_type: str
    headers: tuple[tuple[str, str], ...]
    """Result of `relevant_headers`."""
    body: bytes
    """Result of `canonical`."""
    caller: tuple[str, ...]
    """The caller's identity; empty: shared by all callers."""


def key_of(question: CacheKeyFields) -> bytes:
    """Returns the SHA-256 over all fields. Each field is prefixed by its length and each list by its number of fields,
    so that no byte of one can be taken for part of the next."""
    digest = hashlib.sha256()
    for field in _fields(question):
        digest.update(len(field).to_bytes(8, "big"))
        digest.update(field)
    return digest.digest()


def relevant_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the headers that may affect a response, sorted by name; repeated ones keep their order. Expects
    lower-case names."""
    kept = [(name, value.strip()) for name, value in headers if not _is_silent(name)]
    return tuple(sorted(kept, key=lambda pair: pair[0]))


def media_type(content_type: str) -> str:
    """Removes parameters: a charset changes nothing in a body that is read as UTF-8."""
    return content_type.partition(";")[0].strip().lower()


def canonical(body: bytes) -> bytes | None:
    """Returns the same bytes for all bodies with the same meaning: JSON with sorted keys, without blanks, strings and
    fractions by value. 1 and 1.0 differ: the model is shown a schema as it was written.

    None for bodies that two parsers may read differently: with a repeated key, NaN or an infinite number, and those
    that are not a JSON object in UTF-8.
    """
    if len(body) > MOST_CANONICAL_BYTES:
        return b"whole:" + body
    try:
        value = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)
        if not isinstance(value, dict):
            return None
        return b"read:" + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return None


def _fields(question: CacheKeyFields) -> Iterator[bytes]:
    yield b"1"  # version of this format: another one must not find what is on disk
    for text in (
        question.dialect, question.method, question.path, question.query, question.upstream, question.route,
        question.model, question.media_type, "stream" if question.is_stream else "",
    ):  # fmt: skip
        yield _bytes(text)
    yield b"%d" % len(question.targets)
    for text in question.targets:
        yield _bytes(text)
    yield b"%d" % len(question.headers)
    for name, value in question.headers:
        yield _bytes(name)
        yield _bytes(value)
    yield b"%d" % len(question.caller)
    for text in question.caller:
        yield _bytes(text)
    yield question.body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_silent(name: str) -> bool:
    return name in _SILENT or name.startswith(_SILENT_KINDS)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number out of range")
    return number
