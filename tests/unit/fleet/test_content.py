"""What gateways publish to one another: read as it was written, or not at all."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import msgspec
import pytest

from llm_guard.fleet.content import Content, decode, encode
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary


def summary() -> BreakerSummary:
    found = SharedBreaker(BreakerSettings()).summary(0.0)
    assert found is not None
    return replace(found, calls=3, latest_sent_s=(0.5, 1.0), ok_sent_s=2.0)


def test_content_is_read_as_it_was_written() -> None:
    content = Content({"a": summary(), "b": replace(summary(), state="open", recovered_s=1.0)})
    assert decode(encode(content)) == content
    assert decode(encode(Content())) == Content()


def test_newer_version_may_publish_more() -> None:
    more = {"breakers": {"a": {**msgspec.to_builtins(summary()), "new": [1]}}, "also": {"x": 1}}
    assert decode(msgspec.msgpack.encode(more)) == Content({"a": summary()})


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": -1}, {"window_s": nan}, {"takes_s": inf}, {"ok_sent_s": -0.1}, {"recovered_s": nan},
        {"latest_sent_s": (1.0, -1.0)}, {"in_flight_s": (nan,)}, {"rates": (0.1, inf)}, {"counted": 1 << 62},
        {"state": "asleep"}, {"calls": "3"}, {"rates": (0.1,)},
    ],
)  # fmt: skip
def test_content_with_an_impossible_value_is_not_read(wrong: dict[str, object]) -> None:
    odd = {"breakers": {"a": {**msgspec.to_builtins(summary()), **wrong}}}
    assert decode(msgspec.msgpack.encode(odd)) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xc1", b"\x81\xa8breakers\xc0", b"\x81\xa1x" + b"\x91" * 60_000, b"\x00" * (1 << 21)],
)
def test_what_is_no_content_is_not_read(content: bytes) -> None:
    assert decode(content) is None
