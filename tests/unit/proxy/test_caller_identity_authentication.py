"""What a client key allows: the priority of a call is the lower of the requested and the allowed one, and a query may
name one model only."""

from __future__ import annotations

import pytest

from llm_guard.config import parse_config
from llm_guard.proxy.call import Call
from llm_guard.proxy.caller_identity import Clients, check_model
from llm_guard.proxy.http_server.request import RequestFields
from llm_guard.proxy.identification import note_asked
from llm_guard.proxy.request_body.fields import NOTHING
from llm_guard.resilience.retry.limits import Repeatable
from llm_guard.resilience.routing.client_hints import PRIORITIES
from llm_guard.routing.route_table import compile_routes

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
    assert (
        Clients(parse_config(UPSTREAMS + config, "test.yaml", {})).admit(
            call, RequestFields(tuple(headers), dict(headers))
        )
        is None
    )
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


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        ("model=gpt", None),
        ("model=gpt&voice=model", None),
        ("model=gpt&model=other", "invalid_model"),
        ("model=gpt&%6dodel=other", "invalid_model"),
        ("model=gpt&Model=other", "invalid_model"),
        ("model=gpt;model=other", "invalid_model"),
        ("model=gpt&model[]=other", "invalid_model"),
        ("model=gpt&x;model=other", "invalid_model"),
    ],
)
def test_query_names_one_model_if_the_key_allows_certain_models_only(query: str, refused: str | None) -> None:
    """The upstream may use the last model of a query, or decode names that the gateway does not."""
    keys = "server: {client_keys: [{name: app, key: k-app, allow: {models: [gpt]}}]}\n"
    config = parse_config(UPSTREAMS + keys, "test.yaml", {})
    headers = {"authorization": "Bearer k-app"}
    call = Call("lg-1", "openai", "GET", "/v1/realtime", query, tuple(headers.items()), 0.0)
    assert Clients(config).admit(call, RequestFields(call.headers, headers)) is None
    note_asked(call, NOTHING, Repeatable({}))
    refusal = check_model(call, compile_routes(config, 0.0))
    assert (None if refusal is None else refusal.code) == refused
