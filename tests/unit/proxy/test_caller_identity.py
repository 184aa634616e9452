from __future__ import annotations

import pytest

from llm_guard.config import parse_config
from llm_guard.proxy.caller_identity import caller_of
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import compile_routes
from tests.fakes.script import new_call

CONFIG = "upstreams:\n  one: {{dialect: openai, base_url: 'https://one.test/v1'{key}}}\n"
MODELS = "models:\n  m: {deployments: [{upstream: one}]}\n"
DIGEST = "0123456789abcdef"


def deployment(key: str = "") -> Deployment:
    config = parse_config(CONFIG.format(key=key) + MODELS, "test.yaml", {})
    (found,) = [each for each in compile_routes(config, 0.0).deployments() if each.label == "one/m"]
    return found


def test_own_key_is_a_caller_once_the_provider_has_accepted_it() -> None:
    call, target = new_call(), deployment()
    call.key_digest = DIGEST
    assert caller_of(call, target, 1.0) == ""
    target.callers.accept(DIGEST, 1.0)
    assert caller_of(call, target, 2.0) == "key 0123456789ab"


@pytest.mark.parametrize("key", [", api_key: sk-1", ", api_keys: [{name: a, key: sk-1}, {name: b, key: sk-2}]"])
def test_key_that_the_provider_never_sees_is_no_caller(key: str) -> None:
    """A caller could invent any number of such keys."""
    call, target = new_call(), deployment(key)
    call.key_digest = DIGEST
    target.callers.accept(DIGEST, 1.0)
    assert caller_of(call, target, 2.0) == ""


def test_client_key_is_a_caller_by_its_name() -> None:
    call = new_call()
    call.client_key = "app"
    assert caller_of(call, deployment(", api_key: sk-1"), 1.0) == "app"
