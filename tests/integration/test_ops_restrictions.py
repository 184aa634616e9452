"""Everything that refuses calls, over real sockets: one list shows it to an operator and says how to lift it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from llm_guard.admin.schemas.restrictions import RestrictionKind
from llm_guard.outcome import RefusedBy
from llm_guard.resilience.throttling.adaptive_throttle import Throttle
from tests.chaos.forms import CHAT
from tests.chaos.sinks import refusing
from tests.chaos.stand import Stand, config_of, config_text, facing, standing, total
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.certificates import Authority
from tests.fakes.provider import Hold, Pause, ScriptedProvider, Step, whole
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import ASYNC
from tests.integration.operating import HERE, audit, change, get, post, running
from tests.integration.test_callers import call as call_of
from tests.integration.test_callers import poisoned
from tests.tokens import BEARER, VIEWER, bearer

CALLERS_MISTAKES: set[RefusedBy] = {"auth", "scope", "request", "route", "translation"}
"""Refusals that only the caller can fix, and that are therefore not listed."""

LIMITED = b'{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}'
SPENT = b'{"error":{"message":"no balance","type":"insufficient_quota","code":"insufficient_quota"}}'
REFUSED = b'{"error":{"message":"wrong key","code":"invalid_api_key"}}'
NEARLY_USED_UP = {
    "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s",
}  # fmt: skip
IMPATIENT = {"queue_timeout": "10ms"}
HELD: Sequence[Step] = [Hold()]
QUICK = {"preset": "demo", "base_delay": "20ms", "max_delay": "40ms", "jitter": 0.2, "max_attempts": 1}
SLOWLY: Sequence[Step] = [Pause(0.4), whole(200, CHAT.answer)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway that currently refuses a call."""

    stand: Stand
    admin: str
    """URL of the admin API."""
    ask: Callable[[], Awaitable[Reply]]
    """Makes the refused call again."""
    config: tuple[Path, str] | None = None
    """A config file, and the text that an operator writes to it before the restriction is lifted."""


Scenes = Callable[[Path], AbstractAsyncContextManager[Scene]]


@dataclass(frozen=True, slots=True)
class Case:
    by: RefusedBy | None
    """None for a refusal before the request is read: no response names it and no call counts it."""
    scene: Scenes


def scene_of(stand: Stand) -> Scene:
    return Scene(stand, stand.url, lambda: CHAT.ask(stand.url))


def one(**rules: Any) -> dict[str, Any]:
    """Builds the model `gpt` with these rules."""
    return {"gpt": {"deployments": [{"upstream": "one"}], **rules}}


async def fail(stand: Stand, *statuses: int) -> None:
    assert [(await CHAT.ask(stand.url)).status for _ in statuses] == list(statuses)


# automatic restrictions of a deployment

BREAKER = {"consecutive_failures": 2, "open_for": "60s", "early_probes": False}


@asynccontextmanager
async def breaker(_folder: Path) -> AsyncIterator[Scene]:
    async with facing([whole(500)], [whole(500)], CHAT.ok, breaker=BREAKER) as (stand, _):
        await fail(stand, 500, 500)
        yield scene_of(stand)


@asynccontextmanager
async def host_breaker(_folder: Path) -> AsyncIterator[Scene]:
    with refusing() as (url, held):
        async with standing(config_of(url, breaker=BREAKER)) as stand:
            await fail(stand, 502, 502)
            async with ScriptedProvider(CHAT.ok, sock=held):
                stand.deployment("one/gpt").breaker.reset(stand.app._clock.now(), "of no interest here")
                yield scene_of(stand)


@asynccontextmanager
async def cooldown(_folder: Path) -> AsyncIterator[Scene]:
    async with facing([whole(429, LIMITED, {"retry-after": "50"})], CHAT.ok) as (stand, _):
        await fail(stand, 429)
        yield scene_of(stand)


@asynccontextmanager
async def credential_cooldown(_folder: Path) -> AsyncIterator[Scene]:
    async with ScriptedProvider([whole(401, REFUSED)], [whole(401, REFUSED)], CHAT.ok) as provider:
        upstreams = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k"}}
        async with standing(config_of(provider.url, upstreams=upstreams)) as stand:
            await fail(stand, 401, 401)
            yield scene_of(stand)


@asynccontextmanager
async def pace(_folder: Path) -> AsyncIterator[Scene]:
    answer = whole(200, CHAT.answer, NEARLY_USED_UP)
    async with facing([answer], models=one(capacity=IMPATIENT)) as (stand, _):
        await fail(stand, 200, 200)
        yield scene_of(stand)


@asynccontextmanager
async def throttle(_folder: Path) -> AsyncIterator[Scene]:
    async with facing(CHAT.ok, models=one(capacity=IMPATIENT)) as (stand, _):
        await fail(stand, 200)
        began_at = time.monotonic() - 2.7
        throttle = stand.deployment("one/gpt").gates.all()[0]._throttle = Throttle(began_at)
        for number in range(21):  # the first starts the count, 2 succeed, and the last starts a trial
            at = began_at + number * 0.13
            (throttle.note_ok if number in (1, 2) else throttle.note_failure)(at, at)
        await fail(stand, 200)
        yield scene_of(stand)


@asynccontextmanager
async def provider_pause(_folder: Path) -> AsyncIterator[Scene]:
    limited = [whole(429, LIMITED, {"retry-after": "20"})]
    retry = {"max_delay": "60s"}
    async with facing(limited, limited, CHAT.ok, retry=retry, models=one(capacity=IMPATIENT)) as (stand, _):
        await fail(stand, 429, 429)
        yield scene_of(stand)


@asynccontextmanager
async def slow_start(_folder: Path) -> AsyncIterator[Scene]:
    scripts = [[whole(500)], [whole(500)], HELD, HELD, HELD, HELD, CHAT.ok]
    rules = {**BREAKER, "slow_start": "60s"}
    async with facing(*scripts, breaker=rules, models=one(capacity=IMPATIENT)) as (stand, provider):
        await fail(stand, 500, 500)
        await change(stand.url, "breakers/reset", deployment="one/gpt")
        async with asking(stand, 4):
            await eventually(lambda: len(provider.requests) == 6)
            yield scene_of(stand)


# restrictions by operators and by the config


@asynccontextmanager
async def concurrency(_folder: Path) -> AsyncIterator[Scene]:
    capacity = {**IMPATIENT, "concurrency": 1}
    async with facing(HELD, CHAT.ok, models=one(capacity=capacity)) as (stand, provider), asking(stand, 1):
        await eventually(lambda: provider.requests)
        yield scene_of(stand)


@asynccontextmanager
async def forced_breaker(_folder: Path) -> AsyncIterator[Scene]:
    async with facing(CHAT.ok) as (stand, _):
        await change(stand.url, "breakers/force-open", deployment="one/gpt", for_="1h")
        yield scene_of(stand)


@asynccontextmanager
async def hold(_folder: Path) -> AsyncIterator[Scene]:
    async with facing(CHAT.ok) as (stand, _):
        await change(stand.url, "deployments/cordon", deployment="one/gpt", for_="1h")
        yield scene_of(stand)


@asynccontextmanager
async def degraded_mode(_folder: Path) -> AsyncIterator[Scene]:
    rules = {"static_response": "We cannot answer now.", "max_wait": "100ms"}
    async with facing(SLOWLY, models=one(degraded=rules)) as (stand, _):
        await change(stand.url, "degraded/enter", model="gpt", for_="1h")
        yield scene_of(stand)


@asynccontextmanager
async def deadline(folder: Path) -> AsyncIterator[Scene]:
    path = folder / "guard.yaml"
    async with ScriptedProvider(SLOWLY) as provider:
        path.write_text(config_text(provider.url, timeout={"total": "100ms"}))
        async with running(path) as stand:
            yield replace(scene_of(stand), config=(path, config_text(provider.url)))


@asynccontextmanager
async def deferred_queue(folder: Path) -> AsyncIterator[Scene]:
    path = folder / "guard.yaml"
    async with ScriptedProvider(HELD) as provider:
        small, large = (deferring(provider.url, folder, waiting) for waiting in (1, 9))
        path.write_text(small)
        async with running(path) as stand:
            assert (await defer(stand)).status == 202
            yield Scene(stand, stand.url, lambda: defer(stand), (path, large))


@asynccontextmanager
async def drain(_folder: Path) -> AsyncIterator[Scene]:
    async with ScriptedProvider(CHAT.ok, HELD) as provider:
        ops, server = {"port": 0}, {"drain": "60s"}
        async with (
            standing(config_of(provider.url, ops=ops, server=server)) as stand,
            Connection(stand.url) as kept,
        ):
            assert (await kept.ask(CHAT.request())).status == 200
            admin = stand.app.addresses[1]
            async with asking(stand, 1):
                await eventually(lambda: len(provider.requests) == 2)
                leaving = asyncio.create_task(stand.app.stop())
                await eventually(lambda: stand.app.gateway.is_closed)
                yield Scene(stand, admin, lambda: kept.ask(CHAT.request()))
            await leaving


@asynccontextmanager
async def asking(stand: Stand, count: int) -> AsyncIterator[None]:
    """Keeps so many calls running."""
    calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(count)]
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def defer(stand: Stand) -> Reply:
    return await ask(stand.url, CHAT.path, CHAT.body(), ASYNC)


def deferring(url: str, folder: Path, waiting: int) -> str:
    text = json.loads(config_text(url, ops={"store": str(folder / "s")}, server={"drain": "100ms"}))
    text["upstreams"]["one"]["api_key"] = "k"
    text["store"] = {"deferred": {"max_pending": waiting}}
    return json.dumps(text)


@asynccontextmanager
async def client_limit(_folder: Path) -> AsyncIterator[Scene]:
    keys = {"client_keys": [{"name": "app", "key": "k-app", "limits": {"tokens_per_day": 15}}]}
    async with facing(CHAT.ok, server=keys) as (stand, _):

        def call() -> Awaitable[Reply]:
            return ask(stand.url, CHAT.path, CHAT.body(), {"authorization": "Bearer k-app"})

        assert [(await call()).status for _ in range(2)] == [200, 200]
        yield Scene(stand, stand.url, call)


@asynccontextmanager
async def spool(folder: Path) -> AsyncIterator[Scene]:
    """Other bodies take up almost all of the spool."""
    path = folder / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        small, large = (json.loads(config_text(provider.url, server={"max_spool": size})) for size in ("4MiB", "9MiB"))
        path.write_text(json.dumps(small))
        async with running(path) as stand:
            stand.app.gateway.spool.reserve((4 << 20) - 1000, 0)
            body = CHAT.body(prompt="x" * (3 << 20))
            yield Scene(stand, stand.url, lambda: ask(stand.url, CHAT.path, body), (path, json.dumps(large)))
            stand.app.gateway.spool.release((4 << 20) - 1000)


@asynccontextmanager
async def connections(folder: Path) -> AsyncIterator[Scene]:
    """The only allowed connection is used by a call."""
    path = folder / "guard.yaml"
    async with ScriptedProvider(HELD, CHAT.ok) as provider:
        one_only, more = (
            json.loads(config_text(provider.url, server={"max_connections": most}, ops={"port": 0})) for most in (1, 9)
        )
        path.write_text(json.dumps(one_only))
        async with running(path) as stand:
            held = asyncio.ensure_future(CHAT.ask(stand.url))
            await eventually(lambda: len(provider.requests) == 1)
            yield Scene(stand, stand.app.addresses[1], lambda: CHAT.ask(stand.url), (path, json.dumps(more)))
            held.cancel()


@asynccontextmanager
async def caller_breaker(_folder: Path) -> AsyncIterator[Scene]:
    async with poisoned() as stand:
        yield Scene(stand, stand.url, lambda: call_of(stand, "sk-poisoner"))


@asynccontextmanager
async def tls_handshakes(folder: Path) -> AsyncIterator[Scene]:
    """Clients must present a certificate, and this one has none."""
    path, authority = folder / "guard.yaml", Authority(folder)
    pair = authority.pair("one")
    async with ScriptedProvider(CHAT.ok) as provider:
        strict, open_ = (
            config_text(provider.url, server={"tls": tls}, ops={"port": 0})
            for tls in ({**pair, "client_ca": str(authority.file)}, pair)
        )
        path.write_text(strict)
        async with running(path) as stand:

            async def call() -> Reply:
                async with Connection(stand.url, authority.client()) as connection:
                    return await connection.ask(CHAT.request())

            yield Scene(stand, stand.app.addresses[1], call, (path, open_))


CASES: Mapping[RestrictionKind, Case] = {
    "breaker": Case("breaker", breaker),
    "host_breaker": Case("breaker", host_breaker),
    "forced_breaker": Case("breaker", forced_breaker),
    "cooldown": Case("cooldown", cooldown),
    "credential_cooldown": Case("cooldown", credential_cooldown),
    "pace": Case("limit", pace),
    "throttle": Case("limit", throttle),
    "provider_pause": Case("limit", provider_pause),
    "slow_start": Case("limit", slow_start),
    "concurrency": Case("limit", concurrency),
    "hold": Case("hold", hold),
    "degraded_mode": Case("deadline", degraded_mode),
    "deadline": Case("deadline", deadline),
    "client_limit": Case("client_limit", client_limit),
    "deferred_queue": Case("limit", deferred_queue),
    "spool": Case("limit", spool),
    "connections": Case(None, connections),
    "drain": Case("drain", drain),
    "caller_breaker": Case("breaker", caller_breaker),
    "tls_handshakes": Case(None, tls_handshakes),
}
HAVE_AN_END: set[RestrictionKind] = {
    "breaker", "host_breaker", "forced_breaker", "cooldown", "credential_cooldown", "provider_pause", "slow_start",
    "hold", "degraded_mode", "client_limit", "caller_breaker",
}  # fmt: skip


SHOWN_LONGER: set[RestrictionKind] = {"pace", "deadline", "spool", "connections", "tls_handshakes"}
"""Headers set the pace again; the others are shown for a minute after the last refusal."""


NOT_COUNTED: set[RestrictionKind] = {"degraded_mode", "deferred_queue", "drain"}
"""Degraded mode answers its calls; the other two refuse what is counted elsewhere."""
AFTER_ERRORS: set[RestrictionKind] = {
    "breaker", "host_breaker", "caller_breaker", "cooldown", "credential_cooldown", "provider_pause", "slow_start",
    "deadline",
}  # fmt: skip
"""Restrictions that a provider's errors have set in these cases."""


@asynccontextmanager
async def probe_down(_folder: Path) -> AsyncIterator[Scene]:
    upstream = {"probe": {"interval": "20ms", "timeout": "1s", "max_failures": 2}}
    async with ScriptedProvider([whole(503)]) as provider:
        one = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", **upstream}}
        async with standing(config_of(provider.url, upstreams=one)) as stand:
            await eventually(lambda: any(view.state == "down" for view in stand.app.prober.views()))
            yield scene_of(stand)


@asynccontextmanager
async def engine_down(_folder: Path) -> AsyncIterator[Scene]:
    engine = {"command": {"argv": ["/bin/sh", "-c", "exit 3"]}, "upstreams": ["one"], "restart": QUICK}
    upstream = {"probe": {"interval": "20ms", "timeout": "1s", "max_failures": 2}}
    async with ScriptedProvider([whole(503)]) as provider:
        one = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", **upstream}}
        async with standing(config_of(provider.url, upstreams=one, engines={"e": engine})) as stand:
            supervisor = stand.app.engines.find("e")
            assert supervisor is not None
            await eventually(lambda: supervisor.seen().now.state == "failed", within_s=15)
            yield scene_of(stand)


@asynccontextmanager
async def injected_fault(_folder: Path) -> AsyncIterator[Scene]:
    async with facing(CHAT.ok, ops={"chaos": True}) as (stand, _):
        await change(stand.url, "chaos", deployment="one/gpt", fault={"kind": "status"}, share=1)
        yield scene_of(stand)


DIVERTING: Mapping[RestrictionKind, Scenes] = {
    "probe_down": probe_down, "engine_down": engine_down, "injected_fault": injected_fault,
}  # fmt: skip
"""States that refuse nothing: calls go elsewhere while there is another deployment."""


@pytest.mark.parametrize("kind", DIVERTING)
async def test_state_that_diverts_calls_is_found_with_its_cause_and_what_to_do(
    kind: RestrictionKind, tmp_path: Path
) -> None:
    async with DIVERTING[kind](tmp_path) as scene:
        found = await restriction(scene, kind)
        assert (found["upstream"], found["models"]) == ("one", ["gpt"])
        assert all(found[name] for name in ("since", "cause", "ends", "rule", "remedy"))
        await change(scene.admin, found["lift"]["path"].removeprefix("/admin/"), **found["lift"]["body"])


async def test_errors_behind_a_breaker_are_shown_but_their_words_to_operators_only() -> None:
    body = b'{"error":{"message":"The server\\nis melting","type":"server_error","code":"meltdown"}}'
    failing = [whole(500, body, {"x-request-id": "req-7"})]
    async with facing(failing, failing, CHAT.ok, breaker=BREAKER) as (stand, _):
        await fail(stand, 500, 500, 503)
        found = await restriction(scene_of(stand), "breaker")
        assert (found["rule"], found["refused"], found["models"]) == ("2 failures in a row", 1, ["gpt"])
        newest, first = found["errors"]
        assert {**newest, "at": None, "call": None} == {
            "at": None, "call": None, "kind": "server_error", "category": "server_error", "status": 500,
            "code": "meltdown", "request_id": "req-7", "message": "The server is melting",
        }  # fmt: skip
        viewers = await ask(stand.url, "/admin/restrictions", headers={**HERE, **bearer(VIEWER)}, method="GET")
        assert [error["message"] for error in viewers.json[0]["errors"]] == [None, None]
        assert "melting" not in viewers.text
        *_, refused = await stand.calls()
        (skipped,) = refused["skipped"]
        assert skipped["failed_calls"] == [newest["call"], first["call"]]
        (line,) = [line for line in stand.log if line["event"] == "breaker"]
        expected = {"status": 500, "kind": "server_error", "code": "meltdown", "provider_request_id": "req-7"}
        assert line["errors"] == [expected, expected]
        assert "melting" not in json.dumps(stand.log, default=str)


async def test_words_of_a_provider_reach_operators_alone() -> None:
    body = b'{"error":{"message":"The server is melting","type":"server_error","code":"meltdown"}}'
    failing = [whole(500, body)]
    viewers = {**HERE, **bearer(VIEWER)}
    async with ScriptedProvider([whole(202)]) as receiver:
        ops = {"webhooks": [{"url": receiver.url, "name": "team"}]}
        async with facing(failing, failing, CHAT.ok, breaker=BREAKER, ops=ops) as (stand, _):
            await fail(stand, 500, 500, 503)
            await eventually(lambda: receiver.requests)
            for path in ("restrictions", "deployments", "breakers", "incidents"):
                assert "melting" in json.dumps(await get(stand.url, path)), path
                shown = await ask(stand.url, f"/admin/{path}", headers=viewers, method="GET")
                assert shown.status == 200
                assert "meltdown" in shown.text, path
                assert "melting" not in shown.text, path
            for path in ("/metrics", "/admin/metrics", "/admin/calls", "/admin/alerts", "/admin/health"):
                assert "melting" not in (await ask(stand.url, path, headers=HERE, method="GET")).text, path
            events = stand.app.ops.journal.since(0)[0]
            assert not any("melting" in str(event.facts) for event in events)
            assert "melting" not in json.dumps(stand.log, default=str)
        assert not any(b"melting" in request for request in receiver.requests)


def test_every_kind_and_every_refusal_that_is_not_the_callers_mistake_has_a_case() -> None:
    assert {*CASES, *DIVERTING} == set(get_args(RestrictionKind))
    assert {case.by for case in CASES.values() if case.by} == set(get_args(RefusedBy)) - CALLERS_MISTAKES


@pytest.mark.parametrize("kind", CASES)
async def test_refusal_is_found_with_its_cause_and_lifted_as_listed(kind: RestrictionKind, tmp_path: Path) -> None:
    case = CASES[kind]
    async with case.scene(tmp_path) as scene:
        await check_is_refused(scene, kind, case.by)
        found = await restriction(scene, kind)
        assert found["since"] is not None
        assert (found["until"] is not None) == (kind in HAVE_AN_END)
        assert found["cause"]
        assert found["ends"]
        assert found["rule"]
        assert found["remedy"]
        assert (found["refused"] > 0) == (kind not in NOT_COUNTED)
        assert (found["errors"] != []) == (kind in AFTER_ERRORS)
        for error in found["errors"]:
            assert (await ask(scene.admin, f"/admin/calls/{error['call']}", headers=HERE, method="GET")).status == 200
        if (lift := found["lift"]) is None:
            assert found["no_lift_reason"]
            return
        if scene.config is not None:
            path, text = scene.config
            await asyncio.to_thread(path.write_text, text)
        await change(scene.admin, lift["path"].removeprefix("/admin/"), **lift["body"])
        served = await scene.ask()
        assert served.status in (200, 202), served.text
        assert "x-llm-guard-degraded" not in served.headers
        if kind not in SHOWN_LONGER:
            assert kind not in [each["kind"] for each in await get(scene.admin, "restrictions")]


async def check_is_refused(scene: Scene, kind: RestrictionKind, by: RefusedBy | None) -> None:
    if kind == "tls_handshakes":
        with pytest.raises((OSError, EOFError, asyncio.IncompleteReadError)):
            await scene.ask()
        return
    if by is None:
        reply = await scene.ask()
        assert (reply.status, reply.json["error"]["code"]) == (503, "too_many_connections")
        return
    before = await refusals(scene, by)
    reply = await scene.ask()
    if kind == "degraded_mode":
        assert reply.headers["x-llm-guard-degraded"] == "static"
    else:
        assert reply.headers["x-llm-guard-refused-by"] == by, reply.text
    async with asyncio.timeout(5):
        while await refusals(scene, by) == before:  # noqa: ASYNC110  # it is behind a page
            await asyncio.sleep(0.01)


async def refusals(scene: Scene, by: RefusedBy) -> float:
    return total((await fetch(f"{scene.admin}/metrics")).text, "llm_guard_refusals_total", reason=by)


async def restriction(scene: Scene, kind: RestrictionKind) -> dict[str, Any]:
    (found,) = [each for each in await get(scene.admin, "restrictions") if each["kind"] == kind]
    return dict(found)


# health and the alert

LASTING: set[RestrictionKind] = set(CASES) - {
    "degraded_mode", "deferred_queue", "drain", "client_limit", "spool", "connections", "caller_breaker",
    "tls_handshakes",
}  # fmt: skip
"""Restrictions that refuse every call. Of the others, a limit or a breaker concerns one client, degraded mode gives
fallback responses, deferred calls are one kind of call, the spool refuses only large bodies, a shutdown is
announced, and a refused connection brings no call."""


@pytest.mark.parametrize("kind", sorted(LASTING))
async def test_nothing_is_healthy_while_most_calls_are_refused(kind: RestrictionKind, tmp_path: Path) -> None:
    async with CASES[kind].scene(tmp_path) as scene:
        for _ in range(20):
            await scene.ask()
        seen = await get(scene.admin, "metrics")
        (gpt,) = (each for each in seen["models"] if each["model"] == "gpt")
        (one,) = (each for each in seen["deployments"] if each["deployment"] == "one/gpt")
        assert gpt["health"] != "healthy"
        assert f" by {CASES[kind].by}" in gpt["reasons"][0]
        assert gpt["traffic"]["refused_rate"] > 0.5
        assert one["health"] != "healthy"
        assert any(f" by {CASES[kind].by}" in why for why in one["reasons"])
        assert seen["health"] != "healthy"
        summary = await get(scene.admin, "health")
        assert summary["health"] == seen["health"]
        assert any("the gateway refused" in why for why in summary["reasons"])


async def test_refused_calls_are_an_alert_within_seconds() -> None:
    async with facing([whole(429, LIMITED, {"retry-after": "50"})]) as (stand, _):
        for _ in range(20):
            await CHAT.ask(stand.url)
        async with asyncio.timeout(5):
            while not (found := [each for each in await firing(stand) if each["alert"] == "calls_refused"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (found[0]["subject"], found[0]["severity"]) == ("gpt", "warning")
        assert "the gateway refused 19 of 20 calls within 10 s: 19 by cooldown" in found[0]["summary"]


async def firing(stand: Stand) -> list[dict[str, Any]]:
    return list((await get(stand.url, "alerts"))["firing"])


# results of a reset


async def test_gateway_that_refuses_nothing_has_an_empty_list() -> None:
    async with facing(CHAT.ok) as (stand, _):
        await fail(stand, 200, 200)
        assert await get(stand.url, "restrictions") == []


async def test_pace_that_429s_have_taught_is_forgotten() -> None:
    async with facing([whole(429, LIMITED)], models=one(capacity=IMPATIENT)) as (stand, provider):
        async with asyncio.timeout(10):
            while (await CHAT.ask(stand.url)).headers.get("x-llm-guard-refused-by") != "limit":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        found = await restriction(scene_of(stand), "pace")
        assert "429" in found["cause"]
        sent = len(provider.requests)
        await change(stand.url, "deployments/reset", deployment="one/gpt", kinds=["pace"])
        assert "x-llm-guard-refused-by" not in (await CHAT.ask(stand.url)).headers
        assert len(provider.requests) == sent + 1


async def test_reset_of_a_deployment_ends_its_automatic_restrictions_and_lists_others_affected() -> None:
    async with ScriptedProvider([whole(401, REFUSED)], [whole(401, REFUSED)], CHAT.ok) as provider:
        upstreams = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k"}}
        async with standing(config_of(provider.url, upstreams=upstreams)) as stand:
            await fail(stand, 401, 401)
            answer = await change(stand.url, "deployments/reset", deployment="one/gpt", reason="a new key")
            assert answer["now"] == []
            assert answer["warnings"] == ["the credential of one is used again for every model, not only for one/gpt"]
            await fail(stand, 200)
            (entry, *_) = await get(stand.url, "audit")
            assert (entry["action"], entry["target"], entry["reason"]) == ("deployments.reset", "one/gpt", "a new key")
            assert entry["detail"]["lifted"] == ["credential_cooldown: one"]


async def test_reset_leaves_operator_decisions_and_reports_them() -> None:
    async with facing(CHAT.ok) as (stand, _):
        await change(stand.url, "deployments/drain", deployment="one/gpt", reason="a new rack")
        await change(stand.url, "breakers/force-open", deployment="one/gpt")
        answer = await change(stand.url, "deployments/reset", deployment="one/gpt")
        assert {each["kind"] for each in answer["now"]} == {"hold", "forced_breaker"}
        nothing, *still = answer["warnings"]
        assert nothing == "one/gpt: no such restriction was in force"
        assert [each.partition(":")[0] for each in still] == [
            "still restricted by forced_breaker",
            "still restricted by hold",
        ]
        assert "a new rack" in still[1]
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-refused-by"] == "hold"


async def test_only_the_named_targets_are_reset() -> None:
    async with breaker(Path()) as scene:
        answer = await change(scene.admin, "deployments/reset", deployment="one/gpt", kinds=["pace", "cooldown"])
        assert [each["kind"] for each in answer["now"]] == ["breaker"]
        assert (await scene.ask()).headers["x-llm-guard-refused-by"] == "breaker"


async def test_one_name_under_a_pattern_is_reset_alone() -> None:
    failing = [whole(500)]
    models = {"m-*": {"deployments": [{"upstream": "one"}]}}
    async with facing(*[failing] * 4, CHAT.ok, models=models, breaker=BREAKER) as (stand, _):
        for name in ("m-1", "m-1", "m-2", "m-2"):
            assert (await CHAT.ask(stand.url, model=name)).status == 500
        found = [each for each in await get(stand.url, "restrictions") if each["kind"] == "breaker"]
        assert [(each["deployment"], each["model"]) for each in found] == [("one/m-*", "m-1"), ("one/m-*", "m-2")]
        await change(stand.url, "deployments/reset", **found[0]["lift"]["body"])
        replies = [await CHAT.ask(stand.url, model=name) for name in ("m-1", "m-2")]
        assert [reply.status for reply in replies] == [200, 503]


async def test_keys_of_callers_are_listed_together_and_not_revealed() -> None:
    async with facing([whole(401, REFUSED)]) as (stand, _):
        for name in ("alice", "bob"):
            headers = {"authorization": f"Bearer sk-{name}"}
            for _ in range(3):
                await ask(stand.url, CHAT.path, CHAT.body(), headers)
        reply = await ask(stand.url, "/admin/restrictions", headers={"host": "localhost", **BEARER}, method="GET")
        (found,) = reply.json
        assert (found["kind"], found["upstream"]) == ("credential_cooldown", "one")
        assert "for 2 of the keys" in found["cause"]
        assert "sk-" not in reply.text


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 422, "send either `deployment`"),
        ({"deployment": "one/gtp"}, 404, "similar names: one/gpt"),
        ({"deployment": "one/gpt", "kinds": []}, 422, "kinds"),
        ({"deployment": "one/gpt", "kinds": ["hold"]}, 422, "kinds"),
        ({"deployment": "one/gpt", "reason": ...}, 422, "reason"),
        ({"upstream": "one", "kinds": ["pace"]}, 422, "an upstream as a whole has no pace"),
    ],
)
async def test_reset_that_makes_no_sense_is_refused_with_a_remedy(body: dict[str, Any], status: int, word: str) -> None:
    async with facing(CHAT.ok) as (stand, _):
        reply = await post(stand.url, "deployments/reset", **body)
        assert (reply.status, word in reply.text) == (status, True), reply.text
        assert not any(what == "deployments.reset" for _, what, _, _ in await audit(stand.url))
