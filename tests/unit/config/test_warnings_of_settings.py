"""Warnings of `llm-guard check` about single settings: each has its line, and disappears with its remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config import located, parse_config, warnings_of
from llm_guard.config.warnings.state import unwritable_state

UPSTREAMS = (
    'upstreams: {a: {dialect: openai, base_url: "http://a/v1"}, b: {dialect: openai, base_url: "http://b/v1"}}\n'
)
MODEL = "models: {m: {deployments: [{upstream: a}]}}\n"


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Makes the directory inaccessible to other users."""
    tmp_path.chmod(0o700)
    return tmp_path


def warnings(folder: Path, text: str) -> list[str]:
    """Returns the warnings without the file's name."""
    path = folder / "f.yaml"
    path.write_text(text)
    path.chmod(0o600)
    found = located(warnings_of(parse_config(text, str(path), {}), path, folder / "state"), path)
    return [str(problem).removeprefix(f"{path}:") for problem in found]


# base URLs


@pytest.mark.parametrize(
    ("dialect", "url", "expected"),
    [
        ("openai", "http://a/v1/chat/completions", "ends in /chat/completions: remove it"),
        ("openai", "http://a/v1/completions/", "ends in /completions: remove it"),
        ("openai", "http://a/openai/v1/responses", "ends in /responses: remove it"),
        ("openai", "http://a/v1/embeddings", "ends in /embeddings: remove it"),
        ("anthropic", "http://a/v1/messages", "ends in /v1/messages: remove it"),
        ("anthropic", "http://a/messages", "ends in /messages: remove it"),
        ("openai", "http://a:8000", "has no path: add /v1 to its end, as servers with dialect openai expect it"),
    ],
)
def test_base_url_that_no_call_works_with(tmp_path: Path, dialect: str, url: str, expected: str) -> None:
    upstreams = f"upstreams:\n  a:\n    dialect: {dialect}\n    base_url: '{url}'\n"
    (warning,) = warnings(tmp_path, upstreams + MODEL)
    assert warning.startswith(f"4: upstreams.a.base_url: {expected}")


@pytest.mark.parametrize(
    ("dialect", "url"),
    [("openai", "https://api.deepseek.com"), ("openai", "https://x.services.ai.azure.com/models"),
     ("openai", "http://a/v1beta/openai"), ("anthropic", "https://api.anthropic.com"), ("anthropic", "http://a/x")],
)  # fmt: skip
def test_base_url_as_its_provider_documents_it(tmp_path: Path, dialect: str, url: str) -> None:
    assert warnings(tmp_path, f"upstreams: {{a: {{dialect: {dialect}, base_url: '{url}'}}}}\n" + MODEL) == []


# durations


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("timeout: {attempt: 2m, total: 1m}",
         ("timeout.attempt: 120s has no effect: the whole call ends after timeout.total, 60s; make attempt shorter or "
         "total longer")),
        ("timeout: {first_token: 11m}", "timeout.first_token: 660s has no effect: the whole call ends after "),
        ("timeout: {connect: 20s, total: 20s}", "timeout.connect: 20s has no effect: the whole call ends after "),
        ("timeout: {idle: 5m}",
         ("timeout.idle: 300s has no effect: a stream without a useful event ends after timeout.stall, 180s; make idle "
         "shorter or stall longer")),
        ("timeout: {first_token: 2s, learned: {min: 3s}}",
         ("timeout.learned.min: 3s has no effect: a learned limit is never longer than timeout.first_token, 2s; make "
         "min shorter")),
        ("retry: {max_attempts: 40}",
         ("retry.max_attempts: 40 attempts do not fit: the waits between them take 764s and timeout.total is 600s; set "
         "it to 32 or make the waits shorter")),
        ("timeout: {attempt: 50s, total: 1m}",
         ("timeout.attempt: 50s leaves no time for a retry after an attempt that runs into it: timeout.total is 60s; "
         "make attempt at most half of it, or set retry.max_attempts to 1")),
    ],
)  # fmt: skip
def test_durations_that_contradict_each_other(tmp_path: Path, rules: str, expected: str) -> None:
    (warning,) = warnings(tmp_path, f"{UPSTREAMS}{MODEL}defaults:\n  {rules}\n")
    assert warning.startswith(f"4: defaults.{expected}")
    (warning,) = warnings(tmp_path, f"{UPSTREAMS}models:\n  m:\n    deployments: [{{upstream: a}}]\n    {rules}\n")
    assert warning.startswith(f"5: models.m.{expected}")


@pytest.mark.parametrize(
    "rules",
    ["timeout: {total: 2s}, retry: {max_attempts: 3}", "timeout: {attempt: 5m}", "timeout: {total: 1m, idle: 20s}",
     "timeout: {attempt: 50s, total: 1m}, retry: {max_attempts: 1}", "timeout: {idle: 5m, stall: 6m}",
     "retry: {max_attempts: 32}", "timeout: {learned: {min: 3s}}"],
)  # fmt: skip
def test_durations_that_go_together(tmp_path: Path, rules: str) -> None:
    assert warnings(tmp_path, f"{UPSTREAMS}{MODEL}defaults: {{{rules}}}\n") == []


def test_model_repeats_no_warning_of_the_defaults(tmp_path: Path) -> None:
    models = "models: {m: {deployments: [{upstream: a}]}, n: {deployments: [{upstream: a}], timeout: {total: 20s}}}\n"
    found = warnings(tmp_path, f"{UPSTREAMS}{models}defaults: {{timeout: {{attempt: 2m, total: 1m}}}}\n")
    assert [warning.split(" has ")[0] for warning in found] == [
        "2: models.n.timeout.attempt: 120s", "3: defaults.timeout.attempt: 120s",
    ]  # fmt: skip


# deployments and fallbacks


def test_deployment_under_another_name(tmp_path: Path) -> None:
    upstreams = UPSTREAMS.replace("http://b", "http://a")
    models = "models:\n  m:\n    deployments:\n      - {upstream: a}\n      - {upstream: b%s}\n"
    (warning,) = warnings(tmp_path, upstreams + models % "")
    assert warning == (
        "6: models.m.deployments[1]: is the same deployment as the one of a: b has the same address and key; remove "
        "it, because it fails whenever a fails"
    )
    assert warnings(tmp_path, upstreams + models % ", model: other") == []
    assert warnings(tmp_path, UPSTREAMS + models % "") == []
    with_key = upstreams.replace('"http://a/v1"}}', '"http://a/v1", api_key: other}}')
    assert warnings(tmp_path, with_key + models % "") == []


@pytest.mark.parametrize(
    ("m", "n", "is_useless"),
    [
        ("{upstream: a, model: x}, {upstream: b}", "{upstream: a, model: x}", True),
        ("{upstream: a, model: x}", "{upstream: a, model: x}, {upstream: b}", False),
        ("{upstream: a}", "{upstream: a}", False),
        ("{upstream: a, model: x}", "{upstream: b, model: x}", False),
    ],
)
def test_fallback_to_the_models_own_deployments(tmp_path: Path, m: str, n: str, is_useless: bool) -> None:
    models = f"models:\n  m:\n    deployments: [{m}]\n    fallbacks: [n]\n  n: {{deployments: [{n}]}}\n"
    expected = (
        "5: models.m.fallbacks[0]: can never help: n has no deployment that m does not have; choose a model with "
        "another upstream or another model name"
    )
    assert warnings(tmp_path, UPSTREAMS + models) == [expected] * is_useless


@pytest.mark.parametrize(
    ("own", "theirs", "rules", "is_useless"),
    [
        ("--max-model-len, '8192'", "--ctx-size=4096", "", True),
        ("--max-model-len, '8192'", "-c, '8192'", "", True),
        ("--max-model-len=8192", "--context-length, '16384'", "", False),
        ("--max-model-len, '8192'", "--other, '4096'", "", False),
        ("--max-model-len, '8192'", "--ctx-size=4096", ", retry: {fallback_on: []}", False),
    ],
)
def test_fallback_with_a_smaller_context(tmp_path: Path, own: str, theirs: str, rules: str, is_useless: bool) -> None:
    engine = "  %s: {upstreams: [%s], command: {argv: [serve, %s]}}\n"
    engines = "engines:\n" + engine % ("a", "a", own) + engine % ("b", "b", theirs)
    models = f"models:\n  m: {{deployments: [{{upstream: a}}], fallbacks: [n]{rules}}}\n"
    models += "  n: {deployments: [{upstream: b}]}\n"
    found = warnings(tmp_path, engines + UPSTREAMS + models)
    assert [warning.split(": it")[0] for warning in found] == [
        "6: models.m.fallbacks: cannot serve a prompt that is too long for m"
    ] * is_useless


# the state folder


def test_state_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = unwritable_state(tmp_path / "file" / "state")
    assert found == (
        ("ops", "store"),
        f"{tmp_path}/file is not a folder: choose another path, or remove it; without it nothing survives a restart",
    )
    assert list(unwritable_state(tmp_path / "new" / "state")) == []


def test_state_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))  # root may write everywhere
    (found,) = unwritable_state(tmp_path / "state")
    assert found[1].startswith(f"{tmp_path} cannot be written by this user")


# the command


def test_strict_check_refuses_warnings(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"ops: {{store: '{tmp_path}/state'}}\n{UPSTREAMS}{MODEL}defaults: {{timeout: {{idle: 5m}}}}\n")
    path.chmod(0o600)
    usual, strict = (CliRunner().invoke(main, ["check", "-c", str(path), *more]) for more in ([], ["--strict"]))
    assert (usual.exit_code, strict.exit_code) == (0, 2)
    assert usual.stderr.startswith(f"warning: {path}:4: defaults.timeout.idle: 300s has no effect")
    assert strict.stderr.startswith(f"error: {path}:4: defaults.timeout.idle: 300s has no effect")
    path.write_text(path.read_text().replace("5m", "20s"))
    assert CliRunner().invoke(main, ["check", "-c", str(path), "--strict"]).exit_code == 0
