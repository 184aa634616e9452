"""Verifies tokens, session cookies and login codes. Cookies and codes are signed with keys derived from the token.

So every gateway with the token accepts the cookie, a command with the token can make a code while the gateway is down,
and both end with the token. Comparisons take constant time. Reads no clock: times are passed in.
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
"""Name of `ops.token`, and of a generated token."""
COOKIE_S = 12 * 3600
CODE_S = 600

_FAR_S = CODE_S + 60
"""Limit on a code's remaining lifetime; the extra minute allows for clock differences."""
_MAC_CHARS = 43


@dataclass(frozen=True, slots=True)
class Code:
    """A valid login code."""

    mark: str
    """Identifier of the code, safe as a file name; it grants no access."""
    until: int
    """Expiry, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A token, reduced to what is needed to verify it."""

    name: str
    role: Role
    digest: bytes
    cookie_name: str
    """Differs between tokens: browsers share cookies between ports of a host."""
    is_shared: bool = False
    """Set for `ops.token`, which several people may have."""
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
        """Returns the value of a new cookie, valid for `COOKIE_S`."""
        return _signed(self._cookie_key, f"{int(wall) + COOKIE_S}.{secrets.token_hex(8)}")

    def is_cookie(self, value: str, wall: float) -> bool:
        said = _unsigned(self._cookie_key, value)
        return said is not None and said[1] > wall

    def new_code(self, wall: float) -> str:
        """Returns a new login code, valid for `CODE_S`."""
        return _signed(self._code_key, f"{int(wall) + CODE_S}.{secrets.token_hex(16)}")

    def code(self, text: str, wall: float) -> Code | None:
        """Returns the code if it is this token's and has not expired, else None. Does not check whether it was used."""
        said = _unsigned(self._code_key, text)
        return Code(*said) if said is not None and wall < said[1] <= wall + _FAR_S else None


def credentials_of(rules: Ops, generated: str | None) -> tuple[Credential, ...]:
    """Returns all credentials of the admin API. `generated`: the token used in place of `ops.token`."""
    shared = rules.token if rules.token is not None else generated if needs_generated(rules) else None
    first = [Credential.of(OPERATOR, "operator", shared, is_shared=True)] if shared is not None else []
    return (*first, *(Credential.of(token.name, token.role, token.token) for token in rules.tokens))


def needs_generated(rules: Ops) -> bool:
    """Returns whether the config has no token that allows changes."""
    return rules.token is None and not any(token.role == "operator" for token in rules.tokens)


def of_token(credentials: Iterable[Credential], token: bytes) -> Credential | None:
    """Compares with every credential, also after a match, so that the time reveals nothing."""
    digest, found = _digest(token), None
    for credential in credentials:
        found = credential if credential.is_token(digest) else found
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _derived(token: str, purpose: str) -> bytes:
    return hmac.digest(token.encode(), f"llm-guard {purpose} 1".encode(), "sha256")


def _signed(key: bytes, said: str) -> str:
    return f"{said}.{_mac(key, said)}"


def _unsigned(key: bytes, text: str) -> tuple[str, int] | None:
    """Returns nonce and expiry, or None if the signature is wrong."""
    said, _, mac = text.rpartition(".")
    if len(mac) != _MAC_CHARS or not hmac.compare_digest(mac.encode("utf-8", "replace"), _mac(key, said).encode()):
        return None
    until, _, mark = said.partition(".")
    return mark, int(until)


def _mac(key: bytes, said: str) -> str:
    signature = hmac.digest(key, said.encode("utf-8", "replace"), "sha256")
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")
