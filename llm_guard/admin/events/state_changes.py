"""Records what the probes find, what the engines do and which degraded modes change: as events, and an engine's
automatic operations also in the audit trail."""

from __future__ import annotations

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.events.event_log import EventLog
from llm_guard.resilience.health.engine_state import EngineEvent
from llm_guard.upstreams.probes.targets import ProbeView

_BY_ITSELF = frozenset({
    "health_failed", "auto_restart", "auto_restart_failed", "auto_restart_success", "auto_restart_gave_up",
    "auto_restart_postponed", "came_back", "restart_failed", "restart_success", "stop_failed",
})  # fmt: skip
"""Automatic operations, and results of operations. Operators' requests are in the audit trail already."""


class StateChanges:
    """Records the changes of state of probed upstreams, of engines and of degraded modes."""

    def __init__(self, changes: Changes, journal: EventLog) -> None:
        self._changes = changes
        self._journal = journal

    def note_probe(self, view: ProbeView) -> None:
        """Records that a probed subject went up or down."""
        self._journal.note(
            "probe", upstream=view.upstream, deployment=view.deployment, state=view.state, reason=view.why
        )

    def note_engine(self, engine: str, turn: EngineEvent) -> None:
        """Records a change of an engine's state."""
        state = "gave_up" if turn.after == "failed" else turn.after  # the alert matches this value
        reason = turn.why or None
        self._journal.note("engine", engine=engine, state=state, event=turn.what, reason=reason, attempt=turn.attempt)
        if turn.what in _BY_ITSELF:
            detail = {"before": turn.before, "after": turn.after, "attempt": turn.attempt}
            self._changes.note("engines", turn.what, engine, turn.why or "it is running", detail)

    def note_mode(self, model: str | None, is_degraded: bool, why: str) -> None:
        """Records that a model, or the whole gateway (None), entered or left degraded mode."""
        self._journal.note("degraded", model=model, is_degraded=is_degraded, reason=why)
