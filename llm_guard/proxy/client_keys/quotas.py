"""The limits of client keys: a call reserves its estimated use before it is sent, and is corrected when it is over.

The sums are kept in `resilience.client_keys.limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llm_guard.clock import Clock
from llm_guard.config import ClientKey
from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Refusal, Source
from llm_guard.proxy.call import Call
from llm_guard.proxy.headers import ask_for_plain
from llm_guard.proxy.identification import plain_bytes
from llm_guard.resilience.client_keys.limit_states import Exceeded, LimitLeft, LimitName
from llm_guard.resilience.client_keys.limits import ClientLimits, Reservation
from llm_guard.resilience.client_keys.settings import NO_LIMITS

_LONGEST_RETRY_AFTER_S = 60.0
"""The official SDKs ignore a longer Retry-After, and retry after a second or two (openai-python 3.52,
`_calculate_retry_timeout`)."""
# For English text, JSON included.
_BYTES_PER_TOKEN = 4
_TOKEN_COUNTS = frozenset({"/v1/messages/count_tokens", "/v1/responses/input_tokens"})
"""Paths that only count the tokens of a prompt. Providers do not charge for it."""
_HEADER_NAMES: Mapping[LimitName, str] = {
    "rate": "requests",
    "concurrency": "concurrency",
    "tokens_per_minute": "tokens",
    "tokens_per_day": "tokens-day",
}
_NAMES_IN_TEXT: Mapping[LimitName, str] = {
    "rate": "calls a second",
    "concurrency": "calls at once",
    "tokens_per_minute": "tokens a minute",
    "tokens_per_day": "tokens a day",
}


class ClientQuotas:
    """The limits of all client keys that have any, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_name: dict[str, ClientLimits] = {}
        self._suspended: dict[str, ClientLimits] = {}
        """Limits that a reload has lifted from keys that still exist: what was used stays used if they return."""
        self.refusals: dict[tuple[str, LimitName], int] = {}
        """Number of refused calls, by key and limit."""

    def adopt(self, keys: Iterable[ClientKey]) -> None:
        """Applies these limits from the next call on. The use counted so far under a name is kept."""
        now, wall = self._clock.now(), self._clock.wall()
        before = {**self._suspended, **self.by_name}
        self.by_name, self._suspended = {}, {}
        for key in keys:
            limits = before.get(key.name)
            if key.limits != NO_LIMITS:
                limits = self.by_name[key.name] = limits or ClientLimits(key.limits, now, wall)
                limits.settings = key.limits
            elif limits is not None:
                self._suspended[key.name] = limits
        self.refusals = {of: count for of, count in self.refusals.items() if of[0] in self.by_name}

    def days(self) -> list[tuple[str, int, int]]:
        """Returns name, day and tokens used on it, for the keys with a daily limit."""
        return [
            (name, *limits.day)
            for name, limits in self.by_name.items()
            if limits.settings.tokens_per_day is not None and limits.day[1]
        ]

    def restore_days(self, days: Iterable[tuple[str, int, int]]) -> None:
        """Restores the sums that an earlier process returned from `days`."""
        wall = self._clock.wall()
        for name, day, tokens in days:
            if (limits := self.by_name.get(name)) is not None:
                limits.restore_day(day, tokens, wall)

    def reserve(self, call: Call, *, without: LimitName | None = None) -> Refusal | None:
        """Reserves the call's estimated use, or returns a refusal if that exceeds a limit of its key.

        `without`: a limit that does not apply. A deferred call is counted by `rate` only when it is accepted, and by
        `concurrency` only while it is executed.
        """
        limits = self.by_name.get(call.client_key or "")
        if limits is None:
            return None
        clock = self._clock
        result = limits.try_enter(estimated_tokens(call), clock.now(), clock.wall(), without)
        if isinstance(result, Exceeded):
            return self._refused(call, limits, result)
        call.reservation = result
        if call.is_stream and limits.settings.limits_tokens:
            ask_for_plain(call)  # its events are counted
        return None

    def take_rate(self, call: Call) -> Refusal | None:
        """Counts a call that the gateway answers itself and that uses nothing but the rate of its key; returns a
        refusal if that is exceeded."""
        limits = self.by_name.get(call.client_key or "")
        if limits is None:
            return None
        exceeded = limits.try_take_rate(self._clock.now(), self._clock.wall())
        return None if exceeded is None else self._refused(call, limits, exceeded)

    def _refused(self, call: Call, limits: ClientLimits, exceeded: Exceeded) -> Refusal:
        name, now, wall = call.client_key or "", self._clock.now(), self._clock.wall()
        of = (name, exceeded.limit)
        self.refusals[of] = self.refusals.get(of, 0) + 1
        return _refusal(call, name, exceeded, limits.left(now, wall), wall)


def settle(call: Call, reservation: Reservation) -> None:
    """Replaces the estimate of a finished call by its actual use."""
    call.reservation = None
    reservation.owner.leave(reservation, used_tokens(call, reservation))


def estimated_tokens(call: Call) -> int:
    """Returns the estimated tokens of a call: of its request, by size, plus the most output that it allows."""
    if call.model is None or call.path in _TOKEN_COUNTS or call.content_type.startswith("multipart/"):
        return 0  # files, audio and the like
    tokens = plain_bytes(call) // _BYTES_PER_TOKEN
    return tokens + _output_limit(call) if call.max_tokens else tokens


def used_tokens(call: Call, reservation: Reservation) -> int:
    """Returns the tokens of a finished call: as counted by the provider, else those of the stream so far, else the
    estimate. A call that failed without a count has used none. A call that its client has left has used at least its
    estimate: its provider may have generated more than was seen, and leaving early must not be a way around the
    limits."""
    if not call.attempts:
        return 0
    usage = call.usage
    if call.failure is None and usage.input is not None and usage.output is not None:
        return usage.prompt + usage.output
    return _used_at_least(call, reservation.tokens, reservation.streamed_tokens)


def _used_at_least(call: Call, estimate: int, streamed: int) -> int:
    """Returns the tokens of a call if its provider has not counted all of them."""
    usage = call.usage
    has_left = call.failure is not None and call.failure.kind.source is Source.CLIENT
    counted = estimate if call.failure is None or has_left else 0
    if usage.input is not None or usage.output is not None or streamed:
        prompt = usage.prompt if usage.input is not None else max(0, estimate - _output_limit(call))
        is_final = call.failure is None and usage.output is not None
        counted = prompt + (usage.output or 0 if is_final else max(usage.output or 0, streamed))
    return max(counted, estimate) if has_left else counted


def _output_limit(call: Call) -> int:
    """Returns how many tokens of output the call allows, 0 if it does not say."""
    return call.max_tokens * (call.choices or 1)


def _refusal(call: Call, name: str, exceeded: Exceeded, left: Iterable[LimitLeft], wall: float) -> Refusal:
    dialect = DIALECTS[call.dialect]
    headers: list[tuple[str, str]] = []
    for limit in left:
        headers += dialect.limit_headers(
            _HEADER_NAMES[limit.limit], f"{limit.allowed:g}", str(int(limit.left)), limit.reset_s, wall
        )
    said = ", ".join(f"{int(limit.left)} of {limit.allowed:g} {_NAMES_IN_TEXT[limit.limit]} left" for limit in left)
    wait_s = exceeded.retry_after_s
    if wait_s is None:
        then = f"this call needs about {estimated_tokens(call)} tokens, which is more than a whole day's"
    else:
        then = f"try again in {wait_s:.3f} s"
    return Refusal(
        429,
        "client_limit_exceeded",
        f"client key {name!r} exceeds its limit {exceeded.limit} ({said}); {then}",
        by="client_limit",
        retry_after_s=wait_s,
        should_retry=wait_s is not None and wait_s <= _LONGEST_RETRY_AFTER_S,
        headers=tuple(headers),
    )
