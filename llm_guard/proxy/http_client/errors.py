"""Errors of exchanges with upstreams, and the failure kinds of connection errors.

`resilience.classification.classify` handles error responses.
"""

from __future__ import annotations

import errno
import socket
import ssl

from llm_guard.outcome import FailureKind
from llm_guard.resilience.classification.classify import classify_network

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS})
"""Errors of connecting that are caused by this machine, not by the upstream."""


class UpstreamError(Exception):
    """Raised for an exchange that broke."""

    def __init__(self, kind: FailureKind, detail: str, *, is_shape_only: bool = False) -> None:
        """`is_shape_only`: see `outcome.Failure`."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.is_shape_only = is_shape_only


def connecting_failed(error: Exception) -> UpstreamError:
    """Returns the error of a connection that could not be made."""
    match error:
        case ssl.SSLError():
            return UpstreamError(classify_network("tls", str(error)).kind, f"TLS failed: {error}")
        case socket.gaierror():
            return UpstreamError(FailureKind.NETWORK, "host name not found")
        case OSError() if error.errno in _OURS:
            return UpstreamError(
                FailureKind.OWN_RESOURCES, f"the gateway's machine is out of resources: {error.strerror}"
            )
        case OSError():
            return UpstreamError(FailureKind.NETWORK, f"connecting failed: {error.strerror or error}")
        case _:
            return unsendable(str(error))


def disconnected(error: Exception | None) -> UpstreamError:
    """Returns the error of a connection that ended before a response head; `error` is None after a clean close."""
    if error is None:
        return UpstreamError(FailureKind.NETWORK, "closed the connection without a response")
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UpstreamError(FailureKind.NETWORK, f"the connection broke: {words}")


def retired() -> UpstreamError:
    """Returns the error of a kept-alive connection that ended so soon that the request was most likely never read."""
    return UpstreamError(FailureKind.RETIRED, "had closed the idle keep-alive connection")


def malformed(why: str = "the response is not valid HTTP") -> UpstreamError:
    """Returns the error of a response that is not valid."""
    return UpstreamError(FailureKind.MALFORMED, why)


def truncated() -> UpstreamError:
    """Returns the error of a response that began and was cut off."""
    return UpstreamError(FailureKind.TRUNCATED, "the response was cut off")


def unsendable(why: str) -> UpstreamError:
    """Returns the error of a request that the gateway itself cannot send, or not completely."""
    return UpstreamError(FailureKind.INTERNAL, f"the request could not be sent: {why}")
