from __future__ import annotations

import pytest

from llm_guard.config import Config, parse_config
from llm_guard.outcome import Signal
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import Route, RouteTable, compile_routes

UPSTREAMS = """\
upstreams:
  openai: {dialect: openai, base_url: "https://api.openai.com/v1", api_key: k1}
  spare: {dialect: openai, base_url: "http://127.0.0.1:8000/v1"}
  anthropic: {dialect: anthropic, base_url: "https://api.anthropic.com"}
"""


def table(models: str, previous: RouteTable | None = None, upstreams: str = UPSTREAMS) -> RouteTable:
    """Returns the route table of `models`, which has one entry per line."""
    lines = "".join(f"  {line.strip()}\n" for line in models.strip().split("\n"))
    built = compile_routes(parse_config(f"{upstreams}models:\n{lines}", env={}), 100.0, previous)
    built.take_over()
    return built


def route(routes: RouteTable, model: str) -> Route:
    found = routes.find(model)
    assert found is not None
    return found


def deployment(routes: RouteTable, model: str) -> Deployment:
    return route(routes, model).targets[0].deployment


def way(routes: RouteTable, model: str) -> list[tuple[str, str, str | None]]:
    return [(target.deployment.label, target.alias, target.model) for target in route(routes, model).targets]


def open_breaker(of: Deployment) -> None:
    """Fails the deployment's breaker until it opens."""
    while (permit := of.breaker.try_acquire(100.0)) is not None:
        of.breaker.settle(permit, Signal.UNHEALTHY, 100.0)
    assert is_open(of)


def is_open(of: Deployment) -> bool:
    return of.breaker.snapshot(100.0).state == "open"


# lookup


def test_exact_name_wins_over_patterns_and_the_longest_pattern_over_shorter_ones() -> None:
    routes = table("""
        "*": {deployments: [{upstream: spare}]}
        "gpt-*": {deployments: [{upstream: openai}]}
        "*-mini": {deployments: [{upstream: spare}]}
        gpt-4: {deployments: [{upstream: spare}]}
    """)
    names = ("gpt-4", "gpt-5", "gpt-5-mini", "o-mini", "other")
    assert [route(routes, name).alias for name in names] == ["gpt-4", "gpt-*", "*-mini", "*-mini", "*"]


def test_of_equally_long_patterns_the_first_wins() -> None:
    routes = table("""
        "a*": {deployments: [{upstream: openai}]}
        "*a": {deployments: [{upstream: spare}]}
    """)
    assert route(routes, "aba").alias == "a*"


def test_unknown_name_is_not_found() -> None:
    routes = table('"gpt-*": {deployments: [{upstream: openai}]}')
    assert routes.find("claude") is None
    assert routes.find("GPT-4") is None


def test_text_that_can_be_no_name_is_not_found_by_a_pattern() -> None:
    routes = table('"*": {deployments: [{upstream: openai}]}')
    assert [routes.find(text) for text in ("", "a\nb", "a\x00", "x" * 257, "gpt-*", "*")] == [None] * 6
    assert routes.find("x" * 256) is not None


def test_same_name_is_the_same_route() -> None:
    routes = table('"gpt-*": {deployments: [{upstream: openai}]}')
    assert route(routes, "gpt-4") is route(routes, "gpt-4")


def test_near_names_are_those_of_the_config() -> None:
    routes = table("""
        gpt-4-turbo: {deployments: [{upstream: openai}]}
        gpt-4o-turbo: {deployments: [{upstream: openai}]}
        llama: {deployments: [{upstream: spare}]}
    """)
    assert routes.near("GPT-4-turbo ") == ("gpt-4-turbo", "gpt-4o-turbo")
    assert routes.near("gpt-4-turbo", 1) == ("gpt-4-turbo",)
    assert routes.near("zzz") == ()


# targets of a route


def test_model_to_send_is_that_of_the_deployment_or_the_requested_name() -> None:
    routes = table("""
        fast: {deployments: [{upstream: openai, model: gpt-4o}, {upstream: spare}]}
        "gpt-*": {deployments: [{upstream: openai}, {upstream: spare, model: llama}]}
    """)
    assert way(routes, "fast") == [("openai/gpt-4o", "fast", "gpt-4o"), ("spare/fast", "fast", "fast")]
    assert way(routes, "gpt-5") == [("openai/gpt-*", "gpt-*", "gpt-5"), ("spare/llama", "gpt-*", "llama")]


def test_fallbacks_follow_in_order_each_with_its_own_and_none_twice() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai}, {upstream: spare}], fallbacks: [b, d]}
        b: {deployments: [{upstream: openai}], fallbacks: [c, d]}
        c: {deployments: [{upstream: openai, model: a}, {upstream: spare, model: c}]}
        d: {deployments: [{upstream: openai}], fallbacks: [c]}
    """)
    assert [(label, alias) for label, alias, _ in way(routes, "a")] == [
        ("openai/a", "a"), ("spare/a", "a"), ("openai/b", "b"), ("spare/c", "c"), ("openai/d", "d"),
    ]  # fmt: skip


def test_fallback_through_a_pattern_is_requested_by_its_own_name() -> None:
    routes = table("""
        gpt-4: {deployments: [{upstream: openai}], fallbacks: [gpt-4o-mini]}
        "gpt-*": {deployments: [{upstream: spare}]}
    """)
    assert way(routes, "gpt-4")[1] == ("spare/gpt-*", "gpt-*", "gpt-4o-mini")


def test_each_target_has_the_rules_of_its_own_model() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai}], fallbacks: [b], timeout: {total: 1m}, retry: {max_attempts: 1}}
        b: {deployments: [{upstream: openai}], timeout: {attempt: 7s}, retry: {max_attempts: 2}}
    """)
    found = route(routes, "a")
    assert (found.timeouts.total, route(routes, "b").timeouts.total) == (60.0, 600.0)
    assert [(target.timeouts.attempt, target.retry.max_attempts) for target in found.targets] == [(None, 1), (7.0, 2)]


def test_key_of_an_upstream_is_hidden_from_its_repr() -> None:
    routes = table("a: {deployments: [{upstream: openai}]}")
    upstream = deployment(routes, "a").upstream
    assert (upstream.api_key, upstream.auth, upstream.base_url) == ("k1", "bearer", "https://api.openai.com/v1")
    assert "k1" not in repr(route(routes, "a"))


# pass-through


def test_call_without_a_model_goes_to_the_first_upstream_of_its_dialect() -> None:
    routes = table("a: {deployments: [{upstream: spare}]}")
    through = routes.passthrough("openai")
    assert through is not None
    (target,) = through.targets
    assert (through.alias, target.deployment.label, target.alias, target.model) == ("none", "openai", "none", None)
    assert through is routes.upstream_route("openai")
    claude = routes.passthrough("anthropic")
    assert claude is not None
    assert claude.targets[0].deployment.upstream.name == "anthropic"


def test_pass_through_follows_the_defaults() -> None:
    config = parse_config(
        UPSTREAMS + "defaults: {timeout: {total: 3m}, retry: {max_attempts: 9}}\n"
        "models: {a: {deployments: [{upstream: openai}], timeout: {total: 1s}}}",
        env={},
    )
    through = compile_routes(config, 0.0).upstream_route("spare")
    assert through is not None
    assert (through.timeouts.total, through.targets[0].retry.max_attempts) == (180.0, 9)


def test_unknown_upstream_and_absent_dialect_have_no_route() -> None:
    routes = table(
        "a: {deployments: [{upstream: x}]}", upstreams="upstreams: {x: {dialect: openai, base_url: 'http://h'}}\n"
    )
    assert routes.upstream_route("y") is None
    assert routes.passthrough("anthropic") is None
    assert list(routes.upstreams) == ["x"]


# shared breakers


def test_models_that_name_the_same_deployment_share_it() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai, model: gpt-4o}], timeout: {idle: 1s}}
        b: {deployments: [{upstream: openai, model: gpt-4o}], retry: {max_attempts: 1}}
        gpt-4o: {deployments: [{upstream: openai}]}
        "gpt-*": {deployments: [{upstream: spare}]}
    """)
    assert deployment(routes, "a") is deployment(routes, "b") is deployment(routes, "gpt-4o")


def test_models_with_other_breaker_or_budget_settings_do_not_share_theirs() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai, model: m}]}
        b: {deployments: [{upstream: openai, model: m}], breaker: {open_for: 1s}}
        c: {deployments: [{upstream: openai, model: m}], retry: {budget: {ratio: 0.1}}}
    """)
    apart = [deployment(routes, name) for name in "abc"]
    assert len({id(each.breaker) for each in apart}) == len({id(each.budget) for each in apart}) == 3
    assert {each.label for each in apart} == {"openai/m"}
    assert (apart[1].breaker.settings.open_for, apart[2].budget.settings.ratio) == (1.0, 0.1)


def test_other_upstream_is_another_deployment() -> None:
    routes = table("a: {deployments: [{upstream: openai}, {upstream: spare}]}")
    first, second = route(routes, "a").targets
    assert first.deployment.breaker is not second.deployment.breaker


def test_upstreams_on_one_url_do_not_share_a_breaker() -> None:
    twins = "upstreams: {x: {dialect: openai, base_url: 'http://h'}, y: {dialect: openai, base_url: 'http://h'}}\n"
    routes = table("a: {deployments: [{upstream: x}, {upstream: y}]}", upstreams=twins)
    first, second = route(routes, "a").targets
    assert first.deployment.breaker is not second.deployment.breaker


def test_all_deployments_of_an_upstream_have_one_host_and_no_other_upstream_has_it() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai}, {upstream: openai, model: m}], breaker: {open_for: 7s}}
        "gpt-*": {deployments: [{upstream: openai}, {upstream: spare}]}
    """)
    through = routes.upstream_route("openai")
    assert through is not None
    ours = [deployment(routes, "a"), route(routes, "a").targets[1].deployment, deployment(routes, "gpt-4")]
    assert {each.host for each in ours} == {through.targets[0].deployment.host}
    assert route(routes, "gpt-4").targets[1].deployment.host is not ours[0].host
    assert ours[0].host not in [each.breaker for each in routes.deployments()]
    assert ours[0].host.settings.open_for == 30.0


def test_upstreams_on_one_url_do_not_share_a_host() -> None:
    twins = "upstreams: {x: {dialect: openai, base_url: 'http://h'}, y: {dialect: openai, base_url: 'http://h'}}\n"
    first, second = route(table("a: {deployments: [{upstream: x}, {upstream: y}]}", upstreams=twins), "a").targets
    assert first.deployment.host is not second.deployment.host


def test_each_name_that_a_pattern_finds_has_a_breaker_of_its_own() -> None:
    routes = table('"gpt-*": {deployments: [{upstream: openai}]}')
    open_breaker(deployment(routes, "gpt-4"))
    assert not is_open(deployment(routes, "gpt-5"))
    assert is_open(deployment(routes, "gpt-4"))


def test_name_found_by_a_pattern_shares_the_breaker_that_the_config_made_for_it() -> None:
    routes = table("""
        fast: {deployments: [{upstream: openai, model: gpt-4o}], fallbacks: [gpt-5]}
        "gpt-*": {deployments: [{upstream: openai}]}
    """)
    assert deployment(routes, "gpt-4o") is deployment(routes, "fast")
    assert deployment(routes, "gpt-5") is route(routes, "fast").targets[1].deployment


def test_pattern_remembers_the_256_names_last_requested() -> None:
    routes = table("""
        "gpt-*": {deployments: [{upstream: openai}], fallbacks: [spare]}
        "x-*": {deployments: [{upstream: openai}]}
        spare: {deployments: [{upstream: spare}]}
    """)
    kept, other, dropped = (deployment(routes, name) for name in ("gpt-kept", "x-1", "gpt-dropped"))
    for i in range(255):
        route(routes, f"gpt-{i}")
        route(routes, "gpt-kept")
    live = routes.deployments()
    assert kept in live
    assert other in live
    assert dropped not in live
    assert sum(each.label == "openai/gpt-*" for each in live) == 256
    assert deployment(routes, "gpt-kept") is kept
    assert deployment(routes, "gpt-dropped") is not dropped


def test_deployments_are_each_listed_once() -> None:
    routes = table("""
        a: {deployments: [{upstream: openai}], fallbacks: [b]}
        b: {deployments: [{upstream: openai}]}
        "g*": {deployments: [{upstream: openai}, {upstream: spare, model: s}], fallbacks: [b]}
    """)
    assert "spare/s" in {deployment.label for deployment in routes.deployments()}
    route(routes, "g1")
    assert sorted(deployment.label for deployment in routes.deployments()) == [
        "anthropic", "openai", "openai/a", "openai/b", "openai/g*", "spare", "spare/s",
    ]  # fmt: skip


# reload


def test_reload_preserves_breaker_budget_and_last_success_under_new_settings() -> None:
    before = table("a: {deployments: [{upstream: openai}]}")
    old = deployment(before, "a")
    open_breaker(old)
    old.budget.try_spend(100.0)
    old.last_success_wall = 5.0
    after = table(
        "a: {deployments: [{upstream: openai}], breaker: {open_for: 9s}, retry: {budget: {ratio: 0.7}}}", before
    )
    new = deployment(after, "a")
    assert is_open(new)
    assert new.budget.snapshot(100.0).spent == 1
    assert new.last_success_wall == 5.0
    assert (new.breaker.settings.open_for, new.budget.settings.ratio) == (9.0, 0.7)


def test_reload_gives_a_new_key_to_the_upstream_of_an_unchanged_deployment() -> None:
    before = table("a: {deployments: [{upstream: openai}]}")
    after = table("a: {deployments: [{upstream: openai}]}", before, UPSTREAMS.replace("k1", "k2"))
    assert deployment(after, "a").upstream.api_key == "k2"
    assert deployment(before, "a").upstream.api_key == "k1"
    assert deployment(after, "a").breaker is deployment(before, "a").breaker


def test_digest_of_a_key_follows_the_key_and_is_in_no_repr() -> None:
    models = "a: {deployments: [{upstream: openai}]}"
    first, same = (deployment(table(models), "a").upstream for _ in range(2))
    other = deployment(table(models, upstreams=UPSTREAMS.replace("k1", "k2")), "a").upstream
    assert first.key_digest == same.key_digest != other.key_digest
    assert "k1" not in first.key_digest
    assert first.key_digest not in repr(first)


def test_reload_preserves_the_breaker_of_a_host_under_the_settings_of_the_defaults() -> None:
    models = "a: {deployments: [{upstream: openai}], breaker: {open_for: 7s}}"
    before = table(models)
    after = table(f"b: {{deployments: [{{upstream: openai, model: other}}]}}\n  {models}", before)
    assert deployment(after, "b").host is deployment(after, "a").host is deployment(before, "a").host
    changed = UPSTREAMS + "defaults: {breaker: {open_for: 9s}}\n"
    again = table(models, after, changed)
    assert deployment(again, "a").host is deployment(before, "a").host
    assert deployment(again, "a").host.settings.open_for == 9.0
    moved = table(models, after, UPSTREAMS.replace("api.openai", "x"))
    assert deployment(moved, "a").host is not deployment(before, "a").host


def test_reload_that_renames_a_model_preserves_the_breaker_of_its_deployment() -> None:
    before = table("a: {deployments: [{upstream: openai, model: m}]}")
    after = table("b: {deployments: [{upstream: openai, model: m}]}", before)
    assert deployment(after, "b").breaker is deployment(before, "a").breaker


def test_reload_starts_from_scratch_for_a_different_deployment() -> None:
    before = table("a: {deployments: [{upstream: openai, model: m}]}")
    breaker = deployment(before, "a").breaker
    moved = table("a: {deployments: [{upstream: openai, model: m}]}", before, UPSTREAMS.replace("api.openai", "x"))
    remodelled = table("a: {deployments: [{upstream: openai, model: n}]}", before)
    other = table("a: {deployments: [{upstream: spare, model: m}]}", before)
    assert all(deployment(route_table, "a").breaker is not breaker for route_table in (moved, remodelled, other))


def test_reload_that_separates_two_models_preserves_the_breaker_where_nothing_changed() -> None:
    before = table("""
        a: {deployments: [{upstream: openai, model: m}]}
        b: {deployments: [{upstream: openai, model: m}], breaker: {open_for: 1s}}
    """)
    after = table(
        """
        b: {deployments: [{upstream: openai, model: m}], breaker: {open_for: 1s}}
        a: {deployments: [{upstream: openai, model: m}]}
        c: {deployments: [{upstream: openai, model: m}], breaker: {open_for: 2s}}
        """,
        before,
    )
    assert [deployment(after, name).breaker is deployment(before, name).breaker for name in "ab"] == [True, True]
    assert deployment(after, "c").breaker not in {deployment(before, name).breaker for name in "ab"}


def test_reload_preserves_the_breakers_of_names_found_by_a_pattern_and_of_pass_through() -> None:
    before = table('"gpt-*": {deployments: [{upstream: openai}]}')
    open_breaker(deployment(before, "gpt-4"))
    after = table('"gpt-*": {deployments: [{upstream: openai}], breaker: {open_for: 1s}}', before)
    assert any(is_open(each) for each in after.deployments())
    assert is_open(deployment(after, "gpt-4"))
    old, new = before.upstream_route("spare"), after.upstream_route("spare")
    assert old is not None
    assert new is not None
    assert new.targets[0].deployment.breaker is old.targets[0].deployment.breaker


def test_reload_preserves_the_order_in_which_names_were_requested() -> None:
    before = table('"gpt-*": {deployments: [{upstream: openai}]}')
    for i in range(256):
        route(before, f"gpt-{i}")
    route(before, "gpt-0")
    after = table('"gpt-*": {deployments: [{upstream: openai}]}', before)
    route(after, "gpt-new")
    models = [deployment.model for deployment in after.deployments()]
    assert "gpt-0" in models
    assert "gpt-1" not in models


def test_name_that_moves_between_an_entry_of_its_own_and_a_pattern_preserves_its_breaker() -> None:
    pattern = '"gpt-*": {deployments: [{upstream: openai}]}'
    own = "gpt-4: {deployments: [{upstream: openai}]}"
    first = table(pattern)
    breaker = deployment(first, "gpt-4").breaker
    second = table(f"{own}\n{pattern}", first)
    third = table(pattern, second)
    assert deployment(second, "gpt-4").breaker is deployment(third, "gpt-4").breaker is breaker


OLD = """
    gpt: {deployments: [{upstream: openai, model: gpt-4}], breaker: {open_for: 10s}, hedge: {}}
    "m-*": {deployments: [{upstream: spare}], capacity: {concurrency: 3}}
"""
NEW = """
    gpt:
      deployments: [{upstream: openai, model: gpt-4}]
      breaker: {open_for: 20s}
      retry: {budget: {ratio: 0.5}}
      hedge: {max_extra: 0.5}
    "m-*": {deployments: [{upstream: spare}], capacity: {concurrency: 4}}
    new: {deployments: [{upstream: anthropic}]}
"""


def settings_of(routes: RouteTable) -> list[object]:
    each_has = [
        (deployment.host.settings, deployment.breaker.settings, deployment.budget.settings, deployment.gates.settings)
        for deployment in routes.deployments()
    ]
    hedging = route(routes, "gpt").hedging
    return [*each_has, route(routes, "gpt").budget.settings, hedging.budget.settings if hedging else None]


def no_phase() -> float:
    """Fails in place of drawing the phase of a new breaker."""
    raise KeyError("a bug")


def new_config() -> Config:
    return parse_config(f"{UPSTREAMS}defaults: {{breaker: {{window: 7s}}}}\nmodels:{NEW}", env={})


def test_table_that_cannot_be_built_changes_nothing_of_the_one_before() -> None:
    before = table(OLD)
    route(before, "m-1")
    dressed: list[Deployment] = []
    before.pool.observers.subscribe(dressed.append)
    was = settings_of(before)
    with pytest.raises(KeyError):
        compile_routes(new_config(), 100.0, before, no_phase)
    assert (settings_of(before), dressed) == (was, [])


def test_table_changes_carried_over_objects_when_it_takes_over() -> None:
    before = table(OLD)
    route(before, "m-1")
    dressed: list[Deployment] = []
    before.pool.observers.subscribe(dressed.append)
    was = settings_of(before)
    built = compile_routes(new_config(), 100.0, before)
    assert (settings_of(before), dressed) == (was, [])
    built.take_over()
    one = deployment(built, "gpt")
    assert one.breaker is deployment(before, "gpt").breaker
    assert (one.breaker.settings.open_for, one.budget.settings.ratio, one.host.settings.window) == (20.0, 0.5, 7.0)
    assert deployment(built, "m-1").gates.settings.concurrency == 4
    assert route(built, "gpt").budget is route(before, "gpt").budget
    assert route(built, "gpt").budget.settings.ratio == 0.5
    assert set(dressed) == set(built.deployments())
    dressed.clear()
    found = deployment(built, "m-2")
    assert dressed == [found]


def test_breaker_that_was_not_carried_over_is_released() -> None:
    before = table("fast: {deployments: [{upstream: openai, model: gpt-4}]}")
    after = table('"gpt-*": {deployments: [{upstream: openai}]}', before)
    assert deployment(after, "gpt-4").breaker is not deployment(before, "fast").breaker


def test_dropped_deployment_starts_from_scratch_when_it_comes_back() -> None:
    pattern = '"gpt-*": {deployments: [{upstream: openai}]}'
    before = table(pattern)
    old = deployment(before, "gpt-0")
    after = table(pattern, before)
    for i in range(1, 257):
        route(after, f"gpt-{i}")
    assert deployment(after, "gpt-0").breaker is not old.breaker
