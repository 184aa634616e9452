"""Fields that are recognized from the request before must be those that parsing would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.proxy.headers import digests_of
from llm_guard.proxy.http_server.request import RawFields, RequestFields
from llm_guard.proxy.request_body.fields import BadRequest

NAMES = st.sampled_from([b"Host", b"Content-Length", b"content-length", b"Authorization", b"X-A", b"X_A"])
VALUES = st.sampled_from([b"1", b"22", b"22 ", b"Bearer k-1", b"Bearer k-2"])
RAW = st.lists(st.tuples(NAMES, VALUES), max_size=5)

CHAT: RawFields = [(b"Host", b"a"), (b"Authorization", b"Bearer k-1"), (b"Content-Length", b"1"), (b"X-A", b"1")]


def read(raw: RawFields) -> RequestFields | str:
    try:
        return RequestFields.read(list(raw), is_head_long=False)
    except BadRequest as bad:
        return bad.code


def changed(head: RawFields, at: int, value: bytes) -> RawFields:
    """Returns the head with another value of one field."""
    return [(name, value if index == at else old) for index, (name, old) in enumerate(head)]


@given(RAW, st.lists(st.tuples(st.integers(0, 4), VALUES), max_size=12))
def test_recognized_fields_are_those_that_parsing_gives(head: RawFields, changes: list[tuple[int, bytes]]) -> None:
    last: RequestFields | str = RequestFields((), {})
    sent = [head]
    for at, value in changes:
        sent.append(changed(sent[-1], at, value))
    for raw in sent:
        known = last.next(list(raw)) if isinstance(last, RequestFields) else None
        last = read(raw)
        if known is None:
            continue
        assert isinstance(last, RequestFields)
        assert (known.headers, dict(known.names)) == (last.headers, dict(last.names))
        assert list(known.names) == list(last.names)
        assert known.caller == digests_of(last.headers, last.names)
        last = known


def test_only_the_length_may_differ() -> None:
    first = RequestFields.read(list(CHAT), is_head_long=False)
    assert first.next(list(CHAT)) is first
    longer = [*CHAT[:2], (b"Content-Length", b"20"), CHAT[3]]
    second = first.next(longer)
    assert second is not None
    assert second.names == {"host": "a", "authorization": "Bearer k-1", "content-length": "20", "x-a": "1"}
    assert second.next(list(CHAT)) is not None
    assert first.names["content-length"] == "1"
    assert second.sent_headers is first.sent_headers is not None


@pytest.mark.parametrize("at", [0, 1, 3])
def test_any_other_change_is_parsed(at: int) -> None:
    first = RequestFields.read(list(CHAT), is_head_long=False)
    for other in [(CHAT[at][0], b"other"), (b"X-Other", CHAT[at][1]), (b"X_A", b"1")]:
        assert first.next([*CHAT[:at], other, *CHAT[at + 1 :]]) is None
    assert first.next([*CHAT[:at], *CHAT[at + 1 :]]) is None
    assert first.next([*CHAT, CHAT[at]]) is None


def test_other_key_on_the_same_connection_is_another_caller() -> None:
    first = RequestFields.read(list(CHAT), is_head_long=False)
    other = [CHAT[0], (b"Authorization", b"Bearer k-2"), *CHAT[2:]]
    assert first.next(other) is None
    assert RequestFields.read(other, is_head_long=False).caller != first.caller


@pytest.mark.parametrize("first", [(b"X-A", b"1"), (b"X_A", b"1")], ids=["repeated", "dropped"])
def test_head_with_a_repeated_or_dropped_field_is_always_parsed(first: tuple[bytes, bytes]) -> None:
    """Their indexes among the received fields and among the names differ."""
    head = [first, (b"X-A", b"1"), (b"Content-Length", b"1")]
    assert RequestFields.read(list(head), is_head_long=False).next(list(head)) is None


def test_long_head_is_not_stored_for_comparison() -> None:
    """A connection that is idle must not hold 64 KiB."""
    first = RequestFields.read(list(CHAT), is_head_long=True)
    assert first.next(list(CHAT)) is None
    assert first.sent_headers is None
