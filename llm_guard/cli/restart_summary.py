"""Describes how an engine is restarted, for `llm-guard check`. The schedule itself is in
`resilience.health.restart_policy`."""

from __future__ import annotations

from llm_guard.config import EngineConfig
from llm_guard.resilience.health.restart_policy import GiveUpWindow, delay_s, giving_up

_SHOWN = 6
"""Number of waits that are listed. Later ones are usually all the maximum."""


def restart_schedule(name: str, config: EngineConfig) -> list[str]:
    """Returns one line with the engine and its restart schedule, and one line that says when it is given up."""
    rules = config.restart.settings
    waits = [delay_s(rules, attempt, 0.5) for attempt in range(1, rules.max_attempts + 1)]
    more = f", ... {len(waits)} in all" if len(waits) > _SHOWN else ""
    times = f"{', '.join(map(_time, waits[:_SHOWN]))}{more}"
    spare = ", spare" if config.spare else ""
    what = f"engine {name} ({config.kind}{spare}) for {', '.join(config.upstreams)}"
    how = f"restarted after {times} (jitter {rules.jitter:.0%}), {rules.max_per_hour} an hour at most"
    at_once, hanging = (_span(giving_up(rules, attempt_s)) for attempt_s in (0.0, config.boot))
    end = f"after {at_once} where it ends at once, after {hanging} where it never comes up within {_time(config.boot)}"
    killed = f"up to {_time(rules.max_attempts * config.grace)} later where it has to be killed each time"
    return [f"{what}: {how}", f"  given up {end}, and {killed}"]


def _span(found: GiveUpWindow) -> str:
    if found.soonest_s == found.latest_s:
        return _time(found.expected_s)
    return f"{_time(found.expected_s)} ({_time(found.soonest_s)} to {_time(found.latest_s)})"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)
