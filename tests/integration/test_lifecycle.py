"""A gateway's life cycle: start, reload, drain and end, and its public metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llm_guard.admin.control_plane import ControlPlane
from llm_guard.app import create_app
from llm_guard.event_loop import run
from tests.chaos.forms import CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.process import Served, outcome_of, serving, write
from tests.chaos.stand import config_of, config_text, facing, total
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.provider import END, Close, Hold, Pause, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "guard.yaml"


# starts


async def test_start_logs_one_line_with_its_address(path: Path) -> None:
    async with serving(path, config_text("http://127.0.0.1:9")) as served:
        assert re.fullmatch(r"llm-guard \S+ listens on http://127\.0\.0\.1:\d+\n", served.said)
        assert (await fetch(f"{served.url}/healthz")).status == 200
        assert (await fetch(f"{served.url}/readyz")).status == 200
        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0
    assert served.complaints == []


async def test_bad_config_ends_it_with_file_and_line(path: Path) -> None:
    text = "upstreams:\n  one: {dialect: openai, base_url: 'http://localhost'}\nmodels:\n  gpt:\n    deploymints: []\n"
    code, said = await outcome_of(write(path, text))
    assert code == 2
    assert f"{path}:5" in said
    assert "deploymints" in said
    assert "Traceback" not in said


async def test_missing_config_ends_it(path: Path) -> None:
    code, said = await outcome_of(path)
    assert code == 2
    assert str(path) in said
    assert "Traceback" not in said


@pytest.mark.parametrize("section", ["server", "ops"])
async def test_port_in_use_ends_it(path: Path, section: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sections: dict[str, Any] = {section: {"port": port}}
        code, said = await outcome_of(write(path, config_text("http://127.0.0.1:9", **sections)))
        assert code == 1
        assert "Traceback" not in said


# drains


def test_address_that_is_taken_while_the_gateway_starts_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        async def be_slow(_side: ControlPlane) -> None:
            other.listen()

        monkeypatch.setattr(ControlPlane, "start", be_slow)
        server = {"port": other.getsockname()[1]}
        app = create_app(config_of("http://127.0.0.1:9", server=server, ops={"store": str(tmp_path)}))
        with pytest.raises(OSError, match="in use"):
            run(app.start())


def gated(form: Form, gate: asyncio.Event) -> list[Step]:
    """A stream that pauses after its first token."""
    return [*form.good_stream[:-2], Pause(gate), *form.good_stream[-2:]]


async def refuses_connections(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def until_it_refuses(url: str) -> None:
    async with asyncio.timeout(10):
        while not await refuses_connections(url):  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.02)


async def test_sigterm_under_load_finishes_every_call(path: Path) -> None:
    gate = asyncio.Event()
    server = {"drain": "20s", "drain_delay": "1500ms"}
    streams = [CHAT, MESSAGES] * 10
    provider = ScriptedProvider(gated(CHAT, gate))
    async with provider, serving(path, config_text(provider.url, server=server)) as served:
        running = [asyncio.create_task(CHAT.ask(served.url, stream=True)) for _ in streams]
        await eventually(lambda: len(provider.requests) == len(streams))

        served.signal(signal.SIGTERM)
        await served.logged("draining")
        assert (await fetch(f"{served.url}/readyz")).status == 503
        assert (await fetch(f"{served.url}/healthz")).status == 200
        late = asyncio.create_task(CHAT.ask(served.url, stream=True))
        await eventually(lambda: len(provider.requests) == len(streams) + 1)

        await until_it_refuses(served.url)
        assert not any(each.done() for each in running)
        gate.set()
        replies = [*await asyncio.gather(*running), await late]
        assert all(reply.is_whole and reply.body == CHAT.stream_bytes for reply in replies)
        assert replies[-1].headers["connection"].lower() == "close"
        assert await served.exit_code() == 0
    assert served.complaints == []


async def test_drain_waits_for_running_calls_and_then_ends_those_left() -> None:
    gate = asyncio.Event()
    async with facing([Pause(gate), *CHAT.ok], [Hold()], server={"drain": "1m"}) as (stand, provider):
        quick = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: len(provider.requests) == 1)
        endless = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: len(provider.requests) == 2)
        stopping = asyncio.create_task(stand.app.stop())
        await eventually(lambda: stand.app.gateway.is_closed)
        gate.set()
        assert (await quick).status == 200
        assert [each.done() for each in (endless, stopping)] == [False, False]
        stand.app._is_told_to_hurry.set()
        reply = await endless
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "drain")
        await stopping


async def test_gateway_is_not_ready_for_a_while_before_it_takes_no_more_calls() -> None:
    async with facing(CHAT.ok, server={"drain_delay": "1m"}) as (stand, _):
        stopping = asyncio.create_task(stand.app.stop())
        await eventually(lambda: stand.app.gateway.is_leaving)
        assert (await fetch(f"{stand.url}/readyz")).status == 503
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        stand.app._is_told_to_hurry.set()
        await stopping


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_stream_that_outlasts_the_drain_ends_in_an_error_event(path: Path, form: Form) -> None:
    provider = ScriptedProvider([*form.good_stream[:-2], Hold()])
    async with provider, serving(path, config_text(provider.url, server={"drain": "300ms"})) as served:
        running = asyncio.create_task(form.ask(served.url, stream=True))
        await eventually(lambda: provider.requests)
        await asyncio.sleep(0.1)
        served.signal(signal.SIGTERM)
        reply = await running
        assert reply.status == 200
        assert not reply.is_whole
        assert "shutting down" in form.error_in(reply.events[-1])["message"]
        assert await served.exit_code() == 0
        assert await provider.closed_within(1)
        assert (await served.logged("call"))["outcome"] == "internal"


async def test_call_without_an_answer_that_outlasts_the_drain_is_refused(path: Path) -> None:
    provider = ScriptedProvider([Hold()])
    async with provider, serving(path, config_text(provider.url, server={"drain": "300ms"})) as served:
        running = asyncio.create_task(MESSAGES.ask(served.url))
        await eventually(lambda: provider.requests)
        served.signal(signal.SIGTERM)
        reply = await running
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "drain")
        assert reply.headers["x-should-retry"] == "true"
        assert MESSAGES.error_of(reply)["type"] == "overloaded_error"
        assert await served.exit_code() == 0
        assert await provider.closed_within(1)


async def test_kept_alive_connection_is_closed_by_a_drain_while_others_finish(path: Path) -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(CHAT.ok, gated(CHAT, gate))
    async with provider:
        config = config_text(provider.url, server={"drain": "20s"})
        async with serving(path, config) as served, Connection(served.url) as kept:
            assert (await kept.ask(CHAT.request())).status == 200
            running = asyncio.create_task(CHAT.ask(served.url, stream=True))
            await eventually(lambda: len(provider.requests) == 2)
            served.signal(signal.SIGTERM)
            await until_it_refuses(served.url)
            reply = await kept.ask(CHAT.request())
            assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "drain")
            assert reply.headers["x-should-retry"] == "true"
            assert await kept.is_closed()
            gate.set()
            assert (await running).body == CHAT.stream_bytes
            assert await served.exit_code() == 0


@pytest.mark.parametrize("server", [{"drain": "60s"}, {"drain": "60s", "drain_delay": "60s"}])
async def test_second_sigterm_hurries(path: Path, server: dict[str, str]) -> None:
    provider, limits = ScriptedProvider([*CHAT.good_stream[:-2], Hold()]), {"total": "60s"}
    async with provider, serving(path, config_text(provider.url, server=server, timeout=limits)) as served:
        running = asyncio.create_task(CHAT.ask(served.url, stream=True))
        await eventually(lambda: provider.requests)
        await asyncio.sleep(0.1)
        served.signal(signal.SIGTERM)
        await served.logged("draining")
        served.signal(signal.SIGTERM)
        reply = await running
        assert "shutting down" in CHAT.error_in(reply.events[-1])["message"]
        assert await served.exit_code() == 0


# reloads


def with_model(provider: ScriptedProvider, name: str, **sections: Any) -> str:
    return config_text(provider.url, models={name: {"deployments": [{"upstream": "one"}]}}, **sections)


async def status_of(served: Served, model: str) -> int:
    return (await ask(served.url, CHAT.path, json.dumps({"model": model}).encode())).status


async def reload_is_good(served: Served) -> float:
    return total((await fetch(f"{served.url}/metrics")).text, "llm_guard_config_last_reload_successful")


async def test_sighup_serves_the_new_models(path: Path) -> None:
    async with ScriptedProvider(CHAT.ok) as provider, serving(path, with_model(provider, "old")) as served:
        assert [await status_of(served, model) for model in ("old", "new")] == [200, 404]
        write(path, with_model(provider, "new"))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        assert [await status_of(served, model) for model in ("old", "new")] == [404, 200]


async def test_changed_file_is_reloaded_by_itself(path: Path) -> None:
    async with ScriptedProvider(CHAT.ok) as provider, serving(path, with_model(provider, "old")) as served:
        fresh = write(path.with_suffix(".new"), with_model(provider, "new"))
        os.replace(fresh, path)
        await served.logged("reloaded")
        assert [await status_of(served, model) for model in ("old", "new")] == [404, 200]
        assert await reload_is_good(served) == 1


async def test_invalid_file_changes_nothing_and_is_reported_by_line(path: Path) -> None:
    async with ScriptedProvider(CHAT.ok) as provider, serving(path, with_model(provider, "old")) as served:
        write(path, "upstreams:\n  one: {dialect: cobol}\n")
        served.signal(signal.SIGHUP)
        refused = await served.logged("reload failed: the new config is invalid, the old one stays in use")
        assert any(f"{path}:2" in problem for problem in refused["errors"])
        assert await status_of(served, "old") == 200
        assert await reload_is_good(served) == 0
        write(path, with_model(provider, "new"))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        assert await reload_is_good(served) == 1
        assert await status_of(served, "new") == 200


async def test_breaker_survives_a_reload(path: Path) -> None:
    breaker = {"consecutive_failures": 1, "open_for": "60s"}
    provider = ScriptedProvider([whole(503)], CHAT.ok)
    async with provider, serving(path, config_text(provider.url, breaker=breaker)) as served:
        assert await status_of(served, "gpt") == 503
        write(path, with_model(provider, "new", breaker=breaker))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        reply = await CHAT.ask(served.url)
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "breaker")
        assert await status_of(served, "new") == 200
        assert len(provider.requests) == 2


async def test_running_stream_outlives_the_reload_that_removes_its_model(path: Path) -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(gated(CHAT, gate))
    async with provider, serving(path, config_text(provider.url)) as served:
        running = asyncio.create_task(CHAT.ask(served.url, stream=True))
        await eventually(lambda: provider.requests)
        write(path, config_text(provider.url, models={"gpt": {"deployments": [{"upstream": "two"}]}}))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        gate.set()
        assert (await running).body == CHAT.stream_bytes


# admin pages and metrics


OPERATOR_PATHS = ("/healthz", "/readyz", "/metrics")


async def test_operator_paths_are_on_the_servers_port() -> None:
    async with facing(CHAT.ok) as (stand, _):
        assert len(stand.app.addresses) == 1
        assert [(await fetch(stand.url + each)).status for each in OPERATOR_PATHS] == [200, 200, 200]


async def test_operator_paths_are_on_their_own_port_alone_when_they_have_one() -> None:
    async with facing(CHAT.ok, ops={"port": 0}) as (stand, provider):
        calls, ops = stand.app.addresses
        assert [(await fetch(ops + each)).status for each in OPERATOR_PATHS] == [200, 200, 200]
        assert [(await fetch(calls + each)).status for each in OPERATOR_PATHS] == [404, 404, 404]
        assert (await CHAT.ask(ops)).status == 404
        assert not provider.connections
        assert (await CHAT.ask(calls)).status == 200


LABELS = {
    "calls": {"model", "outcome"},
    "attempts": {"deployment", "outcome"},
    "retries": {"deployment", "kind"},
    "fallbacks": {"model", "deployment"},
    "refusals": {"model", "reason"},
    "timeouts": {"deployment", "limit"},
    "call_duration_seconds": {"model", "outcome"},
    "time_to_first_token_seconds": {"model"},
    "upstream_duration_seconds": {"deployment", "outcome"},
    "overhead_seconds": {"model"},
    "retry_delay_seconds": {"deployment"},
    "breaker_state": {"deployment", "state"},
    "breaker_transitions": {"deployment", "to"},
    "last_success_timestamp_seconds": {"deployment"},
    "in_flight_calls": {"model"},
    "tokens": {"model", "direction"},
    "config_last_reload_successful": set(),
    "config_rolled_back": set(),
}
"""Every metric family, without `llm_guard_` and `_total`: dashboards and alerts depend on these names."""


async def traffic(url: str) -> list[Reply]:
    """Causes a retry, a fallback, a timeout, a stream, a refusal, and token counts."""
    return [
        await CHAT.ask(url),
        await CHAT.ask(url, stream=True),
        await ask(url, CHAT.path, b'{"model": "slow"}'),
        await ask(url, CHAT.path, b'{"model": "nobody"}'),
    ]


async def test_metrics_have_their_public_names_and_labels() -> None:
    two = [{"upstream": "one", "model": name} for name in ("first", "second")]
    models = {"gpt": {"deployments": two}, "slow": {"deployments": two[:1], "timeout": {"attempt": "100ms"}}}
    scripts = ([whole(503)], [whole(503)], CHAT.ok, CHAT.good_stream, [Hold()])
    async with facing(*scripts, models=models, retry={"max_attempts": 2}) as (stand, _):
        assert [reply.status for reply in await traffic(stand.url)] == [200, 200, 504, 404]
        await stand.idle()
        seen: dict[str, set[str]] = {}
        for family in text_string_to_metric_families((await fetch(f"{stand.url}/metrics")).text):
            if family.name.startswith("llm_guard_"):
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                seen[family.name.removeprefix("llm_guard_")] = labels
        shown = {name: labels for name, labels in seen.items() if not name.endswith("_created")}
        assert LABELS.items() <= shown.items()


async def test_counters_end_in_total() -> None:
    async with facing([Close()]) as (stand, _):
        await CHAT.ask(stand.url)
        await stand.idle()
        for family in text_string_to_metric_families((await fetch(f"{stand.url}/metrics")).text):
            if family.name.startswith("llm_guard_") and family.type == "counter":
                assert {sample.name for sample in family.samples} <= {f"{family.name}_total", f"{family.name}_created"}


async def test_names_under_a_pattern_share_one_series() -> None:
    models = {"llama-*": {"deployments": [{"upstream": "one"}]}}
    async with facing([stream_head(), chunk(CHAT.token + CHAT.end), END], models=models) as (stand, _):
        for number in range(20):
            body = json.dumps({"model": f"llama-{number}", "stream": True}).encode()
            assert (await ask(stand.url, CHAT.path, body)).status == 200
        assert await stand.metric("llm_guard_calls_total", model="llama-*", outcome="ok") == 20
        assert await stand.metric("llm_guard_attempts_total", deployment="one/llama-*", outcome="ok") == 20
        assert "llama-7" not in (await fetch(f"{stand.url}/metrics")).text
