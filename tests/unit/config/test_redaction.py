"""Redaction of a shown config, and the differences between two configs."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from llm_guard.config import Config, KeyChange, digest, key_changes, parse_config, shown
from llm_guard.config.fields import OptionalSecret, Secret

SECRETS = (
    "sk-SHOWN-upstream", "sk-SHOWN-client", "SHOWN-token", "https://hooks.example/SHOWN", "SHOWN-hmac", "SHOWN-bearer",
)  # fmt: skip


def config(**changed: Any) -> Config:
    upstream, client, token, url, hmac, bearer = SECRETS
    sections: dict[str, Any] = {
        "server": {"client_keys": [{"name": "app", "key": client}]},
        "ops": {
            "token": token,
            "webhooks": [{"name": "team", "url": url, "secret": hmac, "headers": {"authorization": bearer}}],
        },
        "upstreams": {
            "a": {
                "dialect": "openai",
                "base_url": "https://a.example/v1",
                "api_key": upstream,
                "errors": [{"match": {"status": [503, 500]}, "kind": "overloaded"}],
            },
            "b": {"dialect": "openai", "base_url": "https://b.example/v1"},
        },
        "defaults": {"timeout": {"idle": "20s"}},
        "models": {"gpt": {"deployments": [{"upstream": "a"}]}, "mini": {"deployments": [{"upstream": "b"}]}},
    }
    return parse_config(json.dumps({**sections, **changed}), "test.yaml", {})


def found(after: Config, before: Config | None = None) -> dict[str, tuple[str, Any, Any]]:
    return {
        key_change.key: (key_change.how, key_change.before, key_change.after)
        for key_change in key_changes(before or config(), after)
    }


def test_config_is_shown_whole_and_without_its_secrets() -> None:
    view = shown(config())
    text = msgspec.json.encode(view).decode()
    assert not [secret for secret in SECRETS if secret in text]
    assert view["upstreams"]["a"]["api_key"] == "***"
    assert view["upstreams"]["b"]["api_key"] is None
    limits = dict.fromkeys(("rate", "concurrency", "tokens_per_minute", "tokens_per_day"))
    allow = {"models": None, "paths": ["inference"]}
    assert view["server"]["client_keys"] == [
        {"name": "app", "key": "***", "priority": "normal", "weight": 1.0, "limits": limits, "allow": allow}
    ]
    assert view["ops"]["webhooks"][0]["headers"] == {"authorization": "***"}
    assert view["models"]["gpt"]["timeout"]["idle"] == 20.0
    assert view["upstreams"]["a"]["errors"][0]["kind"] == "overloaded"
    assert view["upstreams"]["a"]["errors"][0]["match"]["status"] == [500, 503]


def fields(model: type[BaseModel]) -> Iterator[tuple[str, Any, bool]]:
    """Yields the name, annotation and visibility of each field of a model and the models in it."""
    hints = typing.get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}", hints[name], field.repr
        inner = [hints[name]]
        while inner:
            kind = inner.pop()
            inner += typing.get_args(kind)
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from fields(kind)


def test_every_secret_of_the_config_is_masked() -> None:
    secrets = {name: is_shown for name, kind, is_shown in fields(Config) if kind in (Secret, OptionalSecret)}
    assert {"ClientKey.key", "Ops.token", "UpstreamConfig.api_key"} <= secrets.keys()
    assert not any(secrets.values())


def test_change_is_reported_by_its_key() -> None:
    other = config(
        models={
            "gpt": {"deployments": [{"upstream": "a"}, {"upstream": "b", "weight": 2}], "timeout": {"idle": "5s"}},
            "new": {"deployments": [{"upstream": "a"}]},
        }
    )
    assert found(other) == {
        "models.gpt.timeout.idle": ("changed", 20.0, 5.0),
        "models.gpt.deployments[1]": ("added", None, None),
        "models.new": ("added", None, None),
        "models.mini": ("removed", None, None),
    }


def test_inherited_change_is_reported_once() -> None:
    other = config(defaults={"timeout": {"idle": "40s"}, "retry": {"max_attempts": 5}})
    assert found(other) == {
        "defaults.timeout.idle": ("changed", 20.0, 40.0),
        "defaults.retry.max_attempts": ("changed", 4, 5),
    }


def test_changed_secret_is_reported_without_its_value() -> None:
    upstreams = {name: dict(each) for name, each in json.loads(json.dumps(shown(config())["upstreams"])).items()}
    upstreams["a"] = {"dialect": "openai", "base_url": "https://a.example/v1", "api_key": "sk-SHOWN-another"}
    upstreams["b"] = {"dialect": "openai", "base_url": "https://b.example/v1", "api_key": "sk-SHOWN-new"}
    told = key_changes(config(), config(upstreams=upstreams))
    assert [change for change in told if "api_key" in change.key] == [
        KeyChange("upstreams.a.api_key", "changed", "***", "***"),
        KeyChange("upstreams.b.api_key", "changed", None, "***"),
    ]
    assert "SHOWN" not in str(told)


def test_same_config_changes_nothing() -> None:
    assert found(config()) == {}


def test_digest_is_the_same_for_the_same_config_with_other_secrets() -> None:
    assert digest(config()) == digest(config())
    other = {"a": {"dialect": "openai", "base_url": "https://a.example/v1", "api_key": "sk-SHOWN-another"}}
    one = {"a": {"dialect": "openai", "base_url": "https://a.example/v1", "api_key": "sk-SHOWN-one"}}
    only = {"gpt": {"deployments": [{"upstream": "a"}]}}
    assert digest(config(upstreams=one, models=only)) == digest(config(upstreams=other, models=only))
    assert digest(config()) != digest(config(defaults={}))


@pytest.mark.parametrize("name", ["gpt-4.1", "a/b.c", "ü"])
def test_names_with_dots_and_slashes_do_not_mix_keys_up(name: str) -> None:
    models = {name: {"deployments": [{"upstream": "a"}], "timeout": {"idle": "5s"}}}
    later = {name: {"deployments": [{"upstream": "a"}], "timeout": {"idle": "6s"}}}
    assert found(config(models=later), config(models=models)) == {f"models.{name}.timeout.idle": ("changed", 5.0, 6.0)}
