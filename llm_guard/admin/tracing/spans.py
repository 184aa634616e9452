"""Builds OpenTelemetry spans of a call and its attempts, and sends them to a collector in a thread.

Follows the conventions for generative AI and for HTTP (github.com/open-telemetry/semantic-conventions-genai,
opentelemetry.io/docs/specs/semconv/http). Spans never contain a prompt, a key or a response. Imports OpenTelemetry,
which is an optional dependency.
"""

from __future__ import annotations

import urllib.parse
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from llm_guard.outcome import FailureKind, Source
from llm_guard.proxy.call import Attempt, Call
from llm_guard.trace_context import TraceContext
from llm_guard.version import __version__

_OPERATIONS = {
    "/v1/chat/completions": "chat", "/v1/messages": "chat", "/v1/responses": "chat",
    "/v1/completions": "text_completion", "/v1/complete": "text_completion", "/v1/embeddings": "embeddings",
}  # fmt: skip
_PROVIDERS = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini", "vertex": "gcp.vertex_ai",
    "mistral": "mistral_ai", "xai": "x_ai",
}  # fmt: skip
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("llm_guard", __version__)
_FAILED = Status(StatusCode.ERROR)
_WELL = Status(StatusCode.UNSET)
_NOBODYS_FAULT = (FailureKind.SUPERSEDED, FailureKind.CLIENT_CANCELLED)
_TIMEOUT_S = 5.0

Value = str | int | float | bool | list[str]


class Spans:
    """Exports finished calls. When the collector is slow or unreachable, spans are lost and nothing else."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`endpoint`: complete URL of an OTLP/HTTP receiver. Headers and certificates are read from OpenTelemetry's own
        environment variables."""
        self._resource = Resource.create({"service.name": service, "service.version": __version__})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S))

    def note(self, call: Call, trace: TraceContext, now: float, wall: float) -> None:
        """Exports the spans of a call. `now` and `wall`: the same instant on both clocks."""

        def at(instant: float) -> int:
            return int((wall - now + instant) * 1e9)

        context = _context(trace, trace.span_id)
        for attempt in call.attempts:
            if attempt.span_id:  # else nothing was sent
                self._emit(_context(trace, attempt.span_id), context, SpanKind.CLIENT, _attempt_name(call, attempt),
                           _attempt_facts(call, attempt), _attempt_status(attempt), at(attempt.started_at),
                           at(attempt.ended_at or now))  # fmt: skip
        parent = _context(trace, trace.parent_id, is_remote=True) if trace.parent_id is not None else None
        self._emit(context, parent, SpanKind.SERVER, _call_name(call), _call_facts(call), _call_status(call),
                   at(call.started_at), at(now))  # fmt: skip

    def close(self) -> None:
        """Sends pending spans; may take as long as the collector does."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # untyped

    def _emit(
        self, context: SpanContext, parent: SpanContext | None, kind: SpanKind, name: str, facts: dict[str, Value],
        status: Status, start_ns: int, end_ns: int,
    ) -> None:  # fmt: skip
        span = ReadableSpan(
            name, context, parent, self._resource, facts, kind=kind, status=status, start_time=start_ns,
            end_time=end_ns, instrumentation_scope=_SCOPE,
        )  # fmt: skip
        self._processor.on_end(span)


def _context(trace: TraceContext, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace.trace_id, span_id, is_remote, _SAMPLED)


def _call_name(call: Call) -> str:
    """Returns the span's name. It has the route's name, not the requested model, which callers choose."""
    operation = _OPERATIONS.get(call.path)
    if operation is None or call.route is None:
        return call.method
    return f"{operation} {call.route.alias}"


def _call_facts(call: Call) -> dict[str, Value]:
    facts: dict[str, Value | None] = {
        "http.request.method": call.method,
        "url.path": call.path,
        "http.response.status_code": call.sent_status,
        "gen_ai.operation.name": _OPERATIONS.get(call.path),
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.is_stream or None,
        "error.type": call.outcome if _call_status(call) is _FAILED else None,
        "llm_guard.request_id": call.id,
        "llm_guard.outcome": call.outcome,
        "llm_guard.attempts": len(call.attempts),
        "llm_guard.client": call.client_key,
        "llm_guard.skipped": [f"{skipped.deployment}: {skipped.why}" for skipped in call.skipped] or None,
        "llm_guard.gave_up": call.gave_up,
    }
    if call.route is not None:
        facts["llm_guard.route"] = call.route.alias
    facts["llm_guard.refused_by"] = call.refused_by
    if call.refusal is not None:
        facts["llm_guard.reason"] = call.refusal.message
    elif call.failure is not None:
        facts["llm_guard.reason"] = call.failure.detail
    return _known(facts)


def _call_status(call: Call) -> Status:
    """Returns the status. A client's mistake is no error of a server span (HTTP conventions)."""
    if call.failure is not None:
        is_clients = call.failure.kind.source is Source.CLIENT or 400 <= (call.sent_status or 500) < 500
        return _WELL if is_clients else _FAILED
    return _FAILED if call.refusal is not None and call.refusal.status >= 500 else _WELL


def _attempt_name(call: Call, attempt: Attempt) -> str:
    operation, model = _OPERATIONS.get(call.path), attempt.target.model
    return call.method if operation is None or model is None else f"{operation} {model}"


def _attempt_facts(call: Call, attempt: Attempt) -> dict[str, Value]:
    deployment = attempt.target.deployment
    upstream = deployment.upstream
    address, port = _address(upstream.origin)
    facts: dict[str, Value | None] = {
        "http.request.method": call.method,
        "http.response.status_code": _status(attempt),
        "server.address": address,
        "server.port": port,
        "gen_ai.operation.name": _OPERATIONS.get(call.path),
        "gen_ai.provider.name": _PROVIDERS.get(upstream.family, upstream.family) or upstream.dialect,
        "gen_ai.request.model": attempt.target.model,
        "gen_ai.request.stream": attempt.is_stream or None,
        "error.type": attempt.outcome if _attempt_status(attempt) is _FAILED else None,
        "llm_guard.routing.deployment": deployment.label,
        "llm_guard.outcome": attempt.outcome,
        "llm_guard.waited_s": attempt.waited_s or None,
        "llm_guard.waited_for": attempt.waited_for or None,
        "llm_guard.hedge": attempt.is_hedge or None,
        "llm_guard.resume_mode": attempt.resume_mode,
        "llm_guard.reason": attempt.failure.detail if attempt.failure is not None else None,
        "llm_guard.next_step": attempt.next_step or None,
    }
    if attempt.is_stream and attempt.answered_at is not None:
        facts["gen_ai.response.time_to_first_chunk"] = attempt.answered_at - attempt.timed_from
    if attempt is _who_answered(call):  # on one attempt only, so that sums over spans count tokens once
        facts["gen_ai.usage.input_tokens"] = call.usage.prompt or None
        facts["gen_ai.usage.output_tokens"] = call.usage.output or None
    return _known(facts)


def _attempt_status(attempt: Attempt) -> Status:
    return _WELL if attempt.failure is None or attempt.failure.kind in _NOBODYS_FAULT else _FAILED


def _status(attempt: Attempt) -> int | None:
    answer = attempt.failure.answer if attempt.failure is not None else None
    return attempt.status if answer is None else answer.status


def _who_answered(call: Call) -> Attempt | None:
    return next((attempt for attempt in reversed(call.attempts) if attempt.answered_at is not None), None)


@lru_cache(maxsize=256)
def _address(origin: str) -> tuple[str | None, int]:
    parts = urllib.parse.urlsplit(origin)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _known(facts: dict[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in facts.items() if value is not None}
