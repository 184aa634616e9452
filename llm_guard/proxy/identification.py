"""Identifies a call: copies what its body asks for, and finds its route by its model, by the upstream that its path
names, or by its dialect.

Owns the refusals of calls without a route. The routes are in `routing.route_table`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Refusal
from llm_guard.proxy.call import Call
from llm_guard.proxy.caller_identity import check_model
from llm_guard.proxy.http_server.error_responses import unknown_model, unserved, wrong_dialect
from llm_guard.proxy.model_catalog import is_for_catalog, upstream_of_model
from llm_guard.proxy.request_body.fields import BodyFields
from llm_guard.proxy.request_body.model_field import check_single_model, model_in_query
from llm_guard.resilience.client_keys.scope import MODEL_CALLS
from llm_guard.resilience.retry.limits import Repeatable
from llm_guard.resilience.routing.candidates import deadline_at
from llm_guard.routing.route_table import Route, RouteTable

if TYPE_CHECKING:
    from llm_guard.proxy.translation.call import TranslatedCall


def note_asked(call: Call, asked: BodyFields, repeatable: Repeatable) -> None:
    """Copies the fields. Raises BadRequest if a call names several models and its key may use certain ones only."""
    if call.scope is not None and not call.scope.allows_all_models:
        check_single_model(call, asked)
    call.model, call.is_stream, call.may_stream = asked.model, asked.is_stream, asked.may_stream
    call.choices = asked.choices * asked.prompts if call.path == "/v1/completions" else asked.choices
    call.inputs = asked.inputs
    if asked.inflated_bytes:
        call.inflated_bytes = asked.inflated_bytes
    call.response_format, call.max_tokens = asked.response_format, asked.max_tokens
    is_responses = call.path.startswith("/v1/responses")  # elsewhere these fields mean other things
    call.is_sticky = is_responses and asked.is_sticky
    is_stateful = is_responses and asked.is_stateful
    call.is_repeatable = repeatable.allows(call.method, call.path, is_stateful=is_stateful)
    if call.path.startswith("/v1/realtime"):  # elsewhere `?model=` is a filter on a list
        model = model_in_query(call.query)
        call.model, call.is_model_in_query = model or call.model, model is not None


def plain_bytes(call: Call) -> int:
    """Returns the size of a call's body, inflated if it is compressed; 0 if it is unknown, as it still arrives."""
    body = call.body
    return call.inflated_bytes or (len(body) if isinstance(body, bytes) else body.size or 0)


_OURS = "/v1/llm-guard/"
"""Prefix of the gateway's own paths, which no provider has."""
MODEL_PATHS = frozenset(path for method, path in MODEL_CALLS if method == "POST")
"""Paths of calls that request one model."""


def plain_path(path: str) -> str:
    """Returns the path of a model call as its dialect writes it; any other path unchanged. Servers accept a
    trailing slash and escaped letters, which must not lead around the checks of the endpoint's responses."""
    plain = unquote(path).rstrip("/")
    return plain if plain in MODEL_PATHS else path


def identify(call: Call, table: RouteTable, now: float) -> Refusal | None:
    """Sets the call's route and deadline, or returns why it has no route. The gateway's own paths need none."""
    name = call.upstream_name
    if not call.path.startswith("/v1/"):
        return Refusal(
            404,
            "unknown_path",
            "this is llm_guard, a proxy for LLM calls: its API is below /v1/, or /upstreams/NAME/v1/",
            by="route",
        )
    if (refusal := check_model(call, table)) is not None:
        return refusal
    if name is not None:
        call.route = table.upstream_route(name)
        if call.route is None:
            return Refusal(404, "unknown_upstream", f"no upstream is named {name!r}", by="route")
    elif call.model is not None:
        call.route = table.find(call.model)
        if call.route is None:
            return unknown_model(table, call.model)
    elif call.method == "POST" and call.path in DIALECTS[call.dialect].NEEDS_MODEL:
        return Refusal(400, "missing_model", "`model` is missing", by="request", param="model")
    elif call.path.startswith(_OURS):
        return None
    else:
        call.route = table.passthrough(call.dialect)
        if call.route is None:
            return Refusal(404, "no_upstream", f"no upstream speaks the {call.dialect} dialect", by="route")
        if is_for_catalog(call):
            known_by = upstream_of_model(call, table)
            call.route = table.upstream_route(known_by) if known_by is not None else None
            if call.route is None:
                return None
    call.deadline_at = deadline_at(now, call.route.timeouts.total, None)
    return None if call.route.dialect == call.dialect else translate_or_refuse(call, call.route, table)


def translate_or_refuse(call: Call, route: Route, table: RouteTable) -> Refusal | None:
    """Prepares a call for its translation, if its route has deployments that do not take it as it is. Returns a refusal
    if no deployment can serve it whatever it requests."""
    if all(target.deployment.upstream.serves(call.dialect, call.path) for target in route.targets):
        return None
    translation = _translator()(call, route.translate, table.pool.translation_memory)
    reasons = [translation.obstacle(target) for target in route.targets]
    if all(reasons) and not translation.has_estimate:
        upstreams = [target.deployment.upstream for target in route.targets]
        if all(upstream.dialect == call.dialect for upstream in upstreams):
            return unserved(call, dict(zip([upstream.name for upstream in upstreams], reasons, strict=True)))
        return wrong_dialect(call, route, reasons[0] if route.translate is not None else None)
    call.translation = translation
    return None


@cache
def _translator() -> type[TranslatedCall]:
    """Imports the translation with the first call that needs it: few configs mix dialects."""
    from llm_guard.proxy.translation.call import TranslatedCall  # noqa: PLC0415  # see above

    return TranslatedCall
