"""A gateway in a process of its own, with an engine run in one of four ways, under calls from start to end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_guard.mock.provider import MockProvider
from tests.chaos.forms import CHAT
from tests.chaos.process import Served, serving
from tests.chaos.stand import config_text
from tests.engines.commands import until
from tests.engines.containers import in_docker, in_podman
from tests.engines.program import Program, program
from tests.engines.units import NAME, in_systemd
from tests.integration.operating import change, get
from tests.tools import need_root

KINDS = ("command", "docker", "podman", "systemd")
_QUICK = {"preset": "demo", "base_delay": "100ms", "max_delay": "200ms", "jitter": 0.2, "max_attempts": 2}
_PAUSE_S = 0.1
FAR = {"upstream": "far"}

Run = tuple[int, float]


@dataclass(slots=True)
class EngineStand:
    """A gateway with the engine `e` behind the upstream `near`, and the upstream `far` for when it is down."""

    served: Served
    program: Program
    results: Counter[str] = field(default_factory=Counter)
    """Calls so far by the deployment that has answered; for failed ones the status and the body."""

    async def engine(self) -> dict[str, Any]:
        (found,) = await get(self.served.url, "engines")
        return dict(found)

    async def until(self, state: str) -> dict[str, Any]:
        """Waits for this state of the engine, and returns it."""

        async def is_so() -> bool:
            return str((await self.engine())["state"]) == state

        await until(is_so)
        return await self.engine()

    async def until_serves(self, *former: Run | None) -> Run:
        """Waits until a process that is none of `former` serves calls, and returns it."""
        await self.until("running")
        await self.until_called("near/gpt")
        run = self.program.run()
        assert run is not None
        assert run not in former
        return run

    async def until_called(self, deployment: str) -> None:
        """Waits for calls that begin now and are answered by this deployment."""

        async def has_grown() -> bool:
            return self.results[deployment] >= before + 3

        before = self.results[deployment]
        await until(has_grown)

    async def until_wrote(self, text: str) -> None:
        """Waits until /admin/engines shows a line with this text."""

        async def has() -> bool:
            return any(text in line for line in (await self.engine())["output"])

        await until(has)

    async def order(self, action: str) -> Any:
        """Sends an operator's command."""
        return await change(self.served.url, f"engines/{action}", engine="e")


@asynccontextmanager
async def standing(kind: str) -> AsyncIterator[EngineStand]:
    """Runs the gateway, and calls it all the time. Every call must succeed."""
    async with placed(kind) as place, MockProvider() as far, place.gateway(far.url) as stand:
        calling = asyncio.create_task(_call(stand))
        try:
            yield stand
        finally:
            calling.cancel()
            await asyncio.wait((calling,))
        assert set(stand.results) <= {"near/gpt", "far/spare"}, stand.results


@dataclass(slots=True)
class Place:
    """Where an engine runs."""

    program: Program
    config: dict[str, Any]
    within: tuple[str, ...] = ()
    """Command with which the gateway is started."""

    @asynccontextmanager
    async def gateway(self, far: str) -> AsyncIterator[EngineStand]:
        text = _config(far, self.program.port, self.config)
        async with serving(self.program.folder / "llm_guard.yaml", text, within=self.within) as served:
            yield EngineStand(served, self.program)


@asynccontextmanager
async def placed(kind: str) -> AsyncIterator[Place]:
    """Prepares what runs an engine of this kind."""
    async with AsyncExitStack() as stack:
        if kind != "command":
            need_root()
        made = stack.enter_context(program())
        match kind:
            case "docker":
                yield Place(made, await stack.enter_async_context(in_docker(made)))
            case "podman":
                yield Place(made, await stack.enter_async_context(in_podman(made)))
            case "systemd":
                within = await stack.enter_async_context(in_systemd(made))
                yield Place(made, {"systemd": {"unit": NAME, "user": True}}, within)
            case _:
                yield Place(made, {"command": {"argv": made.argv}})


def _config(far: str, port: int, engine: dict[str, Any]) -> str:
    probe = {"interval": "200ms", "timeout": "1s", "max_failures": 2}
    upstreams = {
        "near": {"dialect": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "probe": probe},
        "far": {"dialect": "openai", "base_url": f"{far}/v1"},
    }
    common = {"upstreams": ["near"], "start_timeout": "20s", "stop_timeout": "2s", "restart": _QUICK}
    models = {"gpt": {"deployments": [{"upstream": "near"}], "fallbacks": ["spare"]}, "spare": {"deployments": [FAR]}}
    return config_text(
        far, upstreams=upstreams, engines={"e": {**common, **engine}}, retry={"max_attempts": 3}, models=models,
        timeout={"first_token": "1s", "attempt": "2s"},
    )  # fmt: skip


async def _call(stand: EngineStand) -> None:
    while True:
        reply = await CHAT.ask(stand.served.url, model="gpt")
        is_ok = reply.status == 200 and reply.is_whole
        stand.results[reply.headers["x-llm-guard-deployment"] if is_ok else f"{reply.status} {reply.text}"] += 1
        await asyncio.sleep(_PAUSE_S)
