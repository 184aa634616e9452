"""Signatures of AWS, version 4: pure functions, and the signing keys of a day.

botocore's own take 0.2 ms a call and 0.7 ms a MiB, in the event loop. The tests compare each part with botocore's.
https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

from llm_guard.resilience.memo import Memo

_MOST_KEYS = 16


@dataclass(frozen=True, slots=True)
class SigningScope:
    """Region and service that a signature is for."""

    region: str
    service: str


class SigningKeys:
    """Derives signing keys, and keeps those of the last days: deriving one takes four rounds of HMAC."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, SigningScope], bytes] = {}

    def key(self, secret_key: str, day: str, scope: SigningScope) -> bytes:
        kept = self._kept.get((secret_key, day, scope))
        if kept is None:
            kept = _digest(f"AWS4{secret_key}".encode(), day)
            for part in (scope.region, scope.service, "aws4_request"):
                kept = _digest(kept, part)
            if len(self._kept) >= _MOST_KEYS:
                self._kept.clear()
            self._kept[secret_key, day, scope] = kept
        return kept


def canonical_query(query: str) -> str:
    """Returns a query as it is signed, and has to be sent: sorted, and without parameters of a signature."""
    pairs = [(_requoted(name), _requoted(value)) for name, _, value in map(_parted, query.split("&")) if name]
    kept = sorted(pair for pair in pairs if not pair[0].lower().startswith("x-amz-"))
    return "&".join(f"{name}={value}" for name, value in kept)


def signature_headers(
    keys: SigningKeys,
    access_key: str,
    secret_key: str,
    scope: SigningScope,
    at: float,
    method: str,
    path: str,
    query: str,
    headers: Sequence[tuple[str, str]],
    payload_hash: str,
) -> list[tuple[str, str]]:
    """Returns the two headers that sign a request with its Host, session token and content type. `at`: seconds since
    the epoch; `query` in its canonical form; `payload_hash`: SHA-256 of the body, in hexadecimal."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    signed = _signed([*headers, ("x-amz-date", stamp)])
    names = ";".join(signed)
    lines = "".join([f"{name}:{value}\n" for name, value in signed.items()])
    request = f"{method}\n{_paths[path]}\n{query}\n{lines}\n{names}\n{payload_hash}"
    place = f"{stamp[:8]}/{scope.region}/{scope.service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{place}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = _digest(keys.key(secret_key, stamp[:8], scope), text).hex()
    credential = f"AWS4-HMAC-SHA256 Credential={access_key}/{place}, SignedHeaders={names}, Signature={signature}"
    return [("X-Amz-Date", stamp), ("Authorization", credential)]


def _signed(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Returns the headers that AWS requires in a signature, by lower-case name and in order.

    No other: a caller could choose one that AWS reads in another way, or that a proxy changes, and the refusal would
    count against the credentials, which all callers share. So a content type is left out that is repeated or has
    characters beyond ASCII.
    """
    found: dict[str, str] = {}
    types: list[str] = []
    for written, value in headers:
        name = _lower[written]
        if name == "content-type":
            types.append(value)
        elif name == "host" or name.startswith("x-amz-"):
            found[name] = _plain(value)
    if len(types) == 1 and types[0].isascii():
        found["content-type"] = _plain(types[0])
    return dict(sorted(found.items()))


def _plain(value: str) -> str:
    return " ".join(value.split())


def _canonical_path(path: str) -> str:
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    end = "/" if kept and path.endswith("/") else ""
    return quote(f"/{'/'.join(kept)}{end}", safe="/~")


def _parted(parameter: str) -> tuple[str, str, str]:
    return parameter.partition("=")


def _requoted(text: str) -> str:
    return quote_from_bytes(unquote_to_bytes(text.replace("+", " ")), safe="-_.~")


def _digest(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


_lower = Memo(str.lower)
_paths = Memo(_canonical_path)
