"""Which client a call comes from: its client key, the share and the priority that it has, and the account it names.

Owns these checks of a request's headers. Does not own the keys (`config.models.ClientKey`), nor what a provider is sent
in their place (`gateway.headers`).
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.call import Call
from llm_guard.config.models import ClientKey
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.serving import digest
from llm_guard.outcome import Refusal
from llm_guard.policy.caller import PRIORITIES, priority

_UNKNOWN = Refusal(401, "invalid_api_key", "this gateway does not know the API key that was sent", by="auth")
_INVALID_PRIORITY = Refusal(
    400, "invalid_priority", f"x-llm-guard-priority must be one of {', '.join(PRIORITIES)}", by="request"
)


def authenticate(call: Call, names: Mapping[str, str], client_keys: Mapping[bytes, ClientKey]) -> Refusal | None:
    """Notes on the call which client it comes from; returns a refusal if it may not enter. `names` are its headers by
    lower-case name. Without client keys any caller may enter, and none of them may ask for `high`."""
    requested = priority(names.get("x-llm-guard-priority") or None)
    if requested is None:
        return _INVALID_PRIORITY
    if account := header_rules.account(call.headers):
        call.account_digest = digest("\n".join(account)).hex()
    keys = header_rules.caller_keys(call.headers)
    if not client_keys:
        call.key_digest = digest("\n".join(keys)).hex()
        call.priority = max(requested, PRIORITIES["normal"])
        return None
    if len(keys) > 1 and header_rules.has_rival_keys(call.headers):
        return _UNKNOWN
    for key in keys:
        known = client_keys.get(digest(key))
        if known is not None:
            call.client_key = known.name
            call.priority = max(requested, PRIORITIES[known.priority])
            call.weight = known.weight
            return None
    return _UNKNOWN
