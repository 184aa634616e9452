"""The calls allowed to a key do not depend on the spelling of the path, and more allowed models never allow fewer
calls."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm_guard.resilience.client_keys.scope import (
    ALL,
    INFERENCE,
    MODEL_CALLS,
    KeyScope,
    ModelLocation,
    is_inference,
    matches,
    model_in_path,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
KNOWN = sorted({path for _, path in MODEL_CALLS} | {"/v1/models", "/v1/files", "/v1/organization/users"})
paths = st.sampled_from(KNOWN) | st.text("/v1.%2eF;ab", max_size=12).map(lambda rest: f"/v1/{rest}")
methods = st.sampled_from(METHODS)
names = st.text("ab*", min_size=1, max_size=3)
sent = st.sampled_from(["here", "elsewhere", "nowhere"])


@given(methods, paths)
@example("GET", "/v1/files")
@example("HEAD", "/v1/chat/completions")
@example("GET", "/v1/models/..;/files")
@example("GET", "/v1/models/..%2ffiles")
@example("GET", "/v1/models/x%252e%252e%252ffiles")
@example("GET", "/v1/models//files")
@example("GET", "/v1/models/%2e%2e/files")
def test_default_is_the_inference_endpoints_and_nothing_else(method: str, path: str) -> None:
    is_listed = (method, path) in MODEL_CALLS or (method in ("GET", "HEAD") and path == "/v1/models")
    is_model = method in ("GET", "HEAD") and path.startswith("/v1/models/") and not has_ways_out(path)
    assert KeyScope().allows_path(method, path) == (is_listed or is_model)


def has_ways_out(path: str) -> bool:
    name = unquote(path.removeprefix("/v1/models/"))
    return any(each in ("", ".", "..") for each in name.split("/")) or any(mark in name for mark in "%;\\")


@given(methods, paths, st.sampled_from(["%41", "%2f", "%2e", ";x", "\\"]), st.data())
def test_escaped_path_reaches_nothing_that_was_not_allowed(
    method: str, path: str, odd: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(4, len(path)))
    odd_path = path[:at] + odd + path[at:]
    if model_in_path(odd_path) is None:
        assert not KeyScope(paths=(INFERENCE, ALL)).allows_path(method, odd_path)


@given(methods, paths, st.lists(paths | paths.map(lambda path: f"{path}*"), max_size=3).map(tuple))
def test_path_is_allowed_by_an_exact_entry_or_a_prefix_before_a_star(
    method: str, path: str, allowed: tuple[str, ...]
) -> None:
    is_plain = not any(mark in path for mark in "%;\\")
    by_hand = any(path == each or (each[-1] == "*" and path.startswith(each[:-1])) for each in allowed)
    found = KeyScope(paths=allowed).allows_path(method, path)
    assert found == by_hand if is_plain else not found or model_in_path(path) is not None


@pytest.mark.parametrize("path", ["/v1/llm-guard/calls/1", "/v1/llm-guard/calls/1/answer"])
def test_own_deferred_calls_are_always_open(path: str) -> None:
    assert KeyScope(paths=()).allows_path("GET", path)


@given(names, st.none() | sent, st.none() | st.lists(names, max_size=3).map(tuple))
def test_more_models_never_allow_less(name: str, place: ModelLocation | None, models: tuple[str, ...] | None) -> None:
    if models is not None and KeyScope(models).allows_model(name, place):
        assert KeyScope((*models, "a")).allows_model(name, place)
        assert ALL in models or matches(models, name)
    assert KeyScope((ALL,)).allows_model(name, place)


@given(names)
def test_upstream_path_allows_only_configured_targets(name: str) -> None:
    assert KeyScope().allows_model(name, "here")
    assert not KeyScope().allows_model(name, "elsewhere")
    assert not KeyScope().allows_model(name, "nowhere")
    assert KeyScope((name[:1] + "*",)).allows_model(name, "nowhere") or name[:1] == "*"
    if name != ALL:
        assert not KeyScope((name,)).allows_model(name, "elsewhere")


@given(st.sampled_from(sorted(MODEL_CALLS)), st.booleans())
def test_call_without_a_model_needs_a_key_for_all_models(call: tuple[str, str], is_named: bool) -> None:
    assert not KeyScope((ALL,)).needs_model(*call, is_upstream_named=is_named)
    assert KeyScope(("a",)).needs_model(*call, is_upstream_named=is_named)
    assert KeyScope().needs_model(*call, is_upstream_named=is_named) == (is_named or call[1] != "/v1/moderations")


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/models/gpt", "gpt"), ("/v1/models/meta%2Fllama", "meta/llama"), ("/v1/models/meta/llama", "meta/llama"),
     ("/v1/models/", None), ("/v1/models", None), ("/v1/models/a/../b", None), ("/v1/models/a%0a", None)],
)  # fmt: skip
def test_model_in_a_path_is_read_as_a_provider_does(path: str, model: str | None) -> None:
    assert model_in_path(path) == model


def test_inference_is_of_both_dialects() -> None:
    for path in ("chat/completions", "responses", "embeddings", "messages", "messages/count_tokens"):
        assert is_inference("POST", f"/v1/{path}")
        assert not is_inference("GET", f"/v1/{path}")
    assert not is_inference("DELETE", "/v1/models/gpt")
