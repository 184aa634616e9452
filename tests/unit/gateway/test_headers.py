from __future__ import annotations

from dataclasses import replace

import pytest

from llm_guard.call import Call, Headers
from llm_guard.config import Auth
from llm_guard.deployment import Upstream
from llm_guard.gateway.headers import (
    account,
    caller_keys,
    lower_names,
    ours,
    retry_after,
    to_client,
    to_upstream,
    value_of,
)
from tests.fakes.script import new_call

UPSTREAM = Upstream("openai", "openai", "https://api.openai.com/v1", None, "bearer")
CREDENTIALS = (("Authorization", "Bearer caller"), ("X-Api-Key", "caller"), ("api-key", "caller"))


def call(*headers: tuple[str, str], client_key: str | None = None, is_upgrade: bool = False) -> Call:
    return replace(new_call(), headers=headers, client_key=client_key, is_upgrade=is_upgrade)


HOP_BY_HOP = (
    ("Connection", "keep-alive, X-Private"), ("Keep-Alive", "timeout=5"), ("TE", "trailers"), ("Trailer", "x"),
    ("Transfer-Encoding", "chunked"), ("Upgrade", "h2c"), ("Proxy-Authorization", "Basic x"),
    ("Proxy-Authenticate", "Basic"), ("x-private", "named in Connection"), ("X-LLM-Guard-Attempts", "forged"),
)  # fmt: skip
END_TO_END = (("X-Custom", "1"), ("x-custom", "2"), ("OpenAI-Organization", "org"), ("User-Agent", "SDK/1"))


def test_headers_of_one_connection_do_not_travel_to_an_upstream() -> None:
    own = (("Host", "gateway"), ("Content-Length", "7"), ("Expect", "100-continue"))
    assert to_upstream(call(*HOP_BY_HOP, *END_TO_END, *own), UPSTREAM) == list(END_TO_END)


def test_headers_of_one_connection_do_not_travel_to_a_client() -> None:
    cookie = ("Set-Cookie", "a=1")
    assert to_client((*HOP_BY_HOP, *END_TO_END, cookie, ("Content-Length", "7"))) == [*END_TO_END, cookie]


def test_upgrade_is_said_anew_in_both_directions() -> None:
    asks: Headers = (("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "k"))
    said = [("Sec-WebSocket-Key", "k"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]
    assert to_upstream(call(*asks, is_upgrade=True), UPSTREAM) == said
    assert to_client(asks, is_upgraded=True) == said


def test_caller_own_key_is_passed_on_where_the_gateway_has_none() -> None:
    assert to_upstream(call(*CREDENTIALS), UPSTREAM) == list(CREDENTIALS)


@pytest.mark.parametrize(
    ("auth", "sent"),
    [
        ("bearer", [("Authorization", "Bearer ours")]),
        ("x-api-key", [("x-api-key", "ours")]),
        ("api-key", [("api-key", "ours")]),
        ("none", []),
    ],
)
def test_every_credential_of_a_caller_is_swapped_for_the_upstream_key(auth: Auth, sent: list[tuple[str, str]]) -> None:
    upstream = replace(UPSTREAM, api_key="ours", auth=auth)
    assert to_upstream(call(*CREDENTIALS, ("X-Custom", "1")), upstream) == [("X-Custom", "1"), *sent]


def test_key_that_opens_the_gateway_goes_no_further() -> None:
    assert to_upstream(call(*CREDENTIALS, client_key="app-1"), UPSTREAM) == []


def test_key_of_an_upstream_is_in_no_repr() -> None:
    assert "ours" not in repr(replace(UPSTREAM, api_key="ours"))


def test_gateway_says_what_it_did() -> None:
    this = call()
    assert ours(this, None) == [("x-llm-guard-request-id", "lg-1"), ("x-llm-guard-attempts", "0")]
    this.closes_connection = True
    assert ours(this, "openai/gpt-4")[2:] == [("x-llm-guard-deployment", "openai/gpt-4"), ("Connection", "close")]


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [(0.0, "1", "1"), (0.2, "1", "200"), (1.0, "1", "1000"), (1.0001, "2", "1001"), (30.0, "30", "30000")],
)
def test_time_to_come_back_is_rounded_up(seconds: float, whole: str, milliseconds: str) -> None:
    assert retry_after(seconds) == [("retry-after", whole), ("retry-after-ms", milliseconds)]


def test_header_is_found_whatever_its_case_and_the_first_counts() -> None:
    headers = (("Content-Type", "a"), ("content-type", "b"))
    assert value_of(headers, "content-type") == "a"
    assert value_of(headers, "date") == ""
    assert lower_names(headers) == {"content-type": "a"}


def test_keys_are_found_in_every_form_that_sdks_use() -> None:
    headers = (("Authorization", "bearer  k1 "), ("X-API-Key", "k2"), ("api-key", "k3"), ("authorization", "Basic k4"))
    assert caller_keys(headers) == ["k1", "k2", "k3", "Basic k4"]
    assert caller_keys((("X-Custom", "k"),)) == []


def test_account_that_a_caller_chooses_is_read_whatever_the_names_case() -> None:
    headers = (("OpenAI-Organization", "org-1"), ("Authorization", "Bearer k"), ("openai-project", "proj_1"))
    assert account(headers) == ["openai-organization: org-1", "openai-project: proj_1"]
    assert account((("Authorization", "Bearer k"),)) == []
