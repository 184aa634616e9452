"""What to do about each kind of failure of a request to an upstream."""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.outcome import Category

_REMEDIES: Mapping[Category, str] = {
    "auth": "check the key, and `auth`: the header in which it is sent",
    "permission": "the account may not do this: ask the provider, or use another key",
    "quota_exhausted": "the account has no credit or quota left: add some, or use another key",
    "rate_limit": "the limit is reached now: try again, set `capacity`, or add a deployment",
    "overloaded": "the provider is overloaded now: try again; a fallback would take the calls",
    "server_error": "the provider has trouble, or this is no API of this dialect: check base_url",
    "timeout": "it did not respond in time: try again, or raise --timeout",
    "network": "check base_url, and the network from here",
    "model_loading": "the model is loading: try again in some minutes",
    "gpu_oom": "the server's GPU has no memory left: restart it, or load a smaller model",
    "model_not_found": "check the model's name, and whether this key has access to it",
    "not_found": "check base_url: it has /v1 for openai, and none for anthropic",
    "context_length": "the model cannot take even one word: check which model it is",
    "content_policy": "the provider refuses even a greeting: ask it",
    "invalid_request": "the provider refuses the smallest call: check dialect and base_url",
}
OTHER_REMEDY = "see the provider's message"


def remedy_of(category: Category) -> str:
    """Returns what to do about failures of this category."""
    return _REMEDIES.get(category, OTHER_REMEDY)
