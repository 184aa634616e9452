"""The `store` section: what is kept beyond a call, for all routes together.

Defines these keys, their ranges and their defaults. The routes' own settings are in `resilience.caching.freshness`,
`resilience.degradation.deferred` and `resilience.degradation.degraded_mode`; the folder is `ops.store`.
"""

from __future__ import annotations

import base64
import binascii
from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from llm_guard.config.alerts import WebhookTarget, check_webhook_names
from llm_guard.config.fields import OptionalSecret, Strict, wrong
from llm_guard.resilience.units import Count, Seconds, Size, Unit, at_least, number_from

_KEY_BYTES = 32
RequeueRate = Annotated[float, Unit(at_least(0.001), number_from(0.001))]


class CacheStoreSettings(Strict):
    """The store of cached responses."""

    kind: Literal["memory", "sqlite", "redis"] = "memory"
    """sqlite: entries survive a restart. redis: the gateways of a fleet share them; they are encrypted with
    `store.encryption_key`."""
    size: Size = 64 * 1024**2
    """Maximum size in bytes of all entries together; the least recently used are evicted first."""


class CallStoreSettings(Strict):
    """The store of deferred calls and dead letters."""

    kind: Literal["sqlite", "redis"] = "sqlite"
    """sqlite: a file in `ops.store`. redis: the gateways of a fleet share them; bodies are encrypted with
    `store.encryption_key`."""


class ObjectStoreSettings(Strict):
    """The store of the owners of a provider's objects (`server.isolate_objects`)."""

    kind: Literal["sqlite", "redis"] = "sqlite"
    """sqlite: a file in `ops.store`. redis: the gateways of a fleet share them."""


class DeadLetterStoreSettings(Strict):
    """The store of dead letters: calls for which all attempts failed."""

    max_age: Seconds = 30 * 24 * 3600.0
    """Older dead letters are deleted."""
    size: Size = 256 * 1024**2
    """Maximum size in bytes of all dead letters together; the oldest are deleted first."""
    bodies: Literal["plain", "encrypted", "none"] = "plain"
    """none: requests are not stored, and cannot be requeued. encrypted: with `store.encryption_key`."""
    requeue_rate: RequeueRate = 2.0
    """Maximum number of requeued calls started in a second."""


class DeferredStoreSettings(Strict):
    """The store of deferred calls."""

    max_pending: Count = 1000
    """Maximum number of pending calls; more are refused."""
    concurrency: Count = 8
    """Maximum number of calls processed at the same time."""
    result_ttl: Seconds = 24 * 3600.0
    """How long a response can be fetched."""


class CompletionWebhook(WebhookTarget):
    """A webhook that is notified when a deferred call is finished."""


class StoreConfig(Strict):
    """Settings of what outlives a call; files are in `ops.store`."""

    encryption_key: OptionalSecret = Field(default=None, repr=False)
    """Encrypts the bodies of deferred calls, and of dead letters if `bodies` says so: 32 random bytes in base64.
    Several keys are separated by commas: the first encrypts, all decrypt."""
    cache: CacheStoreSettings = CacheStoreSettings()
    calls: CallStoreSettings = CallStoreSettings()
    objects: ObjectStoreSettings = ObjectStoreSettings()
    dead_letters: DeadLetterStoreSettings = DeadLetterStoreSettings()
    deferred: DeferredStoreSettings = DeferredStoreSettings()
    webhooks: Annotated[tuple[CompletionWebhook, ...], AfterValidator(check_webhook_names)] = ()
    """Webhooks that the `webhook` of a model's `deferred` can name."""

    @field_validator("encryption_key")
    @classmethod
    def _check_key(cls, key: str | None) -> str | None:
        if key is None:
            return None
        if find_spec("cryptography") is None:
            raise wrong("needs cryptography, which is not installed: pip install 'llm-guard-proxy[encryption]'")
        try:
            encryption_keys(key)
        except ValueError as error:
            raise wrong(str(error)) from None
        return key


def encryption_keys(key: str) -> tuple[bytes, ...]:
    """Returns the keys in `store.encryption_key`, of 32 bytes each. Raises ValueError, with a text that quotes none."""
    keys = key.split(",")
    found = tuple(_decoded(part) for part in keys)
    for number, decoded in enumerate(found, 1):
        if len(decoded) != _KEY_BYTES:
            which = f"entry {number}" if len(keys) > 1 else "it"
            raise ValueError(f"must be 32 random bytes, as `openssl rand -base64 32` prints them; {which} is not")
    return found


def _decoded(key: str) -> bytes:
    """Decodes either alphabet of base64; empty if it is neither."""
    try:
        return base64.b64decode(key, b"-_" if set(key) & set("-_") else b"+/", validate=True)
    except binascii.Error:
        return b""
