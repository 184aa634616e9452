"""Earlier names of config keys: an error about an unknown key names the one that replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_guard.config.names import did_you_mean
from llm_guard.config.yaml_source import KeyPath

_RULES = {
    "answer_later": "deferred",
    "capacity.queue": "max_queue",
    "capacity.queue_wait": "queue_timeout",
    "capacity.slow": "latency_threshold",
    "deferred.when": "mode",
    "degraded.answer": "static_response",
    "degraded.calm": "recovery_window",
    "degraded.enter": "enter_failure_rate",
    "degraded.leave": "exit_failure_rate",
    "degraded.patience": "max_wait",
    "stream.hold_back": "prebuffer",
    "stream.keepalive.after": "interval",
    "stream.keepalive.before_head": "before_headers",
    "stream.waiting": "keepalive",
}
RENAMED = {
    **{f"defaults.{old}": new for old, new in _RULES.items()},
    **{f"models.*.{old}": new for old, new in _RULES.items()},
    "engines.*.boot": "start_timeout",
    "engines.*.grace": "stop_timeout",
    "engines.*.restart.steady": "reset_after",
    "engines.*.spare": "standby",
    "ops.alerts.*.after": "for",
    "ops.alerts.*.calm": "resolve_after",
    "ops.alerts.credential_benched": "credential_cooldown",
    "ops.timelines": "recent_calls",
    "probing": "probes",
    "server.repeat": "idempotency",
    "store.answer_later": "deferred",
    "store.dead_letters.pace": "requeue_rate",
    "store.deferred.at_once": "concurrency",
    "store.deferred.keep": "result_ttl",
    "store.deferred.waiting": "max_pending",
    "store.key": "encryption_key",
    "upstreams.*.errors.*.means": "kind",
    "upstreams.*.errors.*.when": "match",
}
"""Name before the first release -> present name. `*` is any name, or any item of a list. The keys above the last one
have their present names."""


def unknown_key(place: KeyPath, known: Iterable[str]) -> str:
    """Returns the reason for an unknown key: its present name if it was renamed, else the most similar of `known`."""
    *above, old = map(str, place)
    new = dict(_renamed_in(above)).get(old)
    if new is None:
        return f"unknown key{did_you_mean(old, known)}"
    inside = [f"{was} is {now}" for was, now in _renamed_in([*above, new])]
    return f"unknown key; it is called {new} now" + (f", and in it {', '.join(inside)}" if inside else "")


def _renamed_in(section: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the old and the new name of each renamed key of a section."""
    split = ((*pattern.split("."), new) for pattern, new in RENAMED.items())
    return [(old, new) for *above, old, new in split if _matches(section, above)]


def _matches(section: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(section) == len(pattern) and all(
        wanted in ("*", step) for step, wanted in zip(section, pattern, strict=True)
    )
