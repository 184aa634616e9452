from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.resilience.caching.cacheability import (
    ANSWERS,
    SAME_FOR_ALL,
    forbids_keeping,
    is_filtered,
    may_be_asked_of_cache,
)
from llm_guard.resilience.retry.limits import Repeatable


@pytest.mark.parametrize(
    "path", ["/v1/files", "/v1/images/generations", "/v1/audio/speech", "/v1/responses/r/cancel", ""]
)
def test_other_paths_are_not_answered_from_before(path: str) -> None:
    assert not may_be_asked_of_cache(path, {}, "all")


def test_cacheable_requests_are_repeatable() -> None:
    assert all(Repeatable({}).allows("POST", path, is_stateful=False) for path in ANSWERS)
    assert ANSWERS.keys() >= SAME_FOR_ALL


@pytest.mark.parametrize("fields", [{"store": True}, {"background": True}, {"container": "c"}, {"container": {}}])
def test_request_with_side_effects_is_not_cacheable(fields: dict[str, Any]) -> None:
    assert not may_be_asked_of_cache("/v1/responses", fields, "all")


@pytest.mark.parametrize("fields", [{}, {"store": False}, {"store": None, "background": False}])
def test_request_without_side_effects_is_cacheable(fields: dict[str, Any]) -> None:
    assert may_be_asked_of_cache("/v1/responses", fields, "all")


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", {}, False),
        ("/v1/chat/completions", {"temperature": 0}, True),
        ("/v1/chat/completions", {"temperature": 0.0}, True),
        ("/v1/chat/completions", {"temperature": False}, False),
        ("/v1/chat/completions", {"temperature": "0"}, False),
        ("/v1/chat/completions", {"temperature": 0.1}, False),
        ("/v1/chat/completions", {"seed": 0}, True),
        ("/v1/chat/completions", {"seed": True}, False),
        ("/v1/chat/completions", {"seed": None}, False),
        ("/v1/embeddings", {}, True),
        ("/v1/messages/count_tokens", {}, True),
    ],
)
def test_deterministic_request_always_has_the_same_response(path: str, fields: dict[str, Any], expected: bool) -> None:
    assert may_be_asked_of_cache(path, fields, "deterministic") == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish_reason": "content_filter"}, True),
        ({"stop_reason": "refusal"}, True),
        ({"incomplete_details": {"reason": "content_filter"}}, True),
        ({"stop_reason": "pause_turn"}, True),
        ({"finish_reason": "stop"}, False),
        ({"finish_reason": "length"}, False),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, False),
        ({"content": '"finish_reason": "content_filter"'}, False),
        ({"content": "\\"}, False),
    ],
)
def test_filtered_is_decided_by_the_provider_and_not_by_the_text_of_the_model(
    fields: dict[str, Any], expected: bool
) -> None:
    for separators in ((",", ":"), (", ", ": "), (" ,\n", " :\n")):
        assert is_filtered(json.dumps(fields, separators=separators).encode()) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [("no-store", True), ("private, No-Store", True), ("", False), ("no-cache", False), ("x-no-store", False)],
)
def test_provider_may_forbid_storing_its_response(said: str, expected: bool) -> None:
    assert forbids_keeping(said) == expected
