"""The caller of a call: identified by its client key, which may limit what it calls, and as others see it: a
deployment's breaker, a provider's quotas, and the wait queue.

`resilience.client_keys.scope` decides what a key allows, `resilience.circuit_breaker.callers` which callers are judged
separately, `resilience.capacity.wait_queue` the order of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_plus

from llm_guard.config import Config
from llm_guard.outcome import Refusal
from llm_guard.proxy.call import Call
from llm_guard.proxy.headers import digest
from llm_guard.proxy.http_server.request import RequestFields
from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.callers import Suspect
from llm_guard.resilience.client_keys.scope import KeyScope, ModelLocation, model_in_path
from llm_guard.resilience.routing.client_hints import PRIORITIES, priority
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import RouteTable

_TWICE = Refusal(400, "invalid_model", "the query must contain `model` exactly once", by="request", param="model")
_INVALID_PRIORITY = Refusal(
    400, "invalid_priority", f"x-llm-guard-priority must be one of {', '.join(PRIORITIES)}", by="request"
)
_UNKNOWN = Refusal(401, "invalid_api_key", "invalid API key: this gateway does not know it", by="auth")


@dataclass(frozen=True, slots=True)
class _KnownKey:
    """The rights of calls with a client key."""

    name: str
    priority: int
    weight: float
    scope: KeyScope


class Clients:
    """The client keys (`server.client_keys`) of one config."""

    def __init__(self, config: Config) -> None:
        keys = config.server.client_keys
        self._scopes = {key.name: KeyScope(key.allow.models, key.allow.paths) for key in keys}
        self._known = {
            digest(key.key): _KnownKey(key.name, PRIORITIES[key.priority], key.weight, self._scopes[key.name])
            for key in keys
        }
        self._isolates_objects = config.server.isolate_objects

    def admit(self, call: Call, fields: RequestFields) -> Refusal | None:
        """Sets the call's client key and priority. Refuses an unknown key, and a path that the key does not allow.

        Without client keys all callers are admitted, but none with priority `high`.
        """
        said = fields.names.get("x-llm-guard-priority")
        requested = priority(said) if said else PRIORITIES["normal"]
        if requested is None:
            return _INVALID_PRIORITY
        caller = fields.caller
        call.account_digest = caller.account_digest
        if not self._known:
            call.key_digest = caller.key_digest
            call.priority = max(requested, PRIORITIES["normal"])
            return None
        if caller.are_rival:
            return _UNKNOWN
        for key in caller.keys:
            known = self._known.get(key)
            if known is not None:
                call.client_key, call.weight = known.name, known.weight
                call.priority = requested if requested > known.priority else known.priority  # noqa: FURB136  # half the price
                return self._set_scope(call, known.scope)
        return _UNKNOWN

    def check_path(self, call: Call) -> Refusal | None:
        """Sets the scope of a call with a known client key, and refuses a path that the scope does not allow."""
        scope = self._scopes.get(call.client_key or "")
        return None if scope is None else self._set_scope(call, scope)

    def _set_scope(self, call: Call, scope: KeyScope) -> Refusal | None:
        call.scope = scope
        call.is_screened = self._isolates_objects or call.upstream_name is not None
        is_allowed = (call.method, call.path) in scope.endpoints or scope.allows_path(call.method, call.path)
        if is_allowed and not (call.query and "_method" in _names_in(call.query)):
            return None
        return _denied(f"this API key may not call {call.method} {call.path}; an operator can allow the path")


def check_model(call: Call, table: RouteTable) -> Refusal | None:
    """Refuses a model that the call's key does not allow. Called before a route is looked up, so that a name that only
    matches a pattern is remembered for allowed calls alone."""
    scope = call.scope
    if scope is None:
        return None
    if call.is_model_in_query and _names_in(call.query).count("model") > 1:
        return _TWICE
    model = call.model
    if call.upstream_name is None and model is not None and (scope.models is None or model in scope.models):
        return None  # its route decides
    model = model or model_in_path(call.path)
    if model is None:
        if scope.needs_model(call.method, call.path, is_upstream_named=call.upstream_name is not None):
            return _denied("this API key may only use certain models: set `model`", "model")
        return None
    if may_use(call, table, model):
        return None
    where = f" at the upstream {call.upstream_name}" if call.upstream_name is not None else ""
    return _denied(f"this API key may not use the model {model!r}{where}; an operator can allow it", "model")


def may_use(call: Call, table: RouteTable, model: str) -> bool:
    """Returns whether the call's key may use a model, and see it in a list."""
    scope, is_upstream_named = call.scope, call.upstream_name is not None
    if scope is None:
        return True
    if scope.models is None or is_upstream_named:
        return scope.allows_model(model, _sent_to(table, model, call.upstream_name))
    return scope.allows_model(model, None)


def _sent_to(table: RouteTable, model: str, upstream: str | None) -> ModelLocation:
    """Returns where the config sends a model under this very name; `upstream` None: any upstream counts."""
    route = table.preview(model)
    if route is None:
        return "nowhere"
    if upstream is None:
        return "here"
    is_here = any(target.deployment.upstream.name == upstream and target.model == model for target in route.targets)
    return "here" if is_here else "elsewhere"


def _names_in(query: str) -> list[str]:
    """Returns the parameter names of a query as any server may read them: in any case, with list brackets, or after
    semicolons."""
    pairs = query.replace(";", "&").split("&") if query else []
    return [unquote_plus(pair.partition("=")[0]).partition("[")[0].lower() for pair in pairs]


def _denied(message: str, param: str | None = None) -> Refusal:
    return Refusal(403, "permission_denied", message, by="scope", param=param)


def caller_of(call: Call, deployment: Deployment, now: float) -> str:
    """Returns the caller as breakers see it: the name of the client key, or the digest of the caller's own key if this
    provider has accepted it lately. All other callers are one."""
    if call.client_key is not None:
        return call.client_key
    is_known = not deployment.upstream.has_own_key and deployment.callers.is_accepted(call.key_digest, now)
    return f"key {call.key_digest[:12]}" if is_known else ""


def source_of(call: Call, deployment: Deployment) -> str:
    """Returns the caller that a rate limit or quota of the provider concerns: the name of the client key, or the digest
    of the caller's own key, which has a quota of its own. All other callers are one."""
    if call.client_key is not None:
        return call.client_key
    return "" if deployment.upstream.has_own_key else call.key_digest


def share_of(call: Call) -> Caller:
    """Returns the caller that takes turns in the wait queue: the client key, or without client keys the key that was
    sent."""
    return Caller(call.client_key or call.key_digest, call.weight)


def suspect_of(call: Call, deployment: Deployment, now: float) -> Suspect | None:
    """Returns the separate breaker and retry budget of the call's caller, if it has them."""
    callers = deployment.callers
    return callers.suspect(caller_of(call, deployment, now)) if callers.has_failures else None


def breaker_of(call: Call, deployment: Deployment, now: float) -> Breaker:
    """Returns the breaker that decides about a call."""
    return deployment.judge_of(suspect_of(call, deployment, now))
