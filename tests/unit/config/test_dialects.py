"""Routes with deployments of different dialects: where they are allowed, and what `check` prints about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config import Config, ConfigError, mixed_routes, parse_config
from llm_guard.resilience.translation.settings import TranslateSettings

BASE = """\
upstreams:
  openai: {dialect: openai, base_url: "http://openai.test/v1"}
  anthropic: {dialect: anthropic, base_url: "http://anthropic.test", api_key: k}
  bare: {dialect: anthropic, base_url: "http://bare.test"}
  local: {dialect: anthropic, base_url: "http://local.test", auth: none}
  vllm: {dialect: openai, base_url: "http://vllm.test/v1", responses: chat}
models:
"""
CLAUDES = """\
  claude: {deployments: [{upstream: anthropic}]}
  "bare-*": {deployments: [{upstream: bare}]}
"""


def parse(models: str) -> Config:
    return parse_config(BASE + models + CLAUDES, "f.yaml", {})


def problems(models: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(models)
    return [str(problem) for problem in caught.value.problems]


def test_mixed_deployments_and_fallbacks_are_found() -> None:
    config = parse(
        "  gpt:\n    deployments: [{upstream: openai}, {upstream: local, model: x}]\n    fallbacks: [claude]\n"
        "  plain: {deployments: [{upstream: openai}], fallbacks: [gpt]}\n"
    )
    assert [found for found in mixed_routes(config) if found[0] == "gpt"] == [
        ("gpt", "local/x", "openai", "anthropic"), ("gpt", "anthropic/claude", "openai", "anthropic"),
    ]  # fmt: skip
    assert [found[1] for found in mixed_routes(config) if found[0] == "plain"] == ["local/gpt"]


@pytest.mark.parametrize(("models", "place"), [
    ("  gpt: {deployments: [{upstream: openai}, {upstream: bare}]}\n", "models.gpt.deployments[1].upstream"),
    ("  gpt: {deployments: [{upstream: openai}], fallbacks: [bare-1]}\n", "models.gpt.fallbacks[0]"),
])  # fmt: skip
def test_upstream_of_another_dialect_needs_a_key(models: str, place: str) -> None:
    (problem,) = problems(models)
    assert problem.startswith(f"f.yaml:8: {place}: has another dialect and no API key")
    assert "upstreams.bare.api_key" in problem


def test_callers_may_bring_the_key_of_the_models_own_dialect() -> None:
    assert parse("  gpt: {deployments: [{upstream: openai}], fallbacks: [claude]}\n").models["gpt"].fallbacks


def test_translation_that_is_off_allows_no_mixed_route() -> None:
    (problem,) = problems("  gpt: {deployments: [{upstream: openai}], fallbacks: [claude], translate: off}\n")
    assert problem.endswith("has another dialect; calls are not translated: `translate` is off")


@pytest.mark.parametrize(("written", "expected"), [
    ("{}", TranslateSettings()), ("off", None), ("'off'", None), ("false", None),
    ("{drop: nothing}", TranslateSettings(drop="nothing")),
    ("{drop: [n, logprobs]}", TranslateSettings(("n", "logprobs"))),
    ("{max_tokens: 5, reasoning: show}", TranslateSettings("hints", 5, "show")),
])  # fmt: skip
def test_settings_are_read(written: str, expected: Any) -> None:
    config = parse(f"  gpt: {{deployments: [{{upstream: openai}}], translate: {written}}}\n")
    assert config.models["gpt"].translate == expected


@pytest.mark.parametrize(("written", "reason"), [
    ("{drop: all}", "must be hints, nothing, or a list of names"), ("{drop: [N!]}", "must be hints, nothing"),
    ("{max_tokens: 0}", "not a count: 0"), ("{reasoning: loud}", "must be 'hide' or 'show'"),
    ("{zzz: 1}", "unknown key"),
])  # fmt: skip
def test_wrong_settings_are_named(written: str, reason: str) -> None:
    (problem,) = problems(f"  gpt: {{deployments: [{{upstream: openai}}], translate: {written}}}\n")
    assert problem.startswith("f.yaml:8: models.gpt.translate.")
    assert reason in problem


def check(tmp_path: Path, models: str, *options: str) -> list[str]:
    path = tmp_path / "f.yaml"
    path.write_text(BASE + models + CLAUDES)
    result = CliRunner().invoke(main, ["check", "-c", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_check_names_the_losses_of_each_mixed_route(tmp_path: Path) -> None:
    models = "  gpt: {deployments: [{upstream: openai}], fallbacks: [claude], translate: {drop: [n]}}\n"
    line, other = [line for line in check(tmp_path, models) if line.startswith("models.gpt: ")]
    assert "/v1/responses is translated from openai to anthropic for anthropic/claude" in other
    assert "previous_response_id" in other.partition("dropped: ")[0]
    assert "/v1/chat/completions is translated from openai to anthropic for anthropic/claude" in line
    refused, _, dropped = line.partition("dropped: ")
    assert "input_audio" in refused
    assert {"seed", "n"} <= set(dropped.partition(";")[0].split(", "))
    plain = "  gpt: {deployments: [{upstream: openai}]}\n"
    assert not [line for line in check(tmp_path, plain) if "translated" in line]


def test_check_names_the_deployments_for_which_responses_become_chats(tmp_path: Path) -> None:
    models = "  qwen: {deployments: [{upstream: vllm, model: q}]}\n"
    models += "  gpt: {deployments: [{upstream: openai}], fallbacks: [qwen], translate: {drop: [web_search]}}\n"
    found = [line for line in check(tmp_path, models) if "translated into a chat" in line]
    places = [line.partition(" is ")[0] + line.partition(" for ")[2].partition(";")[0] for line in found]
    assert places == ["models.qwen: /v1/responsesvllm/q", "models.gpt: /v1/responsesvllm/qwen"]
    assert "web_search" in found[1].partition("dropped: ")[2]


def test_only_openais_dialect_has_a_responses_api() -> None:
    wrong = BASE.replace('base_url: "http://local.test"', 'base_url: "http://local.test", responses: chat')
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong + CLAUDES, "f.yaml", {})
    assert "upstreams.local.responses: must be native" in str(caught.value.problems[0])


def test_check_prints_the_class_of_each_field(tmp_path: Path) -> None:
    lines = check(tmp_path, "  gpt: {deployments: [{upstream: openai}]}\n", "--translation")
    assert "  hint     seed" in lines
    assert "  promise  n, above 1" in lines
    assert "  promise  tools[web_search*] (drop: web_search)" in lines
    assert "/v1/messages of anthropic:" in lines
    assert "/v1/responses of openai:" in lines
