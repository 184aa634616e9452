"""`server.tls` and `upstreams.X.tls`: files with certificates and keys, in PEM.

Owns which of them there are. Does not own what is in them (`llm_guard.tls`).
"""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator, model_validator

from llm_guard.config.fields import Text, wrong
from llm_guard.config.strict import Strict


class ServerTls(Strict):
    """Paths of files; each is read again when it changes."""

    cert: Text
    """The certificate, followed by those that lead to its root."""
    key: Text
    client_ca: Text | None = None
    """None: clients need no certificate. Else each must have one that these certificates have signed (mutual TLS)."""


class UpstreamTls(Strict):
    """Paths of files; each is read again when it changes."""

    ca: Text | None = None
    """Certificates that are trusted instead of the system's. None: the system's, or SSL_CERT_FILE's."""
    cert: Text | None = None
    """What the gateway shows the upstream (mutual TLS)."""
    key: Text | None = None

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | None, info: ValidationInfo) -> str | None:
        if key is not None and info.data.get("cert") is None:
            raise wrong("needs a `cert` beside it")
        return key

    @model_validator(mode="after")
    def _check_pair(self) -> UpstreamTls:
        if self.cert is not None and self.key is None:
            raise wrong("has a `cert` and no `key`: both are needed")
        if self.cert is None and self.ca is None:
            raise wrong("needs a `ca`, or a `cert` with its `key`; leave tls out to trust the system's certificates")
        return self
