"""Fuzz harnesses for what is read from a store that other programs may write to: contents of gateways, stored calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from llm_guard.config import parse_config
from llm_guard.fleet.breakers import FleetBreakers
from llm_guard.fleet.content import Content, ReplicaStatus, decode, encode
from llm_guard.fleet.notices import FleetNotices
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.calls.bodies import Bodies, Unreadable
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.redis_fields import call_in, fields_of
from llm_guard.storage.shared.exchange_store import Leases
from llm_guard.webhooks.notice_sharing import NoticeState
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES
from tests.fakes.stored_calls import FAILED, deferred_call, new_dead_letter
from tests.fuzz.mutation import rolled

_CONFIG = """
upstreams: {one: {dialect: openai, base_url: "https://one.example/v1"}}
models: {a: {deployments: [{upstream: one}]}}
"""
_TABLE = compile_routes(parse_config(_CONFIG, "fuzz.yaml", {}), 0.0, new_breaker=SharedBreaker)
_SUBJECT = NAMES.subject(next(one for one in _TABLE.deployments() if one.label == "one/a"))
_BODIES = Bodies("encrypted", BodyEncryption([b"k" * 32]))


def fuzz_fleet_content(data: bytes) -> None:
    """Checks that a content of another gateway is refused, or refuses no call here while calls succeed here."""
    _, raw = rolled(data)
    try:
        packed = msgspec.msgpack.encode(msgspec.json.decode(raw))
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError, OverflowError):
        packed = raw
    content = decode(packed)
    if content is None:
        return
    assert decode(encode(content)) == content
    table = compile_routes(parse_config(_CONFIG, "fuzz.yaml", {}), 0.0, new_breaker=SharedBreaker)
    breakers, notices, clock = FleetBreakers(table.deployments, NAMES), FleetNotices(NAMES, ManualClock()), 100.0
    breaker = next(one.breaker for one in table.deployments() if one.label == "one/a")
    for _ in range(30):
        _succeed(breaker, clock)
        clock += 0.1
    breakers.conclude([(0.5, content.breakers)] * 3, Leases({}, {}), clock)
    notices.conclude([content.notices] * 3, Leases({}, {}), clock)
    assert breaker.try_acquire(clock) is not None
    breakers.summaries(clock)
    breakers.wanted(clock)


def _succeed(breaker: object, now: float) -> None:
    assert isinstance(breaker, SharedBreaker)
    permit = breaker.try_acquire(now)
    assert permit is not None
    breaker.settle(permit, Signal.HEALTHY, now + 0.05)


def fuzz_stored_call(data: bytes) -> None:
    """The fields of a stored call are refused, or are a call."""
    _, raw = rolled(data)
    fields: dict[str, bytes] = {}
    for line in raw.split(b"\n"):
        name, colon, value = line.partition(b"=")
        if colon:
            fields[name.decode("utf-8", "replace")] = value.replace(b"\\n", b"\n")
    fields["id"] = b"a"
    try:
        call = call_in(fields, _BODIES)
    except Unreadable:
        return
    assert call.id == "a"


def _lines(fields: Mapping[str, str | bytes | float | None]) -> bytes:
    found = []
    for name, value in fields.items():
        if value is not None:
            content = value if isinstance(value, bytes) else str(value).encode()
            found.append(name.encode() + b"=" + content.replace(b"\n", b"\\n"))
    return b"\n".join(found)


def _content(*summaries: BreakerSummary, **notices: NoticeState) -> bytes:
    breakers = {f"{_SUBJECT}/{number}": summary for number, summary in enumerate(summaries, 1)}
    return msgspec.json.encode(Content(breakers, notices, ReplicaStatus("0.1", "abc", 60.0, 2, 7)))


def _summary(**facts: object) -> BreakerSummary:
    usual = {
        "state": "closed", "calls": 20, "failures": 5, "slow_calls": 0, "window_s": 9.0, "counted": 5,
        "first_sent_s": 3.0, "latest_sent_s": (0.1, 0.5, 1.0, 2.0, 3.0), "takes_s": 0.1, "slowest_s": 0.2,
        "ok_sent_s": 4.0, "ok_takes_s": 0.5, "rates": (0.2, 0.1), "in_flight_s": (0.1, 0.4), "recovered_s": None,
    }  # fmt: skip
    return BreakerSummary(**{**usual, **facts})  # type: ignore[arg-type]


CONTENTS = (
    _content(_summary()),
    _content(_summary(state="open", calls=100, failures=100, counted=100, recovered_s=1.0), _summary(calls=0)),
    _content(
        _summary(state="half_open", ok_sent_s=None),
        notice=NoticeState("x", "warning", "critical", fires=True, ended=("y",)),
    ),
    _content(),
)
CALLS = tuple(
    _lines(fields_of(call, bodies, "runner"))
    for call in (new_dead_letter("a"), deferred_call("a", webhook="w", ended=FAILED))
    for bodies in (_BODIES, Bodies("plain", None))
)
