"""Creates TLS contexts from PEM files, and describes what is wrong with such files."""

from __future__ import annotations

import binascii
import calendar
import os
import re
import ssl
import time
from functools import cache

from llm_guard.watched_files import BadFile, Contents

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_KEY = b"PRIVATE KEY-----"
_BEGIN = b"-----BEGIN"
_UTC_TIME = 0x17


def server_context(contents: Contents, cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    """Returns the context for client connections: TLS 1.2 or newer. With `client_ca` each client must present a
    certificate signed by it. Raises BadFile."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, contents, cert, key)
    if client_ca is not None:
        _load_roots(context, contents, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(contents: Contents, ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Returns the context for connections to one upstream, which is always verified: by `ca` alone if that is set, else
    by the system's certificates. Raises BadFile."""
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_roots(context, contents, ca)
    context.set_alpn_protocols(["http/1.1"])
    if cert is not None and key is not None:
        _load_pair(context, contents, cert, key)
    return context


def system_context() -> ssl.SSLContext:
    """Returns the context for upstreams without TLS settings: trusts the certificates in SSL_CERT_FILE and
    SSL_CERT_DIR, else the system's."""
    return _system_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _system_context(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    """Creates the context; cached because reading the certificates takes 20 ms, too long during a call."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def expires_at(content: bytes) -> float | None:
    """Returns when the first certificate of a PEM file expires, in epoch seconds; None if it cannot be parsed."""
    found = _CERTIFICATE.search(content)
    if found is None:
        return None
    try:
        return _not_after(binascii.a2b_base64(found[1]))
    except (ValueError, IndexError):
        return None


def _load_pair(context: ssl.SSLContext, contents: Contents, cert: str, key: str) -> None:
    if _CERTIFICATE.search(contents[cert]) is None:
        raise BadFile(f"{cert} has no PEM certificate")
    if _KEY not in contents[key]:
        raise BadFile(f"{key} has no PEM private key")
    _check_end(contents, cert)
    if b"ENCRYPTED" in contents[key]:
        raise BadFile(f"{key} is encrypted: remove the passphrase (openssl pkey -in FILE -out NEW)")
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadFile(f"{key} is not the key of the certificate in {cert}: both must belong together") from None
        raise BadFile(f"{cert} and {key} cannot be used: {error.reason or 'not PEM'}") from None
    except OSError as error:
        raise BadFile(f"{cert} and {key} cannot be read: {error.strerror}") from None


def _load_roots(context: ssl.SSLContext, contents: Contents, ca: str) -> None:
    found = _CERTIFICATE.findall(contents[ca])
    if not found:
        raise BadFile(f"{ca} has no PEM certificate")
    _check_end(contents, ca)
    try:
        context.load_verify_locations(cadata=b"".join(binascii.a2b_base64(certificate) for certificate in found))
    except (ssl.SSLError, ValueError):
        raise BadFile(f"{ca} has an invalid certificate") from None


def _check_end(contents: Contents, path: str) -> None:
    """Raises BadFile if a PEM file ends within one of its blocks: it is half written, and the blocks before the end
    would pass for all of it."""
    _, dashes, rest = contents[path].rpartition(b"-----END ")[2].partition(b"-----")
    last_line = rest.rpartition(b"\n")[2]
    if not dashes or _BEGIN in rest or (last_line and _BEGIN.startswith(last_line)):
        raise BadFile(f"{path} ends within a certificate: it is incomplete or damaged")


def _not_after(der: bytes) -> float:
    """Returns notAfter of a DER certificate, in epoch seconds (RFC 5280, section 4.1: Certificate, TBSCertificate, then
    version, serial number, algorithm, issuer, validity)."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    at = end if tag == 0xA0 else at  # the version is optional
    for _ in range(3):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # a two-digit year: 50 and later are 19xx
        text = ("20" if text[:2] < "50" else "19") + text
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of an element, and start and end of its value."""
    tag, length, at = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[at : at + size], "big"), at + size
    return tag, at, at + length
