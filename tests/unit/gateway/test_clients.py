"""The priority of a call: the lower of the one that the client requests and the one that its key allows."""

from __future__ import annotations

import pytest

from llm_guard.call import Call
from llm_guard.config import parse_config
from llm_guard.gateway.clients import Clients
from llm_guard.policy.caller import PRIORITIES

UPSTREAMS = """upstreams: {one: {dialect: openai, base_url: "http://127.0.0.1:1/v1", api_key: sk-one}}
models: {gpt: {deployments: [{upstream: one}]}}
"""
CLIENT_KEYS = """server:
  client_keys:
    - {name: batch, key: k-low, priority: low}
    - {name: app, key: k-normal}
    - {name: chat, key: k-high, priority: high}
"""


def admitted_priority(config: str, key: str, requested: str | None) -> str:
    headers = [("authorization", f"Bearer {key}")]
    if requested is not None:
        headers.append(("x-llm-guard-priority", requested))
    call = Call("lg-1", "openai", "POST", "/v1/chat/completions", "", tuple(headers), 0.0)
    assert Clients(parse_config(UPSTREAMS + config, "test.yaml", {})).admit(call, dict(headers)) is None
    return {number: name for name, number in PRIORITIES.items()}[call.priority]


@pytest.mark.parametrize(
    ("allowed", "requested", "admitted"),
    [
        ("low", "high", "low"),
        ("low", "normal", "low"),
        ("low", None, "low"),
        ("normal", "high", "normal"),
        ("normal", "low", "low"),
        ("high", "high", "high"),
        ("high", None, "normal"),
    ],
)
def test_header_lowers_the_priority_of_a_client_key_and_does_not_raise_it(
    allowed: str, requested: str | None, admitted: str
) -> None:
    assert admitted_priority(CLIENT_KEYS, f"k-{allowed}", requested) == admitted


@pytest.mark.parametrize(("requested", "admitted"), [("high", "normal"), (None, "normal"), ("low", "low")])
def test_caller_without_a_client_key_has_normal_priority_at_most(requested: str | None, admitted: str) -> None:
    assert admitted_priority("", "sk-own", requested) == admitted
