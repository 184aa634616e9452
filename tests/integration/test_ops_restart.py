"""State that survives the kill of a process: alerts already sent and operator overrides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llm_guard.admin.api.history import SavedHistory
from llm_guard.admin.monitor.series_buffer import SavedSeries
from llm_guard.storage.snapshot_file import SnapshotFile
from tests.chaos.forms import CHAT
from tests.chaos.process import Served, serving
from tests.chaos.stand import config_text
from tests.fakes.provider import ScriptedProvider, whole
from tests.fakes.waiting import eventually
from tests.integration.operating import audit, change, get, running

LABEL = {"deployment": "one/gpt"}
HOUR = {"for": "1h"}


def text(folder: Path, port: int, url: str = "http://127.0.0.1:9", **sections: Any) -> str:
    ops = {"store": str(folder), **sections.pop("ops", {})}
    return config_text(url, server={"port": port}, ops=ops, **sections)


def a_port() -> int:
    """Returns a port on which no process listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def file_in(folder: Path) -> Path:
    (path,) = folder.glob("gateway-*.json")
    return path


def saved_state(folder: Path) -> dict[str, Any]:
    """Returns the state that a gateway saved for the next one; empty if there is none."""
    said: dict[str, Any] = json.loads(file_in(folder).read_bytes()) if [*folder.glob("gateway-*.json")] else {}
    return said


async def kill(served: Served) -> None:
    served.signal(signal.SIGKILL)
    await served.exit_code()


def sent(receiver: ScriptedProvider) -> list[tuple[str, str, str]]:
    """Returns state, id and start of every alert received."""
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]
    return [(each["state"], each["id"], each["since"]) for body in bodies for each in body["alerts"]]


async def test_alert_of_a_killed_process_is_resolved_by_the_next_and_notified_once(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    async with ScriptedProvider([whole(202)]) as receiver:
        ops = {"webhooks": [{"name": "pager", "format": "generic", "url": receiver.url}]}
        good = text(folder, port, ops=ops)
        async with serving(path, good) as served:
            path.write_text("models: 7")
            await eventually(lambda: bool(saved_state(folder).get("alerts", [])), within_s=10)
            await eventually(lambda: saved_state(folder)["alerts"][0]["is_told"], within_s=10)
            await kill(served)
        async with serving(path, good) as served:
            await eventually(lambda: len(sent(receiver)) == 2, within_s=10)
            assert (await get(served.url, "alerts"))["resolved"][0]["alert"] == "reload_failed"
            await eventually(lambda: saved_state(folder)["alerts"] == [], within_s=10)
            served.signal(signal.SIGTERM)
            assert await served.exit_code() == 0
        (firing, *first), (resolved, *second) = sent(receiver)
        assert (firing, resolved) == ("firing", "resolved")
        assert first == second


async def test_overrides_outlive_the_process_with_their_ends(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    config = text(folder, port)
    async with serving(path, config) as served:
        await change(served.url, "breakers/force-open", **HOUR, **LABEL)
        await change(served.url, "deployments/cordon", deployment="two/claude", **HOUR)
        await change(served.url, "limits", concurrency=7, **LABEL)
        await change(served.url, "alerts/silence", alert="breaker_open", **HOUR)
        await change(served.url, "log-levels", logger="llm_guard.proxy", level="debug")
        said = await overrides_of(served.url)
        await eventually(lambda: saved_state(folder).get("log_levels") == ["llm_guard.proxy"], within_s=10)
        before = saved_state(folder)
        await kill(served)
    assert [stat.S_IMODE(each.stat().st_mode) for each in folder.glob("gateway-*")] == [0o600]
    async with serving(path, config) as served:
        assert await overrides_of(served.url) == said
        assert said[:2] == [("one/gpt", "forced_open", "an outage", None), ("two/claude", "closed", None, "cordoned")]
        assert (await CHAT.ask(served.url)).status == 503
        assert (await audit(served.url))[0] == (
            "start", "log-levels.reset", "llm_guard.proxy", "the gateway was restarted",
        )  # fmt: skip
        await eventually(lambda: saved_state(folder)["log_levels"] == [], within_s=10)
        for name in ("forces", "holds", "silences"):
            (was,), (now,) = before[name], saved_state(folder)[name]
            assert now == {**was, "until": pytest.approx(was["until"], abs=1)}


async def test_modes_and_stopped_engines_outlive_the_process(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    engine = {"upstreams": ["one"], "command": {"argv": ["/bin/sleep", "1000"]}}
    models = {"gpt": {"deployments": [{"upstream": "one"}], "degraded": {"static_response": "later"}}}
    config = text(folder, port, engines={"sleeper": engine}, models=models)
    async with serving(path, config) as served:
        await change(served.url, "engines/stop", engine="sleeper")
        await change(served.url, "degraded/enter", **HOUR)
        await change(served.url, "degraded/exit", model="gpt")
        modes = await get(served.url, "degraded")
        await eventually(lambda: len(saved_state(folder).get("modes", [])) == 2, within_s=10)
        await kill(served)
    for _ in range(2):
        async with serving(path, config) as served:
            assert [each["state"] for each in await get(served.url, "engines")] == ["stopped"]
            now = await get(served.url, "degraded")
            assert [now["gateway"]["is_degraded"], now["gateway"]["reason"]] == [True, modes["gateway"]["reason"]]
            assert [(each["model"], each["is_degraded"], each["by"]) for each in now["models"]] == [
                ("gpt", False, "operator")
            ]
            served.signal(signal.SIGTERM)
            assert await served.exit_code() == 0
    async with serving(path, config) as served:
        await change(served.url, "engines/start", engine="sleeper")
        await eventually(lambda: saved_state(folder)["stopped"] == [], within_s=10)


async def overrides_of(url: str) -> list[object]:
    """Returns everything that an operator override has set."""
    deployments = [
        (each["deployment"], each["breaker"]["state"], each["breaker"]["reason"], each["hold"] and each["hold"]["kind"])
        for each in await get(url, "deployments")
    ]
    limits = [(each["deployment"], each["concurrency"]) for each in await get(url, "limits")]
    silences = [(each["alert"], each["operator"]) for each in (await get(url, "alerts"))["silences"]]
    return [*deployments, limits, silences]


async def test_withdrawn_override_is_not_restored(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "breakers/force-open", **LABEL)
        await change(stand.url, "deployments/drain", **LABEL)
        await eventually(lambda: len(saved_state(folder).get("holds", [])) == 1)
        await change(stand.url, "breakers/reset", **LABEL)
    async with running(path) as stand:
        one, *_ = await get(stand.url, "deployments")
        assert (one["breaker"]["state"], one["hold"]["operator"]) == ("closed", "ann from 127.0.0.1")


async def test_override_whose_time_or_deployment_is_gone_is_audited_as_over(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "breakers/force-open", **HOUR, **LABEL)
        await change(stand.url, "breakers/force-open", upstream="two")
        await change(stand.url, "deployments/drain", deployment="two/claude")
    was = saved_state(folder)
    was["forces"][0]["until"] = 1_000_000_000
    was["holds"][0]["label"] = "two/gone"
    file_in(folder).write_text(json.dumps(was))
    async with running(path) as stand:
        assert [(who, what, target) for who, what, target, _ in (await audit(stand.url))[:2]] == [
            ("expiry", "breakers.reset", "one/gpt"), ("reload", "deployments.uncordon", "two/gone"),
        ]  # fmt: skip
        one, two, *_ = await get(stand.url, "deployments")
        assert (one["breaker"]["state"], two["host"], two["hold"]) == ("closed", "forced_open", None)


async def test_limits_end_with_the_config_that_they_overrode(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "limits", concurrency=7, **LABEL)
    path.write_text(text(folder, port, retry={"max_attempts": 2}))
    async with running(path) as stand:
        assert not any(each["is_changed"] for each in await get(stand.url, "limits"))
        assert (await audit(stand.url))[0] == (
            "start",
            "limits.reset",
            "one/gpt",
            "the gateway was restarted with another config",
        )
    assert saved_state(folder)["limits"] == []


async def test_restart_that_undoes_a_rollback_is_in_the_trail(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        path.write_text(text(folder, port, retry={"max_attempts": 2}))
        await change(stand.url, "config/reload")
        await change(stand.url, "config/rollback")
    for _ in range(2):  # recorded only once
        async with running(path) as stand:
            assert [(who, what) for who, what, *_ in await audit(stand.url)] == [
                ("start", "config.reload"), ("ann from 127.0.0.1", "config.rollback"),
                ("ann from 127.0.0.1", "config.reload"),
            ]  # fmt: skip


async def test_unreadable_file_counts_as_missing_and_is_reported(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "deployments/drain", **LABEL)
    file_in(folder).write_text('{"holds": [{"label": 7}]}')
    async with running(path) as stand:
        (line,) = [line for line in stand.log if line["event"] == "operator state not restored"]
        assert "holds" in line["error"]
        assert all(each["hold"] is None for each in await get(stand.url, "deployments"))
    assert saved_state(folder)["holds"] == []


async def test_history_of_the_last_day_survives_a_restart(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    at = time.time() - 3600.0
    async with running(path) as stand:
        past = SavedSeries([at], [(2.0, 1.0, 0.5, 0.9, None, None)], {"gpt": [(2.0, 1.0, 0.5, 0.9, None, None)]})
        attempts = SavedSeries(past.at, past.total, {"one/gpt": past.total})
        stand.app.ops._history.restore(SavedHistory(past, attempts))
    async with running(path) as stand:
        day = await get(stand.url, "history?span=24h&deployment=one/gpt")
        assert day["deployment"]["calls_per_second"] == [2.0]
        assert (day["step_s"], day["at"], day["models"]["gpt"]["calls_per_second"]) == (60.0, [at], [2.0])
        assert (await get(stand.url, "history"))["at"] == []


async def test_gateway_without_operator_actions_writes_nothing(tmp_path: Path) -> None:
    path, folder = tmp_path / "guard.yaml", tmp_path / "state"
    path.write_text(text(folder, a_port()))
    async with running(path):
        pass
    assert not folder.exists()


async def test_gateways_with_one_folder_have_separate_state(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    paths = [tmp_path / "one.yaml", tmp_path / "other.yaml"]
    for path in paths:
        path.write_text(text(folder, a_port()))
    async with running(paths[0]) as one, running(paths[1]) as other:
        await change(one.url, "deployments/drain", **LABEL)
        await change(other.url, "breakers/force-open", **LABEL)
    async with running(paths[1]) as other:
        found, *_ = await get(other.url, "deployments")
        assert (found["breaker"]["state"], found["hold"]) == ("forced_open", None)


async def test_gateway_without_its_address_leaves_the_state_of_the_running_one(tmp_path: Path) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "deployments/drain", **LABEL)
        await eventually(lambda: len(saved_state(folder).get("holds", [])) == 1)
        with pytest.raises(OSError, match="use"):
            async with running(path):
                pass
        await change(stand.url, "deployments/uncordon", **LABEL)
    assert saved_state(folder)["holds"] == []


async def test_no_call_is_admitted_before_overrides_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder, port = tmp_path / "guard.yaml", tmp_path / "state", a_port()
    path.write_text(text(folder, port))
    async with running(path) as stand:
        await change(stand.url, "deployments/drain", **LABEL)
    read, is_reading, goes_on = SnapshotFile.read, threading.Event(), threading.Event()

    def slowly(file: SnapshotFile) -> bytes | None:
        is_reading.set()
        goes_on.wait(10)
        return read(file)

    monkeypatch.setattr(SnapshotFile, "read", slowly)
    stands = contextlib.AsyncExitStack()
    starting = asyncio.ensure_future(stands.enter_async_context(running(path)))
    await eventually(is_reading.is_set)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    goes_on.set()
    async with stands:
        assert (await CHAT.ask((await starting).url)).status == 503
