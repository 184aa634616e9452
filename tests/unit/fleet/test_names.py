from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b

from llm_guard.config import parse_config
from llm_guard.fleet.names import FleetNames
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import compile_routes
from tests.fakes.fleet_names import NAMES


def test_digest_is_the_same_at_all_gateways_with_the_token_and_cannot_be_guessed_without_it() -> None:
    here, there, stranger = FleetNames("t"), FleetNames("t"), FleetNames("u")
    assert here.of("team") == there.of("team") != there.of("other")
    assert here.of("team") != stranger.of("team")
    assert here.of("team") != blake2b(b"team", digest_size=8).hexdigest()
    assert here.own == there.own != stranger.own


def test_subject_is_the_upstream_with_its_address_and_the_model() -> None:
    bases = ("https://a.example/v1", "https://b.example/v1")
    subjects = {NAMES.subject(deployment) for base in bases for deployment in deployments(base)}
    assert len(subjects) == 4


def deployments(base: str) -> Iterable[Deployment]:
    upstreams = {"one": {"dialect": "openai", "base_url": base}}
    models = {name: {"deployments": [{"upstream": "one"}]} for name in ("x", "y")}
    config = parse_config(json.dumps({"upstreams": upstreams, "models": models}), "test.yaml", {})
    return [one for one in compile_routes(config, 0.0).deployments() if one.model]
