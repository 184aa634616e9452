"""How an exchange with an upstream breaks: what the errors of connecting, and of a connection, mean.

Does not own what an error answer means (`policy.classify`).
"""

from __future__ import annotations

import errno
import socket
import ssl

from llm_guard.outcome import FailureKind
from llm_guard.policy.classify import classify_network

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS})
"""Errors of connecting that say something about this machine, not about the upstream."""


class UpstreamError(Exception):
    """An exchange that broke."""

    def __init__(self, kind: FailureKind, detail: str, *, is_shape_only: bool = False) -> None:
        """`is_shape_only`: as of a Failure."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.is_shape_only = is_shape_only


def connecting_failed(error: Exception) -> UpstreamError:
    """There is no connection."""
    match error:
        case ssl.SSLError():
            return UpstreamError(classify_network("tls", str(error)).kind, f"TLS failed: {error}")
        case socket.gaierror():
            return UpstreamError(FailureKind.NETWORK, "its host name was not found")
        case OSError() if error.errno in _OURS:
            return UpstreamError(FailureKind.OWN_RESOURCES, f"this machine is out of resources: {error.strerror}")
        case OSError():
            return UpstreamError(FailureKind.NETWORK, f"connecting failed: {error.strerror or error}")
        case _:
            return unsendable(str(error))


def connection_broke(error: Exception | None) -> UpstreamError:
    """A connection ended before the head of an answer; None: in good order."""
    if error is None:
        return UpstreamError(FailureKind.NETWORK, "closed the connection without an answer")
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UpstreamError(FailureKind.NETWORK, f"the connection broke: {words}")


def retired() -> UpstreamError:
    """A kept-alive connection ended so soon that the request was most likely never read."""
    return UpstreamError(FailureKind.RETIRED, "it had closed the kept-alive connection")


def malformed(why: str = "its answer is not valid HTTP") -> UpstreamError:
    """What came is no answer."""
    return UpstreamError(FailureKind.MALFORMED, why)


def truncated() -> UpstreamError:
    """An answer began, and will not be whole."""
    return UpstreamError(FailureKind.TRUNCATED, "the answer was cut")


def unsendable(why: str) -> UpstreamError:
    """A fault of ours: nothing of the request may go out, or no more of it."""
    return UpstreamError(FailureKind.INTERNAL, f"the request could not be sent: {why}")
