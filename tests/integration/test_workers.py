"""A gateway with two worker processes: what they share, their metrics together, and what happens if one fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from aiohttp import ClientSession

from llm_guard.config import ConfigError
from llm_guard.mock.provider import MockProvider
from tests.admin_client import HOST, look
from tests.chaos.process import outcome_of, write
from tests.chaos.wire import Connection, ask, fetch
from tests.fakes.client import raw_request
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually
from tests.integration.worker_processes import (
    change,
    digests,
    eventually_metric,
    gateway,
    is_running,
    kill,
    modes,
    other_digest,
    parent_of,
    process,
    replaced,
    settled,
    stream,
    text_of,
    until,
)
from tests.tokens import BEARER
from tests.tools import need


async def test_metrics_are_the_sums_of_both_workers(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        await stand.spread()
        made = await stand.metric("calls_total", model="gpt", outcome="ok")
        for _ in range(20):
            assert (await stand.call()).status == 200
        assert await stand.metric("calls_total", model="gpt", outcome="ok") == made + 20


def test_page_of_several_workers_has_no_mistake(tmp_path: Path) -> None:
    async def page() -> bytes:
        async with gateway(tmp_path) as stand:
            await stand.spread()
            return (await fetch(f"{stand.admin_url}/metrics")).body

    checked = subprocess.run(
        [need("promtool"), "check", "metrics"], input=asyncio.run(page()), capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


async def test_breakers_of_both_open_together(tmp_path: Path) -> None:
    async with gateway(tmp_path, breaker={"consecutive_failures": 5}) as stand:
        await stand.spread()
        stand.provider.switch("gpt", "status:503")
        for _ in range(12):
            await stand.call()
        await settled(stand, ["open", "open"])
        assert await stand.metric("breaker_state", deployment="one/gpt", state="open") == 1


async def test_forced_breaker_holds_at_both_and_survives_a_restarted_worker(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        reply = await change(stand, "/admin/breakers/force-open", deployment="one/gpt", **{"for": "10m"})
        assert reply.status == 200, reply.text
        await settled(stand, ["forced_open", "forced_open"])
        await kill(stand, 2)
        assert await stand.states() == ["forced_open", "forced_open"]


async def test_change_of_what_is_not_shared_is_made_at_both(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        reply = await change(stand, "/admin/log-levels", logger="llm_guard.fleet", level="error")
        assert reply.status == 200, reply.text
        pages = [json.dumps(await stand.at(number, "/admin/log-levels")) for number in (1, 2)]
        assert all('"llm_guard.fleet"' in page for page in pages)
        records = await stand.at(1, "/admin/audit")
        found = re.findall(r"operator from [^\"]*", json.dumps(records))
        assert found == ["operator from 127.0.0.1"] * 2


async def test_killed_worker_loses_its_own_calls_alone_and_comes_back(tmp_path: Path) -> None:
    async with gateway(tmp_path, tokens=60, token_delay_s=0.05) as stand:
        await stand.spread()
        before = await stand.metric("calls_total", model="gpt", outcome="ok")
        streams = [asyncio.ensure_future(stream(stand)) for _ in range(30)]
        await eventually_metric(stand, 30, "in_flight_calls", model="gpt")
        running = {number: (await stand.at(number, "/admin/replicas")) for number in (1, 2)}
        of_two = next(one["in_flight"] for one in running[2]["replicas"] if one["is_this"])
        await kill(stand, 2)
        whole = [reply.is_whole for reply in await asyncio.gather(*streams)]
        assert whole.count(False) == of_two
        assert 0 < of_two < 30
        assert await stand.metric("calls_total", model="gpt", outcome="ok") == before + 30 - of_two
        assert await stand.metric("worker_restarts_total", reason="exit") == 1
        assert await stand.metric("workers_ready") == await stand.metric("workers") == 2
        await stand.spread()


async def test_blocked_worker_is_killed_and_restarted(tmp_path: Path) -> None:
    async with gateway(tmp_path, hangs_after=4) as stand:
        first, second = [worker["pid"] for worker in await stand.workers()]
        os.kill(second, signal.SIGSTOP)
        await replaced(stand, second)
        assert (await stand.workers())[0]["pid"] == first
        assert await stand.metric("worker_restarts_total", reason="hang") == 1


async def test_worker_that_keeps_to_another_config_is_replaced(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        assert stand.parent is not None
        supervisor = stand.parent.supervisor
        digest, supervisor.reloads.digest = supervisor.reloads.digest, "of the config in use"
        await eventually(lambda: supervisor.restarts["config"], 30.0)
        supervisor.reloads.digest = digest
        await eventually(lambda: len(supervisor.ready()) == 2, 30.0)
        assert await stand.metric("worker_restarts_total", reason="config") >= 1
        assert await stand.metric("worker_restarts_total", reason="exit") == 0


async def test_drain_waits_for_the_calls_of_both(tmp_path: Path) -> None:
    async with process(tmp_path, tokens=20, token_delay_s=0.1) as (served, stand):
        streams = [asyncio.ensure_future(stream(stand)) for _ in range(10)]
        await eventually_metric(stand, 10, "in_flight_calls", model="gpt")
        served.signal(signal.SIGTERM)
        assert all(reply.is_whole for reply in await asyncio.gather(*streams))
        assert await served.exit_code(20) == 0


async def test_second_signal_ends_the_running_calls(tmp_path: Path) -> None:
    async with process(tmp_path, tokens=200, token_delay_s=0.2) as (served, stand):
        streams = [asyncio.ensure_future(stream(stand)) for _ in range(6)]
        await eventually_metric(stand, 6, "in_flight_calls", model="gpt")
        served.signal(signal.SIGTERM)

        async def is_draining() -> bool:
            return (await fetch(f"{stand.admin_url}/readyz")).status == 503

        await until(is_draining)
        served.signal(signal.SIGTERM)
        assert await served.exit_code(30) == 0
        assert not any(reply.is_whole and b"[DONE]" in reply.body for reply in await asyncio.gather(*streams))


async def test_workers_are_gateways_of_the_fleet_in_the_config(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with gateway(tmp_path, fleet={"store": server.url, "name": "both"}) as stand:

            async def is_so() -> bool:
                pages = [await stand.at(number, "/admin/replicas") for number in (1, 2)]
                return [(page["name"], len(page["replicas"])) for page in pages] == [("both", 2)] * 2

            await until(is_so)


async def test_no_call_waits_for_a_parent_that_is_suspended_and_no_worker_is_killed_after_it(tmp_path: Path) -> None:
    async with process(tmp_path) as (served, stand):
        before = [worker["pid"] for worker in await stand.workers()]
        served.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2.0)  # the longest that its workers wait for a reply is 0.3 s
            assert {(await stand.call()).status for _ in range(20)} == {200}
        finally:
            served.signal(signal.SIGCONT)
        await eventually_metric(stand, 1, "fleet_store_up")
        assert [worker["pid"] for worker in await stand.workers()] == before
        assert await stand.metric("worker_restarts_total") == 0


async def test_events_are_streamed_over_a_web_socket(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand, ClientSession() as session:
        url = stand.admin_url.replace("http:", "ws:")
        async with session.ws_connect(f"{url}/admin/events/ws", headers=BEARER) as socket:
            assert "hello" in await socket.receive_str(timeout=10)
            await change(stand, "/admin/log-levels", logger="llm_guard.fleet", level="error")
            assert "log-levels" in await socket.receive_str(timeout=10)


async def test_no_module_in_the_working_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    async with gateway(tmp_path) as stand:
        assert len(await stand.workers()) == 2


async def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    async with process(tmp_path) as (served, stand):
        pids = [worker["pid"] for worker in await stand.workers()]
        served.process.kill()
        await served.process.wait()
        await eventually(lambda: not any(map(is_running, pids)), within_s=20)


async def test_reload_changes_both_or_none(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        before = await digests(stand)
        write(stand.path, text_of(stand.provider, tmp_path, models={"new": {"deployments": [{"upstream": "one"}]}}))
        after = await other_digest(stand, before)
        write(stand.path, "models: [")
        await eventually_metric(stand, 0, "config_last_reload_successful")
        assert await digests(stand) == after
        await kill(stand, 1)
        assert await digests(stand) == after, "a worker that restarts gets the config in use, not the file's"
        reply = await change(stand, "/admin/config/rollback")
        assert reply.status in (200, 409), reply.text


async def test_operator_can_reload_and_roll_back(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        before = await digests(stand)
        text = text_of(stand.provider, tmp_path, models={"new": {"deployments": [{"upstream": "one"}]}})
        write(stand.path, text)
        reply = await change(stand, "/admin/config/reload")
        assert reply.status == 200, reply.text
        after = await other_digest(stand, before)
        reply = await change(stand, "/admin/config/rollback")
        assert reply.status == 200, reply.text
        assert await other_digest(stand, after) == before


async def test_port_that_is_taken_is_said_at_start(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        server = {"port": int(stand.calls_url.rpartition(":")[2])}
        path = write(tmp_path / "other.yaml", text_of(stand.provider, tmp_path, server=server))
        with pytest.raises(OSError, match="in use"):
            await parent_of(path).start()
        code, said = await outcome_of(path)
        assert (code, "cannot listen on" in said, "Traceback" in said) == (1, True, False), said
        alone = text_of(stand.provider, tmp_path, server={**server, "workers": 1})
        code, said = await outcome_of(write(path, alone))
        assert (code, "cannot listen on" in said) == (1, True), said


async def test_config_that_a_worker_cannot_use_is_an_error_of_the_start(tmp_path: Path) -> None:
    key = {"one": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_file": str(tmp_path / "none")}}
    async with MockProvider() as provider:
        path = write(tmp_path / "gateway.yaml", text_of(provider, tmp_path, upstreams=key))
        with pytest.raises(ConfigError, match="api_key_file"):
            await parent_of(path).start()
        code, said = await outcome_of(path)
    assert (code, "api_key_file" in said, "Traceback" in said) == (2, True, False), said


@pytest.mark.parametrize(("folder", "reason"), [("f" * 80, "path is too long"), ("none", "No such file")])
async def test_folder_that_cannot_have_sockets_is_an_error_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, reason: str
) -> None:
    (tmp_path / ("f" * 80)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    async with MockProvider() as provider:
        path = write(tmp_path / "gateway.yaml", text_of(provider, tmp_path))
        with pytest.raises(ConfigError, match=rf"server.workers: .*TMPDIR.*{reason}"):
            await parent_of(path).start()
    assert modes(tmp_path / folder, "*") == {}


async def test_stop_frees_both_ports_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with gateway(tmp_path) as stand:
        (folder,) = modes(tmp_path, "llm-guard-*").items()
        assert folder[1] == 0o700
        assert list(modes(tmp_path, "llm-guard-*/*").values()) == [0o600, 0o600]
    assert modes(tmp_path, "llm-guard-*") == {}
    for url in stand.urls:
        with pytest.raises(ConnectionRefusedError):
            await fetch(f"{url}/healthz")


async def test_readiness_health_and_tokens(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        assert (await fetch(f"{stand.admin_url}/healthz")).text == "ok\n"
        assert (await fetch(f"{stand.admin_url}/readyz")).text == "ready\n"
        assert (await fetch(f"{stand.admin_url}/workers")).status == 401
        assert (await look(stand.admin_url, "/workers/3/admin/health")).status == 503
        replicas = [await stand.at(number, "/admin/replicas") for number in (1, 2)]
        names = [one["id"] for page in replicas for one in page["replicas"] if one["is_this"]]
        assert [name.rpartition(":")[2] for name in names] == ["worker-1", "worker-2"]
        assert (await ask(stand.admin_url, "/workers/2/admin/log-levels", b"{}", HOST)).status == 405
        assert (await look(stand.admin_url, "/dashboard")).status == 200
        notices = [(await stand.at(number, "/admin/metrics"))["notice"][0] for number in (1, 2)]
        assert [notice.partition(":")[0] for notice in notices] == ["This is worker 1 of 2", "This is worker 2 of 2"]
        async with Connection(stand.admin_url) as connection:
            connection.writer.write(raw_request("/admin/events", b"", HOST, "GET"))
            head = await connection.head()
            assert head.status == 200
            assert b"hello" in await connection.reader.readuntil(b"\n\n")
