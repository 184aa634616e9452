"""Request targets outside the allow-list reach no provider; those inside reach the configured host unmodified."""

from __future__ import annotations

import pytest

from tests.chaos.wire import ask
from tests.security.grammar import head
from tests.security.stand import BODY, HOST, Recorder, fronting

CLOSE = b"Connection: close"

DOTS = (
    "/v1/../admin/x", "/v1/%2e%2e/admin", "/v1/%2E%2E/admin", "/v1%2f..%2fadmin", "/v1/..\\admin", "/v1/.%2e/x",
    "/v1/%2e./x", "/v1/./models", "/v1/%2E/models", "/v1/models/..", "/v1/models/.", "/v1/models/%2e%2e",
    "/../v1/models", "/..", "/v1/models/..%2f..%2fadmin", "/v1/models/%2e%2e%2fadmin", "/v1/models/..%5c..%5cadmin",
    "/v1/%5c../admin", "/upstreams/one/../../admin", "/upstreams/one/v1/../../x", "/upstreams/..%2fone/v1/models",
    "/upstreams/../v1/models", "/upstreams/%2e%2e/v1/models", "/healthz/../v1/models", "/metrics/../admin",
    "/v1/models?a=b/../..#/../",
)  # fmt: skip
SLASHES = ("//v1/models", "/v1//models", "/v1/models//", "///v1/models", "/upstreams//v1/models", "/v1/models/%2f")
CHARACTERS = (
    "/v1/models%00", "/v1/mod%00els", "/v1/models%0d%0aX:%20y", "/v1/models%0a", "/v1/models%1b", "/v1/models%7f",
    "/v1/a%5cb", "/v1/a\\b", "/v1/%", "/v1/%2", "/v1/%zz", "/v1/%u002e%u002e/admin", "/v1/models#fragment",
    "/v1/<script>", '/v1/a"b', "/v1/{x}", "/v1/a|b", "/v1/a^b", "/v1/a`b", "/v1/[x]", "/v1/é", "/v1/a b", "/v1/a\tb",
)  # fmt: skip
FORMS = (
    "http://evil.example/v1/models", "https://evil.example/v1/models", "http:/evil.example/x", "ftp://evil.example/x",
    "evil.example/v1/models", "evil.example:443", "*", "@evil.example/v1/models", "?model=gpt", "v1/models",
    "\\\\evil\\x", "//evil.example/v1/models", "///evil.example/v1/models", "/\\evil.example/v1/models", "http://",
    "://evil/x", "HTTP://test/v1/models", "http://test@evil.example/v1/models",
)  # fmt: skip
NOWHERE = (
    "/v1", "/v2/models", "/V1/models", "/v1models", "/adminx", "/upstreams", "/upstreams/one",
    "/upstreams/one/admin", "/upstreams/nobody/v1/models", "/metrics;x", "/healthz/x", "/v1%2e/models", "/favicon.ico",
    "/.git/config", "/.env",
)  # fmt: skip


def id_of(attack: str) -> str:
    return f"{'C39' if attack in FORMS or attack.startswith('//') else 'C38'} {attack}"


@pytest.mark.parametrize("target", [*DOTS, *SLASHES, *CHARACTERS, *FORMS], ids=id_of)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_target_that_is_no_plain_path_is_refused(method: str, target: str) -> None:
    async with fronting() as front:
        line = f"{method} {target} HTTP/1.1".encode()
        await front.check_refused(head(line, HOST, b"Content-Length: %d" % len(BODY)) + BODY)


@pytest.mark.parametrize("target", NOWHERE, ids=id_of)
async def test_path_outside_the_api_leads_nowhere(target: str) -> None:
    async with fronting() as front:
        assert (await ask(front.url, target, method="GET")).status == 404
        assert (await ask(front.url, target, BODY)).status == 404
        await front.check_reached()


async def test_path_below_admin_is_closed_whether_there_is_a_page_or_not() -> None:
    """C38: strangers cannot find out which pages exist."""
    async with fronting() as front:
        assert (await ask(front.url, "/admin/x", method="GET")).status == 401
        assert (await ask(front.url, "/admin/x", BODY)).status == 401
        await front.check_reached()


ODD = (
    "/v1/files/file-abc", "/v1/files/org%20name:ft-1@2024", "/v1/files/a!$&'()*+,;=~_-b", "/v1/files/...",
    "/v1/files/.a", "/v1/files/a..b", "/v1/files?x=../..&y=%2e%2e%2f", "/v1/files?x=//evil.example",
    "/v1/files?x=http://evil.example", "/v1/files?", "/v1/files?a=b&a=c;d", "/v1/files/%41%6c",
    "/v1/@evil.example/x", "/v1/files/%C3%A9",
)  # fmt: skip
DEBATABLE = (
    "/v1/%252e%252e/admin", "/v1/%25252e%25252e/admin", "/v1/%c0%ae%c0%ae/admin", "/v1/..;/admin", "/v1/models/",
)  # fmt: skip


@pytest.mark.parametrize("target", ODD, ids=id_of)
async def test_odd_but_plain_path_reaches_the_provider_as_it_was_written(target: str) -> None:
    """C38: decoding or normalizing it would make a different path of it."""
    async with fronting() as front:
        heard = await front.hear(head(f"GET {target} HTTP/1.1".encode(), HOST, CLOSE))
        assert heard.statuses == [200]
        # An empty query is dropped.
        assert [request.target.decode() for request in front.provider.requests] == [target.removesuffix("?")]


@pytest.mark.parametrize("target", DEBATABLE, ids=id_of)
async def test_path_that_only_some_servers_misread_is_refused_or_left_as_it_was(target: str) -> None:
    async with fronting() as front:
        heard = await front.hear(head(f"GET {target} HTTP/1.1".encode(), HOST, CLOSE))
        assert heard.statuses in ([200], [400], [404])
        assert [request.target.decode() for request in front.provider.requests] == [target] * (heard.statuses == [200])


async def test_upstream_is_the_configured_one_for_any_requested_host() -> None:
    """C39: Host, X-Forwarded-Host and absolute targets do not select the upstream."""
    async with Recorder() as other, fronting() as front:
        host = b"127.0.0.1:%d" % other.port
        for line, status in (
            (b"GET http://%b/v1/models HTTP/1.1" % host, 400),
            (b"GET //%b/v1/models HTTP/1.1" % host, 400),
            (b"GET @%b/v1/models HTTP/1.1" % host, 400),
            (b"GET /v1/files HTTP/1.1", 200),
            (b"GET /v1/files?host=%b HTTP/1.1" % host, 200),
        ):
            heard = await front.hear(head(line, b"Host: " + host, b"X-Forwarded-Host: " + host, CLOSE))
            assert heard.statuses == [status]
        assert other.connections == []
        assert len(front.provider.requests) == 2


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_method_of_the_api_reaches_the_provider(method: str) -> None:
    """C38: the allow-list covers methods, too."""
    async with fronting() as front:
        heard = await front.hear(head(f"{method} /v1/files HTTP/1.1".encode(), HOST, CLOSE), has_body=method != "HEAD")
        assert heard.statuses == [200]
        assert [request.method.decode() for request in front.provider.requests] == [method]


@pytest.mark.parametrize(
    "line",
    [
        "TRACE /v1/models", "PROPFIND /v1/models", "PURGE /v1/models", "QUERY /v1/models", "M-SEARCH /v1/models",
        "BREW /v1/models", "get /v1/models", "Get /v1/models", "GETGET /v1/models", f"{'G' * 500} /v1/models",
        "CONNECT evil.example:443", "CONNECT /v1/models", "SOURCE /v1/models", "DESCRIBE /v1/models",
    ],
    ids=lambda line: f"C39 {line[:30]}",
)  # fmt: skip
async def test_other_method_is_refused(line: str) -> None:
    async with fronting() as front:
        heard = await front.hear(head(f"{line} HTTP/1.1".encode(), HOST, CLOSE))
        assert heard.is_closed
        assert heard.statuses in ([400], [405])
        await front.check_reached()
