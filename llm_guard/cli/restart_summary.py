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
    more = f", ... {len(waits)} in total" if len(waits) > _SHOWN else ""
    times = f"{', '.join(map(_time, waits[:_SHOWN]))}{more}"
    standby = ", standby" if config.standby else ""
    what = f"engine {name} ({config.kind}{standby}) for {', '.join(config.upstreams)}"
    how = f"restarts after {times} (jitter {rules.jitter:.0%}), at most {rules.max_per_hour} an hour"
    at_once, hanging = (_span(giving_up(rules, attempt_s)) for attempt_s in (0.0, config.start_timeout))
    late = _time(config.start_timeout)
    end = f"after {at_once} if it exits at once, after {hanging} if it is never up within {late}"
    killed = f"up to {_time(rules.max_attempts * config.stop_timeout)} later if it must be killed each time"
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
