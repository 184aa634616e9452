"""Restrictions by cooldowns: of a deployment, after a wait that its provider named, or of a credential.

Describes each of them; `admin.restrictions.restrictions` selects the deployments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from llm_guard.admin.api.caller_names import for_callers, of_callers_keys, of_key
from llm_guard.admin.restrictions.deployments import RESET, Moment, model_of, reset
from llm_guard.admin.schemas.restrictions import Lift, Restriction
from llm_guard.resilience.circuit_breaker.cooldown import Cooldown, CooldownKey
from llm_guard.routing.deployment import Deployment

_EVERY_MODEL = "Ends it for all models of the credential, on all its deployments."


def of_cooldowns(
    cooldowns: Mapping[CooldownKey, Cooldown], deployments: Iterable[Deployment], moment: Moment
) -> Iterator[Restriction]:
    """Yields cooldowns of credentials and of models, one for each of an upstream's own keys, and one for all callers'
    keys together."""
    groups: dict[tuple[str, str | None, str | None], list[Cooldown]] = {}
    concerned = concerned_by(cooldowns, deployments)
    labels: dict[tuple[str, str | None], dict[str, Deployment]] = {}
    for key, found in concerned.items():
        upstream, model = found[0].upstream.name, None if key[0] == "credential" else key[-1]
        groups.setdefault((upstream, model, _own_name(key, found[0])), []).append(cooldowns[key])
        labels[upstream, model] = {deployment.label: deployment for deployment in found}
    for (upstream, model, own), group in groups.items():
        if model is None:
            yield _cooling_credential(upstream, group, own, moment)
        else:
            for deployment in labels[upstream, model].values():
                yield _cooling(deployment, group, own, moment)


def credentials_in_cooldown(keys: Iterable[CooldownKey]) -> set[CooldownKey]:
    """Returns upstream, base URL, digest and account of each credential that was refused or has no quota left, for all
    models or for some."""
    return {_credential_of(key) for key in keys if key[0] in ("credential", "quota")}


def concerned_by(keys: Iterable[CooldownKey], deployments: Iterable[Deployment]) -> dict[CooldownKey, list[Deployment]]:
    """Returns each cooldown with the deployments that it may affect, without those of keys that a reload has replaced.

    A key ends with upstream, base URL, digest of the credential and account, and with a model unless all are meant.
    """
    by_upstream: dict[tuple[str, str], list[Deployment]] = {}
    by_model: dict[tuple[str, str, str], list[Deployment]] = {}
    for deployment in deployments:
        name, base_url = deployment.upstream.name, deployment.upstream.base_url
        by_upstream.setdefault((name, base_url), []).append(deployment)
        by_model.setdefault((name, base_url, deployment.model or ""), []).append(deployment)
    found = {}
    for key in keys:
        upstream, base_url, key_digest, _ = _credential_of(key)
        place = (upstream, base_url)
        group = by_upstream.get(place) if key[0] == "credential" else by_model.get((*place, key[-1]))
        if group and group[0].upstream.may_use(key_digest):
            found[key] = group
    return found


def _own_name(key: CooldownKey, deployment: Deployment) -> str | None:
    """Returns the name of the upstream's own key in a cooldown's key, "" where there is only one; None for a caller's
    key or account."""
    return deployment.upstream.own_credentials().get(("credential", *_credential_of(key)))


def _credential_of(key: CooldownKey) -> CooldownKey:
    return key[-4:] if key[0] == "credential" else key[-5:-1]


def _cooling(deployment: Deployment, cooldowns: Sequence[Cooldown], own: str | None, moment: Moment) -> Restriction:
    last = max(cooldowns, key=lambda cooldown: cooldown.until)
    return Restriction(
        "cooldown",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"{of_key(own)}{_provider_said(last)}{of_callers_keys(len(cooldowns), own)}",
        moment.iso(min(cooldown.began_at for cooldown in cooldowns)),
        moment.iso(last.until),
        "Calls are sent again at that time.",
        0,
        own is None,
        reset(deployment, "cooldown", "Ends the cooldown: the next call is sent."),
        None,
        rule=last.failure.detail,
        refused=sum(cooldown.stopped for cooldown in cooldowns),
    )


def _cooling_credential(upstream: str, cooldowns: Sequence[Cooldown], own: str | None, moment: Moment) -> Restriction:
    last = max(cooldowns, key=lambda cooldown: cooldown.until)
    whose = f"the credential of {upstream} is in cooldown: " if own is not None else ""
    return Restriction(
        "credential_cooldown",
        None,
        None,
        upstream,
        f"{whose}{of_key(own)}{_provider_said(last)}{of_callers_keys(len(cooldowns), own)}",
        moment.iso(min(cooldown.began_at for cooldown in cooldowns)),
        moment.iso(last.until),
        "Calls are sent again at that time.",
        0,
        own is None,
        Lift("POST", RESET, {"upstream": upstream, "kinds": ["credential_cooldown"]}, _EVERY_MODEL),
        None,
        rule=last.failure.detail,
        refused=sum(cooldown.stopped for cooldown in cooldowns),
    )


def _provider_said(cooldown: Cooldown) -> str:
    failure = cooldown.failure
    wait = "" if failure.retry_after_s is None else f", with a Retry-After of {failure.retry_after_s:.0f} s"
    kind = failure.kind.category.replace("_", " ")
    return f"its provider responded {kind}{wait}{for_callers(cooldown.callers)}: {failure.detail}"
