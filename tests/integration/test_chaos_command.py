"""`llm-guard chaos`: a config against stand-ins for its upstreams, each of which misbehaves in turn."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result

from llm_guard.cli.chaos import scenes
from llm_guard.cli.chaos.advice import advice_on
from llm_guard.cli.chaos.command import scenes_at_once
from llm_guard.cli.chaos.page import page_of
from llm_guard.cli.chaos.scenes import TROUBLES, ChaosResult, scenes_of
from llm_guard.cli.chaos.stand_ins import LEFT_OUT, on_stand_ins
from llm_guard.cli.main import main
from llm_guard.config import Config, parse_config
from tests.fakes.provider import ScriptedProvider, whole

ROOT = Path(__file__).parents[2]
KEY = "sk-that-must-not-leave-0123456789"
TEXT = f"""
server: {{client_keys: [{{name: app, key: {KEY}-app}}], host: 0.0.0.0}}
ops: {{token: {KEY}-ops, port: 9, webhooks: [{{url: "http://127.0.0.1:1/hook"}}], metrics: {{otlp: "http://127.0.0.1:1/x"}}}}
upstreams:
  one: {{dialect: openai, base_url: "https://one.example/v1", api_key: {KEY}}}
  two: {{dialect: openai, base_url: "https://two.example/v1", api_keys: [{{name: a, key: {KEY}-2}}]}}
  three: {{dialect: anthropic, base_url: "https://three.example"}}
  unused: {{dialect: openai, base_url: "https://unused.example/v1"}}
models:
  gpt-4o: {{deployments: [{{upstream: one}}, {{upstream: two, model: my-gpt}}], retry: {{max_attempts: 2}}}}
  alone: {{deployments: [{{upstream: two}}], cache: {{ttl: 1h}}}}
  "claude-*": {{deployments: [{{upstream: three}}]}}
"""
RESULT = ChaosResult(
    "one", "is down", "gpt-4o", 100, 1.0, 0.0, 0.05, 0.3, 1.2, 1000, 200, {"two/my-gpt": 100}, {}
)  # fmt: skip


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """The command silences the log of its process."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on latencies that the gateway has learned."""
    monkeypatch.setattr(scenes, "_WARM_UP_S", 0.1)


@pytest.fixture
def config() -> Config:
    return parse_config(TEXT, "guard.yaml", {})


def invoke(path: Path, *arguments: str, text: str = TEXT) -> Result:
    path.write_text(text)
    return CliRunner().invoke(main, ["chaos", "-c", str(path), *arguments], catch_exceptions=False)


# what is played


def test_each_upstream_that_a_model_leads_to_is_played_with_each_trouble(config: Config) -> None:
    first = [scene for scene in scenes_of(config) if scene.trouble is TROUBLES[0]]
    assert [(scene.upstream, scene.model, scene.called, scene.dialect) for scene in first] == [
        ("one", "gpt-4o", "gpt-4o", "openai"),
        ("two", "gpt-4o", "gpt-4o", "openai"),
        ("two", "alone", "alone", "openai"),
        ("three", "claude-*", "claude-chaos", "anthropic"),
    ]
    assert first[1].struck == {"my-gpt", "alone"}  # all that the upstream gets: one may be the fallback of another
    assert len(list(scenes_of(config))) == len(first) * len(TROUBLES)
    assert {scene.upstream for scene in scenes_of(config, ["two"])} == {"two"}


def test_stand_ins_get_no_key_and_nothing_leaves_the_machine(config: Config) -> None:
    urls = {name: f"http://127.0.0.1:{port}" for port, name in enumerate(config.upstreams, 1)}
    played = on_stand_ins(config, urls, "/nowhere")
    assert KEY not in repr([*played.upstreams.items(), played.server, played.ops.webhooks, played.ops.metrics.otlp])
    assert [upstream.base_url for upstream in played.upstreams.values()] == [
        "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "http://127.0.0.1:3", "http://127.0.0.1:4/v1",
    ]  # fmt: skip
    assert (played.server.host, played.server.port, played.ops.port) == ("127.0.0.1", 0, None)
    assert (played.fleet, played.engines, played.server.client_keys) == (None, {}, ())
    assert played.models["gpt-4o"].retry.max_attempts == 2  # the rules stay
    assert played.models["alone"].cache is None


@pytest.mark.parametrize(("rate_per_s", "count"), [(1.0, 6), (20.0, 6), (30.0, 4), (100.0, 1), (1000.0, 1)])
def test_fewer_scenes_are_played_at_a_time_with_more_calls(rate_per_s: float, count: int) -> None:
    assert scenes_at_once(rate_per_s) == count


# against stand-ins


def test_second_deployment_saves_the_calls_of_the_first(tmp_path: Path) -> None:
    page = tmp_path / "chaos.html"
    result = invoke(
        tmp_path / "guard.yaml", "--upstream", "one", "--seconds", "1", "--rate", "20", "--patience", "2", "--json",
        "--html", str(page),
    )  # fmt: skip
    assert result.exit_code == 0
    found = {one["trouble"]: one for one in json.loads(result.stdout)}
    assert set(found) == {trouble.name for trouble in TROUBLES}
    assert (found["is down"]["served"], found["is down"]["direct"]) == (1.0, 0.0)
    assert set(found["is down"]["served_by"]) == {"two/my-gpt"}
    assert found["refuses 40 %"]["served"] > found["refuses 40 %"]["direct"] > 0.2
    assert found["is silent"]["errors"]
    assert (found["is down"]["tokens_wasted"], found["is down"]["tokens_generated"]) == (
        0,
        8 * found["is down"]["calls"],
    )
    text = page.read_text()
    assert KEY not in text + result.output
    assert text.count("<tr>") == 1 + len(TROUBLES)


def test_share_that_is_required_is_missed_without_another_deployment(tmp_path: Path) -> None:
    single = "models:\n  single: {deployments: [{upstream: one}]}"
    text = TEXT.replace("{upstream: one}, ", "").replace("models:", single)
    arguments = ("--upstream", "one", "--seconds", "0.5", "--patience", "1", "--require", "99%")
    result = invoke(tmp_path / "guard.yaml", *arguments, text=text)
    assert result.exit_code == 1
    assert "served in the worst scene: 0.0%, required: 99.0%" in result.output
    assert "models.single.deployments or .fallbacks: nothing else can serve this model" in result.output


def test_stand_ins_are_not_reached_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("no_proxy")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    arguments = ("--upstream", "three", "--seconds", "0.2", "--patience", "1", "--json")
    found = {one["trouble"]: one for one in json.loads(invoke(tmp_path / "guard.yaml", *arguments).stdout)}
    assert found["refuses 40 %"]["requests_per_call"] >= 1
    assert os.environ.get("no_proxy") == before


def test_tokens_of_streams_that_no_client_got_whole_are_wasted(tmp_path: Path) -> None:
    again = "again: {deployments: [{upstream: one}, {upstream: two}], stream: {recover: restart}}"
    single = f"models:\n  single: {{deployments: [{{upstream: one}}]}}\n  {again}"
    arguments = ("--upstream", "one", "--seconds", "1", "--patience", "1", "--json")
    result = invoke(tmp_path / "guard.yaml", *arguments, text=TEXT.replace("models:", single))
    found = {(one["model"], one["trouble"]): one for one in json.loads(result.stdout)}
    cut = found["single", "cuts every stream"]
    assert (cut["served"], cut["wasted"], cut["tokens_wasted"]) == (0.0, 1.0, cut["tokens_generated"])
    assert cut["tokens_generated"] % 3 == 0
    again = found["again", "cuts every stream"]
    assert again["tokens_generated"] - again["tokens_wasted"] == 8 * round(again["served"] * again["calls"]) > 0
    assert again["tokens_wasted"] > 0
    assert found["single", "is silent"]["tokens_generated"] == 0


@pytest.mark.parametrize("name", ["llm_guard", "minimal", "recommended"])
async def test_shipped_config_is_played_and_its_upstreams_get_no_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AZURE_KEY", KEY)
    monkeypatch.setenv("AZURE_URL", "https://azure.example/v1")
    config = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())
    async with ScriptedProvider([whole(500)]) as provider:
        for upstream in config["upstreams"].values():
            upstream["base_url"] = provider.url + ("/v1" if upstream["dialect"] == "openai" else "")
        arguments = ("--seconds", "0.1", "--rate", "30", "--patience", "0.5", "--json")
        result = await asyncio.to_thread(invoke, tmp_path / "c.yaml", *arguments, text=json.dumps(config))
        assert (provider.requests, KEY in result.output) == ([], False)
    assert {one["upstream"] for one in json.loads(result.stdout)} <= set(config["upstreams"])
    assert any(one["served"] == 1.0 for one in json.loads(result.stdout))


@pytest.mark.parametrize(
    "wrong",
    [
        ("--upstream", "four"),
        ("--require", "2"),
        ("--require", "most"),
        ("--rate", "0"),
        ("--seconds", "0.01"),
        ("--html", "nowhere/a.html"),
    ],
)
def test_wrong_option_is_refused_at_once(tmp_path: Path, wrong: tuple[str, str]) -> None:
    result = invoke(tmp_path / "guard.yaml", *wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.output


# advice and page


def advice(config: Config, model: str = "gpt-4o", **facts: Any) -> list[str]:
    result = ChaosResult(**{**{name: getattr(RESULT, name) for name in RESULT.__slots__}, "model": model, **facts})
    return [line.partition(":")[0] for line in advice_on(result, config.models[model])]


def test_advice_names_the_key_that_helps(config: Config) -> None:
    assert advice(config) == []
    assert advice(config, "alone", upstream="two", served=0.0) == ["models.alone.deployments or .fallbacks"]
    assert advice(config, "alone", upstream="two", trouble="is silent", served=1.0) == []
    assert advice(config, trouble="cuts every stream", served=0.2) == ["models.gpt-4o.stream.recover"]
    assert advice(config, trouble="is silent", p99_s=9.0) == ["models.gpt-4o.timeout.attempt"]
    assert advice(config, trouble="takes 3 s longer", p99_s=3.1) == ["models.gpt-4o.hedge"]
    assert advice(config, trouble="takes half of the rate", served=0.9) == ["models.gpt-4o.capacity"]


def test_page_shows_each_result_and_escapes_names() -> None:
    odd = ChaosResult("<b>", "is down", "<i>", 10, 0.5, 0.25, 0.1, 0.2, 1.0, 0, 0, {"<u>": 5}, {"<s>": 5})
    page = page_of("<x>.yaml", [(RESULT, []), (odd, ["<a>: b"])], LEFT_OUT)
    assert not re.search(r"<(b|i|u|s|a|x)>(?!models)", page.replace("<b>&lt;a&gt;: b</b>", ""))
    assert "50.0%, without 25.0%" in page
    assert "<td class=number>20.0%<td>" in page
    assert "http" not in page  # nothing from elsewhere
