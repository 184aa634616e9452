"""Checks of one model that cost: a call, a stream, and the beginning of an answer to continue from (prefill)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_guard.cli.doctor.exchange import PROBLEM_CHARS, ReportedRequests
from llm_guard.cli.doctor.findings import Check, Report
from llm_guard.cli.doctor.remedies import remedy_of
from llm_guard.clock import Clock
from llm_guard.dialects.prefill import BEGINNING, REST
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.capacity.rate_limit_headers import rate_hint
from llm_guard.resilience.classification.classify import classify_answer
from llm_guard.routing.deployment import Upstream
from llm_guard.upstreams.probes.requests import UpstreamResponse, decoded

MOST_CALLS = 3
"""Calls for each model, at most."""

_FEW_CALLS, _FEW_TOKENS = 10, 2000
_SHOWN_CHARS = 30
_NOT_CONTINUED = "set `prefill: none` for this deployment, or resumed streams may repeat themselves"


class ModelCalls:
    """Sends the smallest calls to one upstream."""

    def __init__(self, upstream: Upstream, requests: ReportedRequests, report: Report, clock: Clock) -> None:
        self._upstream = upstream
        self._requests = requests
        self._report = report
        self._clock = clock

    async def check(self, model: str, prefill: Prefill) -> None:
        """Sends one unary and one streamed call, and one to be continued if the deployment has a `prefill`. Stops at
        the first that fails."""
        body = self._requests.dialect.probe_body(model, self._upstream.family)
        if not await self._is_answered("call", model, body):
            return
        if await self._is_answered("stream", model, body | {"stream": True}) and prefill != "none":
            await self._continue(model, prefill)

    async def _is_answered(self, check: Check, model: str, body: Mapping[str, Any]) -> bool:
        began_at = self._clock.now()
        response = await self._send(check, model, body)
        if response is None or not self._is_answer(check, model, response, is_stream="stream" in body):
            return False
        took_s = self._clock.now() - began_at
        self._report.ok(check, f"{took_s:.2f} s{_limits(response, self._clock.wall())}", model)
        if check == "call":  # the same limits count streams
            self._judge_limits(model, response)
        return True

    async def _send(self, check: Check, model: str, body: Mapping[str, Any]) -> UpstreamResponse | None:
        target = self._requests.target(self._requests.dialect.DEFAULT_PATH)
        return await self._requests.ask(check, "POST", target, json.dumps(body).encode(), model=model)

    def _is_answer(self, check: Check, model: str, response: UpstreamResponse, *, is_stream: bool) -> bool:
        report = self._report
        if response.status >= 400:
            wall, family = self._clock.wall(), self._upstream.family
            found = classify_answer(response.status, response.headers, response.body, wall, family)
            remedy = remedy_of(found.kind.category)
            report.fail(check, f"{response.status}: {found.why[:PROBLEM_CHARS]}", remedy, model)
            return False
        is_event_stream = "event-stream" in response.headers.get("content-type", "")
        if response.status >= 300 or (is_stream and not is_event_stream):
            what = f"{response.status}, {response.headers.get('content-type', 'without a content type')}"
            remedy = "this model or server does not stream" if is_stream else remedy_of("not_found")
            report.fail(check, what, remedy, model)
            return False
        said = None if is_stream else decoded(response.body, dict)
        if not is_stream and (said is None or said.get("error")):
            report.fail(check, "the response is no answer", remedy_of("not_found"), model)
            return False
        return True

    async def _continue(self, model: str, prefill: Prefill) -> None:
        """Sends the beginning of an answer as resumed streams do, and looks at what follows."""
        dialect, report = self._requests.dialect, self._report
        response = await self._send("prefill", model, dialect.prefill_body(model, self._upstream.family, prefill))
        if response is None:
            return
        if response.status in (400, 422):
            report.warn("prefill", f"{prefill} is refused with {response.status}", _NOT_CONTINUED, model)
            return
        if not self._is_answer("prefill", model, response, is_stream=False):
            return
        text = dialect.answer_text(decoded(response.body, dict)).removeprefix(BEGINNING).strip()
        if text.startswith(REST):
            report.ok("prefill", f"{prefill}: the answer is continued", model)
        else:
            detail = f"{prefill}: the answer continues with {text[:_SHOWN_CHARS]!r}, which is not its rest"
            report.warn("prefill", detail, _NOT_CONTINUED, model)

    def _judge_limits(self, model: str, response: UpstreamResponse) -> None:
        hint = rate_hint(response.headers, self._clock.wall())
        for window in hint.windows if hint is not None else ():
            if window.limit < (_FEW_TOKENS if window.is_tokens else _FEW_CALLS):
                what = "tokens" if window.is_tokens else "calls"
                detail = f"only {window.limit:g} {what} ({window.name})"
                self._report.warn("limits", detail, "ask the provider for more, or add deployments", model)


def _limits(response: UpstreamResponse, wall: float) -> str:
    """Returns what is left of the provider's limits, if it says so."""
    hint = rate_hint(response.headers, wall)
    windows: Sequence[str] = [
        f"{window.remaining:g} of {window.limit:g} {'tokens' if window.is_tokens else 'calls'}"
        for window in (hint.windows if hint is not None else ())
    ]
    return f"; left: {', '.join(windows)}" if windows else ""
