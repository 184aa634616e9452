"""Open-loop clients: calls arrive at their times, independently of earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal, cast

from benchmarks.virtual.provider import CALL_HEADER
from llm_guard.dialects import DialectName
from llm_guard.mock.load_retries import SdkRetries
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_client.interfaces import Inbox
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseWriter

Outcome = Literal["served", "refused", "broken", "left"]
"""refused: an error status; broken: status 200 but cut, or no response; left: the client disconnected."""

_PATHS: dict[DialectName, str] = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
_ENDS = (b"data: [DONE]", b"event: message_stop")
_TAIL_BYTES = 256


@dataclass(frozen=True, slots=True)
class Load:
    """Calls to one model, from one kind of client. Times in seconds from the beginning of the run."""

    model: str
    rate_per_s: float
    ends_at: float
    begins_at: float = 0.0
    arrivals: Literal["poisson", "even"] = "poisson"
    dialect: DialectName = "openai"
    is_stream: bool = False
    patience_s: float | None = None
    """Client timeout: stated in the headers as the SDKs do, and a silence of this length makes the client disconnect.
    None: not stated, and the client waits for ever."""
    asks_for_s: float | None = None
    """The client retries for this long until it succeeds, with the SDKs' waits. None: one call."""
    caller: str = "client"
    """The client's key is `sk-` and this, and the body names it as its user."""

    def times(self, random: Random) -> Iterator[float]:
        """Arrival times of the calls, ascending."""
        gap_s = 1.0 / self.rate_per_s
        at = self.begins_at + (random.expovariate(self.rate_per_s) if self.arrivals == "poisson" else gap_s / 2)
        while at < self.ends_at:
            yield at
            at += random.expovariate(self.rate_per_s) if self.arrivals == "poisson" else gap_s


@dataclass(slots=True)
class ClientCall:
    """One call as its client saw it. Times in seconds from the beginning of the run."""

    number: int
    model: str
    arrived_at: float
    ended_at: float = -1.0
    outcome: Outcome = "left"
    status: int = 0
    """HTTP status; 0 without an answer."""
    deployment: str = ""
    """Deployment that answered; "" if the response is the gateway's own."""
    attempts: int = 0
    code: str = ""
    """Beginning of an error's body."""
    caller: str = "client"
    retry_after_ms: str = ""
    """Wait that a failure requests, in milliseconds; "" if none."""

    @property
    def took_s(self) -> float:
        return self.ended_at - self.arrived_at


def fields_of(load: Load, number: int, length: int) -> RequestFields:
    """Headers of a request, as parsed by the listener."""
    fields = [
        (b"host", b"gateway"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % length),
        (CALL_HEADER.encode(), b"%d" % number),
        *_keys(load),
    ]
    if load.patience_s is not None:
        fields += [(b"x-stainless-read-timeout", b"%g" % load.patience_s), (b"x-stainless-retry-count", b"0")]
    return RequestFields.read(fields, is_head_long=False)


def _keys(load: Load) -> list[tuple[bytes, bytes]]:
    key = b"sk-" + load.caller.encode()
    if load.dialect == "anthropic":
        return [(b"x-api-key", key), (b"anthropic-version", b"2023-06-01")]
    return [(b"authorization", b"Bearer " + key)]


def body_of(load: Load) -> bytes:
    """Body of a request: one short message."""
    most = '"max_tokens":16,' if load.dialect == "anthropic" else ""
    stream = '"stream":true,' if load.is_stream else ""
    user = f'"user":"{load.caller}",' if load.dialect == "openai" else ""
    return (
        f'{{"model":"{load.model}",{most}{stream}{user}"messages":[{{"role":"user","content":"say a word"}}]}}'.encode()
    )


async def call_until_answered(
    gateway: Handler, load: Load, body: bytes, call: ClientCall, since: Callable[[], float]
) -> None:  # fmt: skip
    """Serves one call, repeatedly if its client retries until it succeeds. `since` gives the time in seconds from the
    beginning of the run."""
    retries = SdkRetries(0, seed=call.number, patience_s=load.asks_for_s)
    for taken in count():
        await call_once(gateway, load, body, call)
        if load.asks_for_s is None or call.outcome == "served":
            return
        hint = {"retry-after-ms": call.retry_after_ms} if call.retry_after_ms else {}
        wait_s = retries.try_wait_s(taken, call.status or None, hint, since() - call.arrived_at)
        if wait_s is None:
            return
        await asyncio.sleep(wait_s)


async def call_once(gateway: Handler, load: Load, body: bytes, call: ClientCall) -> None:
    """Serves one call; fills in `call`, except its times."""
    request = Request("POST", _PATHS[load.dialect], "1.1", fields_of(load, call.number, len(body)))
    request.feed(body)
    request.complete()
    wire = _Wire()
    reply = ResponseWriter(request, wire)
    if load.patience_s is not None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        wire.task, wire.patience_s = task, load.patience_s
        wire.timer = loop.call_later(load.patience_s, wire.lose_patience)
    try:
        await gateway.serve(request, reply)
    except asyncio.CancelledError:
        return
    finally:
        if wire.timer is not None:
            wire.timer.cancel()
        _note(wire, reply, load, call)


def _note(wire: _Wire, reply: ResponseWriter, load: Load, call: ClientCall) -> None:
    call.status = wire.status
    call.deployment = wire.header(b"x-llm-guard-deployment")
    call.attempts = int(wire.header(b"x-llm-guard-attempts") or 0)
    call.retry_after_ms = wire.header(b"retry-after-ms")
    is_whole = reply.is_over and not wire.is_closed
    if wire.has_left:
        call.outcome = "left"
    elif wire.status == 0:
        call.outcome = "broken"
    elif wire.status != 200:
        call.outcome = "refused"
        call.code = wire.first.partition(b"\r\n\r\n")[2][:160].decode("utf-8", "replace")
    elif is_whole and not (load.is_stream and not any(end in wire.last for end in _ENDS)):
        call.outcome = "served"
    else:
        call.outcome = "broken"


class _Wire:
    """A client's connection. Implements `response_writer.ResponseConnection`."""

    __slots__ = ("first", "has_left", "is_closed", "last", "patience_s", "status", "task", "timer", "transport")

    transport: asyncio.Transport
    """Not set: nothing is upgraded here."""

    def __init__(self) -> None:
        self.status = 0
        self.first = b""
        """First write of the gateway: the head, and what was sent with it."""
        self.last = b""
        """End of the bytes received, long enough for a stream's terminal event."""
        self.is_closed = False
        """True if the gateway closed the connection in the middle of a response."""
        self.has_left = False
        self.task: asyncio.Task[None] | None = None
        self.patience_s = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_stuck(self) -> bool:
        return False

    def push(self, data: bytes) -> bool:
        if self.has_left:
            raise ConnectionResetError
        if not self.status:
            self.status = int(data[9:12])
            self.first = data
        self.last = (self.last + data)[-_TAIL_BYTES:]
        if self.timer is not None and self.task is not None:  # SDKs limit the silence, not the whole call
            self.timer.cancel()
            self.timer = self.task.get_loop().call_later(self.patience_s, self.lose_patience)
        return True

    async def wait_room(self) -> None:
        """Returns at once: the client reads without delay."""

    def take_over(self, inbox: Inbox) -> None:
        raise NotImplementedError("nothing is upgraded here")

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def lose_patience(self) -> None:
        """Disconnects the client after too long a silence."""
        self.has_left = True
        cast("asyncio.Task[None]", self.task).cancel()

    def header(self, name: bytes) -> str:
        """Value of a header of the response; "" without it."""
        head = self.first.partition(b"\r\n\r\n")[0]
        _, found, rest = head.partition(b"\r\n" + name + b": ")
        return rest.partition(b"\r\n")[0].decode() if found else ""
