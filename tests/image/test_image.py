"""The image of the Dockerfile as README.md and compose.yaml run it: read-only, without rights, with its health check,
and with calls that end before it does."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.commands import output_of, until
from tests.engines.containers import docker
from tests.image.image import NAME, Builder
from tests.tools import need_root

pytestmark = pytest.mark.timeout(3600)
_NAME = "gateway"
_OPTIONS = (
    "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--network=none",
    "--env=OPENAI_BASE_URL=http://127.0.0.1:8081/v1",
)  # fmt: skip
_CALL = """
import json, urllib.request
body = {"model": "gpt-4o", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode())
with urllib.request.urlopen(request) as response:
    for line in response:
        print(line.decode(), end="", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Container:
    """A running gateway, whose network is its own: clients and providers run inside, too."""

    client: tuple[str, ...]

    async def run(self, *command: str) -> str:
        return await output_of(*self.client, "exec", _NAME, *command)

    async def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(await output_of(*self.client, "inspect", _NAME))
        return dict(found)

    async def health(self) -> str:
        return str((await self.inspect())["State"]["Health"]["Status"])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    need_root()
    made = Path(tempfile.mkdtemp(prefix="image-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    return Builder(folder).build()


@asynccontextmanager
async def running(archive: Path) -> AsyncIterator[Container]:
    """Runs the image."""
    with tempfile.TemporaryDirectory(prefix="docker-") as folder:
        async with docker(Path(folder)) as client:
            await output_of(*client, "load", f"--input={archive}", within_s=300)
            await output_of(*client, "run", "--detach", f"--name={_NAME}", *_OPTIONS, NAME)
            try:
                yield Container(client)
            finally:
                await output_of(*client, "rm", "--force", _NAME)


async def test_image_is_healthy_without_rights_and_ends_after_its_calls(archive: Path) -> None:
    async with running(archive) as container:

        async def is_healthy() -> bool:
            return await container.health() == "healthy"

        await until(is_healthy, within_s=60)
        assert "+compiled" in await container.run("llm-guard", "--version")
        await check_rights(container)
        await check_health_check(container)
        await check_drain(container)


async def check_rights(container: Container) -> None:
    config = await container.inspect()
    assert config["Config"]["User"] == "65534:65534"
    assert (await container.run("id", "-u")).strip() == "65534"
    for path in ("/venv/x", "/etc/x", "/x"):
        with pytest.raises(AssertionError, match="Read-only file system"):
            await container.run("python", "-c", f"open({path!r}, 'w')")


async def check_health_check(container: Container) -> None:
    found = await container.inspect()
    kind, *command = found["Config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    await container.run(*command)
    os.kill(found["State"]["Pid"], signal.SIGSTOP)
    with pytest.raises(AssertionError, match="timed out"):
        await container.run(*command)
    os.kill(found["State"]["Pid"], signal.SIGCONT)


async def check_drain(container: Container) -> None:
    provider = ("llm-guard", "mock", "--port", "8081", "--tokens", "40", "--token-delay-ms", "100")
    await output_of(*container.client, "exec", "--detach", _NAME, *provider)

    async def is_up() -> bool:
        try:
            await container.run("python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8081))")
        except AssertionError:
            return False
        return True

    await until(is_up)
    process = await asyncio.create_subprocess_exec(
        *container.client, "exec", _NAME, "python", "-c", _CALL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    first = await process.stdout.readline()
    await output_of(*container.client, "stop", "--time=40", _NAME, within_s=60)
    rest = await process.stdout.read()
    await process.wait()
    assert first.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b"error" not in rest
    state = (await container.inspect())["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
