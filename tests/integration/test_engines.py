"""Engines behind a running gateway: a provider in a process of its own that is killed and recovers, or never does."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_guard.admin.http.credentials import Credential
from llm_guard.config import parse_config
from llm_guard.resilience.health.restart_policy import giving_up
from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.stand import Stand, config_text, standing
from tests.chaos.wire import ask
from tests.fakes.provider import ScriptedProvider
from tests.fakes.waiting import eventually
from tests.integration.operating import HERE, audit, change, get, post
from tests.tokens import SHARED, VIEWER, bearer

ROOT = Path(__file__).parents[2]
NEAR = {"upstream": "near"}
QUICK = {"preset": "demo", "base_delay": "100ms", "max_delay": "200ms", "jitter": 0.2, "max_attempts": 3}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


LIGHT = """
import socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection = listening.accept()[0]
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
    connection.close()
"""
"""An engine that starts at once and is always healthy."""


def command(port: int) -> dict[str, Any]:
    argv = [sys.executable, "-m", "llm_guard", "mock", "--port", str(port)]
    return {"argv": argv, "env": {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}}


def text_of(far: str, port: int, engine: Mapping[str, Any], **sections: Any) -> str:
    """Builds a config: `gpt` is served by the engine with a remote fallback; `solo` by the engine alone."""
    here = {"dialect": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}
    near = {**here, "probe": {"interval": "200ms", "timeout": "1s", "max_failures": 2}}
    models = {"gpt": {"deployments": [{"upstream": "near"}, {"upstream": "one"}]}, "solo": {"deployments": [NEAR]}}
    text = json.loads(config_text(far, models=models, upstreams={"near": near}, **sections))
    text["engines"] = {
        "e": {"upstreams": ["near"], "start_timeout": "20s", "stop_timeout": "2s", "restart": QUICK, **engine}
    }
    return json.dumps(text)


@asynccontextmanager
async def engine_behind(
    breaks_at: Path | None = None, *, is_light: bool = False, **engine: Any
) -> AsyncIterator[Stand]:
    """Runs a gateway with one engine, in front of a remote provider. Once the file exists, the engine cannot start."""
    port = free_port()
    said = {"argv": [sys.executable, "-I", "-S", "-c", LIGHT, str(port)]} if is_light else command(port)
    if breaks_at is not None:
        said["argv"] = ["/bin/sh", "-c", f"[ -e {breaks_at} ] && exit 3; exec {' '.join(said['argv'])}"]
    async with ScriptedProvider(CHAT.ok) as far:
        config = parse_config(text_of(far.url, port, {"command": said, **engine}), "test.yaml", {})
        async with standing(config) as stand:
            yield stand


async def engine_of(stand: Stand) -> dict[str, Any]:
    (found,) = await get(stand.url, "engines")
    return dict(found)


async def until(stand: Stand, state: str) -> dict[str, Any]:
    supervisor = stand.app.engines.find("e")
    assert supervisor is not None
    await eventually(lambda: supervisor.seen().now.state == state, within_s=15)
    return await engine_of(stand)


async def process_of(stand: Stand) -> psutil.Process:
    supervisor = stand.app.engines.find("e")
    assert supervisor is not None
    return psutil.Process(int((await supervisor._strategy.look()).run))


async def served_by(stand: Stand, model: str = "gpt") -> str:
    reply = await CHAT.ask(stand.url, model=model)
    return (
        reply.headers.get("x-llm-guard-deployment") or f"{reply.status} {reply.headers.get('x-llm-guard-refused-by')}"
    )


def events(stand: Stand) -> list[tuple[object, object]]:
    found = stand.app.ops.journal.since(0)[0]
    return [(event.facts["state"], event.facts["event"]) for event in found if event.kind == "engine"]


async def admission(stand: Stand, query: str) -> dict[str, Any]:
    return dict(await get(stand.url, f"admit?{query}"))


# recovery and giving up


async def test_engine_killed_by_a_signal_restarts_while_calls_use_the_fallback() -> None:
    others = psutil.Process().children()
    async with engine_behind() as stand:
        await until(stand, "running")
        assert await served_by(stand) == "near/gpt"
        (await process_of(stand)).send_signal(signal.SIGKILL)
        await until(stand, "unhealthy")
        assert await served_by(stand) == "one/gpt"
        assert (await admission(stand, "model=gpt"))["deployment"] == "one/gpt"
        assert (await admission(stand, "model=solo"))["reason"] == "engine_unhealthy"
        seen = await until(stand, "running")
        await eventually(lambda: stand.app.prober.why_down(stand.deployment("near/gpt")) is None)
        assert await served_by(stand) == "near/gpt"
        assert (seen["restarts_ok"], seen["attempts"], seen["reason"]) == (1, 1, None)
        assert any("mock provider listens" in line for line in seen["output"])
        trail = [entry[1:] for entry in reversed(await audit(stand.url)) if entry[0] == "engines"]
        died = "it was ended by signal SIGKILL"
        assert trail == [
            ("health_failed", "e", died), ("auto_restart", "e", died), ("auto_restart_success", "e", "it is running"),
        ]  # fmt: skip
        assert await stand.metric("llm_guard_engine_state", engine="e", state="running") == 1
        assert await stand.metric("llm_guard_engine_state", engine="e") == 1
        assert await stand.metric("llm_guard_engine_restarts_total", engine="e", outcome="ok") == 1
    await eventually(lambda: set(psutil.Process().children()) <= set(others))


async def test_engine_that_cannot_start_is_given_up_with_audit_and_alert(tmp_path: Path) -> None:
    marker = tmp_path / "broken"
    async with engine_behind(marker) as stand:
        await until(stand, "running")
        marker.touch()
        (await process_of(stand)).send_signal(signal.SIGTERM)
        await until(stand, "unhealthy")
        began_at = stand.app._clock.now()
        seen = await until(stand, "failed")
        took_s = stand.app._clock.now() - began_at
        supervisor = stand.app.engines.find("e")
        assert supervisor is not None
        bounds = giving_up(supervisor.config.restart.settings, 0.0)
        assert bounds.soonest_s - 0.05 <= took_s <= bounds.latest_s + stand.lag_s + 2.0
        assert (seen["reason"], seen["attempts"], seen["next_attempt_s"]) == ("it ended with exit code 3", 3, None)
        assert events(stand)[-1] == ("gave_up", "auto_restart_gave_up")
        assert ("auto_restart_gave_up", "e", "it ended with exit code 3") in [
            each[1:] for each in await audit(stand.url)
        ]
        await eventually(lambda: "engine_gave_up" in firing(stand))
        assert (await get(stand.url, "health"))["failed"] == ["near/gpt", "near/solo", "near"]
        assert await served_by(stand) == "one/gpt"
        # The cause is fixed, and an operator resets the engine.
        marker.unlink()
        answer = await change(stand.url, "engines/reset", engine="e")
        assert (answer["now"]["state"], answer["now"]["attempts"]) == ("unhealthy", 0)
        await until(stand, "running")
        await eventually(lambda: "engine_gave_up" not in firing(stand))
        assert (await get(stand.url, "health"))["failed"] == []


async def test_engine_that_keeps_dying_raises_the_alerts_about_restarts_and_long_outages() -> None:
    ops = {
        "alerts": {
            "group_wait": "0s", "engine_gave_up": "off", "engine_down": {"for": "2s"}, "engines_down": {"for": "1s"},
            "loop_lag": "off",
        }
    }  # fmt: skip
    dying = {"command": {"argv": ["/bin/sh", "-c", "exit 3"]}, "restart": {**QUICK, "max_attempts": 8}}
    port = free_port()
    async with ScriptedProvider(CHAT.ok) as far:
        config = parse_config(text_of(far.url, port, dying, ops=ops), "test.yaml", {})
        async with standing(config) as stand:
            expected = {"engine_restarts", "engine_down", "engines_down"}
            raised = stand.app.ops._alerts.firing
            await eventually(lambda: expected <= {alert.alert for alert in raised()}, within_s=15)
            alerts = await get(stand.url, "alerts")
            found = {alert["alert"]: alert for alert in alerts["firing"]}
            assert "of e (threshold 5)" in found["engine_restarts"]["summary"]
            assert found["engines_down"]["summary"].startswith("1 of 1 engines are down: e")
            assert "it ended with exit code 3" in found["engine_down"]["summary"]
            causes = {found[name]["cause"] for name in expected}
            assert causes == {"outage:near"}
            (incident,) = [one for one in await get(stand.url, "incidents") if one["id"] in causes]
            assert expected <= {one["alert"] for one in incident["alerts"]}
            await change(stand.url, "engines/stop", engine="e")
            await eventually(lambda: "engine_down" not in {alert.alert for alert in raised()})


def firing(stand: Stand) -> set[str]:
    return {notice.alert for notice in stand.app.ops._alerts.told()}


# operators


async def test_operator_stops_starts_and_restarts_an_engine() -> None:
    async with engine_behind(is_light=True) as stand:
        await until(stand, "running")
        first = (await process_of(stand)).pid
        answer = await change(stand.url, "engines/stop", engine="e")
        assert (answer["now"]["state"], answer["warnings"]) == ("stopped", [])
        again = await change(stand.url, "engines/stop", engine="e")
        assert again["warnings"] == ["e: it is already stopped"]
        await eventually(lambda: not psutil.pid_exists(first))
        assert (await admission(stand, "model=solo"))["reason"] == "engine_unhealthy"
        assert (await change(stand.url, "engines/start", engine="e"))["now"]["state"] == "starting"
        await until(stand, "running")
        second = (await process_of(stand)).pid
        await change(stand.url, "engines/restart", engine="e")
        again = await change(stand.url, "engines/restart", engine="e")
        assert (again["now"]["state"], again["warnings"]) == ("restarting", ["e: it is already being restarted"])
        await until(stand, "running")
        assert (await process_of(stand)).pid not in (first, second)
        assert (await engine_of(stand))["restarts_ok"] == 1
        assert [each[1] for each in await audit(stand.url) if each[0].startswith("ann")] == [
            "engines.restart", "engines.restart", "engines.start", "engines.stop", "engines.stop",
        ]  # fmt: skip


async def test_unknown_engine_is_reported() -> None:
    async with engine_behind(standby=True) as stand:
        reply = await post(stand.url, "engines/start", engine="f")
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_engine")
        assert "no engine is named 'f'" in reply.json["error"]["message"]


@pytest.mark.parametrize("name", ["; touch pwned", "../e", "$(id)", "e\n", "E" * 64])
async def test_name_from_outside_reaches_no_command(name: str) -> None:
    async with engine_behind(standby=True) as stand:
        assert (await post(stand.url, "engines/start", engine=name)).status == 404
        assert (await post(stand.url, "engines/start", engine="e", command=["/bin/sh"])).status == 422
        assert (await engine_of(stand))["state"] == "stopped"


# admission


async def test_admission_states_the_reason_of_a_refusal() -> None:
    async with engine_behind(standby=True) as stand:
        found = await admission(stand, "model=nobody")
        assert (found["admitted"], found["reason"], found["deployment"]) == (False, "unknown_model", None)
        found = await admission(stand, "model=gpt")
        assert (found["admitted"], found["deployment"]) == (True, "one/gpt")
        assert found["engines"] == [{"engine": "e", "deployment": "near/gpt", "state": "stopped"}]
        await change(stand.url, "breakers/force-open", deployment="one/gpt")
        assert (await admission(stand, "model=gpt"))["reason"] == "engine_unhealthy"
        await change(stand.url, "breakers/force-open", deployment="two/claude")
        assert (await admission(stand, "model=claude"))["reason"] == "breaker_open"
        await change(stand.url, "breakers/reset", deployment="two/claude")
        await change(stand.url, "deployments/drain", deployment="two/claude")
        assert (await admission(stand, "model=claude"))["reason"] == "deployment_held"
        stand.app.gateway.is_leaving = True
        assert (await admission(stand, "model=gpt"))["reason"] == "draining"
        stand.app.gateway.is_leaving = False


async def test_post_starts_a_spare_engine_where_the_config_allows_it() -> None:
    async with engine_behind(is_light=True, standby=True, auto_provision=True) as stand:
        for query in ("model=solo", "model=solo&auto_provision=true"):
            found = await admission(stand, query)
            assert (found["admitted"], found["standby"], found["provisioned"]) == (False, "e", None)
        assert (await engine_of(stand))["state"] == "stopped"
        assert events(stand) == []
        answer = await change(stand.url, "admit", model="solo", reason="more load")
        assert (answer["now"]["provisioned"], answer["warnings"]) == ("e", [])
        await until(stand, "running")
        assert (await admission(stand, "model=solo"))["admitted"]
        again = await change(stand.url, "admit", model="solo")
        assert again["now"]["provisioned"] is None
        assert again["warnings"] == ["no engine was started: calls are admitted"]
        assert ("ann from 127.0.0.1", "engines.provision", "solo", "more load") in await audit(stand.url)


async def test_spare_engine_that_the_config_does_not_name_for_it_is_not_started() -> None:
    async with engine_behind(standby=True) as stand:
        answer = await change(stand.url, "admit", model="solo")
        assert answer["warnings"] == ["no engine was started: the model has no stopped standby engine"]
        assert (await engine_of(stand))["state"] == "stopped"


async def test_get_starts_a_standby_engine_only_if_config_and_query_allow_it() -> None:
    async with engine_behind(is_light=True, standby=True, auto_provision="on_get") as stand:
        assert (await admission(stand, "model=solo"))["standby"] == "e"
        head = await ask(stand.url, "/admin/admit?model=solo&auto_provision=true", headers=HERE, method="HEAD")
        assert head.status == 200
        assert (await engine_of(stand))["state"] == "stopped"
        found = await admission(stand, "model=solo&auto_provision=true")
        assert found["provisioned"] == "e"
        await until(stand, "running")
        (entry,) = [each for each in await audit(stand.url) if each[1] == "engines.provision"]
        assert entry == ("ann from 127.0.0.1", "engines.provision", "e", "GET /admin/admit for solo")


async def test_get_of_a_viewer_or_with_a_cookie_starts_nothing() -> None:
    """A viewer may not change anything, and any page on this host can make a browser send a GET with its cookie."""
    cookie = Credential.of("operator", "operator", SHARED)
    async with engine_behind(is_light=True, standby=True, auto_provision="on_get") as stand:
        strangers: tuple[dict[str, str], ...] = (
            bearer(VIEWER),
            {"cookie": f"{cookie.cookie_name}={cookie.new_cookie(time.time())}"},
        )
        for who in strangers:
            headers = {"host": "localhost", **who}
            path = "/admin/admit?model=solo&auto_provision=true"
            found = await ask(stand.url, path, headers=headers, method="GET")
            assert (found.status, found.json["standby"], found.json["provisioned"]) == (200, "e", None)
        assert (await engine_of(stand))["state"] == "stopped"


async def test_standby_engine_stays_down_while_a_deployment_of_the_model_is_available() -> None:
    async with engine_behind(is_light=True, standby=True, auto_provision=True) as stand:
        found = await admission(stand, "model=gpt")
        assert (found["admitted"], found["standby"]) == (True, None)


# the process as a whole


async def test_engine_ends_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    port = free_port()
    engine = {"command": {"argv": [sys.executable, "-I", "-S", "-c", LIGHT, str(port)]}}
    text = text_of("http://127.0.0.1:9", port, engine, ops={"store": str(tmp_path / "state")})
    async with serving(tmp_path / "guard.yaml", text) as served:
        await eventually(lambda: is_listening(port), within_s=10)
        served.signal(signal.SIGKILL)
        await served.exit_code()
        await eventually(lambda: not is_listening(port))


def is_listening(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
