"""`api_key_file`: the key is read from a file, and changes while calls run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llm_guard.app import create_app
from llm_guard.config import ConfigError
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, standing
from tests.fakes.keyed_provider import REFUSED, KeyedProvider
from tests.fakes.waiting import eventually

often = pytest.mark.usefixtures("poll_s")


@asynccontextmanager
async def keyed(file: Path, provider: KeyedProvider) -> AsyncIterator[Stand]:
    one = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key_file": str(file)}
    async with standing(config_of(provider.url, upstreams={"one": one})) as stand:
        yield stand


async def serves(stand: Stand, provider: KeyedProvider) -> str:
    """Makes a call that must succeed, and returns the key it was sent with."""
    reply = await CHAT.ask(stand.url)
    assert reply.status == 200, reply.text
    return provider.keys[-1]


async def until_used(stand: Stand, provider: KeyedProvider, key: str) -> None:
    async with asyncio.timeout(5):
        while await serves(stand, provider) != key:  # noqa: ASYNC110  # calls are made meanwhile
            await asyncio.sleep(0.05)


def logged_errors(stand: Stand, event: str) -> list[str]:
    return [str(line.get("error", "")) for line in stand.log if line["event"].startswith(event)]


@often
async def test_key_is_read_from_the_file_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first\n")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        assert await serves(stand, provider) == "sk-filed-key-first"
        file.write_text("sk-filed-key-second")
        await until_used(stand, provider, "sk-filed-key-second")


async def test_call_whose_key_was_revoked_reads_the_file_and_is_served(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        assert await serves(stand, provider) == "sk-filed-key-first"
        file.write_text("sk-filed-key-second")
        provider.answers = {"sk-filed-key-first": REFUSED}
        assert await serves(stand, provider) == "sk-filed-key-second"
        assert provider.keys == ["sk-filed-key-first", "sk-filed-key-first", "sk-filed-key-second"]
        (_, line) = await stand.calls()
        assert [each["outcome"] for each in line["attempts"]] == ["auth", "ok"]


@often
async def test_key_that_the_provider_does_not_know_yet_leaves_the_one_before_in_use(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider({"sk-filed-key-second": REFUSED}) as provider, keyed(file, provider) as stand:
        assert await serves(stand, provider) == "sk-filed-key-first"
        file.write_text("sk-filed-key-second")
        await eventually(lambda: logged_errors(stand, "changed files are in use"))
        assert [await serves(stand, provider) for _ in range(3)] == ["sk-filed-key-first"] * 3
        del provider.answers["sk-filed-key-second"]
        stand.app.gateway.cooldowns.lift(list(stand.app.gateway.cooldowns.snapshot(0.0)), 0.0)
        assert await serves(stand, provider) == "sk-filed-key-second"


@often
async def test_key_that_is_accepted_stays_in_use_while_the_file_changes_twice(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    unknown = dict.fromkeys(("sk-filed-key-", "sk-filed-key-second"), REFUSED)
    async with KeyedProvider(unknown) as provider, keyed(file, provider) as stand:
        assert await serves(stand, provider) == "sk-filed-key-first"
        for text in ("sk-filed-key-", "sk-filed-key-second"):  # half written first
            stand.log.clear()
            file.write_text(text)
            await eventually(lambda: logged_errors(stand, "changed files are in use"))
            assert [await serves(stand, provider) for _ in range(3)] == ["sk-filed-key-first"] * 3


@often
async def test_key_that_replaced_a_revoked_one_is_tried_before_its_cooldown_ends(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider({"sk-filed-key-second": REFUSED}) as provider, keyed(file, provider) as stand:
        await serves(stand, provider)
        file.write_text("sk-filed-key-second")
        await eventually(lambda: logged_errors(stand, "changed files are in use"))
        assert await serves(stand, provider) == "sk-filed-key-first"
        provider.answers = {"sk-filed-key-first": REFUSED}  # the provider has accepted one, and revoked the other
        assert [await serves(stand, provider) for _ in range(3)] == ["sk-filed-key-second"] * 3


@often
async def test_kubernetes_swap_of_links_is_seen(tmp_path: Path) -> None:
    for name, key in (("..one", "sk-filed-key-first"), ("..two", "sk-filed-key-second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(key)
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "key").symlink_to("..data/key")
    async with KeyedProvider() as provider, keyed(tmp_path / "key", provider) as stand:
        assert await serves(stand, provider) == "sk-filed-key-first"
        (tmp_path / "..new").symlink_to("..two")
        os.rename(tmp_path / "..new", tmp_path / "..data")
        await until_used(stand, provider, "sk-filed-key-second")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (Path.unlink, "does not exist"),
        (lambda file: file.write_text(""), "is empty"),
        (lambda file: file.write_text("two words"), "must contain one key and nothing else"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "must contain one key and nothing else"),
        (lambda file: file.write_text("x" * (2 << 20)), "is larger than 1 MiB"),
    ],
)
async def test_file_without_a_key_leaves_the_last_good_one_in_use_and_is_reported_once(
    tmp_path: Path, poll_s: float, spoil: Callable[[Path], object], problem: str
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        spoil(file)
        await eventually(lambda: logged_errors(stand, "changed files cannot be used"))
        await asyncio.sleep(5 * poll_s)  # long enough to check the file twice more
        assert await serves(stand, provider) == "sk-filed-key-first"
        (only,) = logged_errors(stand, "changed files cannot be used")
        assert problem in only
        assert "two words" not in only
        file.write_text("sk-filed-key-second")
        await until_used(stand, provider, "sk-filed-key-second")


async def test_key_that_is_written_slowly_is_not_used_by_half(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        for size in range(1, len("sk-filed-key-second") + 1):
            file.write_text("sk-filed-key-second"[:size])
            await serves(stand, provider)
            await asyncio.sleep(0.05)
        await until_used(stand, provider, "sk-filed-key-second")
        assert set(provider.keys) == {"sk-filed-key-first", "sk-filed-key-second"}


async def test_no_call_fails_while_the_key_is_rotated_under_load(tmp_path: Path) -> None:
    file, failed, calls = tmp_path / "key", [], 0
    file.write_text("sk-0")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        rotating = True

        async def call() -> None:
            nonlocal calls
            while rotating:
                reply = await CHAT.ask(stand.url)
                calls += 1
                if reply.status != 200:
                    failed.append(reply.text)

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(call())
            for turn in range(1, 5):
                new = tmp_path / "new"
                new.write_text(f"sk-{turn}")
                os.rename(new, file)
                provider.answers = {f"sk-{old}": REFUSED for old in range(turn)}  # the old keys are revoked at once
                await asyncio.sleep(0.7)
            rotating = False
        assert (failed, calls > 50) == ([], True)


async def test_call_that_both_keys_refuse_is_sent_once_with_each(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        await serves(stand, provider)
        file.write_text("sk-filed-key-second")
        provider.answers = {"sk-filed-key-first": REFUSED, "sk-filed-key-second": REFUSED}
        assert (await CHAT.ask(stand.url)).status == 401
        assert provider.keys[1:] == ["sk-filed-key-first", "sk-filed-key-second"]


@often
async def test_call_in_flight_keeps_its_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-filed-key-first")
    async with KeyedProvider() as provider, keyed(file, provider) as stand:
        provider.holds["sk-filed-key-first"] = asyncio.Event()
        running = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: provider.keys == ["sk-filed-key-first"])
        file.write_text("sk-filed-key-second")
        await eventually(lambda: logged_errors(stand, "changed files are in use"))
        assert await serves(stand, provider) == "sk-filed-key-second"
        provider.holds["sk-filed-key-first"].set()
        assert (await running).status == 200
        assert provider.keys == ["sk-filed-key-first", "sk-filed-key-second"]


async def test_gateway_does_not_start_without_the_file() -> None:
    one = {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key_file": "/nowhere/key"}
    app = create_app(config_of("http://127.0.0.1:1", upstreams={"one": one}))
    with pytest.raises(ConfigError, match=r"upstreams\.one\.api_key_file: /nowhere/key does not exist"):
        await app.start()
