"""Warns of timeouts that have no effect beside others, and of retries that do not fit into the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from llm_guard.config.models import Config, Rules
from llm_guard.config.yaml_source import Finding
from llm_guard.resilience.retry.backoff import delay_s
from llm_guard.resilience.routing.candidates import TimeoutSettings

_DEFAULTS = TimeoutSettings()
_MOST_WAITS = 1000
_LIMITS = ("connect", "first_token", "idle", "stall", "attempt")


def contradicting_durations(config: Config) -> Iterator[Finding]:
    """Yields each contradiction of `defaults` once, and those that a model adds."""
    shared = list(_contradictions(config.defaults))
    yield from ((("defaults", *key), reason) for key, reason in shared)
    for name, model in config.models.items():
        for key, reason in _contradictions(model):
            if (key, reason) not in shared:
                yield ("models", name, *key), reason


def _contradictions(rules: Rules) -> Iterator[Finding]:
    yield from _beyond_total(rules.timeout)
    yield from _never_first(rules.timeout)
    yield from _unreachable_waits(rules)
    yield from _no_second_attempt(rules)


def _beyond_total(timeout: TimeoutSettings) -> Iterator[Finding]:
    """Compares only the limits that the config sets: a short total is meant to shorten the default ones."""
    for name in _LIMITS:
        limit_s = getattr(timeout, name)
        if limit_s is not None and limit_s != getattr(_DEFAULTS, name) and limit_s >= timeout.total:
            reason = (
                f"{limit_s:g}s has no effect: the whole call ends after timeout.total, {timeout.total:g}s; "
                f"make {name} shorter or total longer"
            )
            yield ("timeout", name), reason


def _never_first(timeout: TimeoutSettings) -> Iterator[Finding]:
    if timeout.idle != _DEFAULTS.idle and timeout.stall <= timeout.idle < timeout.total:
        reason = (
            f"{timeout.idle:g}s has no effect: a stream without a useful event ends after timeout.stall, "
            f"{timeout.stall:g}s; make idle shorter or stall longer"
        )
        yield ("timeout", "idle"), reason
    learned, configured_s = timeout.learned, timeout.first_token
    if learned is not None and configured_s is not None and learned.min >= configured_s:
        reason = (
            f"{learned.min:g}s has no effect: a learned limit is never longer than timeout.first_token, "
            f"{configured_s:g}s; make min shorter"
        )
        yield ("timeout", "learned", "min"), reason


def _unreachable_waits(rules: Rules) -> Iterator[Finding]:
    """Compares the average waits; half of all calls have longer ones."""
    retry, previous_s, waits = rules.retry, None, []
    for number in range(1, min(retry.max_attempts, _MOST_WAITS)):
        previous_s = delay_s(
            retry, retry=number, kind=None, retry_after_s=None, previous_s=previous_s, u=0.5
        )  # fmt: skip
        waits.append(previous_s)
    fitting = sum(1 for waited_s in accumulate(waits) if waited_s < rules.timeout.total)
    if fitting < len(waits):
        reason = (
            f"{retry.max_attempts} attempts do not fit: the waits between them take {sum(waits):.3g}s and "
            f"timeout.total is {rules.timeout.total:g}s; set it to {fitting + 1} or make the waits shorter"
        )
        yield ("retry", "max_attempts"), reason


def _no_second_attempt(rules: Rules) -> Iterator[Finding]:
    attempt_s, total_s = rules.timeout.attempt, rules.timeout.total
    if attempt_s is not None and rules.retry.max_attempts > 1 and attempt_s < total_s < 2 * attempt_s:
        reason = (
            f"{attempt_s:g}s leaves no time for a retry after an attempt that runs into it: timeout.total is "
            f"{total_s:g}s; make attempt at most half of it, or set retry.max_attempts to 1"
        )
        yield ("timeout", "attempt"), reason
