"""Who may use the operator's side.

Owns the token, and what browsers must not be made to do. Does not own what is asked (`ops.site`).

Without a token only this machine may ask, and nobody on another's behalf: a page in an operator's browser may come
from anywhere (DNS rebinding: CVE-2024-28224; cross-site requests), and so may what a proxy on this machine passes on.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping

from llm_guard.config import Ops
from llm_guard.ops.pages import JSON, Refused
from llm_guard.policy.caller import is_local

_OWN_SITES = ("same-origin", "none")


class Guard:
    """By the current config, which a reload replaces."""

    def __init__(self, rules: Ops, listens_on: tuple[str, ...]) -> None:
        """`listens_on`: the hosts of the config, whose names are ours."""
        self._token = rules.token.encode() if rules.token is not None else None
        self._names = {"localhost", *(name.lower() for name in (*listens_on, *rules.hosts))}

    def check(self, method: str, headers: Mapping[str, str], peer: str | None, version: str = "1.1") -> None:
        """Raises Refused; `peer` is the address that the connection comes from, `version` HTTP's."""
        self._check_host(headers.get("host", ""))
        _check_origin(headers)
        if self._token is None:
            if not is_local(peer, version, headers):
                raise Refused(403, "token_needed", "without ops.token only this machine itself may ask: set one")
        elif not hmac.compare_digest(_token_in(headers), self._token):
            raise Refused(401, "wrong_token", "send the operator's token: Authorization: Bearer OPS_TOKEN")
        if method not in ("GET", "HEAD") and headers.get("content-type", "").partition(";")[0].strip() != JSON:
            raise Refused(415, "json_needed", f"send content-type: {JSON}")

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if "*" in self._names or name in self._names or _is_address(name):
            return
        raise Refused(403, "unknown_host", f"the operator's side is not known as {name!r}: add it to ops.hosts")


def host_name(host: str) -> str:
    """A Host header's name, in lower case, without port and brackets."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _check_origin(headers: Mapping[str, str]) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Refused(403, "foreign_origin", "a page of another origin may not ask")
    if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
        raise Refused(403, "foreign_origin", "a page of another site may not ask")


def _token_in(headers: Mapping[str, str]) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip().encode("utf-8", "surrogateescape")
    return _token_of_a_socket(headers)


def _token_of_a_socket(headers: Mapping[str, str]) -> bytes:
    """A browser's WebSocket has no other header of its page's choice: `bearer.` and the token in base64url."""
    if headers.get("upgrade", "").lower() != "websocket":
        return b""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        scheme, _, token = offered.strip().partition(".")
        if scheme == "bearer":
            try:
                return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            except (binascii.Error, ValueError):
                return b""
    return b""


def _is_address(name: str) -> bool:
    """Then no name server had a say in where the request went."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
