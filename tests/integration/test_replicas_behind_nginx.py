"""Gateways with config/replicas.yaml behind the load balancer of compose.yaml: a real nginx with that config."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from tests.chaos.wire import ask
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import ASYNC
from tests.integration.test_engines import free_port
from tests.tools import need

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "config" / "nginx" / "replicas.conf").read_text()
BODY = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}).encode()
CALLER = {"authorization": "Bearer sk-of-the-caller"}


def config_for(folder: Path, apps: Sequence[App], port: int) -> str:
    """The config of compose.yaml with addresses of this machine; Debian's nginx cannot resolve names in `server`."""
    servers = "\n".join(f"server {app.addresses[0].removeprefix('http://')} max_fails=1;" for app in apps)
    text = re.sub(r"resolver .*;.*", "", CONFIG)
    text, found = re.subn(r"server replica:8080 .*;", servers, text)
    assert found == 1
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    places = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"daemon off; pid {folder}/nginx.pid; {text.replace('http {', f'http {{ {places}')}"


@asynccontextmanager
async def behind_nginx(folder: Path) -> AsyncIterator[tuple[str, list[App], MockProvider]]:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        server = stack.enter_context(redis_server(folder))
        env = {
            "LLM_GUARD_OPS_TOKEN": "a-token-of-sufficient-length", "LLM_GUARD_REDIS_URL": server.url,
            "LLM_GUARD_STORE_KEY": "bm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm4=",
            "OPENAI_BASE_URL": f"{provider.url}/v1", "ANTHROPIC_BASE_URL": provider.url,
        }  # fmt: skip
        config = parse_config((ROOT / "config" / "replicas.yaml").read_text(), "replicas.yaml", env)
        apps = []
        for name in "ab":
            parts = {
                "server": config.server.model_copy(update={"port": 0, "drain_delay": 0.0}),
                "ops": config.ops.model_copy(update={"store": str(folder / name)}),
            }
            apps.append(create_app(config.model_copy(update=parts)))
            await apps[-1].start()
            stack.push_async_callback(apps[-1].stop)
        port, file = free_port(), folder / "nginx.conf"
        file.write_text(config_for(folder, apps, port))
        command = (need("nginx"), "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log"))
        balancer = await create_subprocess_exec(*command, stdout=DEVNULL, stderr=PIPE)
        try:
            await eventually(lambda: (folder / "nginx.pid").exists(), within_s=10)
            yield f"http://127.0.0.1:{port}", apps, provider
        finally:
            balancer.terminate()
            await balancer.wait()


async def test_calls_are_spread_and_found_at_every_gateway(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as (url, apps, _provider):
        for _ in range(10):
            assert (await ask(url, "/v1/chat/completions", BODY, CALLER)).status == 200
        assert all(app.fleet is not None and app.fleet.own().status.calls > 0 for app in apps)
        accepted = [await ask(url, "/v1/chat/completions", BODY, {**CALLER, **ASYNC}) for _ in range(6)]
        for reply in accepted:
            path = f"/v1/llm-guard/calls/{reply.json['id']}"
            while (got := await ask(url, path, headers=CALLER, method="GET")).status == 202:
                pass
            assert got.status == 200


async def test_gateway_that_stops_loses_no_call(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as (url, apps, _provider):
        await apps[0].stop()
        replies = [await ask(url, "/v1/chat/completions", BODY, CALLER) for _ in range(10)]
        assert {reply.status for reply in replies} == {200}


async def test_streams_are_passed_on_piece_by_piece(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as (url, _apps, _provider):
        body = json.dumps({"model": "gpt-4o+stall:3", "messages": [], "stream": True})
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-of-the-caller\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(5):
            for _ in range(3):  # and then nothing more comes
                await reader.readuntil(b"data: ")
        writer.close()
