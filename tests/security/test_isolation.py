"""Two tenants of one provider account: each uses what it has made, and nothing else exists for it.

The provider answers whoever has its key, and so would give everything to both.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import raw_request
from tests.fakes.object_provider import ObjectProvider
from tests.security.grammar import Request
from tests.security.keys import OPS_TOKEN, UPSTREAM_KEY
from tests.security.stand import Recorder

OURS, THEIRS = "sk-CANARY-tenant-a-001", "sk-CANARY-tenant-b-002"
ALLOW = {"paths": ["*"], "models": ["*"]}
KEYS = [{"name": "a", "key": OURS, "allow": ALLOW}, {"name": "b", "key": THEIRS, "allow": ALLOW}]

Dialect = Literal["openai", "anthropic"]


class Case(NamedTuple):
    """One request; `{file}` and the like stand for the ids of objects that tenant A has made."""

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
    """A gateway, and what tenant A has made behind it."""

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


def config_for(url: str, store: Path, *, is_isolated: bool = True, keys: Any = KEYS) -> Any:
    upstreams = {
        "one": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": UPSTREAM_KEY},
        "two": {"dialect": "anthropic", "base_url": url, "api_key": UPSTREAM_KEY},
    }
    server = {"client_keys": keys, "isolate_objects": is_isolated}
    return config_of(url, upstreams=upstreams, server=server, ops={"token": OPS_TOKEN, "store": str(store)})


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
    """As the provider says it of an object that there is not."""
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
    """C96: an id of another tenant's, and one that nobody has, are the same 404; no byte of the request is sent on."""
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
