"""`llm-guard doctor`: one broken config for each check, and that nothing is sent that costs unless it is allowed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_guard.cli.main import main
from tests.chaos.stand import config_text
from tests.fakes.certificates import EXPIRED, Authority
from tests.fakes.provider import Hold, ScriptedProvider, Step, whole
from tests.fakes.redis_server import redis_server

KEY = "sk-of-the-doctor-0123456789"
LIST = whole(200, b'{"object":"list","data":[{"id":"gpt-4o"},{"id":"gpt-4o-mini"}]}')
ANSWER = whole(200, b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"content":"h"}}]}')
STREAM = whole(200, b'data: {"choices":[]}\n\ndata: [DONE]\n\n', {"content-type": "text/event-stream"})
HTML = {"content-type": "text/html"}


def text_of(url: str, model: str = "gpt-4o", **upstream: Any) -> str:
    config = json.loads(config_text(url))
    config["upstreams"] = {"one": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": KEY, **upstream}}
    config["models"] = {model: {"deployments": [{"upstream": "one"}]}}
    return json.dumps(config)


def invoke(path: Path, text: str, *arguments: str) -> Result:
    path.write_text(text)
    result = CliRunner().invoke(main, ["doctor", "-c", str(path), *arguments], catch_exceptions=False)
    assert KEY not in result.output
    return result


async def examined(path: Path, text: str, *arguments: str) -> tuple[int, list[tuple[str, str, str]]]:
    """Returns the exit code, and check, verdict and detail of each result about the upstream."""
    result = await asyncio.to_thread(invoke, path, text, "--json", "--timeout", "2", *arguments)
    results = json.loads(result.stdout)
    assert all(one["remedy"] for one in results if one["verdict"] in ("warning", "failed"))
    return result.exit_code, [
        (f"{one['check']} {one['model']}".rstrip(), one["verdict"], one["detail"])
        for one in results
        if one["place"] == "upstreams.one"
    ]


@contextmanager
def refusing_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        yield reserved.getsockname()[1]


def limits(most: int, left: int) -> dict[str, str]:
    values = {"limit": f"{most}", "remaining": f"{left}", "reset": "20s"}
    return {f"x-ratelimit-{what}-requests": value for what, value in values.items()}


# what works


async def test_good_config_costs_nothing_and_passes(tmp_path: Path) -> None:
    async with ScriptedProvider([LIST]) as provider:
        code, found = await examined(tmp_path / "c.yaml", text_of(provider.url), "--strict")
        assert [request.split(b" ", 1)[0] for request in provider.requests] == [b"GET"]
        assert f"Authorization: Bearer {KEY}".encode() in provider.requests[0]
    assert (code, [(check, verdict) for check, verdict, _ in found]) == (
        0, [("connection", "ok"), ("key", "ok"), ("model gpt-4o", "ok")],
    )  # fmt: skip


async def test_calls_are_sent_if_they_are_allowed(tmp_path: Path) -> None:
    limits = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "1s",
    }
    answer = whole(200, b'{"choices":[{"index":0,"message":{"content":"h"}}]}', limits)
    async with ScriptedProvider([LIST], [answer], [STREAM]) as provider:
        code, found = await examined(tmp_path / "c.yaml", text_of(provider.url), "--calls")
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in provider.requests[1:]]
    assert code == 0
    assert [(check, verdict) for check, verdict, _ in found][2:] == [("call gpt-4o", "ok"), ("stream gpt-4o", "ok")]
    assert "left: 499 of 500 calls" in found[2][2]
    assert [(body["max_tokens"], body.get("stream")) for body in bodies] == [(1, None), (1, True)]


async def test_table_names_place_finding_and_remedy(tmp_path: Path) -> None:
    async with ScriptedProvider([whole(401, b"{}")]) as provider:
        result = await asyncio.to_thread(invoke, tmp_path / "c.yaml", text_of(provider.url))
    assert result.exit_code == 1
    assert "upstreams.one\n" in result.output
    assert "FAILED   key: is refused with 401\n           check the key, and `auth`" in result.output
    assert "sends nothing that costs (--calls: at most 3 calls)" in result.output
    assert "failed: 1" in result.output


# one broken config for each check


async def test_unknown_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("llm_guard.cli.doctor.command.run", asyncio.run)  # uvloop does not use Python's lookup
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    code, found = await examined(tmp_path / "c.yaml", text_of("http://provider.invalid"))
    assert (code, found) == (1, [("name", "failed", "provider.invalid is not known here")])


async def test_refused_connection(tmp_path: Path) -> None:
    with refusing_port() as port:
        code, found = await examined(tmp_path / "c.yaml", text_of(f"http://127.0.0.1:{port}"))
    assert (code, found) == (1, [("connection", "failed", f"port {port}: Connection refused")])


async def test_plain_server_at_an_address_for_tls(tmp_path: Path) -> None:
    async with ScriptedProvider(on_connect=(whole(400),)) as provider:
        _, found = await examined(tmp_path / "c.yaml", text_of(provider.url.replace("http:", "https:")))
    assert [(check, verdict) for check, verdict, _ in found] == [("connection", "failed")]
    assert found[0][2].startswith("TLS failed: ")


async def test_silent_server(tmp_path: Path) -> None:
    async with ScriptedProvider([Hold()]) as provider:
        _, found = await examined(tmp_path / "c.yaml", text_of(provider.url))
    assert found[1] == ("api", "failed", "no response within 2 s")


@pytest.mark.parametrize(
    ("ends", "ca", "check", "verdict", "detail"),
    [
        (EXPIRED, True, "certificate", "failed", "is refused: certificate has expired"),
        (None, False, "certificate", "failed", "is refused: unable to get local issuer certificate"),
        (datetime.now(UTC) + timedelta(days=5.5), True, "certificate", "warning", "ends in 5 days"),
        (datetime.now(UTC) + timedelta(days=90.5), True, "certificate", "ok", "ends in 90 days"),
    ],
    ids=["expired", "unknown authority", "ends soon", "good"],
)
async def test_certificate(
    tmp_path: Path, ends: datetime | None, ca: bool, check: str, verdict: str, detail: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server", ends=ends)
    context = authority.server()
    context.load_cert_chain(pair["cert"], pair["key"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1 << 16):
            writer.write(LIST.data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls: dict[str, Any] = {"tls": {"ca": str(authority.file)}} if ca else {}
    _, found = await examined(tmp_path / "c.yaml", text_of(url, **tls))
    server.close()
    assert any(
        (one, result) == (check, verdict) and said.startswith(detail.removesuffix("5 days").removesuffix("90 days"))
        for one, result, said in found
    ), found


OPENS = [
    ([whole(401, b"{}")], "key", "failed", "is refused with 401"),
    ([whole(403, b"{}")], "key", "failed", "is refused with 403"),
    ([whole(200, b"<html>hello</html>", HTML)], "api", "failed", "200, and no list of models"),
    ([whole(404, b"<html>no</html>", HTML)], "api", "failed", "404, and no list of models"),
    ([whole(404, b'{"error":{"message":"no such path"}}')], "models", "warning", "there is no list (404)"),
    ([whole(301, b"", {"location": "/"})], "api", "failed", "301, and no list of models"),
    ([whole(429, b'{"error":{"message":"Rate limit reached"}}')], "api", "failed", "429: "),
    ([whole(503, b'{"error":{"message":"overloaded"}}')], "api", "failed", "503: "),
    ([whole(200, b'{"data":[{"id":"gpt-4"}]}')], "model gpt-4o", "warning", "is not in the list; did you mean gpt-4?"),
]


@pytest.mark.parametrize(("script", "check", "verdict", "detail"), OPENS, ids=[f"{v} {d}" for _, _, v, d in OPENS])
async def test_list_of_models(
    tmp_path: Path, script: Sequence[Step], check: str, verdict: str, detail: str
) -> None:  # fmt: skip
    async with ScriptedProvider(script) as provider:
        code, found = await examined(tmp_path / "c.yaml", text_of(provider.url))
    assert found[1][:2] in ((check, verdict), ("key", "ok"))
    assert found[-1][:2] == (check, verdict)
    assert found[-1][2].startswith(detail)
    assert code == (verdict == "failed")


async def test_warnings_are_errors_with_strict(tmp_path: Path) -> None:
    async with ScriptedProvider([LIST]) as provider:
        text = text_of(provider.url, "gpt-5")
        assert [(await examined(tmp_path / "c.yaml", text, *strict))[0] for strict in ((), ("--strict",))] == [0, 1]


@pytest.mark.parametrize("off_s", [-300, 300])
async def test_clock_that_differs_from_the_providers(tmp_path: Path, off_s: int) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=off_s), usegmt=True)
    listed = whole(200, b'{"data":[{"id":"gpt-4o"}]}', {"date": date})
    async with ScriptedProvider([listed]) as provider:
        _, found = await examined(tmp_path / "c.yaml", text_of(provider.url))
    (clock,) = [one for one in found if one[0] == "clock"]
    assert clock[1] == "warning"
    assert ("behind" if off_s > 0 else "ahead of") in clock[2]


async def test_key_that_only_callers_have(tmp_path: Path) -> None:
    async with ScriptedProvider([whole(401, b"{}")], [LIST]) as provider:
        text = text_of(provider.url, api_key=None)
        _, found = await examined(tmp_path / "c.yaml", text)
        assert found[-1] == ("key", "skipped", "callers send their own")
        _, found = await examined(tmp_path / "c.yaml", text, "--key", KEY)
        assert found[1] == ("key", "ok", "is accepted")


CALLS: list[tuple[Sequence[Sequence[Step]], str, str]] = [
    ([[whole(404, b'{"error":{"code":"model_not_found","message":"no access"}}')]], "call gpt-4o", "404: "),
    ([[whole(200, b"<html></html>", HTML)]], "call gpt-4o", "the response is no answer"),
    ([[whole(200, b'{"error":{"message":"x"}}')]], "call gpt-4o", "the response is no answer"),
    ([[whole(302, b"", {"location": "/"})]], "call gpt-4o", "302, application/json"),
    ([[ANSWER], [ANSWER]], "stream gpt-4o", "200, application/json"),
    ([[ANSWER], [whole(400, b'{"error":{"message":"no stream"}}')]], "stream gpt-4o", "400: "),
]


@pytest.mark.parametrize(("scripts", "check", "detail"), CALLS, ids=[f"{check} {said}" for _, check, said in CALLS])
async def test_call_that_fails(
    tmp_path: Path, scripts: Sequence[Sequence[Step]], check: str, detail: str
) -> None:  # fmt: skip
    async with ScriptedProvider([LIST], *scripts) as provider:
        code, found = await examined(tmp_path / "c.yaml", text_of(provider.url), "--calls")
    assert found[-1][:2] == (check, "failed")
    assert found[-1][2].startswith(detail)
    assert code == 1


async def test_small_limit_of_the_provider(tmp_path: Path) -> None:
    limits = {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
    }
    async with ScriptedProvider([LIST], [whole(200, b'{"choices":[{}]}', limits)], [STREAM]) as provider:
        _, found = await examined(tmp_path / "c.yaml", text_of(provider.url), "--calls")
    assert ("limits gpt-4o", "warning", "only 3 calls (x-ratelimit-remaining-requests)") in found


# what stands beside


async def services(path: Path, sections: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    async with ScriptedProvider([LIST]) as provider:
        config = json.loads(text_of(provider.url))
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section}
        result = await asyncio.to_thread(invoke, path, json.dumps(config), "--json", "--timeout", "2")
    results = json.loads(result.stdout)
    return {one["place"]: (one["verdict"], one["detail"]) for one in results if one["place"] != "upstreams.one"}


async def test_store_of_the_fleet(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        found = await services(tmp_path / "c.yaml", {"fleet": {"store": server.url}})
        assert found["fleet.store"][0] == "ok"
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        found = await services(tmp_path / "c.yaml", {"fleet": {"store": server.url}})
        assert found["fleet.store"] == ("warning", "maxmemory-policy allkeys-lru may evict overrides by operators")
    found = await services(tmp_path / "c.yaml", {"fleet": {"store": server.url}})
    assert found["fleet.store"] == ("failed", "none (ConnectionError)")


async def test_receivers_are_connected_to_and_get_nothing(tmp_path: Path) -> None:
    with refusing_port() as port:
        async with ScriptedProvider([whole()]) as receiver:
            sections = {
                "ops": {"webhooks": [{"url": receiver.url}, {"url": f"http://127.0.0.1:{port}/hook"}],
                        "metrics": {"otlp": f"{receiver.url}/v1/metrics"}},
                "store": {"webhooks": [{"name": "team", "url": f"http://127.0.0.1:{port}/done"}]},
            }  # fmt: skip
            found = await services(tmp_path / "c.yaml", sections)
            assert receiver.requests == []
    assert {place: verdict for place, (verdict, _) in found.items()} == {
        "ops.webhooks[0]": "ok", "ops.webhooks[1]": "failed", "ops.metrics.otlp": "ok", "store.webhooks[0]": "failed",
    }  # fmt: skip


def test_invalid_config_is_refused_first(tmp_path: Path) -> None:
    assert invoke(tmp_path / "c.yaml", "models: {}").exit_code == 2
