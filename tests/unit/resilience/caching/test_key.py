from __future__ import annotations

from dataclasses import fields, replace

import pytest

from llm_guard.resilience.caching.key import (
    MOST_CANONICAL_BYTES,
    CacheKeyFields,
    canonical,
    key_of,
    media_type,
    relevant_headers,
)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'"a"', id="a string"),
        pytest.param(b'{"a":1,"a":1}', id="a key twice"),
        pytest.param(b'{"a":{"b":1,"b":2}}', id="a key twice, further in"),
        pytest.param(b'{"a":1,"\\u0061":2}', id="a key twice, in two spellings"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":-Infinity}', id="infinity"),
        pytest.param(b'{"a":1e400}', id="beyond a float"),
        pytest.param(b'{"a":-1e400}', id="below a float"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="beyond all measure"),
        pytest.param(b'{"a":"\xff"}', id="no UTF-8"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="a byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}", id="too deep"),
        pytest.param(b'{"a":1', id="cut"),
    ],
)
def test_body_that_two_readers_may_read_differently_has_no_form(body: bytes) -> None:
    assert canonical(body) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"a":1,"b":2}', b'{ "b": 2, "a": 1 }', True),
        (b'{"a":"\xc3\xa9"}', b'{"a":"\\u00e9"}', True),
        (b'{"a":"/"}', b'{"a":"\\/"}', True),
        (b'{"a":0.70}', b'{"a":7e-1}', True),
        (b'{"a":1e2}', b'{"a":100.0}', True),
        (b'{"a":-0}', b'{"a":0}', True),
        (b'{"a":1}', b'{"a":1.0}', False),
        (b'{"a":1}', b'{"a":true}', False),
        (b'{"a":9007199254740993}', b'{"a":9007199254740992}', False),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"a":null}', b"{}", False),
        (b'{"a":"\\ud83d"}', b'{"a":"\\ude00"}', False),
        (b'{"a":"\xc3\xa9"}', b'{"a":"e\xcc\x81"}', False),
    ],
)
def test_bodies_are_compared_by_their_meaning(one: bytes, other: bytes, is_same: bool) -> None:
    assert (canonical(one) == canonical(other)) == is_same
    assert canonical(one) is not None


def test_short_body_never_passes_for_a_long_one() -> None:
    long = b'{"a":"' + b"x" * MOST_CANONICAL_BYTES + b'"}'
    assert canonical(long) == b"whole:" + long
    assert str(canonical(b"{}")).startswith("b'read:")


ONE = CacheKeyFields(
    dialect="a", method="a", path="a", query="a", upstream="a", route="a", targets=("a",), model="a", is_stream=False,
    media_type="a", headers=(("x", "a"),), body=b"a", caller=("a",),
)  # fmt: skip
OTHER = CacheKeyFields(
    dialect="b", method="b", path="b", query="b", upstream="b", route="b", targets=("b",), model="b", is_stream=True,
    media_type="b", headers=(("x", "b"),), body=b"b", caller=("b",),
)  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(CacheKeyFields)])
def test_every_field_counts(name: str) -> None:
    assert key_of(replace(ONE, **{name: getattr(OTHER, name)})) != key_of(ONE)


def test_no_list_can_pass_for_the_next() -> None:
    one = replace(ONE, headers=(), caller=("a", "0"), body=b"")
    other = replace(one, headers=(("2", "a"),), caller=())
    third = replace(one, caller=("a",), body=b"0")
    assert len({key_of(one), key_of(other), key_of(third)}) == 3


def test_headers_without_effect_on_the_response_are_left_out() -> None:
    silent = [
        "user-agent",
        "x-stainless-os",
        "traceparent",
        "authorization",
        "cookie",
        "x-llm-guard-priority",
        "x-b3-x",
    ]
    said = [
        ("anthropic-beta", " b "),
        ("openai-beta", "a"),
        ("accept", "x"),
        ("x-user", "1"),
        ("anthropic-version", "1"),
    ]
    assert relevant_headers([*((name, "1") for name in silent), *said]) == tuple(
        sorted((name, value.strip()) for name, value in said)
    )


def test_media_type_has_no_parameters() -> None:
    assert media_type("Application/JSON; charset=utf-8") == "application/json"
