from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.config import Auth, GoogleSettings
from llm_guard.proxy import headers
from llm_guard.proxy.call import Call, Headers, SentHeaders
from llm_guard.proxy.headers import (
    account,
    ask_for_plain,
    caller_keys,
    has_rival_keys,
    lower_names,
    ours,
    retry_after,
    to_client,
    to_upstream,
    translated,
    value_of,
)
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.deployment import Upstream
from tests.fakes.script import new_call

UPSTREAM = Upstream("openai", "openai", "https://api.openai.com/v1", None, "bearer")
CREDENTIALS = (("Authorization", "Bearer caller"), ("X-Api-Key", "caller"), ("api-key", "caller"))


def sent_to(
    call: Call, upstream: Upstream, key: ApiKey | None = None, *, is_body_ours: bool = False
) -> list[tuple[str, str]]:
    return to_upstream(call, upstream, key, is_body_ours=is_body_ours).pairs


def call(*said: tuple[str, str], client_key: str | None = None, is_upgrade: bool = False) -> Call:
    return replace(new_call(), headers=said, client_key=client_key, is_upgrade=is_upgrade)


HOP_BY_HOP = (
    ("Connection", "keep-alive, X-Private"), ("Keep-Alive", "timeout=5"), ("TE", "trailers"), ("Trailer", "x"),
    ("Transfer-Encoding", "chunked"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    ("Proxy-Authorization", "Basic x"), ("Proxy-Authenticate", "Basic"), ("Proxy-Connection", "keep-alive"),
    ("Proxy", "evil"), ("x-private", "named in Connection"), ("X-LLM-Guard-Attempts", "forged"),
)  # fmt: skip
END_TO_END = (("X-Custom", "1"), ("x-custom", "2"), ("OpenAI-Organization", "org"), ("User-Agent", "SDK/1"))


def test_headers_of_one_connection_do_not_travel_to_an_upstream() -> None:
    own = (("Host", "gateway"), ("Content-Length", "7"), ("Expect", "100-continue"))
    assert sent_to(call(*HOP_BY_HOP, *END_TO_END, *own), UPSTREAM) == list(END_TO_END)


def test_headers_of_one_connection_do_not_travel_to_a_client() -> None:
    cookie = ("Set-Cookie", "a=1")
    assert to_client((*HOP_BY_HOP, *END_TO_END, cookie, ("Content-Length", "7"))) == [*END_TO_END, cookie]


@pytest.mark.parametrize(
    "name",
    [
        "X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "X-Real-IP", "Via", "X-Envoy-Original-Path",
        "x-envoy-internal", "True-Client-IP", "X-LLM-Guard-Priority", "x-original-url",
    ],
)  # fmt: skip
def test_proxy_header_of_a_client_reaches_no_upstream(name: str) -> None:
    assert sent_to(call((name, "10.0.0.1"), *END_TO_END), UPSTREAM) == list(END_TO_END)


@pytest.mark.parametrize("name", ["X_Api_Key", "Content_Length", "transfer_encoding", "_", "X-A_B"])
def test_underscored_name_reaches_no_upstream(name: str) -> None:
    assert sent_to(call((name, "admin"), *END_TO_END), UPSTREAM) == list(END_TO_END)


def test_envoy_and_via_of_a_provider_reach_the_client() -> None:
    said = (("x-envoy-upstream-service-time", "7"), ("Via", "1.1 google"), ("x_odd", "1"))
    assert to_client(said) == list(said)


def test_headers_that_several_connection_headers_name_all_stay() -> None:
    named = (("Connection", "X-A , x-b"), ("X-A", "1"), ("connection", "close, X-C"), ("X-B", "2"), ("x-c", "3"))
    assert sent_to(call(*named, ("X-D", "4")), UPSTREAM) == [("X-D", "4")]
    assert to_client((*named, ("X-D", "4"))) == [("X-D", "4")]


def test_connection_takes_away_nothing_that_the_gateway_adds() -> None:
    this = call(("Connection", "authorization, upgrade, accept-encoding"), *CREDENTIALS, is_upgrade=True)
    this.sent_status = 200  # so that the answer must be uncompressed
    assert sent_to(this, replace(UPSTREAM, api_key="ours")) == [
        ("Authorization", "Bearer ours"), ("Connection", "Upgrade"), ("Upgrade", "websocket"),
        ("Accept-Encoding", "identity"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accepted", "requested"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate"), ("br", "identity"), ("*", "identity"), ("", "identity"),
        ("zstd;q=0.9, GZIP;q=0.5,identity", "GZIP;q=0.5, identity"), ("gzipped", "identity"),
    ],
)  # fmt: skip
def test_only_encodings_that_can_be_decoded_are_requested(accepted: str, requested: str) -> None:
    said = (("Accept", "*/*"), ("Accept-Encoding", accepted), ("User-Agent", "x"))
    assert sent_to(call(*said), UPSTREAM) == [said[0], ("Accept-Encoding", requested), said[2]]


def test_user_agent_of_a_client_passes_unchanged() -> None:
    said = (("User-Agent", "OpenAI/Python 2.8.1"), ("Accept-Encoding", "gzip;q=1.0, identity"), ("Accept", "*/*"))
    assert sent_to(call(*said), UPSTREAM) == list(said)
    assert sent_to(call(), UPSTREAM) == []


def test_encoding_of_a_body_travels_only_with_that_body() -> None:
    encoded = (("Content-Encoding", "gzip"), ("Content-Type", "application/json"))
    assert sent_to(call(*encoded), UPSTREAM) == list(encoded)
    assert sent_to(call(*encoded), UPSTREAM, is_body_ours=True) == [encoded[1]]
    assert to_client(encoded) == list(encoded)
    assert to_client(encoded, is_inflated=True) == [encoded[1]]


def test_upgrade_is_written_separately_in_both_directions() -> None:
    asks: Headers = (("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "k"))
    said = [("Sec-WebSocket-Key", "k"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]
    assert sent_to(call(*asks, is_upgrade=True), UPSTREAM) == said
    assert to_client(asks, is_upgraded=True) == said


def test_caller_own_key_is_passed_on_where_the_gateway_has_none() -> None:
    assert sent_to(call(*CREDENTIALS), UPSTREAM) == list(CREDENTIALS)


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
    assert sent_to(call(*CREDENTIALS, ("X-Custom", "1")), upstream) == [("X-Custom", "1"), *sent]


def test_client_key_is_not_forwarded() -> None:
    assert sent_to(call(*CREDENTIALS, client_key="app-1"), UPSTREAM) == []


def test_cookie_goes_no_further_than_the_key_next_to_it() -> None:
    """Where clients authenticate to the gateway, a cookie belongs to a proxy in front of it, not to the provider."""
    cookie = ("Cookie", "session=1")
    assert sent_to(call(cookie), UPSTREAM) == [cookie]
    assert sent_to(call(cookie, client_key="app-1"), UPSTREAM) == []
    assert sent_to(call(cookie), replace(UPSTREAM, api_key="ours", auth="none")) == []


def test_key_among_the_protocols_of_a_websocket_is_not_forwarded() -> None:
    offered = ("Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.k1, v1")
    assert keys_of((offered,)) == ["k1"]
    sent = sent_to(call(offered, client_key="app-1", is_upgrade=True), UPSTREAM)
    assert sent[0] == ("Sec-WebSocket-Protocol", "realtime, v1")


def test_key_of_an_upstream_is_in_no_repr() -> None:
    assert "ours" not in repr(replace(UPSTREAM, api_key="ours"))


KEYS = (None, ApiKey("a", "sk-a"), ApiKey("b", "sk-b"))
UPSTREAMS = (
    UPSTREAM,
    *(replace(UPSTREAM, api_key=key) for key in ("ours", "renewed")),
    replace(UPSTREAM, name="other", auth="api-key"),
)
SAID = (*CREDENTIALS, ("Cookie", "a=1"), ("Accept-Encoding", "gzip, br"), ("Content-Encoding", "gzip"), ("X-A", "1"))


REQUESTS = st.tuples(*map(st.sampled_from, (UPSTREAMS, KEYS, (None, "app-1"), (None, 200), (False, True))))


@given(st.lists(REQUESTS, max_size=12))
def test_shared_headers_are_those_of_the_request(
    requests: list[tuple[Upstream, ApiKey | None, str | None, int | None, bool]],
) -> None:
    shared: dict[str, SentHeaders] = {}
    for upstream, key, client_key, status, is_body_ours in requests:
        alone = replace(call(*SAID, client_key=client_key), sent_status=status)
        one_of_many = replace(alone, sent_headers=shared)
        sent = sent_to(one_of_many, upstream, key, is_body_ours=is_body_ours)
        assert sent == sent_to(alone, upstream, key, is_body_ours=is_body_ours)


@given(st.lists(REQUESTS, max_size=12))
def test_shared_headers_of_translated_requests_are_those_of_the_request(
    requests: list[tuple[Upstream, ApiKey | None, str | None, int | None, bool]],
) -> None:
    shared: dict[str, SentHeaders] = {}
    for upstream, key, client_key, _, is_stream in requests:
        alone = replace(call(*SAID, client_key=client_key), is_stream=is_stream)
        sent = translated(replace(alone, sent_headers=shared), upstream, key).pairs
        assert sent == translated(alone, upstream, key).pairs


def test_requests_that_differ_only_in_their_bodies_share_their_headers() -> None:
    first = replace(call(*SAID), sent_headers={})
    second = replace(first, body=b"{}")
    assert to_upstream(first, UPSTREAM) is to_upstream(second, UPSTREAM)
    ask_for_plain(second)
    assert ("Accept-Encoding", "identity") in sent_to(second, UPSTREAM)
    assert ("Accept-Encoding", "gzip") in sent_to(first, UPSTREAM)


def test_idle_connection_keeps_the_headers_for_few_upstreams() -> None:
    one = replace(call(*SAID), sent_headers={})
    for number in range(50):
        sent_to(one, replace(UPSTREAM, name=f"upstream-{number}"))
    assert one.sent_headers is not None
    assert 0 < len(one.sent_headers) <= 4


def test_request_for_an_upgrade_shares_no_headers() -> None:
    first = replace(call(*SAID, is_upgrade=True), sent_headers={})
    assert to_upstream(first, UPSTREAM) is not to_upstream(first, UPSTREAM)


def test_gateway_headers_describe_its_work() -> None:
    this = call()
    assert ours(this, None) == [("x-llm-guard-request-id", "lg-1"), ("x-llm-guard-attempts", "0")]
    assert ours(this, "openai/gpt-4")[2:] == [("x-llm-guard-deployment", "openai/gpt-4")]


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [(0.0, "1", "1"), (0.2, "1", "200"), (1.0, "1", "1000"), (1.0001, "2", "1001"), (30.0, "30", "30000")],
)
def test_retry_after_is_rounded_up(seconds: float, whole: str, milliseconds: str) -> None:
    assert retry_after(seconds) == [("retry-after", whole), ("retry-after-ms", milliseconds)]


def test_header_is_found_in_any_case_and_the_first_counts() -> None:
    said = (("Content-Type", "a"), ("content-type", "b"))
    assert value_of(said, "content-type") == "a"
    assert value_of(said, "date") == ""
    assert lower_names(said) == {"content-type": "a"}
    assert lower_names((("A", "1"), ("B", "2"))) == {"a": "1", "b": "2"}


def keys_of(headers: Headers) -> list[str]:
    return caller_keys(headers, lower_names(headers))


def account_of(headers: Headers) -> list[str]:
    return account(headers, lower_names(headers))


def test_keys_are_found_in_every_form_that_sdks_use() -> None:
    said = (("Authorization", "bearer  k1 "), ("X-API-Key", "k2"), ("api-key", "k3"), ("authorization", "Basic k4"))
    assert keys_of(said) == ["k1", "Basic k4", "k2", "k3"]
    assert keys_of((("X-Custom", "k"),)) == []


def test_keys_have_one_order_for_any_order_of_headers() -> None:
    """The keys identify the caller: a proxy that reorders or repeats headers does not make it another one."""
    key, bearer, other = ("X-API-Key", "k2"), ("Authorization", "Bearer k1"), ("Accept", "a")
    for sent in ((key, bearer), (bearer, key), (key, other, bearer, other), (other, other, bearer, key)):
        assert keys_of(sent) == ["k1", "k2"]


def test_caller_chosen_account_is_read_in_any_case() -> None:
    said = (("OpenAI-Organization", "org-1"), ("Authorization", "Bearer k"), ("openai-project", "proj_1"))
    assert account_of(said) == ["openai-organization: org-1", "openai-project: proj_1"]
    assert account_of((("Authorization", "Bearer k"),)) == []


def test_two_headers_of_one_name_are_two_credentials() -> None:
    assert keys_of((("Authorization", "Bearer k1"), ("Authorization", "Bearer k2"))) == ["k1", "k2"]


def test_credential_header_with_two_values_is_noticed() -> None:
    one, other = ("Authorization", "Bearer k1"), ("authorization", "Bearer k2")
    assert has_rival_keys((one, ("X-Custom", "1"), other))
    # SDKs send both forms if both are configured, and a proxy may repeat a header.
    assert not has_rival_keys((one, one, ("X-Api-Key", "k2"), ("X-Custom", "1"), ("X-Custom", "2")))


def test_cached_header_names_are_bounded_and_stay_right() -> None:
    """Clients choose these names."""
    for number in range(3000):
        assert sent_to(call((f"X-{number}", "1"), ("TE", "1")), UPSTREAM) == [(f"X-{number}", "1")]
        assert to_client((("Connection", f"X-{number}"), (f"x-{number}", "1"), ("Via", "1"))) == [("Via", "1")]
    long = "X-" + "a" * 10_000
    assert sent_to(call((long, "1")), UPSTREAM) == [(long, "1")]
    for seen in (headers._lower, headers._up, headers._down, headers._named_in):
        assert 0 < len(seen) <= 1024
        assert max(map(len, seen)) <= 64


def test_translated_stream_is_requested_as_one() -> None:
    for is_stream, accepted in ((True, "text/event-stream"), (False, "application/json")):
        sent = translated(replace(call(), is_stream=is_stream), UPSTREAM).pairs
        assert value_of(tuple(sent), "accept") == accepted


def test_translated_call_has_the_callers_key_only_in_its_own_dialect() -> None:
    one = call(*CREDENTIALS, ("User-Agent", "SDK/1"), ("Cookie", "c"))
    found = translated(one, UPSTREAM).pairs
    assert set(CREDENTIALS) <= set(found)
    assert ("User-Agent", "SDK/1") in found
    assert ("Cookie", "c") not in found
    other = replace(UPSTREAM, dialect="anthropic", auth="none")
    assert not set(CREDENTIALS) & set(translated(one, other).pairs)
    own = replace(UPSTREAM, api_key="k")
    assert value_of(tuple(translated(one, own).pairs), "authorization") == "Bearer k"
    assert not set(CREDENTIALS) & set(translated(replace(one, client_key="lg-key"), UPSTREAM).pairs)


def test_credentials_of_a_caller_stay_here_where_the_upstream_has_those_of_a_cloud() -> None:
    cloud = Upstream("vertex", "openai", "https://h/v1", None, "google", cloud=GoogleSettings())
    presented = (*CREDENTIALS, ("Cookie", "caller"), ("X-Custom", "1"))
    assert sent_to(call(*presented), cloud) == [("X-Custom", "1")]
    assert not [value for _, value in translated(call(*presented), cloud).pairs if "caller" in value]
