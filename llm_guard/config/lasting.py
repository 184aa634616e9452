"""What is kept beyond a call: the part of the config that holds for all routes together.

Owns these keys, their ranges and their defaults. Does not own a route's own rules (`policy.freshness`, `policy.later`,
`policy.degraded`), nor the folder (`ops.store`).
"""

from __future__ import annotations

import base64
import binascii
from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from llm_guard.config.alerts import WebhookTarget, check_webhook_names
from llm_guard.config.fields import OptionalSecret, wrong
from llm_guard.config.strict import Strict
from llm_guard.policy.units import Count, Seconds, Size, Unit, at_least

_KEY_BYTES = 32
Pace = Annotated[float, Unit(at_least(0.001))]


class CacheStore(Strict):
    """Where cached answers are."""

    kind: Literal["memory", "sqlite"] = "memory"
    """sqlite: they are still there after a restart."""
    size: Size = 64 * 1024**2
    """In bytes, of all answers together; those not asked for the longest go first."""


class LetterStore(Strict):
    """Dead letters: calls that nobody could answer."""

    max_age: Seconds = 30 * 24 * 3600.0
    size: Size = 256 * 1024**2
    """Of all together, in bytes; the oldest go first."""
    bodies: Literal["plain", "encrypted", "none"] = "plain"
    """none: what they asked for is not kept, and they cannot be asked again. encrypted: with `store.key`."""
    pace: Pace = 2.0
    """Requeued calls begun in a second, at most."""


class LaterStore(Strict):
    """Calls that are answered later."""

    waiting: Count = 1000
    """At most; one more is refused."""
    at_once: Count = 8
    """Tried at the same time."""
    keep: Seconds = 24 * 3600.0
    """So long an answer can be fetched."""


class CompletionWebhook(WebhookTarget):
    """Who is told when a call that was to be answered later is over."""


class StoreConfig(Strict):
    """What outlives a call; its files are in `ops.store`."""

    key: OptionalSecret = Field(default=None, repr=False)
    """Encrypts the bodies of calls that are answered later, and of dead letters where `bodies` says so: 32 random bytes
    in base64. Several, separated by commas: the first encrypts, all decrypt."""
    cache: CacheStore = CacheStore()
    dead_letters: LetterStore = LetterStore()
    answer_later: LaterStore = LaterStore()
    webhooks: Annotated[tuple[CompletionWebhook, ...], AfterValidator(check_webhook_names)] = ()
    """`answer_later.webhook` of a model names one of them."""

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | None) -> str | None:
        if key is None:
            return None
        if find_spec("cryptography") is None:
            raise wrong("needs cryptography, which is not installed: pip install 'llm-guard-proxy[encryption]'")
        try:
            sealing_keys(key)
        except ValueError as error:
            raise wrong(str(error)) from None
        return key


def sealing_keys(key: str) -> tuple[bytes, ...]:
    """What `store.key` holds; each is of 32 bytes. Raises ValueError, whose text does not quote it."""
    keys = key.split(",")
    found = tuple(_decoded(each) for each in keys)
    for number, each in enumerate(found, 1):
        if len(each) != _KEY_BYTES:
            which = f"the {number}. of them" if len(keys) > 1 else "it"
            raise ValueError(f"must be 32 random bytes, as `openssl rand -base64 32` prints them; {which} is not")
    return found


def _decoded(key: str) -> bytes:
    """Of either alphabet of base64; empty: it is none."""
    try:
        return base64.b64decode(key, b"-_" if set(key) & set("-_") else b"+/", validate=True)
    except binascii.Error:
        return b""
