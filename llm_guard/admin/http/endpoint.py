"""Requests, responses and endpoints of the admin API, and the errors and changes that they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec

from llm_guard.admin.http.credentials import Role
from llm_guard.config import Config
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_encode = msgspec.json.Encoder(enc_hook=str).encode


ChangeReason = Annotated[
    str, msgspec.Meta(min_length=1, max_length=500, pattern=r"\S", description="Reason for the audit trail; not blank.")
]


class Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of a request that changes something."""

    between_fields: ClassVar[Mapping[str, object]] = {}
    """Constraints between fields as JSON Schema, for the API description; the page enforces them."""

    reason: ChangeReason


class OperatorHeaders(msgspec.Struct):
    """Headers of a request that changes something."""

    operator: str | None = msgspec.field(name="x-llm-guard-operator", default=None)
    """Name of the operator, where several share `ops.token`. Its first 64 characters are written to the audit trail, in
    brackets after the token's name. The name is claimed, not proved; it is ignored where the token has a name of its
    own (`ops.tokens`)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An authenticated operator."""

    name: str
    role: Role
    is_shared: bool = False
    """Several people may have this token."""
    has_cookie: bool = False
    """The credential is a cookie: the browser adds it to any page's requests."""


@dataclass(slots=True)
class AdminRequest:
    """One request of an operator."""

    method: str
    path: str
    headers: Mapping[str, str]
    """First value of each header, by its lower-case name."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Last value of each parameter, decoded."""
    wants: Any = None
    """The query parsed as the page's `query`; None where it has none."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Decoded values of the `{name}` segments in the page's path."""
    body: Any = None
    """The body parsed as the page's `takes`; None where it takes nothing."""
    who: str = "operator"
    """Token name and client address, for the audit trail."""
    caller: Operator | None = None
    """None where the page is open and the request had no valid token."""

    @property
    def is_operators(self) -> bool:
        """True if an operator sent it: only operators see the words of providers."""
        return self.caller is not None and self.caller.role == "operator"


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """A complete response."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """An error response. The message is for the operator and names the remedy."""

    def __init__(self, status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers

    def answer(self) -> AdminResponse:
        body = _encode({"error": {"code": self.code, "message": self.message}})
        return AdminResponse(body, status=self.status, headers=self.headers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint: one method of one path. Exactly one of `give` and `live` is set. GET needs a token with the role
    viewer, every other method one with the role operator, unless the endpoint is open."""

    method: str
    path: str
    """A segment in braces matches any value."""
    summary: str
    """Phrase for the API description."""
    give: Callable[[AdminRequest], Awaitable[AdminResponse]] | None = None
    """Returns the response. Raises Refused."""
    live: Callable[[AdminRequest, Request, ResponseWriter], Awaitable[None]] | None = None
    """Writes a response without an end, such as an event stream. Raises Refused only before it has begun."""
    takes: type[msgspec.Struct] | None = None
    """Type of the body; unknown fields are refused. If it is a `Change`, the page calls `Changes.make`."""
    query: type[msgspec.Struct] | None = None
    """Type of the query; unknown parameters are refused. None: the page takes none, or parses them itself."""
    heeds: type[msgspec.Struct] | None = None
    """Headers that it reads beside those of every page, for the API description."""
    gives: Any = None
    """Type of the response, for the API description."""
    media: str = JSON
    """Content type of the response, for the API description."""
    is_open: bool = False
    """No token is needed."""
    says_more: bool = False
    """On an open page: `AdminRequest.caller` is set if the request has a valid token."""
    other_statuses: Mapping[int, str] = field(default_factory=dict)
    """Statuses other than 200 with the same content, and their meanings, for the API description."""
    may_miss: bool = False
    """The page may return 404 for a name in its query. For a name in its path that is always possible."""


class EndpointGroup:
    """Endpoints of one subject, and what the subject does apart from requests. `Router` calls all of it."""

    def pages(self) -> Iterable[Endpoint]:
        """Returns the endpoints. Called once."""
        raise NotImplementedError  # unlike the methods below, every group has its own

    def adopt(self, config: Config) -> None:
        """Applies a new config, before the gateway adopts it. Must not raise."""

    def look(self, now: float) -> None:
        """Does what is due at this monotonic instant. Called several times a second."""

    def close(self) -> None:
        """Releases what outlives requests; no request follows."""


def answer(value: object, status: int = 200) -> AdminResponse:
    """Encodes `value` as a JSON response."""
    return AdminResponse(_encode(value), status=status)
