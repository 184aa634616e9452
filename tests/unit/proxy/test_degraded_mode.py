from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from llm_guard.config import Config, parse_config
from llm_guard.outcome import Disposition
from llm_guard.proxy.call import Call
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.telemetry.recorder import ModelCounts
from llm_guard.routing.route_table import compile_routes
from tests.fakes.clock import ManualClock

RULES: dict[str, Any] = {"static_response": "later", "min_calls": 10, "recovery_window": "30s", "max_wait": "10s"}


def config(**rules: Any) -> Config:
    models = {name: {"deployments": [{"upstream": "a"}], "degraded": each} for name, each in rules.items()}
    upstreams = {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}}
    return parse_config(json.dumps({"upstreams": upstreams, "models": models}), "test.yaml", {})


class World:
    """Three models with fallback responses, and one without."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.counts: defaultdict[str, ModelCounts] = defaultdict(ModelCounts)
        self.config = config(one=RULES, two=RULES, three=RULES, plain=None)
        self.degraded = DegradedMode(self.counts, self.clock, self.hear)
        self.turns: list[tuple[str | None, bool]] = []
        self.reasons: list[str] = []
        self.degraded.adopt(self.config)

    def hear(self, alias: str | None, is_degraded: bool, why: str) -> None:
        self.turns.append((alias, is_degraded))
        self.reasons.append(why)

    def calls(self, alias: str, *, ok: int = 0, failed: int = 0, unasked: int = 0, cut_short: int = 0) -> None:
        """Counts calls as the recorder does."""
        counts = self.counts[alias]
        counts.begun += ok + failed + unasked + cut_short
        counts.judged += ok + failed + unasked + cut_short
        counts.calls["ok"] += ok + unasked
        counts.calls["timeout"] += failed + cut_short
        counts.unasked += unasked
        counts.cut_short += cut_short

    def look(self, after_s: float = 0.25) -> list[tuple[str | None, bool]]:
        """Returns the changes since the previous evaluation."""
        self.clock.advance(after_s)
        told = len(self.turns)
        self.degraded.look(self.clock.now())
        return self.turns[told:]

    def outage(self, *aliases: str) -> None:
        for alias in aliases:
            self.calls(alias, failed=10)
        self.look()

    def call(self, alias: str = "one", **more: Any) -> Call:
        route = compile_routes(self.config, 0.0).find(alias)
        return Call(
            "lg-1",
            "openai",
            "POST",
            more.pop("path", "/v1/chat/completions"),
            "",
            (),
            self.clock.now(),
            route=route,
            **more,
        )

    def patience_s(self, call: Call, *, has_stale: bool = False) -> float | None:
        """Returns the seconds that a call may wait for a real answer, or None if it is not shortened."""
        self.degraded.limit_wait(call, has_stale=has_stale)
        return None if call.disposition is None else call.disposition.degraded_deadline - self.clock.now()

    @property
    def in_effect(self) -> list[str]:
        return self.degraded.snapshot().degraded_routes()


# automatic


def test_route_whose_calls_fail_is_degraded_and_reported_once() -> None:
    world = World()
    world.calls("one", failed=10)
    assert world.look() == [("one", True)]
    assert world.look() == []
    assert world.in_effect == ["one"]
    assert world.reasons == ["10 of 10 calls within 60 s failed"]


@pytest.mark.parametrize("calls", [{"ok": 11, "failed": 10}, {"cut_short": 100}, {"unasked": 100}, {"failed": 9}])
def test_non_outage_changes_no_mode(calls: dict[str, int]) -> None:
    world = World()
    world.calls("one", **calls)
    assert world.look() == []


def test_responses_without_an_upstream_hide_no_outage() -> None:
    world = World()
    world.calls("one", unasked=1000, failed=10)
    assert world.look() == [("one", True)]


def test_route_without_the_rules_is_never_degraded() -> None:
    world = World()
    world.calls("plain", failed=1000)
    assert world.look() == []
    assert world.patience_s(world.call("plain"), has_stale=True) is None


# whole gateway


def test_half_of_the_routes_in_use_make_it_the_gateways() -> None:
    world = World()
    for alias in ("one", "two", "three"):
        world.calls(alias, ok=1)
    world.outage("one", "two")
    assert world.turns == [(None, True), ("one", True), ("two", True)]
    assert world.in_effect == ["one", "two", "three"]
    assert world.degraded.snapshot().why == "2 of 3 routes in use are degraded"
    world.clock.advance(30)
    world.calls("one", ok=5)
    assert world.look() == [(None, False), ("one", False)]
    assert world.in_effect == ["two"]
    assert world.degraded.snapshot().since is None


def test_unused_route_is_not_counted() -> None:
    world = World()
    world.degraded.adopt(config(one=RULES, two=RULES, three=RULES, four=RULES, five=RULES))
    world.outage("one", "two")
    assert world.degraded.snapshot().is_degraded


def test_one_routes_trouble_is_its_own() -> None:
    world = World()
    world.outage("one")
    assert not world.degraded.snapshot().is_degraded
    assert world.in_effect == ["one"]


# operator overrides


def test_override_outranks_the_rule_until_it_is_removed() -> None:
    world = World()
    world.outage("one")
    world.degraded.say("one", False, "it is a test")
    assert (world.turns[-1], world.reasons[-1], world.in_effect) == (("one", False), "it is a test", [])
    world.degraded.say("one", None, "over")
    assert (world.turns[-1], world.in_effect) == (("one", True), ["one"])


def test_override_of_the_gateway_applies_to_routes_without_their_own() -> None:
    world = World()
    world.degraded.say("two", False, "spared")
    world.degraded.say(None, True, "by hand")
    assert world.turns == [(None, True)]
    assert world.in_effect == ["one", "three"]
    world.degraded.say(None, None, "over")
    assert world.in_effect == []


def test_override_off_of_the_gateway_leaves_routes_to_their_rules() -> None:
    world = World()
    world.degraded.say(None, False, "spared")
    world.outage("one", "two")
    assert not world.degraded.snapshot().is_degraded
    assert world.in_effect == ["one", "two"]


# calls


def test_call_of_a_degraded_route_waits_less() -> None:
    world = World()
    assert world.patience_s(world.call()) is None
    world.outage("one")
    assert world.patience_s(world.call()) == 10.0
    assert world.patience_s(world.call("two")) is None


@pytest.mark.parametrize(
    "more", [{"path": "/v1/embeddings"}, {"is_upgrade": True}, {"method": "GET"}], ids=lambda more: next(iter(more))
)
def test_call_without_a_fallback_response_has_its_full_deadline(more: dict[str, Any]) -> None:
    world = World()
    world.outage("one")
    call = world.call(**{key: value for key, value in more.items() if key != "method"})
    call.method = more.get("method", "POST")
    assert world.patience_s(call) is None
    assert world.patience_s(call, has_stale=True) == 10.0


def test_client_deadline_is_not_extended() -> None:
    world = World()
    world.outage("one")
    call = world.call(client_deadline=world.clock.now() + 3)
    assert world.patience_s(call) is None
    assert call.client_deadline == world.clock.now() + 3


def test_other_facts_of_a_disposition_stay() -> None:
    world = World()
    world.outage("one")
    call = world.call(disposition=Disposition(cache="miss"))
    world.patience_s(call)
    assert call.disposition is not None
    assert call.disposition.cache == "miss"
    assert call.client_deadline == call.disposition.degraded_deadline == world.clock.now() + 10


def test_one_in_many_waits_as_ever_where_the_rule_has_to_find_out() -> None:
    world = World()
    world.outage("one")
    assert [world.patience_s(world.call()) for _ in range(12)] == [10.0] * 10 + [None] + [10.0]


def test_override_gives_all_calls_the_degraded_deadline() -> None:
    world = World()
    world.degraded.say("one", True, "by hand")
    assert {world.patience_s(world.call()) for _ in range(30)} == {10.0}
    world.outage("one")
    assert {world.patience_s(world.call()) for _ in range(30)} == {10.0}


# reload


def test_reload_preserves_the_mode_and_applies_new_rules() -> None:
    world = World()
    world.outage("one")
    world.degraded.adopt(config(one={**RULES, "max_wait": "2s"}, two=RULES))
    assert world.in_effect == ["one"]
    assert world.patience_s(world.call()) == 2.0
    assert world.turns == [("one", True)]


def test_route_that_loses_the_rules_is_no_longer_degraded() -> None:
    world = World()
    world.outage("one")
    world.degraded.say("two", True, "by hand")
    world.degraded.adopt(config(three=RULES))
    assert set(world.turns[-2:]) == {("one", False), ("two", False)}
    assert world.in_effect == []
    assert world.patience_s(world.call()) is None
    world.degraded.adopt(world.config)
    assert world.in_effect == []


def test_calls_before_a_route_had_the_rules_do_not_count() -> None:
    world = World()
    world.calls("plain", failed=1000)
    world.degraded.adopt(config(plain=RULES))
    assert world.look() == []
    world.calls("plain", failed=10)
    assert world.look() == [("plain", True)]
