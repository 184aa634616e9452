"""The effective value of each key, and the line of the file that sets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_guard.config import EffectiveKey, EffectiveSections, KeyPath, effective_keys, parse_config

TEXT = """\
upstreams:
  one:
    dialect: openai
    base_url: ${BASE}
    api_keys: [sk-SHOWN-1, {name: spare, key: sk-SHOWN-2}]
    errors:
      - match: {status: 503}
        kind: overloaded
defaults:
  timeout: {idle: 20s, total: 60s}
  hedge: {after: p95}
models:
  gpt:
    timeout:
      total: 30s
    hedge: null
    deployments:
      - upstream: one
      - upstream: one
        model: gpt-x
"""
ENV = {"BASE": "https://api.example/v1"}
GPT: KeyPath = ("models", "gpt")
ONE: KeyPath = ("upstreams", "one")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "guard.yaml"
    path.write_text(TEXT)
    return path


def found(path: Path | None, *sections: KeyPath, running: str = TEXT) -> EffectiveSections:
    return effective_keys(parse_config(running, "test.yaml", ENV), sections, path, ENV)


def sources(path: Path, *sections: KeyPath, running: str = TEXT) -> dict[str, tuple[object, str | None, int | None]]:
    keys = found(path, *sections, running=running).keys
    return {key.key: (key.value, key.set_by or key.origin, key.line) for key in keys}


def test_key_has_the_line_of_its_own_section_or_of_the_defaults(path: Path) -> None:
    keys = sources(path, GPT)
    assert keys["models.gpt.timeout.total"] == (30.0, "models.gpt.timeout.total", 15)
    assert keys["models.gpt.timeout.idle"] == (20.0, "defaults.timeout.idle", 10)
    assert keys["models.gpt.timeout.connect"][1:] == ("default", None)
    assert keys["models.gpt.deployments[1].model"] == ("gpt-x", "models.gpt.deployments[1].model", 20)
    assert keys["models.gpt.deployments[0].model"] == (None, "default", None)
    assert keys["models.gpt.fallbacks"] == ([], "default", None)


def test_value_that_replaces_an_inherited_section_has_its_own_line(path: Path) -> None:
    assert sources(path, GPT)["models.gpt.hedge"] == (None, "models.gpt.hedge", 16)


def test_secrets_are_masked_and_variables_and_lists_have_their_lines(path: Path) -> None:
    keys = sources(path, ONE)
    assert keys["upstreams.one.base_url"] == ("https://api.example/v1", "upstreams.one.base_url", 4)
    assert keys["upstreams.one.api_keys[0].key"] == ("***", "upstreams.one.api_keys[0]", 5)
    assert keys["upstreams.one.api_keys[1].key"] == ("***", "upstreams.one.api_keys[1].key", 5)
    assert keys["upstreams.one.errors[0].kind"] == ("overloaded", "upstreams.one.errors[0].kind", 8)
    assert keys["upstreams.one.auth"] == ("bearer", "default", None)
    assert "SHOWN" not in str(keys)


def test_key_with_another_value_than_in_the_file_has_no_line(path: Path) -> None:
    path.write_text(TEXT.replace("total: 30s", "total: 31s"))
    keys = sources(path, GPT)
    assert keys["models.gpt.timeout.total"] == (30.0, "other", None)
    assert keys["models.gpt.timeout.idle"] == (20.0, "defaults.timeout.idle", 10)


def test_without_a_valid_file_the_values_are_known_and_the_lines_are_not(path: Path) -> None:
    total = EffectiveKey("models.gpt.timeout.total", 30.0, "other")
    without = found(None, GPT)
    assert (total in without.keys, without.problem) == (True, "the config did not come from a file")
    path.write_text("models:\n  gpt: 7\n")
    broken = found(path, GPT)
    assert total in broken.keys
    assert broken.problem is not None
    assert broken.problem.startswith(f"the file is invalid now: {path}:")
    path.unlink()
    assert "cannot be read" in str(found(path, GPT).problem)


def test_entry_that_the_file_as_it_is_now_lacks_has_no_lines(path: Path) -> None:
    path.write_text(TEXT.replace("  gpt:", "  other:"))
    keys = found(path, GPT, ONE)
    assert {key.origin for key in keys.keys if key.key.startswith("models.")} == {"other"}
    assert "file" in {key.origin for key in keys.keys if key.key.startswith("upstreams.")}
    assert keys.problem is None
