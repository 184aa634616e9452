"""llama.cpp's own server behind the gateway, run by `engines`: calls, streams, and a stream whose server is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.chaos.process import Served, serving
from tests.chaos.stand import config_text
from tests.engines.commands import output_of, until
from tests.engines.llama_model import write_model
from tests.engines.program import Program, free_port
from tests.integration.operating import change, get
from tests.tools import refuse

PACKAGES = Path(sys.prefix) / "llama-cpp"
SERVER = Path(__file__).with_name("llama_server.py")
FEW, MANY = 300, 1500
"""Tokens of a response. Many take a server most of a second at least, so that it can be killed in the middle."""


def question(tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello there"}]
    return {"model": "llama", "messages": messages, "max_tokens": tokens, "temperature": 0}


@dataclass(frozen=True, slots=True)
class LlamaStand:
    """A gateway with two llama.cpp servers of the same model, the engines `first` and `second`."""

    served: Served
    first: Program
    second: Program

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.served.url}/v1", api_key="none", max_retries=0)

    async def reference(self, tokens: int) -> str:
        """The response of the second server, asked directly."""
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.second.port}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(**question(tokens))
        return str(answer.choices[0].message.content)

    async def engines(self) -> dict[str, dict[str, Any]]:
        return {found["engine"]: found for found in await get(self.served.url, "engines")}

    async def until_running(self) -> None:
        async def are_running() -> bool:
            return all(found["state"] == "running" for found in (await self.engines()).values())

        await until(are_running)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_model(path)
    return path


@asynccontextmanager
async def standing(model: Path, folder: Path) -> AsyncIterator[LlamaStand]:
    if not PACKAGES.is_dir():
        refuse("llama.cpp is missing: make engine-tests installs it")
    first, second = Program(folder, free_port()), Program(folder, free_port())
    async with serving(folder / "llm_guard.yaml", _config(model, {"first": first, "second": second})) as served:
        stand = LlamaStand(served, first, second)
        await stand.until_running()
        yield stand


def _config(model: Path, programs: dict[str, Program]) -> str:
    upstreams = {
        name: {
            "dialect": "openai", "base_url": f"http://127.0.0.1:{program.port}/v1", "prefill": "plain",
            "probe": {"kind": "health", "interval": "200ms", "timeout": "1s", "max_failures": 2},
        }
        for name, program in programs.items()
    }  # fmt: skip
    engines = {
        name: {
            "upstreams": [name],
            "restart": {"preset": "demo", "base_delay": "100ms"},
            "command": {
                "argv": [sys.executable, str(SERVER), str(model), str(program.port)],
                "env": {"PYTHONPATH": str(PACKAGES)},
            },
        }
        for name, program in programs.items()
    }
    models = {"llama": {"deployments": [{"upstream": name} for name in programs]}}
    timeout = {"first_token": "20s", "idle": "20s", "attempt": "60s", "total": "60s"}
    url = f"http://127.0.0.1:{programs['first'].port}"
    return config_text(
        url, models=models, upstreams=upstreams, engines=engines, timeout=timeout, retry={"max_attempts": 3}
    )


async def test_calls_and_streams_are_those_of_the_server(model: Path, tmp_path: Path) -> None:
    async with standing(model, tmp_path) as stand, stand.client() as client:
        expected = await stand.reference(FEW)
        assert len(expected) == FEW
        assert len(set(expected)) > 20  # it computes something
        answer = await client.chat.completions.create(**question(FEW))
        assert answer.choices[0].message.content == expected
        assert answer.usage is not None
        assert answer.usage.completion_tokens == FEW
        stream = await client.chat.completions.create(**question(FEW), stream=True)
        assert "".join([text_of(chunk) async for chunk in stream]) == expected
        listed = [found.id async for found in client.models.list()]
        assert "llama" in listed
        assert any("llama.cpp listens" in line for line in (await stand.engines())["first"]["output"])


async def test_stream_of_a_killed_server_is_resumed_by_the_other_and_the_server_restarted(
    model: Path, tmp_path: Path
) -> None:
    async with standing(model, tmp_path) as stand, stand.client() as client:
        expected = await stand.reference(MANY)
        former, process = stand.first.run(), stand.first.process()
        assert process is not None
        chunks = []
        async for chunk in await client.chat.completions.create(**question(MANY), stream=True):
            chunks.append(chunk)
            if len(chunks) == 50:
                process.send_signal(signal.SIGKILL)
        assert "".join(map(text_of, chunks)) == expected
        assert len({chunk.id for chunk in chunks}) == 1
        (resumed,) = [chunk.model_extra["llm_guard"] for chunk in chunks if "llm_guard" in (chunk.model_extra or {})]
        assert resumed == {"recovered": "prefill", "deployment": "second/llama"}
        assert chunks[-1].choices[0].finish_reason == "length"
        await stand.until_running()
        assert stand.first.run() not in (None, former)
        assert (await stand.engines())["first"]["restarts_ok"] == 1


async def test_server_that_is_stopped_in_the_middle_of_calls_loses_none(model: Path, tmp_path: Path) -> None:
    async with standing(model, tmp_path) as stand, stand.client() as client:
        expected = await stand.reference(FEW)
        calls = [asyncio.create_task(client.chat.completions.create(**question(FEW))) for _ in range(3)]
        await asyncio.sleep(0.2)
        await change(stand.served.url, "engines/restart", engine="first")
        for call in calls:
            assert (await call).choices[0].message.content == expected
        await stand.until_running()


async def test_doctor_tries_the_servers(model: Path, tmp_path: Path) -> None:
    async with standing(model, tmp_path):
        command = (sys.executable, "-m", "llm_guard", "doctor", "-c", str(tmp_path / "llm_guard.yaml"), "--json")
        said = await output_of(*command, "--calls", "--key", "none")
    found = json.loads(said[said.index("[\n") : said.rindex("]") + 1])
    for name in ("first", "second"):
        verdicts = {row["check"]: row["verdict"] for row in found if row["place"] == f"upstreams.{name}"}
        # Random weights do not continue a count.
        assert verdicts == {"connection": "ok", "key": "ok", "call": "ok", "stream": "ok", "prefill": "warning"}


def text_of(chunk: Any) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)
