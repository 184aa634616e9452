from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.cli.restart_summary import restart_schedule
from llm_guard.config import Config, ConfigError, EngineConfig, parse_config, shown
from llm_guard.config.engines import CommandConfig, ContainerConfig, RestartConfig, UnitConfig
from llm_guard.resilience.health.probe_policy import ProbeSettings
from llm_guard.resilience.health.restart_policy import PRESETS, RestartSettings, giving_up

ANNOTATED = Path(__file__).parents[3] / "config" / "llm_guard.yaml"
BASE = """\
upstreams:
  local: {dialect: openai, base_url: "http://127.0.0.1:8000/v1"}
  other: {dialect: openai, base_url: "http://127.0.0.1:8001/v1", probe: {interval: 3s}}
models: {gpt: {deployments: [{upstream: local}]}}
engines:
"""


def parse(engines: str, **env: str) -> Config:
    return parse_config(BASE + engines, "f.yaml", env)


def engine(text: str, **env: str) -> EngineConfig:
    return parse(f"  e: {{upstreams: [local], {text}}}\n", **env).engines["e"]


def problems(engines: str, base: str = BASE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(base + engines, "f.yaml", {})
    return [str(problem).partition(": ")[2] for problem in caught.value.problems]


def test_engines_are_none_by_default() -> None:
    assert parse_config(BASE.removesuffix("engines:\n"), env={}).engines == {}


def test_each_driver_is_read() -> None:
    command = engine("command: {argv: [vllm, serve, m], env: {A: b}, pass_env: [HF_TOKEN], folder: /srv}")
    assert command.way == CommandConfig(
        argv=("vllm", "serve", "m"), env={"A": "b"}, pass_env=("HF_TOKEN",), folder="/srv"
    )  # fmt: skip
    assert engine("docker: {container: vllm}").way == ContainerConfig(container="vllm")
    assert engine("podman: {container: a_b.c-1, socket: /run/x}").kind == "podman"
    assert engine("systemd: {unit: vllm@0.service, user: true}").way == UnitConfig(unit="vllm@0.service", user=True)


def test_restart_is_a_preset_or_its_differences() -> None:
    assert engine("docker: {container: x}").restart.settings == PRESETS["production"]
    assert engine("docker: {container: x}, restart: demo").restart.settings == PRESETS["demo"]
    own = engine("docker: {container: x}, restart: {preset: demo, max_attempts: 9, base_delay: 2s, jitter: 0}")
    expected = dataclasses.replace(PRESETS["demo"], max_attempts=9, base_delay=2.0, jitter=0.0)
    assert own.restart.settings == expected


def test_upstream_of_an_engine_is_probed_unless_it_configures_probes() -> None:
    config = parse("  e: {upstreams: [local, other], docker: {container: x}}\n")
    assert config.upstreams["local"].probe == ProbeSettings()
    assert config.upstreams["other"].probe == ProbeSettings(interval=3.0)
    assert parse("  e: {upstreams: [other], docker: {container: x}}\n").upstreams["local"].probe is None


def test_environment_of_a_command_is_secret() -> None:
    config = parse('  e: {upstreams: [local], command: {argv: [x], env: {KEY: "${SECRET}"}}}\n', SECRET="hush-hush")
    assert "hush" not in repr(config)
    assert "hush" not in str(shown(config))
    assert "hush" not in repr(config.engines["e"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "upstreams: [local]",
            "engines.e: needs exactly one of command, docker, podman and systemd",
        ),
        (
            "upstreams: [local], docker: {container: x}, systemd: {unit: x}",
            "engines.e: needs exactly one of command, docker, podman and systemd",
        ),
        (
            "upstreams: [lokal], docker: {container: x}",
            "engines.e.upstreams[0]: no upstream has this name; did you mean local?",
        ),
        ("upstreams: [], docker: {container: x}", "engines.e.upstreams: must not be empty"),
        ("upstreams: [local], command: {argv: []}", "engines.e.command.argv: must not be empty"),
        ("upstreams: [local], command: {argv: ['']}", "engines.e.command.argv: must start with the program"),
        ("upstreams: [local], command: vllm serve", "engines.e.command: must be a mapping of keys, not text"),
        (
            "upstreams: [local], command: {argv: vllm serve}",
            "engines.e.command.argv: must be a list, not text",
        ),
        (
            'upstreams: [local], command: {argv: [x, "a\\0b"]}',
            "engines.e.command.argv[1]: must not contain the NUL character",
        ),
        (
            "upstreams: [local], command: {argv: [x], pass_env: [A=B]}",
            "engines.e.command.pass_env[0]: is not a valid variable name: use letters, digits and _",
        ),
        ("upstreams: [local], docker: {container: ../x}", "engines.e.docker.container: is not a valid container name"),
        (
            "upstreams: [local], docker: {container: 'x?t=1'}",
            "engines.e.docker.container: is not a valid container name",
        ),
        (
            "upstreams: [local], systemd: {unit: --now}",
            "engines.e.systemd.unit: is not a valid unit name such as vllm.service",
        ),
        (
            "upstreams: [local], docker: {container: x}, restart: slowly",
            "engines.e.restart.preset: must be 'demo', 'production' or 'outage-tolerant'",
        ),
        (
            "upstreams: [local], docker: {container: x}, restart: {max_attempts: 0}",
            "engines.e.restart.max_attempts: must be a whole number from 1 to 1000",
        ),
        (
            "upstreams: [local], docker: {container: x}, restart: {jitter: 30}",
            "engines.e.restart.jitter: not a share: 30; write a number from 0 to 1",
        ),
        (
            "upstreams: [local], docker: {container: x}, auto_provision: true",
            "engines.e: auto_provision only works for standby engines: set standby: true as well",
        ),
        (
            "upstreams: [local], docker: {container: x}, standby: true, auto_provision: get",
            "engines.e.auto_provision: must be true, false or on_get",
        ),
    ],
)  # fmt: skip
def test_invalid_engine_is_reported_with_place_and_problem(text: str, expected: str) -> None:
    assert problems(f"  e: {{{text}}}\n") == [expected]


def test_two_engines_of_one_upstream_are_refused() -> None:
    text = "  a: {upstreams: [local], docker: {container: x}}\n  b: {upstreams: [local], docker: {container: y}}\n"
    expected = "engines.b.upstreams[0]: is served by the engine a; define a separate upstream for this engine"
    assert problems(text) == [expected]


def test_engine_whose_upstream_must_not_be_probed_is_refused() -> None:
    base = BASE.replace('8000/v1"', '8000/v1", probe: null')
    expected = (
        "upstreams.local.probe: must not be null: the engine e, which serves it, is restarted when its probes fail"
    )
    assert problems("  e: {upstreams: [local], docker: {container: x}}\n", base) == [expected]


def test_name_of_an_engine_is_valid_in_a_label() -> None:
    text = '  "a b": {upstreams: [local], docker: {container: x}}\n'
    assert problems(text) == ["engines.a b: a name has 1 to 64 letters, digits, dots and dashes"]


# engines in the reference and on the command line


def test_annotated_file_names_every_key_of_an_engine() -> None:
    text = ANNOTATED.read_text(encoding="utf-8")
    section = text[text.index("\nengines:") : text.index("\ndefaults:")]
    kinds = (EngineConfig, CommandConfig, ContainerConfig, UnitConfig, RestartConfig)
    keys = [key for kind in kinds for key in kind.model_fields]
    missing = [key for key in keys if f"{key}:" not in section]
    assert missing == []


def test_annotated_file_documents_the_presets_as_they_are() -> None:
    lines = [line.lstrip("# ").split() for line in ANNOTATED.read_text(encoding="utf-8").splitlines()]
    told = {line[0]: line for line in lines if line and line[0] in PRESETS and len(line) > 8}
    assert told.keys() == PRESETS.keys()
    for name, rules in PRESETS.items():
        _, base, longest, jitter, attempts, hourly, steady, soonest, _, latest = told[name]
        assert (_s(base), _s(longest), _s(steady)) == (rules.base_delay, rules.max_delay, rules.reset_after)
        assert (float(jitter), int(attempts), int(hourly)) == (rules.jitter, rules.max_attempts, rules.max_per_hour)
        assert abs(_s(soonest) - giving_up(rules, 0.0).soonest_s) <= 30
        assert abs(_s(latest) - giving_up(rules, 120.0).latest_s) <= 30


def _s(text: str) -> float:
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    total, number = 0.0, ""
    for char in text:
        if char in units:
            total, number = total + float(number) * units[char], ""
        else:
            number += char
    return total


def test_schedule_shows_the_time_until_it_is_given_up() -> None:
    config = engine("command: {argv: [x]}, start_timeout: 90s, restart: {base_delay: 2s, max_attempts: 3, jitter: 0.5}")
    first, second = restart_schedule("vllm", config)
    assert first == "engine vllm (command) for local: restarts after 2s, 4s, 8s (jitter 50%), at most 12 an hour"
    assert second == (
        "  given up after 14s (7s to 21s) if it exits at once, "
        "after 4m44s (4m37s to 4m51s) if it is never up within 1m30s, "
        "and up to 1m later if it must be killed each time"
    )


def test_long_schedule_is_abbreviated() -> None:
    config = engine("docker: {container: x}, standby: true, restart: {max_attempts: 9, jitter: 0}")
    (first, second) = restart_schedule("e", config)
    assert first.startswith(
        "engine e (docker, standby) for local: restarts after 5s, 10s, 20s, 40s, 1m20s, 2m40s, ... 9 in"
    )
    assert second.startswith("  given up after 20m15s if it exits at once")
    assert config.restart.settings == RestartSettings(max_attempts=9, jitter=0.0)


def test_check_shows_how_each_engine_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(BASE + "  vllm: {upstreams: [local], docker: {container: x}, restart: demo}\n")
    said = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert said.exit_code == 0
    assert "engine vllm (docker) for local: restarts after 1s, 2s, 4s, 4.55s (jitter 10%)" in said.output
    assert "given up after 11.5s (10.4s to 12.7s) if it exits at once" in said.output
