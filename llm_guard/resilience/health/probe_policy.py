"""Health probes of an upstream beside its calls: what a result means, when it counts as down, when the next is due.

Probes are sent by `upstreams.probes.probe` and `upstreams.probes.prober`; `proxy.attempts.candidate_selection` and
`resilience.circuit_breaker.breaker` act on the results.

Endpoints, by the engines' own documentation and source: vLLM `GET /health`, 200 without a body, 503 once its engine is
dead (vllm/entrypoints/serve/instrumentator/health.py); SGLang `GET /health`, which generates one token if nothing else
runs, 503 while it starts or shuts down (sglang/srt/entrypoints/http_server.py); both refuse HEAD with 405, as FastAPI
does for a GET route. llama.cpp `GET /health`: 503 while a model is loaded, then `{"status": "ok"}`
(tools/server/README.md). TGI `GET /health`, 200 or 503. Ollama has none, and responds to `/` (its FAQ). OpenAI,
Anthropic and compatible providers list their models under `/v1/models`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.resilience.units import Count, Ratio, Seconds, Unit, nullable

ProbeOutcome = Literal["ok", "answered", "failed", "unclear"]
"""ok        it serves, as far as this kind of probe can show
answered  it responds, but not to this probe: an unknown path, a refused key. The probe may be at fault, so it is no
          reason to prefer other deployments
failed    it does not respond, or reports that it is not well
unclear   the probe failed for a reason of the gateway's own
"""
ProbeState = Literal["unknown", "up", "down"]
"""unknown: there is no result yet."""
ProbeKind = Literal["health", "models", "completion"]

_WELL = frozenset({"ok", "pass", "up", "healthy", "ready", "running", "alive"})
"""Status words of health pages: `ok` (llama.cpp), `pass` and `up` (draft-inadarei-api-health-check-06, section 3.1)."""
_LATEST = ":latest"
"""The tag that Ollama adds to a name without one."""
_NAMED = 3


_PATH = {"type": "string", "pattern": "^/"}


def parse_path(value: object) -> str:
    """Checks a path from the root, without a fragment; raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(r"/[!-\"$-~]*", value):
        raise ValueError(f"not a path: {value!r:.60}; write one that begins with /, such as /health")
    return value


def _optional_path(value: object) -> str | None:
    return None if value is None else parse_path(value)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Probes of an upstream as a whole. Durations in seconds."""

    kind: Literal["health", "models"] = "health"
    """health: a page that says whether it is well. models: its list of models, with its own key."""
    path: Annotated[str | None, Unit(_optional_path, nullable(_PATH))] = None
    """Path of the health page, from the root of the host; None: `/` for Ollama, else `/health`."""
    interval: Seconds = 10.0
    """From the end of one probe to the next."""
    timeout: Seconds = 5.0
    """Limit of a whole probe."""
    max_failures: Count = 3
    """Failures in a row after which it is down."""
    jitter: Ratio = 0.1
    """Intervals vary by up to this share either way, so that gateways that began together do not probe together."""


@dataclass(frozen=True, slots=True)
class CompletionProbeSettings:
    """Probes of one deployment, each a call for one token, which its provider may bill. Durations in seconds."""

    interval: Seconds = 300.0
    """From the end of one probe to the start of the next."""
    timeout: Seconds = 30.0
    """Of a whole probe."""
    max_failures: Count = 2
    """Failed probes in a row until the deployment is down."""
    jitter: Ratio = 0.1
    """Share by which each interval is shorter or longer."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of one probe."""

    finding: ProbeOutcome
    why: str = ""
    """A phrase, if something is wrong."""


def evaluate_health(status: int, said: object) -> ProbeResult:
    """Evaluates a health page. `said`: the `status` in its JSON; None: there is none, and the HTTP status decides."""
    result = _by_status(status, "to the health page")
    if result.finding != "ok" or said is None:
        return result
    if said is True or said == status or (isinstance(said, str) and said.lower() in _WELL):
        return result
    return ProbeResult("failed", f"its health page reports {said!r:.60}")


def evaluate_models(status: int, listed: Collection[str] | None, wanted: Collection[str]) -> ProbeResult:
    """Evaluates a list of models. `listed`: their ids, None if it cannot be read; `wanted`: those that calls request.

    A model that is not listed does not make an upstream down: Azure lists base models instead of deployments, and
    aliases (Anthropic's `-latest`, OpenRouter's variants) are in no list. It is reported; and if none of them is
    listed, the list only shows that the upstream responds.
    """
    result = _by_status(status, "to the list of models")
    if result.finding != "ok" or not wanted:
        return result
    if listed is None:
        return ProbeResult("answered", "its list of models cannot be read")
    missing = [name for name in wanted if name not in listed and f"{name}{_LATEST}" not in listed]
    if not missing:
        return result
    names = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return ProbeResult("answered" if len(missing) == len(wanted) else "ok", f"it does not list {names}")


def evaluate_completion(status: int, is_completion: bool) -> ProbeResult:
    """Evaluates a call for one token. `is_completion`: the body is an object, and not an error."""
    result = _by_status(status, "to a call for one token")
    if result.finding == "ok" and not is_completion:
        return ProbeResult("failed", f"it answered {status}, but the body is not a completion")
    return result


def _by_status(status: int, to_what: str) -> ProbeResult:
    if 200 <= status < 300:
        return ProbeResult("ok")
    return ProbeResult("failed" if status >= 500 or status == 408 else "answered", f"it answered {status} {to_what}")


@dataclass(frozen=True, slots=True)
class ProbeHistorySnapshot:
    state: ProbeState
    failures: int
    """Failures in a row."""
    why: str


class ProbeHistory:
    """State of the probes of one upstream or one deployment."""

    __slots__ = ("_failures", "_state", "_why")

    def __init__(self) -> None:
        self._state: ProbeState = "unknown"
        self._failures = 0
        self._why = ""

    def note(self, result: ProbeResult, max_failures: int, *, have_calls_succeeded: bool) -> bool:
        """Takes a result; returns whether the state has changed in a way worth reporting: up as the first state is not.

        `have_calls_succeeded`: since the previous probe. Calls are better evidence than probes: if calls succeed, the
        probe is wrong.
        """
        before = self._state
        if result.finding == "unclear":
            self._why = result.why
        elif result.finding != "failed":
            self._state, self._failures, self._why = "up", 0, result.why
        elif have_calls_succeeded:
            self._state, self._failures, self._why = "up", 0, f"calls succeed, although {result.why}"
        else:
            self._failures += 1
            self._why = result.why
            if self._failures >= max_failures:
                self._state = "down"
        return before != self._state and (before, self._state) != ("unknown", "up")

    def snapshot(self, _now: float) -> ProbeHistorySnapshot:
        return ProbeHistorySnapshot(self._state, self._failures, self._why)


def may_end_opening(kind: ProbeKind, result: ProbeResult, failures_before: int) -> bool:
    """Returns whether a probe's result is enough to let a call through an open breaker early; the call then decides.

    A call for one token is. A health page may say `ok` throughout an outage that it does not detect: it counts only if
    the probes before it failed, because then it has seen both the outage and its end.
    """
    return result.finding == "ok" and (kind == "completion" or failures_before > 0)


def first_delay_s(interval_s: float, u: float) -> float:
    """Returns the seconds before the first probe, so that those of many upstreams spread; `u`, 0 <= u < 1, is drawn."""
    return interval_s * u


def delay_s(interval_s: float, jitter: float, u: float) -> float:
    """Returns the seconds from the end of a probe to the next; `u`, 0 <= u < 1, is drawn."""
    return interval_s * (1 + jitter * (2 * u - 1))
