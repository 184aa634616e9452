"""The number of worker processes, and what only one process can do."""

from __future__ import annotations

import json
import os
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llm_guard.cli import main as cli
from llm_guard.config import Config, ConfigError, parse_config, warnings_of, worker_count, workers
from llm_guard.config.workers import cpu_quota


def text_of(workers: object, **sections: Any) -> str:
    return json.dumps({
        "upstreams": {"one": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}},
        "models": {"gpt": {"deployments": [{"upstream": "one"}]}},
        "ops": {"port": 8081},
        **sections,
        "server": {"workers": workers},
    })  # fmt: skip


def config_of(workers: object, **sections: Any) -> Config:
    return parse_config(text_of(workers, **sections), "test.yaml", {})


@pytest.mark.parametrize(("setting", "expected"), [(1, 1), ("3", 3), (64, 64)])
def test_number_is_read(setting: object, expected: int) -> None:
    assert worker_count(config_of(setting).server.workers) == expected


def test_auto_is_one_for_each_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = config_of("auto").server.workers
    monkeypatch.setattr(workers, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
    assert worker_count(setting) == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)), raising=False)
    assert worker_count(setting) == 64
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert worker_count(setting) == 2


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", inf),
        ({"cpu.max": "200000 100000\n"}, "0::/\n", 2.0),
        ({"cpu.max": "200000 100000\n"}, "4:cpu:/a\n0::/not/seen/here\n", 2.0),
        ({"a.slice/cpu.max": "50000 100000\n", "a.slice/b/cpu.max": "max 100000\n"}, "0::/a.slice/b\n", 0.5),
        ({"cpu.max": "much\n"}, "1:cpu:/\n", inf),
        ({"cpu.max": "1 0\n"}, "", inf),
    ],
)  # fmt: skip
def test_quota_is_the_least_of_the_control_groups(
    files: dict[str, str], own: str, expected: float, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path, own) == expected


@pytest.mark.parametrize("setting", [0, 65, -1, True, 1.5, "many", "", None])
def test_other_settings_are_refused(setting: object) -> None:
    with pytest.raises(ConfigError, match=r"server\.workers: must be a number of processes from 1 to 64, or auto"):
        config_of(setting)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"ops": {}}, "ops.port: must be set, or set server.workers to 1"),
        ({"ops": {"port": 8081, "chaos": True}}, "ops.chaos: must be false"),
        ({"ops": {"port": 8081, "metrics": {"otlp": "http://127.0.0.1:4318/v1/metrics"}}}, "ops.metrics.otlp: must be"),
        ({"engines": {"vllm": {"command": {"argv": ["true"]}, "upstreams": ["one"]}}}, "engines: are not possible"),
    ],
)
def test_what_only_one_process_can_do_is_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config_of(2, **sections)
    with pytest.raises(ConfigError, match=problem):
        config_of("auto", **sections)
    config_of(1, **sections)


def test_what_each_worker_has_for_itself_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text("{}")
    models = {"gpt": {"cache": {"ttl": "1m"}, "deployments": [{"upstream": "one", "probe": {"interval": "1m"}}]}}
    found = [key for key, _ in warnings_of(config_of(2, models=models), path, None)]
    assert ("store", "cache", "kind") in found
    assert ("models", "gpt", "deployments", 0, "probe") in found
    config = config_of(2, models=models, store={"cache": {"kind": "sqlite"}})
    assert ("store", "cache", "kind") not in [key for key, _ in warnings_of(config, path, None)]
    one = [key for key, _ in warnings_of(config_of(1, models=models), path, None)]
    assert ("store", "cache", "kind") not in one


def test_check_says_what_each_worker_has(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(text_of(3))
    said = CliRunner().invoke(cli.main, ["check", "-c", str(path)]).stdout
    assert "server.workers: 3 processes; each has its own" in said
    path.write_text(text_of(1))
    assert "server.workers" not in CliRunner().invoke(cli.main, ["check", "-c", str(path)]).stdout
