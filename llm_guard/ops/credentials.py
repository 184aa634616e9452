"""What a token proves: the token itself, a cookie, and a login code, both signed with keys that are derived from it.

Owns their form, how long they hold, and the comparison in constant time. It knows no request (`ops.guard`) and reads no
clock.

Because the keys come from the token, every gateway that has the token takes the cookie, a command that has it can make
a code while the gateway is down, and both end with the token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

from llm_guard.config import Ops

Role = Literal["viewer", "operator"]

OPERATOR = "operator"
"""The name of `ops.token`, and of one that was generated."""
COOKIE_S = 12 * 3600
CODE_S = 600

_FAR_S = CODE_S + 60
"""A code that claims to last for longer is refused; a minute is for clocks that differ."""
_MAC_CHARS = 43


@dataclass(frozen=True, slots=True)
class Code:
    """A good login code."""

    mark: str
    """Names it, and is fit for a file's name; it does not open anything."""
    until: int
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """One token. It holds no more of it than it takes to recognise it."""

    name: str
    role: Role
    digest: bytes
    cookie_name: str
    """Differs from token to token: browsers do not keep the cookies of two ports apart."""
    is_shared: bool = False
    """`ops.token`: whose hands it is in is not known."""
    _cookie_key: bytes = field(default=b"", compare=False)
    _code_key: bytes = field(default=b"", compare=False)

    @classmethod
    def of(cls, name: str, role: Role, token: str, *, is_shared: bool = False) -> Self:
        cookie_key, code_key = _derived(token, "session cookie"), _derived(token, "login code")
        cookie_name = f"llm_guard_{hashlib.sha256(b'name' + cookie_key).hexdigest()[:12]}"
        return cls(name, role, _digest(token.encode()), cookie_name, is_shared, cookie_key, code_key)

    def is_token(self, digest: bytes) -> bool:
        return hmac.compare_digest(digest, self.digest)

    def new_cookie(self, wall: float) -> str:
        """Its value; it holds for `COOKIE_S`."""
        return _signed(self._cookie_key, f"{int(wall) + COOKIE_S}.{secrets.token_hex(8)}")

    def is_cookie(self, value: str, wall: float) -> bool:
        said = _unsigned(self._cookie_key, value)
        return said is not None and said[1] > wall

    def new_code(self, wall: float) -> str:
        """It holds for `CODE_S`."""
        return _signed(self._code_key, f"{int(wall) + CODE_S}.{secrets.token_hex(16)}")

    def code(self, text: str, wall: float) -> Code | None:
        """None if it is not of this token, or too old. Whether it was used before is not known here."""
        said = _unsigned(self._code_key, text)
        return Code(*said) if said is not None and wall < said[1] <= wall + _FAR_S else None


def credentials_of(rules: Ops, generated: str | None) -> tuple[Credential, ...]:
    """All that open the control plane. `generated`: the token that stands in for `ops.token`."""
    shared = rules.token if rules.token is not None else generated if needs_generated(rules) else None
    first = [Credential.of(OPERATOR, "operator", shared, is_shared=True)] if shared is not None else []
    return (*first, *(Credential.of(each.name, each.role, each.token) for each in rules.tokens))


def needs_generated(rules: Ops) -> bool:
    """Whether the config gives nobody the right to change anything."""
    return rules.token is None and not any(each.role == "operator" for each in rules.tokens)


def of_token(credentials: Iterable[Credential], token: bytes) -> Credential | None:
    """Compares with each, also behind the right one: the time says nothing."""
    digest, found = _digest(token), None
    for each in credentials:
        found = each if each.is_token(digest) else found
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _derived(token: str, purpose: str) -> bytes:
    return hmac.digest(token.encode(), f"llm-guard {purpose} 1".encode(), "sha256")


def _signed(key: bytes, said: str) -> str:
    return f"{said}.{_mac(key, said)}"


def _unsigned(key: bytes, text: str) -> tuple[str, int] | None:
    """The nonce and the end, if the signature is right."""
    said, _, mac = text.rpartition(".")
    if len(mac) != _MAC_CHARS or not hmac.compare_digest(mac.encode("utf-8", "replace"), _mac(key, said).encode()):
        return None
    until, _, mark = said.partition(".")
    return mark, int(until)


def _mac(key: bytes, said: str) -> str:
    signature = hmac.digest(key, said.encode("utf-8", "replace"), "sha256")
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")
