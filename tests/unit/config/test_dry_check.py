"""Dry check of a submitted config text, which must not reveal the values of environment variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config import try_text

SECRET = "sk-live-7f3a"
ENV = {"KEY": SECRET, "PORT": "8080", "DIALECT": "openai"}


def text(**sections: Any) -> str:
    usual = {
        "upstreams": {"a": {"dialect": "openai", "base_url": "https://a.example/v1", "api_key": "${KEY}"}},
        "models": {"gpt": {"deployments": [{"upstream": "a"}]}},
    }
    return json.dumps({**usual, **sections})


def problems(content: str, env: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
    return [
        (problem.line, problem.key, problem.reason)
        for problem in try_text(content, "text", ENV if env is None else env).problems
    ]


def test_text_that_would_do_has_no_problem() -> None:
    tried = try_text(text(), "text", ENV)
    assert (tried.problems, tried.unchecked) == ((), ("upstreams.a.api_key",))


def test_problems_have_line_and_key() -> None:
    content = "upstreams:\n  a: {dialect: openai, base_url: 'http://x'}\nmodels:\n  gpt:\n    deploymints: []\n"
    assert [(line, key) for line, key, _ in problems(content)] == [
        (4, "models.gpt.deployments"),
        (5, "models.gpt.deploymints"),
    ]
    assert problems("{")[0][:2] == (1, "")


def test_variable_that_is_not_set_is_a_problem() -> None:
    assert [key for _, key, _ in problems(text(), {})] == ["upstreams.a.api_key"]


@pytest.mark.parametrize(
    ("section", "right"),
    [
        # In each section, the value of the variable would decide whether the config is accepted.
        (lambda value: {"server": {"port": value}}, "8080"),
        (lambda value: {"server": {"head_timeout": value}}, "5s"),
        (lambda value: {"defaults": {"retry": {"jitter": value}}}, "0.5"),
        (lambda value: {"models": {"gpt": {"deployments": [{"upstream": value}]}}}, "a"),
        (lambda value: {"models": {"gpt": {"deployments": [{"upstream": "a"}], "fallbacks": [value]},
                                   "sk-l*": {"deployments": [{"upstream": "a"}]}}}, "sk-lo"),
        (lambda value: {"server": {"client_keys": [{"name": value, "key": "k1"}, {"name": value, "key": "k2"}]}}, "n"),
        (lambda value: {"server": {"client_keys": [{"name": "n", "key": value}, {"name": "m", "key": "sk-guess"}]}},
         "sk-guess"),
        (lambda value: {"upstreams": {"a": {"dialect": value, "base_url": "https://a.example"}}}, "openai"),
        (lambda value: {"upstreams": {"a": {"dialect": "openai", "base_url": value}}}, "https://a.example"),
    ],
)  # fmt: skip
def test_result_is_the_same_for_any_value_of_the_variable(section: Any, right: str) -> None:
    content = text(**section("${PROBED}"))
    answers = {
        str(try_text(content, "text", {**ENV, "PROBED": value})) for value in (right, "wrong", SECRET, "", "0", "5s")
    }
    assert len(answers) == 1
    assert not try_text(content, "text", {**ENV, "PROBED": "wrong"}).problems


def test_no_value_of_the_environment_is_shown() -> None:
    content = text(
        server={"port": "${KEY}", "client_keys": [{"name": "${KEY}", "key": "k"}, {"name": "${KEY}", "key": "${KEY}"}]},
        defaults={"timeout": {"idle": "${KEY}", "total": "x${KEY}"}},
        models={"gpt": {"deployments": [{"upstream": "${KEY}"}], "fallbacks": ["${KEY}"]}},
    )
    assert SECRET not in str(try_text(content, "text", ENV))


def test_report_on_a_list_depends_on_the_variables_in_it() -> None:
    """The placeholder for the value of KEY must not match a pattern."""
    a = [{"upstream": "a"}]
    models = {"one": {"deployments": a, "fallbacks": ["${KEY}"]}, "k*": {"deployments": a, "fallbacks": ["one"]}}
    tried = try_text(text(models=models), "text", ENV)
    assert tried.problems == ()
    assert "models.one.fallbacks[0]" in tried.unchecked


def test_checks_that_depend_on_a_variable_are_skipped_and_others_are_not() -> None:
    content = text(
        models={"gpt": {"deployments": [{"upstream": "${KEY}"}, {"upstream": "nobody"}], "fallbacks": ["none"]}}
    )
    tried = try_text(content, "text", ENV)
    assert [problem.key for problem in tried.problems] == [
        "models.gpt.deployments[1].upstream",
        "models.gpt.fallbacks[0]",
    ]
    assert tried.unchecked == ("upstreams.a.api_key", "models.gpt.deployments[0].upstream")


def test_check_lists_upstreams_whose_streams_may_end_without_a_finish_reason(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(
        "upstreams: {a: {dialect: openai, base_url: 'http://h/v1', stream_end: lenient}}\n"
        "models: {m: {deployments: [{upstream: a}]}}\n"
    )
    said = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert "upstreams.a.stream_end: lenient: streams without a finish_reason count as complete" in said.output
