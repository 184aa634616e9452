"""Which targets are probed according to the config, and which probe settings are rejected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from llm_guard.config import Config, ConfigError, load_config, parse_config
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings, ProbeSettings
from llm_guard.routing.route_table import compile_routes
from llm_guard.upstreams.probes.targets import ProbeTarget, health_path, probe_descriptions, subjects_of

UPSTREAMS = """\
upstreams:
  a: {dialect: openai, base_url: "http://a:8000/v1", probe: {}}
  b: {dialect: openai, base_url: "http://b:11434/v1", probe: {kind: models}}
  c: {dialect: anthropic, base_url: "http://c"}
"""
MODELS = """\
models:
  m: {deployments: [{upstream: a}, {upstream: b, model: n, probe: {interval: 1m}}]}
  o: {deployments: [{upstream: b}]}
  "p-*": {deployments: [{upstream: b}, {upstream: b, model: q}]}
"""
ANNOTATED = Path(__file__).parents[4] / "config" / "llm_guard.yaml"


def parse(text: str) -> Config:
    return parse_config(text, "f.yaml", {})


def subjects(text: str = UPSTREAMS + MODELS) -> dict[tuple[str, str | None], ProbeTarget]:
    config = parse(text)
    return subjects_of(config, compile_routes(config, 0.0).upstreams)


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_targets_with_a_probe_are_listed_upstreams_first() -> None:
    assert list(subjects()) == [("a", None), ("b", None), ("b", "n")]


def test_settings_of_an_upstream_have_defaults() -> None:
    assert subjects()["a", None].settings == ProbeSettings()
    assert subjects()["b", "n"].settings == CompletionProbeSettings(interval=60.0)


def test_list_of_models_is_checked_for_those_that_the_config_names() -> None:
    assert subjects()["b", None].wanted == ("n", "o", "q")


def test_models_that_come_and_go_do_not_restart_other_probes() -> None:
    more = subjects(UPSTREAMS + MODELS + "  r: {deployments: [{upstream: a}, {upstream: b}]}\n")
    assert more["a", None] == subjects()["a", None]
    assert more["b", None] != subjects()["b", None]


@pytest.mark.parametrize(
    ("before", "after"),
    [("probe: {}", "probe: {interval: 1s}"), ("a:8000", "a:8001"), ("probe: {}", "probe: {}, api_key: k")],
)
def test_another_setting_address_or_key_is_another_subject(before: str, after: str) -> None:
    assert subjects((UPSTREAMS + MODELS).replace(before, after))["a", None] != subjects()["a", None]


def test_health_page_is_the_engines_own() -> None:
    found = subjects((UPSTREAMS + MODELS).replace("{kind: models}", "{}"))
    assert (health_path(found["a", None]), health_path(found["b", None])) == ("/health", "/")
    assert health_path(subjects((UPSTREAMS + MODELS).replace("{}", "{path: /up}"))["a", None]) == "/up"


def test_deployment_that_two_models_name_is_called_once() -> None:
    twice = "  s: {deployments: [{upstream: b, model: n, probe: {interval: 1m}}]}\n"
    assert list(subjects(UPSTREAMS + MODELS + twice)) == [("a", None), ("b", None), ("b", "n")]


def test_one_deployment_has_one_rhythm() -> None:
    other = "  s: {deployments: [{upstream: b, model: n, probe: {}}]}\n"
    expected = "differs from the setting for the same deployment in m; set it only there"
    assert problem(UPSTREAMS + MODELS + other) == f"f.yaml:9: models.s.deployments[0].probe: {expected}"


def test_pattern_cannot_be_called_for_one_token() -> None:
    text = UPSTREAMS + 'models: {"p-*": {deployments: [{upstream: a, probe: {}}]}}\n'
    expected = "needs `model` as well: a pattern is not a model that can be requested"
    assert problem(text) == f"f.yaml:5: models.p-*.deployments[0].probe: {expected}"


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("{kind: ping}", "kind: must be 'health' or 'models'"),
        ("{path: health}", "path: not a path: 'health'; write one that begins with /, such as /health"),
        ("{interval: 0s}", "interval: a duration must be longer than 0: '0s'"),
        ("{max_failures: 0}", "max_failures: not a count: 0; write a whole number of at least 1"),
        (
            "{intervall: 1s}",
            "intervall: unknown key; did you mean interval?",
        ),
    ],
)
def test_wrong_setting_names_its_place(probe: str, expected: str) -> None:
    text = UPSTREAMS.replace("probe: {}", f"probe: {probe}") + MODELS
    assert problem(text) == f"f.yaml:2: upstreams.a.probe.{expected}"


def test_concurrency_is_a_count() -> None:
    assert parse(UPSTREAMS + MODELS).probes.concurrency == 50
    assert "probes.concurrency: not a count: 0" in problem("probes: {concurrency: 0}\n" + UPSTREAMS + MODELS)


def test_annotated_file_lists_every_default() -> None:
    config = load_config(ANNOTATED, {})
    assert config.upstreams["local"].probe == ProbeSettings()
    text = ANNOTATED.read_text(encoding="utf-8")
    names = {field.name for field in (*dataclasses.fields(ProbeSettings), *dataclasses.fields(CompletionProbeSettings))}
    assert {name for name in names if f" {name}:" not in text} == set()


def test_check_lists_the_probes_and_how_soon_they_find_a_target_down() -> None:
    assert list(probe_descriptions(parse(UPSTREAMS + MODELS))) == [
        "a: probed at /health every 10s; down after 3 failures, detected within 48s",
        "b: probed by its list of models every 10s; down after 3 failures, detected within 48s",
        "b/n: probed with a one-token call every 60s; down after 2 failures, detected within 192s",
    ]
