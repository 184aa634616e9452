"""Signatures of AWS: botocore's own signer is the judge."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from llm_guard.upstreams.credentials.sigv4 import SigningKeys, SigningScope, canonical_query, signature_headers

AT = 1_764_300_000.0
ACCESS, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token=="
NAMES = (
    "Content-Type",
    "anthropic-version",
    "X-Amzn-Bedrock-Trace",
    "Accept",
    "traceparent",
    "X-Amz-Custom",
    "a",
    "Zz",
)
SEGMENTS = ("v1", "model", "anthropic.claude-sonnet-4-5-20250929-v1:0", "a b", "..", ".", "", "ü", "~x", "a%2Fb", "*")
TEXTS = ("a", "b c", "é", "a+b", "%", "=", "&", "~", "2024-10-21", "", "a/b", "*")


class FrozenDatetime(datetime):
    """The judge's clock."""

    @classmethod
    def now(cls, tz: Any = None) -> FrozenDatetime:
        return cls.fromtimestamp(AT, tz or UTC)

    @classmethod
    def utcnow(cls) -> FrozenDatetime:
        return cls.fromtimestamp(AT, UTC)


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("get_current_datetime",):
        if hasattr(botocore.auth, name):
            monkeypatch.setattr(botocore.auth, name, lambda *_arguments, **_named: FrozenDatetime.utcnow())
    if hasattr(botocore.auth, "datetime"):
        monkeypatch.setattr(botocore.auth, "datetime", type("datetime", (), {"datetime": FrozenDatetime}))


def judged(
    method: str, path: str, query: str, headers: list[tuple[str, str]], body: bytes, scope: SigningScope
) -> tuple[str, str]:
    """Returns what botocore, which signs all headers, writes into Authorization and X-Amz-Date for those that AWS
    requires."""
    host = dict(headers)["host"]
    request = AWSRequest(method, f"https://{host}{path}{'?' if query else ''}{query}", data=body)
    for name, value in headers:
        if name.lower() in ("host", "content-type") or name.lower().startswith("x-amz-"):
            request.headers.add_header(name, value)
    credentials = Credentials(ACCESS, SECRET, dict(headers).get("X-Amz-Security-Token"))
    botocore.auth.SigV4Auth(credentials, scope.service, scope.region).add_auth(request)
    return request.headers["Authorization"], request.headers["X-Amz-Date"]


def signed(
    method: str, path: str, query: str, headers: list[tuple[str, str]], body: bytes, scope: SigningScope
) -> tuple[str, str]:
    digest = hashlib.sha256(body).hexdigest()
    found = dict(
        signature_headers(SigningKeys(), ACCESS, SECRET, scope, AT, method, path, query, headers, digest)
    )  # fmt: skip
    return found["Authorization"], found["X-Amz-Date"]


def test_signature_equals_botocores_for_a_thousand_random_requests() -> None:
    random = Random(24)
    for _ in range(1000):
        path = "/" + "/".join(quote(random.choice(SEGMENTS), safe="%:") for _ in range(random.randint(0, 6)))
        path += "/" * random.randint(0, 1)
        pairs = [(random.choice(TEXTS), random.choice(TEXTS)) for _ in range(random.randint(0, 4))]
        query = canonical_query("&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs))
        names = random.sample(NAMES, random.randint(0, len(NAMES)))
        headers = [(name, random.choice(("x", "two  spaces", " padded\t", "a,b", "é"[:0]))) for name in names]
        headers.insert(0, ("host", random.choice(("bedrock-runtime.us-east-1.amazonaws.com", "127.0.0.1:8080"))))
        if random.random() < 0.7:
            headers.append(("X-Amz-Security-Token", TOKEN))
        body = random.randbytes(random.randint(0, 300))
        scope = SigningScope(random.choice(("us-east-1", "eu-central-1")), random.choice(("bedrock", "bedrock-mantle")))
        method = random.choice(("POST", "GET", "DELETE"))
        assert signed(method, path, query, headers, body, scope) == judged(method, path, query, headers, body, scope)


@pytest.mark.parametrize("more", [
    [("User-Agent", "x")], [("Accept", "a"), ("X-A", "two  spaces")], [("X-A", "1"), ("x-a", "é")], [("X-Amzn-A", "1")],
])  # fmt: skip
def test_header_of_a_caller_has_no_part_in_the_signature(more: list[tuple[str, str]]) -> None:
    kept, scope = [("host", "h"), ("X-Amz-Security-Token", "t"), ("Content-Type", "a")], SigningScope("r", "s")
    assert signed("POST", "/", "", [*kept, *more], b"", scope) == signed("POST", "/", "", kept, b"", scope)


@pytest.mark.parametrize("types", [["é"], ["a", "é"], ["é", "a"], ["a", "b"]])
def test_content_type_that_servers_may_read_in_another_way_is_not_signed(types: list[str]) -> None:
    scope, kept = SigningScope("r", "s"), [("host", "h")]
    headers = [*kept, *(("Content-Type", value) for value in types)]
    assert signed("POST", "/", "", headers, b"", scope) == signed("POST", "/", "", kept, b"", scope)


def test_signing_key_is_derived_once_a_day() -> None:
    keys, scope = SigningKeys(), SigningScope("r", "s")
    first = keys.key(SECRET, "20260101", scope)
    assert keys.key(SECRET, "20260101", scope) is first
    others = [
        keys.key(SECRET, "20260102", scope), keys.key("other", "20260101", scope),
        keys.key(SECRET, "20260101", SigningScope("r", "t")),
    ]  # fmt: skip
    assert first not in others
    for day in range(100):
        keys.key(SECRET, str(day), scope)
    assert len(keys._kept) <= 16


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ""), ("b=2&a=1", "a=1&b=2"), ("a=2&a=1", "a=1&a=2"), ("a", "a="), ("a=b+c", "a=b%20c"), ("a=%7e", "a=~"),
        ("a=:/", "a=%3A%2F"), ("&&a=1&", "a=1"), ("a=%FF", "a=%FF"), ("a=b=c", "a=b%3Dc"),
        ("X-Amz-Signature=1&x-amz-date=2&a=1", "a=1"),
    ],
)  # fmt: skip
def test_canonical_query(query: str, expected: str) -> None:
    assert canonical_query(query) == expected
    assert canonical_query(expected) == expected
