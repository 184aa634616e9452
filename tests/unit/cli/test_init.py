"""`llm-guard init`, and the path of the config that other commands take by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llm_guard.cli import init_command
from llm_guard.cli.main import main
from llm_guard.config import load_config
from tests.unit.config.test_json_schema import problems

ENV = {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-a", "BACKUP_API_KEY": "sk-b", "MY_KEY": "sk-m"}
BOTH = ("--provider", "openai", "--provider", "backup=https://b.example/v1")


TOKEN = "0123456789abcdef"


def add_token() -> None:
    path = Path("llm_guard.yaml")
    path.write_text(path.read_text().replace("  store: null ", f"  token: {TOKEN}\n  store: null "))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (*ENV, "LLM_GUARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, said: str = "", env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=said, env=env)


@pytest.mark.parametrize(
    ("options", "models"),
    [
        (("--provider", "openai"), {"gpt-*": ["openai"]}),
        (("--provider", "anthropic", "--provider", "openai"), {"claude-*": ["anthropic"], "gpt-*": ["openai"]}),
        ((*BOTH, "--model", "gpt-4o=openai,backup"), {"gpt-4o": ["openai", "backup"]}),
        ((*BOTH, "--model", "gpt-4o"), {"gpt-4o": ["openai", "backup"]}),
        (BOTH, {"gpt-*": ["openai"], "*": ["backup"]}),
    ],
)
def test_config_passes_the_strict_check(options: tuple[str, ...], models: dict[str, list[str]], folder: Path) -> None:
    made = run("init", *options)
    assert made.exit_code == 0, made.output
    checked = run("check", "--strict", env=ENV)
    assert checked.exit_code == 0, checked.output
    config = load_config("llm_guard.yaml", ENV)
    assert {name: [each.upstream for each in model.deployments] for name, model in config.models.items()} == models
    text = Path("llm_guard.yaml").read_text()
    assert problems(text) == []
    assert text.startswith("# yaml-language-server: $schema=llm_guard.schema.json\n")
    assert Path("llm_guard.schema.json").read_text() == run("schema").output


def test_options_reach_the_file(folder: Path) -> None:
    keys = ("--key", "openai=MY_KEY", "--key", "backup=")
    made = run("init", *BOTH, *keys, "--port", "9000", "--store", f"{folder}/s$", "own.yaml")
    assert "export MY_KEY=..." in made.output
    assert "llm-guard serve -c own.yaml" in made.output
    config = load_config("own.yaml", ENV)
    assert (config.server.port, config.ops.store) == (9000, f"{folder}/s$")
    assert [upstream.api_key for upstream in config.upstreams.values()] == ["sk-m", None]


def test_file_is_never_overwritten() -> None:
    Path("llm_guard.yaml").write_text("mine")
    refused = run("init", "--provider", "openai")
    assert (refused.exit_code, Path("llm_guard.yaml").read_text()) == (1, "mine")
    assert "llm_guard.yaml exists already" in refused.stderr


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ((), 2, "give --provider, or run this on a terminal"),
        (("--provider", "openi"), 2, "openi: write openai, anthropic, or NAME=URL for another provider"),
        (("--provider", "openai", "--provider", "openai"), 2, "openai is given twice"),
        (("--provider", "openai", "--key", "opena=X"), 2, "opena is not one of the providers"),
        (("--provider", "a=https://a.example"), 2, "upstreams.a.base_url: has no path: add /v1"),
        (("--provider", "a=a.example/v1"), 2, "upstreams.a.base_url: must be a URL"),
        (("--provider", "openai", "--model", "m=other"), 2, "no upstream has this name"),
        (("--provider", "openai", "missing/own.yaml"), 1, "missing/own.yaml cannot be written: No such file"),
    ],
)
def test_wrong_options_write_nothing(options: tuple[str, ...], code: int, expected: str, folder: Path) -> None:
    refused = run("init", *options)
    assert refused.exit_code == code, refused.output
    assert expected in refused.stderr
    assert list(folder.iterdir()) == []


def test_key_in_place_of_its_variable_is_not_repeated() -> None:
    refused = run("init", "--provider", "openai", "--key", "openai=sk-5ecret")
    assert refused.exit_code == 2
    assert "must be the name of a variable" in refused.stderr
    assert "5ecret" not in refused.output


def test_questions_are_asked_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    answers = "openai, backup=https://b.example/v1\n\n-\ngpt-4o, small=backup\n9090\n\n"
    asked = run("init", said=answers)
    assert asked.exit_code == 0, asked.output
    config = load_config("llm_guard.yaml", ENV)
    assert list(config.models) == ["gpt-4o", "small"]
    assert (config.server.port, config.ops.store) == (9090, None)
    assert [upstream.api_key for upstream in config.upstreams.values()] == ["sk-o", None]


def test_question_whose_answer_is_an_option_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    options = ("--key", "openai=MY_KEY", "--model", "gpt-4o", "--port", "9000", "--store", "s")
    asked = run("init", *options, said="\n")
    assert asked.exit_code == 0, asked.output
    assert asked.output.count("?") + asked.output.count(" [") == 1


# the default path


def test_variable_names_the_config(folder: Path) -> None:
    run("init", "--provider", "openai", "own.yaml")
    assert run("check", env=ENV).exit_code == 2
    checked = run("check", env={**ENV, "LLM_GUARD_CONFIG": "own.yaml"})
    assert (checked.exit_code, "own.yaml: valid" in checked.output) == (0, True)
    run("init", "--provider", "openai")
    assert "llm_guard.yaml: valid" in run("check", env=ENV).output
    assert "own.yaml: valid" in run("check", "-c", "own.yaml", env=ENV).output


@pytest.mark.parametrize("command", ["check", "serve"])
def test_missing_config_is_explained(command: str) -> None:
    refused = run(command)
    assert refused.exit_code == 2
    assert "give -c FILE, set LLM_GUARD_CONFIG, or write one with `llm-guard init`" in refused.stderr


def test_login_takes_the_default_config(folder: Path) -> None:
    run("init", "--provider", "openai", "--port", "9000")
    add_token()
    assert run("login").output.startswith("http://127.0.0.1:9000/dashboard#login=")


def test_token_of_the_default_config_is_not_sent_to_a_named_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def fetch(_url: str, token: str | None, *, is_local: bool) -> bytes:
        seen.append(token)
        return b"{}"

    monkeypatch.setattr("llm_guard.cli.explain_command._fetch", fetch)
    run("init", "--provider", "openai")
    add_token()
    run("explain", "--json")
    run("explain", "--url", "https://other.example", "--json")
    assert seen == [TOKEN, None]
