"""A certificate authority for tests and the certificates it issues."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import trustme


class Authority:
    """A test CA that issues certificates and writes them to files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / f"{id(self)}-ca.pem"
        self.replace_ca(self)

    def replace_ca(self, by: Authority) -> None:
        """Overwrites this CA's file with the certificate of `by`."""
        by._ca.cert_pem.write_to_path(str(self.file))

    def pair(self, name: str, *hosts: str, ends: datetime | None = None) -> dict[str, str]:
        """Issues a certificate and returns the paths of its `cert` and `key` files; existing files of that name are
        replaced."""
        leaf = self._ca.issue_cert(*(hosts or ("127.0.0.1", "localhost")), not_after=ends, common_name=name)
        files = {"cert": self._folder / f"{name}.crt", "key": self._folder / f"{name}.key"}
        files["key"].write_bytes(leaf.private_key_pem.bytes())
        files["cert"].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return {which: str(file) for which, file in files.items()}

    def client(self, pair: dict[str, str] | None = None) -> ssl.SSLContext:
        """Returns the TLS context of a client that trusts this CA and presents `pair`."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair["cert"], pair["key"])
        return context

    def server(self, *hosts: str, client_ca: Authority | None = None) -> ssl.SSLContext:
        """Returns the TLS context of a server; with `client_ca` it requires client certificates of that CA."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(*(hosts or ("127.0.0.1", "localhost"))).configure_cert(context)
        if client_ca is not None:
            context.load_verify_locations(str(client_ca.file))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def replace(files: Mapping[str, str], by: Mapping[str, str]) -> None:
    """Overwrites the files of one certificate pair with those of another."""
    for which, file in files.items():
        Path(file).write_bytes(Path(by[which]).read_bytes())


EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)
