"""Requests sent when a provider accepts a tenth of the calls, or none; others throttle these by chance.

Google's adaptive throttling ("Handling Overload", SRE book, ch. 21) rejects with a probability; the gateway learns the
rate of a provider that responds with 429 (`resilience.capacity.pacing`) and stops calling a failing one
(`resilience.circuit_breaker.breaker`).
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.storm.row import Row, promised
from llm_guard.outcome import FailureKind, Signal
from llm_guard.resilience.capacity.pacing import Pacer
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings

OFFERED_PER_S, TAKEN_PER_S = 1000, 100
_SECONDS, _SETTLED_S = 180, 60
_BURST = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Per second, once the policy has settled: requests sent, and requests accepted."""

    sent: float
    taken: float


def paced(seconds: int = _SECONDS, settled_s: int = _SETTLED_S) -> Sent:
    """The provider responds with 429 to requests that it does not accept; a call that the pacer delays is not sent."""
    pacer, provider = Pacer(0.0), _Bucket()
    sent = taken = 0
    for number in range(OFFERED_PER_S * seconds):
        now = number / OFFERED_PER_S
        if pacer.opens_at(now) > now:
            continue
        pacer.take(now)
        is_taken = provider.try_take(now)
        if not is_taken:
            pacer.note_rate_limited(now, now)
        sent += now >= settled_s
        taken += is_taken and now >= settled_s
    return Sent(sent / (seconds - settled_s), taken / (seconds - settled_s))


def broken_off(*, is_dead: bool) -> Sent:
    """The provider responds with 503 to requests that it does not accept, or to all."""
    breaker, provider = Breaker(BreakerSettings()), _Bucket()
    sent = taken = 0
    for number in range(OFFERED_PER_S * _SECONDS):
        now = number / OFFERED_PER_S
        permit = breaker.try_acquire(now)
        if permit is None:
            continue
        is_taken = not is_dead and provider.try_take(now)
        breaker.settle(permit, Signal.HEALTHY if is_taken else FailureKind.OVERLOADED.signal, now)
        sent += now >= _SETTLED_S
        taken += is_taken and now >= _SETTLED_S
    return Sent(sent / (_SECONDS - _SETTLED_S), taken / (_SECONDS - _SETTLED_S))


def rows() -> list[Row]:
    """Rows A39 and A40."""
    pace, broken, dead = paced(), broken_off(is_dead=False), broken_off(is_dead=True)
    return [
        promised("A39", "1,000/s offered, 100/s taken, the rest 429: sent, by our pacer",
                 "200/s at K = 2, 111/s at K = 1.1", f"{pace.sent:.0f}/s sent, {pace.taken:.0f}/s taken",
                 pace.sent <= 111 and pace.taken >= 90,
                 "the rate is learned from the 429s, instead of rejecting with a probability"),
        Row("A39", "the same, the rest 503: by our breaker", "100/s taken",
            f"{broken.sent:.1f}/s sent, {broken.taken:.1f}/s taken", "differs",
            "a breaker is no throttle: nine failures in ten are an outage to it, and a provider that sheds by 503 gets "
            "far less than it could take; one that says 429 is paced"),
        promised("A40", "1,000/s offered, all fail: sent", "a floor of probes, not 0", f"{dead.sent * 60:.1f} a minute",
                 dead.sent > 0, "a probe every 1.25 s; others' floor is a tenth of the load, here 100/s"),
    ]  # fmt: skip


class _Bucket:
    """A provider's capacity."""

    def __init__(self) -> None:
        self._tokens, self._at = _BURST, 0.0

    def try_take(self, now: float) -> bool:
        self._tokens = min(_BURST, self._tokens + (now - self._at) * TAKEN_PER_S)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
