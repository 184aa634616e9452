"""Two tenants share one provider account: each can use only the objects it has made, and cannot see any others.

The provider itself gives access to every object to any request with the account's key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anthropic
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, NotFoundError, PermissionDeniedError

from llm_guard.config import ConfigError, FleetConfig
from llm_guard.proxy.client_keys.response_tap import EventReader
from tests.chaos.forms import RESPONSES
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.object_provider import ObjectProvider, event
from tests.fakes.provider import END, Hold, Pause, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually
from tests.security.grammar import Request
from tests.security.keys import OPS_TOKEN, UPSTREAM_KEY
from tests.security.stand import Recorder

OURS, THEIRS = "sk-CANARY-tenant-a-001", "sk-CANARY-tenant-b-002"
ALLOW = {"paths": ["*"], "models": ["*"]}
KEYS = [{"name": "a", "key": OURS, "allow": ALLOW}, {"name": "b", "key": THEIRS, "allow": ALLOW}]

Dialect = Literal["openai", "anthropic"]


class Case(NamedTuple):
    """One request; `{file}` and similar placeholders stand for ids of objects that tenant A has made."""

    dialect: Dialect
    method: str
    path: str
    body: Any = None

    def __str__(self) -> str:
        return f"{self.dialect} {self.method} {self.path} {json.dumps(self.body) if self.body is not None else ''}"


def o(method: str, path: str, body: Any = None) -> Case:
    return Case("openai", method, path, body)


def a(method: str, path: str, body: Any = None) -> Case:
    return Case("anthropic", method, path, body)


def asking(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt", "input": "hi", **fields}


def chat(*content: Any) -> dict[str, Any]:
    return {"model": "gpt", "messages": [{"role": "user", "content": list(content)}]}


def message(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": list(content)}], **fields}


FILE = {"type": "input_file", "file_id": "{file}"}
DOCUMENT = {"type": "document", "source": {"type": "file", "file_id": "{afile}"}}
TABLE = [
    # paths of the openai dialect
    o("GET", "/v1/files/{file}"),
    o("GET", "/v1/files/{file}/content"),
    o("DELETE", "/v1/files/{file}"),
    o("HEAD", "/v1/files/{file}"),
    o("GET", "/upstreams/one/v1/files/{file}"),
    o("GET", "/v1/files/{output}/content"),
    o("GET", "/v1/uploads/{upload}"),
    o("POST", "/v1/uploads/{upload}/parts", {"data": "x"}),
    o("POST", "/v1/uploads/{upload}/complete", {"part_ids": []}),
    o("POST", "/v1/uploads/{upload}/cancel", {}),
    o("GET", "/v1/batches/{batch}"),
    o("POST", "/v1/batches/{batch}/cancel", {}),
    o("GET", "/v1/responses/{response}"),
    o("GET", "/v1/responses/{response}?stream=true"),
    o("DELETE", "/v1/responses/{response}"),
    o("POST", "/v1/responses/{response}/cancel", {}),
    o("GET", "/v1/responses/{response}/input_items"),
    o("GET", "/v1/responses/{streamed}"),
    o("GET", "/v1/conversations/{conversation}"),
    o("GET", "/v1/conversations/{conversation}/items"),
    o("POST", "/v1/conversations/{conversation}/items", {"items": []}),
    o("GET", "/v1/vector_stores/{store}"),
    o("GET", "/v1/vector_stores/{store}/files"),
    o("POST", "/v1/vector_stores/{store}/search", {"query": "x"}),
    o("DELETE", "/v1/vector_stores/{store}/files/{file}"),
    o("GET", "/v1/fine_tuning/jobs/{job}"),
    o("GET", "/v1/fine_tuning/jobs/{job}/events"),
    o("POST", "/v1/fine_tuning/jobs/{job}/cancel", {}),
    o("GET", "/v1/videos/{video}/content"),
    o("POST", "/v1/videos/{video}/remix", {"prompt": "x"}),
    o("GET", "/v1/containers/{container}/files"),
    o("GET", "/v1/containers/{ran}/files"),
    o("GET", "/v1/assistants/{assistant}"),
    o("POST", "/v1/threads/{thread}/messages", {"role": "user", "content": "x"}),
    # queries
    o("GET", "/v1/files?after={file}"),
    o("GET", "/v1/batches?after={batch}&limit=2"),
    o("GET", "/v1/files?%61fter={file}"),
    # ids in bodies
    o("POST", "/v1/batches", {"input_file_id": "{file}", "endpoint": "/v1/responses"}),
    o("POST", "/v1/responses", asking(previous_response_id="{response}")),
    o("POST", "/v1/responses", asking(previous_response_id="{streamed}")),
    o("POST", "/upstreams/one/v1/responses", asking(previous_response_id="{response}")),
    o("POST", "/v1/responses", asking(conversation="{conversation}")),
    o("POST", "/v1/responses", asking(conversation={"id": "{conversation}"})),
    o("POST", "/v1/responses", asking(input=[{"role": "user", "content": [FILE]}])),
    o("POST", "/v1/responses", asking(input=[{"type": "item_reference", "id": "{item}"}])),
    o("POST", "/v1/responses", asking(input=[{"id": "{item}"}])),
    o("POST", "/v1/responses", asking(input=[{"type": "item_reference", "id": "{item}", "role": "user"}])),
    o("POST", "/v1/responses", asking(input=[{"type": "reasoning", "id": "{streamed_item}", "role": "assistant"}])),
    o("POST", "/v1/responses", asking(type="tool_use", input=[{"type": "item_reference", "id": "{item}"}])),
    o("POST", "/v1/responses", asking(input=[{"type": "reasoning", "id": "{streamed_item}", "summary": []}])),
    o("POST", "/v1/responses", asking(tools=[{"type": "file_search", "vector_store_ids": ["{store}"]}])),
    o("POST", "/v1/responses", asking(tools=[{"type": "code_interpreter", "container": "{container}"}])),
    o("POST", "/v1/responses/input_tokens", asking(previous_response_id="{response}")),
    o("POST", "/v1/chat/completions", chat({"type": "file", "file": {"file_id": "{file}"}})),
    o("POST", "/v1/fine_tuning/jobs", {"model": "gpt", "training_file": "{file}"}),
    o("POST", "/v1/vector_stores", {"file_ids": ["{file}"]}),
    o("POST", "/v1/vector_stores/{store}/files", {"file_id": "{file}"}),
    o("POST", "/v1/threads/runs", {"assistant_id": "{assistant}"}),
    # the anthropic dialect
    a("GET", "/v1/files/{afile}"),
    a("GET", "/v1/files/{afile}/content"),
    a("DELETE", "/v1/files/{afile}"),
    a("GET", "/upstreams/two/v1/files/{afile}/content"),
    a("GET", "/v1/messages/batches/{abatch}"),
    a("GET", "/v1/messages/batches/{abatch}/results"),
    a("POST", "/v1/messages/batches/{abatch}/cancel", {}),
    a("DELETE", "/v1/messages/batches/{abatch}"),
    a("GET", "/v1/skills/{skill}"),
    a("GET", "/v1/files?after_id={afile}"),
    a("POST", "/v1/messages", message(DOCUMENT)),
    a("POST", "/v1/messages", message({"type": "container_upload", "file_id": "{afile}"})),
    a("POST", "/v1/messages", message(container={"skills": [{"type": "custom", "skill_id": "{skill}"}]})),
    a("POST", "/v1/messages/count_tokens", message(DOCUMENT)),
    a("POST", "/v1/messages/batches", {"requests": [{"custom_id": "1", "params": message(DOCUMENT)}]}),
]  # fmt: skip
MADE = {
    "file": o("POST", "/v1/files", {"purpose": "user_data"}),
    "upload": o("POST", "/v1/uploads", {}),
    "batch": o("POST", "/v1/batches", {}),
    "response": o("POST", "/v1/responses", asking()),
    "conversation": o("POST", "/v1/conversations", {}),
    "store": o("POST", "/v1/vector_stores", {}),
    "job": o("POST", "/v1/fine_tuning/jobs", {"model": "gpt"}),
    "video": o("POST", "/v1/videos", {"model": "gpt"}),
    "container": o("POST", "/v1/containers", {}),
    "assistant": o("POST", "/v1/assistants", {"model": "gpt"}),
    "thread": o("POST", "/v1/threads", {}),
    "afile": a("POST", "/v1/files", {}),
    "abatch": a("POST", "/v1/messages/batches", {"requests": []}),
    "skill": a("POST", "/v1/skills", {}),
}


class Tenants:
    """A gateway, and the objects that tenant A has made behind it."""

    def __init__(self, stand: Stand, recorder: Recorder, provider: ObjectProvider) -> None:
        self.stand = stand
        self.recorder = recorder
        self.provider = provider
        self.ids: dict[str, str] = {}

    async def send(self, key: str, case: Case, **headers: str) -> Reply:
        path, body = case.path, json.dumps(case.body) if case.body is not None else ""
        for name, value in self.ids.items():
            path, body = path.replace(f"{{{name}}}", value), body.replace(f"{{{name}}}", value)
        assert "{" not in path, path
        if case.dialect == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
        request = raw_request(path, body.encode(), {"authorization": f"Bearer {key}", **headers}, case.method)
        async with Connection(self.stand.url) as connection:
            return await connection.ask(request)

    async def make_all(self) -> None:
        for name, case in MADE.items():
            reply = await self.send(OURS, case)
            assert reply.status == 200, (name, reply)
            self.ids[name] = reply.json["id"]
            if name == "batch":
                self.ids["output"] = reply.json["output_file_id"]
            if name == "response":
                self.ids |= {"item": reply.json["output"][0]["id"], "ran": reply.json["output"][1]["container_id"]}
        stream = await self.send(OURS, o("POST", "/v1/responses", asking(stream=True)))
        response = json.loads(stream.events[-1].partition(b"data: ")[2])["response"]
        self.ids |= {"streamed": response["id"], "streamed_item": response["output"][0]["id"]}
        self.recorder.requests.clear()


def config_for(
    url: str, store: Path, *, is_isolated: bool = True, keys: Any = KEYS, models: Any = None, fleet: str | None = None
) -> Any:
    upstreams = {
        "one": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": UPSTREAM_KEY},
        "two": {"dialect": "anthropic", "base_url": url, "api_key": UPSTREAM_KEY},
        "three": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": UPSTREAM_KEY},
    }
    server = {"client_keys": keys, "isolate_objects": is_isolated}
    ops = {"token": OPS_TOKEN, "store": str(store)}
    config = config_of(url, upstreams=upstreams, server=server, ops=ops, models=models)
    if fleet is None:
        return config
    objects = config.store.objects.model_copy(update={"kind": "redis"})
    store_config = config.store.model_copy(update={"objects": objects})
    return config.model_copy(update={"fleet": FleetConfig(store=fleet), "store": store_config})


@asynccontextmanager
async def tenants(store: Path, *, has_made: bool = True, **changed: Any) -> AsyncIterator[Tenants]:
    provider = ObjectProvider()

    def answer(request: Request) -> bytes:
        headers = {name.decode(): value.decode() for name, value in request.fields}
        return provider.answer(request.method.decode(), request.target.decode(), request.body, headers)

    async with Recorder(answer) as recorder, standing(config_for(recorder.url, store, **changed)) as stand:
        found = Tenants(stand, recorder, provider)
        if has_made:
            await found.make_all()
        yield found


def check_missing(case: Case, reply: Reply) -> None:
    """Expects the provider's own error for a missing object."""
    assert reply.status == 404, reply
    assert reply.headers["x-llm-guard-refused-by"] == "scope"
    assert reply.headers["x-should-retry"] == "false"
    if case.method != "HEAD":
        error = reply.json["error"]
        assert error["type"] == ("not_found_error" if case.dialect == "anthropic" else "invalid_request_error")


def test_table_is_of_sixty_requests_at_least_over_both_dialects() -> None:
    assert len(TABLE) >= 60
    assert {case.dialect for case in TABLE} == {"openai", "anthropic"}


@pytest.mark.parametrize("case", TABLE, ids=str)
async def test_object_exists_for_the_key_that_made_it_and_for_no_other(case: Case, tmp_path: Path) -> None:
    """C96: the id of another tenant's object and an unknown id give the same 404; no byte of the request is sent on."""
    async with tenants(tmp_path) as both:
        theirs = await both.send(THEIRS, case)
        check_missing(case, theirs)
        assert not both.recorder.requests
        both.ids, known = {name: f"x{value}" for name, value in both.ids.items()}, both.ids
        check_missing(case, await both.send(OURS, case))
        assert not both.recorder.requests
        both.ids = known
        reply = await both.send(OURS, case)
        assert reply.status == 200, reply
        assert len(both.recorder.requests) == 1


# lists


@pytest.mark.parametrize("collection", ["/v1/files", "/v1/batches", "/v1/vector_stores", "/v1/fine_tuning/jobs"])
async def test_list_shows_own_objects_on_any_page(collection: str, tmp_path: Path) -> None:
    """C97: objects of others do not show as an entry, as a cursor, or under another name."""
    async with tenants(tmp_path, has_made=False) as both:
        first = (await both.send(OURS, o("POST", collection, {"model": "gpt"}))).json["id"]
        theirs = [(await both.send(THEIRS, o("POST", collection, {"model": "gpt"}))).json["id"] for _ in range(8)]
        reply = await both.send(OURS, o("GET", collection))
        assert [each["id"] for each in reply.json["data"]] == [first]
        assert (reply.json["first_id"], reply.json["last_id"], reply.json["has_more"]) == (first, first, False)
        assert not [each for each in theirs if each in reply.text]
        listed = []
        page = await both.send(THEIRS, o("GET", collection))
        while page.json["data"]:
            listed += [each["id"] for each in page.json["data"]]
            page = await both.send(THEIRS, o("GET", f"{collection}?after={listed[-1]}"))
        assert listed == theirs[::-1]


async def test_list_of_the_other_dialect_is_filtered_as_well(tmp_path: Path) -> None:
    """C97: lists of message batches, too."""
    async with tenants(tmp_path) as both:
        mine = await both.send(OURS, a("GET", "/v1/messages/batches"))
        assert [each["id"] for each in mine.json["data"]] == [both.ids["abatch"]]
        theirs = await both.send(THEIRS, a("GET", "/v1/messages/batches"))
        assert (theirs.json["data"], theirs.json["first_id"], theirs.json["has_more"]) == ([], None, False)


async def test_further_pages_are_requested_with_the_cursor_of_the_dialect(tmp_path: Path) -> None:
    """C97: Anthropic continues a list `after_id`."""
    async with tenants(tmp_path, has_made=False) as both:
        first = (await both.send(OURS, a("POST", "/v1/messages/batches", {"requests": []}))).json["id"]
        for _ in range(150):  # more than a page of the greatest size
            both.provider._new("/v1/messages/batches", {})
        mine = await both.send(OURS, a("GET", "/v1/messages/batches"))
        assert [each["id"] for each in mine.json["data"]] == [first]


async def test_list_that_cannot_be_filtered_is_not_shown(tmp_path: Path) -> None:
    """C97: a bare list, or a page that is not JSON, is answered with a 502 that reveals nothing."""
    async with tenants(tmp_path) as both:
        for body in (b'["file-1"]', b"file-1", b'{"files":["file-1"]}'):
            both.provider.answer = lambda *_, body=body: whole(200, body).data  # type: ignore[method-assign]
            reply = await both.send(OURS, o("GET", "/v1/files"))
            assert reply.status == 502
            assert "file-1" not in reply.text


async def test_list_in_which_others_hide_the_caller_s_objects_is_not_shown_as_empty(tmp_path: Path) -> None:
    """C97: an empty list would be a wrong answer, and any tenant could bring it about."""
    async with tenants(tmp_path, has_made=False) as both:
        first = (await both.send(OURS, o("POST", "/v1/batches", {}))).json["id"]
        for _ in range(2_100):
            both.provider._new("/v1/batches", {})
        reply = await both.send(OURS, o("GET", "/v1/batches"))
        assert (reply.status, reply.json["error"]["code"]) == (502, "list_too_long")
        assert reply.headers["x-should-retry"] == "false"
        assert "batch-" not in reply.text
        assert (await both.send(OURS, o("GET", f"/v1/batches/{first}"))).status == 200
        empty = await both.send(THEIRS, o("GET", "/v1/batches"))
        assert (empty.status, empty.json["data"], empty.json["has_more"]) == (200, [], False), "it has made nothing"


@pytest.mark.parametrize(
    ("allow", "path", "names"),
    [
        ({}, "/v1/models", ["gpt", "dear"]),
        ({}, "/upstreams/one/v1/models", ["gpt"]),
        ({"models": ["mini-*"]}, "/v1/models", []),
        ({"models": ["dear"]}, "/v1/models", ["dear"]),
        ({"models": ["mini-*"]}, "/upstreams/one/v1/models", ["mini-1"]),
        ({"models": ["mini-*", "dear"]}, "/upstreams/one/v1/models", ["mini-1"]),
        ({"models": ["*"]}, "/v1/models", ["gpt", "dear"]),
        ({"models": ["*"]}, "/upstreams/one/v1/models", ["gpt", "gpt-5-pro", "mini-1", "dear"]),
    ],
)
async def test_list_of_models_shows_the_models_of_the_key(
    allow: dict[str, Any], path: str, names: list[str], tmp_path: Path
) -> None:
    """C95: `dear` is an alias of the config; at the upstream that name is another model."""
    keys = [{"name": "a", "key": OURS, "allow": allow}]
    models = {"dear": {"deployments": [{"upstream": "one", "model": "mini-2"}]}}
    async with tenants(tmp_path, keys=keys, is_isolated=False, has_made=False, models=models) as both:
        reply = await both.send(OURS, o("GET", path))
        assert [each["id"] for each in reply.json["data"]] == names


# claims and disguises


async def test_client_chosen_values_grant_nothing(tmp_path: Path) -> None:
    """C96: `metadata` that the provider repeats, a file's content, the text of a model."""
    async with tenants(tmp_path) as both:
        await both.stand.app.screening._objects.close()
        claimed = ["file-of-another", "resp-of-another", "victim"]
        spoof = {"id": "victim", "output_file_id": "victim", "response": {"id": "victim"}}
        for case in (
            o("POST", "/v1/batches", {"metadata": spoof}),
            o("POST", "/v1/responses", asking(metadata=spoof, stream=True)),
            o("POST", "/v1/responses", asking(metadata=spoof)),
            o("GET", "/v1/files/{file}/content"),
            o("GET", "/v1/batches/{batch}"),
        ):
            assert (await both.send(OURS, case)).status == 200
        for each in claimed:
            check_missing(TABLE[0], await both.send(OURS, o("GET", f"/v1/files/{each}")))
            check_missing(TABLE[0], await both.send(OURS, o("GET", f"/v1/responses/{each}")))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"model":"gpt","previous_response_id":"","previous_response_id":"{response}"}', id="twice"),
        pytest.param('{"model":"gpt","previous_response_id":"{response}","previous_response_id":null}', id="undone"),
        pytest.param('{"model":"gpt","previous\\u005fresponse_id":"{response}"}', id="an escaped name"),
        pytest.param('{"model":"gpt","previous_response_id":"\\u0072{response}"}', id="an escaped value"),
        pytest.param('{"model":"gpt","Previous_Response_Id":"{response}"}', id="capitals, as Go reads them"),
        pytest.param('{"model":"gpt","Conversation":{"ID":"{conversation}"}}', id="capitals of an object"),
        pytest.param('{"model":"gpt","Input":[{"Type":"item_reference","Id":"{item}"}]}', id="capitals of an item"),
        pytest.param('{"model":"gpt","file_id\u017f":["{file}"]}', id="a long s, which Go reads as an s"),
        pytest.param('{"model":"gpt","conver\\u017fation":"{conversation}"}', id="a long s, escaped"),
        pytest.param('{"model":"gpt","x":{"type":"tool_use","type":"x","input":{"file_id":"{file}"}}}', id="types"),
        pytest.param('{"model":"gpt","input":[{"type":"item_reference","type":"x","id":"{item}"}]}', id="two types"),
        pytest.param('{"model":"gpt","input":[[{"file_id":"{file}"}]]}', id="deep down"),
        pytest.param('{"model":"gpt","file_ids":[["{file}"]]}', id="a list of lists"),
        pytest.param('{"model":"gpt","a":"' + "x" * 200_000 + '","conversation":"{conversation}"}', id="large"),
        pytest.param('{"model":"gpt","a":"' + "x" * 2_000_000 + '","conversation":"{conversation}"}', id="in a file"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_packed", [False, True])
async def test_id_in_a_body_is_found_in_every_disguise(body: str, is_packed: bool, tmp_path: Path) -> None:
    """C96: JSON escapes, duplicate keys and compression do not hide an id."""
    async with tenants(tmp_path) as both:
        for name, value in both.ids.items():
            body = body.replace(f"{{{name}}}", value)
        body = body.replace("\\u0072r", "\\u0072")
        data = gzip.compress(body.encode()) if is_packed else body.encode()
        more = {"content-encoding": "gzip"} if is_packed else {}
        for key, status in ((THEIRS, 404), (OURS, 200)):
            headers = {"authorization": f"Bearer {key}", **more}
            async with Connection(both.stand.url) as connection:
                reply = await connection.ask(raw_request("/v1/responses", data, headers))
            assert reply.status == status, reply
        assert len(both.recorder.requests) == 1


async def test_form_and_text_with_an_id_are_refused(tmp_path: Path) -> None:
    """C96: a provider may read content that the gateway cannot parse."""
    async with tenants(tmp_path) as both:
        form = f'--b\r\nContent-Disposition: form-data; name="file_id"\r\n\r\n{both.ids["file"]}\r\n--b--\r\n'
        text = json.dumps({"file_id": both.ids["file"]})
        for kind, data in (
            ("multipart/form-data; boundary=b", form.encode()),
            ("text/plain", b"\xef\xbb\xbf" + text.encode()),
            ("text/plain", text.encode("utf-16")),
            ("text/plain", text.encode("utf-16-be")),
            ("application/x-www-form-urlencoded", b"file_id=" + both.ids["file"].encode()),
        ):
            headers = {"authorization": f"Bearer {THEIRS}", "content-type": kind}
            async with Connection(both.stand.url) as connection:
                reply = await connection.ask(raw_request("/v1/containers", data, headers))
            assert reply.status == 400
        assert not both.recorder.requests


@pytest.mark.parametrize(
    "case",
    [
        o("GET", "/v1/organization/users"), o("GET", "/v1/evals"), o("GET", "/v1/responses"), o("PUT", "/v1/files"),
        o("HEAD", "/v1/files"), o("GET", "/v1/files/"), o("DELETE", "/v1/models/gpt"), o("GET", "/v1/chat/completions"),
        o("GET", "/v1/fine_tuning/checkpoints/x/permissions"), o("OPTIONS", "/v1/files/{file}"),
        o("GET", "/v1/threads/runs"), a("GET", "/v1/organizations/api_keys"), o("GET", "/v1/files/{file}/"),
        o("GET", "/v1/realtime?model=gpt&call_id=rtc_1"),
    ],
    ids=str,
)  # fmt: skip
async def test_path_of_unknown_kind_is_closed_to_every_key(case: Case, tmp_path: Path) -> None:
    """C96: also where `allow` lists it, since the owner of such objects is unknown."""
    async with tenants(tmp_path) as both:
        for key in (OURS, THEIRS):
            check_missing(case, await both.send(key, case))
        assert not both.recorder.requests


@pytest.mark.parametrize(
    "case",
    [
        a("POST", "/v1/messages", message({"type": "tool_use", "id": "t", "name": "f", "input": {"file_id": "mine"}})),
        a("POST", "/v1/messages", message("x", tools=[{"name": "f", "input_schema": {"required": ["file_id"]}}])),
        a("POST", "/v1/messages", message("x", container={"skills": [{"type": "anthropic", "skill_id": "pptx"}]})),
        o("POST", "/v1/responses", asking(metadata={"conversation_id": "mine"})),
        o("POST", "/v1/responses", asking(input=[{"type": "message", "id": "m", "role": "user", "content": "x"}])),
        o("POST", "/v1/responses", asking(input=[{"type": "reasoning", "id": "r", "encrypted_content": "x"}])),
        o("POST", "/v1/responses", asking(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}])),
        o("POST", "/v1/chat/completions", {"model": "gpt", "tools": [{"parameters": {"file_id": "x"}}]}),
        o("POST", "/v1/chat/completions", chat("the file_id is file-1")),
    ],
    ids=str,
)  # fmt: skip
async def test_clients_own_data_is_no_id_of_a_provider(case: Case, tmp_path: Path) -> None:
    async with tenants(tmp_path) as both:
        assert (await both.send(THEIRS, case)).status == 200


# persistence of the index


async def test_objects_are_still_their_makers_after_a_restart_and_at_another_gateway(tmp_path: Path) -> None:
    """C96: the index is in `ops.store`; a second gateway on the same store knows an object within seconds."""
    async with tenants(tmp_path) as both:
        async with standing(config_for(both.recorder.url, tmp_path)) as another:
            second = Tenants(another, both.recorder, both.provider)
            second.ids = both.ids

            async def is_known() -> bool:
                return (await second.send(OURS, TABLE[0])).status == 200

            for _ in range(50):
                if await is_known():
                    break
                await asyncio.sleep(0.1)
            assert await is_known()
            check_missing(TABLE[0], await second.send(THEIRS, TABLE[0]))
        made = dict(both.ids)
    async with tenants(tmp_path, has_made=False) as again:
        again.ids = made
        again.provider.objects = both.provider.objects
        for case in TABLE[:20]:
            check_missing(case, await again.send(THEIRS, case))
            assert (await again.send(OURS, case)).status == 200
    assert (tmp_path / "owners.db").stat().st_mode & 0o777 == 0o600


async def test_gateways_of_a_fleet_know_the_objects_of_all(tmp_path: Path) -> None:
    """Each has a folder of its own; the index is on the server of the fleet."""
    folders = [tmp_path / name for name in ("redis", "first", "second")]
    for folder in folders:
        folder.mkdir()
    with redis_server(folders[0]) as server:
        async with tenants(folders[1], fleet=server.url) as both:
            config = config_for(both.recorder.url, folders[2], fleet=server.url)
            async with standing(config) as another:
                second = Tenants(another, both.recorder, both.provider)
                second.ids = both.ids
                for case in TABLE[:20]:
                    check_missing(case, await second.send(THEIRS, case))
                    async with asyncio.timeout(5.0):  # objects of the last second are not known yet
                        while (await second.send(OURS, case)).status != 200:  # noqa: ASYNC110
                            await asyncio.sleep(0.05)


async def test_store_that_cannot_be_used_holds_up_no_call_and_opens_nothing(tmp_path: Path) -> None:
    """C96: without a store the index is kept in memory only."""
    store = tmp_path / "no folder"
    store.write_text("")
    async with tenants(store) as both:
        assert (await both.send(OURS, TABLE[0])).status == 200
        check_missing(TABLE[0], await both.send(THEIRS, TABLE[0]))
        await eventually(lambda: any("index of object owners" in line["event"] for line in both.stand.log))


async def test_objects_of_two_upstreams_with_one_id_are_two(tmp_path: Path) -> None:
    """C96: ids are scoped to their provider."""
    async with tenants(tmp_path) as both:
        check_missing(TABLE[0], await both.send(OURS, o("GET", "/upstreams/three/v1/files/{file}")))


async def test_isolation_without_client_keys_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isolate_objects"):
        config_for("http://127.0.0.1:9", tmp_path, keys=[])


async def test_bug_while_a_stream_is_screened_costs_no_slot_and_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: EventReader, chunk: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(EventReader, "feed", broken)
    begun: list[Step] = [stream_head(), *map(chunk, RESPONSES.preamble), chunk(RESPONSES.token), Hold()]
    server = {"client_keys": [{"name": "app", "key": "k-app"}], "isolate_objects": True}
    async with facing(begun, server=server) as (stand, provider):
        body, key = RESPONSES.body(stream=True, input="hi"), {"authorization": "Bearer k-app"}
        assert (await ask(stand.url, RESPONSES.path, body, key)).status == 500
        assert await provider.closed_within(1)
        assert stand.deployment(RESPONSES.deployment).gates.in_flight == 0
        (call,) = await stand.calls()
        assert [attempt["outcome"] for attempt in call["attempts"]] == ["internal"]


async def test_official_sdks_see_their_own_objects_and_plain_errors(tmp_path: Path) -> None:
    """C96, C97: the same through the SDKs."""
    async with tenants(tmp_path) as both:
        mine, theirs = (
            AsyncOpenAI(base_url=f"{both.stand.url}/v1", api_key=key, max_retries=0) for key in (OURS, THEIRS)
        )
        claude = AsyncAnthropic(base_url=both.stand.url, api_key=THEIRS, max_retries=0)
        async with mine, theirs, claude:
            ids = [(await mine.batches.create(**BATCH, input_file_id=both.ids["file"])).id for _ in range(7)]
            assert [each.id async for each in theirs.batches.list()] == []
            assert [each.id async for each in mine.batches.list()] == [*ids[::-1], both.ids["batch"]]
            with pytest.raises(NotFoundError, match="no such object"):
                await theirs.files.retrieve(both.ids["file"])
            with pytest.raises(NotFoundError, match=both.ids["response"]):
                await theirs.responses.create(model="gpt", input="x", previous_response_id=both.ids["response"])
            with pytest.raises(anthropic.NotFoundError, match="no such object"):
                await claude.messages.batches.retrieve(both.ids["abatch"])
            async with theirs.responses.stream(model="gpt", input="x") as stream:
                started: Any = await anext(aiter(stream))
                assert (await theirs.responses.retrieve(started.response.id)).id == started.response.id


BATCH: Any = {"endpoint": "/v1/responses", "completion_window": "24h"}


async def test_sdk_raises_its_permission_error(tmp_path: Path) -> None:
    """C93: a refused path raises PermissionDeniedError in both SDKs."""
    keys = [{"name": "a", "key": OURS}]
    async with tenants(tmp_path, keys=keys, is_isolated=False, has_made=False) as both:
        openai = AsyncOpenAI(base_url=f"{both.stand.url}/v1", api_key=OURS, max_retries=0)
        claude = AsyncAnthropic(base_url=both.stand.url, api_key=OURS, max_retries=0)
        async with openai, claude:
            with pytest.raises(PermissionDeniedError, match="may not call GET /v1/files") as denied:
                await openai.files.list()
            assert denied.value.code == "permission_denied"
            with pytest.raises(anthropic.PermissionDeniedError, match="may not call"):
                await claude.messages.batches.list()
            counted = await claude.messages.count_tokens(model="claude", messages=[{"role": "user", "content": "x"}])
            assert counted.input_tokens == 1


async def test_reload_brings_scopes_and_isolation_into_force(tmp_path: Path) -> None:
    """C93, C96: the reload applies from the next call on. Objects made before it belong to no key."""
    async with tenants(tmp_path, is_isolated=False) as both:
        app = both.stand.app
        assert (await both.send(THEIRS, TABLE[0])).status == 200
        for keys, is_isolated, status in ((KEYS, True, 404), (KEYS[:1], True, 401), (KEYS, False, 200)):
            config = config_for(both.recorder.url, tmp_path, keys=keys, is_isolated=is_isolated)
            app._adopt(dataclasses.replace(app.reloads.current, config=config))
            assert (await both.send(THEIRS, TABLE[0])).status == status
        bare = [{"name": "b", "key": THEIRS}]
        config = config_for(both.recorder.url, tmp_path, keys=bare, is_isolated=False)
        app._adopt(dataclasses.replace(app.reloads.current, config=config))
        assert (await both.send(THEIRS, TABLE[0])).status == 403


async def test_large_body_without_ids_is_sent_on_and_one_with_ids_is_refused(tmp_path: Path) -> None:
    """C96: large images pass at the cost of a scan."""
    image = "data:image/png;base64," + "iVBORw0K" * 1_200_000
    async with tenants(tmp_path) as both:
        without = chat({"type": "image_url", "image_url": {"url": image}})
        assert (await both.send(OURS, o("POST", "/v1/chat/completions", without))).status == 200
        with_one = chat({"type": "image_url", "image_url": {"url": image}}, {"file": {"file_id": "{file}"}})
        refused = await both.send(OURS, o("POST", "/v1/chat/completions", with_one))
        assert (refused.status, refused.headers["x-llm-guard-refused-by"]) == (413, "scope")
        nested = {"model": "gpt", "file_id": "{file}", "x": [[] for _ in range(150_000)]}
        assert (await both.send(OURS, o("POST", "/v1/chat/completions", nested))).status == 413
        deep = '{"model":"gpt","file_id":"x","x":' + "[" * 900 + "]" * 900 + "}"
        headers = {"authorization": f"Bearer {OURS}"}
        async with Connection(both.stand.url) as connection:
            reply = await connection.ask(raw_request("/v1/chat/completions", deep.encode(), headers))
        assert reply.status in (400, 404)


async def test_item_of_a_stream_that_is_still_coming_is_its_caller_s(tmp_path: Path) -> None:
    """C96: ids in the middle of a stream are recorded before the client receives them, wherever its bytes are cut."""
    item = event("response.output_item.added", item={"type": "reasoning", "id": "rs_late", "summary": []})
    token = event("response.output_text.delta", delta="x")
    end = event("response.completed", response={"id": "resp_1", "status": "completed", "output": []})
    made = {"id": "resp_1", "output": []}
    steps: list[Step] = [stream_head(), chunk(event("response.created", response=made) + token), Pause(0.05)]
    for piece in (item[:40], item[40:-1], item[-1:] + end):
        steps += [chunk(piece), Pause(0.02)]
    async with ScriptedProvider([*steps, END]) as provider, standing(config_for(provider.url, tmp_path)) as stand:
        both = Tenants(stand, Recorder(), ObjectProvider())
        streaming = o("POST", "/v1/responses", asking(stream=True))
        assert (await both.send(OURS, streaming)).status == 200
        later = o("POST", "/v1/responses", asking(stream=True, input=[{"type": "item_reference", "id": "rs_late"}]))
        check_missing(later, await both.send(THEIRS, later))
        assert (await both.send(OURS, later)).status == 200


async def test_form_is_read_to_its_end_before_any_of_it_is_sent_on(tmp_path: Path) -> None:
    """C96: its last field may be an id."""
    field = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    form = (field.format("file", "x" * 300_000) + field.format("file_id", "file-1") + "--b--\r\n").encode()
    async with tenants(tmp_path) as both:
        headers = {"authorization": f"Bearer {OURS}", "content-type": "multipart/form-data; boundary=b"}
        async with Connection(both.stand.url) as connection:
            request = raw_request("/v1/containers", form, headers)
            connection.writer.write(request[:200_000])
            await asyncio.sleep(0.05)
            reply = await connection.ask(request[200_000:])
        assert reply.status == 400
        assert not both.recorder.connections or not both.recorder.requests
