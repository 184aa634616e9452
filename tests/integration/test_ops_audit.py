"""The audit trail survives the gateway, and a failing disk does not prevent changes."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.stand import config_text, facing
from tests.chaos.wire import ask
from tests.integration.operating import HERE, audit, change, get, post
from tests.tokens import BEARER, NAMED, SHARED, bearer

DRAIN = {"deployment": "one/gpt"}


async def test_change_is_found_after_a_restart(tmp_path: Path) -> None:
    path, folder = tmp_path / "guard.yaml", tmp_path / "state"
    text = config_text("http://127.0.0.1:9", ops={"store": str(folder)})
    async with serving(path, text) as served:
        assert not folder.exists()
        await change(served.url, "breakers/force-open", reason="it is on fire", **DRAIN)
        served.process.kill()
        await served.exit_code()
    async with serving(path, text) as served:
        assert await audit(served.url) == [
            ("ann from 127.0.0.1", "breakers.force-open", "one/gpt", "it is on fire")
        ]  # fmt: skip
        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_two_gateways_write_one_trail(tmp_path: Path) -> None:
    ops = {"store": str(tmp_path)}
    async with facing(CHAT.ok, ops=ops) as (one, _), facing(CHAT.ok, ops=ops) as (other, _):
        await change(one.url, "deployments/drain", reason="one", **DRAIN)
        await change(other.url, "deployments/drain", reason="other", **DRAIN)
        assert [why for *_, why in await audit(one.url)] == ["other", "one"]


async def test_without_a_disk_the_change_is_made_and_reported_as_unwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with facing(CHAT.ok, ops={"store": str(tmp_path / "file" / "state")}) as (stand, _):
        reply = await post(stand.url, "deployments/drain", **DRAIN)
        assert reply.status == 200
        assert reply.json["audited"] is False
        assert "audit.db" in reply.json["audit_error"]
        assert (await CHAT.ask(stand.url)).status == 503
        (line,) = [line for line in stand.log if line["event"] == "change not written to the audit trail"]
        assert (line["log_level"], line["entry"]["action"], line["entry"]["reason"]) == (
            "error", "deployments.drain", "an outage",
        )  # fmt: skip
        assert [(each["id"], each["action"]) for each in await get(stand.url, "audit")] == [(None, "deployments.drain")]
        os.rename(tmp_path / "file", tmp_path / "away")
        await change(stand.url, "deployments/uncordon", **DRAIN)
        assert [what for _, what, *_ in await audit(stand.url)] == ["deployments.uncordon", "deployments.drain"]


async def test_trail_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"no database" * 100)
    async with facing(CHAT.ok, ops={"store": str(tmp_path)}) as (stand, _):
        reply = await ask(stand.url, "/admin/audit", headers=HERE, method="GET")
        assert (reply.status, reply.json["error"]["code"]) == (503, "audit_unreadable")
        await change(stand.url, "deployments/drain", **DRAIN)
        assert len(await audit(stand.url)) == 1
        assert any(
            line["event"] == "the audit trail is corrupt: moved aside, a new one is created" for line in stand.log
        )


async def test_trail_is_shown_page_by_page(tmp_path: Path) -> None:
    async with facing(CHAT.ok, ops={"store": str(tmp_path)}) as (stand, _):
        for number in range(5):
            await change(stand.url, "deployments/drain", reason=str(number), **DRAIN)
        page = await get(stand.url, "audit?limit=2")
        assert [each["reason"] for each in page] == ["4", "3"]
        assert [each["reason"] for each in await get(stand.url, f"audit?limit=9&before={page[-1]['id']}")] == [
            "2",
            "1",
            "0",
        ]
        for query in ("limit=0", "limit=x", "before=0", "limit=1&limit=2", "until=3", "limit=99999999999999999999999"):
            reply = await ask(stand.url, f"/admin/audit?{query}", headers=HERE, method="GET")
            assert (reply.status, reply.json["error"]["code"]) == (422, "invalid_query"), query


async def test_claimed_name_is_marked_as_such_and_stays_on_one_line_and_within_bounds(tmp_path: Path) -> None:
    async with facing(CHAT.ok, ops={"store": str(tmp_path)}) as (stand, _):
        body = b'{"deployment": "one/gpt", "reason": "a\\u0000b\\nc \xf0\x9f\x94\xa5"}'
        reply = await ask(
            stand.url, "/admin/deployments/drain", body, {**HERE, **BEARER, "x-llm-guard-operator": "x" * 500}
        )
        assert reply.status == 200
        (entry,) = await get(stand.url, "audit")
        assert (entry["actor"], entry["reason"]) == (f"operator ({'x' * 64}) from 127.0.0.1", "a\x00b\nc 🔥")


@pytest.mark.parametrize(
    ("token", "claimed", "who"),
    [
        (SHARED, "", "operator from 127.0.0.1"),
        (SHARED, "ada", "operator (ada) from 127.0.0.1"),
        (SHARED, "ada) from 192.0.2.1 (", "operator (ada from 192.0.2.1 ) from 127.0.0.1"),
        (NAMED["ann"], "", "ann from 127.0.0.1"),
        (NAMED["ann"], "bob", "ann from 127.0.0.1"),
    ],
)
async def test_name_in_the_trail_is_that_of_the_token(tmp_path: Path, token: str, claimed: str, who: str) -> None:
    headers = {"host": "localhost", **bearer(token), **({"x-llm-guard-operator": claimed} if claimed else {})}
    async with facing(CHAT.ok, ops={"store": str(tmp_path)}) as (stand, _):
        body = b'{"deployment": "one/gpt", "reason": "maintenance"}'
        assert (await ask(stand.url, "/admin/deployments/drain", body, headers)).status == 200
        assert [each["actor"] for each in await get(stand.url, "audit")] == [who]
