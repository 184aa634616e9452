from __future__ import annotations

import pytest

from llm_guard.admin.api.parameters import check_known, labels_of, left_alone
from llm_guard.admin.http.endpoint import Refused
from llm_guard.routing.route_table import compile_routes
from tests.unit.admin.overrides.override_world import config

A, B = {"upstream": "a"}, {"upstream": "b"}
BOTH = config(
    gpt=[{**A, "model": "gpt-x"}, B], small={"deployments": [B], "fallbacks": ["gpt"]}, **{"m-*": [A], "lone": [B]}
)


def test_labels_are_those_of_the_deployments_that_are_made() -> None:
    table = compile_routes(BOTH, 0.0)
    table.find("m-1")
    made = {deployment.label: deployment.upstream.name for deployment in table.deployments()}
    assert labels_of(BOTH) == made


def test_pattern_without_requests_has_its_label() -> None:
    assert labels_of(BOTH)["a/m-*"] == "a"


def test_typing_error_is_answered_with_a_suggestion() -> None:
    with pytest.raises(Refused) as refused:
        check_known("a/gtp-x", labels_of(BOTH).keys(), "deployment")
    assert (refused.value.status, refused.value.code) == (404, "unknown_deployment")
    assert "a/gpt-x" in refused.value.message
    check_known("a/gpt-x", labels_of(BOTH).keys(), "deployment")


@pytest.mark.parametrize(
    ("closed", "alone"),
    [
        (set(), []),
        ({"a/gpt-x"}, []),
        ({"b/lone"}, ["lone"]),
        ({"a/gpt-x", "b/gpt"}, ["gpt"]),
        ({"b/small"}, []),
        ({"a/gpt-x", "b/gpt", "b/small"}, ["gpt", "small"]),
        ({"a/m-*", "a"}, ["m-*", "/upstreams/a"]),
    ],
)
def test_model_is_left_alone_when_its_fallbacks_are_closed_too(closed: set[str], alone: list[str]) -> None:
    assert left_alone(BOTH, closed) == alone
