"""What is the same request: the key under which its answer is kept.

Owns how a request is written down for that. Does not own which requests have a key (`policy.cacheable`), nor who a
caller is (`gateway.server`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_CANONICAL_BYTES = 1 << 16
"""A longer body stands for itself, byte by byte: to take apart the costliest one of this size takes 5 ms."""

_SILENT = frozenset({
    "accept-charset", "accept-encoding", "accept-language", "authorization", "b3", "baggage", "cache-control", "cf-ray",
    "connection", "content-encoding", "content-length", "content-type", "cookie", "dnt", "elastic-apm-traceparent",
    "host", "idempotency-key", "newrelic", "openai-organization", "openai-project", "origin", "pragma", "priority",
    "referer", "request-id", "sentry-trace", "traceparent", "tracestate", "uber-trace-id", "user-agent", "x-amz-cf-id",
    "x-amzn-trace-id", "x-api-key", "api-key", "x-client-request-id", "x-cloud-trace-context", "x-correlation-id",
    "x-request-id", "x-requested-with",
})  # fmt: skip
"""Headers that say nothing of the answer, and those that a question has apart: credentials, account, media type. All
others count, also those that nobody has heard of: a provider may tell users apart by a header of its own."""
_SILENT_KINDS = ("x-stainless-", "x-datadog-", "x-b3-", "x-llm-guard-", "sec-")


@dataclass(frozen=True, slots=True)
class Question:
    """All that an answer depends on."""

    dialect: str
    method: str
    path: str
    query: str
    upstream: str
    """Whose path it was; empty: a model's route."""
    route: str
    targets: tuple[str, ...]
    """Where it leads, without its fallbacks: an alias that a reload points elsewhere has other answers."""
    model: str
    """As it was asked for."""
    is_stream: bool
    media_type: str
    headers: tuple[tuple[str, str], ...]
    """As `telling` gives them."""
    body: bytes
    """As `canonical` gives it."""
    caller: tuple[str, ...]
    """Who asks; empty: all are one."""


def key_of(question: Question) -> bytes:
    """SHA-256 over all of it. Every field has its length before it, and every list the number of its fields, so that no
    byte of one can pass for a part of the next."""
    digest = hashlib.sha256()
    for field in _fields(question):
        digest.update(len(field).to_bytes(8, "big"))
        digest.update(field)
    return digest.digest()


def telling(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Those on which an answer may depend, of headers with lower-case names; in an order of their own, but that of
    repeated ones is kept."""
    kept = [(name, value.strip()) for name, value in headers if not _is_silent(name)]
    return tuple(sorted(kept, key=lambda pair: pair[0]))


def media_type(content_type: str) -> str:
    """Without parameters: a charset changes nothing where a body is read as UTF-8."""
    return content_type.partition(";")[0].strip().lower()


def canonical(body: bytes) -> bytes | None:
    """The same bytes for all bodies that mean the same: JSON with sorted keys, without blanks, strings and fractions by
    their values. 1 and 1.0 are two: a schema in which one of them stands is shown to the model as it was written.

    None for what two readers may take for two things: a key that is there twice, NaN, a number beyond all measure, and
    what is no JSON object in UTF-8.
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


def _fields(question: Question) -> Iterator[bytes]:
    yield b"1"  # of this form: with another one, what is on a disk must not be found
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
        raise ValueError("a key is there twice")
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number beyond all measure")
    return number
