"""Looks at an upstream beside its calls: what an answer to one means, when it counts as down, when the next is due.

Owns this judgement. Does not own the looking (`health.looks`, `health.prober`), nor what follows for calls
(`gateway.way`, `policy.breaker`).

What there is to ask, by the engines' own documentation and source: vLLM `GET /health`, 200 without a body, 503 once its
engine is dead (vllm/entrypoints/serve/instrumentator/health.py); SGLang `GET /health`, which makes one token where
nothing else runs, 503 while it starts or shuts down (sglang/srt/entrypoints/http_server.py); both refuse HEAD with 405,
as FastAPI does for a route of GET. llama.cpp `GET /health`: 503 while a model is loaded, then `{"status": "ok"}`
(tools/server/README.md). TGI `GET /health`, 200 or 503. Ollama has none, and answers `/` (its FAQ). OpenAI, Anthropic
and whoever is compatible list their models under `/v1/models`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.policy.units import Count, Ratio, Seconds, Unit

Finding = Literal["ok", "answered", "failed", "unclear"]
"""ok        it serves, as far as this kind of look can show
answered  it is there, but what was asked for is not to be had: a path that it does not know, a key that it refuses.
          That is the look's fault as likely as its own, and no reason to ask others instead
failed    it does not answer, or says itself that it is not well
unclear   the look came to nothing for a reason of ours
"""
ProbeState = Literal["unknown", "up", "down"]
"""unknown: nothing was found yet."""
ProbeKind = Literal["health", "models", "completion"]

_WELL = frozenset({"ok", "pass", "up", "healthy", "ready", "running", "alive"})
"""What health pages call it: `ok` (llama.cpp), `pass` and `up` (draft-inadarei-api-health-check-06, section 3.1)."""
_LATEST = ":latest"
"""The tag that Ollama adds to a name without one."""
_NAMED = 3


def parse_path(value: object) -> str:
    """A path from the root, without a fragment; raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(r"/[!-\"$-~]*", value):
        raise ValueError(f"not a path: {value!r:.60}; write one that begins with /, such as /health")
    return value


def _optional_path(value: object) -> str | None:
    return None if value is None else parse_path(value)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Looks at an upstream as a whole. Durations in seconds."""

    kind: Literal["health", "models"] = "health"
    """health: a page that says whether it is well. models: its list of models, with its own key."""
    path: Annotated[str | None, Unit(_optional_path)] = None
    """Of the health page, from the root of the host; None: `/` for Ollama, else `/health`."""
    interval: Seconds = 10.0
    """From the end of one look to the next."""
    timeout: Seconds = 5.0
    """Of a whole look."""
    max_failures: Count = 3
    """In a row: then it is down."""
    jitter: Ratio = 0.1
    """By up to this share of itself an interval is shorter or longer, so that gateways that began together part."""


@dataclass(frozen=True, slots=True)
class CompletionProbeSettings:
    """Looks at one deployment, each a call for one token, which its provider may bill. Durations in seconds."""

    interval: Seconds = 300.0
    timeout: Seconds = 30.0
    max_failures: Count = 2
    jitter: Ratio = 0.1


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look has found."""

    finding: Finding
    why: str = ""
    """A phrase, where it is not all well."""


def judge_health(status: int, said: object) -> Sight:
    """A health page. `said`: its JSON's `status`; None: it has none, and the HTTP status is all there is."""
    sight = _by_status(status, "to the health page")
    if sight.finding != "ok" or said is None:
        return sight
    if said is True or said == status or (isinstance(said, str) and said.lower() in _WELL):
        return sight
    return Sight("failed", f"its health page says {said!r:.60}")


def judge_models(status: int, listed: Collection[str] | None, wanted: Collection[str]) -> Sight:
    """A list of models. `listed`: their ids, None where it cannot be read; `wanted`: those that calls ask it for.

    A model that is not listed makes nobody down: Azure lists what its deployments are made of, not these, and aliases
    (Anthropic's `-latest`, OpenRouter's variants) are in no list. It is said; and where none is listed, the list shows
    no more than that somebody answers.
    """
    sight = _by_status(status, "to the list of models")
    if sight.finding != "ok" or not wanted:
        return sight
    if listed is None:
        return Sight("answered", "its list of models cannot be read")
    missing = [name for name in wanted if name not in listed and f"{name}{_LATEST}" not in listed]
    if not missing:
        return sight
    names = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return Sight("answered" if len(missing) == len(wanted) else "ok", f"it does not list {names}")


def judge_completion(status: int, is_completion: bool) -> Sight:
    """A call for one token. `is_completion`: the body is an object, and no error."""
    sight = _by_status(status, "to a call for one token")
    if sight.finding == "ok" and not is_completion:
        return Sight("failed", f"what it answered {status} with is no completion")
    return sight


def _by_status(status: int, to_what: str) -> Sight:
    if 200 <= status < 300:
        return Sight("ok")
    return Sight("failed" if status >= 500 or status == 408 else "answered", f"it answered {status} {to_what}")


@dataclass(frozen=True, slots=True)
class RecordSnapshot:
    state: ProbeState
    failures: int
    """In a row."""
    why: str


class Record:
    """What the looks at one upstream or one deployment have come to."""

    __slots__ = ("_failures", "_state", "_why")

    def __init__(self) -> None:
        self._state: ProbeState = "unknown"
        self._failures = 0
        self._why = ""

    def note(self, sight: Sight, max_failures: int, *, have_calls_succeeded: bool) -> bool:
        """Takes a look; whether it is another state now, and worth telling: that it is up was expected at first.

        `have_calls_succeeded`: since the look before. A call is better evidence than a look: where calls are answered,
        it is the look that is wrong.
        """
        before = self._state
        if sight.finding == "unclear":
            self._why = sight.why
        elif sight.finding != "failed":
            self._state, self._failures, self._why = "up", 0, sight.why
        elif have_calls_succeeded:
            self._state, self._failures, self._why = "up", 0, f"calls succeed, although {sight.why}"
        else:
            self._failures += 1
            self._why = sight.why
            if self._failures >= max_failures:
                self._state = "down"
        return before != self._state and (before, self._state) != ("unknown", "up")

    def snapshot(self, _now: float) -> RecordSnapshot:
        return RecordSnapshot(self._state, self._failures, self._why)


def may_end_opening(kind: ProbeKind, sight: Sight, failures_before: int) -> bool:
    """Whether a look is reason enough to let a call through an open breaker before its time; the call then decides.

    A call for one token is. A health page may say `ok` all through an outage that it knows nothing of: it counts where
    the looks before it had failed, for then it has seen both the outage and its end.
    """
    return sight.finding == "ok" and (kind == "completion" or failures_before > 0)


def first_delay_s(interval_s: float, u: float) -> float:
    """Before the first look, so that those at many upstreams spread; `u`, 0 <= u < 1, is drawn."""
    return interval_s * u


def delay_s(interval_s: float, jitter: float, u: float) -> float:
    """From the end of a look to the next; `u`, 0 <= u < 1, is drawn."""
    return interval_s * (1 + jitter * (2 * u - 1))
