"""The config as operators see and change it while the gateway runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llm_guard.config import Config
from llm_guard.config.clients import ClientKey
from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.stand import Stand, config_text, facing
from tests.fakes.provider import ScriptedProvider
from tests.fakes.waiting import eventually
from tests.integration.operating import audit, change, get, post, running

KEY = "sk-SHOWN-0123456789"


def text(url: str, idle: str = "5s", model: str = "a", **sections: Any) -> str:
    upstreams = {"one": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": KEY}}
    models = {"gpt": {"deployments": [{"upstream": "one", "model": model}]}}
    return config_text(url, timeout={"idle": idle}, upstreams=upstreams, models=models, **sections)


async def idle_s(url: str) -> float:
    return float((await get(url, "config"))["config"]["defaults"]["timeout"]["idle"])


async def test_running_config_is_shown_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text("http://127.0.0.1:9"))
    async with running(path) as stand:
        shown = await get(stand.url, "config")
        assert (shown["source"], shown["problems"], shown["adopted"]["how"]) == (str(path), [], "start")
        assert shown["config"]["upstreams"]["one"]["api_key"] == "***"
        assert KEY not in json.dumps(shown)


async def test_reload_responds_with_its_changes(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text("http://127.0.0.1:9"))
    async with running(path) as stand:
        path.write_text(text("http://127.0.0.1:9", "7s", server={"port": 1}).replace(KEY, "sk-SHOWN-another"))
        answer = await change(stand.url, "config/reload", reason="slower provider")
        changes = {each["key"]: (each["before"], each["after"]) for each in answer["now"]["changes"]}
        assert changes == {
            "server.port": (0, 1),
            "upstreams.one.api_key": ("***", "***"),
            "defaults.timeout.idle": (5.0, 7.0),
        }
        assert answer["warnings"] == ["server.port: the change needs a restart"]
        assert await idle_s(stand.url) == 7.0
        assert await audit(stand.url) == [("ann from 127.0.0.1", "config.reload", str(path), "slower provider")]
        assert "SHOWN" not in json.dumps(await get(stand.url, "audit"))


async def test_invalid_file_is_refused_with_its_problems_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text("http://127.0.0.1:9"))
    async with running(path) as stand:
        path.write_text("models:\n  gpt: 7\n")
        reply = await post(stand.url, "config/reload")
        assert (reply.status, reply.json["error"]["code"]) == (422, "invalid_config")
        assert f"{path}:2: models.gpt" in reply.json["error"]["message"]
        shown = await get(stand.url, "config")
        assert any("models.gpt" in line for line in shown["problems"])
        assert await idle_s(stand.url) == 5.0
        assert await audit(stand.url) == []


async def test_rollback_leads_to_the_config_before_and_the_file_is_read_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(text(provider.url, model="first"))
        async with running(path) as stand:
            path.write_text(text(provider.url, model="second"))
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).headers["x-llm-guard-deployment"] == "one/second"
            await change(stand.url, "config/rollback")
            assert (await CHAT.ask(stand.url)).headers["x-llm-guard-deployment"] == "one/first"
            history = await get(stand.url, "config/history")
            assert [each["how"] for each in history["history"]] == ["rollback", "reload", "start"]
            assert history["rollback_to"] is None
            assert (await post(stand.url, "config/rollback")).status == 409
            path.write_text(text(provider.url, model="third"))
            await eventually(lambda: stand.app.reloads.current.by == "file")
            assert (await CHAT.ask(stand.url)).headers["x-llm-guard-deployment"] == "one/third"


async def test_overrides_of_operators_outlive_a_reload_and_limits_do_not(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(text(provider.url))
        async with running(path) as stand:
            await change(stand.url, "deployments/drain", deployment="one/a")
            await change(stand.url, "breakers/force-open", upstream="two")
            await change(stand.url, "limits", deployment="one/a", concurrency=1)
            path.write_text(text(provider.url, "7s"))
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).status == 503
            assert next(each for each in await get(stand.url, "deployments") if each["upstream"] == "two")["host"] == (
                "forced_open"
            )
            assert not any(each["is_changed"] for each in await get(stand.url, "limits"))
            assert [what for _, what, *_ in await audit(stand.url)][:2] == ["config.reload", "limits.reset"]


async def test_override_on_a_target_that_a_reload_removes_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(text(provider.url))
        async with running(path) as stand:
            await change(stand.url, "deployments/drain", deployment="one/a")
            await change(stand.url, "breakers/force-open", deployment="one/a")
            path.write_text(text(provider.url, model="b"))
            await change(stand.url, "config/reload")
            lost = [(who, what, why) for who, what, _, why in await audit(stand.url) if who == "reload"]
            assert sorted(lost) == [
                ("reload", "breakers.reset", "the new config no longer has it"),
                ("reload", "deployments.uncordon", "the new config no longer has the deployment"),
            ]
            await change(stand.url, "config/rollback")
            assert (await CHAT.ask(stand.url)).status == 200


async def test_deployment_that_changes_its_address_stays_drained_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider, ScriptedProvider(CHAT.ok) as other:
        path.write_text(text(provider.url))
        async with running(path) as stand:
            await change(stand.url, "deployments/drain", deployment="one/a")
            path.write_text(text(other.url))
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).status == 503


WEAK = "\udcff"
"""Cannot be encoded as UTF-8."""


def no_table(*_args: object) -> Any:
    raise KeyError("a bug")


@pytest.mark.parametrize("where", ["table", "client keys", "operator's token", "traces"])
async def test_reload_that_raises_something_unforeseen_changes_nothing(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(text(provider.url))
        async with running(path) as stand:
            await change(stand.url, "limits", deployment="one/a", concurrency=7)
            before = running_by(stand)
            with monkeypatch.context() as patch:
                patch.setattr(stand.app.reloads, "_adapt", partial(broken, where))
                patch.setattr("llm_guard.admin.tracing.spans.Spans", no_table)
                if where == "table":
                    patch.setattr("llm_guard.app.compile_routes", no_table)
                path.write_text(text(provider.url, "7s", model="b", server={"keep_alive": "9s"}))
                reply = await post(stand.url, "config/reload")
            assert (reply.status, running_by(stand)) == (500, before)
            assert await stand.metric("llm_guard_config_last_reload_successful") == 0
            (problem,) = (await get(stand.url, "config"))["problems"]
            assert "the old one stays in use" in problem
            assert (await CHAT.ask(stand.url)).headers["x-llm-guard-deployment"] == "one/a"
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).headers["x-llm-guard-deployment"] == "one/b"
            assert await stand.metric("llm_guard_config_last_reload_successful") == 1
            assert (await get(stand.url, "config"))["problems"] == []


def broken(where: str, config: Config) -> Config:
    """Makes the config invalid in a way that validation would not allow."""
    server, ops = config.server, config.ops
    if where == "client keys":
        keys = (ClientKey.model_construct(name="app", key=WEAK),)
        return config.model_copy(update={"server": server.model_copy(update={"client_keys": keys})})
    if where == "operator's token":
        return config.model_copy(update={"ops": ops.model_copy(update={"token": WEAK})})
    traces = ops.traces.model_copy(update={"endpoint": "http://127.0.0.1:9"})
    return config.model_copy(update={"ops": ops.model_copy(update={"traces": traces})})


def running_by(stand: Stand) -> list[object]:
    """Returns everything that a reload would change."""
    app = stand.app
    (_, listener) = app._listeners[0]
    settings = [(deployment.breaker.settings, deployment.gates.settings) for deployment in app.gateway.deployments()]
    parts = [app.config, app.gateway.table, app.gateway._body_limits, app.gateway._clients._known, app.ops._site.guard]
    ops = [app.ops._traces._settings, app.ops._limits._wanted, app.ops._traces.tracer, app.ops.overview._models]
    return [*parts, *ops, settings, listener.settings]


@pytest.mark.parametrize(
    ("content", "is_valid", "keys"),
    [
        (text("http://127.0.0.1:9"), True, []),
        (text("http://127.0.0.1:9").replace(KEY, "${SHOWN_PROBE}"), True, []),
        ("models:\n  gpt: {deploymints: []}\n", False, ["models.gpt.deployments", "models.gpt.deploymints"]),
        ("{", False, [""]),
        ("", False, [""]),
        ("a: &a [*a]", False, [""]),
    ],
)
async def test_text_is_checked_and_nothing_is_changed(
    content: str, is_valid: bool, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOWN_PROBE", "sk-SHOWN-probed-value")
    async with facing(CHAT.ok) as (stand, _):
        reply = await post(stand.url, "config/validate", text=content, reason=...)
        assert reply.status == 200, reply.text
        assert reply.json["is_valid"] == is_valid, reply.text
        assert {*keys} <= {each["key"] for each in reply.json["problems"]}
        assert "SHOWN-probed" not in reply.text
        assert await audit(stand.url) == []
        assert len((await get(stand.url, "config/history"))["history"]) == 1


async def test_gateway_without_a_file_reports_that() -> None:
    async with facing(CHAT.ok) as (stand, _):
        assert (await get(stand.url, "config"))["source"] is None
        reply = await post(stand.url, "config/reload")
        assert (reply.status, reply.json["error"]["code"]) == (409, "nothing_to_do")


async def test_signal_file_and_operator_use_the_same_path(tmp_path: Path) -> None:
    import signal

    path = tmp_path / "guard.yaml"
    async with serving(path, text("http://127.0.0.1:9", ops={"store": str(tmp_path / "state")})) as served:
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        path.write_text(text("http://127.0.0.1:9", "8s", ops={"store": str(tmp_path / "state")}))
        await served.logged("reloaded", 2)
        await change(served.url, "config/reload")
        lines = [await served.logged("reloaded", count) for count in (1, 2, 3)]
        assert [(line["trigger"], line["changes"]) for line in lines] == [
            ("signal", 0), ("file", 1), ("ann from 127.0.0.1", 0),
        ]  # fmt: skip


async def test_automatic_reload_is_in_the_audit_log_with_its_changes(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text("http://127.0.0.1:9"))
    async with running(path) as stand:
        path.write_text(text("http://127.0.0.1:9", "7s"))
        await eventually(lambda: stand.app.reloads.current.by == "file")
        stand.app.reloads.ask()
        await eventually(lambda: stand.app.reloads.current.by == "signal")
        signalled, by_file = await get(stand.url, "audit")
        assert [(each["actor"], each["action"], each["target"], each["reason"]) for each in (by_file, signalled)] == [
            ("file", "config.reload", str(path), "the file has changed"),
            ("signal", "config.reload", str(path), "SIGHUP"),
        ]  # fmt: skip
        assert [each["key"] for each in by_file["detail"]["changes"]] == ["defaults.timeout.idle"]
        assert signalled["detail"] == {"digest": by_file["detail"]["digest"], "changes": []}
        await change(stand.url, "config/reload")
        assert [who for who, *_ in await audit(stand.url)] == ["ann from 127.0.0.1", "signal", "file"]


async def test_rollback_is_shown_as_long_as_it_lasts(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text("http://127.0.0.1:9"))
    async with running(path) as stand:
        path.write_text(text("http://127.0.0.1:9", "7s"))
        answer = await change(stand.url, "config/reload")
        assert (answer["warnings"], (await get(stand.url, "config"))["warnings"]) == ([], [])
        assert await stand.metric("llm_guard_config_rolled_back") == 0
        answer = await change(stand.url, "config/rollback")
        assert answer["warnings"] == (await get(stand.url, "config"))["warnings"]
        assert "a restart" in answer["warnings"][0]
        assert await stand.metric("llm_guard_config_rolled_back") == 1
        assert await stand.metric("llm_guard_config_last_reload_successful") == 1
        assert (await get(stand.url, "alerts"))["firing"] == []
        answer = await change(stand.url, "config/reload")
        assert (answer["warnings"], await stand.metric("llm_guard_config_rolled_back")) == ([], 0)
