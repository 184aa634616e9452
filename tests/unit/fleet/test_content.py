"""What gateways publish to one another: read as it was written, or not at all."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import msgspec
import pytest

from llm_guard.fleet.content import Content, decode, encode
from llm_guard.resilience.capacity.pace_report import (
    Membership,
    PaceDecision,
    PaceEvent,
    PaceGrant,
    PaceReport,
    PaceState,
    WaitingCalls,
)
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.circuit_breaker.caller_evidence import CallerEvidence, CallersSummary
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary

FAILING: dict[str, Any] = {"caller": "a", "calls": 2.0, "failures": 2.0, "run_began_s": None, "in_run": 2}


def summary() -> BreakerSummary:
    found = SharedBreaker(BreakerSettings()).summary(0.0)
    assert found is not None
    return replace(found, calls=3, latest_sent_s=(0.5, 1.0), ok_sent_s=2.0)


def test_content_is_read_as_it_was_written() -> None:
    content = Content({"a": summary(), "b": replace(summary(), state="open", recovered_s=1.0)})
    assert decode(encode(content)) == content
    assert decode(encode(Content())) == Content()
    callers = CallersSummary((CallerEvidence(**FAILING),), 3.0, 2.0, "b", 1.0, {"a": -3.0})
    content = Content({"a": replace(summary(), callers=callers)})
    assert decode(encode(content)) == content


def test_older_version_publishes_less() -> None:
    less = msgspec.to_builtins(summary())
    del less["callers"]
    assert decode(msgspec.msgpack.encode({"breakers": {"a": less}})) == Content({"a": summary()})


def test_newer_version_may_publish_more() -> None:
    more = {"breakers": {"a": {**msgspec.to_builtins(summary()), "new": [1]}}, "also": {"x": 1}}
    assert decode(msgspec.msgpack.encode(more)) == Content({"a": summary()})


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": -1}, {"window_s": nan}, {"takes_s": inf}, {"ok_sent_s": -0.1}, {"recovered_s": nan},
        {"latest_sent_s": (1.0, -1.0)}, {"in_flight_s": (nan,)}, {"rates": (0.1, inf)}, {"counted": 1 << 62},
        {"state": "asleep"}, {"calls": "3"}, {"rates": (0.1,)},
        {"callers": {"calls": nan}}, {"callers": {"ok_began_s": -1.0}}, {"callers": {"looks": {"a": inf}}},
        {"callers": {"failing": [FAILING | {"failures": -1.0}]}}, {"callers": {"failing": [FAILING] * 101}},
        {"callers": {"looks": {str(n): 1.0 for n in range(101)}}},
    ],
)  # fmt: skip
def test_content_with_an_impossible_value_is_not_read(wrong: dict[str, object]) -> None:
    odd = {"breakers": {"a": {**msgspec.to_builtins(summary()), **wrong}}}
    assert decode(msgspec.msgpack.encode(odd)) is None


_ODD_WINDOWS: tuple[dict[str, Any], ...] = (
    {"remaining": -1.0}, {"remaining": 61.0}, {"limit": inf}, {"refill_per_s": 0.0}, {"reset_s": nan},
)  # fmt: skip
HINT = RateHint((RateLimitWindow("requests", False, 60.0, 3.0, 1.0, 57.0),))
REPORT = PaceReport(
    True, 2, "k", 5, 7, (PaceEvent("entered", "app"), PaceEvent("ok", "app", 0.5, 99.5), PaceEvent("hint", hint=HINT)),
    (WaitingCalls(1, "app", 3),), 4, 2.5, ("app",),
    PaceDecision(
        3, "k", 100.0, {"a": Membership(7, 2, (PaceGrant(1, "app", 99.5),))},
        PaceState(10.0, "rate_limits", 5.0, 2.0, 1.0), PaceState(0.5, "headers", 1.0), ("app",), False, 12,
    ),
)  # fmt: skip


def test_pace_is_read_as_it_was_written() -> None:
    assert decode(encode(Content(paces={"x": REPORT}))) == Content(paces={"x": REPORT})


@pytest.mark.parametrize(
    "wrong",
    [
        replace(REPORT, term=-1), replace(REPORT, received=-1), replace(REPORT, rate=0.0), replace(REPORT, rate=nan),
        replace(REPORT, in_flight=-1), replace(REPORT, waiting=(WaitingCalls(1, "", -1),)),
        replace(REPORT, waiting=(WaitingCalls(1, "", 1, 0.0),)),
        replace(REPORT, waiting=(WaitingCalls(1, "", 1, nan),)),
        replace(REPORT, waiting=(WaitingCalls(1, "", 10_001),)), replace(REPORT, events=(PaceEvent("ok", "", nan),)),
        replace(REPORT, events=(PaceEvent("ok", "", 0.0, inf),)),
        replace(REPORT, events=(PaceEvent("denied", count=10_001),)),
        *(
            replace(REPORT, events=(PaceEvent("hint", hint=RateHint((replace(HINT.windows[0], **odd),))),))
            for odd in _ODD_WINDOWS
        ),
        *(
            replace(REPORT, decision=replace(PaceDecision(1), **odd))
            for odd in (
                {"term": -1}, {"at": nan}, {"waiting": -1}, {"members": {"a": Membership(-1)}},
                {"members": {"a": Membership(0, 0, (PaceGrant(1, "", nan),))}}, {"free": PaceState(rate=-1.0)},
                {"apart": PaceState(held_s=inf)},
            )
        ),
    ],
)  # fmt: skip
def test_pace_with_an_impossible_value_is_not_read(wrong: PaceReport) -> None:
    assert decode(encode(Content(paces={"x": wrong}))) is None


def test_paces_that_make_a_content_too_large_to_be_read_are_left_out() -> None:
    rest = Content({"a": summary()})
    small = Content({"a": summary()}, paces={"x": REPORT})
    assert decode(encode(small)) == small
    large = replace(REPORT, events=(PaceEvent("ok", "app", 0.5, 99.5),) * 4000)
    assert decode(encode(Content({"a": summary()}, paces={f"{number}": large for number in range(5)}))) == rest


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xc1", b"\x81\xa8breakers\xc0", b"\x81\xa1x" + b"\x91" * 60_000, b"\x00" * (1 << 21)],
)
def test_what_is_no_content_is_not_read(content: bytes) -> None:
    assert decode(content) is None
