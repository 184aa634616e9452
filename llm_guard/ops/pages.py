"""What an operator asks and is answered: Asked, Answer, Page, Refused, Change.

Owns these nouns, and how an answer becomes JSON. Does not own who may ask (`ops.guard`), nor what there is to be asked
(the modules that make pages).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec

from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import Request
from llm_guard.ops.credentials import Role

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_encode = msgspec.json.Encoder(enc_hook=str).encode


Reason = Annotated[
    str, msgspec.Meta(min_length=1, max_length=500, pattern=r"\S", description="Why, for the audit trail; not blank.")
]


class Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request that changes something."""

    between_fields: ClassVar[Mapping[str, object]] = {}
    """What no field says by itself, as JSON Schema; the page sees to it."""

    reason: Reason


class OperatorHeaders(msgspec.Struct):
    """Of a request that changes something."""

    operator: str | None = msgspec.field(name="x-llm-guard-operator", default=None)
    """Who of those who share `ops.token` asks: 64 characters of it are in the audit trail, in brackets behind the
    token's name. It is claimed, not proved; it is ignored where the token has a name of its own (`ops.tokens`)."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token a request has."""

    name: str
    role: Role
    is_shared: bool = False
    """Several people may have this token."""
    has_cookie: bool = False
    """The browser sent it by itself, whatever page made it ask."""


@dataclass(slots=True)
class Asked:
    """One request of an operator."""

    method: str
    path: str
    headers: Mapping[str, str]
    """The first value of each, by its lower-case name."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The last value of each, decoded."""
    wants: Any = None
    """The same as the page's `query`; None where it has none."""
    params: Mapping[str, str] = field(default_factory=dict)
    """What stood in the path where the page has `{name}`, decoded."""
    body: Any = None
    """As the page's `takes`; None where it takes nothing."""
    who: str = "operator"
    """For the audit trail: the name of the token, and where from."""
    caller: Caller | None = None
    """None where the page is open and the request showed no right token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """Not done, and why; the text is for the operator and names the remedy."""

    def __init__(self, status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers

    def answer(self) -> Answer:
        body = _encode({"error": {"code": self.code, "message": self.message}})
        return Answer(body, status=self.status, headers=self.headers)


@dataclass(frozen=True, slots=True)
class Page:
    """One method of one path. Exactly one of `give` and `live` is set."""

    method: str
    path: str
    """A segment in braces stands for any one."""
    summary: str
    """A phrase for the API description."""
    give: Callable[[Asked], Awaitable[Answer]] | None = None
    """Raises Refused."""
    live: Callable[[Asked, Request, Reply], Awaitable[None]] | None = None
    """For what has no end: it answers by itself. Raises Refused before it has begun to."""
    takes: type[msgspec.Struct] | None = None
    """What its body is read as; unknown fields are refused. Where it is a `Change`, the page calls `Changes.make`."""
    query: type[msgspec.Struct] | None = None
    """What its query is read as; unknown parameters are refused. None: it takes none, or reads them itself."""
    heeds: type[msgspec.Struct] | None = None
    """The headers that it reads beside those that every page does, for the API description."""
    gives: Any = None
    """The type of its answer, for the API description."""
    media: str = JSON
    """Its answer's content type, for the API description."""
    is_open: bool = False
    """Anybody may ask."""
    says_more: bool = False
    """Of an open page: `Asked.caller` is set where the request shows a right token."""
    may_miss: bool = False
    """What its query names may not be there. Of what its path names that goes without saying."""


def answer(value: object, status: int = 200) -> Answer:
    """As JSON."""
    return Answer(_encode(value), status=status)
