from __future__ import annotations

from typing import get_args

import pytest

from llm_guard.outcome import Category, FailureKind, Scope, Signal, Source

FLAGS_OF_CATEGORY = {
    "rate_limit": (True, False, True), "quota_exhausted": (False, False, True), "overloaded": (True, True, True),
    "server_error": (True, True, True), "timeout": (True, True, True), "network": (True, True, True),
    "gpu_oom": (True, True, True), "model_loading": (True, False, True), "auth": (False, False, True),
    "permission": (False, False, True), "model_not_found": (False, False, True), "not_found": (False, False, False),
    "context_length": (False, False, False), "content_policy": (False, False, False),
    "invalid_request": (False, False, False), "payload_too_large": (False, False, False),
    "client_cancelled": (False, False, False), "conflict": (True, False, False),
}  # fmt: skip
"""Retry, breaker, fallback: the defaults of a category, for kinds without a reason to differ."""


@pytest.mark.parametrize("kind", FailureKind)
def test_label_is_the_name(kind: FailureKind) -> None:
    assert kind.label == kind.name.lower()


@pytest.mark.parametrize("category", get_args(Category))
def test_category_has_a_kind_of_its_name_with_the_usual_flags(category: str) -> None:
    kind = FailureKind[category.upper()]
    flags = (kind.is_retriable, kind.signal is Signal.UNHEALTHY, kind.can_fall_back)
    assert kind.category == category
    assert flags == FLAGS_OF_CATEGORY[category]


@pytest.mark.parametrize("kind", FailureKind)
def test_only_failures_of_an_upstream_count_against_it(kind: FailureKind) -> None:
    assert kind.signal is not Signal.HEALTHY
    if kind.signal is Signal.UNHEALTHY:
        assert kind.source is Source.UPSTREAM
        assert kind.scope in (Scope.DEPLOYMENT, Scope.HOST)
        assert kind.can_fall_back


@pytest.mark.parametrize("kind", FailureKind)
def test_failures_of_more_than_the_call_can_be_cured_elsewhere(kind: FailureKind) -> None:
    if kind.scope is not Scope.CALL:
        assert kind.can_fall_back


def test_failures_that_a_caller_can_provoke_do_not_concern_the_credential() -> None:
    """Otherwise one call that uses a forbidden feature would put the key into cooldown for all callers."""
    concerned = {kind for kind in FailureKind if kind.scope is Scope.CREDENTIAL}
    assert concerned == {FailureKind.AUTH, FailureKind.QUOTA_EXHAUSTED, FailureKind.ACCOUNT_BLOCKED}
