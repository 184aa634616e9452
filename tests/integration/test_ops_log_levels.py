"""Log levels changed at run time, and the console format of a call's log line."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_guard.log import ACCESS_LOGGER, BREAKER_LOGGER, LEVELS
from tests.chaos.forms import CHAT
from tests.chaos.process import outcome_of, serving, start, write
from tests.chaos.stand import Stand, config_of, config_text, facing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import ScriptedProvider
from tests.tokens import BEARER

HERE = {"host": "localhost", **BEARER}


@pytest.fixture(autouse=True)
def levels_as_they_were() -> Iterator[None]:
    yield
    LEVELS.adopt("info", {})


async def change(url: str, **said: object) -> Reply:
    body = {"reason": "to see more", **said}
    return await ask(url, "/admin/log-levels", json.dumps(body).encode(), HERE)


async def levels(url: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = (await ask(url, "/admin/log-levels", b"", HERE, "GET")).json
    return shown


async def test_log_level_is_the_config_and_then_the_override(tmp_path: Path) -> None:
    async with ScriptedProvider(*[CHAT.ok] * 3) as provider:
        text = config_text(
            provider.url, ops={"log": {"levels": {ACCESS_LOGGER: "warning"}}, "store": str(tmp_path / "s")}
        )
        async with serving(tmp_path / "config.yaml", text) as served:
            unheard = await CHAT.ask(served.url)
            kept = await ask(served.url, "/admin/calls", b"", HERE, "GET")
            assert [each["request_id"] for each in kept.json["calls"]] == [unheard.headers["x-llm-guard-request-id"]]
            assert (await change(served.url, logger=ACCESS_LOGGER, level="info")).status == 200
            heard = await CHAT.ask(served.url)
            assert (await change(served.url, logger=ACCESS_LOGGER, level=None)).status == 200
            await CHAT.ask(served.url)
            served.process.terminate()
            await served.exit_code()
    calls = [line["request_id"] for line in served.log if line["event"] == "call"]
    assert calls == [heard.headers["x-llm-guard-request-id"]]
    changed = [line for line in served.log if line["event"] == "changed"]
    assert [line["target"] for line in changed] == [ACCESS_LOGGER, ACCESS_LOGGER]
    assert all(line["reason"] == "to see more" and line["logger"].startswith("llm_guard.") for line in changed)


async def test_levels_are_shown_with_their_source() -> None:
    async with facing(ops={"log": {"level": "warning", "levels": {BREAKER_LOGGER: "error"}}}) as (stand, _):
        said = (await change(stand.url, logger="llm_guard.admin", level="debug", **{"for": "10m"})).json["now"]
        assert said == await levels(stand.url)
        assert [(each["logger"], each["level"], each["configured"]) for each in said] == [
            ("", "warning", "warning"), ("llm_guard.admin", "debug", None), (BREAKER_LOGGER, "error", "error"),
        ]  # fmt: skip
        assert [each["until"] is not None for each in said] == [False, True, False]


async def test_override_expires_and_that_is_audited() -> None:
    async with facing() as (stand, _):
        await change(stand.url, logger=BREAKER_LOGGER, level="error", **{"for": "10m"})
        await change(stand.url, logger="", level="critical")
        look(stand, 590.0)
        assert LEVELS.of(BREAKER_LOGGER) == "error"
        look(stand, 610.0)
        assert (LEVELS.of(BREAKER_LOGGER), LEVELS.of("llm_guard.app")) == ("critical", "critical")
        look(stand, 620.0)
        shown: list[dict[str, Any]] = (await ask(stand.url, "/admin/audit", b"", HERE, "GET")).json
        ended, _, began = [(each["actor"], each["action"], each["target"], each["reason"]) for each in shown]
        assert began == ("operator from 127.0.0.1", "log-levels.set", BREAKER_LOGGER, "to see more")
        assert ended == ("expiry", "log-levels.reset", BREAKER_LOGGER, "the override expired")
        assert shown[0]["detail"] == {"was": "error", "level": "critical", "reason": "to see more"}
        await change(stand.url, logger="", level=None)


async def test_later_override_without_an_end_is_not_ended_by_an_earlier_expiry() -> None:
    async with facing() as (stand, _):
        await change(stand.url, logger=BREAKER_LOGGER, level="error", **{"for": "1m"})
        await change(stand.url, logger=BREAKER_LOGGER, level="debug")
        look(stand, 61.0)
        assert LEVELS.of(BREAKER_LOGGER) == "debug"


async def test_override_ends_with_its_gateway() -> None:
    async with facing() as (stand, _):
        await change(stand.url, logger=BREAKER_LOGGER, level="critical")
    assert LEVELS.of(BREAKER_LOGGER) == "info"


async def test_reload_changes_configured_levels_and_leaves_the_override() -> None:
    async with facing() as (stand, provider):
        await change(stand.url, logger=BREAKER_LOGGER, level="critical")
        stand.app.ops.adopt(
            config_of(provider.url, ops={"log": {"level": "error", "levels": {BREAKER_LOGGER: "debug"}}})
        )
        assert (LEVELS.of(BREAKER_LOGGER), LEVELS.of("llm_guard.app")) == ("critical", "error")


@pytest.mark.parametrize(
    "said",
    [
        {"logger": BREAKER_LOGGER, "level": "verbose"},
        {"logger": BREAKER_LOGGER},
        {"logger": BREAKER_LOGGER, "level": "debug", "reason": " "},
        {"logger": BREAKER_LOGGER, "level": "debug", "for": "soon"},
        {"logger": BREAKER_LOGGER, "level": "debug", "for": "0s"},
    ],
)
async def test_change_that_makes_no_sense_changes_nothing(said: dict[str, str]) -> None:
    async with facing() as (stand, _):
        assert (await change(stand.url, **said)).status == 422
        assert [level["logger"] for level in await levels(stand.url)] == [""]


@pytest.mark.parametrize("name", ["asyncio", "llm_guard.nothing"])
async def test_logger_that_there_is_not_is_named(name: str) -> None:
    async with facing() as (stand, _):
        reply = await change(stand.url, logger=name, level="debug")
        assert (reply.status, repr(name) in reply.json["error"]["message"]) == (404, True)
        assert [level["logger"] for level in await levels(stand.url)] == [""]


def look(stand: Stand, after_s: float) -> None:
    stand.app.ops._log_levels.look(time.monotonic() + after_s)


# the console


async def test_console_shows_calls_readably_and_the_command_line_outranks_the_file(tmp_path: Path) -> None:
    async with ScriptedProvider(CHAT.ok) as provider:
        path = write(tmp_path / "config.yaml", config_text(provider.url, ops={"log": {"level": "error"}}))
        process = await start(path, "--log-format", "console", "--log-level", "info")
        try:
            assert process.stderr is not None
            said = (await process.stderr.readline()).decode()
            url = re.findall("http://[^ \n]+", said)[0]
            name = (await CHAT.ask(url)).headers["x-llm-guard-request-id"]
        finally:
            process.terminate()
            async with asyncio.timeout(10):
                out, _ = await process.communicate()
    (line,) = [line for line in out.decode().splitlines() if f"request_id={name}" in line]
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} info     call  outcome=ok  status=200  model=gpt  ", line)
    assert "\x1b" not in out.decode()


async def test_level_of_a_module_that_is_none_is_an_error_of_the_config(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config.yaml", config_text("http://127.0.0.1:1", ops={"log": {"levels": {"gateway": "info"}}})
    )
    code, said = await outcome_of(path)
    assert code == 2
    assert "ops.log.levels: gateway: give llm_guard.access, llm_guard.breaker, or a module or package" in said
