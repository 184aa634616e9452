from __future__ import annotations

import base64

import pytest

from llm_guard.admin.http.auth import Authenticator, WrongToken, host_name
from llm_guard.admin.http.credentials import COOKIE_S, credentials_of
from llm_guard.admin.http.endpoint import Operator, Refused
from llm_guard.config import Ops

WALL = 1_800_000_000.0
HOST = {"host": "127.0.0.1:8080"}
JSON = {"content-type": "application/json"}
TOKEN = "s3cret"  # for these tests only
ANN = "anns-t0ken"
VIC = "vics-t0ken"
BEARER = {"authorization": f"Bearer {TOKEN}"}
RULES = {
    "token": TOKEN,
    "tokens": [{"name": "ann", "token": ANN, "role": "operator"}, {"name": "vic", "token": VIC, "role": "viewer"}],
}
HERE = {**HOST, **BEARER}


def guarding(**rules: object) -> Authenticator:
    ops = Ops.model_validate({**RULES, **rules})
    return Authenticator(ops, credentials_of(ops, None), ("guard.example", "0.0.0.0"))  # a name to check hosts against


def code(headers: dict[str, str], method: str = "GET", **rules: object) -> str:
    try:
        guarding(**rules).check(method, headers, WALL)
    except Refused as refused:
        return refused.code
    return ""


def cookie_of(guard: Authenticator, at: int = 0, wall: float = WALL) -> dict[str, str]:
    credential = guard.credentials[at]
    return {"cookie": f"theme=dark; {credential.cookie_name}={credential.new_cookie(wall)}; x"}


# tokens


@pytest.mark.parametrize(
    "also",
    [{}, {"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"x-real-ip": "::1"}, {"via": "1.1 nginx"},
     {"origin": "http://evil.example"}, {"host": "attacker.example"}, {"host": ""},
     {"authorization": "Basic czNjcmV0"}, {"authorization": "s3cret"}, {"cookie": f"token={TOKEN}"}],
)  # fmt: skip
def test_request_without_a_token_is_refused_for_that_despite_other_headers(also: dict[str, str]) -> None:
    with pytest.raises(Refused) as raised:
        guarding().check("GET", {**HOST, **also}, WALL)
    assert (raised.value.status, raised.value.code) == (401, "token_needed")
    assert not isinstance(raised.value, WrongToken)
    assert dict(raised.value.headers)["WWW-Authenticate"].startswith("Bearer")


def test_gateway_without_any_token_authorizes_no_request() -> None:
    guard = Authenticator(Ops(), credentials_of(Ops(), None), ())
    for headers in (HOST, HERE, {**HOST, "authorization": "Bearer "}, {**HOST, "authorization": "Bearer None"}):
        with pytest.raises(Refused) as raised:
            guard.check("GET", headers, WALL)
        assert raised.value.status == 401


@pytest.mark.parametrize(
    "authorization", ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crett", "Bearer s3cret s3cret", "bearer S3CRET"]
)
def test_wrong_token_is_refused(authorization: str) -> None:
    assert code({**HOST, "authorization": authorization}) == "wrong_token"


def test_scheme_of_the_token_may_be_written_in_any_case() -> None:
    assert code({**HOST, "authorization": f"bearer  {TOKEN}"}) == ""


def test_each_token_has_its_name_and_role() -> None:
    def caller(token: str) -> Operator:
        return guarding().check("GET", {**HOST, "authorization": f"Bearer {token}"}, WALL)

    assert caller(TOKEN) == Operator("operator", "operator", is_shared=True)
    assert caller(ANN) == Operator("ann", "operator")
    assert caller(VIC) == Operator("vic", "viewer")


def test_viewer_reads_and_changes_nothing() -> None:
    viewer = {**HOST, **JSON, "authorization": f"Bearer {VIC}"}
    assert code(viewer) == code(viewer, method="HEAD") == ""
    assert {code(viewer, method=method) for method in ("POST", "DELETE", "PUT", "PATCH")} == {"viewer_may_not"}


def test_socket_of_a_browser_brings_its_token_as_a_protocol() -> None:
    offered = f"llm-guard.events, bearer.{base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip('=')}"
    socket = {**HOST, "upgrade": "websocket", "sec-websocket-protocol": offered}
    assert code(socket) == ""
    assert code({**socket, "upgrade": ""}) == "token_needed"
    assert code({**socket, "sec-websocket-protocol": "bearer.!!"}) == "wrong_token"


# cookies


def test_cookie_is_valid_for_the_token_that_it_was_made_with() -> None:
    guard = guarding()
    callers = [guard.check("GET", {**HOST, **cookie_of(guard, at)}, WALL) for at in range(3)]
    assert [caller.name for caller in callers] == ["operator", "ann", "vic"]
    assert all(caller.has_cookie for caller in callers)


def test_cookie_of_another_gateway_with_the_same_token_is_good() -> None:
    assert guarding().check("GET", {**HOST, **cookie_of(guarding(hosts=["ops.example"]))}, WALL).name == "operator"


def test_cookie_ends_with_its_time_and_with_its_token() -> None:
    guard = guarding()
    cookie = {**HOST, **cookie_of(guard)}
    assert guard.check("GET", cookie, WALL + COOKIE_S - 1).name == "operator"
    with pytest.raises(WrongToken):
        guard.check("GET", cookie, WALL + COOKIE_S)
    assert code(cookie, token="another") == "token_needed"  # the token's name is unknown now


@pytest.mark.parametrize("change", [lambda value: value[:-1], lambda value: f"9{value}", lambda value: "", str.upper,
                                    lambda value: value.replace(".", ".."), lambda value: f"{value}é"])  # fmt: skip
def test_cookie_that_was_changed_is_wrong(change: object) -> None:
    guard = guarding()
    credential = guard.credentials[0]
    value = change(credential.new_cookie(WALL))  # type: ignore[operator]  # a lambda
    with pytest.raises(WrongToken):
        guard.check("GET", {**HOST, "cookie": f"{credential.cookie_name}={value}"}, WALL)


def test_login_code_is_no_cookie_and_a_cookie_no_code() -> None:
    guard = guarding()
    credential = guard.credentials[0]
    assert not credential.is_cookie(credential.new_code(WALL), WALL)
    assert credential.code(credential.new_cookie(WALL), WALL) is None


def test_right_cookie_does_not_make_a_wrong_token_good() -> None:
    assert code({**HOST, **cookie_of(guarding()), "authorization": "Bearer x"}) == "wrong_token"
    assert code({**HOST, **cookie_of(guarding()), "authorization": "Basic for-the-proxy"}) == ""


# hosts, origins and bodies


def test_unknown_host_names_are_refused_with_a_token_too() -> None:
    for host in ("attacker.example", "attacker.example:8080", "localhost.attacker.example", ""):
        assert code({"host": host, **BEARER}) == "unknown_host"


def test_configured_host_names_and_addresses_pass() -> None:
    for host in ("localhost", "LOCALHOST:1", "guard.example:80", "192.0.2.7", "[::1]:8080", "[2001:db8::1]"):
        assert code({"host": host, **BEARER}) == ""
    assert code({"host": "ops.example", **BEARER}, hosts=("Ops.Example",)) == ""
    assert code({"host": "any.example", **BEARER}, hosts=("*",)) == ""


def test_pages_of_another_origin_are_refused() -> None:
    assert code({**HERE, "origin": "http://127.0.0.1:8080"}) == ""
    for origin in ("http://evil.example", "http://127.0.0.1:8081", "null", "http://127.0.0.1"):
        assert code({**HERE, "origin": origin}) == "foreign_origin"
    for site, expected in (("same-origin", ""), ("none", ""), ("cross-site", "foreign_origin")):
        assert code({**HERE, "sec-fetch-site": site}) == expected
    assert code({**HERE, "sec-fetch-site": "same-site"}) == "foreign_origin"


def test_changes_must_be_json() -> None:
    assert code(HERE, method="POST") == "json_needed"
    assert code({**HERE, "content-type": "text/plain"}, method="POST") == "json_needed"
    assert code({**HERE, "content-type": "application/json; charset=utf-8"}, method="POST") == ""
    assert code(HERE, method="DELETE") == "json_needed"


def test_host_is_read_without_port_and_brackets() -> None:
    assert host_name("A.example:80") == "a.example"
    assert host_name("[::1]:80") == "::1"
