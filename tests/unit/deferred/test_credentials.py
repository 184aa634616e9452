"""Credentials of callers: held in memory only, bounded in number, and never the gateway's own."""

from __future__ import annotations

from llm_guard.deferred.credentials import MOST, Credentials, plain_query
from llm_guard.proxy.call import Call

KEY = (("authorization", "Bearer sk-callers"),)


def call_with(**facts: object) -> Call:
    call = Call("lg-1", "openai", "POST", "/v1/chat/completions", "", KEY, 0.0)
    for name, value in facts.items():
        setattr(call, name, value)
    return call


def test_credentials_of_the_oldest_use_are_removed_first() -> None:
    credentials = Credentials()
    for number in range(MOST + 2):
        credentials.keep(str(number), call_with())
    assert [bool(credentials.of(str(number)).headers) for number in (0, 1, 2, MOST, MOST + 1)] == [
        False, False, True, True, True,
    ]  # fmt: skip


def test_client_key_is_not_stored() -> None:
    credentials = Credentials()
    credentials.keep("a", call_with(client_key="app"))
    assert not credentials.of("a").headers


def test_parameter_that_may_be_a_key_stays_off_the_disk_and_in_memory() -> None:
    credentials = Credentials()
    query = "api-version=1&key=sk-1&%73ig=2"
    credentials.keep("a", call_with(query=query))
    assert credentials.of("a").parameters == ("key=sk-1", "%73ig=2")
    assert plain_query(query) == "api-version=1"
    credentials.forget("a")
    assert not credentials.of("a").parameters
