"""Reading a response up to the point at which it is known to be good, without sockets."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from llm_guard.dialects import DialectName
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.attempts.first_response import ResponseTimeLimits, judged, read_to_commit
from llm_guard.proxy.call import Attempt, Call, Opened
from llm_guard.proxy.headers import lower_names
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.routing.route_table import Target
from tests.fakes.clock import ManualClock
from tests.fakes.script import OpenExchange, new_call, new_target

JSON = ("content-type", "application/json")
RATE = (
    ("x-ratelimit-limit-requests", "60"),
    ("x-ratelimit-remaining-requests", "1"),
    ("x-ratelimit-reset-requests", "1s"),
)
ERROR = b'{"error": {"message": "the engine is dead"}}'


class ReadExchange(OpenExchange):
    """Delivers the given chunks, then ends or breaks."""

    def __init__(
        self, status: int, *chunks: bytes, headers: tuple[tuple[str, str], ...] = (), breaks: bool = False
    ) -> None:
        super().__init__()
        self.status, self.headers = status, (JSON, *headers)
        self._chunks = list(chunks)
        self._breaks = breaks

    async def read(self) -> bytes:
        if self._chunks:
            return self._chunks.pop(0)
        if self._breaks:
            raise UpstreamError(FailureKind.NETWORK, "the connection was reset")
        return b""


class NoLimits:
    def __init__(self) -> None:
        self.clock = ManualClock()

    def on_stream(self) -> None: ...
    def on_first_token(self) -> None: ...
    def on_unary(self) -> None: ...


async def opened(exchange: ReadExchange, call: Call | None = None, target: Target | None = None) -> Opened | Failure:
    target = target or new_target()
    limits = cast("ResponseTimeLimits", NoLimits())
    call, attempt, headers = call or new_call(target), Attempt(target, 1000.0), lower_names(exchange.headers)
    read = await read_to_commit(call, attempt, exchange, headers, limits, ResponseMemory())
    return judged(call, attempt, exchange, headers, read, limits.clock.wall())


async def test_whole_error_body_is_stored_for_the_client() -> None:
    failure = await opened(ReadExchange(500, ERROR[:9], ERROR[9:]))
    assert isinstance(failure, Failure)
    assert failure.answer is not None
    assert failure.answer.body == ERROR


@pytest.mark.parametrize(("dialect", "status"), [("anthropic", 529), ("openai", 503)])
async def test_overload_under_200_gets_the_status_of_the_dialect(dialect: DialectName, status: int) -> None:
    target = new_target()
    upstream = replace(target.deployment.upstream, dialect=dialect)
    target = replace(target, deployment=replace(target.deployment, upstream=upstream))
    error = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    failure = await opened(ReadExchange(200, error), target=target)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.OVERLOADED
    assert failure.answer is not None
    assert failure.answer.status == status


async def test_error_body_that_was_cut_is_not_passed_on_as_a_whole() -> None:
    failure = await opened(ReadExchange(500, ERROR[:9], breaks=True))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.SERVER_ERROR
    assert failure.answer is None


async def test_error_body_above_the_bound_is_not_passed_on_as_a_whole() -> None:
    failure = await opened(ReadExchange(500, *[b"x" * (1 << 16)] * 64))
    assert isinstance(failure, Failure)
    assert failure.answer is None


async def test_rate_headers_set_the_pace_of_calls_with_a_model_only() -> None:
    chat = await opened(ReadExchange(200, b'{"choices": [{"message": {"content": "a"}}]}', headers=RATE))
    assert isinstance(chat, Opened)
    assert chat.rate is not None
    files = new_call(new_target())
    files.model, files.method, files.path = None, "GET", "/v1/files"
    listed = await opened(ReadExchange(200, b'{"data": []}', headers=RATE), files)
    assert isinstance(listed, Opened)
    assert listed.rate is None


async def test_redirect_of_a_call_is_a_failure() -> None:
    with pytest.raises(UpstreamError) as raised:
        await opened(ReadExchange(307))
    assert raised.value.kind is FailureKind.MISROUTED


async def test_upgrade_without_a_request_for_it_is_a_failure() -> None:
    with pytest.raises(UpstreamError) as raised:
        await opened(ReadExchange(101))
    assert raised.value.kind is FailureKind.MALFORMED
