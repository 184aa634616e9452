"""Interfaces of a call's translation, and of its requests in the form of a cloud. The modules behind them are imported
when a call needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from llm_guard.dialects import DialectName
from llm_guard.outcome import Failure, Refusal
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.route_table import Target

if TYPE_CHECKING:  # `proxy.call` has attributes of these types
    from llm_guard.proxy.call import Opened, StreamDecoder
    from llm_guard.proxy.http_client.connection_pool import UpstreamOrigin
    from llm_guard.proxy.streams.decoder import PlainStreamDecoder


class WrittenRequest(NamedTuple):
    """A request as it is sent."""

    target: str
    """Path and query."""
    headers: RequestHeaders
    body: bytes


class CallTranslator(Protocol):
    """Translates a call for the deployments of its route that have another dialect or a form of their own for its
    requests: see `proxy.translation.call`."""

    def obstacle(self, target: Target) -> str | None:
        """Returns why no call of this endpoint can be sent to the target; None: its request decides."""

    def is_ready(self, target: Target) -> bool:
        """Returns whether an attempt on the target can begin at once."""

    async def prepare(self, target: Target) -> str | None:
        """Translates the request for a target, if necessary; returns why it cannot be sent there."""

    def begin(self, target: Target, at: float) -> AttemptTranslator | None:
        """Returns the translation of one attempt; None if the target takes the client's request as it is. `at`: now, in
        seconds since the epoch."""

    def refusal(self) -> Refusal:
        """Returns the refusal of a call that no deployment can serve."""

    @property
    def has_estimate(self) -> bool:
        """True for a call of count_tokens: an estimate is better than an error."""

    async def estimate(self) -> bytes | None:
        """Returns the body of a response that needs no provider; None if the call has none."""

    def close(self) -> None:
        """Releases the memory of the request, at the end of the call."""

    def learns_from(self, target: Target, failure: Failure) -> bool:
        """Returns whether a refusal has shown what to write differently, so that the same deployment may accept it."""


class AttemptTranslator(Protocol):
    """Translates one attempt: see `proxy.translation.attempt`, and `proxy.translation.formed_attempt` for a request in
    the form of a cloud."""

    dialect: DialectName
    """The upstream's."""
    is_translated: bool
    """False if only the form of the request differs."""
    path: str
    """Path of the upstream's endpoint, in the form of `Call.path`."""
    dropped: tuple[str, ...]
    """Names of what the request has lost."""

    async def request(self, target: Target, key: ApiKey | None, resumed: bytes | None) -> WrittenRequest:
        """Returns the request. `key` is the one of the upstream's pool, if it has one; `resumed` the client's request
        for the rest of a stream that died. Raises BadRequest."""

    def over(self, origin: UpstreamOrigin) -> UpstreamOrigin:
        """Returns the origin that the request is sent to: the upstream's, or one that decodes its streams."""

    def decoder(self, view: PlainStreamDecoder) -> StreamDecoder:
        """Returns the view of a stream whose events are translated."""

    def opened(self, opened: Opened) -> Opened | Failure:
        """Returns the response for the client, with its body translated if that is whole."""
