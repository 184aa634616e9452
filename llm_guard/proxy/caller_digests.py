"""Computes digests of the credentials in a request's headers, which identify callers without storing their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Headers
from llm_guard.proxy.client_keys.digests import digest


@dataclass(frozen=True, slots=True)
class CallerDigests:
    """Digests of the keys and of the account that a request presents."""

    keys: tuple[bytes, ...]
    """Digest of each key."""
    key_digest: str
    """Digest of all keys together, in hexadecimal digits; not empty even without a key."""
    account_digest: str
    """Digest of the headers that choose an account for the key; "" without them."""
    are_rival: bool
    """True if the header of a key is repeated with different values: two readers would see two callers."""


def digests_of(headers: Headers, names: Mapping[str, str]) -> CallerDigests:
    """Returns the digests of a request's credentials. `names`: the headers by lower-case name, of repeated ones the
    first."""
    keys = header_rules.caller_keys(headers, names)
    digests = tuple([digest(key) for key in keys])
    account = header_rules.account(headers, names)
    return CallerDigests(
        digests,
        (digests[0] if len(keys) == 1 else digest("\n".join(keys))).hex(),
        digest("\n".join(account)).hex() if account else "",
        len(keys) > 1 and header_rules.has_rival_keys(headers),
    )
