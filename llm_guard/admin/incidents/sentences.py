"""Sentences of an incident: its title, and the gateway's own response to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llm_guard.admin.schemas.incidents import IncidentAlert
from llm_guard.admin.schemas.restrictions import ProviderErrorView, Restriction, RestrictionKind
from llm_guard.resilience.causes.cause import CauseKind, IncidentCause

_NAMED = 3
"""Names that a sentence lists."""

_TITLES: dict[CauseKind, str] = {
    "outage": "{subject} fails",
    "credential": "{subject} refuses its credential",
    "quota": "{subject}: the quota of the account is spent",
    "rate_limit": "{subject} limits the rate of calls",
    "configuration": "{subject} does not know the path or the model: check base_url and model",
    "capacity": "{subject} is at its concurrency limit",
}
_DOING: dict[RestrictionKind, str] = {
    "breaker": "sends no calls to {places} but single trial calls, and closes the breaker when one succeeds",
    "host_breaker": "sends no calls to {places} but single trial calls, and closes the breaker when one connects",
    "caller_breaker": "refuses the calls of one client at {places}; all others pass",
    "forced_breaker": "sends no calls to {places} until the override ends",
    "cooldown": "sends no calls to {places} until the cooldown ends, then one first",
    "credential_cooldown": "sends no calls with the refused credential; every few seconds one checks it",
    "pace": "delays calls to {places} to keep within the rate limit",
    "provider_pause": "holds calls to {places} back for the wait that the provider named",
    "throttle": "delays calls to {places}, because fewer fail at a lower rate",
    "slow_start": "lets calls return to {places} gradually",
    "concurrency": "queues calls to {places}",
    "hold": "sends no new calls to {places}",
    "degraded_mode": "sends fallback responses early",
    "deadline": "ends calls at their deadline",
    "probe_down": "tries {places} after all other deployments",
    "engine_down": "tries {places} after all other deployments",
    "injected_fault": "injects a fault into a share of the attempts, on an operator's request",
}


def title_of(
    cause: IncidentCause,
    first: Restriction | None,
    errors: Sequence[ProviderErrorView],
    alerts: Sequence[IncidentAlert],
) -> str:
    """Returns the cause in a sentence, with the last error of the provider. Its words are left out."""
    title = _TITLES.get(cause.kind)
    if title is None:
        return first.cause if first is not None else alerts[0].summary
    said = f" ({words_of(errors[0])})" if errors else f" ({first.rule})" if first is not None and first.rule else ""
    return title.format(subject=cause.subject) + said


def words_of(error: ProviderErrorView) -> str:
    """Returns an error in a few words: kind, status and code."""
    status = f"status {error.status}" if error.status is not None else "no response"
    return ", ".join(filter(None, (error.kind.replace("_", " "), status, error.code)))


def doing_of(restrictions: Iterable[Restriction], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns what the gateway does, one sentence for each kind of restriction, and where the calls go instead.
    `others`: the deployments that are left, by model."""
    places: dict[RestrictionKind, list[str]] = {}
    for restriction in restrictions:
        if restriction.kind in _DOING:
            place = restriction.deployment or restriction.upstream or "the gateway"
            places.setdefault(restriction.kind, []).append(place)
    found = list(dict.fromkeys(f"It {_DOING[kind].format(places=_listed(names))}." for kind, names in places.items()))
    if places:
        left = {model: labels for model, labels in others.items() if labels}
        alone = [model for model in others if model not in left]
        if left:
            targets = dict.fromkeys(label for labels in left.values() for label in labels)
            found.append(f"Calls of {_listed(left)} go to {_listed(targets)}.")
        if alone:
            found.append(f"No other deployment is left for {_listed(alone)}: calls wait or are refused.")
    return found or ["No calls are refused or delayed because of it now."]


def _listed(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more
