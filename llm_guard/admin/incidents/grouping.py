"""Groups restrictions and alerts into incidents. Pure: everything is passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_guard.admin.incidents.sentences import doing_of, title_of
from llm_guard.admin.restrictions.remedies import OF_CATEGORY, REMEDIES
from llm_guard.admin.schemas.incidents import Incident, IncidentAlert
from llm_guard.admin.schemas.restrictions import Lift, ProviderErrorView, Restriction, RestrictionKind
from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.causes.cause import CauseKind, IncidentCause, kind_of, main_category
from llm_guard.resilience.causes.provider_errors import KEPT

_OUTAGES: frozenset[RestrictionKind] = frozenset({
    "breaker", "host_breaker", "throttle", "slow_start", "probe_down", "engine_down",
})  # fmt: skip
_RATES: frozenset[RestrictionKind] = frozenset({"pace", "provider_pause"})
_OF_MODELS: frozenset[RestrictionKind] = frozenset({"deadline", "degraded_mode"})
"""Symptoms: they join the incident of an upstream that serves the model, if there is one."""
_FIRST: tuple[RestrictionKind, ...] = ("engine_down", "host_breaker", "credential_cooldown", "cooldown", "breaker")
"""Restrictions that say most about a cause, the best first."""
_GRAVE: frozenset[CauseKind] = frozenset({"outage", "credential", "quota", "configuration", "override"})
"""Causes that are critical once no deployment of a model is left."""
_NO_REMEDY = "Open a failed call in GET /admin/calls: its attempts name the deployment and the reason."


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Calls of one model in the last minute, and the deployments that may serve them."""

    calls: int = 0
    hit: int = 0
    """Calls that failed or were refused, not because of the client."""
    labels: tuple[str, ...] = ()
    """Deployments of the model and of its fallbacks."""


@dataclass(frozen=True, slots=True)
class Present:
    """The present moment: everything that incidents are made of."""

    restrictions: Sequence[Restriction]
    alerts: Sequence[tuple[IncidentAlert, IncidentCause]]
    models: Mapping[str, ModelTraffic]
    """Traffic by key of `models`."""
    upstreams: Mapping[str, str]
    """Upstream by deployment label."""
    errors: Mapping[str, Sequence[ProviderErrorView]]
    """Last errors by upstream, the newest first."""
    misconfigured: frozenset[str] = frozenset()
    """Upstreams that do not know the path of any call; no restriction or alert follows from that."""
    refusing: frozenset[str | None] = field(init=False)
    """Labels of the deployments that refuse or delay calls."""

    def __post_init__(self) -> None:
        found = (one.deployment for one in self.restrictions if one.kind not in ("probe_down", "slow_start"))
        object.__setattr__(self, "refusing", frozenset(found))


@dataclass(slots=True)
class _Group:
    cause: IncidentCause
    restrictions: list[Restriction] = field(default_factory=list)
    alerts: list[IncidentAlert] = field(default_factory=list)


def cause_of(restriction: Restriction) -> IncidentCause:
    """Returns the cause of one restriction."""
    kind, upstream = restriction.kind, restriction.upstream or restriction.deployment or ""
    categories = [error.category for error in restriction.errors]
    if kind in ("hold", "forced_breaker", "injected_fault"):
        return IncidentCause("override", restriction.deployment or upstream or restriction.model or "")
    if kind in ("caller_breaker", "client_limit") or restriction.is_caller_specific:
        return IncidentCause("client", restriction.deployment or upstream or restriction.rule)
    if kind in _OUTAGES:
        return IncidentCause("outage", upstream)
    if kind in _RATES:
        return IncidentCause("rate_limit", upstream)
    if kind in ("cooldown", "credential_cooldown"):
        return IncidentCause(
            kind_of(categories, "credential" if kind == "credential_cooldown" else "rate_limit"), upstream
        )
    if kind == "concurrency":
        return IncidentCause("capacity", restriction.deployment or upstream)
    if kind in _OF_MODELS and restriction.model is not None:
        return IncidentCause("model", restriction.model)
    return IncidentCause("gateway", kind)


def incidents(present: Present) -> list[Incident]:
    """Returns one entry for each cause: the most severe first, then the oldest."""
    groups: dict[IncidentCause, _Group] = {}
    for restriction in present.restrictions:
        cause = cause_of(restriction)
        groups.setdefault(cause, _Group(cause)).restrictions.append(restriction)
    for alert, cause in present.alerts:
        groups.setdefault(cause, _Group(cause)).alerts.append(alert)
    for upstream in present.misconfigured:
        cause = IncidentCause("configuration", upstream)
        groups.setdefault(cause, _Group(cause))
    _join_symptoms(groups, present)
    found = [_incident(group, present) for group in groups.values()]
    return sorted(found, key=lambda incident: (rank(incident.severity), incident.since or "9", incident.id))


def _join_symptoms(groups: dict[IncidentCause, _Group], present: Present) -> None:
    """Moves what is known of a model only to the incident that restricts one of its deployments."""
    for cause, group in list(groups.items()):
        if cause.kind != "model":
            continue
        labels = present.models.get(cause.subject, ModelTraffic()).labels
        upstreams = {present.upstreams[label] for label in labels if label in present.upstreams}
        for other in groups.values():
            if other.cause.kind not in ("model", "gateway", "client") and (
                other.cause.subject in upstreams or other.cause.subject in labels
            ):
                other.restrictions += group.restrictions
                other.alerts += group.alerts
                del groups[cause]
                break


def _incident(group: _Group, present: Present) -> Incident:
    cause, restrictions = group.cause, sorted(group.restrictions, key=_place)
    upstreams = {one.upstream or present.upstreams.get(one.deployment or "") for one in restrictions} - {None}
    if not restrictions and cause.subject in present.errors:
        upstreams = {cause.subject}
    upstream = upstreams.pop() if len(upstreams) == 1 else None
    labels = _labels(restrictions, upstream, present)
    models, restricted = _models(group, labels, present), frozenset(labels)
    errors = _errors(restrictions, cause, upstream, present)
    whole = [present.models.get(model, ModelTraffic()) for model in models]
    calls = sum(traffic.calls for traffic in whole)
    first = restrictions[0] if restrictions else None
    return Incident(
        cause.key,
        cause.kind,
        _severity(group, restricted, whole),
        title_of(cause, first, errors, group.alerts),
        first.rule if first is not None else "",
        upstream,
        labels,
        models,
        round(sum(traffic.hit for traffic in whole) / calls, 4) if calls else None,
        sum(one.refused for one in restrictions if one.kind not in _OF_MODELS),
        _since(group, errors),
        _earliest(one.until for one in restrictions),
        doing_of(restrictions, {model: _others(model, restricted, present) for model in models}),
        _remedy(cause.kind, first, errors),
        _actions(restrictions),
        errors,
        group.alerts,
        restrictions,
    )


def _since(group: _Group, errors: Sequence[ProviderErrorView]) -> str | None:
    if not group.restrictions and not group.alerts:
        return _earliest(error.at for error in errors)
    return _earliest([*(one.since for one in group.restrictions), *(alert.since for alert in group.alerts)])


def _earliest(instants: Iterable[str | None]) -> str | None:
    return min((instant for instant in instants if instant is not None), default=None)


def _place(restriction: Restriction) -> int:
    return _FIRST.index(restriction.kind) if restriction.kind in _FIRST else len(_FIRST)


def _labels(
    restrictions: Sequence[Restriction], upstream: str | None, present: Present
) -> list[str]:  # fmt: skip
    labels = dict.fromkeys(one.deployment for one in restrictions if one.deployment is not None)
    is_whole = any(one.deployment is None and one.upstream is not None for one in restrictions)
    if upstream is not None and (is_whole or not restrictions):
        labels |= dict.fromkeys(
            label for label, name in present.upstreams.items() if name == upstream and label != upstream
        )
    return list(labels)


def _models(group: _Group, labels: Iterable[str], present: Present) -> list[str]:
    models = dict.fromkeys(model for one in group.restrictions for model in one.models)
    models |= {alert.subject: None for alert in group.alerts if alert.subject in present.models}
    if not models and not group.restrictions:
        restricted = set(labels)
        models = {name: None for name, traffic in present.models.items() if restricted & set(traffic.labels)}
    return list(models)


def _others(model: str, restricted: frozenset[str], present: Present) -> list[str]:
    """Returns the deployments of the model and its fallbacks that nothing refuses."""
    traffic = present.models.get(model, ModelTraffic())
    return [label for label in traffic.labels if label not in restricted and label not in present.refusing]


def _errors(
    restrictions: Sequence[Restriction], cause: IncidentCause, upstream: str | None, present: Present
) -> list[ProviderErrorView]:
    found = {(error.call, error.at): error for one in restrictions for error in one.errors}
    if not restrictions and upstream is not None:
        found = {(error.call, error.at): error for error in present.errors.get(upstream, ())}
    of_kind = [error for error in found.values() if kind_of([error.category]) == cause.kind]
    left = of_kind if of_kind or not restrictions else found.values()
    return sorted(left, key=lambda error: error.at, reverse=True)[:KEPT]


def _severity(group: _Group, restricted: frozenset[str], whole: Sequence[ModelTraffic]) -> Severity:
    is_last = any(traffic.labels and restricted.issuperset(traffic.labels) for traffic in whole)
    is_more_than_alerts = bool(group.restrictions) or not group.alerts
    is_grave = is_last and is_more_than_alerts and group.cause.kind in _GRAVE
    own: Severity = "critical" if is_grave else "info" if group.alerts else "warning"
    return min((own, *(alert.severity for alert in group.alerts)), key=rank)


def _remedy(kind: CauseKind, first: Restriction | None, errors: Sequence[ProviderErrorView]) -> str:
    if first is not None:
        return first.remedy or REMEDIES[first.kind]
    if errors and kind != "model":
        return OF_CATEGORY.get(main_category([error.category for error in errors]), _NO_REMEDY)
    return _NO_REMEDY


def _actions(restrictions: Iterable[Restriction]) -> list[Lift]:
    """Returns each request once."""
    actions: list[Lift] = []
    for restriction in restrictions:
        if restriction.lift is not None and restriction.lift not in actions:
            actions.append(restriction.lift)
    return actions
