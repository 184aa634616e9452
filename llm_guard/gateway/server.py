"""Admit, receive, identify; then attempt, relay, record: the way of one call, in line order.

Owns the listener's side of a call, and the gateway's own refusals. Does not own routes, attempts or the relay.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from random import Random

import structlog
from aiohttp import web

from llm_guard.call import Call, GaveUp, Served
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deployment import Deployment
from llm_guard.dialect import DIALECTS, dialect_of
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway import model_field
from llm_guard.gateway.attempt_loop import AttemptLoop
from llm_guard.gateway.model_field import BadRequest
from llm_guard.gateway.record import Recorder
from llm_guard.gateway.refusals import DRAINED, last_words, own_words, wrong_dialect
from llm_guard.gateway.relay import CLIENT_LEFT, relay
from llm_guard.gateway.reply import Reply, uncancel
from llm_guard.gateway.upstream import Upstreams
from llm_guard.gateway.waiting import Waiting
from llm_guard.outcome import Answer, Failure, FailureKind, Refusal
from llm_guard.policy.bench import Bench
from llm_guard.policy.caller import PRIORITIES, decide_within_s, patience_s, priority, retry_count
from llm_guard.policy.deadline import deadline_at
from llm_guard.policy.repeat import Repeatable
from llm_guard.routes import RouteTable

_log = structlog.get_logger("llm_guard")
_ON_RETRYING = ("x-should-retry", "retry-after", "retry-after-ms")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


class Gateway:
    """Serves calls by the current config and table, which a reload replaces."""

    def __init__(
        self, config: Config, table: RouteTable, upstreams: Upstreams, recorder: Recorder, clock: Clock, random: Random
    ) -> None:
        self._loop = AttemptLoop(upstreams, Bench(), clock, random.random)
        self._recorder = recorder
        self._clock = clock
        self._random = random
        self._running: dict[asyncio.Task[object], Call] = {}
        self.is_leaving = False
        """Asked to stop: clients are told to close their connections."""
        self.is_closed = False
        """No longer accepting: a call on a kept-alive connection is refused."""
        self.adopt(config, table)

    def adopt(self, config: Config, table: RouteTable) -> None:
        """From the next call on, serve by these."""
        self._config = config
        self.table = table
        self._repeatable = Repeatable(config.server.repeat)
        self._client_keys = {_digest(key.key): key for key in config.server.client_keys}
        self._loop.adopt(table.deployments())

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One call, from its head to its record."""
        call, reply = self._begin(request), Reply(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._running[task] = call
        try:
            return await self._serve(call, reply)
        except asyncio.CancelledError:
            if call.sent_status is not None and not reply.is_early:
                raise  # an answer had begun: the relay knows whether the client got all that it waited for
            if not call.is_draining:
                call.failure = CLIENT_LEFT
                raise
            uncancel()
            return await self._refuse(call, DRAINED, reply)
        except ConnectionError:
            call.failure = CLIENT_LEFT
            raise
        except BadRequest as bad:  # found only when the model was to be renamed
            refusal = Refusal(bad.status, bad.code, bad.message, by="request", param=bad.param)
            return await self._refuse(call, refusal, reply)
        except Exception as error:  # noqa: BLE001  # a bug of ours must not look like a provider's failure
            _log.exception("a call broke the gateway", request_id=call.id)
            call.failure = Failure(FailureKind.INTERNAL, type(error).__name__)
            return await self._refuse(call, Refusal(500, "internal_error", "the gateway failed", by=None), reply)
        finally:
            del self._running[task]
            self._recorder.end(call)

    def deployments(self) -> tuple[Deployment, ...]:
        """Of the current table."""
        return self.table.deployments()

    @property
    def running(self) -> int:
        """Calls in flight."""
        return len(self._running)

    async def wait_idle(self, seconds: float) -> None:
        """Returns when no call is in flight, after `seconds` at the latest."""
        ends_at = self._clock.now() + seconds
        while self._running and (left_s := ends_at - self._clock.now()) > 0:
            await asyncio.wait(list(self._running), timeout=left_s)

    def end_running(self) -> None:
        """Ends every call in flight: a stream with an error event, any other with a refusal."""
        for task, call in self._running.items():
            call.is_draining = True
            task.cancel()

    async def _serve(self, call: Call, reply: Reply) -> web.StreamResponse:
        refusal = self._admit(call) or await self._receive(call, reply.request) or self._identify(call)
        if refusal is not None:
            return await self._refuse(call, refusal, reply)
        assert call.route is not None  # noqa: S101  # identify has found it
        self._recorder.begin(call)
        with Waiting(call, reply, call.route.stream.waiting, self._clock):
            result = await self._loop.run(call, call.route)
        if isinstance(result, Served):
            return await relay(call, result, reply, self._clock)
        return await self._give_up(call, result, reply)

    def _begin(self, request: web.BaseRequest) -> Call:
        path, _, query = request.raw_path.partition("?")
        names = request.headers
        return Call(
            id=f"lg-{self._random.getrandbits(80):020x}",
            dialect=dialect_of(
                _without_upstream(path)[1],
                has_anthropic_version="anthropic-version" in names,
                has_x_api_key="x-api-key" in names,
                has_bearer="authorization" in names,
            ),
            method=request.method,
            path=path,
            query=query,
            headers=tuple(request.headers.items()),
            started_at=self._clock.now(),
            content_type=names.get("content-type", ""),
            content_encoding=names.get("content-encoding", ""),
            is_upgrade=names.get("upgrade", "").lower() == "websocket",
            closes_connection=self.is_leaving,
            client_retries=retry_count(names),
        )

    # admit: before the body is read

    def _admit(self, call: Call) -> Refusal | None:
        if self.is_closed:
            return DRAINED
        if call.method not in _METHODS:
            return Refusal(405, "method_not_allowed", f"use one of {', '.join(_METHODS)}", by="request")
        asked = priority(header_rules.value_of(call.headers, "x-llm-guard-priority") or None)
        if asked is None:
            message = f"x-llm-guard-priority must be one of {', '.join(PRIORITIES)}"
            return Refusal(400, "invalid_priority", message, by="request")
        call.priority = asked
        if account := header_rules.account(call.headers):
            call.account_digest = _digest("\n".join(account)).hex()
        if not self._client_keys:
            call.key_digest = _digest("\n".join(header_rules.caller_keys(call.headers))).hex()
            return None
        for key in header_rules.caller_keys(call.headers):
            known = self._client_keys.get(_digest(key))
            if known is not None:
                call.client_key = known.name
                call.priority = max(call.priority, PRIORITIES[known.priority])
                return None
        return Refusal(401, "invalid_api_key", "this gateway does not know the API key that was sent", by="auth")

    # receive: the body, once, bounded

    async def _receive(self, call: Call, request: web.BaseRequest) -> Refusal | None:
        try:
            _check_head(call)
            call.body = await self._read_body(request)
            # SDKs begin to wait when they have sent it all, which for a slow upload is long after the head.
            if (patience := patience_s(request.headers)) is not None:
                call.decide_by = self._clock.now() + decide_within_s(patience)
            asked = model_field.inspect(
                call.body, call.content_type, call.content_encoding, self._config.server.max_body
            )
            call.model, call.is_stream, call.choices = asked.model, asked.is_stream, asked.choices
            path = _without_upstream(call.path)[1]
            is_responses = path.startswith("/v1/responses")  # elsewhere these fields mean other things
            call.is_bound = is_responses and asked.is_bound
            call.is_repeatable = self._repeatable.allows(
                call.method, path, is_stateful=is_responses and asked.is_stateful
            )
            # Elsewhere `?model=` is a filter on a list.
            is_realtime = "/v1/realtime" in call.path
            if is_realtime and (model := model_field.model_in_query(call.query)) is not None:
                call.model, call.is_model_in_query = model, True
        except BadRequest as bad:
            call.closes_connection = call.closes_connection or not request.content.at_eof()
            return Refusal(bad.status, bad.code, bad.message, by="request", param=bad.param)
        return None

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        bound = self._config.server.max_body
        if (request.content_length or 0) > bound:
            raise _too_large(bound)
        if expectation := request.headers.get("expect"):
            if expectation.lower() != "100-continue":
                raise BadRequest(417, "expectation_failed", "the only expectation is 100-continue")
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        chunks = []
        size = 0
        try:
            while chunk := await request.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if size > bound:
                    raise _too_large(bound)
        except web.RequestPayloadError as error:
            raise BadRequest(400, "invalid_body", f"the body is not framed as its headers say: {error}") from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # identify: the route

    def _identify(self, call: Call) -> Refusal | None:
        name, call.path = _without_upstream(call.path)
        if not call.path.startswith("/v1/"):
            return Refusal(404, "unknown_path", "the API is below /v1/, or /upstreams/NAME/v1/", by="route")
        if name is not None:
            call.route = self.table.upstream_route(name)
            if call.route is None:
                return Refusal(404, "unknown_upstream", f"no upstream is named {name!r}", by="route")
        elif call.model is not None:
            call.route = self.table.find(call.model)
            if call.route is None:
                return self._unknown_model(call.model)
        elif call.method == "POST" and call.path in DIALECTS[call.dialect].NEEDS_MODEL:
            return Refusal(400, "missing_model", "`model` is missing", by="request", param="model")
        else:
            call.route = self.table.passthrough(call.dialect)
            if call.route is None:
                return Refusal(404, "no_upstream", f"no upstream speaks the {call.dialect} dialect", by="route")
        call.deadline_at = deadline_at(self._clock.now(), call.route.timeouts.total, None)
        return wrong_dialect(call)

    def _unknown_model(self, model: str) -> Refusal:
        near = self.table.near(model)
        hint = f"; near it are {', '.join(near)}" if near else ""
        return Refusal(404, "model_not_found", f"no route for the model {model!r}{hint}", by="route", param="model")

    # the gateway's own answers

    async def _give_up(self, call: Call, result: GaveUp, reply: Reply) -> web.StreamResponse:
        if result.refusal is not None:
            return await self._refuse(call, result.refusal, reply)
        assert result.failure is not None  # noqa: S101  # one of the two is set
        call.failure, call.gave_up = result.failure, result.why
        if result.failure.answer is not None:
            return await self._pass_on(call, result.failure, result.failure.answer, reply)
        return await self._refuse(call, own_words(call, result.failure), reply)

    async def _pass_on(self, call: Call, failure: Failure, answer: Answer, reply: Reply) -> web.StreamResponse:
        """The upstream's own error, unmodified; only the words on retrying are ours, for we have done it."""
        if reply.is_early:
            return await reply.break_off(last_words(call, answer.body))
        call.sent_status = answer.status
        kept = [pair for pair in header_rules.to_client(answer.headers) if pair[0].lower() not in _ON_RETRYING]
        said_by = (each.target.deployment.label for each in call.attempts if each.failure is failure)
        kept += [*header_rules.ours(call, next(said_by, None)), ("x-should-retry", "false")]
        if failure.retry_after_s is not None:
            kept += header_rules.retry_after(failure.retry_after_s)
        return await reply.send(answer.status, answer.reason, kept, answer.body)

    async def _refuse(self, call: Call, refusal: Refusal, reply: Reply) -> web.StreamResponse:
        if call.failure is None:
            call.refusal = refusal
        body = json.dumps(DIALECTS[call.dialect].refusal_body(refusal, call.id)).encode()
        if reply.has_begun:  # it can only be broken off
            return await reply.break_off(last_words(call, body) if reply.is_early else b"")
        call.sent_status = refusal.status
        headers = [("Content-Type", "application/json"), *header_rules.ours(call, None)]
        headers.append(("x-should-retry", "true" if refusal.should_retry else "false"))
        if refusal.by is not None:
            headers.append(("x-llm-guard-refused-by", refusal.by))
        if refusal.retry_after_s is not None:
            headers += header_rules.retry_after(refusal.retry_after_s)
        if refusal.status == 405:
            headers.append(("Allow", ", ".join(_METHODS)))
        return await reply.send(refusal.status, "", headers, body)


def _without_upstream(path: str) -> tuple[str | None, str]:
    """`/upstreams/NAME/v1/…` as (NAME, /v1/…); any other path as (None, path)."""
    if not path.startswith("/upstreams/"):
        return None, path
    name, slash, rest = path.removeprefix("/upstreams/").partition("/")
    return name, slash + rest


def _check_head(call: Call) -> None:
    """Raises BadRequest for what must not travel on."""
    segments = (
        call.path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace("\\", "/").split("/")
    )
    if ".." in segments or "." in segments:
        raise BadRequest(400, "invalid_path", "the path must not contain dot segments")
    for name, value in call.headers:
        if not value.isascii() and not value.isprintable():
            raise BadRequest(400, "invalid_header", f"the header {name} is not UTF-8 text")


def _too_large(bound: int) -> BadRequest:
    return BadRequest(413, "body_too_large", f"the body is larger than {bound} bytes (server.max_body)")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
