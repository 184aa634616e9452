"""`api_keys`: several keys for one upstream, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, config_text, standing
from tests.chaos.wire import Reply
from tests.fakes.keyed_provider import LIMITED, REFUSED, SPENT, KeyedProvider
from tests.fakes.provider import Respond, whole
from tests.fakes.waiting import eventually
from tests.integration.operating import change, get, running
from tests.tokens import NAMED

KEYS: list[Any] = ["sk-pool-key-a", "sk-pool-key-b", {"name": "third", "key": "sk-pool-key-c"}]
TOKENS = {"tokens": [{"name": name, "token": token, "role": "operator"} for name, token in NAMED.items()]}


def upstream(provider: KeyedProvider, keys: list[Any]) -> dict[str, Any]:
    return {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_keys": keys}


@asynccontextmanager
async def pooled(
    answers: Mapping[str, Respond] | None = None, keys: list[Any] = KEYS, **sections: Any
) -> AsyncIterator[tuple[Stand, KeyedProvider]]:
    async with KeyedProvider(answers) as provider:
        config = config_of(provider.url, upstreams={"one": upstream(provider, keys)}, **sections)
        async with standing(config) as stand:
            yield stand, provider


async def answers_of(stand: Stand, calls: int) -> list[Reply]:
    return [await CHAT.ask(stand.url) for _ in range(calls)]


def statuses(replies: list[Reply]) -> set[int]:
    return {reply.status for reply in replies}


async def test_calls_one_after_the_other_take_the_keys_in_turn() -> None:
    async with pooled() as (stand, provider):
        assert statuses(await answers_of(stand, 6)) == {200}
        assert provider.keys == ["sk-pool-key-a", "sk-pool-key-b", "sk-pool-key-c"] * 2


async def test_the_key_with_the_fewest_calls_is_taken_first() -> None:
    async with pooled() as (stand, provider):
        provider.holds = {"sk-pool-key-a": asyncio.Event(), "sk-pool-key-b": asyncio.Event()}
        slow = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(2)]
        await eventually(lambda: len(provider.keys) == 2)
        assert statuses(await answers_of(stand, 4)) == {200}
        assert provider.keys == ["sk-pool-key-a", "sk-pool-key-b", *["sk-pool-key-c"] * 4]
        for hold in provider.holds.values():
            hold.set()
        assert statuses(list(await asyncio.gather(*slow))) == {200}


@pytest.mark.parametrize("answer", [REFUSED, SPENT, LIMITED], ids=["refused", "spent", "limited"])
async def test_failing_key_is_replaced_by_the_next_in_the_same_call(answer: Respond) -> None:
    async with pooled({"sk-pool-key-a": answer}) as (stand, provider):
        assert statuses(await answers_of(stand, 8)) == {200}
        # After one failure the key is in cooldown.
        assert provider.keys.count("sk-pool-key-a") == 1
        assert provider.keys[:2] == ["sk-pool-key-a", "sk-pool-key-b"]


async def test_call_passes_as_many_bad_keys_as_there_are() -> None:
    answers = {"sk-pool-key-a": REFUSED, "sk-pool-key-b": SPENT}
    async with pooled(answers, retry={"max_attempts": 1}) as (stand, provider):
        (reply,) = await answers_of(stand, 1)
        assert (reply.status, reply.headers["x-llm-guard-attempts"]) == (200, "3")
        assert provider.keys == ["sk-pool-key-a", "sk-pool-key-b", "sk-pool-key-c"]


async def test_change_of_keys_needs_no_token_of_the_retry_budget() -> None:
    empty = {"max_attempts": 1, "budget": {"ratio": 0, "min_per_second": 0}}
    async with pooled({"sk-pool-key-a": REFUSED}, retry=empty) as (stand, _):
        assert statuses(await answers_of(stand, 1)) == {200}


async def test_call_that_all_keys_refuse_ends_with_the_answer_and_begins_no_cooldown() -> None:
    answers = dict.fromkeys(("sk-pool-key-a", "sk-pool-key-b", "sk-pool-key-c"), REFUSED)
    async with pooled(answers) as (stand, provider):
        (reply,) = await answers_of(stand, 1)
        assert (reply.status, sorted(provider.keys)) == (401, ["sk-pool-key-a", "sk-pool-key-b", "sk-pool-key-c"])
        provider.answers = {}  # the call was at fault, not the keys
        assert statuses(await answers_of(stand, 3)) == {200}


async def test_pool_with_all_keys_in_cooldown_answers_with_the_provider_error() -> None:
    answers = dict.fromkeys(("sk-pool-key-a", "sk-pool-key-b", "sk-pool-key-c"), REFUSED)
    async with pooled(answers) as (stand, provider):
        replies = await answers_of(stand, 3)
        assert statuses(replies) == {401}
        assert replies[-1].headers["x-llm-guard-refused-by"] == "cooldown"
        assert len(provider.keys) == 6


async def test_other_failures_do_not_change_the_key() -> None:
    async with pooled({"sk-pool-key-a": whole(503, b"{}")}) as (stand, provider):
        (reply,) = await answers_of(stand, 1)
        assert (reply.status, provider.keys) == (503, ["sk-pool-key-a"])


async def test_each_key_has_a_limit_of_its_own() -> None:
    async with pooled(keys=["sk-pool-key-a", "sk-pool-key-b"], defaults={"capacity": {"concurrency": 1}}) as (
        stand,
        provider,
    ):
        provider.holds = {"sk-pool-key-a": asyncio.Event(), "sk-pool-key-b": asyncio.Event()}
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(4)]
        await eventually(lambda: len(provider.keys) == 2)
        await asyncio.sleep(0.05)
        assert sorted(provider.keys) == ["sk-pool-key-a", "sk-pool-key-b"]
        for hold in provider.holds.values():
            hold.set()
        assert statuses(list(await asyncio.gather(*calls))) == {200}
        pool = stand.deployment("one/gpt").upstream.keys
        assert pool is not None
        assert [key.in_flight for key in pool.keys] == [0, 0]


async def test_keys_are_shown_by_name_and_never_themselves() -> None:
    async with pooled({"sk-pool-key-a": REFUSED}) as (stand, _):
        await answers_of(stand, 2)
        lines = await stand.calls()
        assert [line["key"] for line in lines[0]["attempts"]] == ["1", "2"]
        assert lines[1]["attempts"][0]["key"] == "third"
        assert "sk-pool-key-" not in json.dumps(stand.log, default=str)


async def test_operator_sees_the_key_in_cooldown_and_ends_its_cooldown(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    async with KeyedProvider({"sk-pool-key-a": REFUSED}) as provider:
        path.write_text(config_text(provider.url, upstreams={"one": upstream(provider, KEYS)}, ops=TOKENS))
        async with running(path) as stand:
            assert statuses(await answers_of(stand, 2)) == {200}
            (found,) = await get(stand.url, "restrictions")
            assert (found["kind"], found["is_caller_specific"]) == ("credential_cooldown", False)
            assert found["cause"].startswith("the credential of one is in cooldown: key 1: ")
            provider.answers = {}
            await change(stand.url, "deployments/reset", upstream="one", kinds=["credential_cooldown"])
            assert statuses(await answers_of(stand, 3)) == {200}
            assert "sk-pool-key-a" in provider.keys[-3:]


async def test_reload_adds_and_removes_keys_without_a_failed_call(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    async with KeyedProvider() as provider:

        def write(*keys: str) -> None:
            path.write_text(config_text(provider.url, upstreams={"one": upstream(provider, list(keys))}, ops=TOKENS))

        write("sk-pool-key-a", "sk-pool-key-b")
        async with running(path) as stand:
            replies = await answers_of(stand, 2)
            provider.holds = {"sk-pool-key-a": asyncio.Event()}
            under_way = asyncio.create_task(CHAT.ask(stand.url))
            await eventually(lambda: len(provider.keys) == 3)
            write("sk-pool-key-b", "sk-pool-key-new")
            await stand.app.reloads.reload("test")
            replies += await answers_of(stand, 4)
            provider.holds["sk-pool-key-a"].set()
            assert statuses([*replies, await under_way]) == {200}
            assert set(provider.keys[3:]) == {"sk-pool-key-b", "sk-pool-key-new"}


async def test_key_that_works_again_is_used_again() -> None:
    async with pooled({"sk-pool-key-a": REFUSED}, keys=["sk-pool-key-a", "sk-pool-key-b"]) as (stand, provider):
        assert statuses(await answers_of(stand, 2)) == {200}
        provider.answers = {}
        cooldowns = stand.app.gateway.cooldowns
        cooldowns.expire(list(cooldowns.snapshot(stand.app._clock.now())), stand.app._clock.now())
        assert statuses(await answers_of(stand, 4)) == {200}
        assert "sk-pool-key-a" in provider.keys[-4:]
