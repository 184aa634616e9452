from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.samples import Sample

from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse
from llm_guard.admin.metrics.endpoint import Metrics
from llm_guard.admin.metrics.exposition import CONTENT_TYPES, PIECE_SAMPLES, pieces
from llm_guard.admin.monitor.monitor import LoopLag, Monitor
from llm_guard.config import parse_config
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.proxy.telemetry.recorder import CallCounters
from llm_guard.resilience.health.status import HealthState
from llm_guard.routing.deployment import Deployment
from tests.fakes.clock import ManualClock, SteppedClock
from tests.fakes.gateway import new_gateway
from tests.scrape import Scraped

CONFIG: dict[str, dict[str, object]] = {
    "upstreams": {
        "a": {"dialect": "openai", "base_url": "http://one.test/v1", "api_key": "sk-test"},
        "b": {"dialect": "openai", "base_url": "http://one.test/other/v1"},
        "credential": {"dialect": "openai", "base_url": "http://another.test/v1"},
    },
    "defaults": {"breaker": {"consecutive_failures": 1, "early_probes": False, "open_for": "30s"}},
    "models": {
        "x": {"deployments": [{"upstream": "a"}]},
        "gpt-*": {"deployments": [{"upstream": "b"}]},
    },
}


class Stand:
    """A gateway without traffic, and its metrics."""

    def __init__(self, models: int = 0) -> None:
        self.clock = ManualClock()
        many = {f"m{number}": {"deployments": [{"upstream": "a"}]} for number in range(models)}
        config = parse_config(json.dumps({**CONFIG, "models": {**CONFIG["models"], **many}}), "test.yaml", {})
        counters = self.counters = CallCounters()
        upstreams = Upstreams(ConnectionPool(), FaultInjector(self.clock, lambda: 0.0), self.clock)
        self.gateway = new_gateway(config, self.clock, upstreams=upstreams, counters=counters)
        self.listeners = [3, 1]
        self.health: dict[str, HealthState] = {}
        self.alerts: dict[tuple[str, str], int] = {}
        self.reloads = SimpleNamespace(is_rolled_back=False, problems=())
        running = SimpleNamespace(
            gateway=self.gateway,
            counters=counters,
            listeners=lambda: [SimpleNamespace(count=count) for count in self.listeners],
            clock=self.clock,
            dials=lambda origin: {"http://one.test": 4}.get(origin, 0),
            reloads=self.reloads,
        )
        lag = LoopLag()
        self.watch = Monitor([], lag, self.clock)
        self.metrics = Metrics(cast("AdminContext", running), lag, lambda: self.health.items(), lambda: self.alerts)

    def deployment(self, label: str) -> Deployment:
        return next(each for each in self.gateway.deployments() if each.label == label)

    def named(self, model: str) -> Deployment:
        """Returns the deployment of a name under the pattern."""
        route = self.gateway.table.find(model)
        assert route is not None
        return route.targets[0].deployment

    async def scrape(self, accept: str = "") -> AdminResponse:
        [page] = self.metrics.pages()
        assert page.give is not None
        return await page.give(AdminRequest("GET", "/metrics", {"accept": accept} if accept else {}))

    async def scraped(self) -> Scraped:
        return Scraped((await self.scrape()).body.decode())


def fail(deployment: Deployment, now: float = 1000.0) -> None:
    permit = deployment.breaker.try_acquire(now)
    assert permit is not None
    deployment.breaker.settle(permit, Signal.UNHEALTHY, now)


async def ones(stand: Stand, metric: str, **labels: str) -> set[str]:
    """Returns the states with value 1."""

    def is_one(sample: Sample) -> bool:
        return sample.name == f"llm_guard_{metric}" and labels.items() <= sample.labels.items() and sample.value == 1

    return {each.labels["state"] for each in (await stand.scraped()).samples if is_one(each)}


# circuit breakers


async def test_breaker_is_in_one_state_at_a_time() -> None:
    stand = Stand()
    assert await ones(stand, "breaker_state", deployment="a/x") == {"closed"}
    fail(stand.deployment("a/x"))
    assert await ones(stand, "breaker_state", deployment="a/x") == {"open"}
    stand.deployment("a/x").breaker.try_acquire(1040.0)
    assert await ones(stand, "breaker_state", deployment="a/x") == {"half_open"}


async def test_changes_of_state_are_counted_by_the_state_entered() -> None:
    stand = Stand()
    assert (await stand.scraped())("breaker_transitions_total", deployment="a/x", to="open") == 0
    fail(stand.deployment("a/x"))
    fail(stand.deployment("a/x"), 1040.0)
    found = await stand.scraped()
    assert found("breaker_transitions_total", deployment="a/x", to="open") == 2
    assert found("breaker_transitions_total", deployment="a/x", to="half_open") == 1
    assert found("breaker_transitions_total", deployment="a/x", to="closed") == 0


async def test_of_breakers_with_one_label_the_worst_is_shown() -> None:
    stand = Stand()
    names = [stand.named(f"gpt-{number}") for number in range(3)]
    fail(names[1])
    fail(names[2])
    names[2].breaker.try_acquire(1040.0)
    assert await ones(stand, "breaker_state", deployment="b/gpt-*") == {"open"}
    assert (await stand.scraped())("breaker_transitions_total", deployment="b/gpt-*", to="open") == 2


async def test_transition_counts_survive_a_forgotten_name() -> None:
    stand = Stand()
    fail(stand.named("gpt-first"))
    assert (await stand.scraped())("breaker_transitions_total", deployment="b/gpt-*", to="open") == 1
    for number in range(300):
        stand.named(f"gpt-{number}")
    assert (await stand.scraped())("breaker_transitions_total", deployment="b/gpt-*", to="open") == 1
    fail(stand.named("gpt-299"))
    assert (await stand.scraped())("breaker_transitions_total", deployment="b/gpt-*", to="open") == 2


# deployments and upstreams


async def test_last_success_is_the_latest_of_a_label_and_absent_before_the_first() -> None:
    stand = Stand()
    names = [stand.named(f"gpt-{number}") for number in range(3)]
    assert (await stand.scraped())("last_success_timestamp_seconds", deployment="b/gpt-*") is None
    names[0].last_success_wall, names[1].last_success_wall = 1_800_000_005.0, 1_800_000_001.0
    assert (await stand.scraped())("last_success_timestamp_seconds", deployment="b/gpt-*") == 1_800_000_005.0


async def test_queue_and_exchanges_are_those_of_all_accounts_and_names_of_a_label() -> None:
    stand = Stand()
    for number in range(2):
        gates = stand.named(f"gpt-{number}").gates
        gates.in_flight = 2
        for account in ("one", "two"):
            assert gates.of(account, 1000.0).enqueue(1, lambda: None) is not None
    found = await stand.scraped()
    assert found("queue_length", deployment="b/gpt-*") == 4
    assert found("in_flight_attempts", deployment="b/gpt-*") == 4
    assert (found("queue_length", deployment="a/x"), found("in_flight_attempts", deployment="a/x")) == (0, 0)


async def test_health_has_one_state_at_a_time() -> None:
    stand = Stand()
    stand.health = {"a/x": "degraded"}
    assert await ones(stand, "health_state", deployment="a/x") == {"degraded"}
    assert (await stand.scraped())("health_state", deployment="a/x", state="healthy") == 0


async def test_connections_to_a_host_are_shown_for_each_upstream_that_is_there() -> None:
    found = await Stand().scraped()
    assert found("connection_attempts_total", upstream="a") == 4
    assert found("connection_attempts_total", upstream="b") == 4


async def test_credentials_in_cooldown_are_counted_by_upstream_without_deployments() -> None:
    stand = Stand()
    refused = Failure(FailureKind.AUTH, "answered 401")
    for key in ("one", "two"):
        for _ in range(2):
            stand.gateway.cooldowns.note_refusal(
                ("credential", "a", "http://one.test/v1", key, ""), "x", refused, 1000.0
            )
    spent = Failure(FailureKind.QUOTA_EXHAUSTED, "answered 429")
    for key, model in (("one", "x"), ("three", "x"), ("three", "y")):
        stand.gateway.cooldowns.note_refused_alone(
            ("credential", "a", "http://one.test/v1", key, ""), model, spent, 1000.0
        )
    limited = Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=60.0)
    hinted = ("deployment", "credential", "b", "http://one.test/v1", "", "", "x")
    stand.gateway.cooldowns.note_wait(hinted, limited, 60.0, 1000.0)
    found = await stand.scraped()
    assert found("credentials_in_cooldown", upstream="a") == 3
    assert (
        found("credentials_in_cooldown", upstream="b") == found("credentials_in_cooldown", upstream="credential") == 0
    )
    stand.clock.advance(31.0)
    assert (await stand.scraped())("credentials_in_cooldown", upstream="a") == 0


# gateway


async def test_refused_reload_is_shown() -> None:
    stand = Stand()
    assert (await stand.scraped())("config_last_reload_successful") == 1
    stand.reloads.problems = ("f.yaml:3: models: is missing",)
    assert (await stand.scraped())("config_last_reload_successful") == 0


async def test_connections_are_shown_by_listener_and_only_where_there_is_one() -> None:
    stand = Stand()
    found = await stand.scraped()
    assert (found("open_connections", listener="calls"), found("open_connections", listener="ops")) == (3, 1)
    stand.listeners = [2]
    found = await stand.scraped()
    assert (found("open_connections", listener="calls"), found("open_connections", listener="ops")) == (2, None)


async def test_alerts_are_counted_by_name_and_severity() -> None:
    stand = Stand()
    stand.alerts = {("success_rate", "critical"): 2, ("latency", "warning"): 0}
    found = await stand.scraped()
    assert found("alerts_total", alert="success_rate", severity="critical") == 2
    assert found("alerts_total", alert="latency", severity="warning") == 0


async def test_lag_is_the_longest_that_the_watch_has_seen() -> None:
    stand = Stand()
    stand.watch.start()
    stand.clock.advance(0.25 + 1.5)
    stand.clock.ring_due()
    stand.clock.advance(0.25)
    stand.clock.ring_due()
    assert (await stand.scraped())("event_loop_lag_max_seconds") == 1.5


async def test_build_info_names_the_version() -> None:
    [build] = [sample for sample in (await Stand().scraped()).samples if sample.name == "llm_guard_build_info"]
    assert set(build.labels) == {"version", "python", "compiled"}
    assert build.value == 1
    assert build.labels["compiled"] in ("true", "false")


# exposition


async def test_page_is_openmetrics_only_on_request() -> None:
    stand = Stand()
    plain = await stand.scrape()
    assert plain.content_type == CONTENT_TYPES["text"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in plain.body
    assert b"\nprocess_resident_memory_bytes " in plain.body
    asked = await stand.scrape("application/openmetrics-text")
    assert asked.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert len(Scraped(asked.body.decode(), "openmetrics").families) > 30


async def test_name_that_utf8_cannot_encode_does_not_break_the_page() -> None:
    stand = Stand()
    stand.counters.models["half \ud800"].calls["ok"] += 1
    assert (await stand.scraped())("calls_total", model="half ?", outcome="ok") == 1


async def test_calls_continue_between_any_two_pieces_of_the_page() -> None:
    stand = Stand(models=300)
    for number in range(300):
        stand.counters.models[f"m{number}"].call_duration["ok"].note(1.0)
    before = len(stand.clock.slept)
    page = (await stand.scrape()).body
    samples = sum(not line.startswith(b"#") for line in page.splitlines())
    assert samples > 300 * (17 + 7 + 7)
    looks = sum(1 for _ in stand.metrics.state.look())
    assert looks == 1
    assert len(stand.clock.slept) - before - looks >= samples // (PIECE_SAMPLES + 20)
    parts = sum(1 for _ in pieces((*stand.metrics.all, *stand.metrics._of_process()), "text"))
    assert len(stand.clock.slept) - before == looks + parts
    assert set(stand.clock.slept) == {0}


async def test_every_deployment_of_a_large_pattern_is_visited_with_pauses() -> None:
    stand = Stand()
    for number in range(250):
        stand.named(f"gpt-{number}")
    pauses = sum(1 for _ in stand.metrics.state.look())
    assert pauses == 1


async def test_health_is_judged_with_pauses() -> None:
    stand = Stand()
    stand.health = {f"a/m{number}": "healthy" for number in range(300)}
    assert sum(1 for _ in stand.metrics.state.look()) >= 300 * 5 // 200


async def test_scrapers_at_once_take_turns() -> None:
    stand = Stand(models=100)
    running = most = 0

    class Counting(ManualClock):
        async def sleep(self, seconds: float) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    stand.metrics._clock = Counting()
    pages = await asyncio.gather(*(stand.scrape() for _ in range(5)))
    assert most == 1
    assert len({page.body.count(b"\n") for page in pages}) == 1


class Laborious(SteppedClock):
    """A clock by which each piece of a page takes 10 ms to write."""

    async def sleep(self, seconds: float) -> None:
        if seconds == 0:
            self.advance(0.01)
        await super().sleep(seconds)

    def rendered(self) -> int:
        """Returns the number of pieces written so far."""
        return self.slept.count(0)


def laborious(models: int = 0) -> tuple[Stand, Laborious]:
    stand, clock = Stand(models), Laborious()
    stand.metrics._clock = clock
    return stand, clock


async def pieces_of_a_page(models: int = 0) -> int:
    stand, clock = laborious(models)
    await stand.scrape()
    return clock.rendered()


async def test_scrapers_that_arrive_while_a_page_is_written_share_the_next() -> None:
    one = await pieces_of_a_page(300)
    stand, clock = laborious(300)
    first = asyncio.create_task(stand.scrape())
    for _ in range(3):
        await asyncio.sleep(0)
    others = [asyncio.create_task(stand.scrape()) for _ in range(5)]
    stand.counters.models["late"].calls["ok"] += 1
    await clock.pass_s(5.0)
    pages = [task.result().body for task in others]
    assert b'model="late"' not in first.result().body
    assert all(b'model="late"' in page and page is pages[0] for page in pages)
    assert clock.rendered() == 2 * one


async def test_each_form_of_the_page_has_its_own_that_is_shared() -> None:
    stand, clock = laborious()
    scrapes = [asyncio.create_task(stand.scrape(each)) for each in ("", "application/openmetrics-text") * 3]
    await clock.pass_s(5.0)
    assert [task.result().body.endswith(b"# EOF\n") for task in scrapes] == [False, True] * 3
    # Pages: the first, one in the other format, and one for scrapers that arrived while the first was written.
    assert clock.rendered() == 3 * await pieces_of_a_page()


async def test_scrapes_back_to_back_take_a_tenth_of_the_loops_time() -> None:
    stand, clock = laborious()
    took_s = 0.01 * await pieces_of_a_page()
    began_at = clock.now()
    await stand.scrape()
    following = asyncio.create_task(stand.scrape())
    await clock.pass_s(8.9 * took_s)
    assert not following.done()
    await clock.pass_s(0.2 * took_s)
    assert following.done()
    assert clock.now() - began_at == pytest.approx(10.1 * took_s)


async def test_no_scraper_waits_for_more_than_a_second_before_its_page_is_begun() -> None:
    stand, clock = laborious(1500)
    assert 0.01 * await pieces_of_a_page(1500) > 0.15
    await stand.scrape()
    written = clock.rendered()
    following = asyncio.create_task(stand.scrape())
    await clock.pass_s(0.99)
    assert clock.rendered() == written
    await clock.pass_s(0.02)
    assert clock.rendered() > written
    assert (await following).status == 200


async def test_later_scraper_does_not_wait() -> None:
    stand, clock = laborious()
    await stand.scrape()
    await clock.pass_s(1.0)
    slept = len(clock.slept)
    await stand.scrape()
    assert set(clock.slept[slept:]) == {0}


async def test_scrapers_that_disconnect_repeatedly_get_no_more_time_of_the_loop() -> None:
    stand, clock = laborious()
    for _ in range(5):
        leaving = asyncio.create_task(stand.scrape())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    assert clock.rendered() == 1


async def test_scraper_that_leaves_in_the_middle_leaves_the_turn_to_the_next() -> None:
    stand = Stand(models=100)
    leaving = asyncio.create_task(stand.scrape())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    assert (await stand.scraped())("config_last_reload_successful") == 1
