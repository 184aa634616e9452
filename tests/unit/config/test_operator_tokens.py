"""`ops.tokens`: names, roles and permitted values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.config import Config, ConfigError, key_changes, parse_config, shown

ANN = {"name": "ann", "token": "the-token-of-ann", "role": "operator"}
VIC = {"name": "vic", "token": "the-token-of-vic", "role": "viewer"}


def parse(**ops: Any) -> Config:
    config = {
        "server": {"client_keys": [{"name": "app", "key": "the-key-of-app"}]},
        "ops": ops,
        "upstreams": {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}},
        "models": {"*": {"deployments": [{"upstream": "a"}]}},
    }
    return parse_config(json.dumps(config), "test.yaml", {})


def test_token_has_a_name_and_a_role_and_is_not_shown() -> None:
    config = parse(tokens=[ANN, VIC])
    assert [(token.name, token.role) for token in config.ops.tokens] == [("ann", "operator"), ("vic", "viewer")]
    assert "the-token" not in repr(config) + json.dumps(shown(config))
    changed = key_changes(config, parse(tokens=[{**ANN, "token": "another-token-of-ann"}, VIC]))
    assert [(change.key, change.before, change.after) for change in changed] == [("ops.tokens[0].token", "***", "***")]


@pytest.mark.parametrize(
    ("ops", "problem"),
    [
        ({"tokens": [ANN, {**VIC, "name": "ann"}]}, "ops.tokens[1].name: another token is named ann"),
        ({"tokens": [ANN, {**VIC, "token": ANN["token"]}]}, "ops.tokens[1].token: is the token of ann as well"),
        ({"token": ANN["token"], "tokens": [ANN]}, "ops.tokens[0].token: is ops.token as well"),
        ({"token": "the-key-of-app"}, "ops.token: is the key of the client app as well"),
        ({"tokens": [{**ANN, "token": "the-key-of-app"}]}, "ops.tokens[0].token: is the key of the client app as well"),
        ({"tokens": [{**ANN, "role": "admin"}]}, "ops.tokens[0].role: must be 'viewer' or 'operator'"),
        ({"tokens": [{**ANN, "token": ""}]}, "ops.tokens[0].token: must not be empty"),
        ({"tokens": [{**ANN, "token": "a b"}]}, "ops.tokens[0].token: must be printable ASCII"),
        ({"tokens": [{"name": "ann", "token": "t"}]}, "ops.tokens[0].role: is missing"),
        *(
            ({"tokens": [{**ANN, "name": name}]}, "ops.tokens[0].name: must be another name")
            for name in ("operator", "anybody", "file", "signal", "reload", "start", "expiry")
        ),
        *(
            ({"tokens": [{**ANN, "name": name}]}, "ops.tokens[0].name: must have 1 to 64 letters")
            for name in ("ann from 192.0.2.1", "ann\n", "(ann)", "x" * 65)
        ),
    ],
)
def test_token_without_a_name_is_refused(ops: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(**ops)
    assert problem in str(raised.value)
    assert "the-token" not in str(raised.value)
