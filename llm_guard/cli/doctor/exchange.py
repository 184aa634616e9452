"""Requests of `llm-guard doctor` to an upstream, with their failures in its report."""

from __future__ import annotations

import asyncio

from llm_guard.cli.doctor.findings import Check, Report
from llm_guard.cli.doctor.remedies import remedy_of
from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.upstreams.probes.requests import UpstreamRequests, UpstreamResponse

PROBLEM_CHARS = 200
"""Most characters of an upstream's message that are shown."""


class ReportedRequests:
    """Sends requests to one upstream."""

    def __init__(self, requests: UpstreamRequests, report: Report, timeout_s: float) -> None:
        self.dialect = requests.dialect
        self.target = requests.target
        self._requests = requests
        self._report = report
        self._timeout_s = timeout_s

    async def ask(
        self, check: Check, method: str, target: str, body: bytes = b"", *, model: str = "", most: int = 1 << 20
    ) -> UpstreamResponse | None:  # fmt: skip
        """Returns None after a failure, which is reported as one of `check`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._requests.ask(method, target, body, most)
        except TimeoutError:
            self._report.fail(check, f"no response within {self._timeout_s:g} s", remedy_of("timeout"), model)
        except UpstreamError as error:
            remedy = remedy_of(error.kind.category if error.kind is not FailureKind.INTERNAL else "invalid_request")
            self._report.fail(check, error.detail[:PROBLEM_CHARS], remedy, model)
        return None
