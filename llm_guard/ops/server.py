"""The operator's paths: /metrics, /healthz, /readyz.

Owns what is answered there. Never on a call's way; liveness depends on nothing but the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

OperatorPaths = Mapping[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]


def operator_paths(is_ready: Callable[[], bool], metrics: Callable[[], bytes], metrics_type: str) -> OperatorPaths:
    """The handlers by path; `is_ready` says whether new calls are welcome."""

    async def healthz(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def readyz(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ready\n") if is_ready() else web.Response(status=503, text="draining\n")

    async def scrape(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=metrics(), headers={"Content-Type": metrics_type})

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": scrape}


async def not_found(_request: web.BaseRequest) -> web.StreamResponse:
    """For the second listener, which serves operators alone."""
    return web.Response(status=404, text="here are /metrics, /healthz and /readyz\n")
