from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_guard.config import Config, ConfigError, ConfigProblem, load_config, parse_config
from llm_guard.config.yaml_source import plain_scalar, read_document

BASE = """\
upstreams:
  openai: {dialect: openai, base_url: "https://api.openai.com/v1"}
  anthropic: {dialect: anthropic, base_url: "https://api.anthropic.com"}
"""  # three lines: text that a test appends begins on line 4
SECRET = "sk-" + "5ecret" * 20
MODELS = "models: {gpt-4: {deployments: [{upstream: openai}]}}\n"


def parse(text: str, **env: str) -> Config:
    return parse_config(BASE + text, "f.yaml", env)


def problems(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Returns the lines of the error without the prefix `f.yaml:`."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml", env or {})
    return [line.removeprefix("f.yaml:") for line in str(caught.value).split("\n")]


def problem(text: str, **env: str) -> str:
    found = problems(BASE + text, env)
    assert len(found) == 1, found
    return found[0]


QUOTES = '; between { } or [ ] put a variable in quotes: "${NAME}"'
MARKS = "; put text that begins with *, & or ! in quotes"


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("yes", "yes"), ("no", "no"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"), ("1_000", "1_000"), ("true", True), ("False", False), ("010", 10), ("-3", -3), ("1.5", 1.5),
        ("1e3", 1000.0), (".5", 0.5), ("9" * 5000, "9" * 5000),
        ("~", None), ("", None), ("null", None), ("nul", "nul"), ("1.2.3", "1.2.3"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = plain_scalar(text)
    assert (found, type(found)) == (value, type(value))


def test_keys_that_resemble_numbers_or_booleans_are_names() -> None:
    models = parse(
        "models: {4: {deployments: [{upstream: openai}]}, 1.50: {deployments: [{upstream: openai, model: off}]},"
        " true: {deployments: [{upstream: openai}]}}"
    ).models
    assert list(models) == ["4", "1.50", "true"]
    assert models["1.50"].deployments[0].model == "off"


def test_aliases_are_followed() -> None:
    models = parse("models:\n  a: &a {deployments: [{upstream: openai}]}\n  b: *a\n").models
    assert models["b"] == models["a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file is empty"),
        ("# nothing\n", "1: the file is empty"),
        ("[a]", "1: the file must be a mapping of keys, not a list"),
        ("\na: b: c", "2:5: not YAML: unexpected colon: put text with a colon in quotes, or start a new line"),
        ("a: 'x", "1:4: not YAML: this ' is not closed: ' is missing before the end of the file"),
        ("a: *x", "1:4: not YAML: found undefined alias" + MARKS),
        ("a: !x!y 1", "1:4: not YAML: while parsing a node, found undefined tag handle" + MARKS),
        ("a: &x 1\nb: &x 2", "2:4: not YAML: found duplicate anchor; first occurrence, second occurrence" + MARKS),
        ("a: 1\n---\nb: 1", "2:1: not YAML: expected a single document in the stream, but found another document"),
        ("a: 1\nb: \x00", "2: not text: character U+0000 is not allowed"),
        ("a: " + "[" * 1000, "1: nested deeper than 20 levels"),
        ("a: &a\n - *a", "1: nested deeper than 20 levels"),
        ("a: [{b: c}\nd: e\n", "1:4: not YAML: this [ is not closed: , or ] is missing before line 2, column 1"),
        ("a: [{b: c]", "1:5: not YAML: this { is not closed: , or } is missing before line 1, column 10"),
        ("a:\n  b: {c: 1\n", "2:6: not YAML: this { is not closed: , or } is missing before the end of the file"),
        ('a: "${X}\n', '1:4: not YAML: this " is not closed: " is missing before the end of the file'),
        ("a: {b: ${X}}", "1:9: not YAML: while parsing a flow mapping, expected ',' or '}', but got '{'" + QUOTES),
    ],
)  # fmt: skip
def test_invalid_yaml_is_one_problem_with_its_line(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_aliases_cannot_multiply_without_end() -> None:
    bomb = "a: &a [" + ",".join("x" * 10) + "]\n"
    for name, inner in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [" + ",".join([f"*{inner}"] * 10) + "]\n"
    (found,) = problems(bomb)
    assert found.endswith(": more than 200000 values")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {port: 1}\nserver: {port: 2}\n", "6: server: duplicate key; first on line 5"),
        ("server:\n  port: 1\n  port: 2\n", "7: server.port: duplicate key; first on line 6"),
        ("server: {[1]: 2}\n", "5: server.?: a key must be text"),
        ("server: {~: 2}\n", "5: server.~: a key must be text"),
        (
            "server:\n  <<: {port: 1}\n",
            "6: server.<<: merge keys are not supported; put settings that all models share under defaults",
        ),
        (
            "server: {host: !env X}\n",
            "5: server.host: tags are not supported; put text that begins with ! in quotes",
        ),
        ("ops: {token: !!x y}\n", "5: ops.token: tags are not supported; put text that begins with ! in quotes"),
        ("server: {port: !!int x}\n", "5: server.port: not a valid !!int"),
        ('server: {"${X}": 1}\n', "5: server.${X}: variables are only supported in values, not in keys"),
        ("server:\n", "5: server: must be a mapping of keys, not nothing"),
    ],
)
def test_yaml_features_that_the_config_forbids(text: str, expected: str) -> None:
    assert problem(MODELS + text) == expected


@pytest.mark.parametrize(
    "key",
    [
        "*5ecret", "!5ecret", "!5ecret!1", "!<5ecret> x", "!!5ecret x", "&5ecret", "&5ecret x, at: &5ecret y",
        "@5ecret", "`5ecret", "%5ecret", "'5ecret", '"\\q5ecret"', "[5ecret]", "{5ecret: 1}", "5ecret 5ecret",
    ],
)  # fmt: skip
def test_key_that_yaml_reads_as_something_else_is_not_shown(key: str) -> None:
    found = problems(BASE + MODELS + f"server: {{client_keys: [{{name: a, key: {key}}}]}}\n")
    assert found
    assert "5ecret" not in "".join(found)


def test_key_without_a_colon_before_it_is_not_shown() -> None:
    found = problems(BASE + MODELS + "ops: {token 5ecret}\n")
    assert found == ["5: ops: token has no value: a colon is missing"]


def test_names_with_blanks_are_names() -> None:
    assert "gpt 4" in parse("models: {gpt 4: {deployments: [{upstream: openai}]}}").models


# files


def test_file_without_end_is_one_problem(tmp_path: Path) -> None:
    """Reading it to the end would exhaust the memory of a running gateway."""
    with pytest.raises(ConfigError, match="/dev/zero: is larger than 1 MiB"):
        load_config("/dev/zero", {})
    file = tmp_path / "f.yaml"
    file.write_text(BASE + MODELS + "# " + "x" * ((1 << 20) - len(BASE + MODELS) - 2))
    assert load_config(file, {}).models
    file.write_text(file.read_text() + "x")
    with pytest.raises(ConfigError, match="is larger than 1 MiB"):
        load_config(file, {})


def test_absent_file_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load_config(tmp_path / "none.yaml", {})


def test_folder_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})


def test_file_that_is_not_utf_8_is_one_problem_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert caught.value.problems == (ConfigProblem(str(file), 2, "", "not valid UTF-8 text"),)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (BASE + MODELS).encode())
    assert "gpt-4" in load_config(file, {}).models


# variables


def test_variable_without_braces_is_a_slip_and_not_a_value() -> None:
    found = problem(MODELS + "server: {host: $HOST}\n")
    assert found == "5: server.host: a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("${A}", "one"), ("x-${A}-${A}", "x-one-one"), ("${NONE:-two}", "two"), ("${A:-two}", "one"),
        ("${EMPTY:-two}", "two"), ("x${EMPTY}", "x"),
        ("$${A}", "${A}"), ("$$$$", "$$"), ("$1", "$1"), ("${NESTED}", "${A}"),
    ],
)  # fmt: skip
def test_variables_are_put_in_once(raw: str, value: str) -> None:
    config = parse(f"{MODELS}server: {{host: '{raw}'}}", A="one", EMPTY="", NESTED="${A}")
    assert config.server.host == value
    assert type(config.server.host) is str


def test_value_of_a_variable_never_becomes_yaml() -> None:
    server = parse(f"{MODELS}server:\n  host: ${{A}}\n", A="x, port: 1}\n# y").server
    assert (server.host, server.port) == ("x, port: 1}\n# y", 8080)


def test_empty_secret_is_none() -> None:
    config = parse(f"{MODELS}ops: {{token: '${{A:-}}'}}")
    assert config.ops.token is None


def test_variable_may_be_a_number_where_a_number_is_expected() -> None:
    config = parse(
        "server: {port: '${PORT}', client_keys: [{name: a, key: '${KEY}'}]}\n"
        "models:\n  m:\n    deployments: [{upstream: openai, model: '${KEY}'}]\n"
        "    retry: {max_attempts: '${N}', immediate_first: '${B}', budget: {ratio: '${R:-0.3}'}}\n",
        PORT="81", KEY="007", N="4", B="false",
    )  # fmt: skip
    model = config.models["m"]
    assert (config.server.port, config.server.client_keys[0].key, model.deployments[0].model) == (81, "007", "007")
    assert (model.retry.max_attempts, model.retry.immediate_first, model.retry.budget.ratio) == (4, False, 0.3)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("${NONE}", "the environment variable NONE is not set; set it, or allow that: ${NONE:-}"),
        ("${A", "a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$"),
        ("${A:-${B}}", "a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$"),
        ("${1}", "a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$"),
    ],
)
def test_variable_that_cannot_be_read_is_one_problem(raw: str, expected: str) -> None:
    text = f"{MODELS}defaults:\n  timeout: {{idle: '{raw}'}}"
    assert problem(text) == f"6: defaults.timeout.idle: {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("defaults: {timeout: {idle: '${S}'}}", "not a duration: '${S}'; write 200ms, 5s, 2m or 1h"),
        ("defaults: {retry: {jitter: 'a${S}'}}", "not a jitter: 'a${S}'; write 0.3, full, equal or decorrelated"),
        ("defaults: {breaker: {min_calls: '${N}'}}", "not a count: '${N}'; write a whole number of at least 1"),
        ("server: {drain: '1${S:-s}'}", "not a duration: '1${S:-s}'; write 200ms, 5s, 2m or 1h"),
        (
            "server: {max_body: '${NUL:-1KiB}${NUL:-x}'}",
            "not a size: '${NUL:-1KiB}${NUL:-x}'; write 64MiB, 512KiB or a number of bytes > 0",
        ),
        ("server: {port: '${S}'}", "must be a port: a whole number from 0 to 65535; 0 takes a free port"),
        (
            "ops: {token: '${LINES}'}",
            "must be printable ASCII without spaces and line breaks: it is sent in an HTTP header",
        ),
    ],
)
def test_value_of_a_variable_is_never_shown(text: str, expected: str) -> None:
    found = problem(MODELS + text, S=SECRET, N="0", LINES=f"{SECRET}\n{SECRET}")
    assert found.endswith(f": {expected}")
    assert "5ecret" not in found


def test_value_is_not_shown_even_where_its_raw_text_would_be_valid() -> None:
    found = problem(MODELS + "server: {drain: '${S}'}".replace("${S}", "${S:-}5s"), S="5ecret")
    assert "5ecret" not in found
    assert "${S:-}5s" in found


@pytest.mark.parametrize("text", ["base_url: '${U}'", "base_url: 'https://${U}@h'", "base_url: '${U}', auth: '${U}'"])
def test_secret_in_a_url_or_a_choice_is_never_shown(text: str) -> None:
    found = problems(f"upstreams: {{a: {{dialect: openai, {text}}}}}\n{MODELS}", {"U": f"https://u:{SECRET}@h"})
    assert "5ecret" not in "".join(found)


@pytest.mark.parametrize(
    "text", ['a: "\\ud800"', '"\\ud800": 1', 'a: "\\UFFFFFFFF"', 'a: "\\U00110000"', f"%YAML 1.{'1' * 5000}\n---\na: 1"]
)
def test_non_text_is_refused_on_its_line(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_document(text, "f.yaml", {})
    assert str(refused.value).startswith("f.yaml:1: ")
    str(refused.value).encode()
