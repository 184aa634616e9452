"""What an operator can do about each kind of restriction, and about each category of a provider's errors."""

from __future__ import annotations

from collections.abc import Sequence

from llm_guard.admin.schemas.restrictions import ProviderErrorView, RestrictionKind
from llm_guard.outcome import Category
from llm_guard.resilience.causes.cause import main_category

REMEDIES: dict[RestrictionKind, str] = {
    "breaker": "Check the provider's status page; a trial call closes the breaker when the provider works again.",
    "host_breaker": "Check base_url, DNS, the network and the provider's status page: no connection succeeds.",
    "caller_breaker": "Ask this client to check its key and its requests: those of all other clients succeed.",
    "forced_breaker": "Remove the override, or breaker.state in the config, once its reason no longer applies.",
    "cooldown": "Wait for the end that the provider named, or raise the limit at the provider and reset the cooldown.",
    "credential_cooldown": "Correct the upstream's api_key or its account at the provider, then reload.",
    "pace": "Raise the rate limit at the provider, or add a key or a deployment: calls wait for the limit.",
    "provider_pause": "Wait for the end that the provider named, or add a key or a deployment.",
    "throttle": "Check whether the provider is overloaded: fewer calls are sent because they fail less then.",
    "slow_start": "Wait: the deployment has recovered, and calls return gradually.",
    "concurrency": "Raise capacity.concurrency if the provider allows more calls at once, or add a deployment.",
    "hold": "Put the deployment back into service once the maintenance is over.",
    "degraded_mode": "Find the cause of the failures; clients get fallback responses until calls succeed again.",
    "deadline": "Raise timeout.total of the model, or the client's own timeout, if responses need longer.",
    "deferred_queue": "Raise store.deferred.max_pending, or find out why deferred calls are not executed.",
    "drain": "Send calls to another gateway: this one is shutting down.",
    "client_limit": "Raise the limits of the client key, or reset its usage.",
    "spool": "Free disk space under TMPDIR, or raise server.max_spool.",
    "connections": "Raise server.max_connections and the limit on open files, or add a gateway.",
    "tls_handshakes": "Check the clients' certificates and the gateway's: the log has the reason at level debug.",
    "probe_down": "Check that the upstream runs and that its probe's path is right.",
    "engine_down": "Read the engine's output in GET /admin/engines, correct the cause and start it again.",
    "injected_fault": "End the fault if this is no longer a drill; the provider has nothing to do with it.",
}
"""Each begins with the thing to do."""

OF_CATEGORY: dict[Category, str] = {
    "auth": "Renew the upstream's api_key (the provider refuses the one in the config), then reload.",
    "permission": "Check the permissions and the status of the account at the provider.",
    "quota_exhausted": "Raise the quota or add credit at the provider, then reset the cooldown.",
    "rate_limit": "Raise the rate limit at the provider, or add a key or a deployment.",
    "overloaded": "Wait until the provider has capacity, or add a deployment elsewhere.",
    "timeout": "Check whether the provider is slow, and whether the timeouts leave it enough time.",
    "network": "Check base_url, DNS, the network and the provider's status page: connections fail.",
    "model_not_found": "Correct the deployment's model: the provider has none of this name.",
    "not_found": "Correct the upstream's base_url: the server has no such path.",
    "invalid_request": "Correct the upstream's base_url: the server does not take such requests.",
    "model_loading": "Wait until the model is loaded.",
    "gpu_oom": "Lower the load or the context length of the server: it is out of GPU memory.",
}
"""For the errors that are behind most restrictions; the others have only the remedy of their restriction."""

_BY_ERROR: frozenset[RestrictionKind] = frozenset({
    "breaker", "cooldown", "credential_cooldown", "host_breaker", "throttle",
})  # fmt: skip


def remedy_of(kind: RestrictionKind, errors: Sequence[ProviderErrorView]) -> str:
    """Returns what to do, by the most frequent category of the errors if they say more than the kind."""
    if kind in _BY_ERROR and errors:
        category = main_category([error.category for error in errors])
        return OF_CATEGORY.get(category, REMEDIES[kind])
    return REMEDIES[kind]
