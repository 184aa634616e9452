"""Injects faults into attempts, at the point where an attempt asks for its connection.

Operators request them (`admin.api.chaos`), and `admin.overrides.injected_faults` ends them. A fault takes the place of
an upstream's origin, so that limits, classification and retries treat it like the upstream's own.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS, DialectName
from llm_guard.outcome import Disposition, FailureKind, Refusal
from llm_guard.proxy.call import Attempt, Call, Exchange, Headers, endpoint_of
from llm_guard.proxy.http_client.connection_pool import UpstreamError, UpstreamOrigin
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing, Inbox, Wire
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.routing.route_table import Target

INJECTED_CODE = "injected_fault"
"""Code of an injected error response, in the attempt's failure and in the evidence of breakers."""

InjectedKind = Literal["status", "hang", "delay", "cut"]


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """The effect on an attempt that a fault strikes."""

    kind: InjectedKind
    """status: an error response, without a request to the upstream; hang: no response, without a request; delay: the
    upstream's response, later; cut: the upstream's response, which breaks off."""
    status: int = 503
    retry_after_s: float | None = None
    """Retry-After of the error response; not longer than the fault itself lasts."""
    delay_s: float = 0.0
    after_bytes: int = 0
    """How much of a response passes before it is cut."""


@dataclass(slots=True, eq=False)
class InjectedFault:
    """A fault for a share of the attempts on a deployment, or of those for a model."""

    id: str
    effect: FaultEffect
    share: float
    """Share of the attempts, above 0 and at most 1."""
    until: float
    """Monotonic instant at which it ends."""
    model: str | None = None
    """A key of `models`, whose deployments are struck; None: `deployment` is set."""
    deployment: str | None = None
    """Label of the deployment that is struck."""
    struck: int = field(default=0, init=False)
    """Attempts that it has struck."""
    _waiting: set[asyncio.Future[None]] = field(default_factory=set, init=False, repr=False)

    def concerns(self, target: Target) -> bool:
        """Returns whether attempts on the target may be struck."""
        return target.alias == self.model if self.model is not None else target.deployment.label == self.deployment

    async def wait(self, clock: Clock, seconds: float | None) -> None:
        """Waits so long, or until the fault ends; None: until it ends."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(over)
        alarm = None if seconds is None else clock.call_at(clock.now() + seconds, lambda: _release(over))
        try:
            await over
        finally:
            self._waiting.discard(over)
            if alarm is not None:
                alarm.cancel()

    def release(self) -> None:
        """Ends all waits, because the fault has ended."""
        for over in self._waiting:
            _release(over)


class FaultInjector:
    """The faults in effect. Without one, attempts only look at `faults`."""

    def __init__(self, clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` gives a uniform number in [0, 1)."""
        self.faults: tuple[InjectedFault, ...] = ()
        """The first one that concerns an attempt, and is drawn, strikes it."""
        self.counts: dict[tuple[str, InjectedKind], int] = defaultdict(int)
        """Attempts that were struck, by deployment label and kind, since the start."""
        self._clock = clock
        self._draw = draw

    def add(self, fault: InjectedFault) -> None:
        self.faults = (*self.faults, fault)

    def remove(self, fault: InjectedFault) -> None:
        """Ends a fault: attempts that hang fail, attempts that are delayed continue."""
        self.faults = tuple(other for other in self.faults if other is not fault)
        fault.release()

    def origin_for(self, call: Call, attempt: Attempt, origin: UpstreamOrigin) -> UpstreamOrigin:
        """Returns the origin to send an attempt to: the upstream's, or a fault that strikes the attempt."""
        now, target = self._clock.now(), attempt.target
        for fault in self.faults:
            if now < fault.until and fault.concerns(target) and self._draw() < fault.share:
                self._note(fault, call, target.deployment.label)
                dialect, _ = endpoint_of(call, attempt)
                return _StruckOrigin(fault, dialect, call.id, origin, self._clock)
        return origin

    def _note(self, fault: InjectedFault, call: Call, label: str) -> None:
        fault.struck += 1
        self.counts[label, fault.effect.kind] += 1
        disposition = call.disposition = call.disposition or Disposition()
        disposition.injected_faults += (f"{fault.id}: {fault.effect.kind} on {label}",)


class _StruckOrigin:
    """Implements `UpstreamOrigin` for one attempt that a fault strikes."""

    def __init__(
        self, fault: InjectedFault, dialect: DialectName, call_id: str, origin: UpstreamOrigin, clock: Clock
    ) -> None:
        """`dialect` is the upstream's."""
        self._fault = fault
        self._dialect = dialect
        self._call_id = call_id
        self._origin = origin
        self._clock = clock

    async def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Exchange:
        """Implements `UpstreamOrigin`."""
        fault, effect = self._fault, self._fault.effect
        if effect.kind in ("status", "hang"):
            if dialing is not None:
                dialing.on_connected()
            if effect.kind == "status":
                return _InjectedResponse(self._dialect, self._call_id, fault, self._clock.now())
            await fault.wait(self._clock, None)
            raise UpstreamError(FailureKind.NETWORK, f"closed at the end of an injected fault ({fault.id})")
        exchange = await self._origin.send(method, target, headers, body, dialing, is_repeatable=is_repeatable)
        if effect.kind == "cut":
            return _CutExchange(exchange, fault)
        try:
            await fault.wait(self._clock, effect.delay_s)
        except BaseException:
            exchange.abort()
            raise
        return exchange


class _InjectedResponse:
    """An error response that no upstream has sent; implements `proxy.call.Exchange`."""

    def __init__(self, dialect: DialectName, call_id: str, fault: InjectedFault, now: float) -> None:
        effect = fault.effect
        message = f"injected by an operator of the gateway, not sent by the provider ({fault.id})"
        refusal = Refusal(effect.status, INJECTED_CODE, message, by=None)
        self.status = effect.status
        self.reason = ""
        headers = [("Content-Type", "application/json")]
        if effect.retry_after_s is not None:
            headers.append(("Retry-After", str(int(max(1.0, min(effect.retry_after_s, fault.until - now))))))
        self.headers: Headers = tuple(headers)
        body = DIALECTS[dialect].refusal_body(refusal, call_id)
        body["error"]["code"] = INJECTED_CODE  # Anthropic's errors have a type only, which is the provider's
        self._body = json.dumps(body).encode()

    async def read(self) -> bytes:
        """Implements `proxy.call.Exchange`."""
        body, self._body = self._body, b""
        return body

    def abort(self) -> None:
        """Implements `proxy.call.Exchange`."""

    def take_over(self, inbox: Inbox) -> Wire:  # noqa: ARG002  # the interface has it
        """Implements `proxy.call.Exchange`."""
        raise UpstreamError(FailureKind.NETWORK, "an injected response cannot be upgraded")


class _CutExchange:
    """An upstream's response that breaks off; implements `proxy.call.Exchange`."""

    def __init__(self, exchange: Exchange, fault: InjectedFault) -> None:
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._fault = fault
        self._left = fault.effect.after_bytes

    async def read(self) -> bytes:
        """Implements `proxy.call.Exchange`."""
        if self._left <= 0:
            self._exchange.abort()
            raise UpstreamError(FailureKind.TRUNCATED, f"cut by an injected fault ({self._fault.id})")
        chunk = (await self._exchange.read())[: self._left]
        self._left -= len(chunk)
        return chunk

    def abort(self) -> None:
        """Implements `proxy.call.Exchange`."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Implements `proxy.call.Exchange`."""
        return self._exchange.take_over(inbox)


def _release(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
