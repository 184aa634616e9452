"""The admin API is closed by default: no network location, proxy or HTTP version opens it, only a token does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from llm_guard.admin.http import penalty
from llm_guard.admin.http.credentials import CODE_S, Credential
from llm_guard.app import create_app
from llm_guard.config import load_config
from tests.admin_client import Listening
from tests.chaos import process
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, config_text, facing, standing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.waiting import eventually
from tests.security.test_operator import traces
from tests.tokens import BEARER, NAMED, SHARED, VIEWER, bearer

HOST = {"host": "localhost"}
URL = "http://127.0.0.1:9"  # never contacted
NO_TOKEN = {"token": ""}
FORWARDED: tuple[Mapping[str, str], ...] = (
    {},
    {"x-forwarded-for": "127.0.0.1"},
    {"x-real-ip": "127.0.0.1", "x-forwarded-for": "192.0.2.1, 127.0.0.1", "x-forwarded-proto": "https"},
    {"forwarded": "for=127.0.0.1;host=localhost"},
    {"via": "1.0 nginx"},
)


def get_pages(stand: Stand) -> list[str]:
    found = {page.path for page in stand.app.ops._site.pages if page.path.startswith("/admin") and page.method == "GET"}
    return sorted(re.sub(r"\{\w+\}", "x", path) for path in found)


async def bare_get(stand: Stand, path: str, version: str, headers: Mapping[str, str]) -> Reply:
    lines = [f"GET {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers.items())]
    async with Connection(stand.url) as connection:
        return await connection.ask("\r\n".join([*lines, "", ""]).encode())


async def log_in(stand: Stand, headers: Mapping[str, str] = HOST, **given: str) -> Reply:
    return await ask(stand.url, "/dashboard/login", json.dumps(given).encode(), headers)


def shared(token: str = SHARED) -> Credential:
    return Credential.of("operator", "operator", token, is_shared=True)


def cookie_in(reply: Reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


# without credentials


@pytest.mark.parametrize("ops", [{}, NO_TOKEN], ids=["a token of the config", "a generated one"])
async def test_admin_without_credentials_is_401_from_loopback_at_every_version_and_through_every_proxy(
    ops: dict[str, str],
) -> None:
    async with facing(CHAT.ok, ops=ops) as (stand, _):
        hosts: tuple[Mapping[str, str], ...] = (HOST, {"host": "gateway.example"}, {"host": "127.0.0.1:8080"})
        for version, host, forwarded in product(("1.0", "1.1"), hosts, FORWARDED):
            for path in ("/admin", "/admin/dead-letters", "/admin/events"):
                reply = await bare_get(stand, path, version, {**host, **forwarded})
                assert reply.status == 401, (version, host, forwarded, path)
                assert reply.headers["www-authenticate"].startswith("Bearer")
        for path in get_pages(stand):
            assert (await bare_get(stand, path, "1.0", {})).status == 401, path
            assert (await bare_get(stand, path, "1.1", HOST)).status == 401, path


async def test_stranger_cannot_discover_pages() -> None:
    """Behind a proxy that lets some paths of /admin pass, a different response would reveal which pages exist."""
    async with facing(CHAT.ok) as (stand, _):
        paths = ("/admin", "/admin/", "/admin/nothing", "/admin/calls/x/y", "/admin/./calls", "/admin//calls")
        for method, path in product(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"), paths):
            reply = await ask(stand.url, path, headers=HOST, method=method)
            assert (reply.status, "allow" in reply.headers) == (401, False), (method, path)
        known = {
            method: await ask(stand.url, "/admin/x", headers={**HOST, **BEARER}, method=method)
            for method in ("GET", "PUT")
        }
        assert [each.status for each in known.values()] == [404, 404]
        assert (await ask(stand.url, "/admin", headers={**HOST, **BEARER}, method="PUT")).status == 405
        guess = await ask(stand.url, "/admin/nothing", headers={**HOST, **bearer("a-guess")}, method="GET")
        assert (guess.status, guess.took_s >= penalty.WRONG_TOKEN_S * 0.99) == (401, True)


async def test_stranger_at_readyz_sees_no_names() -> None:
    async with facing(CHAT.ok) as (stand, _):
        stand.deployment("one/gpt").breaker.force("forced_open", 0.0)
        strangers: tuple[dict[str, str], ...] = ({}, bearer("a-wrong-token"), {"cookie": "llm_guard_x=1"})
        for headers in strangers:
            reply = await ask(stand.url, "/readyz", headers={**HOST, **headers}, method="GET")
            assert (reply.status, reply.text) == (200, "ready\n")
        told = await ask(stand.url, "/readyz", headers={**HOST, **bearer(VIEWER)}, method="GET")
        assert "one/gpt" in told.text


# cost of a guess


async def test_wrong_token_costs_its_own_request_a_second_and_a_right_one_nothing() -> None:
    async with facing(CHAT.ok) as (stand, _):
        guesses = [
            asyncio.create_task(ask(stand.url, "/admin", headers={**HOST, **bearer(f"guess-{number}")}, method="GET"))
            for number in range(30)
        ]
        await eventually(lambda: stand.app.ops._site._penalty._waiting == penalty.MOST_WAITING)
        right = await ask(stand.url, "/admin", headers={**HOST, **BEARER}, method="GET")
        assert right.status == 200
        assert right.took_s < 0.5 + stand.lag_s
        none = await ask(stand.url, "/admin", headers=HOST, method="GET")
        assert none.status == 401
        assert none.took_s < 0.5 + stand.lag_s
        replies = await asyncio.gather(*guesses)
        assert {reply.status for reply in replies} == {401}
        slow = [reply for reply in replies if reply.took_s >= penalty.WRONG_TOKEN_S * 0.99]
        assert len(slow) == penalty.MOST_WAITING == 20
        at_once = [reply for reply in replies if reply not in slow]
        assert all(each.headers["connection"] == "close" for each in at_once)
    assert stand.app.ops._site._penalty._waiting == 0


async def test_wrong_code_and_wrong_token_at_the_login_cost_as_much() -> None:
    async with facing(CHAT.ok) as (stand, _):
        replies = await asyncio.gather(
            log_in(stand, token="a-wrong-token"), log_in(stand, code="1.2.3"),
            ask(stand.url, "/readyz", headers={**HOST, **bearer("a-wrong-token")}, method="GET"),
        )  # fmt: skip
        assert [reply.status for reply in replies] == [401, 401, 200]
        assert all(reply.took_s >= penalty.WRONG_TOKEN_S * 0.99 for reply in replies)
        assert not any("set-cookie" in reply.headers for reply in replies)


async def test_guess_whose_client_disconnects_is_delayed_no_longer() -> None:
    async with facing(CHAT.ok) as (stand, _):
        waiting = stand.app.ops._site._penalty
        async with Connection(stand.url) as connection:
            connection.writer.write(b"GET /admin HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n\r\n")
            await eventually(lambda: waiting._waiting == 1)
            connection.leave("reset")
            await eventually(lambda: waiting._waiting == 0, within_s=0.5)


# login


@pytest.fixture
def _quick_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalty, "WRONG_TOKEN_S", 0.0)


@pytest.mark.usefixtures("_quick_penalty")
async def test_code_is_exchanged_for_a_cookie_once() -> None:
    async with facing(CHAT.ok) as (stand, _):
        code = shared().new_code(time.time())
        first, second = await log_in(stand, code=code), await log_in(stand, code=code)
        assert (first.status, second.status, second.json["error"]["code"]) == (200, 401, "used_code")
        attributes = first.headers["set-cookie"].split("; ")[1:]
        assert attributes == ["Max-Age=43200", "Path=/", "HttpOnly", "SameSite=Strict"]
        seen = await ask(stand.url, "/admin/session", headers={**HOST, "cookie": cookie_in(first)}, method="GET")
        assert seen.json == {"name": "operator", "role": "operator", "is_shared": True}
        assert SHARED not in str(first.headers) + first.text


@pytest.mark.usefixtures("_quick_penalty")
async def test_code_that_was_sent_twice_at_once_is_good_for_one(tmp_path: Path) -> None:
    ops = {"store": str(tmp_path)}
    async with facing(CHAT.ok, ops=ops) as (one, _), facing(CHAT.ok, ops=ops) as (other, _):
        for _ in range(5):
            code = shared().new_code(time.time())
            replies = await asyncio.gather(*(log_in(each, code=code) for each in (one, other, one, other)))
            assert sorted(reply.status for reply in replies) == [200, 401, 401, 401]


@pytest.mark.usefixtures("_quick_penalty")
@pytest.mark.parametrize(
    ("made", "ago_s", "status"),
    [
        (shared(), 0, 200), (shared(), CODE_S - 30, 200), (shared(), CODE_S + 1, 401), (shared(), -3600, 401),
        (shared("another-token"), 0, 401), (Credential.of("vic", "viewer", VIEWER), 0, 200),
    ],
)  # fmt: skip
async def test_code_is_good_for_ten_minutes_and_with_its_own_token(made: Credential, ago_s: float, status: int) -> None:
    async with facing(CHAT.ok) as (stand, _):
        assert (await log_in(stand, code=made.new_code(time.time() - ago_s))).status == status


@pytest.mark.usefixtures("_quick_penalty")
async def test_login_is_taken_from_no_other_site_and_only_as_json() -> None:
    async with facing(CHAT.ok) as (stand, _):
        foreign = [
            {**HOST, "origin": "http://evil.example"},
            {**HOST, "origin": "http://localhost:1"},
            {**HOST, "sec-fetch-site": "cross-site"},
            {"host": "evil.example"},
        ]
        for headers in foreign:
            for path in ("login", "logout"):
                reply = await ask(stand.url, f"/dashboard/{path}", json.dumps({"token": SHARED}).encode(), headers)
                assert (reply.status, "set-cookie" in reply.headers) == (403, False), headers
        form = {**HOST, "content-type": "application/x-www-form-urlencoded"}
        assert (await log_in(stand, form, token=SHARED)).status == 415
        assert [(await log_in(stand)).status, (await log_in(stand, token=SHARED, code="1")).status] == [422, 422]


async def test_cookie_is_secure_over_https_and_removed_at_logout() -> None:
    async with facing(CHAT.ok) as (stand, _):
        cookie = (await log_in(stand, {**HOST, "origin": "https://localhost"}, token=SHARED)).headers["set-cookie"]
        assert cookie.endswith("; SameSite=Strict; Secure")
        kept = {**HOST, "cookie": cookie.partition(";")[0]}
        gone = await ask(stand.url, "/dashboard/logout", b"{}", kept)
        assert gone.headers["set-cookie"].startswith(f"{cookie.partition('=')[0]}=; Max-Age=0")
        stranger = await ask(stand.url, "/dashboard/logout", b"{}", HOST)
        assert (stranger.status, "set-cookie" in stranger.headers) == (200, False)


async def test_cookie_of_one_gateway_is_good_at_another_with_the_same_token_and_at_no_other() -> None:
    async with facing(CHAT.ok) as (one, _), facing(CHAT.ok) as (same, _):
        headers = {**HOST, "cookie": cookie_in(await log_in(one, token=SHARED))}
        async with facing(CHAT.ok, ops={"token": "another-operators-token"}) as (other, _):
            found = [await ask(each.url, "/admin", headers=headers, method="GET") for each in (one, same, other)]
        assert [each.status for each in found] == [200, 200, 401]


async def test_reload_that_changes_a_token_ends_its_cookies_and_its_readers() -> None:
    async with facing(CHAT.ok) as (stand, _):
        headers = {**HOST, "cookie": cookie_in(await log_in(stand, token=SHARED))}
        async with Listening(stand.url, headers={**headers, "authorization": ""}) as reader:
            assert reader.head.status == 200
            await reader.event()
            stand.app.ops.adopt(config_of(URL))
            assert (await ask(stand.url, "/admin", headers=headers, method="GET")).status == 200
            stand.app.ops.journal.note("change", number=1)
            assert (await reader.event())["kind"] == "change"  # the stream stays open, since no token has changed
            stand.app.ops.adopt(config_of(URL, ops={"token": "tomorrows-operators-token"}))
            while await reader.block():
                pass
        assert (await ask(stand.url, "/admin", headers=headers, method="GET")).status == 401


# roles


async def test_viewer_changes_nothing_by_any_post() -> None:
    async with facing(CHAT.ok) as (stand, provider):
        document = (await ask(stand.url, "/admin/openapi.json", headers={**HOST, **BEARER}, method="GET")).json
        changes = [
            (method.upper(), path)
            for path, item in document["paths"].items()
            for method in item
            if method not in ("get", "head")
        ]
        assert len(changes) > 25
        before = traces(stand)
        viewers: tuple[dict[str, str], ...] = (
            bearer(VIEWER),
            {"cookie": cookie_in(await log_in(stand, token=VIEWER))},
        )
        body = json.dumps({"reason": "an attack", "deployment": "one/gpt", "all": True, "model": "gpt"}).encode()
        for (method, path), viewer in product(changes, viewers):
            reply = await ask(stand.url, re.sub(r"\{\w+\}", "x", path), body, {**HOST, **viewer}, method)
            assert (reply.status, reply.json["error"]["code"]) == (403, "viewer_may_not"), path
        for path in get_pages(stand):
            if path not in ("/admin/events", "/admin/events/ws"):
                seen = await ask(stand.url, path, headers={**HOST, **viewers[0]}, method="GET")
                assert seen.status in (200, 404, 422), path
        assert traces(stand) == before
        assert provider.requests == []


async def test_each_token_of_the_config_opens_with_its_own_name_and_role() -> None:
    async with facing(CHAT.ok) as (stand, _):
        names = []
        for token in (SHARED, NAMED["ann"], VIEWER):
            reply = await ask(stand.url, "/admin/session", headers={**HOST, **bearer(token)}, method="GET")
            names.append((reply.json["name"], reply.json["role"]))
        assert names == [("operator", "operator"), ("ann", "operator"), ("vic", "viewer")]


# the generated token


async def test_gateways_of_one_store_share_a_token_that_no_log_holds(tmp_path: Path) -> None:
    ops = {**NO_TOKEN, "store": str(tmp_path / "state")}
    async with facing(CHAT.ok, ops=ops) as (one, _), facing(CHAT.ok, ops=ops) as (other, _):
        file = tmp_path / "state" / "ops-token"
        token = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        for stand in (one, other):
            assert (await ask(stand.url, "/admin", headers={**HOST, **bearer(token)}, method="GET")).status == 200
            (line,) = [each for each in one.log if "token" in each["event"]]
            assert (line["event"], line["file"]) == ("the operator token was generated", str(file))
        assert token not in str(one.log) + str(other.log)


async def test_unwritable_store_serves_calls_and_authorizes_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with facing(CHAT.ok, ops={**NO_TOKEN, "store": str(tmp_path / "file")}) as (stand, _):
        assert (await CHAT.ask(stand.url)).status == 200
        assert (await ask(stand.url, "/admin", headers=HOST, method="GET")).status == 401
        (line,) = [each for each in stand.log if "token" in each["event"]]
        assert (line["log_level"], "set ops.token" in line["remedy"]) == ("error", True)
        generated = stand.app.operator_token.generated
        assert generated is not None
        assert generated.file is None
        assert generated.token not in str(stand.log)


async def test_deleted_token_file_is_created_by_a_reload_and_the_old_token_ends(tmp_path: Path) -> None:
    path = process.write(tmp_path / "guard.yaml", config_text(URL, ops={**NO_TOKEN, "store": str(tmp_path / "s")}))
    with capture_logs() as log:
        app = create_app(load_config(path), path=path)
        await app.start()
        try:
            file = tmp_path / "s" / "ops-token"
            old = file.read_text().strip()
            file.unlink()
            await app.reloads.reload("signal")
            new = file.read_text().strip()
            statuses = [
                (await ask(app.addresses[0], "/admin", headers={**HOST, **bearer(token)}, method="GET")).status
                for token in (old, new)
            ]
            assert statuses == [401, 200]
            file.write_text("half a tok")  # damaged: the known token stays valid
            await app.reloads.reload("signal")
            headers = {**HOST, **bearer(new)}
            assert (await ask(app.addresses[0], "/admin", headers=headers, method="GET")).status == 200
        finally:
            await app.stop()
    assert old not in str(log)
    assert new not in str(log)


async def test_named_operator_in_the_config_makes_a_generated_token_needless(tmp_path: Path) -> None:
    viewer, operator = (
        {"name": role, "token": f"the-token-of-{role}", "role": role} for role in ("viewer", "operator")
    )
    operator["name"] = "ann"
    for number, (tokens, is_made) in enumerate((([viewer, operator], False), ([viewer], True))):
        store = tmp_path / str(number)
        async with standing(config_of(URL, ops={"tokens": tokens, "store": str(store)})):
            assert (store / "ops-token").exists() is is_made


# as users run it


async def read_terminal(master: int, until: str) -> str:
    said = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        while until.encode() not in said:
            said += await loop.run_in_executor(None, os.read, master, 4096)
    return said.decode()


async def started_on_a_terminal(path: Path) -> tuple[str, str, str]:
    """Starts a gateway on a terminal; returns the terminal's output, the log and the URL."""
    master, slave = os.openpty()
    command = ("-m", "llm_guard", "serve", "-c", str(path))
    env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[2]))}
    served = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=slave, env=env)
    os.close(slave)
    try:
        shown = await read_terminal(master, "listens on http")
        url = shown.split("listens on ")[1].split()[0]
        headers, body = {"content-type": "application/json", **HOST}, b'{"model": "gpt", "messages": []}'
        await ask(url, "/v1/chat/completions", body, headers)
        if (found := re.search(r"#login=(\S+)", shown)) is not None:
            reply = await ask(url, "/dashboard/login", json.dumps({"code": found[1]}).encode(), HOST)
            assert reply.status == 200, reply.text
    finally:
        served.terminate()
        log, _ = await served.communicate()
        with_rest = b""
        try:
            while piece := os.read(master, 4096):
                with_rest += piece
        except OSError:  # the other end is closed
            os.close(master)
    return shown + with_rest.decode(), log.decode(), url


async def test_first_start_on_a_terminal_shows_one_link_and_later_ones_none(tmp_path: Path) -> None:
    text = config_text(URL, ops={**NO_TOKEN, "store": str(tmp_path / "s")})
    path = process.write(tmp_path / "guard.yaml", text)
    shown, log, _ = await started_on_a_terminal(path)
    token = (tmp_path / "s" / "ops-token").read_text().strip()
    assert shown.count("#login=") == 1
    assert shown.count("login -c") == 1
    again, later_log, _ = await started_on_a_terminal(path)
    assert "#login=" not in again
    for text in (shown, log, again, later_log):
        assert token not in text
    assert "login=" not in log + later_log
    assert str(tmp_path / "s" / "ops-token") in log


async def test_start_without_a_terminal_shows_no_link_and_names_the_file(tmp_path: Path) -> None:
    text = config_text(URL, ops={**NO_TOKEN, "store": str(tmp_path / "s")})
    async with process.serving(tmp_path / "guard.yaml", text) as served:
        made: dict[str, Any] = await served.logged("the operator token was generated")
        assert made["file"] == str(tmp_path / "s" / "ops-token")
        served.signal(15)
        await served.exit_code()
    said = f"{served.said}{served.log}{served.complaints}"
    assert "login=" not in said
    assert (tmp_path / "s" / "ops-token").read_text().strip() not in said
