"""The admin API of a gateway with several workers: the parent answers some requests itself, and passes the others on.

A page shows the worker that responds: the first one, or the one in a path such as `/workers/2/admin/deployments`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

import msgspec

from llm_guard.admin.http.endpoint import TEXT, AdminResponse, Refused, answer
from llm_guard.admin.http.router import headers_of
from llm_guard.clock import Clock
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_server.request import Request, objection
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.workers import relay
from llm_guard.workers.child import Child
from llm_guard.workers.metrics_page import MetricsPage
from llm_guard.workers.supervisor import WorkerSupervisor

FOR_ALL = frozenset({
    "/admin/log-levels", "/admin/breakers/reset", "/admin/deployments/reset", "/admin/limits", "/admin/limits/reset",
    "/admin/probes/now", "/admin/cache/purge",
})  # fmt: skip
"""Changes of what each worker has for itself: they are made at all of them."""
FOR_ONE = frozenset({
    "/admin/explain", "/admin/alerts/silence", "/admin/alerts/unsilence", "/admin/alerts/test",
    "/admin/breakers/force-open", "/admin/breakers/force-closed", "/admin/deployments/drain",
    "/admin/deployments/cordon", "/admin/deployments/uncordon", "/admin/degraded/enter", "/admin/degraded/exit",
    "/admin/degraded/auto", "/admin/admit", "/admin/dead-letters/requeue", "/admin/dead-letters/delete",
    "/admin/dead-letters/{id}", "/admin/clients/reset", "/admin/config/validate", "/admin/config/reload",
    "/admin/config/rollback", "/dashboard/login", "/dashboard/logout",
})  # fmt: skip
"""Requests that one worker answers: what they change is shared, stored, or changed by all (a reload)."""
REFUSED = frozenset({
    "/admin/chaos", "/admin/chaos/end", "/admin/engines/start", "/admin/engines/stop", "/admin/engines/restart",
    "/admin/engines/reset",
})  # fmt: skip
"""Requests about what a gateway with several workers cannot have; a worker refuses them."""

_PREFIX = "/workers/"
_READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class _PassedRequest:
    """A request as a worker gets it."""

    request: Request
    target: str
    body: bytes
    peer: str | None


class WorkerView(msgspec.Struct, frozen=True):
    """A worker, in `GET /workers`."""

    number: int
    pid: int
    state: Literal["ready", "starting", "stopping"]
    config: str
    """Digest of its config."""
    is_same_config: bool
    up_s: float


class AdminApi:
    """Serves the requests to the port of the admin API."""

    def __init__(self, supervisor: WorkerSupervisor, metrics: MetricsPage, clock: Clock) -> None:
        self._supervisor = supervisor
        self._metrics = metrics
        self._clock = clock

    async def serve(self, request: Request, reply: ResponseWriter) -> None:
        """Responds to one request."""
        try:
            found = await self._answer(request, reply)
        except Refused as refused:
            found = refused.answer()
        except BadRequest as bad:
            found = Refused(bad.status, bad.code, bad.message).answer()
            reply.closes_connection = True
        if found is not None:
            await reply.send(found.status, "", headers_of(found), found.body)

    async def _answer(self, request: Request, reply: ResponseWriter) -> AdminResponse | None:
        """Returns the parent's own answer; None: the worker's has been sent."""
        if (bad := objection(request)) is not None:
            raise bad
        if (own := self._own(request)) is not None:
            return await own
        children, target = self._chosen(request)
        body = await relay.body_of(request, reply)
        passed = _PassedRequest(request, target, body, reply.peer)
        if request.method not in _READING and request.path in FOR_ALL:
            return await self._at_all(children, passed)
        await relay.pass_on(await self._send(children, passed), request, reply)
        return None

    def _own(self, request: Request) -> Awaitable[AdminResponse] | None:
        if request.method not in _READING:
            return None
        match request.path:
            case "/healthz":
                return _text("ok", 200)
            case "/readyz" if self._supervisor.is_stopping:
                return _text("draining", 503)
            case "/readyz" if not self._supervisor.ready():
                return _text("no worker is ready", 503)
            case "/metrics":
                return self._metrics.answer(request.names.get("accept", ""))
            case "/workers":
                return self._workers(request)
            case _:
                return None

    def _chosen(self, request: Request) -> tuple[list[Child], str]:
        """Returns the workers that may respond, the preferred one first, and the target without a number. Raises
        Refused."""
        ready = self._supervisor.ready()
        path = request.path
        if path.startswith(_PREFIX):
            number, _, rest = path.removeprefix(_PREFIX).partition("/")
            ready = [child for child in ready if str(child.number) == number]
            path = f"/{rest}"
            if not ready:
                raise Refused(503, "no_worker", f"worker {number} is not ready: GET /workers lists them")
            if request.method not in _READING:
                raise Refused(405, "method_not_allowed", f"send it to {path}: changes are not made at one worker alone")
        if not ready:
            raise Refused(503, "no_worker", "no worker is ready: repeat the request in a moment")
        return ready, f"{path}?{request.query}" if request.query else path

    async def _at_all(self, children: list[Child], passed: _PassedRequest) -> AdminResponse:
        """Makes a change at all workers. The response is that of the first one; after a refusal no other gets the
        request."""
        first, *others = children
        found = await self._whole([first], passed)
        if found.status >= 400:
            return found
        for child in others:
            if (await self._whole([child], passed)).status != found.status:
                message = f"worker {child.number} has refused what worker {first.number} has done: repeat the request"
                raise Refused(502, "workers_differ", message)
        return found

    async def _whole(self, children: list[Child], passed: _PassedRequest) -> AdminResponse:
        exchange = await self._send(children, passed)
        try:
            content = await relay.whole(exchange)
        except UpstreamError as error:
            raise _gone() from error
        kind = next((value for name, value in exchange.headers if name.lower() == "content-type"), TEXT)
        return AdminResponse(content, kind, exchange.status)

    async def _send(self, children: list[Child], passed: _PassedRequest) -> Exchange:
        """Sends it to the first worker, and to the next one if that has just ended. Raises Refused."""
        for child in children:
            try:
                return await relay.ask(
                    child.start.admin_socket, passed.request, passed.target, passed.body, passed.peer, self._clock
                )
            except (UpstreamError, TimeoutError) as error:  # it may have begun
                if passed.request.method not in _READING:
                    raise _gone() from error
            except OSError:  # it does not listen any more
                continue
        raise _gone()

    async def _workers(self, request: Request) -> AdminResponse:
        """Lists the workers, if one of them recognizes the request's token."""
        children, _ = self._chosen(request)
        session = await self._whole(children, _PassedRequest(request, "/admin/session", b"", None))
        if session.status != 200:
            return session
        return answer([self._view(child) for _, child in sorted(self._supervisor.children.items())])

    def _view(self, child: Child) -> WorkerView:
        state: Literal["ready", "starting", "stopping"] = (
            "ready" if child.is_ready else "starting" if not child.started.done() else "stopping"
        )
        is_same = child.digest == self._supervisor.reloads.digest
        up_s = self._clock.now() - child.began_at
        return WorkerView(child.number, child.pid, state, child.digest, is_same, round(up_s, 1))


async def _text(text: str, status: int) -> AdminResponse:
    return AdminResponse(f"{text}\n".encode(), TEXT, status)


def _gone() -> Refused:
    return Refused(502, "worker_gone", "the worker has ended, or does not answer: repeat the request")
