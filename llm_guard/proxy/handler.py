"""Handles one call from start to finish: admit, receive, identify, attempt, relay, record, in this order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from random import Random

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.dialects import ENDPOINT_DIALECTS, dialect_of
from llm_guard.outcome import Exhausted, Failure, FailureKind, Refusal
from llm_guard.proxy.attempts.attempt_loop import AttemptLoop
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.client_keys.quotas import ClientQuotas, settle
from llm_guard.proxy.client_keys.screening import Screening
from llm_guard.proxy.coalescing.cache_stage import CacheStage
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.http_server.error_responses import DRAINED, refusal_of, refuse
from llm_guard.proxy.http_server.request import Request, objection, without_upstream
from llm_guard.proxy.http_server.response_writer import ResponseWriter, uncancel
from llm_guard.proxy.identification import MODEL_PATHS, identify, note_asked, plain_path
from llm_guard.proxy.model_catalog import ModelCatalog
from llm_guard.proxy.model_status import ModelStatuses
from llm_guard.proxy.own_endpoints import OwnEndpoints
from llm_guard.proxy.ports import DeferredStore
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields
from llm_guard.proxy.request_body.model_field import inspect
from llm_guard.proxy.request_body.reader import (
    ArrivingBody,
    BodyReception,
    check_announced,
    needs_whole_body,
    receive_call,
)
from llm_guard.proxy.request_body.spool import Spool, default_max_bytes
from llm_guard.proxy.response.delivery import Delivery
from llm_guard.proxy.response.ending import CLIENT_DISCONNECTED
from llm_guard.proxy.response.fallback_response import ASYNC_HEADER, FallbackResponder, is_deferred_at_once
from llm_guard.proxy.settings import ProxySettings
from llm_guard.proxy.telemetry.access_log import log_ids
from llm_guard.proxy.telemetry.recorder import Recorder
from llm_guard.proxy.telemetry.trace_propagation import Tracing, begin_trace
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.routing.client_hints import decide_within_s, patience_s, retry_count
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import Route, RouteTable

_log = structlog.get_logger("llm_guard.proxy.handler")
_SMALL_BODY_BYTES = 1 << 17
"""Bodies up to this size are parsed in one go; larger ones piece by piece."""
_POLL_S = 0.01


class Handler:
    """Serves calls with the current config and route table, which a reload replaces."""

    def __init__(
        self,
        config: Config,
        table: RouteTable,
        upstreams: Upstreams,
        recorder: Recorder,
        degraded: DegradedMode,
        cache: ResponseCache,
        deferred_store: DeferredStore,
        screening: Screening,
        tracing: Tracing,
        clock: Clock,
        random: Random,
    ) -> None:
        self.cooldowns = Cooldowns()
        self._loop = AttemptLoop(upstreams, self.cooldowns, clock, random.random)
        self.recorder = recorder
        self.spool = Spool(default_max_bytes())
        self._clock = clock
        self._random = random
        self._running: dict[asyncio.Task[object], Call] = {}
        self._tracing = tracing
        self._screening = screening
        self._fallback = FallbackResponder(cache, deferred_store, clock)
        self.degraded = degraded
        self.cache_stage = CacheStage(self, cache, deferred_store, self._fallback, degraded, clock)
        self.quotas = ClientQuotas(clock)
        catalog, states = ModelCatalog(self._run_again, clock), ModelStatuses(self.cooldowns, degraded, self, clock)
        self.own = OwnEndpoints(catalog, deferred_store, self.quotas, states, clock)
        self.is_leaving = False
        """True once shutdown has begun: responses carry `Connection: close`."""
        self.is_closed = False
        """True once no call is accepted: a call on a kept-alive connection is refused."""
        self.adopt(ProxySettings(config, table))

    def adopt(self, by: ProxySettings) -> None:
        """Switches to another config, from the next call on."""
        self.table = by.table
        self.repeatable = by.repeatable
        self._clients = by.clients
        self.quotas.adopt(by.config.server.client_keys)
        labels = [deployment.label for deployment in by.table.deployments()]
        self.recorder.adopt([key.name for key in by.config.server.client_keys], by.config.models, labels)
        self._body_limits = by.body_limits
        self.spool.adopt(by.config.server.max_spool)
        by.table.take_over()
        self._loop.adopt(by.table.deployments())
        self.degraded.adopt(by.config)

    async def serve(self, request: Request, reply: ResponseWriter) -> None:
        """Serves one call, from its request head to its log record."""
        call = self._begin(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._running[task] = call
        try:
            refusal = self._admit(call, reply)
            if refusal is None:
                refusal = self._take(call, reply) if _is_small(call, request) else await self._receive(call, reply)
            if refusal is None:
                refusal = identify(call, self.table, self._clock.now())
            if isinstance(call.body, ArrivingBody):
                await self._serve_arriving(call, call.body, refusal, reply)
            else:
                await self._answer(call, refusal, reply)
        except asyncio.CancelledError:
            if call.sent_status is not None and not reply.is_early:
                raise  # a response had begun: the relay has recorded whether the client got all of it
            if not call.is_draining:
                call.failure = CLIENT_DISCONNECTED
                raise
            uncancel()
            await self._refuse(call, DRAINED, reply)
        except ConnectionError:
            call.failure = CLIENT_DISCONNECTED
            raise
        except BadRequest as bad:  # found while renaming the model, or while forwarding the body
            await self._refuse(call, refusal_of(bad), reply)
        except Exception as error:  # noqa: BLE001  # a bug in the gateway must not look like a provider's failure
            _log.exception("unexpected error in a call", **log_ids(call))
            call.failure = Failure(FailureKind.INTERNAL, type(error).__name__)
            await self._refuse(call, Refusal(500, "internal_error", "internal error of the gateway", by=None), reply)
        finally:
            if not isinstance(call.body, bytes):
                call.body.close()
            del self._running[task]
            if call.reservation is not None:
                settle(call, call.reservation)
            self.recorder.end(call)

    def deployments(self) -> tuple[Deployment, ...]:
        """Deployments of the current route table."""
        return self.table.deployments()

    def wake_waiters(self, deployments: Iterable[Deployment] | None = None) -> None:
        """Wakes the waiting calls that may proceed now, after something has changed at the gates; None: of all."""
        self._loop.adopt(self.table.deployments() if deployments is None else deployments)

    def end_hints(self, deployments: Iterable[Deployment]) -> None:
        """Ends the providers' Retry-After waits of deployments that a probe has found healthy; one call goes first."""
        now = self._clock.now()
        for deployment in deployments:
            self.cooldowns.expire(self.cooldowns.hints(deployment.upstream.name, deployment.model), now)
            for gate in deployment.gates.all():
                gate.end_hold(now)
        self.wake_waiters()

    @property
    def running(self) -> int:
        """Number of calls in flight."""
        return len(self._running)

    def calls(self) -> tuple[Call, ...]:
        """Calls in flight, for inspection; the oldest first."""
        return tuple(self._running.values())

    async def wait_idle(self, seconds: float) -> None:
        """Returns when no call is in flight, after `seconds` at the latest."""
        ends_at = self._clock.now() + seconds
        while self._running and self._clock.now() < ends_at:
            await self._clock.sleep(_POLL_S)

    def end_running(self) -> None:
        """Ends every call in flight: a stream with an error event, any other call with a refusal."""
        for task, call in self._running.items():
            call.is_draining = True
            task.cancel()

    async def _serve_arriving(
        self, call: Call, body: ArrivingBody, refusal: Refusal | None, reply: ResponseWriter
    ) -> None:
        """Forwards the body while it arrives, unless a check or a feature needs all of it. Raises BadRequest."""
        if refusal is not None or self._screening.needs_whole_body(call) or needs_whole_body(call, reply):
            call.body, asked = await body.receive_whole()
            self._note_arrived(call, reply, asked)
            await self._answer(call, identify(call, self.table, self._clock.now()), reply)
            return
        body.follow(is_routed_by_model=call.upstream_name is None or call.scope is not None)
        async with BodyReception(call, body, partial(self._note_arrived, call, reply), self._clock):
            await self._answer(call, None, reply)

    def _answer(
        self, call: Call, refusal: Refusal | None, reply: ResponseWriter, *, is_checked: bool = False
    ) -> Awaitable[object]:
        """Returns the coroutine that answers the call, from here on one step after the other. `is_checked`: the call
        has passed its screening."""
        if refusal is not None:
            return self._refuse(call, refusal, reply)
        if call.route is None:
            return self.own.serve(call, self.table, reply)
        if call.is_screened and not is_checked:
            return self._answer_screened(call, reply)
        may_end_here = call.route.lasting.comes_first or ASYNC_HEADER in reply.request.names
        if call.client_key is not None and self.quotas.by_name:
            is_deferred = may_end_here and is_deferred_at_once(call, reply)
            if (refusal := self.quotas.reserve(call, without="concurrency" if is_deferred else None)) is not None:
                return self._refuse(call, refusal, reply)
        self.recorder.begin(call)
        if may_end_here:
            return self._answer_from_cache(call, call.route, reply)
        return self.execute(call, reply, self._fallback)

    async def _answer_screened(self, call: Call, reply: ResponseWriter) -> None:
        await self._answer(call, await self._screening.check(call), reply, is_checked=True)

    async def _answer_from_cache(self, call: Call, route: Route, reply: ResponseWriter) -> None:
        if not await self.cache_stage.try_respond(call, route, reply):
            self.degraded.limit_wait(call, has_stale=False)
            await self.execute(call, reply, self._fallback)

    async def execute(
        self, call: Call, reply: ResponseWriter, fallback: FallbackResponder | None = None
    ) -> Exhausted | None:
        """Makes attempts and relays their responses, until one has been relayed well or nothing more would help.

        Returns why no response has begun; None if one has, possibly in part: see `call.failure`. `fallback` answers a
        client that waits for the call; without it the caller does what follows.
        """
        assert call.route is not None  # noqa: S101  # the caller has set it
        selector, failure = self._loop.begin(call, call.route), None
        with Delivery(call, reply, self._clock, fallback) as delivery:
            while True:
                result = await delivery.wait_for(self._loop.next_response(selector, failure))
                if delivery.served is None:
                    reply.closes_connection |= self.is_leaving
                    if call.is_screened:
                        result = await self._screening.screen(call, result, self.table, self._run_again)
                if isinstance(result, Exhausted):
                    delivery.give_up(result)
                    break
                failure = await delivery.relay(result)
                if failure is None or not delivery.may_go_on(result, failure):
                    break
        return None if failure is None and reply.is_over else await delivery.finish()

    def _run_again(self, call: Call, route: Route) -> Awaitable[Delivered | Exhausted]:
        return self._loop.next_response(self._loop.begin(call, route))

    def restore(self, call: Call, asked: BodyFields) -> Refusal | None:
        """Prepares a stored call as if it had just arrived; returns a refusal if no current route can serve it."""
        note_asked(call, asked, self.repeatable)
        return self._clients.check_path(call) or identify(call, self.table, self._clock.now())

    async def execute_background(self, call: Call, reply: ResponseWriter) -> Exhausted | None:
        """Executes a call that no client waits for; its route is set. Returns None if it was answered, possibly in
        part: see `call.failure`. The caller records the call."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        if (refusal := self.quotas.reserve(call, without="rate")) is not None:
            return Exhausted(None, refusal, "the client key is over its limits")
        self._running[task] = call
        try:
            return await self.execute(call, reply)
        finally:
            del self._running[task]
            if call.reservation is not None:
                settle(call, call.reservation)

    async def _refuse(self, call: Call, refusal: Refusal, reply: ResponseWriter) -> None:
        reply.closes_connection |= self.is_leaving
        await refuse(call, refusal, reply)

    def _begin(self, request: Request) -> Call:
        names = request.names
        upstream_name, path = without_upstream(request.path)
        call = Call(
            f"lg-{self._random.getrandbits(80).to_bytes(10).hex()}",
            ENDPOINT_DIALECTS.get(path) or dialect_of(path, names),
            request.method,
            path,
            request.query,
            request.headers,
            self._clock.now(),
            content_type=names.get("content-type", ""),
            content_encoding=names.get("content-encoding", ""),
            upstream_name=upstream_name,
            is_upgrade=request.is_for_websocket,
            client_retries=retry_count(names) if "x-stainless-retry-count" in names else 0,
            sent_headers=request.fields.sent_headers,
        )
        if (tracer := self._tracing.tracer) is not None or "traceparent" in names:
            begin_trace(call, tracer)
        return call

    # admit: before the body is read

    def _admit(self, call: Call, reply: ResponseWriter) -> Refusal | None:
        if self.is_closed:
            return DRAINED
        if (bad := objection(reply.request)) is not None:
            reply.closes_connection = True  # the framing of such a request cannot be trusted either
            return refusal_of(bad)
        refusal = self._clients.admit(call, reply.request.fields)
        if refusal is None and call.path not in MODEL_PATHS:
            call.path = plain_path(call.path)
        return refusal

    # receive: the body, once, bounded

    def _take(self, call: Call, reply: ResponseWriter) -> Refusal | None:
        """Takes a small body, which has arrived together with its head."""
        limit = self._body_limits.of(call, reply)
        try:
            check_announced(reply, limit, self.spool)
            call.body = reply.request.take()
            self._note_arrived(call, reply, inspect(call.body, call.content_type, "", limit.max_bytes))
        except BadRequest as bad:
            return refusal_of(bad)
        return None

    async def _receive(self, call: Call, reply: ResponseWriter) -> Refusal | None:
        """Receives any other body, or its beginning."""
        limit = self._body_limits.of(call, reply)
        try:
            check_announced(reply, limit, self.spool)
            asked = await receive_call(call, reply.request, limit, self.spool, self._clock)
            self._note_arrived(call, reply, asked)
        except BadRequest as bad:
            return refusal_of(bad)
        return None

    def _note_arrived(self, call: Call, reply: ResponseWriter, asked: BodyFields) -> None:
        # An SDK's read timeout starts when it has sent the whole body, which for a slow upload is long after the head.
        names = reply.request.names
        is_limited = "x-stainless-timeout" in names or "x-stainless-read-timeout" in names
        if is_limited and (patience := patience_s(names)) is not None:
            call.client_deadline = self._clock.now() + decide_within_s(patience)
        note_asked(call, asked, self.repeatable)


def _is_small(call: Call, request: Request) -> bool:
    """Returns True if the body can be parsed in one go."""
    return request.has_arrived and request.received_bytes <= _SMALL_BODY_BYTES and not call.content_encoding
