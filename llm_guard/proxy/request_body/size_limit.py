"""The size limit of a request body, by the call's path and caller.

`proxy.request_body.spool` limits the disk space of all bodies together.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.config import Config
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.resilience.routing.client_hints import is_local

_ROOTS = ("/v1/files", "/v1/uploads")
"""Paths at which, and below which, the request body is a file."""
_UPLOADS = tuple(f"{root}/" for root in _ROOTS)


def is_upload(path: str) -> bool:
    """Returns whether the body of a call to this path is a file, which names no model."""
    return path.startswith(_ROOTS) and f"{path}/".startswith(_UPLOADS)


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """A size limit, and the config key that sets it."""

    max_bytes: int
    key: str = "server.max_body"

    def check(self, size: int) -> None:
        """Raises BadRequest (413) if a body of `size` bytes exceeds it."""
        if size > self.max_bytes:
            message = f"the body is larger than {self.max_bytes} bytes ({self.key})"
            raise BadRequest(413, "body_too_large", message)


class BodyLimits:
    """The limits of one config."""

    def __init__(self, config: Config) -> None:
        server = config.server
        self._usual = BodyLimit(server.max_body)
        self._upload = BodyLimit(max(server.max_body, server.max_upload), "server.max_upload")

    def of(self, call: Call, reply: ResponseWriter) -> BodyLimit:
        """Returns the limit for a call. Files may be larger than other bodies, except from unknown callers, because
        they take disk space."""
        if not is_upload(call.path):
            return self._usual
        is_known = call.client_key is not None or is_local(reply.peer, reply.request.version, reply.request.names)
        return self._upload if is_known else self._usual
