"""Text from callers in the operators' view: it cannot break a log line, and metrics do not grow with it.

A model name that is not in the config is counted as `other`, one that matches a pattern as the pattern.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from llm_guard.routing.route_table import compile_routes
from tests.chaos.forms import CHAT
from tests.chaos.process import start, write
from tests.chaos.stand import Stand, config_of, config_text, facing
from tests.chaos.wire import Connection, ask, fetch
from tests.fakes.client import raw_request
from tests.fakes.provider import Respond, ScriptedProvider, whole
from tests.security.grammar import head
from tests.security.stand import HOST, hear

FORGED = '{"event":"call","outcome":"forged"}'
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or move a terminal's cursor: C0, DEL, C1 (U+009B begins terminal commands), and the line
ends of Unicode."""
PATTERN = {"gpt-*": {"deployments": [{"upstream": "one"}]}}


async def test_texts_of_callers_and_providers_forge_no_log_line(tmp_path: Path) -> None:
    """C58: one JSON object per line without control characters, for any content of requests and responses."""
    words = [
        f"a\n{FORGED}\n",
        f"a\r{FORGED}",
        f"a\u2028{FORGED}",
        f"a\x85{FORGED}",
        "a\x1b[2Jb",
        "a\x9b2Jb",
        "a\x7f\x08\0b",
    ]
    spoken = json.dumps(
        {"error": {"message": words[0], "type": words[4], "code": words[5]}}, ensure_ascii=False
    ).encode()
    answers = [whole(400, spoken), whole(200, spoken), Respond(b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 0\r\n\r\n")]
    async with ScriptedProvider(*([answer] for answer in answers)) as provider:
        path = write(tmp_path / "config.yaml", config_text(provider.url, models={"a*": PATTERN["gpt-*"]}))
        process = await start(path)
        assert process.stderr is not None
        assert process.stdout is not None
        async with asyncio.timeout(30):
            url = (await process.stderr.readline()).decode().split()[-1]
            for word in words:
                await ask(url, CHAT.path, json.dumps({"model": word}).encode())
                await ask(url, CHAT.path, json.dumps({"model": word}, ensure_ascii=False).encode())
                await ask(url, CHAT.path, json.dumps({"model": f"unknown-{word}"}).encode())
            for target in ("/v1/%0d%0aFAKE", "/v1/%1b[2J", "/upstreams/%0aFAKE/v1/models", "/v1/models?a=%0a"):
                await ask(url, target, method="GET")
            for field in (
                b"X-Odd: a\x1b[2Jb",
                b"User-Agent: a\x9bb",
                b"X-LLM-Guard-Priority: low\x1b[2J",
                b"\x1b[2J: a",
            ):
                await hear(url, head(b"GET /v1/models HTTP/1.1", HOST, b"Connection: close", field))
            await hear(url, head(b"\x1b[2J /v1/models HTTP/1.1", HOST))
            for _ in answers:
                await CHAT.ask(url)
            process.terminate()
            output, complaints = await process.communicate()
    lines = output.decode().removesuffix("\n").split("\n")
    assert len(lines) > 20
    for line in lines:
        assert isinstance(json.loads(line), dict)
        assert not CONTROLS.search(line), ascii(line)
    assert not [line for line in lines if json.loads(line).get("outcome") == "forged"]
    assert not CONTROLS.search(complaints.decode().replace("\n", ""))


async def size_of_metrics(stand: Stand) -> int:
    """Counts the series of a scrape, without the loop's lag, which is first measured after a quarter of a second."""
    await stand.idle()
    text = (await fetch(f"{stand.url}/metrics")).text
    assert len(text) < 1 << 20
    return sum(not line.startswith(("#", "llm_guard_event_loop_lag_seconds")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("target", "body", "headers"),
    [
        (CHAT.path, '{{"model":"unknown-{0}"}}', {}),
        (CHAT.path, '{{"model":"gpt-{0}"}}', {}),
        (CHAT.path, '{{"model":"{0}"}}', {"X-LLM-Guard-Priority": "{0}"}),
        (CHAT.path, '{{"model":"gpt"}}', {"Authorization": "Bearer sk-{0}", "OpenAI-Organization": "org-{0}"}),
        ("/v1/files/{0}", "", {}),
        ("/upstreams/{0}/v1/models", "", {}),
        ("/{0}", "", {}),
    ],
    ids=[
        "C59 unknown models",
        "C59 a pattern's",
        "C59 priorities",
        "C59 keys",
        "C59 paths",
        "C59 upstreams",
        "C59 roots",
    ],
)
async def test_no_text_of_a_caller_is_a_label(target: str, body: str, headers: dict[str, str]) -> None:
    async with facing(CHAT.ok, models=PATTERN) as (stand, _), Connection(stand.url) as connection:

        async def call(number: int) -> None:
            said = {name: value.format(number) for name, value in headers.items()}
            await connection.ask(raw_request(target.format(number), body.format(number).encode(), said))

        for number in range(5):
            await call(number)
        few = await size_of_metrics(stand)
        for number in range(5, 400):
            await call(number)
        assert await size_of_metrics(stand) == few
        assert await stand.metric("llm_guard_calls_total") == 400
        if "unknown" in body:
            assert await stand.metric("llm_guard_calls_total", model="other") == 400


def test_hundred_thousand_names_leave_a_bounded_number() -> None:
    """C59: of a pattern, only recently requested names are kept; unknown names are not kept at all."""
    table = compile_routes(config_of("http://127.0.0.1:1", models=PATTERN), 0.0)
    before = len(table.deployments())
    for number in range(100_000):
        assert table.find(f"unknown-{number}") is None
    assert len(table.deployments()) == before
    for number in range(3_000):
        assert table.find(f"gpt-{number}") is not None
    assert len(table.deployments()) <= before + 256
    assert len({deployment.label for deployment in table.deployments()}) <= before + 1


async def test_accounts_of_strangers_are_forgotten_in_time() -> None:
    """C59: each caller's own key has its own gate; the table of gates is bounded."""
    async with facing(CHAT.ok) as (stand, _):
        gates = stand.deployment(CHAT.deployment).gates
        for number in range(5_000):
            gates.of(f"key-{number}", 0.0)
        assert len(gates.all()) <= 1024
