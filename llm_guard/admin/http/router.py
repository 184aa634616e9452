"""Routes a request for an admin path to its endpoint, and responds.

Reads the body, names the operator for the audit trail, and adds the security headers. `admin.http.auth` authenticates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote

import msgspec
import structlog

from llm_guard.admin.http.auth import Authenticator, WrongToken, check_json
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Operator, Refused
from llm_guard.admin.http.openapi import with_description
from llm_guard.admin.http.penalty import Penalty
from llm_guard.admin.http.schema_docs import type_text
from llm_guard.admin.monitor.monitor import PeriodicCheck
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.http_server.request import Request, objection
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest

_log = structlog.get_logger("llm_guard.admin.http.router")

PEER = "x-llm-guard-peer"
"""Header with the client's address, from the parent of several workers. Their UNIX sockets are open to it alone."""
_MAX_BODY_BYTES = 1 << 20
_MAX_NAME_CHARS = 64
_CLOSED = "/admin"
"""Prefix below which every endpoint needs a token."""
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_NO_MATCH = re.compile(r"Expected `str` matching regex .* - at `\$\.(\w+)`", re.DOTALL)
_NO_CONTENT_POLICY = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")


class Router:
    """All endpoints: everything that they need follows from the list of their groups."""

    def __init__(self, groups: Iterable[EndpointGroup], guard: Authenticator, clock: Clock) -> None:
        self.guard = guard
        self._clock = clock
        self._penalty = Penalty(clock)
        self._groups = tuple(groups)
        self.pages = tuple(with_description(page for group in self._groups for page in group.pages()))
        self.roots = frozenset(f"/{page.path.split('/')[1]}" for page in self.pages)
        """First segments of the paths that belong to the admin API rather than to the proxy: `/health`."""
        self._by_path: dict[str, dict[str, Endpoint]] = {}
        for page in self.pages:
            self._by_path.setdefault(page.path, {})[page.method] = page
        self._patterns = [path for path in self._by_path if "{" in path]

    @property
    def looks(self) -> list[PeriodicCheck]:
        """Periodic checks of all groups."""
        return [group.look for group in self._groups]

    def adopt(self, config: Config, guard: Authenticator) -> None:
        """Applies a new config to all groups; `guard` checks requests from now on."""
        self.guard = guard
        for group in self._groups:
            group.adopt(config)

    def close(self) -> None:
        """Closes all groups."""
        for group in self._groups:
            group.close()

    async def serve(self, request: Request, reply: ResponseWriter) -> None:
        """Responds to one request, with 404 for an unknown path."""
        try:
            answer = await self._answer(request, reply)
        except WrongToken as wrong:
            answer = await self._delayed(wrong, reply)
        except Refused as refused:
            answer = refused.answer()
        except BadRequest as bad:
            answer = Refused(bad.status, bad.code, bad.message).answer()
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001  # an operator's request must not end without a response
            _log.exception("admin request failed", path=request.path)
            answer = Refused(500, "internal_error", "internal error; the log has the reason").answer()
        if answer is None:
            return
        if reply.has_begun:  # too late for an error response
            await reply.break_off()
            return
        if answer.status >= 400 and not request.has_arrived:
            reply.closes_connection = True
        await reply.send(answer.status, "", headers_of(answer), answer.body)

    async def _answer(self, request: Request, reply: ResponseWriter) -> AdminResponse | None:
        try:
            page, params = self._page_of(request, reply)
        except (Refused, BadRequest):
            if request.path.startswith(_CLOSED):  # unauthenticated clients must not learn which endpoints exist
                self.guard.authenticate(request.names, self._clock.wall())
            raise
        caller = await self._caller(page, request)
        pairs = _pairs(request.query)
        who = _who(caller, reply)
        asked = AdminRequest(
            request.method, request.path, request.names, dict(pairs), params=params, who=who, caller=caller
        )
        if page.query is not None:
            asked.wants = _wanted(pairs, page.query)
        elif pairs and page.live is None and not page.is_open:
            raise Refused(422, "invalid_query", "this endpoint takes no parameters")
        if page.live is not None:
            await page.live(asked, request, reply)
            return None
        if page.takes is not None:
            asked.body = await _body(request, reply, page.takes)
        assert page.give is not None  # noqa: S101  # one of the two is set
        return await page.give(asked)

    async def _delayed(self, wrong: WrongToken, reply: ResponseWriter) -> AdminResponse:
        if not await self._penalty.serve():
            reply.closes_connection = True  # the next guess needs a new connection
        return wrong.answer()

    async def _caller(self, page: Endpoint, request: Request) -> Operator | None:
        """Returns the caller, or None on an open page. Raises Refused where the page is not open to the request."""
        if not page.is_open:
            return self.guard.check(request.method, request.names, self._clock.wall())
        if page.says_more:
            return await self._caller_if_known(request)
        if page.method != "GET":
            self.guard.check_page(request.names)
            check_json(request.names)
        return None

    async def _caller_if_known(self, request: Request) -> Operator | None:
        try:
            return self.guard.check(request.method, request.names, self._clock.wall())
        except WrongToken:  # without the delay, tokens could be guessed here
            await self._penalty.serve()
        except Refused:
            pass
        return None

    def _page_of(self, request: Request, reply: ResponseWriter) -> tuple[Endpoint, dict[str, str]]:
        """Returns the page and the parameters of its path. Raises Refused and BadRequest."""
        if (bad := objection(request)) is not None:
            reply.closes_connection = True  # the framing of such a request may be wrong as well
            if bad.status == 405:
                raise Refused(405, bad.code, bad.message, self._allowed(request.path))
            raise bad
        return self._find(request)

    def _find(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        methods, params = self._methods(request.path)
        page = methods.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            allowed = self._allowed(request.path)
            raise Refused(405, "method_not_allowed", f"use {' or '.join(allowed[0][1].split(', '))}", allowed)
        return page, params

    def _methods(self, path: str) -> tuple[dict[str, Endpoint], dict[str, str]]:
        if (methods := self._by_path.get(path)) is not None:
            return methods, {}
        for pattern in self._patterns:
            if (found := _match(pattern, path)) is not None:
                return self._by_path[pattern], found
        raise Refused(404, "unknown_path", "unknown path; /admin lists all paths")

    def _allowed(self, path: str) -> tuple[tuple[str, str]]:
        """Returns the Allow header that a 405 must have (RFC 9110, section 15.5.6)."""
        methods = self._methods(path)[0]
        return (("Allow", ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))),)


def _match(pattern: str, path: str) -> dict[str, str] | None:
    wanted, given = pattern.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    params = {}
    for name, value in zip(wanted, given, strict=True):
        if name.startswith("{"):
            params[name[1:-1]] = unquote(value)
        elif name != value:
            return None
    return params


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise Refused(422, "invalid_query", "there are more than 64 query parameters") from None


def _wanted(pairs: list[tuple[str, str]], kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Parses the query. Raises Refused for what the page does not take."""
    query = dict(pairs)
    if len(pairs) > len(query):
        raise Refused(422, "invalid_query", "a query parameter is given twice")
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid_query", _plainly(error, kind)) from None


def _who(caller: Operator | None, reply: ResponseWriter) -> str:
    """Returns the caller's name for the audit trail: the token's name, and in brackets the operator's name that a
    request with a shared token claims."""
    name = caller.name if caller is not None else "anonymous"
    if caller is not None and caller.is_shared:
        claimed = re.sub(r"[()]", "", reply.request.names.get("x-llm-guard-operator", ""))[:_MAX_NAME_CHARS]
        name = f"{name} ({claimed})" if claimed else name
    return f"{name} from {reply.peer or reply.request.names.get(PEER, 'an unknown address')}"


async def _body(request: Request, reply: ResponseWriter, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Reads and parses the body. Raises Refused if it does not fit the type, BadRequest if it does not arrive."""
    if request.names.get("expect", "").lower() == "100-continue" and request.version != "1.0":
        reply.send_continue()
    pieces, size = [], 0
    while piece := await request.read():
        size += len(piece)
        if size > _MAX_BODY_BYTES:
            raise Refused(413, "body_too_large", f"the body has more than {_MAX_BODY_BYTES} bytes")
        pieces.append(piece)
    try:
        return msgspec.json.decode(b"".join(pieces) or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid_body", _plainly(error, kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"the body is not valid JSON: {error}") from None


def _plainly(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Returns the error's message. In place of a regular expression it has the field's description."""
    if (found := _NO_MATCH.fullmatch(str(error))) is None:
        return str(error)
    schema = msgspec.json.schema_components((kind,))[1][kind.__name__]["properties"][found[1]]
    return f"`{found[1]}` is invalid. {type_text(schema)}"


def headers_of(answer: AdminResponse) -> list[tuple[str, str]]:
    """Returns the headers, with the security headers of the admin API."""
    own = {name.lower() for name, _ in answer.headers}
    usual = [*_HEADERS, _NO_CONTENT_POLICY]
    return [
        ("Content-Type", answer.content_type),
        *answer.headers,
        *(pair for pair in usual if pair[0].lower() not in own),
    ]
