"""Dead letters: calls that no deployment could answer are stored, shown to operators, requeued exactly once, and
deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import CHAT, STREAMS, Form, name_of
from tests.chaos.stand import Stand, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Hold, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import (
    ASYNC,
    DEAD_LETTER,
    config_with_store,
    defer,
    on_disk,
    outcome,
    running_with_store,
    shown,
)
from tests.integration.operating import HERE, audit, change, get, post

BUSY = (whole(503, b'{"error":{"message":"busy"}}'),)
ALWAYS: dict[str, Any] = {"rules": {"dead_letter": "always"}, "store": {"dead_letters": {"requeue_rate": 1000}}}
CANARY = "canary"


async def new_dead_letter(stand: Stand, form: Form = CHAT, headers: Mapping[str, str] | None = None) -> str:
    """Makes a call that fails and returns the id of its dead letter."""
    reply = await ask(stand.url, form.path, form.body(), headers)
    assert reply.status >= 400
    return reply.headers["x-llm-guard-dead-letter"]


async def listed(stand: Stand, query: str = "") -> list[str]:
    return [each["id"] for each in (await get(stand.url, f"dead-letters{query}"))["calls"]]


async def settled(stand: Stand, count: int, state: str) -> None:
    """Waits until `count` dead letters are in this state."""
    async with asyncio.timeout(5):
        while len(await listed(stand, f"?state={state}")) != count:  # noqa: ASYNC110  # of another thread
            await asyncio.sleep(0.01)


# which calls are stored


async def test_dead_letter_is_acknowledged_and_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with running_with_store(folder, BUSY) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), DEAD_LETTER)
        assert reply.status == 503
        kept_id = reply.headers["x-llm-guard-dead-letter"]
        whole_letter = await get(stand.url, f"dead-letters/{kept_id}?body=true")
        found = whole_letter["call"]
        assert (found["state"], found["route"], found["attempts"], found["last_failure"]["status"]) == (
            "dead",
            "gpt",
            1,
            503,
        )
        assert found["request_id"] == reply.headers["x-llm-guard-request-id"]
        assert json.loads(whole_letter["request_body"]["content"]) == json.loads(CHAT.body())
        assert whole_letter["failure_body"]["content"] == '{"error":{"message":"busy"}}'
        assert (await get(stand.url, f"dead-letters/{kept_id}"))["request_body"] is None
        (line,) = await stand.calls()
        assert line["dead_letter_id"] == kept_id
        assert await stand.metric("llm_guard_dead_letters_total", model="gpt") == 1
        assert [event.facts["event"] for event in stand.app.ops.journal.since(0)[0] if event.kind == "dead_letter"] == [
            "stored"
        ]


@pytest.mark.parametrize(
    ("rule", "headers", "is_kept"),
    [
        ("off", DEAD_LETTER, False),
        ("on_request", {}, False),
        ("on_request", {"x-llm-guard-dead-letter": "false"}, False),
        ("on_request", DEAD_LETTER, True),
        ("always", {}, True),
    ],
)
async def test_rule_decides_which_calls_are_stored(
    tmp_path: Path, rule: str, headers: dict[str, str], is_kept: bool
) -> None:
    async with running_with_store(tmp_path / "s", BUSY, rules={"dead_letter": rule}) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), headers)
        assert ("x-llm-guard-dead-letter" in reply.headers) == is_kept
        assert (tmp_path / "s" / "calls.db").exists() == is_kept


async def test_client_error_is_not_stored(tmp_path: Path) -> None:
    wrong = (whole(400, b'{"error":{"message":"no","type":"invalid_request_error"}}'),)
    async with running_with_store(tmp_path / "s", wrong, **ALWAYS) as (stand, _):
        assert "x-llm-guard-dead-letter" not in (await CHAT.ask(stand.url)).headers
        unknown = await ask(stand.url, CHAT.path, b'{"model":"no"}', DEAD_LETTER)
        assert (unknown.status, "x-llm-guard-dead-letter" in unknown.headers) == (404, False)
        assert await listed(stand) == []


async def test_answered_call_is_not_stored(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", CHAT.ok, **ALWAYS) as (stand, _):
        assert "x-llm-guard-dead-letter" not in (await CHAT.ask(stand.url)).headers
        assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_stream_that_died_after_its_first_token_is_stored(tmp_path: Path, form: Form) -> None:
    dying: list[Step] = [stream_head(), *map(chunk, form.preamble), chunk(form.token), Reset()]
    async with running_with_store(tmp_path / "s", dying, **ALWAYS) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert (reply.status, reply.is_whole, "x-llm-guard-dead-letter" in reply.headers) == (200, False, False)
        (line,) = await stand.calls()
        (kept_id,) = await listed(stand)
        assert (line["dead_letter_id"], line["outcome"]) == (kept_id, "truncated")


async def test_refusal_of_an_open_breaker_is_stored(tmp_path: Path) -> None:
    breaker = {"consecutive_failures": 1, "open_for": "5m", "early_probes": False}
    async with running_with_store(tmp_path / "s", BUSY, breaker=breaker, **ALWAYS) as (stand, _):
        await new_dead_letter(stand)
        kept_id = await new_dead_letter(stand)
        found = (await get(stand.url, f"dead-letters/{kept_id}"))["call"]
        assert (found["last_failure"]["kind"], found["attempts"]) == ("breaker_open", 0)


async def test_no_key_is_on_the_disk_in_the_log_or_shown(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with running_with_store(folder, BUSY, one={}, **ALWAYS) as (stand, _):
        headers = {
            "authorization": "Bearer sk-canary", "x-api-key": "sk-canary", "cookie": "canary", "x-custom": "canary",
            "openai-organization": "canary",
        }  # fmt: skip
        reply = await ask(stand.url, f"{CHAT.path}?api-version=1&api_key=canary", CHAT.body(), headers)
        kept_id = reply.headers["x-llm-guard-dead-letter"]
        said = json.dumps(await get(stand.url, f"dead-letters/{kept_id}?body=true"))
        assert "api-version=1" in on_disk(folder).decode("latin-1")
        assert CANARY.encode() not in on_disk(folder)
        assert CANARY not in said
        assert CANARY not in json.dumps(stand.log, default=str)


async def test_disk_that_cannot_be_written_loses_the_dead_letter_but_not_the_response(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("no folder")
    async with running_with_store(tmp_path / "s", BUSY, CHAT.ok, **ALWAYS) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, "x-llm-guard-dead-letter" in reply.headers) == (503, False)
        assert (await CHAT.ask(stand.url)).status == 200
        assert await stand.metric("llm_guard_dead_letters_lost_total", reason="write_failed") == 1
        assert await stand.metric("llm_guard_dead_letters_total") == 0
        assert any(line["event"] == "a dead letter was lost" for line in stand.log)


async def test_owner_sees_the_state_of_its_dead_letter(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY, CHAT.ok, **ALWAYS) as (stand, _):
        kept_id = await new_dead_letter(stand)
        assert (await shown(stand, kept_id)).status == 503
        await change(stand.url, "dead-letters/requeue", ids=[kept_id])
        assert (await outcome(stand, kept_id)).body == CHAT.answer
        assert (await shown(stand, kept_id, {"authorization": "Bearer other"})).status == 404


# requeueing


async def test_dead_letter_is_requeued_with_the_current_key(tmp_path: Path) -> None:
    refused = (whole(401, b'{"error":{"message":"wrong key","code":"invalid_api_key"}}'),)
    async with ScriptedProvider(refused, CHAT.ok) as provider:
        async with standing(
            config_with_store(provider.url, tmp_path / "s", one={"api_key": "sk-old"}, **ALWAYS)
        ) as stand:
            kept_id = await new_dead_letter(stand)
        async with standing(
            config_with_store(provider.url, tmp_path / "s", one={"api_key": "sk-new"}, **ALWAYS)
        ) as stand:
            done = await change(stand.url, "dead-letters/requeue", ids=[kept_id])
            assert (done["now"]["count"], done["now"]["ids"]) == (1, [kept_id])
            assert (await outcome(stand, kept_id)).status == 200
            assert b"sk-new" in provider.requests[1]
            found = await get(stand.url, f"dead-letters/{kept_id}?body=true")
            assert (found["call"]["state"], found["response_status"]) == ("answered", 200)
            assert found["response_body"]["content"] == CHAT.answer.decode()
            assert (await audit(stand.url))[0][1:] == ("dead-letters.requeue", kept_id, "an outage")


async def test_two_operators_who_requeue_at_once_get_each_dead_letter_once(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", *[BUSY] * 20, CHAT.ok, **ALWAYS) as (stand, provider):
        for _ in range(20):
            await new_dead_letter(stand)
        pressed = await asyncio.gather(*(change(stand.url, "dead-letters/requeue", all=True) for _ in range(4)))
        assert sum(each["now"]["count"] for each in pressed) == 20
        await settled(stand, 20, "answered")
        assert len(provider.requests) == 40
        keys = [request.split(b"idempotency-key: ")[1][:32] for request in provider.requests[20:]]
        assert len(set(keys)) == 20


async def test_dead_letter_that_fails_again_is_dead_again_and_counted(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY, **ALWAYS) as (stand, _):
        kept_id = await new_dead_letter(stand)
        first = (await get(stand.url, f"dead-letters/{kept_id}"))["call"]
        await change(stand.url, "dead-letters/requeue", all=True)
        await eventually(lambda: stand.app.deferred.counts.rounds == {("dead_letter", "dead"): 1})
        again = (await get(stand.url, f"dead-letters/{kept_id}"))["call"]
        assert (again["state"], again["attempts"], again["executions"]) == ("dead", 2, 1)
        assert again["first_failed"] == first["first_failed"] < again["last_failed"]
        assert await stand.metric("llm_guard_dead_letters_total") == 1


async def test_dead_letters_wait_for_their_turn(tmp_path: Path) -> None:
    store = {"dead_letters": {"requeue_rate": 0.001}}
    async with running_with_store(
        tmp_path / "s", BUSY, BUSY, CHAT.ok, rules={"dead_letter": "always"}, store=store
    ) as (stand, _):
        ids = [await new_dead_letter(stand) for _ in range(2)]
        done = await change(stand.url, "dead-letters/requeue", all=True)
        assert done["now"]["count"] == 2
        found = {each["id"]: each for each in (await get(stand.url, "dead-letters?state=queued"))["calls"]}
        assert ids[1] in found
        assert found[ids[1]]["due"] is not None


# selecting, showing, deleting


async def test_dead_letters_are_listed_newest_first_and_filtered(tmp_path: Path) -> None:
    rate = (whole(429, b'{"error":{"message":"slow down"}}'),)
    models = {"other": {"deployments": [{"upstream": "one", "model": "x"}]}}
    async with running_with_store(tmp_path / "s", BUSY, rate, BUSY, CHAT.ok, models=models, **ALWAYS) as (stand, _):
        first, second = await new_dead_letter(stand), await new_dead_letter(stand)
        other = (await ask(stand.url, CHAT.path, b'{"model":"other"}')).headers["x-llm-guard-dead-letter"]
        later = await defer(stand, headers=ASYNC)
        await outcome(stand, later)
        assert await listed(stand) == [later, other, second, first]
        assert await listed(stand, "?limit=2") == [later, other]
        assert await listed(stand, f"?before={other}") == [second, first]
        assert await listed(stand, "?route=other") == [other]
        assert await listed(stand, "?kind=rate_limit") == [second]
        assert await listed(stand, "?purpose=dead_letter&state=dead") == [other, second, first]
        assert await listed(stand, "?since=1e10") == []
        assert len(await listed(stand, "?until=1e10")) == 4
        page = await get(stand.url, "dead-letters?limit=1")
        assert page["count"] == {"deferred/answered": 1, "dead_letter/dead": 3}
        assert page["bytes"] > 0


async def test_dead_letters_are_counted_by_model_and_reason(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY, BUSY, [Reset()], **ALWAYS) as (stand, _):
        for _ in range(3):
            await new_dead_letter(stand)
        groups = await get(stand.url, "dead-letters/stats")
    assert [(group["route"], group["kind"], group["state"], group["count"]) for group in groups] == [
        ("gpt", "overloaded", "dead", 2),
        ("gpt", "network", "dead", 1),
    ]
    assert groups[0]["oldest"] < groups[0]["newest"]


async def test_dead_letters_are_deleted_by_filter_by_id_and_all(tmp_path: Path) -> None:
    rate = (whole(429, b'{"error":{"message":"slow down"}}'),)
    async with running_with_store(tmp_path / "s", rate, BUSY, **ALWAYS) as (stand, _):
        limited, *busy = [await new_dead_letter(stand) for _ in range(5)]
        done = await change(stand.url, "dead-letters/delete", filter={"kind": "rate_limit"})
        assert (done["now"]["count"], limited in await listed(stand)) == (1, False)
        reply = await ask(
            stand.url, f"/admin/dead-letters/{busy[0]}", b'{"reason":"mine"}', HERE, method="DELETE"
        )  # fmt: skip
        assert (reply.status, reply.json["now"]["count"]) == (200, 1)
        assert (await audit(stand.url))[0][1:] == ("dead-letters.delete", busy[0], "mine")
        assert (await change(stand.url, "dead-letters/delete", ids=busy[:2]))["now"]["count"] == 1
        assert (await change(stand.url, "dead-letters/delete", all=True))["now"]["count"] == 2
        assert await listed(stand) == []
        assert (await change(stand.url, "dead-letters/delete", all=True))["warnings"]


async def test_many_are_deleted_a_part_at_a_time_until_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_guard.storage.calls.sqlite_store._AT_ONCE", 2)
    async with running_with_store(tmp_path / "s", BUSY, **ALWAYS) as (stand, _):
        for _ in range(5):
            await new_dead_letter(stand)
        assert (await change(stand.url, "dead-letters/delete", all=True))["now"]["count"] == 5


async def test_page_after_a_deleted_dead_letter_is_not_the_last_one(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY, **ALWAYS) as (stand, _):
        first, second = await new_dead_letter(stand), await new_dead_letter(stand)
        assert await listed(stand, f"?before={first}") == []
        await change(stand.url, "dead-letters/delete", ids=[second])
        reply = await ask(stand.url, f"/admin/dead-letters?before={second}", headers=HERE, method="GET")
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_call")


async def test_running_call_is_not_deleted(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", (Hold(),), server={"drain": "100ms"}) as (stand, provider):
        kept_id = await defer(stand)
        await eventually(lambda: provider.requests)
        assert (await change(stand.url, "dead-letters/delete", all=True))["now"]["count"] == 0
        assert await listed(stand) == [kept_id]


@pytest.mark.parametrize(
    "chosen",
    [{}, {"all": True, "ids": ["x"]}, {"filter": {}}, {"ids": []}, {"all": False}, {"filter": {"state": "dead"}}],
)
async def test_choice_must_be_plain(tmp_path: Path, chosen: dict[str, Any]) -> None:
    async with running_with_store(tmp_path / "s", BUSY, **ALWAYS) as (stand, _):
        kept_id = await new_dead_letter(stand)
        for page in ("requeue", "delete"):
            reply: Reply = await post(stand.url, f"dead-letters/{page}", **chosen)
            assert (reply.status, reply.json["error"]["code"]) == (422, "invalid_body")
        assert await listed(stand, "?state=dead") == [kept_id]


async def test_unknown_dead_letter_is_not_found(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY) as (stand, _):
        for method, body in (("GET", b""), ("DELETE", b'{"reason":"x"}')):
            reply = await ask(stand.url, "/admin/dead-letters/nobody", body, HERE, method=method)
            assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_call")
        assert not (tmp_path / "s").exists()


async def test_unreadable_store_is_reported_to_the_operator(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "calls.db").mkdir()
    async with running_with_store(folder, CHAT.ok) as (stand, _):
        reply = await ask(stand.url, "/admin/dead-letters", headers=HERE, method="GET")
        assert (reply.status, reply.json["error"]["code"]) == (503, "call_store_unavailable")
        assert (await CHAT.ask(stand.url)).status == 200


async def test_encrypted_dead_letter_is_unreadable_on_the_disk_and_is_requeued(tmp_path: Path) -> None:
    folder, key = tmp_path / "s", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    store = {"encryption_key": key, "dead_letters": {"bodies": "encrypted", "requeue_rate": 1000}}
    async with running_with_store(folder, BUSY, CHAT.ok, store=store, rules={"dead_letter": "always"}) as (stand, _):
        kept_id = (await CHAT.ask(stand.url, user="prompt-canary")).headers["x-llm-guard-dead-letter"]
        assert b"prompt-canary" not in on_disk(folder)
        await change(stand.url, "dead-letters/requeue", ids=[kept_id])
        assert (await outcome(stand, kept_id)).body == CHAT.answer
        assert b"chat.completion" not in on_disk(folder)


async def test_dead_letter_without_its_body_cannot_be_requeued_and_states_why(tmp_path: Path) -> None:
    store = {"dead_letters": {"bodies": "none"}}
    async with running_with_store(tmp_path / "s", BUSY, store=store, rules={"dead_letter": "always"}) as (stand, _):
        kept_id = (await CHAT.ask(stand.url, user="prompt-canary")).headers["x-llm-guard-dead-letter"]
        assert b"prompt-canary" not in on_disk(tmp_path / "s")
        done = await change(stand.url, "dead-letters/requeue", ids=[kept_id])
        assert (done["now"]["count"], len(done["warnings"])) == (0, 1)
