"""A gateway that stores calls on disk, in the test's own folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from llm_guard.config import Config, parse_config
from tests.chaos.forms import CHAT, Form
from tests.chaos.stand import Stand, config_text, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import ScriptedProvider, Step

ASYNC = {"x-llm-guard-async": "true"}
DEAD_LETTER = {"x-llm-guard-dead-letter": "true"}
OWN_KEY = "sk-the-gateways-own"


def config_with_store(url: str, folder: Path, **more: Any) -> Config:
    """Builds a config: `rules` become the defaults of all models, `store` and `one` (an upstream) replace those
    sections."""
    sections = {name: more.pop(name) for name in ("rules", "store", "one") if name in more}
    text = json.loads(config_text(url, ops={"store": str(folder)}, **more))
    text["upstreams"]["one"] |= sections.get("one", {"api_key": OWN_KEY})
    text["defaults"] |= sections.get("rules", {})
    text["store"] = sections.get("store", {})
    return parse_config(json.dumps(text), "test.yaml", {})


@asynccontextmanager
async def running_with_store(
    folder: Path, *scripts: Sequence[Step], **more: Any
) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """Runs a gateway in front of a provider that plays these scripts, one per request."""
    async with (
        ScriptedProvider(*scripts) as provider,
        standing(config_with_store(provider.url, folder, **more)) as stand,
    ):
        yield stand, provider


async def defer(
    stand: Stand, form: Form = CHAT, headers: Mapping[str, str] = ASYNC, *, stream: bool = False
) -> str:  # fmt: skip
    """Makes a deferred call and returns its id."""
    reply = await ask(stand.url, form.path, form.body(stream=stream), headers)
    assert reply.status == 202, reply.text
    assert reply.headers["location"] == reply.json["url"] == f"/v1/llm-guard/calls/{reply.json['id']}"
    assert reply.json["status"] == "queued"
    return str(reply.json["id"])


async def shown(stand: Stand, kept_id: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Reply:
    """Requests the status of a stored call, as its client does."""
    return await ask(stand.url, f"/v1/llm-guard/calls/{kept_id}", headers=headers, method=method)


async def outcome(
    stand: Stand, kept_id: str, headers: Mapping[str, str] | None = None, within_s: float = 5.0
) -> Reply:  # fmt: skip
    """Polls until the call has a final outcome and returns it."""
    async with asyncio.timeout(within_s):
        while (reply := await shown(stand, kept_id, headers)).status == 202:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)
    return reply


def on_disk(folder: Path) -> bytes:
    """Returns every byte of every file of a store."""
    return b"".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())
