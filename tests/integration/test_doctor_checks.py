"""`llm-guard doctor`: one broken config for each check, and the shipped configs, which cost nothing without --calls."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from llm_guard.cli.doctor.findings import Check
from tests.fakes.certificates import EXPIRED, Authority
from tests.fakes.provider import ScriptedProvider, Step, whole
from tests.fakes.redis_server import redis_server
from tests.integration.test_doctor import ANSWER, HTML, LIST, STREAM, invoke, limits, refusing_port, text_of

ROOT = Path(__file__).parents[2]
SHIPPED = {name: (ROOT / "config" / f"{name}.yaml").read_text() for name in ("llm_guard", "minimal", "recommended")}
VARIABLES = {"OPENAI_API_KEY": "sk-openai", "AZURE_URL": "https://azure.example/v1", "AZURE_KEY": "azure"}
EMPTY_LIST = whole(200, b'{"object":"list","data":[{"id":"other"}]}')

Found = Sequence[Mapping[str, str]]
Broken = Callable[[Path, pytest.MonkeyPatch], Awaitable[Found]]


async def doctor(folder: Path, text: str, *arguments: str) -> Found:
    result = await asyncio.to_thread(invoke, folder / "c.yaml", text, "--json", "--timeout", "2", *arguments)
    found: Found = json.loads(result.stdout)
    return found


def scripted(*scripts: Sequence[Step], calls: bool = False, model: str = "gpt-4o", **upstream: Any) -> Broken:
    """Returns a config that is broken because its upstream answers like this."""

    async def broken(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
        async with ScriptedProvider(*scripts) as provider:
            return await doctor(folder, text_of(provider.url, model, **upstream), *(["--calls"] if calls else []))

    return broken


async def unknown_name(folder: Path, patch: pytest.MonkeyPatch) -> Found:
    def fail(*_args: object, **_named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    patch.setattr("llm_guard.cli.doctor.command.run", asyncio.run)  # uvloop does not use Python's lookup
    patch.setattr(socket, "getaddrinfo", fail)
    return await doctor(folder, text_of("http://provider.invalid"))


async def refused_connection(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
    with refusing_port() as port:
        return await doctor(folder, text_of(f"http://127.0.0.1:{port}"))


async def expired_certificate(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
    authority = Authority(folder)
    pair = authority.pair("server", ends=EXPIRED)
    context = authority.server()
    context.load_cert_chain(pair["cert"], pair["key"])
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return await doctor(folder, text_of(url, tls={"ca": str(authority.file)}))


async def slow_list(folder: Path, patch: pytest.MonkeyPatch) -> Found:
    patch.setattr("llm_guard.cli.doctor.upstreams._SLOW_S", 0.0)
    return await scripted([LIST])(folder, patch)


async def beside(folder: Path, sections: Mapping[str, Any]) -> Found:
    async with ScriptedProvider([LIST]) as provider:
        return await doctor(folder, json.dumps(json.loads(text_of(provider.url)) | sections))


async def dead_store(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
    return await beside(folder, {"fleet": {"store": f"unix://{folder}/nobody-listens.sock"}})


async def evicting_store(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
    with redis_server(folder) as server:
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        return await beside(folder, {"fleet": {"store": server.url}})


async def dead_receiver(folder: Path, _patch: pytest.MonkeyPatch) -> Found:
    with refusing_port() as port:
        return await beside(folder, {"ops": {"webhooks": [{"url": f"http://127.0.0.1:{port}/hook"}]}})


FAST_CLOCK = {"date": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}
ANEW = whole(200, b'{"choices":[{"index":0,"message":{"content":"1, 2"}}]}')
BROKEN: Mapping[Check, Broken] = {
    "name": unknown_name,
    "connection": refused_connection,
    "certificate": expired_certificate,
    "api": scripted([whole(200, b"<html>hello</html>", HTML)]),
    "key": scripted([whole(401)]),
    "clock": scripted([whole(200, b'{"data":[{"id":"gpt-4o"}]}', FAST_CLOCK)]),
    "latency": slow_list,
    "models": scripted([whole(404, b'{"error":{"message":"no such path"}}')]),
    "model": scripted([EMPTY_LIST]),
    "pattern": scripted([EMPTY_LIST], model="gpt-*"),
    "call": scripted([LIST], [whole(404, b'{"error":{"code":"model_not_found","message":"no access"}}')], calls=True),
    "stream": scripted([LIST], [ANSWER], [ANSWER], calls=True),
    "limits": scripted([LIST], [whole(200, b'{"choices":[{}]}', limits(3, 2))], [STREAM], calls=True),
    "prefill": scripted([LIST], [ANSWER], [STREAM], [ANEW], calls=True, prefill="plain"),
    "store": dead_store,
    "settings": evicting_store,
    "receiver": dead_receiver,
}


def test_each_check_has_a_broken_config() -> None:
    assert BROKEN.keys() == set(get_args(Check))


@pytest.mark.parametrize("check", get_args(Check))
async def test_broken_config_is_found_with_a_remedy(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await BROKEN[check](tmp_path, monkeypatch)
    problems = [one for one in found if one["verdict"] in ("warning", "failed")]
    assert [one["check"] for one in problems] == [check]
    assert problems[0]["remedy"]


# prefill and patterns


def prefill_script(answer: Step) -> list[Sequence[Step]]:
    return [[LIST], [ANSWER], [STREAM], [answer]]


CONTINUED = whole(200, b'{"choices":[{"index":0,"message":{"content":" 5, 6"}}]}')
REPEATED = whole(200, b'{"choices":[{"index":0,"message":{"content":"1, 2, 3, 4, 5"}}]}')
REFUSED = whole(400, b'{"error":{"message":"does not support assistant message prefill"}}')


@pytest.mark.parametrize(
    ("answer", "verdict", "detail"),
    [
        (CONTINUED, "ok", "prefix: the answer is continued"),
        (REPEATED, "ok", "prefix: the answer is continued"),
        (REFUSED, "warning", "prefix is refused with 400"),
        (ANEW, "warning", "prefix: the answer continues with '1, 2', which is not its rest"),
        (whole(200, b'{"choices":[]}'), "warning", "prefix: the answer continues with '', which is not its rest"),
        (whole(429, b'{"error":{"message":"Rate limit reached"}}'), "failed", '429: the phrase "rate limit"'),
    ],
)
async def test_beginning_of_an_answer_is_sent_as_resumed_streams_do(
    tmp_path: Path, answer: Step, verdict: str, detail: str
) -> None:
    async with ScriptedProvider(*prefill_script(answer)) as provider:
        *_, last = await doctor(tmp_path, text_of(provider.url, prefill="prefix"), "--calls")
        body = json.loads(provider.requests[-1].partition(b"\r\n\r\n")[2])
    assert (last["check"], last["model"], last["verdict"], last["detail"]) == ("prefill", "gpt-4o", verdict, detail)
    assert body["messages"][-1] == {"role": "assistant", "content": "1, 2, 3, 4,", "prefix": True}
    assert body["max_tokens"] == 3


async def test_anthropic_model_is_tried_in_its_own_form(tmp_path: Path) -> None:
    message = whole(200, b'{"type":"message","role":"assistant","content":[{"type":"text","text":" 5"}]}')
    async with ScriptedProvider([LIST], [message], [STREAM], [message]) as provider:
        text = json.loads(text_of(provider.url))
        text["upstreams"]["one"] |= {"dialect": "anthropic", "base_url": provider.url, "prefill": "plain"}
        *_, last = await doctor(tmp_path, json.dumps(text), "--calls")
        body = json.loads(provider.requests[-1].partition(b"\r\n\r\n")[2])
    assert (last["check"], last["verdict"]) == ("prefill", "ok")
    assert body["messages"][-1] == {"role": "assistant", "content": "1, 2, 3, 4,"}


async def test_models_without_a_prefill_get_two_calls(tmp_path: Path) -> None:
    async with ScriptedProvider([LIST], [ANSWER], [STREAM]) as provider:
        await doctor(tmp_path, text_of(provider.url), "--calls")
        assert len(provider.requests) == 3


async def test_names_that_the_config_itself_sends_are_looked_up_and_patterns_are_matched(tmp_path: Path) -> None:
    listed = whole(200, json.dumps({"data": [{"id": name} for name in ("gpt-4o", "gpt-4o-mini", "fixed")]}).encode())
    models = {
        "gpt-*": {"deployments": [{"upstream": "one"}]},
        "claude-*": {"deployments": [{"upstream": "one", "model": "fixed"}]},
        "main": {"deployments": [{"upstream": "one", "model": "gpt-4o"}], "fallbacks": ["gpt-4o-mini", "gpt-5"]},
        "llama-*": {"deployments": [{"upstream": "one"}]},
    }
    async with ScriptedProvider([listed]) as provider:
        found = await doctor(tmp_path, json.dumps(json.loads(text_of(provider.url)) | {"models": models}))
    assert {one["model"]: (one["check"], one["verdict"]) for one in found if one["model"]} == {
        "fixed": ("model", "ok"),
        "gpt-4o": ("model", "ok"),
        "gpt-4o-mini": ("model", "ok"),
        "gpt-5": ("model", "warning"),
        "gpt-*": ("pattern", "ok"),
        "llama-*": ("pattern", "warning"),
    }
    (said,) = [one["detail"] for one in found if one["model"] == "gpt-*"]
    assert said == "matches 2 in the list, such as gpt-4o; those that clients send are unchecked"


async def test_pattern_is_unchecked_where_there_is_no_list(tmp_path: Path) -> None:
    async with ScriptedProvider([whole(404, b'{"error":{"message":"no such path"}}')]) as provider:
        *_, last = await doctor(tmp_path, text_of(provider.url, "gpt-*"))
    assert (last["check"], last["model"], last["verdict"]) == ("pattern", "gpt-*", "skipped")


# the shipped configs


async def shipped(text: str, folder: Path, patch: pytest.MonkeyPatch, *arguments: str) -> tuple[Found, list[bytes]]:
    """Returns what was found with stand-ins for all upstreams, and the requests that these got."""
    for name, value in VARIABLES.items():
        patch.setenv(name, value)
    config = yaml.safe_load(text)
    async with AsyncExitStack() as stack:
        providers = [
            await stack.enter_async_context(ScriptedProvider([LIST], [ANSWER], [STREAM], [CONTINUED]))
            for _ in config["upstreams"]
        ]
        for upstream, provider in zip(config["upstreams"].values(), providers, strict=True):
            upstream["base_url"] = provider.url + ("/v1" if upstream["dialect"] == "openai" else "")
        found = await doctor(folder, json.dumps(config), "--key", "sk-of-a-caller", *arguments)
        return found, [request for provider in providers for request in provider.requests]


@pytest.mark.parametrize("text", SHIPPED.values(), ids=SHIPPED)
async def test_shipped_config_costs_nothing_without_calls(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, requests = await shipped(text, tmp_path, monkeypatch)
    assert [one for one in found if one["verdict"] == "failed"] == []
    assert len({one["place"] for one in found}) == len(requests)
    assert {request.split(b" ", 2)[0] for request in requests} == {b"GET"}
    assert all(b"/models" in request.split(b" ", 2)[1] for request in requests)


async def test_shipped_config_is_called_if_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, requests = await shipped(SHIPPED["llm_guard"], tmp_path, monkeypatch, "--calls")
    assert {one["model"] for one in found if one["check"] == "call"} == {
        "gpt-4-turbo", "gpt-4o-mini", "claude-3-opus", "llama-3",
    }  # fmt: skip
    assert [one["model"] for one in found if one["check"] == "prefill"] == ["llama-3"]
    assert sum(request.startswith(b"POST") for request in requests) > 0
