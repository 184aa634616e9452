"""Browser login: exchanges a one-time code or a token for a session cookie. /admin/session shows the session.

A code is valid once. `admin.http.credentials` verifies codes and cookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import structlog
from msgspec import Meta, Struct

from llm_guard.admin.http.auth import Authenticator, WrongToken, cookies_in
from llm_guard.admin.http.credentials import COOKIE_S, Credential, Role
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import Clock
from llm_guard.storage.used_login_codes import UsedCodes
from llm_guard.worker_thread import WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.admin.api.login")

_DISK_TIMEOUT_S = 5.0
"""Seconds that a login waits for the disk."""
_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class Login(Struct, forbid_unknown_fields=True):
    """A login; exactly one of the two is required."""

    code: _Text | None = None
    """Code in a link of `llm-guard login`, after `#login=`."""
    token: _Text | None = None


class Session(Struct, frozen=True):
    """Response of `GET /admin/session`: the token of this request."""

    name: str
    role: Role
    is_shared: bool
    """Several people may have the token; each change can name the operator (x-llm-guard-operator)."""


class LoginApi(EndpointGroup):
    """Endpoints of login, logout and session. `guard` returns the current guard."""

    def __init__(self, guard: Callable[[], Authenticator], used: UsedCodes, clock: Clock) -> None:
        self._guard = guard
        self._used = used
        self._clock = clock
        self._thread = WorkerThread("logins")

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/dashboard/login",
                "Exchanges a code or a token for a session cookie.",
                self._login,
                takes=Login,
                is_open=True,
            ),
            Endpoint("POST", "/dashboard/logout", "Deletes the session cookie.", self._logout, is_open=True),
            Endpoint(
                "GET",
                "/admin/session",
                "Returns name and role of the token that the request has.",
                self._show,
                gives=Session,
            ),
        ]

    def close(self) -> None:
        self._thread.shutdown()

    async def _login(self, asked: AdminRequest) -> AdminResponse:
        given: Login = asked.body
        if (given.code is None) == (given.token is None):
            raise Refused(422, "invalid_body", "send either `code` or `token`")
        credential = await self._of_code(given.code) if given.code is not None else self._of_token(given.token or "")
        _log.info(
            "browser logged in",
            name=credential.name,
            method="code" if given.code else "token",
            operator=asked.who,
        )
        cookie = _cookie(credential, credential.new_cookie(self._clock.wall()), COOKIE_S, asked.headers)
        session = Session(credential.name, credential.role, credential.is_shared)
        return _with_cookies(answer(session), [cookie])

    def _of_token(self, token: str) -> Credential:
        credential = self._guard().of_token(token)
        if credential is None:
            raise WrongToken(401, "wrong_token", "the token is not valid, or no longer valid")
        return credential

    async def _of_code(self, code: str) -> Credential:
        wall = self._clock.wall()
        found = self._guard().redeemed(code, wall)
        if found is None:
            raise WrongToken(
                401, "wrong_code", "the link has expired or is invalid: `llm-guard login` prints a new one"
            )
        credential, known = found
        if not await self._is_first_use(known.mark, known.until, wall):
            raise WrongToken(401, "used_code", "the link was already used: `llm-guard login` prints a new one")
        return credential

    async def _is_first_use(self, mark: str, until: float, wall: float) -> bool:
        """Returns whether the code is unused, and marks it as used. Raises Refused if the disk does not respond:
        another gateway may have accepted the code."""
        using = self._thread.run(self._used.use, mark, until, wall)
        try:
            return await wait_at_most(_DISK_TIMEOUT_S, asyncio.shield(using), self._clock)
        except TimeoutError:
            raise Refused(503, "store_slow", "the disk of ops.store does not respond: log in with the token") from None

    async def _logout(self, asked: AdminRequest) -> AdminResponse:
        """Expires only the cookies that the request has: the cookie name of another token would allow to guess a weak
        one offline."""
        shown = cookies_in(asked.headers)
        known = [credential for credential in self._guard().credentials if credential.cookie_name in shown]
        return _with_cookies(answer({}), [_cookie(credential, "", 0, asked.headers) for credential in known])

    async def _show(self, asked: AdminRequest) -> AdminResponse:
        caller = asked.caller
        assert caller is not None  # noqa: S101  # the page is not open
        return answer(Session(caller.name, caller.role, caller.is_shared))


def _cookie(credential: Credential, value: str, lasts_s: int, headers: Mapping[str, str]) -> str:
    """Builds a Set-Cookie value. Secure if the browser's origin is https: a proxy in front may terminate TLS."""
    secure = "; Secure" if headers.get("origin", "").startswith("https://") else ""
    return f"{credential.cookie_name}={value}; Max-Age={lasts_s}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _with_cookies(answer: AdminResponse, cookies: list[str]) -> AdminResponse:
    headers = tuple(("Set-Cookie", cookie) for cookie in cookies)
    return AdminResponse(answer.body, answer.content_type, answer.status, headers)
