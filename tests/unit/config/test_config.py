from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_guard.config import Config, ConfigError, Ops, Rules, Server, load_config, parse_config
from llm_guard.outcome import FailureKind

CONFIG_FOLDER = Path(__file__).parents[3] / "config"

BASE = """\
upstreams:
  openai: {dialect: openai, base_url: "https://api.openai.com/v1"}
  anthropic: {dialect: anthropic, base_url: "https://api.anthropic.com"}
"""  # three lines: text that a test appends begins on line 4
SECRET = "sk-" + "5ecret" * 20
RULES = (
    "timeout, retry, breaker, capacity, balance, hedge, stream, max_buffered_answer, cache, dead_letter, "
    "deferred, degraded, ..."
)
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


# contents of a file


def test_annotated_file_lists_every_default() -> None:
    config = load_config(CONFIG_FOLDER / "llm_guard.yaml", {})
    ops = config.ops.model_copy(update={"hosts": ()})  # the file shows an example here
    assert (config.server, ops, config.defaults) == (Server(), Ops(), Rules())


def test_annotated_file_names_every_key() -> None:
    text = (CONFIG_FOLDER / "llm_guard.yaml").read_text(encoding="utf-8")
    rules = Rules()
    settings: tuple[Any, ...] = (
        rules.timeout, rules.retry, rules.retry.base_delays, rules.retry.budget, rules.breaker, rules.capacity,
    )  # fmt: skip
    keys = [field.name for setting in settings for field in dataclasses.fields(setting)]
    missing = {key for key in (*Server.model_fields, *Ops.model_fields, *keys) if f" {key}:" not in text}
    assert not missing


def test_example_of_the_interface_is_valid() -> None:
    config = parse(
        "models:\n"
        "  gpt-4-turbo:\n"
        "    deployments: [{upstream: openai, model: gpt-4-turbo}]\n"
        "    fallbacks: [gpt-4o-mini]\n"
        '  "gpt-*": {deployments: [{upstream: openai}]}\n'
    )
    assert config.models["gpt-4-turbo"].fallbacks == ("gpt-4o-mini",)


def test_minimal_file_passes_the_callers_key_on() -> None:
    config = load_config(CONFIG_FOLDER / "minimal.yaml", {})
    assert config.upstreams["openai"].api_key is None
    assert config.defaults == Rules()


def test_auth_follows_the_dialect_unless_it_is_set() -> None:
    config = parse(MODELS.replace("models", "  azure: {dialect: openai, base_url: 'http://a', auth: api-key}\nmodels"))
    assert [upstream.auth for upstream in config.upstreams.values()] == ["bearer", "x-api-key", "api-key"]


def test_model_inherits_unset_fields_from_defaults() -> None:
    config = parse(
        "defaults:\n"
        "  timeout: {idle: 7s, total: 1m}\n"
        "  retry: {max_attempts: 5, budget: {ratio: 0.5, min_per_second: 1}}\n"
        "models:\n"
        "  a: {deployments: [{upstream: openai}], timeout: {total: 2m}, retry: {budget: {ratio: 0.1}}}\n"
        "  b: {deployments: [{upstream: openai}]}\n"
    )
    a, b = config.models["a"], config.models["b"]
    assert (a.timeout.idle, a.timeout.total, a.timeout.connect) == (7.0, 120.0, 5.0)
    assert (a.retry.max_attempts, a.retry.budget.ratio, a.retry.budget.min_per_second) == (5, 0.1, 1.0)
    assert (b.timeout, b.retry, b.breaker) == (
        config.defaults.timeout, config.defaults.retry, config.defaults.breaker,
    )  # fmt: skip


def test_sizes_durations_and_ports_are_numbers() -> None:
    server = parse(MODELS + "server: {max_body: 1KiB, drain: 1m, drain_delay: 1500ms, port: 0}").server
    assert (server.max_body, server.drain, server.drain_delay, server.port) == (1024, 60.0, 1.5, 0)
    assert (server.max_upload, server.max_spool) == (512 * 1024**2, None)
    server = parse(MODELS + "server: {max_upload: 1GiB, max_spool: 10GB}").server
    assert (server.max_upload, server.max_spool) == (1024**3, 10 * 1000**3)


def test_slash_at_the_end_of_a_base_url_is_dropped() -> None:
    text = (
        "upstreams: {a: {dialect: anthropic, base_url: 'http://h:1/x/'}}\nmodels: {m: {deployments: [{upstream: a}]}}"
    )
    assert parse_config(text, env={}).upstreams["a"].base_url == "http://h:1/x"


# single keys


IN_QUERY = "put parameters such as api-version in `query`"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://h/v1", "must be a URL such as https://api.example.com/v1"),
        ("api.openai.com/v1", "must be a URL such as https://api.example.com/v1"),
        ("http:///v1", "must be a URL such as https://api.example.com/v1"),
        ("http://h:99999", "must be a URL such as https://api.example.com/v1"),
        ("http://[::1", "must be a URL such as https://api.example.com/v1"),
        ("http://h/a b", "must be a URL such as https://api.example.com/v1"),
        ("http://user@h/v1", "must not contain a user or password; put the key in api_key"),
        ("http://h/v1?x=1", f"must not contain a query or a fragment; {IN_QUERY}"),
        ("http://h/v1#x", f"must not contain a query or a fragment; {IN_QUERY}"),
        ("http://h/v1/", "remove /v1: with dialect anthropic it is part of each call's path"),
    ],
)
def test_base_url_that_cannot_be_called(url: str, expected: str) -> None:
    text = f"upstreams:\n  a:\n    dialect: anthropic\n    base_url: '{url}'\n" + MODELS.replace("openai", "a")
    assert problems(text) == [f"4: upstreams.a.base_url: {expected}"]


def test_end_of_a_message_is_never_lenient() -> None:
    text = "upstreams:\n  a: {dialect: anthropic, base_url: 'http://h', stream_end: lenient}\n"
    assert problems(text + MODELS.replace("openai", "a")) == [
        "2: upstreams.a.stream_end: must be strict with dialect anthropic: its streams always end with message_stop"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {prot: 1}", "server.prot: unknown key; did you mean port?"),
        (
            "server: {zzz: 1}",
            (
                "server.zzz: unknown key; known: host, port, tls, workers, max_body, max_buffered, max_upload, "
                "max_spool, max_connections, head_timeout, body_timeout, keep_alive, ..."
            ),
        ),
        (
            "server: {idempotency: {/files: true}}",
            "server.idempotency: /files: write a path below /v1/, with * at its end for all below it",
        ),
        (
            "server: {idempotency: {'/v1/*/jobs': true}}",
            "server.idempotency: /v1/*/jobs: write a path below /v1/, with * at its end for all below it",
        ),
        (
            "server: {idempotency: {'/v1/files': maybe}}",
            "server.idempotency./v1/files: must be true or false, not text",
        ),
        (
            "defaults: {retry: {fallback_on: [rate_limit]}}",
            "defaults.retry.fallback_on[0]: must be 'context_length' or 'content_policy'",
        ),
        ("modles: {}", "modles: unknown key; did you mean models?"),
        ("defaults: {retry: {budget: {ratoi: 1}}}", "defaults.retry.budget.ratoi: unknown key; did you mean ratio?"),
        (
            "defaults: {deployments: []}",
            f"defaults.deployments: unknown key; known: {RULES}",
        ),
        (
            "server: {client_keys: [{nam: a, name: a, key: k}]}",
            "server.client_keys[0].nam: unknown key; did you mean name?",
        ),
        (
            "defaults: {zzz: 1}",
            f"defaults.zzz: unknown key; known: {RULES}",
        ),
        ("defaults: {stream: {recover: true}}", "defaults.stream.recover: must be off, auto, continue or restart"),
        (
            "defaults: {stream: {prebuffer: {tokens: 0}}}",
            "defaults.stream.prebuffer.tokens: not a count: 0; write a whole number of at least 1",
        ),
        (
            "defaults: {stream: {keepalive: {interval: soon}}}",
            "defaults.stream.keepalive.interval: not a duration: 'soon'; write 200ms, 5s, 2m or 1h",
        ),
        ("server: {port: true}", "server.port: must be a port: a whole number from 0 to 65535; 0 takes a free port"),
        ("server: {port: 65536}", "server.port: must be a port: a whole number from 0 to 65535; 0 takes a free port"),
        ("server: {host: 1}", "server.host: must be text, not a number; put it in quotes"),
        ("server: {drain: 0s}", "server.drain: a duration must be longer than 0: '0s'"),
        ("server: {client_keys: {a: b}}", "server.client_keys: must be a list, not a mapping"),
        ("server: {client_keys: [{name: a, key: ''}]}", "server.client_keys[0].key: must not be empty"),
        ("server: {client_keys: [{name: a}]}", "server.client_keys[0].key: is missing"),
        ("defaults: {timeout: 5s}", "defaults.timeout: must be a mapping of keys, not text"),
        (
            "defaults: {retry: {jitter: 2}}",
            "defaults.retry.jitter: not a jitter: 2; write 0.3, full, equal or decorrelated",
        ),
        (
            "defaults: {retry: {immediate_first: maybe}}",
            "defaults.retry.immediate_first: must be true or false, not text",
        ),
        ("ops: {port: 8080}", "ops.port: is the server's port; leave it out to serve both on one port"),
        (
            "server: {client_keys: [{name: a, key: k}, {name: a, key: l}]}",
            "server.client_keys[1].name: another client is named a",
        ),
        (
            "server: {client_keys: [{name: a, key: k}, {name: b, key: k}]}",
            "server.client_keys[1].key: is the key of a as well",
        ),
    ],
)
def test_wrong_value_is_reported_with_line_key_and_reason(text: str, expected: str) -> None:
    assert problem(MODELS + text) == f"5: {expected}"


def test_wrong_dialect_is_one_problem() -> None:
    text = "upstreams: {a: {dialect: opena, base_url: 'http://h'}}\nmodels: {m: {deployments: [{upstream: a}]}}"
    assert problems(text) == ["1: upstreams.a.dialect: must be 'openai' or 'anthropic'"]


def test_upstream_names_are_valid_in_a_path() -> None:
    text = "upstreams: {a/b: {dialect: openai, base_url: 'http://h'}}\nmodels: {m: {deployments: [{upstream: a/b}]}}"
    assert problems(text) == ["1: upstreams.a/b: a name has 1 to 64 letters, digits, dots and dashes"]


def test_file_without_upstreams_and_models_is_reported() -> None:
    assert problems("server: {}") == [
        "1: upstreams: must have at least one entry",
        "1: models: must have at least one entry",
    ]
    assert problems("upstreams: {}\nmodels: 5") == [
        "1: upstreams: must have at least one entry",
        "2: models: must be a mapping, not a number",
    ]


# relations between keys


def model(rest: str) -> str:
    return f"models:\n  m: {{deployments: [{{upstream: openai}}], {rest}}}\n"


NO_KEY = (
    "has another dialect and no API key: a caller's key must not be sent to anthropic; set "
    "upstreams.anthropic.api_key, or auth: none if it needs no key"
)
OFF = "has another dialect; calls are not translated: `translate` is off"
ONE_MODEL = "must be the name of one model; leave it out to send the requested name"
OTHERS = (
    "  n: {deployments: [{upstream: openai}], fallbacks: [m]}\n"
    "  claude: {deployments: [{upstream: anthropic}]}\n"
    '  "c*": {deployments: [{upstream: anthropic}]}\n'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (model("fallbacks: [mm]"), "5: models.m.fallbacks[0]: no model has this name; did you mean m?"),
        (model("fallbacks: [m]"), "5: models.m.fallbacks[0]: falls back to itself"),
        (model("fallbacks: ['*']"), "5: models.m.fallbacks[0]: must be one model's name, not a pattern"),
        (model("fallbacks: [n]") + OTHERS, "5: models.m.fallbacks: form a loop: m -> n -> m"),
        (model("fallbacks: [claude]") + OTHERS, f"5: models.m.fallbacks[0]: {NO_KEY}"),
        (model("fallbacks: [claude-9]") + OTHERS, f"5: models.m.fallbacks[0]: {NO_KEY}"),
        (model("fallbacks: [claude], translate: off") + OTHERS, f"5: models.m.fallbacks[0]: {OFF}"),
        (
            model("fallbacks: [o, o]") + "  o: {deployments: [{upstream: openai}]}",
            "5: models.m.fallbacks[1]: the same fallback is listed twice",
        ),
        (
            "models: {m: {deployments: [{upstream: opnai}]}}",
            "4: models.m.deployments[0].upstream: no upstream has this name; did you mean openai?",
        ),
        (
            "models: {m: {deployments: [{upstream: openai}, {upstream: openai, model: m}]}}",
            "4: models.m.deployments[1]: the same deployment is listed twice",
        ),
        (
            "models: {m: {deployments: [{upstream: openai}, {upstream: anthropic}]}}",
            f"4: models.m.deployments[1].upstream: {NO_KEY}",
        ),
        ("models: {m: {deployments: []}}", "4: models.m.deployments: must not be empty"),
        ("models: {m: {}}", "4: models.m.deployments: is missing"),
        ("models: {m: }", "4: models.m: must be a mapping of keys, not nothing"),
        (
            "models: {m: {deployments: [{upstream: openai, model: 'g*'}]}}",
            f"4: models.m.deployments[0].model: {ONE_MODEL}",
        ),
        (
            "models: {'g?': {deployments: [{upstream: openai}]}}",
            "4: models.g?: the only wildcard is *, for any text; ? and [ ] are not supported",
        ),
        (
            'models: {"a\\nb": {deployments: [{upstream: openai}]}}',
            "4: models.a\\nb: a name has 1 to 256 printable characters",
        ),
        (
            "models: {'g*': {deployments: [{upstream: openai}], fallbacks: [gpt]}}",
            "4: models.g*.fallbacks[0]: falls back to itself; give gpt an entry of its own",
        ),
    ],
)
def test_fallback_or_pattern_that_cannot_work(text: str, expected: str) -> None:
    assert problem(text) == expected


def test_fallback_is_found_as_a_client_would_find_it() -> None:
    config = parse(
        "models:\n"
        "  m: {deployments: [{upstream: openai}], fallbacks: [gpt-5-mini]}\n"
        '  "*": {deployments: [{upstream: anthropic}]}\n'
        '  "gpt-*": {deployments: [{upstream: openai}]}\n'
    )
    assert config.models["m"].fallbacks == ("gpt-5-mini",)


def test_every_circle_is_reported_once_from_its_first_model() -> None:
    models = {"a": "b", "b": "c", "c": "b, d", "d": "a", "e": "a"}
    text = "".join(
        f"  {name}: {{deployments: [{{upstream: openai}}], fallbacks: [{to}]}}\n" for name, to in models.items()
    )
    assert sorted(problems(BASE + "models:\n" + text)) == [
        "5: models.a.fallbacks: form a loop: a -> b -> c -> d -> a",
        "6: models.b.fallbacks: form a loop: b -> c -> b",
    ]


def test_error_in_a_default_is_reported_once_at_its_place() -> None:
    text = (
        "defaults:\n"
        "  timeout:\n"
        "    idel: 1s\n"
        "  retry: {budget: {ratio: 7}}\n"
        "models:\n"
        "  a: {deployments: [{upstream: openai}], timeout: {total: 1s}, retry: {budget: {min_per_second: 1}}}\n"
        "  b:\n"
        "    deployments: [{upstream: openai}]\n"
        "    retry: {max_attempts: 2, budget: {ratio: 8}}\n"
    )
    assert problems(BASE + text) == [
        "6: defaults.timeout.idel: unknown key; did you mean idle?",
        "7: defaults.retry.budget.ratio: not a share: 7; write a number from 0 to 1",
        "12: models.b.retry.budget.ratio: not a share: 8; write a number from 0 to 1",
    ]


def test_all_problems_of_a_file_are_reported_in_the_order_of_its_lines() -> None:
    text = (
        "models:\n"
        "  a: {deployments: [{upstream: nowhere}], fallbacks: [b], timeout: {idle: soon}}\n"
        "server: {port: -1, host: '${NONE}'}\n"
        "ops: {prot: 1}\n"
    )
    lines = [line.split(":", 2)[:2] for line in problems(BASE + text)]
    assert lines == [
        ["5", " models.a.timeout.idle"],
        ["5", " models.a.deployments[0].upstream"],
        ["5", " models.a.fallbacks[0]"],
        ["6", " server.host"],
        ["6", " server.port"],
        ["7", " ops.prot"],
    ]


def test_a_config_cannot_be_changed() -> None:
    config = parse(MODELS)
    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1  # type: ignore[misc]


def test_config_never_shows_its_secrets() -> None:
    config = parse_config(
        f"upstreams: {{a: {{dialect: openai, base_url: 'http://h', api_key: {SECRET}}}}}\n"
        f"server: {{client_keys: [{{name: app, key: {SECRET}}}]}}\n"
        f"ops: {{token: {SECRET}-ops, tokens: [{{name: ann, token: {SECRET}-ann, role: viewer}}]}}\n"
        f"models: {{m: {{deployments: [{{upstream: a}}]}}}}",
        env={},
    )
    assert config.upstreams["a"].api_key == config.server.client_keys[0].key == SECRET
    assert (config.ops.token, config.ops.tokens[0].token) == (f"{SECRET}-ops", f"{SECRET}-ann")
    assert "5ecret" not in repr(config) + str(config) + repr(config.server.client_keys) + repr(config.ops.tokens)


# error rules of an upstream


def with_errors(rule: str) -> str:
    return f"  a:\n    dialect: openai\n    base_url: 'http://a'\n    errors:\n      - {rule}\n" + MODELS


def test_rule_for_an_upstreams_errors_is_read_in_all_its_parts() -> None:
    rule = "{match: {status: [429, 5xx], code: foo, type: bar, message: '*pool is empty*'}, kind: rate_limit}"
    (read,) = parse(with_errors(rule)).upstreams["a"].errors
    assert read.kind is FailureKind.RATE_LIMIT
    assert read.match.status == frozenset({429, *range(500, 600)})
    assert (read.match.code, read.match.type, read.match.message) == ("foo", "bar", "*pool is empty*")
    compiled = read.compiled()
    assert (compiled.kind, compiled.code, compiled.type) == (FailureKind.RATE_LIMIT, "foo", "bar")
    assert compiled.message is not None
    assert compiled.message.pattern == "*pool is empty*"


def test_upstream_has_no_rules_for_errors_by_default() -> None:
    assert parse(MODELS).upstreams["openai"].errors == ()


def test_status_of_a_rule_may_be_a_variable() -> None:
    rule = "{match: {status: '${CODE}'}, kind: auth}"
    (read,) = parse(with_errors(rule), CODE="403").upstreams["a"].errors
    assert read.match.status == {403}


WRONG_STATUS = "must be an error status such as 429, a class such as 5xx, or a list of them"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{match: {}, kind: auth}", "8: upstreams.a.errors[0].match: is empty: set status, code, type or message"),
        ("{match: {message: '**'}, kind: auth}", "8: upstreams.a.errors[0].match: has no word to search for"),
        ("{match: {status: 200}, kind: auth}", f"8: upstreams.a.errors[0].match.status: {WRONG_STATUS}"),
        ("{match: {status: 6xx}, kind: auth}", f"8: upstreams.a.errors[0].match.status: {WRONG_STATUS}"),
        ("{match: {status: []}, kind: auth}", f"8: upstreams.a.errors[0].match.status: {WRONG_STATUS}"),
        ("{match: {status: true}, kind: auth}", f"8: upstreams.a.errors[0].match.status: {WRONG_STATUS}"),
        ("{match: {code: a}}", "8: upstreams.a.errors[0].kind: is missing"),
        ("{kind: auth}", "8: upstreams.a.errors[0].match: is missing"),
        ("{match: {code: ''}, kind: auth}", "8: upstreams.a.errors[0].match.code: must not be empty"),
        (
            "{match: {code: a}, kind: rate_limits}",
            "8: upstreams.a.errors[0].kind: is not a failure kind; did you mean rate_limit?",
        ),
        (
            "{match: {cod: a}, kind: auth}",
            "8: upstreams.a.errors[0].match.cod: unknown key; did you mean code?",
        ),
        (
            "{match: {code: a}, kin: auth}",
            "8: upstreams.a.errors[0].kin: unknown key; did you mean kind?",
        ),
    ],
)
def test_rule_without_effect_is_reported_with_its_line(rule: str, expected: str) -> None:
    assert expected in problems(BASE + with_errors(rule))


@pytest.mark.parametrize("means", ["client_cancelled", "own_pool", "internal", "egress", "network", "truncated", "[]"])
def test_rule_cannot_mean_a_kind_without_a_response(means: str) -> None:
    (found,) = problems(BASE + with_errors(f"{{match: {{code: a}}, kind: {means}}}"))
    assert "is not a failure kind" in found
