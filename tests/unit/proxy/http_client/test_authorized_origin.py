"""Requests get the upstream's parameters and credentials just before they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.authorized_origin import with_parameters
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError, host_of
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing
from llm_guard.proxy.request_body.interfaces import FileBody
from tests.fakes.provider import ScriptedProvider, whole


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/models", "/v1/models?api-version=1&k=a%26b"),
        ("/v1/models?user=1", "/v1/models?user=1&api-version=1&k=a%26b"),
        ("/v1/models?api-version=2&user=1&api%2Dversion=3&k", "/v1/models?user=1&api-version=1&k=a%26b"),
        ("/v1/models?a=?&b=%20", "/v1/models?a=?&b=%20&api-version=1&k=a%26b"),
    ],
)
def test_parameters_follow_the_callers_and_replace_those_of_their_names(target: str, expected: str) -> None:
    assert with_parameters(target, (("api-version", "1"), ("k", "a&b"))) == expected


def test_target_without_parameters_is_unchanged() -> None:
    assert with_parameters("/v1/models?&a", ()) == "/v1/models?&a"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.example", "a.example"), ("https://a.example:443", "a.example"),
        ("http://a.example:80", "a.example"), ("http://a.example:443", "a.example:443"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("https://b\u00fccher.example", "xn--bcher-kva.example"),
    ],
)  # fmt: skip
def test_host_header(url: str, host: str) -> None:
    assert host_of(url) == host


class Authorizer:
    """Numbers the requests; resends refused ones as often as `resends` says."""

    def __init__(self, resends: int = 0) -> None:
        self.resends = resends
        self.seen: list[tuple[str, str, str]] = []

    async def authorize(
        self,
        method: str,
        host: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | FileBody,
        dialing: Dialing | None,
    ) -> tuple[str, list[tuple[str, str]]]:
        self.seen.append((method, host, target))
        return target, [*headers, ("Authorization", f"number {len(self.seen)}")]

    def note_refusal(self, headers: Sequence[tuple[str, str]]) -> bool:
        self.resends -= 1
        return self.resends >= 0


async def statuses(provider: ScriptedProvider, authorizer: Authorizer, target: str = "/v1/x") -> list[int]:
    connections = ConnectionPool()
    link = f"{provider.url} @mark"
    try:
        connections.authorize(link, provider.url, [("v", "1")], authorizer)
        send = connections.origin(link).send
        exchange = await send("POST", target, RequestHeaders([("A", "b")]), b"{}", None, is_repeatable=True)
        exchange.abort()
        return [exchange.status]
    finally:
        await connections.close()


async def test_refused_request_is_sent_once_more_if_that_may_help() -> None:
    for status in (401, 403):
        async with ScriptedProvider([whole(status)]) as provider:
            authorizer = Authorizer(resends=9)
            assert await statuses(provider, authorizer) == [status]
            for number, request in enumerate(provider.requests, 1):
                assert b"Authorization: number %d" % number in request
            assert len(provider.requests) == 2
            assert authorizer.seen == [("POST", provider.url.removeprefix("http://"), "/v1/x?v=1")] * 2


@pytest.mark.parametrize(("status", "resends"), [(500, 9), (403, 0), (200, 9)])
async def test_other_errors_and_refusals_that_stay_are_not_sent_again(status: int, resends: int) -> None:
    async with ScriptedProvider([whole(status)]) as provider:
        assert await statuses(provider, Authorizer(resends)) == [status]
        assert len(provider.requests) == 1


@pytest.mark.parametrize("given", [
    "key=1", "$key=1", "%24Key=1", "access_token=1", "oauth_token=1", "userProject=1", "%24userProject=1",
    "quotaUser=1", "subscription-key=1", "api-key=1", "bearer_token=1",
])  # fmt: skip
async def test_callers_parameters_with_credentials_stay_here(given: str) -> None:
    async with ScriptedProvider([whole()]) as provider:
        authorizer = Authorizer()
        assert await statuses(provider, authorizer, f"/v1/x?after=key&{given}&limit=2") == [200]
        assert [target for _, _, target in authorizer.seen] == ["/v1/x?after=key&limit=2&v=1"]


async def test_upstreams_own_parameters_may_have_a_key() -> None:
    async with ScriptedProvider([whole()]) as provider:
        connections, authorizer, link = ConnectionPool(), Authorizer(), f"{provider.url} @mark"
        connections.authorize(link, provider.url, [("subscription-key", "1")], authorizer)
        send = connections.origin(link).send
        (await send("GET", "/v1/x?key=2", RequestHeaders([]), b"", None, is_repeatable=True)).abort()
        await connections.close()
        assert [target for _, _, target in authorizer.seen] == ["/v1/x?subscription-key=1"]


async def test_link_without_its_credentials_sends_nothing() -> None:
    async with ScriptedProvider([whole()]) as provider:
        connections = ConnectionPool()
        with pytest.raises(UpstreamError) as found:
            connections.origin(f"{provider.url} @mark")
        assert found.value.kind is FailureKind.INTERNAL
        await connections.close()
        await asyncio.sleep(0)
        assert provider.requests == []
