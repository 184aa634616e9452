"""The translation of one call: which deployments can serve it, and its request for each of them. A deployment of the
call's own dialect takes its request as it is, or in the form of a cloud.

Nothing is read or written before a deployment of another dialect is about to be tried.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from llm_guard.dialects.translation.canonical import CanonicalRequest, RequestTarget, UnreadableRequestError
from llm_guard.dialects.translation.endpoints import (
    ClientEndpoint,
    TranslatedRequest,
    endpoint_of,
    read_request,
    upstream_endpoint,
    write_request,
)
from llm_guard.dialects.translation.error_bodies import message_in
from llm_guard.dialects.translation.losses import Loss, divided
from llm_guard.dialects.translation.output_limits import limit_in
from llm_guard.dialects.translation.token_estimate import estimated_count, is_token_count
from llm_guard.outcome import Failure, FailureKind, Refusal
from llm_guard.proxy.call import Call
from llm_guard.proxy.identification import plain_bytes
from llm_guard.proxy.request_body.content_encoding import inflate
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.translation.attempt import LARGE_BYTES, TranslatedAttempt, in_thread_if_large, joined_blocks
from llm_guard.proxy.translation.formed_attempt import FormedAttempt, unserved_by_form
from llm_guard.proxy.translation.interfaces import AttemptTranslator
from llm_guard.resilience.capacity.response_memory import MemoryLease, ResponseMemory
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.routing.route_table import Target

_MOST_BYTES = 32 << 20
"""Anthropic's own limit for a request."""
_COPIES = 3
"""A request in memory takes about as much as three of its inflated body: read, in pieces, and written."""
_MOST_NAMES, _MOST_OF_A_NAME = 5, 100
"""Clients choose the names of unknown fields: a log line and a message have few of them, and not all of a long one."""
_OFF = TranslateSettings()
_BUSY = "too many large requests are being translated"


class _Prepared(Struct, frozen=True):
    """The request for one target."""

    target: RequestTarget
    request: TranslatedRequest | None
    """None: the target cannot serve the call."""
    dropped: tuple[str, ...] = ()
    obstacle: str | None = None


class TranslatedCall:
    """Implements `proxy.translation.interfaces.CallTranslator`."""

    def __init__(self, call: Call, settings: TranslateSettings | None, memory: ResponseMemory) -> None:
        """`settings`: None if the call may not be translated; only deployments of its dialect can serve it then.
        `memory`: for all large requests that are translated together."""
        self._call = call
        self._memory = MemoryLease(memory)
        self._settings = _OFF if settings is None else settings
        self._client = endpoint_of(call.dialect, call.method, call.path) if settings is not None else None
        self._request: CanonicalRequest | None = None
        self._unreadable: UnreadableRequestError | None = None
        self._prepared: dict[int, _Prepared] = {}
        """The keys are identities of targets, which live as long as the route."""
        self._obstacles: dict[str, str] = {}
        """Why deployments cannot serve the call, by label."""
        self._refused: list[Loss] = []
        self._has_learned = False

    def obstacle(self, target: Target) -> str | None:
        """Returns why no call of this endpoint can be sent to the target; None: its request decides."""
        upstream = target.deployment.upstream
        if upstream.speaks(self._call.dialect, self._call.path):
            return unserved_by_form(upstream.form, self._call.method, self._call.path)
        if upstream.dialect == self._call.dialect:
            return "has no Responses API, and calls are not translated" if self._client is None else None
        if self._client is None:
            return f"has another dialect, and {self._call.path} is not translated"
        if not upstream.has_own_key and upstream.auth != "none":
            return "has another dialect, and no API key of its own: a caller's key is never sent to it"
        return None

    def is_ready(self, target: Target) -> bool:
        """Returns whether an attempt on the target can begin at once. Translates a small request for it."""
        known = self._known(target)
        if known is None:
            if self.obstacle(target) is not None:
                return False
            body, upstream = self._call.body, target.deployment.upstream
            if upstream.speaks(self._call.dialect, self._call.path):
                return upstream.form is None or isinstance(body, bytes)
            if not isinstance(body, bytes) or len(body) > LARGE_BYTES:
                return False
            if self._request is None and self._unreadable is None:
                self._read(body)
            known = self._prepare(target)
        return known.request is not None

    async def prepare(self, target: Target) -> str | None:
        """Translates the request for a target, if necessary; returns why it cannot be sent there."""
        if self.is_ready(target):
            return None
        is_own = target.deployment.upstream.speaks(self._call.dialect, self._call.path)
        why = self.obstacle(target)
        if why is None:
            why = self._hold_file() if is_own else await self._translate(target)
        if why is not None:
            self._obstacles[target.deployment.label] = why
        return why

    async def _translate(self, target: Target) -> str | None:
        known = self._known(target)
        if known is None and not await self._load():
            return _BUSY
        if known is None:
            known = await in_thread_if_large(partial(self._prepare, target), plain_bytes(self._call))
        return known.obstacle

    def _hold_file(self) -> str | None:
        """Takes memory for a request that is in a file, to write it in another form. Returns why there is none."""
        if isinstance(self._call.body, bytes) or self._memory.bytes:
            return None
        size = plain_bytes(self._call)
        if size > _MOST_BYTES:
            return f"takes no request of more than {_MOST_BYTES >> 20} MiB"
        return None if self._memory.try_take(_COPIES * size) else _BUSY

    def begin(self, target: Target, at: float) -> AttemptTranslator | None:
        """Returns the translation of one attempt; None if the target takes the client's request as it is."""
        upstream, translated = target.deployment.upstream, self._translated(target, at)
        if upstream.form is None or (translated is None and upstream.dialect != self._call.dialect):
            return translated
        return FormedAttempt(self._call, upstream.form, translated)

    def _translated(self, target: Target, at: float) -> TranslatedAttempt | None:
        known = self._known(target)
        if known is None or known.request is None or self._client is None:
            return None
        shows = self._settings.reasoning == "show"
        return TranslatedAttempt(
            self._call, self._client, known.request, known.target, known.dropped, at, shows_reasoning=shows
        )

    def refusal(self) -> Refusal:
        """Returns the refusal of a call that no deployment can serve."""
        if _BUSY in self._obstacles.values():
            return Refusal(503, "translation_busy", _BUSY, by="limit", retry_after_s=1.0, should_retry=True)
        if self._unreadable is not None:
            bad = self._unreadable
            return Refusal(400, "invalid_request", bad.message, by="translation", param=bad.param or None)
        reasons = "; ".join(f"{label}: {why}" for label, why in self._obstacles.items())
        first = self._refused[0] if self._refused else None
        param = (first.place or first.name)[:_MOST_OF_A_NAME] if first is not None else None
        message = f"no deployment can serve this request: {reasons}"
        return Refusal(400, "not_expressible", message, by="translation", param=param)

    @property
    def has_estimate(self) -> bool:
        """True for a call of count_tokens that may be translated."""
        call = self._call
        return self._settings is not _OFF and is_token_count(call.dialect, call.method, call.path)

    async def estimate(self) -> bytes | None:
        """Returns the body of a response that needs no provider; None if the call has none, or no memory for it now."""
        if not self.has_estimate:
            return None
        body, size = self._call.body, plain_bytes(self._call)
        if not isinstance(body, bytes):
            if size > _MOST_BYTES or not self._memory.try_take(_COPIES * size):
                return None
            body = await joined_blocks(body)
        return await in_thread_if_large(partial(self._estimated, body), size)

    def _estimated(self, body: bytes) -> bytes | None:
        try:
            return estimated_count(inflate(body, self._call.content_encoding, _MOST_BYTES))
        except BadRequest:
            return None

    def learns_from(self, target: Target, failure: Failure) -> bool:
        """Returns whether a refusal names the model's output limit, so that a request within it may be accepted.

        Once in a call: an upstream could go on naming smaller ones."""
        if failure.kind is not FailureKind.UNTRANSLATED or failure.answer is None or self._has_learned:
            return False
        limit = limit_in(message_in(failure.answer.body))
        known = target.deployment.most_tokens
        if limit is None or (known is not None and known <= limit):
            return False
        target.deployment.most_tokens, self._has_learned = limit, True
        return True

    def _known(self, target: Target) -> _Prepared | None:
        """Returns the request for a target, unless the deployment's limit has been learned since."""
        known = self._prepared.get(id(target))
        if known is not None and known.target.most_tokens == target.deployment.most_tokens:
            return known
        return None

    def close(self) -> None:
        """Releases the memory of the request, at the end of the call."""
        self._memory.release()

    async def _load(self) -> bool:
        """Reads the client's request, once. Returns False if there is no memory for it now."""
        if self._request is not None or self._unreadable is not None:
            return True
        body, size = self._call.body, plain_bytes(self._call)
        if not isinstance(body, bytes):
            if size > _MOST_BYTES:
                self._unreadable = UnreadableRequestError("", f"it is larger than {_MOST_BYTES >> 20} MiB")
                return True
            if not self._memory.try_take(_COPIES * size):
                return False
            body = await joined_blocks(body)
        await in_thread_if_large(partial(self._read, body), size)
        return True

    def _read(self, body: bytes) -> None:
        assert self._client is not None  # noqa: S101  # `obstacle` has been checked
        try:
            plain = inflate(body, self._call.content_encoding, _MOST_BYTES)
            self._request = read_request(self._client, plain)
            self._request.is_stream = self._call.is_stream
        except UnreadableRequestError as error:
            self._unreadable = error
        except BadRequest as bad:
            self._unreadable = UnreadableRequestError("", bad.message)

    def _prepare(self, target: Target) -> _Prepared:
        prepared = self._prepared[id(target)] = self._prepared_for(target, self._client)
        return prepared

    def _prepared_for(self, target: Target, client: ClientEndpoint | None) -> _Prepared:
        deployment, settings = target.deployment, self._settings
        default = target.max_tokens or settings.max_tokens
        written_for = RequestTarget(
            target.model or "", deployment.upstream.family, default, deployment.most_tokens, target.prefill
        )
        if self._request is None or client is None:
            bad = self._unreadable
            why = bad.message if bad is not None else "there is none"
            why = f"does not serve the endpoint, and the request cannot be translated: {why}"
            return _Prepared(written_for, None, (), why)
        try:
            endpoint = upstream_endpoint(deployment.upstream.dialect)
            request = write_request(self._request, client, endpoint, written_for)
        except UnreadableRequestError as error:
            self._unreadable = error
            return self._prepared_for(target, client=None)
        refused, dropped = divided(request.losses, settings.drop)
        if not refused:
            return _Prepared(written_for, request, dropped)
        self._refused = refused
        names = ", ".join(str(loss)[:_MOST_OF_A_NAME] for loss in refused[:_MOST_NAMES])
        more = f" and {len(refused) - _MOST_NAMES} more" if len(refused) > _MOST_NAMES else ""
        return _Prepared(written_for, None, (), f"cannot express {names}{more}")
