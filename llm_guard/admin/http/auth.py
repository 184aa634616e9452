"""Authenticates requests of the admin API.

A token is always needed: behind a proxy on this machine every request comes from 127.0.0.1. A page in an operator's
browser may come from anywhere (DNS rebinding: CVE-2024-28224; cross-site requests), so host and origin are checked too.
`admin.http.credentials` verifies tokens.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping

from llm_guard.admin.http.credentials import Code, Credential, of_token
from llm_guard.admin.http.endpoint import JSON, Operator, Refused
from llm_guard.config import Ops

_OWN_SITES = ("same-origin", "none")
_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="llm-guard"'),)
"""A 401 must have a challenge (RFC 9110, section 15.5.2). Browsers show no dialog of their own for this scheme."""
_READING = ("GET", "HEAD")


class WrongToken(Refused):
    """The request had a wrong token, cookie or login code."""


class Authenticator:
    """Checks requests against the current config; a reload replaces it."""

    def __init__(self, rules: Ops, credentials: tuple[Credential, ...], listens_on: tuple[str, ...]) -> None:
        """`listens_on`: the hosts of the config, which are valid Host headers."""
        self.credentials = credentials
        self._names = {"localhost", *(name.lower() for name in (*listens_on, *rules.hosts))}

    def check(self, method: str, headers: Mapping[str, str], wall: float) -> Operator:
        """Returns the caller. Raises Refused, or WrongToken. `wall`: seconds since the epoch."""
        caller = self.authenticate(headers, wall)  # first: strangers learn nothing from the other checks
        self.check_page(headers)
        if method not in _READING:
            check_json(headers)
            if caller.role == "viewer":
                raise Refused(403, "viewer_may_not", f"the token {caller.name} has the role viewer, which only reads")
        return caller

    def authenticate(self, headers: Mapping[str, str], wall: float) -> Operator:
        """Returns the owner of the request's token or cookie. Raises Refused, or WrongToken."""
        caller = self._caller(headers, wall)
        if caller is None:
            raise _wrong(headers) if self._shows_anything(headers) else _missing()
        return caller

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Raises Refused where a foreign web page may have made the browser send the request."""
        self._check_host(headers.get("host", ""))
        _check_origin(headers)

    def redeemed(self, code: str, wall: float) -> tuple[Credential, Code] | None:
        """Returns the credential that made a login code; None if there is none, or the code has expired."""
        for credential in self.credentials:
            if (found := credential.code(code, wall)) is not None:
                return credential, found
        return None

    def of_token(self, token: str) -> Credential | None:
        return of_token(self.credentials, token.encode("utf-8", "surrogateescape"))

    def _caller(self, headers: Mapping[str, str], wall: float) -> Operator | None:
        """Prefers the token to the cookie: a wrong token is not redeemed by a cookie that the browser adds."""
        if (token := _token_in(headers)) is not None:
            found = of_token(self.credentials, token)
            return None if found is None else Operator(found.name, found.role, found.is_shared)
        cookies = cookies_in(headers)
        for credential in self.credentials:
            if credential.cookie_name in cookies and credential.is_cookie(cookies[credential.cookie_name], wall):
                return Operator(credential.name, credential.role, credential.is_shared, has_cookie=True)
        return None

    def _shows_anything(self, headers: Mapping[str, str]) -> bool:
        cookies = cookies_in(headers)
        return _token_in(headers) is not None or any(
            credential.cookie_name in cookies for credential in self.credentials
        )

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if "*" in self._names or name in self._names or _is_address(name):
            return
        raise Refused(403, "unknown_host", f"{name!r} is not a known host name of the admin API: add it to ops.hosts")


def host_name(host: str) -> str:
    """Returns the name in a Host header, in lower case, without port and brackets."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def check_json(headers: Mapping[str, str]) -> None:
    """Raises Refused unless the body is JSON: a browser sends no JSON across origins without a preflight."""
    if headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise Refused(415, "json_needed", f"send content-type: {JSON}")


def cookies_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Parses the cookies by name. `http.cookies` drops all of them if another program's cookie on this host is
    malformed."""
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in pairs}


def _missing() -> Refused:
    message = "send `Authorization: Bearer OPS_TOKEN`; for a browser, `llm-guard login -c FILE` prints a link"
    return Refused(401, "token_needed", message, _CHALLENGE)


def _wrong(headers: Mapping[str, str]) -> WrongToken:
    what = "token" if _token_in(headers) is not None else "browser session"
    return WrongToken(401, "wrong_token", f"the {what} is not valid, or no longer valid", _CHALLENGE)


def _check_origin(headers: Mapping[str, str]) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Refused(
            403,
            "foreign_origin",
            "requests from pages of another origin are not allowed (a proxy must forward the Host header)",
        )
    if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
        raise Refused(403, "foreign_origin", "requests from pages of another site are not allowed")


def _token_in(headers: Mapping[str, str]) -> bytes | None:
    """Returns the bearer token, or None. Credentials of other schemes are for a proxy in front."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip().encode("utf-8", "surrogateescape")
    return _token_of_a_socket(headers)


def _token_of_a_socket(headers: Mapping[str, str]) -> bytes | None:
    """Returns the token of a browser's WebSocket, which can set no other header: `bearer.` and the token in
    base64url."""
    if headers.get("upgrade", "").lower() != "websocket":
        return None
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        scheme, _, token = offered.strip().partition(".")
        if scheme == "bearer":
            try:
                return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            except (binascii.Error, ValueError):
                return b""
    return None


def _is_address(name: str) -> bool:
    """Returns whether the host is an IP address. Such a request cannot be the result of DNS rebinding."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
