"""The dashboard's files over a real socket."""

from __future__ import annotations

import pytest

from tests.chaos.stand import config_of, standing
from tests.chaos.wire import ask

URL = "http://127.0.0.1:9"  # never contacted


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/style.css", "/dashboard/main.js"])
async def test_browser_gets_the_content_security_policy(path: str) -> None:
    async with standing(config_of(URL)) as stand:
        reply = await ask(stand.url, path, method="GET")
    assert reply.status == 200
    assert "default-src 'none'; script-src 'self'" in reply.headers["content-security-policy"]
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cache-control"] == "no-cache"


async def test_browser_that_has_the_page_is_not_sent_it_again() -> None:
    async with standing(config_of(URL)) as stand:
        tag = (await ask(stand.url, "/dashboard", method="GET")).headers["etag"]
        again = await ask(stand.url, "/dashboard", headers={"if-none-match": tag}, method="HEAD")
    assert (again.status, again.body) == (304, b"")


async def test_files_are_no_secret_and_the_figures_are() -> None:
    async with standing(config_of(URL, ops={"token": "an-operators-token"})) as stand:
        host = {"host": "127.0.0.1"}
        seen = [await ask(stand.url, path, headers=host, method="GET") for path in ("/dashboard", "/admin/metrics")]
    assert [each.status for each in seen] == [200, 401]


@pytest.mark.parametrize("path", ["/dashboard/../guard.py", "/dashboard/%2e%2e/guard.py", "/dashboard/..%2fguard.py"])
async def test_no_path_leads_out_of_the_folder(path: str) -> None:
    async with standing(config_of(URL)) as stand:
        assert (await ask(stand.url, path, method="GET")).status in (400, 404)


async def test_page_is_only_read() -> None:
    async with standing(config_of(URL)) as stand:
        assert (await ask(stand.url, "/dashboard", b"{}")).status == 405


# the root


async def test_root_leads_a_browser_to_the_dashboard() -> None:
    accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with standing(config_of(URL)) as stand:
        reply = await ask(stand.url, "/", headers=accept, method="GET")
    assert (reply.status, reply.headers["location"], reply.headers["vary"]) == (303, "dashboard", "Accept")


async def test_root_says_what_this_is() -> None:
    async with standing(config_of(URL)) as stand:
        reply = await ask(stand.url, "/", method="GET")
        assert (await ask(stand.url, "/", b"{}")).status == 405
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert reply.body == b"llm_guard, a proxy for LLM calls. API: /v1/, dashboard: /dashboard, health: /healthz\n"


async def test_root_of_a_listener_without_the_dashboard_says_what_this_is() -> None:
    async with standing(config_of(URL, ops={"port": 0})) as stand:
        reply = await ask(stand.url, "/", method="GET")
    assert reply.status == 404
    assert b"this is llm_guard, a proxy for LLM calls: its API is below /v1/" in reply.body
