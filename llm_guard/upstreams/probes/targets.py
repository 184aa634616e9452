"""The upstreams and single deployments that the config wants probed, and the result of a probe as other modules see it.

The probes are in `upstreams.probes.probe`, their settings in `resilience.health.probe_policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from llm_guard.config import Config, is_pattern
from llm_guard.resilience.health.probe_policy import (
    CompletionProbeSettings,
    ProbeKind,
    ProbeOutcome,
    ProbeSettings,
    ProbeState,
)
from llm_guard.routing.deployment import Upstream, upstream_of

__all__ = ["ProbeKind", "ProbeListener", "ProbeOutcome", "ProbeState", "ProbeView"]


ProbeKey = tuple[str, str | None]
"""The upstream's name and the model of a single deployment; None: the upstream as a whole."""


_WORDS = {
    "health": "probed at {path}",
    "models": "probed by its list of models",
    "completion": "probed with a one-token call",
}


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """One probed upstream or deployment. Two are equal if the probes of one also hold for the other."""

    upstream: Upstream
    settings: ProbeSettings | CompletionProbeSettings
    model: str | None = None
    """Model name as sent to the upstream; None: the upstream as a whole."""
    label: str | None = field(default=None, compare=False)
    """Label of the deployment."""
    wanted: tuple[str, ...] = ()
    """The models that calls request from the upstream, as far as the config names them."""

    @property
    def key(self) -> ProbeKey:
        return self.upstream.name, self.model

    @property
    def kind(self) -> ProbeKind:
        return "completion" if isinstance(self.settings, CompletionProbeSettings) else self.settings.kind


def subjects_of(config: Config, upstreams: Mapping[str, Upstream]) -> dict[ProbeKey, ProbeTarget]:
    """Returns all subjects of a config, upstreams first, in its order. Models that name the same deployment share its
    probes."""
    wanted = _wanted(config)
    whole = (
        ProbeTarget(
            upstreams[name], upstream.probe, wanted=tuple(wanted[name]) if upstream.probe.kind == "models" else ()
        )
        for name, upstream in config.upstreams.items()
        if upstream.probe is not None
    )
    return {subject.key: subject for subject in (*whole, *_deployments(config, upstreams))}


def probe_descriptions(config: Config) -> Iterator[str]:
    """Yields one line for each subject: what is probed, and how long detection of an outage takes at most."""
    # For display only: reads no key file.
    keyless = {name: upstream.model_copy(update={"api_key_file": None}) for name, upstream in config.upstreams.items()}
    upstreams = {name: upstream_of(name, upstream) for name, upstream in keyless.items()}
    for subject in subjects_of(config, upstreams).values():
        rules = subject.settings
        what = _WORDS[subject.kind].format(path=health_path(subject))
        longest_s = rules.max_failures * (rules.interval * (1 + rules.jitter) + rules.timeout)
        yield (
            f"{subject.label or subject.upstream.name}: {what} every {rules.interval:g}s; "
            f"down after {rules.max_failures} failures, detected within {longest_s:g}s"
        )


def health_path(subject: ProbeTarget) -> str:
    """Path of the upstream's health page, from the root of its host."""
    path = subject.settings.path if isinstance(subject.settings, ProbeSettings) else None
    return path or ("/" if subject.upstream.family == "ollama" else "/health")


def _wanted(config: Config) -> dict[str, dict[str, None]]:
    wanted: dict[str, dict[str, None]] = {name: {} for name in config.upstreams}
    for name, model in config.models.items():
        for deployment in model.deployments:
            if deployment.model is not None or not is_pattern(name):
                wanted[deployment.upstream][deployment.model or name] = None
    return wanted


def _deployments(config: Config, upstreams: Mapping[str, Upstream]) -> Iterator[ProbeTarget]:
    for name, model in config.models.items():
        for deployment in model.deployments:
            if deployment.probe is not None:
                sent = deployment.model or name
                yield ProbeTarget(
                    upstreams[deployment.upstream], deployment.probe, sent, f"{deployment.upstream}/{sent}"
                )


@dataclass(frozen=True, slots=True)
class ProbeView:
    """Probe state of one upstream or one deployment."""

    upstream: str
    state: ProbeState
    why: str = ""
    """Problem that the last probe found; empty: none."""
    failures: int = 0
    """Failed probes in a row."""
    last_ok_wall: float | None = None
    """Time of the last `ok` probe, in seconds since the epoch."""
    looked_wall: float | None = None
    took_s: float | None = None
    """Duration in seconds of the last probe that was answered."""
    kind: ProbeKind = "health"
    last: ProbeOutcome | None = None
    """Result of the last probe; None: none yet. Both `ok` and `answered` mean that the upstream is reachable."""
    deployment: str | None = None
    """Label of the probed deployment; None: the upstream as a whole."""
    down_since_wall: float | None = None
    """When it went down; None: it is not down."""


ProbeListener = Callable[[ProbeView], None]
"""Called synchronously after each probe of an upstream as a whole; must neither block nor raise."""
