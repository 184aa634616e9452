"""Copies the fields of a request body to its call, as far as they have a meaning for the path, and tells its size."""

from __future__ import annotations

from llm_guard.proxy.call import Call
from llm_guard.proxy.request_body.fields import BodyFields
from llm_guard.proxy.request_body.model_field import check_single_model, model_in_query
from llm_guard.resilience.retry.idempotency import Repeatable


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
