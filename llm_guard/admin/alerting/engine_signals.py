"""Computes the findings of the alert rules about engines: given up, down, too many down, restarted too often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from llm_guard.admin.events.event_log import EventLog, OperatorEvent
from llm_guard.config import AlertRules
from llm_guard.resilience.alerts.alert import RuleFinding
from llm_guard.resilience.alerts.rules import (
    RuleName,
    evaluate_down,
    evaluate_engine,
    evaluate_engines,
    evaluate_restarts,
)

ENGINES = "engines"
"""Subject of the rules about all engines together."""
_MINUTE_S = 60.0


class EngineSignals:
    """Follows the engines by their events. Must be looked at once a second: a restart is dated by the next look."""

    def __init__(self, journal: EventLog, problems: Callable[[], Mapping[str, str | None]]) -> None:
        """`problems`: why each engine of the config that is meant to run does not; None: it does, or need not."""
        self._problems = problems
        self._gave_up: dict[str, bool] = {}
        """True for each engine that was given up; has every engine that has had an event, even if it was removed."""
        self._restarted: list[str] = []
        """Engines restarted since the last look."""
        self._restarts: deque[tuple[float, str]] = deque()
        """Automatic restarts of the last minute. `max_per_hour` of each engine bounds their number."""
        self._down: list[str] = []
        journal.subscribe(self._hear)

    def look(self, rules: AlertRules, now: float) -> Iterator[tuple[RuleName, str, RuleFinding]]:
        """Yields the findings of the rules that are on; nothing until there has been an engine."""
        restarts = self._recent_restarts(now)
        if not self._gave_up:
            return
        problems = self._problems()
        self._down = [engine for engine, problem in problems.items() if problem is not None]
        for engine, has_given_up in self._gave_up.items():
            if rules.engine_gave_up is not None:
                yield "engine_gave_up", engine, evaluate_engine(engine, has_given_up)
            if rules.engine_down is not None:
                yield "engine_down", engine, evaluate_down(engine, problems.get(engine))
        if rules.engines_down is not None:
            yield "engines_down", ENGINES, evaluate_engines(self._down, len(problems), rules.engines_down)
        if rules.engine_restarts is not None:
            yield "engine_restarts", ENGINES, evaluate_restarts(restarts, rules.engine_restarts)

    def concerned(self, rule: RuleName) -> Sequence[str]:
        """Returns the engines behind an alert about all engines, as of the last look."""
        return [*{engine: None for _, engine in self._restarts}] if rule == "engine_restarts" else self._down

    def _recent_restarts(self, now: float) -> Counter[str]:
        self._restarts.extend((now, engine) for engine in self._restarted)
        self._restarted.clear()
        while self._restarts and self._restarts[0][0] <= now - _MINUTE_S:
            self._restarts.popleft()
        return Counter(engine for _, engine in self._restarts)

    def _hear(self, event: OperatorEvent) -> None:
        if event.kind == "engine":
            engine = str(event.facts.get("engine"))
            self._gave_up[engine] = event.facts.get("state") == "gave_up"
            if event.facts.get("event") == "auto_restart":
                self._restarted.append(engine)
