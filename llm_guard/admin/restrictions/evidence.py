"""Adds to a restriction what it is based on, which models it concerns, and what an operator can do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.restrictions.remedies import remedy_of
from llm_guard.admin.schemas.restrictions import ProviderErrorView, Restriction, RestrictionKind
from llm_guard.config import Config
from llm_guard.outcome import Category
from llm_guard.resilience.causes.provider_errors import ProviderError, latest_of
from llm_guard.routing.deployment import Deployment

_CURRENT_S = 600.0
"""Errors older than this do not explain a state that has no beginning of its own."""

_LASTING: frozenset[RestrictionKind] = frozenset({"breaker", "host_breaker", "cooldown", "credential_cooldown"})
"""Restrictions that the last errors have set, however long ago."""
OF_BREAKERS: frozenset[RestrictionKind] = frozenset({"breaker", "host_breaker", "caller_breaker", "forced_breaker"})
"""The kinds that a breaker sets."""
_LIMITS: frozenset[RestrictionKind] = frozenset({"pace", "provider_pause"})
_RECENT: frozenset[RestrictionKind] = frozenset({"throttle", "slow_start", "caller_breaker", "deadline", "probe_down"})
_OF_LIMITS: frozenset[Category] = frozenset({"rate_limit", "quota_exhausted", "overloaded"})


class RestrictionEvidence:
    """The evidence of the present moment, for any number of restrictions."""

    def __init__(
        self,
        models: Mapping[str, Sequence[str]],
        deployments: Iterable[Deployment],
        moment: Moment,
        *,
        shows_messages: bool,
    ) -> None:
        """`models`: keys of the config's `models` by deployment label. `shows_messages`: the reader is an operator."""
        self._models = models
        self._moment = moment
        self._shows_messages = shows_messages
        self._by_label: dict[str, list[Deployment]] = {}
        self._by_upstream: dict[str, list[Deployment]] = {}
        for deployment in deployments:
            self._by_label.setdefault(deployment.label, []).append(deployment)
            self._by_upstream.setdefault(deployment.upstream.name, []).append(deployment)

    def added_to(self, restriction: Restriction) -> Restriction:
        """Returns the restriction with models, errors and remedy."""
        concerned = self._concerned(restriction)
        labels = dict.fromkeys(deployment.label for deployment in concerned)
        models = dict.fromkeys(model for label in labels for model in self._models.get(label, ()))
        if not models and restriction.model is not None:
            models = {restriction.model: None}
        errors = [
            view_of(error, self._moment, shows_message=self._shows_messages)
            for error in self._errors(restriction.kind, concerned)
        ]
        return msgspec.structs.replace(
            restriction, models=[*models], errors=errors, remedy=remedy_of(restriction.kind, errors)
        )

    def _concerned(self, restriction: Restriction) -> list[Deployment]:
        if restriction.deployment is not None:
            found = self._by_label.get(restriction.deployment, [])
            return [one for one in found if restriction.model is None or one.model == restriction.model]
        if restriction.upstream is not None:
            return self._by_upstream.get(restriction.upstream, [])
        labels = (label for label, models in self._models.items() if restriction.model in models)
        return [deployment for label in labels for deployment in self._by_label.get(label, ())]

    def _errors(self, kind: RestrictionKind, concerned: Iterable[Deployment]) -> list[ProviderError]:
        if kind not in _LASTING | _LIMITS | _RECENT:
            return []
        concerned = list(concerned)
        errors = latest_of(deployment.errors for deployment in concerned)
        if not errors:
            errors = latest_of(deployment.upstream_errors for deployment in concerned)
        if kind in _LIMITS:
            return [error for error in errors if error.kind.category in _OF_LIMITS]
        if kind in _RECENT:
            return [error for error in errors if self._moment.now - error.at < _CURRENT_S]
        return errors


def by_label(
    groups: Mapping[str, Sequence[Deployment]], restrictions: Iterable[Restriction]
) -> dict[str, list[Restriction]]:
    """Returns the restrictions of each label of `groups`, with those of its upstream."""
    found: dict[str, list[Restriction]] = {label: [] for label in groups}
    of_upstream: dict[str, list[str]] = {}
    for label, group in groups.items():
        of_upstream.setdefault(group[0].upstream.name, []).append(label)
    for restriction in restrictions:
        if restriction.deployment is not None:
            labels = [restriction.deployment]
        else:
            labels = of_upstream.get(restriction.upstream or "", [])
        for label in labels:
            if label in found:
                found[label].append(restriction)
    return found


def view_of(error: ProviderError, moment: Moment, *, shows_message: bool) -> ProviderErrorView:
    """Returns the error as an operator sees it, or as anyone else does."""
    return ProviderErrorView(
        moment.iso(error.at) or "",
        error.call_id,
        error.kind.label,
        error.kind.category,
        error.status,
        error.code or None,
        error.request_id or None,
        (error.message or None) if shows_message else None,
    )


def models_by_label(config: Config) -> dict[str, list[str]]:
    """Returns the keys of `models` that have a deployment with this label."""
    found: dict[str, list[str]] = {}
    for key, model in config.models.items():
        for deployment in model.deployments:
            found.setdefault(f"{deployment.upstream}/{deployment.model or key}", []).append(key)
    return found
