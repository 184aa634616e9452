"""Fuzz harness for headers: from a client to an upstream, and from an upstream to a client."""

from __future__ import annotations

import random
from dataclasses import replace

import httptools

from llm_guard.proxy.headers import account, caller_keys, has_rival_keys, lower_names, to_client, to_upstream, value_of
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.http1 import ResponseParser, request_head
from llm_guard.routing.deployment import Upstream
from tests.fakes.script import new_call
from tests.fuzz.mutation import rolled

_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "content-length",
})  # fmt: skip
_KEYS = frozenset({"authorization", "x-api-key", "api-key"})
_OURS = "x-llm-guard-"
_KEY = "the-key-of-the-upstream"
_UPSTREAM = Upstream("u", "openai", "https://h/v1", _KEY, "bearer")
_CONNECTION_OPTIONS = ("", "close", "keep-alive", "upgrade", "te")


def fuzz_headers(data: bytes) -> None:
    """For any input, no hop-by-hop header, no header of the gateway's, no caller's key and no second line is
    passed on."""
    dice, text = rolled(data)
    headers = _headers(text)
    _to_an_upstream(dice, headers)
    _to_a_client(dice, text)
    lower = lower_names(headers)
    assert all(value_of(headers, name) == value for name, value in lower.items())
    doubled = (*headers, ("x-other", "1"), ("x-other", "1"))
    assert caller_keys(headers, lower) == caller_keys(doubled, lower_names(doubled))
    has_rival_keys(headers)
    account(headers, lower)


def _to_an_upstream(dice: random.Random, headers: tuple[tuple[str, str], ...]) -> None:
    upstream = replace(
        _UPSTREAM, api_key=dice.choice((_KEY, None)), auth=dice.choice(("bearer", "api-key", "x-api-key"))
    )
    call = replace(
        new_call(), headers=headers, client_key=dice.choice(("app", None)), is_upgrade=dice.random() < 0.2,
    )  # fmt: skip
    wanted = to_upstream(call, upstream, is_body_ours=dice.random() < 0.2)
    sent = wanted.pairs
    travelling = sent[:-2] if call.is_upgrade else sent
    own = 1 if upstream.api_key is not None else 0
    _is_clean(travelling[: len(travelling) - own], headers, {"host", "expect"})
    swaps = upstream.api_key is not None or call.client_key is not None
    keys = [value for name, value in sent if name.lower() in _KEYS]
    if swaps:
        assert keys == ([] if upstream.api_key is None else [f"Bearer {_KEY}" if upstream.auth == "bearer" else _KEY])
    try:
        head = request_head("POST", "/v1/x", "h", wanted, 7)
    except UpstreamError:
        return
    assert wanted.is_upgrade is call.is_upgrade
    assert head.endswith(b"\r\n\r\n")
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(sent) + 4
    assert b"\0" not in head
    assert head.lower().count(b"\r\ncontent-length:") == 1
    assert b"\r\ntransfer-encoding:" not in head.lower()


def _to_a_client(dice: random.Random, text: bytes) -> None:
    """Parses the input as a provider's response head, with the parser that the gateway uses."""
    reader = ResponseParser()
    reader.expect(is_head=False, is_upgrade=False)
    end = dice.choice((b"\r\n", b"\r\n", b"\n"))
    try:
        reader.parser.feed_data(b"HTTP/1.1 200 OK\r\n" + text.strip(b"\n").replace(b"\n", end) + end + end)
    except httptools.HttpParserError:
        return
    if not reader.status:
        return
    is_inflated = dice.random() < 0.3
    sent = to_client(reader.headers, is_inflated=is_inflated)
    _is_clean(sent, reader.headers, {"content-encoding"} if is_inflated else set())
    for name, value in (*sent, ("reason", reader.reason)):
        assert not set("\r\n\0") & set(name + value)
        (name + value).encode("latin-1")


def _is_clean(sent: list[tuple[str, str]], came: tuple[tuple[str, str], ...], also: set[str]) -> None:
    """Checks that no header is added or changed, and that none concerns one connection only."""
    named = {
        option.strip().lower() for name, value in came if name.lower() == "connection" for option in value.split(",")
    }
    for name, value in sent:
        lower = name.lower()
        assert (name, value) in came or lower in ("sec-websocket-protocol", "accept-encoding")
        assert lower not in _HOP_BY_HOP | also
        assert not lower.startswith(_OURS)
        assert lower not in named - {*_CONNECTION_OPTIONS}


def _headers(text: bytes) -> tuple[tuple[str, str], ...]:
    pairs = (line.partition(":") for line in text.decode("latin-1").split("\n") if line)
    return tuple((name, value.removeprefix(" ")) for name, _, value in pairs)
