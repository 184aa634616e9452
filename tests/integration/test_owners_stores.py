"""The index of the owners of a provider's objects: in a file, and on a real Redis server that gateways share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_guard.clock import SystemClock
from llm_guard.proxy.client_keys import object_ownership
from llm_guard.proxy.client_keys.object_ownership import OwnedObjects
from llm_guard.resilience.client_keys.object_owners import ObjectKey, Ownership
from llm_guard.storage import owners_file, redis_owners
from llm_guard.storage.errors import StoreError
from llm_guard.storage.owners_file import OwnersFile, OwnersStore
from llm_guard.storage.redis_owners import RedisOwners
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture(params=["file", "redis"])
def two(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> Iterator[list[OwnersStore]]:
    """One store, as two gateways see it."""
    stores: list[OwnersStore] = [
        OwnersFile(lambda: tmp_path) if request.param == "file" else RedisOwners(server.url, "f", SystemClock())
        for _ in range(2)
    ]
    yield stores
    for store in stores:
        store.close()


def entry(object_id: str, owner: str = "a", *, is_answer: bool = False) -> Ownership:
    return Ownership(ObjectKey("openai", object_id), owner, is_answer)


def test_entries_of_one_gateway_are_read_by_the_other(two: list[OwnersStore]) -> None:
    first, second = two
    files, answer = [entry("file-1"), entry("file-2", "b")], entry("resp_1", is_answer=True)
    assert first.exchange(files, 0)[0] == files
    found, read_up_to = second.exchange([], 0)
    assert found == files
    assert second.exchange([], read_up_to) == ([], read_up_to)
    first.exchange([answer], 0)
    assert second.exchange([], read_up_to)[0] == [answer]


def test_object_keeps_its_first_owner(two: list[OwnersStore]) -> None:
    first, second = two
    first.exchange([entry("file-1", "a")], 0)
    second.exchange([entry("file-1", "b")], 0)
    assert first.exchange([], 0)[0] == [entry("file-1", "a")]


def test_oldest_entries_of_an_owner_make_room_for_its_own(
    two: list[OwnersStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (owners_file, redis_owners):
        monkeypatch.setattr(module, "MOST_OBJECTS", 2)
    two[0].exchange([entry("1", "b"), *(entry(str(number)) for number in range(2, 7))], 0)
    two[0].exchange([entry("7", is_answer=True)], 0)
    assert [one.key.id for one in two[1].exchange([], 0)[0]] == ["1", "5", "6", "7"]


def test_many_entries_are_added_and_read_in_parts(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_owners, "_AT_ONCE", 3)
    store = RedisOwners(server.url, "f", SystemClock())
    added = [entry(str(number)) for number in range(8)]
    found, read_up_to = store.exchange(added, 0)
    while more := store.exchange([], read_up_to)[0]:
        found, read_up_to = found + more, read_up_to + len(more)
    assert found == added
    store.close()


def test_names_may_have_any_character(two: list[OwnersStore]) -> None:
    odd = Ownership(ObjectKey("up:stream", "file-ü:\n1"), "0 an owner: ö", is_answer=False)
    two[0].exchange([odd], 0)
    assert two[1].exchange([], 0)[0] == [odd]


def test_content_that_cannot_be_read_is_ignored(server: RedisServer) -> None:
    store = RedisOwners(server.url, "f", SystemClock())
    store.exchange([entry("1"), entry("2"), entry("3")], 0)
    with server.client() as client:
        client.hset("llmg:1:{f}:owners:entries", "openai\x001", "2x")
        client.hdel("llmg:1:{f}:owners:entries", "openai\x002")
        client.zadd("llmg:1:{f}:owners:order", {"nonsense": 9})
    assert store.exchange([], 0)[0] == [entry("3")]
    store.close()


def test_server_that_fails_is_a_failure_of_the_store(server: RedisServer) -> None:
    store = RedisOwners(server.url, "f", SystemClock())
    server.kill()
    with pytest.raises(StoreError):
        store.exchange([entry("1")], 0)
    store.close()


def test_server_that_has_lost_its_latest_entries_is_noticed(server: RedisServer) -> None:
    """It was restarted from an older file, or another server has taken its place."""
    first, second = (RedisOwners(server.url, "f", SystemClock()) for _ in range(2))
    added = [entry(str(number)) for number in range(5)]
    read_up_to = [first.exchange(added, 0)[1], second.exchange([], 0)[1]]
    with server.client() as client:
        client.set("llmg:1:{f}:owners:number", 2)
        client.zremrangebyscore("llmg:1:{f}:owners:order", 3, 9)
        client.hdel("llmg:1:{f}:owners:entries", *(f"openai\0{number}" for number in (2, 3, 4)))
    assert first.exchange([entry("new")], read_up_to[0]) == ([], 0)
    first.exchange(added, 0)
    assert second.exchange([], read_up_to[1]) == ([], 0), "the numbers are as high as before, and mean other entries"
    assert {one.key.id for one in second.exchange([], 0)[0]} == {"0", "1", "2", "3", "4", "new"}
    for store in (first, second):
        store.close()


async def test_server_that_was_emptied_gets_the_index_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_ownership, "EXCHANGE_S", 0.01)
    gateways = [OwnedObjects(RedisOwners(server.url, "f", SystemClock()), SystemClock()) for _ in range(2)]
    first, second = gateways
    for gateway in gateways:
        gateway.begin()
        await gateway.wait_read()
    first.note("openai", "file-1", "a", is_answer=False)
    await eventually(lambda: second.owners.has_other(ObjectKey("openai", "file-1"), "b"))
    with server.client() as client:
        client.flushall()
    second.note("openai", "file-2", "b", is_answer=False)
    await eventually(lambda: first.owners.has_other(ObjectKey("openai", "file-2"), "a"))
    later = RedisOwners(server.url, "f", SystemClock())
    await eventually(lambda: len(later.exchange([], 0)[0]) == 2)
    later.close()
    for gateway in gateways:
        await gateway.close()
