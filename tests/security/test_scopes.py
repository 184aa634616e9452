"""A client key can reach only what the config allows it, however a request is written.

Every key here is valid; the provider's key is the gateway's own and would give access to the whole account.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import whole
from tests.security.keys import CLIENT_KEY, UPSTREAM_KEY, keyed
from tests.security.stand import Answer, Front, usual_answer

FILES_KEY = "sk-CANARY-files-62aa10"
CHEAP_KEY = "sk-CANARY-cheap-83bf01"
ALL_KEY = "sk-CANARY-all-2210dd"
KEYS = [
    {"name": "app", "key": CLIENT_KEY},
    {"name": "files", "key": FILES_KEY, "allow": {"paths": ["/v1/files", "/v1/files/*"]}},
    {"name": "cheap", "key": CHEAP_KEY, "allow": {"models": ["cheap", "mini-*"]}},
    {"name": "all", "key": ALL_KEY, "allow": {"models": ["*"], "paths": ["*"]}},
]
CHAT = "/v1/chat/completions"
DENIED = (403, "permission_denied", "scope")


@asynccontextmanager
async def scoped(answer: Answer = usual_answer, **server: Any) -> AsyncIterator[Front]:
    """Runs a gateway with aliases: `cheap` is served as `mini-1`; `gpt-4` as `mini-1` too, though the upstream has a
    real gpt-4."""
    models = {
        "cheap": {"deployments": [{"upstream": "one", "model": "mini-1"}]},
        "gpt-4": {"deployments": [{"upstream": "one", "model": "mini-1"}]},
        "dear": {"deployments": [{"upstream": "one"}]},
    }
    async with keyed(answer, models=models, server={"client_keys": KEYS, **server}) as front:
        yield front


def error_of(reply: Reply, *, is_openai: bool = True) -> tuple[int, str, str]:
    error = reply.json["error"]
    return reply.status, error["code"] if is_openai else error["type"], reply.headers["x-llm-guard-refused-by"]


async def send(front: Front, method: str, path: str, key: str, body: bytes = b"", **headers: str) -> Reply:
    request = raw_request(path, body, {"authorization": f"Bearer {key}", **headers}, method)
    async with Connection(front.url) as connection:
        return await connection.ask(request)


def naming(model: str) -> bytes:
    return json.dumps({"model": model, "messages": []}).encode()


@pytest.mark.parametrize("prefix", ["", "/upstreams/one"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/files/f-1/content"), ("DELETE", "/v1/files/f-1"),
        ("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1"), ("GET", "/v1/batches"),
        ("POST", "/v1/batches/batch_1/cancel"), ("GET", "/v1/fine_tuning/jobs"), ("GET", "/v1/vector_stores"),
        ("GET", "/v1/organization/users"), ("POST", "/v1/organization/admin_api_keys"),
        ("GET", "/v1/organization/costs"),
        ("GET", CHAT), ("HEAD", CHAT), ("PUT", CHAT), ("DELETE", "/v1/models/gpt"), ("POST", "/v1/models"),
        ("POST", "/v1/realtime/client_secrets"), ("POST", "/v1/assistants"), ("GET", "/v1/responses"),
        ("GET", "/v1/messages/batches"), ("POST", "/v1/messages/batches"),
    ],
)  # fmt: skip
async def test_key_without_more_calls_models_and_nothing_else(prefix: str, method: str, path: str) -> None:
    """C93: the account's files, stored responses, batches and administration are behind the same provider key."""
    async with scoped() as front:
        reply = await send(front, method, prefix + path, CLIENT_KEY)
        assert reply.status == 403
        assert reply.headers["x-llm-guard-refused-by"] == "scope"
        assert reply.headers["x-should-retry"] == "false"
        assert not front.provider.connections


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/", "/v1/Chat/Completions", "/V1/files", "/v1/files/", "/v1/chat%2fcompletions",
        "/v1/%66iles", "/v1/models/..;/files", "/v1/models/;/../files", "/v1/models/%2e%2e/files",
        "/v1/models/..%2ffiles",
        "/v1/models/%252e%252e%252ffiles", "/v1/models/%25252e%25252e%25252ffiles", "/v1//files", "/v1/./files",
        "/v1/models/../files", "/v1/models/gpt;/../../files", "/v1/models/gpt%00", "/v1/models/gpt%5c..%5cfiles",
        "/v1/models\\..\\files", "/v1/models/", "/v1/models//", "/upstreams/one/v1/models/..;/files",
        "/upstreams/one//v1/files", "/upstreams/one/upstreams/one/v1/files", "/upstreams//v1/files",
        "/upstreams/One/v1/files", "/upstreams/one/v1/llm-guard/..;/files", "/v1/llm-guard/..;/files",
        "/upstreams/one%2fv1/files", "/upstreams/one/v1/files?path=/v1/models", "/v1/llm-guard/../files",
        "/v1/llm-guard;/files",
    ],
)  # fmt: skip
async def test_no_other_spelling_of_a_path_reaches_more(path: str) -> None:
    """C94: only literally allowed paths are sent on, so it does not matter how a server behind would normalize one."""
    async with scoped() as front:
        for method in ("GET", "POST"):
            reply = await send(front, method, path, CLIENT_KEY, naming("gpt") if method == "POST" else b"")
            assert reply.status in (400, 403, 404), reply
        assert not front.provider.connections


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "x-method-override", "X_HTTP_Method"])
async def test_no_header_makes_another_method_of_an_allowed_one(header: str) -> None:
    """C94: frameworks that honour such a header would delete the model that a key may only read."""
    async with scoped() as front:
        assert (
            await send(front, "GET", "/upstreams/one/v1/models/gpt", CLIENT_KEY, b"", **{header: "DELETE"})
        ).status == 200
        assert b"method" not in bytes(front.provider.connections[0]).lower()


@pytest.mark.parametrize("query", ["_method=DELETE", "a=1&%5fmethod=DELETE", "a;_METHOD=delete"])
async def test_no_query_makes_another_method_of_an_allowed_one(query: str) -> None:
    """C94: the same for frameworks that honour a query parameter."""
    async with scoped() as front:
        assert error_of(await send(front, "GET", f"/v1/models/dear?{query}", CLIENT_KEY)) == DENIED
        assert not front.provider.requests


async def test_key_for_files_alone_calls_no_model() -> None:
    """C93: an explicit list of paths replaces the default."""
    async with scoped() as front:
        assert (await send(front, "GET", "/v1/files", FILES_KEY)).status == 200
        assert (await send(front, "GET", "/upstreams/one/v1/files/file-1/content", FILES_KEY)).status == 200
        for path in (CHAT, "/v1/files_of_others", "/v1/filesystem"):
            assert error_of(await send(front, "POST", path, FILES_KEY, naming("gpt"))) == DENIED
        assert len(front.provider.requests) == 2


@pytest.mark.parametrize(
    ("key", "path", "model", "is_allowed"),
    [
        (CLIENT_KEY, CHAT, "gpt", True),
        (CLIENT_KEY, "/upstreams/one" + CHAT, "gpt", True),
        (CLIENT_KEY, "/upstreams/one" + CHAT, "mini-1", False),
        (CLIENT_KEY, "/upstreams/one" + CHAT, "gpt-5-pro", False),
        (CLIENT_KEY, "/upstreams/one" + CHAT, "gpt-4", False),
        (CLIENT_KEY, "/upstreams/one" + CHAT, "cheap", False),
        (CHEAP_KEY, CHAT, "cheap", True),
        (CHEAP_KEY, CHAT, "dear", False),
        (CHEAP_KEY, CHAT, "Cheap", False),
        (CHEAP_KEY, CHAT, "cheap ", False),
        (CHEAP_KEY, CHAT, "no-such-model", False),
        (CHEAP_KEY, "/upstreams/one" + CHAT, "mini-1", True),
        (CHEAP_KEY, "/upstreams/one" + CHAT, "cheap", False),
        (CHEAP_KEY, "/upstreams/one" + CHAT, "dear", False),
        (CHEAP_KEY, "/upstreams/one" + CHAT, "gpt-4", False),
        (ALL_KEY, "/upstreams/one" + CHAT, "gpt-5-pro", True),
        (ALL_KEY, "/upstreams/one" + CHAT, "gpt-4", True),
    ],
)
async def test_model_is_judged_by_the_requested_name(key: str, path: str, model: str, is_allowed: bool) -> None:
    """C95: an upstream's path bypasses the config's aliases, so only models that the config sends there are allowed."""
    async with scoped() as front:
        reply = await send(front, "POST", path, key, naming(model))
        if is_allowed:
            assert reply.status == 200
        else:
            assert error_of(reply) == DENIED
            assert "dear" not in reply.text.replace(model, ""), "the models of others are nobody's business"
            assert not front.provider.connections


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        (CLIENT_KEY, "/v1/models/gpt", 200), (CLIENT_KEY, "/v1/models/gpt-5-pro", 403),
        (CLIENT_KEY, "/upstreams/one/v1/models/gpt", 200), (CLIENT_KEY, "/upstreams/one/v1/models/gpt-4", 403),
        (CHEAP_KEY, "/v1/models/cheap", 200), (CHEAP_KEY, "/v1/models/dear", 403),
        (CHEAP_KEY, "/v1/models/d%65ar", 403),
        (ALL_KEY, "/v1/models/gpt-5-pro", 404), (ALL_KEY, "/upstreams/one/v1/models/gpt-5-pro", 200),
    ],
)  # fmt: skip
async def test_model_is_looked_up_by_a_key_that_may_use_it(key: str, path: str, status: int) -> None:
    """C95: the same check applies to GET /v1/models/NAME."""
    async with scoped() as front:
        assert (await send(front, "GET", path, key)).status == status


TEXT = {"content-type": "text/plain"}
TWO_MODELS = b'{"model":"dear","model":"cheap","messages":[]}'
ESCAPED = b'{"mod\\u0065l":"dear","model":"cheap","messages":[]}'
LARGE = b'{"model":"dear","messages":["' + b"x" * 200_000 + b'"],"model":"cheap"}'
OPENROUTERS = b'{"model":"cheap","models":["dear"],"route":"fallback"}'
FOLDED = b'{"model":"cheap","fallbac\\u212a\\u017f":["dear"]}'
LARGE_TWIN = LARGE.replace(b'{"model"', b'{"Model"')


def form(*models: str, size: int = 10, is_late: bool = False) -> bytes:
    fields = [f'Content-Disposition: form-data; name="model"\r\n\r\n{model}' for model in models]
    file = 'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + "x" * size
    parts = [file, *fields] if is_late else [*fields, file]
    return "".join(f"--b\r\n{part}\r\n" for part in parts).encode() + b"--b--\r\n"


@pytest.mark.parametrize("prefix", ["", "/upstreams/one"])
@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        pytest.param(CHAT, TWO_MODELS, {}, id="two models"),
        pytest.param(CHAT, ESCAPED, {}, id="one of them escaped"),
        pytest.param(CHAT, LARGE, {}, id="far apart"),
        pytest.param(CHAT, b'{"model":"cheap","Model":"dear"}', {}, id="in another case"),
        pytest.param(CHAT, b'{"\\u004dODEL":"dear","model":"cheap"}', {}, id="in another case, escaped"),
        pytest.param(CHAT, LARGE_TWIN, {}, id="in another case, far apart"),
        pytest.param(CHAT, gzip.compress(TWO_MODELS), {"content-encoding": "gzip"}, id="compressed"),
        pytest.param(CHAT, OPENROUTERS, {}, id="others, as OpenRouter takes"),
        pytest.param(CHAT, b'{"model":"cheap","fallbacks":["dear"]}', {}, id="others, as LiteLLM takes"),
        pytest.param(CHAT, FOLDED, {}, id="others, in letters that Go folds"),
        pytest.param(CHAT, LARGE.replace(b'{"model":', b'{"models":'), {}, id="others, in a large body"),
        pytest.param(CHAT, b'{"model":{"id":"cheap","name":"dear"}}', {}, id="an object of two names"),
        pytest.param(CHAT, b'{"messages":[]}', {}, id="none"),
        pytest.param("/v1/responses", b'{"input":"x"}', {}, id="none where it is optional"),
        pytest.param("/v1/responses", b'\xef\xbb\xbf{"model":"dear"}', TEXT, id="behind a mark"),
        pytest.param("/v1/moderations", b'{"input":"x"}', {}, id="a default model"),
        pytest.param("/v1/audio/transcriptions", form("cheap", "dear"), {}, id="a form with two"),
        pytest.param("/v1/audio/transcriptions", form("dear", "cheap"), {}, id="a form with two, the last allowed"),
        pytest.param("/v1/audio/transcriptions", form("dear"), {}, id="a form"),
        pytest.param("/v1/audio/transcriptions", form("dear", size=300_000, is_late=True), {}, id="a large form, late"),
        pytest.param("/v1/audio/transcriptions", form("cheap", "dear", size=300_000), {}, id="a large form with two"),
    ],
)  # fmt: skip
async def test_body_names_one_allowed_model_or_is_refused(
    prefix: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    """C95: of two models some servers read the first; without one they use a default of their own. Go and .NET match
    field names in any case."""
    kind = {"content-type": "multipart/form-data; boundary=b"} if b"--b" in body else {}
    async with scoped() as front:
        reply = await send(front, "POST", prefix + path, CHEAP_KEY, body, **{**kind, **headers})
        assert reply.status in (400, 403), reply
        assert not front.provider.requests


@pytest.mark.parametrize(
    "body", [b'{"model":"dear","models":["gpt-4"]}', b'{"tools":[{"models":1}],"model":"dear"}', TWO_MODELS]
)
async def test_key_for_every_model_may_name_several(body: bytes) -> None:
    """A key for every model allows whichever of them a provider may read."""
    async with scoped() as front:
        assert (await send(front, "POST", CHAT, ALL_KEY, body)).status == 200


@pytest.mark.parametrize("model", ["mini-1", "dear"])
async def test_model_at_the_end_of_a_slow_form_decides_before_any_of_it_is_sent_on(model: str) -> None:
    """C95: on an upstream's path routing does not need the model, but the key's scope does."""
    body = form(model, size=300_000, is_late=True)
    headers = {"authorization": f"Bearer {CHEAP_KEY}", "content-type": "multipart/form-data; boundary=b"}
    request = raw_request("/upstreams/one/v1/audio/transcriptions", body, headers)
    async with scoped(answer=lambda _: whole(200, b'{"text":"Hi"}').data) as front, Connection(front.url) as connection:
        connection.writer.write(request[:200_000])
        await asyncio.sleep(0.05)
        assert not front.provider.connections
        reply = await connection.ask(request[200_000:])
        assert reply.status == (200 if model == "mini-1" else 403)
        assert len(front.provider.requests) == (model == "mini-1")


@pytest.mark.parametrize(
    "query",
    [
        "model=dear", "model=cheap&model=dear", "model=cheap&mod%65l=dear", "mod%65l=dear", "", "call_id=1",
        "model=mini-1;model=dear", "model=cheap&Model=dear", "model=cheap&model[]=dear",
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "/upstreams/one"])
async def test_realtime_session_requires_an_allowed_model(prefix: str, query: str) -> None:
    """C95: a realtime session has its model in the query."""
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with scoped() as front, Connection(front.url) as connection:
        fields = "".join(f"{name}: {value}\r\n" for name, value in {**upgrade, "host": "test"}.items())
        target = f"{prefix}/v1/realtime?{query}"
        reply = await connection.ask(f"GET {target} HTTP/1.1\r\n{fields}x-api-key: {CHEAP_KEY}\r\n\r\n".encode())
        assert reply.status in (400, 403)
        assert not front.provider.connections


async def test_refusal_is_an_error_of_either_dialect_and_is_counted() -> None:
    """C93: official SDKs raise PermissionDeniedError."""
    async with scoped() as front:
        assert error_of(await send(front, "GET", "/v1/batches", CLIENT_KEY)) == DENIED
        reply = await send(front, "GET", "/v1/messages/batches", CLIENT_KEY)
        assert (reply.json["type"], error_of(reply, is_openai=False)) == ("error", (403, "permission_error", "scope"))
        assert UPSTREAM_KEY not in reply.text
        assert await front.stand.metric("llm_guard_refusals_total", reason="scope") == 2


async def test_without_client_keys_nothing_changes() -> None:
    """Without client keys the caller's own key is sent to the provider, with the access that it has."""
    async with keyed() as front:
        assert (await ask(front.url, "/v1/files", b"{}")).status == 200
