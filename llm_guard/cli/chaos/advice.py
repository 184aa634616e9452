"""Which key of the config would help against what clients saw in a scene."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.cli.chaos.scenes import ChaosResult
from llm_guard.config import ModelConfig

_SLOW_S, _LONG_S = 1.0, 5.0


def advice_on(result: ChaosResult, model: ModelConfig) -> Iterator[str]:
    """Yields a line for each key that would help."""
    key, is_bad = f"models.{result.model}", result.grade != "good"
    has_others = any(one.upstream != result.upstream for one in model.deployments)
    if not has_others and not model.fallbacks:
        if is_bad:
            yield f"{key}.deployments or .fallbacks: nothing else can serve this model"
        return
    if result.trouble == "cuts every stream" and is_bad and model.stream.recover in ("auto", "off"):
        yield f"{key}.stream.recover: continue (now {model.stream.recover}) resumes broken streams elsewhere"
    if result.trouble == "is silent" and (is_bad or result.p99_s > _LONG_S):
        yield f"{key}.timeout.attempt: {_now(model.timeout.attempt)} is how long a silent attempt is waited for"
    if result.trouble == "takes 3 s longer" and result.p99_s > _SLOW_S and model.hedge is None and has_others:
        yield f"{key}.hedge: {{after: p95}} asks another deployment when one is slow"
    if result.trouble == "takes half of the rate" and is_bad:
        yield f"{key}.capacity: calls wait for the limit; more deployments would take them at once"


def _now(seconds: float | None) -> str:
    return "none, so ten minutes" if seconds is None else f"{seconds:g}s"
