"""A request body that arrives over many reads: received as a whole, or sent on while it arrives.

Decides which calls begin before their body is complete, and ends such a call when its body fails. The body itself is in
`proxy.request_body.reader`; `proxy.attempts.upstream_attempt` sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Self

from llm_guard.clock import Clock
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.body_buffer import MEMORY_BYTES
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields
from llm_guard.proxy.request_body.model_field import inspect
from llm_guard.proxy.request_body.reader import ArrivingBody, begin
from llm_guard.proxy.request_body.size_limit import BodyLimit, is_upload
from llm_guard.proxy.request_body.spool import Spool
from llm_guard.proxy.response.fallback_response import may_be_kept
from llm_guard.resilience.retry.deadline import deadline_at


def check_announced(reply: ResponseWriter, limit: BodyLimit, spool: Spool) -> None:
    """Checks the size of the body as far as it is known, and what the head announces. Sends the 100 (Continue) that a
    client may wait for before it sends the body. Raises BadRequest."""
    request = reply.request
    limit.check(max(request.content_length, request.received_bytes))
    if request.content_length > MEMORY_BYTES:
        spool.check(request.content_length)
    if "expect" not in request.names or request.version == "1.0":  # HTTP/1.0 has none (RFC 9110, section 10.1.1)
        return
    if request.names["expect"].lower() != "100-continue":
        reply.closes_connection = True  # unknown whether the body follows
        raise BadRequest(417, "expectation_failed", "the only supported Expect value is 100-continue")
    reply.send_continue()


async def receive_call(call: Call, request: Request, limit: BodyLimit, spool: Spool, clock: Clock) -> BodyFields:
    """Receives the body of a call, and returns the fields read from it.

    Leaves an ArrivingBody in `call.body` if the rest of the body cannot change the route. Raises BadRequest.
    """
    announced_bytes = request.content_length if "content-length" in request.names else None
    body = await begin(
        request.read, call.content_type, call.content_encoding, announced_bytes, limit, spool, clock
    )  # fmt: skip
    if isinstance(body, bytes):
        call.body = body
        return inspect(body, call.content_type, "", limit.max_bytes)
    asked = None if request.has_arrived else body.asks_so_far()
    if asked is not None and _is_route_known(call, body, asked):
        call.body = body
        return asked
    call.body, asked = await body.receive_whole()
    return asked


def _is_route_known(call: Call, body: ArrivingBody, asked: BodyFields) -> bool:
    """Returns whether no field that is still to arrive can change the route."""
    if call.upstream_name is not None and call.scope is None:
        return True
    return asked.model is not None or is_upload(call.path) or not body.is_form


def needs_whole_body(call: Call, reply: ResponseWriter) -> bool:
    """Returns whether the call needs its complete body first: the gateway answers it itself, it may be translated, or
    its route or its client wants hedging, degraded mode, a deferred call or a dead letter."""
    route = call.route
    if route is None or call.translation is not None or (route.hedging is not None and call.is_repeatable):
        return True
    return route.lasting.degraded is not None or may_be_kept(call, reply)


class BodyReception:
    """`async with BodyReception(...)`: receives the rest of a body while the calling task executes the call.

    If the body fails (its client is too slow, it is too large, it cannot be read), the calling task is cancelled
    without blaming a provider, and the body's error is raised from the `async with` block.
    """

    def __init__(self, call: Call, body: ArrivingBody, note: Callable[[BodyFields], None], clock: Clock) -> None:
        """`note` is called with the fields of the complete body."""
        self._call = call
        self._body = body
        self._note = note
        self._clock = clock
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._task = task
        self._cancelling = task.cancelling()
        self._call.start_time(inf, inf)  # an upload's time is limited by its connection alone
        self._receiving = asyncio.get_running_loop().create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._receiving.cancel()
        is_ours = self._error is not None and self._task.uncancel() <= self._cancelling
        try:
            if self._error is not None and is_ours and isinstance(error, asyncio.CancelledError):
                raise self._error from None
        finally:
            self._error = None  # its traceback refers to this object

    async def _receive(self) -> None:
        try:
            self._complete(await self._body.receive_rest())
        except Exception as error:  # noqa: BLE001  # any error must end the call, which waits for the rest
            self._error = error
            self._task.cancel()

    def _complete(self, asked: BodyFields) -> None:
        """Starts the call's own time limits."""
        call = self._call
        assert call.route is not None  # noqa: S101  # without one it would not have been sent on
        if call.sent_status is None:
            self._note(asked)
        call.start_time(call.client_deadline, deadline_at(self._clock.now(), call.route.timeouts.total, None))
