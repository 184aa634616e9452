"""`server.tls` and `upstreams.X.tls`: paths of certificate and key files, in PEM. Their content is read in
`llm_guard.tls`.
"""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator, model_validator

from llm_guard.config.fields import NonEmptyText, Strict, wrong


class ServerTls(Strict):
    """Paths of files; each is read again when it changes."""

    cert: NonEmptyText
    """The certificate, followed by its chain."""
    key: NonEmptyText
    """The certificate's private key."""
    client_ca: NonEmptyText | None = None
    """None: clients need no certificate. Else each must have one signed by these certificates (mutual TLS)."""


class UpstreamTls(Strict):
    """Paths of files; each is read again when it changes."""

    ca: NonEmptyText | None = None
    """Certificates to trust instead of the system's. None: the system's, or SSL_CERT_FILE's."""
    cert: NonEmptyText | None = None
    """The gateway's client certificate (mutual TLS)."""
    key: NonEmptyText | None = None
    """The private key of `cert`."""

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | None, info: ValidationInfo) -> str | None:
        if key is not None and info.data.get("cert") is None:
            raise wrong("needs `cert` as well")
        return key

    @model_validator(mode="after")
    def _check_pair(self) -> UpstreamTls:
        if self.cert is not None and self.key is None:
            raise wrong("needs `key` as well as `cert`")
        if self.cert is None and self.ca is None:
            raise wrong("needs `ca`, or `cert` and `key`; leave tls out to trust the system's certificates")
        return self
