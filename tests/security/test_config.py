"""Untrusted input from the operator's side: a config that may have come from a template, and the installed packages.

A config is data, read once; the value of a variable is always text and is never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_guard.config import Config, ConfigError, parse_config
from tests.chaos.process import _ROOT, outcome_of, write
from tests.chaos.stand import standing
from tests.security.keys import CLIENT_KEY, UPSTREAM_KEY

UPSTREAMS = """\
upstreams:
  one: {dialect: openai, base_url: "http://127.0.0.1:1/v1"}
"""
MODELS = "models: {gpt: {deployments: [{upstream: one}]}}\n"


def read(text: str, **env: str) -> Config:
    return parse_config(UPSTREAMS + MODELS + text, "f.yaml", env)


def check_rejected(text: str, reason: str, env: Mapping[str, str] | None = None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml", env or {})
    assert any(reason in line for line in str(caught.value).splitlines()), str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {}']",
        "!!python/object/new:os.system ['touch {}']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object/apply:subprocess.check_output [['touch', '{}']]",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {}']",
        "!!binary dG91Y2g=",
        "!!set {{a, b}}",
    ],
)
@pytest.mark.parametrize("place", ["x: {}", "server: {{host: {}}}", "server: {}", "{}: x"])
def test_tag_makes_no_object_and_runs_nothing(value: str, place: str, tmp_path: Path) -> None:
    """C72, CVE-2020-14343: a YAML tag neither creates an object nor runs code."""
    sign = tmp_path / "ran"
    tagged = place.format(value.format(sign))
    with pytest.raises(ConfigError):
        read(f"{tagged}\n")
    assert not sign.exists()


async def test_config_that_would_run_something_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    """C72: the process exits with 2 and an error that names the line."""
    sign = tmp_path / "ran"
    text = UPSTREAMS + MODELS + f"server: !!python/object/apply:os.system ['touch {sign}']\n"
    code, error = await outcome_of(write(tmp_path / "config.yaml", text))
    assert code == 2
    assert "4: server: tags are not supported" in error
    assert "Traceback" not in error
    assert not sign.exists()


def bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb(8, 9), id="C73 nine to the seventh"),
        pytest.param(bomb(19, 2), id="C73 two to the eighteenth"),
        pytest.param("a: &a {" + ", ".join(f"k{n}: *a" for n in range(3)) + "}\n", id="C73 in a circle"),
        pytest.param("a: &a [" + "x, " * 1000 + "]\nb: [" + "*a, " * 1000 + "]\n", id="C73 wide"),
        pytest.param("a: " + "[" * 50_000, id="C73 deep lists"),
        pytest.param("a: " + "{a: " * 50_000, id="C73 deep mappings"),
        pytest.param("".join("  " * n + "a:\n" for n in range(900)), id="C73 deep blocks"),
        pytest.param("? " * 50_000, id="C73 deep keys"),
    ],
)
def test_few_lines_cannot_expand_into_an_endless_config(text: str) -> None:
    check_rejected(text, "more than 200000 values" if text.startswith(("a0", "a: &a [")) else "nested deeper")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("server: {host: a, host: b}\n", "server.host: duplicate key"),
        ("models: {gpt: {deployments: [{upstream: one}]}}\n", "models: duplicate key"),
        ('server: {host: a, "host": b}\n', "server.host: duplicate key"),
        ("server: {host: a, h\\u006fst: b}\n", "server.h\\u006fst: unknown key"),
        ('server: {host: a, "h\\u006fst": b}\n', "server.host: duplicate key"),
        ("server: {<<: {host: a}}\n", "merge keys are not supported"),
    ],
)
def test_key_that_is_there_twice_is_not_decided_by_its_order(text: str, reason: str) -> None:
    """C73: PyYAML would keep the last."""
    check_rejected(UPSTREAMS + MODELS + text, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("server: {port: 12:30}", "must be a port"),
        ("server: {port: 0x1F90}", "must be a port"),
        ("server: {port: 8_080}", "must be a port"),
        ("server: {port: yes}", "must be a port"),
        ("server: {port: 1e3}", "must be a port"),
        ("server: {host: 012}", "must be text, not a number; put it in quotes"),
        ("server: {host: true}", "must be text, not true or false; put it in quotes"),
        ("server: {client_keys: [{name: a, key: 0123456789}]}", "must be text, not a number; put it in quotes"),
        ("server: {client_keys: [{name: a, key: 1e5}]}", "must be text, not a number; put it in quotes"),
        ("server: {client_keys: [{name: a, key: null}]}", "must be text, not nothing; put it in quotes"),
        ("defaults: {timeout: {idle: 12:30:45}}", "not a duration: '12:30:45'"),
        ("defaults: {timeout: {idle: 2024-01-01}}", "not a duration: '2024-01-01'"),
        ("defaults: {timeout: {idle: .inf}}", "not a duration"),
        ("defaults: {timeout: {idle: 1e400}}", "not a duration"),
        ("defaults: {breaker: {failure_rate: .nan}}", "not a share"),
    ],
)
def test_value_is_read_as_written_and_has_the_type_of_its_key(text: str, reason: str) -> None:
    """C73: YAML 1.1 makes 45045 of 12:30:45, 10 of 012 and true of yes."""
    check_rejected(UPSTREAMS + MODELS + text + "\n", reason)


@pytest.mark.parametrize(
    "value",
    [
        'a"\nports: 1\n', "x: \n", "a, port: 1}", "{a: b}", "[a]", "*a", "!!python/name:os.system", "# no comment", "'",
        "${A}", "${HOME}", "$${A}", "${A:-x}", "%A%", "\\u0041",
    ],
)  # fmt: skip
def test_value_of_a_variable_is_text_and_read_once(value: str) -> None:
    """C74: a value is expanded neither as YAML nor as another variable."""
    server = read("server: {host: 'x${A}'}\n", A=value, HOME="/root").server
    assert (server.host, server.port) == (f"x{value}", 8080)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("${UNSET}", "the environment variable UNSET is not set"),
        ("${A}${UNSET}", "the environment variable UNSET is not set"),
        ("${A:-${B}}", "a variable is written ${NAME} or ${NAME:-default}"),
        ("${${A}}", "a variable is written ${NAME} or ${NAME:-default}"),
        ("${A", "a variable is written ${NAME} or ${NAME:-default}"),
        ("${}", "a variable is written ${NAME} or ${NAME:-default}"),
        ("${A.__class__}", "a variable is written ${NAME} or ${NAME:-default}"),
        ("$A", "a variable is written ${NAME} or ${NAME:-default}"),
    ],
)
def test_variable_that_is_not_there_is_an_error_and_not_nothing(raw: str, reason: str) -> None:
    """C74: an empty key would open the gateway, or send requests without a key."""
    check_rejected(UPSTREAMS + MODELS + f"server: {{host: '{raw}'}}\n", f"server.host: {reason}", {"A": "B", "B": "C"})


def test_variables_that_name_each_other_end_at_once() -> None:
    """C74: expansion is not recursive."""
    assert read("server: {host: '${A}'}\n", A="${B}${B}", B="${A}${A}").server.host == "${B}${B}"


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: '${K}'}", "server: {drain: '${K}'}", "server: {max_body: '${K}'}", "ops: {port: '${K}'}",
        "server: {client_keys: [{name: a, key: '${K} '}]}", "server: {client_keys: '${K}'}", "server: '${K}'",
        "server: {client_keys: [{name: a, key: '${K}'}, {name: b, key: '${K}'}]}", "ops: {token: ['${K}']}",
        "defaults: {timeout: {idle: '${K}'}}", "defaults: {retry: {jitter: '${K}'}}", "defaults: {balance: '${K}'}",
        "server: {idempotency: {/v1/x: '${K}'}}", "server: {host: '${K}', a: 1}", "defaults: {hedge: '${K}'}",
    ],
)  # fmt: skip
def test_error_shows_no_value_of_a_variable(text: str) -> None:
    """C74: neither the message nor the repr holds the value."""
    with pytest.raises(ConfigError) as caught:
        read(text + "\n", K=UPSTREAM_KEY)
    assert "CANARY" not in str(caught.value)
    assert "CANARY" not in repr(caught.value.problems)


async def test_reload_that_fails_shows_no_key_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C73 and C74: four broken reloads, each with a client key in it."""
    monkeypatch.setenv("APP_KEY", CLIENT_KEY)
    door = "server: {port: 0, client_keys: [{name: app, key: '${APP_KEY}'}]}\n"
    path = write(tmp_path / "config.yaml", UPSTREAMS + MODELS + door)
    async with standing(read(door, APP_KEY=CLIENT_KEY)) as stand:
        stand.app.reloads.path = path
        known = dict(stand.app.gateway._clients._known)
        for broken in ("'${APP_KEY} x'", f"*{CLIENT_KEY}", f"!{CLIENT_KEY} x", "'${APP_KEY}${GONE}'"):
            path.write_text(UPSTREAMS + MODELS + door.replace("'${APP_KEY}'", broken) + f"# {CLIENT_KEY}\n")
            with pytest.raises(ConfigError) as refused:
                await stand.app.reloads.reload("an operator")
            assert "CANARY" not in str(refused.value)
            assert stand.app.gateway._clients._known == known
        refusals = [line for line in stand.log if line["event"].startswith("reload failed")]
        assert len(refusals) == 4
        assert "CANARY" not in str(refusals)


# packages and image


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-image.lock"])
def test_every_package_is_pinned_to_its_hash(name: str) -> None:
    """C90: a package published later under the same version, or under another name, is not installed."""
    text = (_ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) > 10
    for line in lines:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==[0-9][^ ]* ", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line


def test_image_has_the_dependencies_of_a_store_key() -> None:
    """Stored calls can be encrypted in a container, too."""
    assert "\ncryptography==" in (_ROOT / "requirements-image.lock").read_text(encoding="utf-8")
    assert "/venv/bin/pip install --no-cache-dir --require-hashes -r requirements-image.lock" in (
        _ROOT / "Dockerfile"
    ).read_text(encoding="utf-8")


def test_nothing_is_installed_without_hashes() -> None:
    """C90: every `pip install` in Makefile and Dockerfile verifies hashes."""
    for name in ("Makefile", "Dockerfile"):
        text = (_ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            # Exempt: the project itself without dependencies, and the tool that resolves the locks.
            if "pip install" in line and "--no-deps" not in line and not line.rstrip().endswith(" uv"):
                assert "--require-hashes" in line, f"{name}: {line}"


def test_package_brings_no_file_that_runs_when_python_starts() -> None:
    """C90: litellm 1.82.8 stole credentials through a `.pth` file in its wheel."""
    own = [name for _, _, names in os.walk(_ROOT / "llm_guard") for name in names]
    assert own
    assert not [name for name in own if name.endswith((".pth", ".start", ".so")) or name == "sitecustomize.py"]
