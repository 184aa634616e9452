"""The time limits of one exchange, on a manual clock."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import cast

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.attempts.upstream_attempt import _Limits, _weighed
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.request_body.forwarding import ForwardedBody
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.resilience.routing.candidates import TimeoutSettings, timeout_failure
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_call, new_target

TIMEOUTS = TimeoutSettings(connect=5.0, first_token=10.0, attempt=60.0)


def limits_of(*, is_stream: bool = True, ends_by: float = inf, deadline_at: float = inf) -> tuple[_Limits, ManualClock]:
    """Returns the limits of an exchange that begins at 1000."""
    target, clock = new_target(timeouts=TIMEOUTS), ManualClock()
    call: Call = new_call(target, deadline_at=deadline_at)
    call.is_stream = is_stream
    attempt = Attempt(target, clock.now(), is_stream=is_stream, first_token_s=10.0, must_end_by=ends_by)
    return _Limits(call, attempt, clock), clock


def limit_of(clock: ManualClock) -> tuple[str, float | None]:
    limit = clock.limits[-1]
    return limit.name, limit.at


def test_time_to_the_first_token_begins_with_the_connection() -> None:
    limits, clock = limits_of()
    limits.on_dialing()
    assert limit_of(clock) == ("connect", 1005.0)
    clock.advance(4.0)
    limits.on_connected()
    assert limit_of(clock) == ("first_token", 1014.0)


def test_time_of_a_whole_answer_begins_with_the_attempt() -> None:
    limits, clock = limits_of(is_stream=False)
    limits.on_dialing()
    clock.advance(4.0)
    limits.on_connected()
    assert limit_of(clock) == ("attempt", 1060.0)


def test_no_limit_outlasts_the_call() -> None:
    limits, clock = limits_of(deadline_at=1007.0)
    limits.on_connected()
    assert limit_of(clock) == ("total", 1007.0)


def test_attempt_ends_early_where_time_is_reserved_for_another() -> None:
    limits, clock = limits_of(ends_by=1006.0)
    limits.on_connected()
    assert limit_of(clock)[1] == 1006.0
    clock.advance(6.0)
    assert limits.failure().is_early


def test_call_that_may_take_longer_moves_the_limit() -> None:
    limits, clock = limits_of(deadline_at=1007.0)
    limits.on_connected()
    limits._call.deadline_at = inf
    limits.renew()
    assert limit_of(clock) == ("first_token", 1010.0)


def test_missing_connection_is_a_failure_of_its_own_kind() -> None:
    assert timeout_failure("connect", TIMEOUTS).kind is FailureKind.CONNECT_TIMEOUT
    assert timeout_failure("first_token", TIMEOUTS).kind is FailureKind.TIMEOUT


@pytest.mark.parametrize(("waited_s", "is_clients"), [(0.5, False), (30.0, True)])
async def test_failure_before_the_whole_body_was_sent_names_the_slow_side(waited_s: float, is_clients: bool) -> None:
    limits, clock = limits_of(is_stream=False)
    limits.sending = ForwardedBody(cast("FileBody", SimpleNamespace(size=None)), limits)
    limits.on_connected()
    limits.on_client_awaited()
    clock.advance(waited_s)
    failure = _weighed(Failure(FailureKind.TIMEOUT, "no complete answer"), limits, None)
    assert isinstance(failure, Failure)
    assert failure.is_incomplete
    assert failure.is_clients_delay is is_clients
    limits.sending.is_complete = True
    failure = _weighed(Failure(FailureKind.TIMEOUT, "no complete answer"), limits, None)
    assert isinstance(failure, Failure)
    assert not failure.is_incomplete
