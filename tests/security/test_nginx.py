"""The admin API behind a real nginx on the same machine, in its three usual configurations."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llm_guard.admin.http.credentials import Credential
from tests.admin_client import Listening
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, facing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.waiting import eventually
from tests.integration.test_engines import free_port
from tests.tokens import BEARER, SHARED, bearer
from tests.tools import need

SET_UPS = {
    # The behaviour of `proxy_pass` alone up to nginx 1.29.6: HTTP/1.0, the gateway's own Host, and no header about the
    # client.
    "plain": "",
    "kept alive": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "with the client's address": """
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $http_connection;
        proxy_set_header Host $http_host;
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
    """,
}
CONFIG = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
daemon off;
worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {url}; {set_up} }}
    }}
}}
"""
HOST = {"host": "localhost"}


@asynccontextmanager
async def nginx(folder: Path, stand: Stand, set_up: str) -> AsyncIterator[str]:
    """Starts an nginx in front of the gateway and yields its URL."""
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(CONFIG.format(folder=folder, port=port, url=stand.url, set_up=set_up))
    command = (need("nginx"), "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log"))
    served = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=PIPE)
    url = f"http://127.0.0.1:{port}"
    try:
        await eventually(lambda: (folder / "nginx.pid").exists(), within_s=10)
        yield url
    finally:
        served.terminate()
        await served.wait()


@pytest.fixture(params=SET_UPS)
async def behind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Stand]]:
    async with facing(CHAT.ok, CHAT.ok) as (stand, _), nginx(tmp_path, stand, SET_UPS[request.param]) as url:
        yield url, stand


async def get(url: str, path: str, version: str = "1.1", **headers: str) -> Reply:
    lines = [f"GET {path} HTTP/{version}", *(f"{name}: {value}" for name, value in {**HOST, **headers}.items())]
    async with Connection(url) as connection:
        return await connection.ask("\r\n".join([*lines, "connection: close", "", ""]).encode())


async def test_admin_is_closed_to_strangers_and_open_to_a_token(behind: tuple[str, Stand]) -> None:
    url, _ = behind
    assert (await CHAT.ask(url)).status == 200
    for path in ("/admin", "/admin/dead-letters", "/admin/calls", "/admin/events"):
        for version in ("1.0", "1.1"):
            for forwarded in ({}, {"x-forwarded-for": "127.0.0.1"}, {"x-real-ip": "127.0.0.1"}):
                assert (await get(url, path, version, **forwarded)).status == 401, (path, version, forwarded)
    body = json.dumps({"deployment": "one/gpt", "reason": "an attack"}).encode()
    assert (await ask(url, "/admin/breakers/force-open", body, HOST)).status == 401
    assert (await get(url, "/readyz")).text == "ready\n"
    assert (await get(url, "/admin/metrics", **BEARER)).status == 200
    assert (await ask(url, "/admin/breakers/force-open", body, {**HOST, **BEARER})).status == 200


async def test_browser_logs_in_through_it_and_its_code_is_in_no_log(behind: tuple[str, Stand], tmp_path: Path) -> None:
    url, _ = behind
    code = Credential.of("operator", "operator", SHARED).new_code(time.time())
    assert (await get(url, "/dashboard")).status == 200
    reply = await ask(url, "/dashboard/login", json.dumps({"code": code}).encode(), HOST)
    assert reply.status == 200
    cookie = {"cookie": reply.headers["set-cookie"].partition(";")[0]}
    assert (await get(url, "/admin/session", **cookie)).json["name"] == "operator"
    async with Listening(url, headers={**cookie, "authorization": "Basic Zm9yOm5naW54"}) as reader:
        assert (await reader.event())["kind"] == "hello"
    logs = (tmp_path / "access.log").read_text() + (tmp_path / "error.log").read_text()
    assert "/dashboard/login" in logs
    assert not any(secret in logs for secret in (code, SHARED, cookie["cookie"]))


async def test_guesses_of_others_through_it_do_not_slow_the_operator(behind: tuple[str, Stand]) -> None:
    """Behind a proxy all clients have the proxy's address."""
    url, stand = behind
    guesses = [asyncio.create_task(get(url, "/admin", **bearer(f"guess-{number}"))) for number in range(25)]
    await eventually(lambda: stand.app.ops._site._penalty._waiting == 20)
    began_at = time.monotonic()
    assert (await get(url, "/admin", **BEARER)).status == 200
    assert time.monotonic() - began_at < 0.7 + stand.lag_s
    assert {reply.status for reply in await asyncio.gather(*guesses)} == {401}
