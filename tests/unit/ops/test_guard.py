from __future__ import annotations

import pytest

from llm_guard.config import Ops
from llm_guard.ops.guard import Guard, host_name
from llm_guard.ops.pages import Refused

HOST = {"host": "127.0.0.1:8080"}
JSON = {"content-type": "application/json"}
TOKEN = "s3cret"  # of this test
BEARER = {"authorization": f"Bearer {TOKEN}"}


def code(
    headers: dict[str, str], *, method: str = "GET", peer: str | None = "127.0.0.1", token: str | None = None,
    hosts: tuple[str, ...] = (),
) -> str:  # fmt: skip
    guard = Guard(Ops(token=token, hosts=hosts), ("guard.example", "0.0.0.0"))  # a name to check
    try:
        guard.check(method, headers, peer)
    except Refused as refused:
        return refused.code
    return ""


def test_without_a_token_only_this_machine_may_ask() -> None:
    assert code(HOST) == ""
    assert code(HOST, peer="::1") == code(HOST, peer="::ffff:127.0.0.1") == ""
    assert code(HOST, peer="192.0.2.1") == code(HOST, peer=None) == "token_needed"


@pytest.mark.parametrize(
    "name",
    [
        "x-forwarded-for", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip",
        "x-envoy-internal", "x-original-host", "x-client-ip",
    ],
)  # fmt: skip
def test_without_a_token_a_proxy_on_this_machine_may_not_ask_for_others(name: str) -> None:
    assert code({**HOST, name: "192.0.2.1"}) == "token_needed"
    assert code({**HOST, **BEARER, name: "192.0.2.1"}, token=TOKEN) == ""


def test_without_a_token_a_proxy_that_adds_nothing_is_known_by_its_version() -> None:
    guard = Guard(Ops(), ())
    with pytest.raises(Refused, match=r"ops\.token"):
        guard.check("GET", HOST, "127.0.0.1", "1.0")
    Guard(Ops(token=TOKEN), ()).check("GET", {**HOST, **BEARER}, "127.0.0.1", "1.0")


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crett", "Basic s3cret", "s3cret", "Bearer s3cret s3cret", "é"],
)
def test_wrong_token_is_refused_on_this_machine_too(authorization: str) -> None:
    headers = {**HOST, "authorization": authorization} if authorization else HOST
    assert code(headers, token=TOKEN) == "wrong_token"


def test_scheme_of_the_token_may_be_written_in_any_case() -> None:
    assert code({**HOST, "authorization": f"bearer  {TOKEN}"}, token=TOKEN, peer="192.0.2.1") == ""


def test_names_that_are_not_ours_are_refused_with_a_token_too() -> None:
    for host in ("attacker.example", "attacker.example:8080", "localhost.attacker.example", ""):
        assert code({"host": host}) == code({"host": host, **BEARER}, token=TOKEN) == "unknown_host"


def test_names_of_ours_and_addresses_pass() -> None:
    for host in ("localhost", "LOCALHOST:1", "guard.example:80", "192.0.2.7", "[::1]:8080", "[2001:db8::1]"):
        assert code({"host": host}) == ""
    assert code({"host": "ops.example"}, hosts=("Ops.Example",)) == ""
    assert code({"host": "any.example"}, hosts=("*",)) == ""


def test_pages_of_another_origin_may_not_ask() -> None:
    assert code({**HOST, "origin": "http://127.0.0.1:8080"}) == ""
    for origin in ("http://evil.example", "http://127.0.0.1:8081", "null", "http://127.0.0.1"):
        assert code({**HOST, "origin": origin}) == "foreign_origin"
    for site, expected in (("same-origin", ""), ("none", ""), ("cross-site", "foreign_origin")):
        assert code({**HOST, "sec-fetch-site": site}) == expected
    assert code({**HOST, "sec-fetch-site": "same-site"}) == "foreign_origin"


def test_changes_must_come_as_json() -> None:
    assert code(HOST, method="POST") == "json_needed"
    assert code({**HOST, "content-type": "text/plain"}, method="POST") == "json_needed"
    assert code({**HOST, "content-type": "application/json; charset=utf-8"}, method="POST") == ""
    assert code(HOST, method="DELETE") == "json_needed"


def test_host_is_read_without_port_and_brackets() -> None:
    assert host_name("A.example:80") == "a.example"
    assert host_name("[::1]:80") == "::1"
