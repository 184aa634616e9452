"""The schedule of probes and the effects of their results. Probes are scripted, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from llm_guard.config import Config, parse_config
from llm_guard.outcome import FailureKind, Signal
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.resilience.health.probe_policy import ProbeResult
from llm_guard.routing.route_table import RouteTable, compile_routes
from llm_guard.upstreams.probes.prober import Prober
from llm_guard.upstreams.probes.targets import ProbeTarget, ProbeView
from tests.fakes.clock import SteppedClock, let_run

OK, FAILED, ANSWERED = (
    ProbeResult("ok"),
    ProbeResult("failed", "it answered 503"),
    ProbeResult("answered", "it answered 404"),
)
TWO = """\
upstreams:
  a: {dialect: openai, base_url: "http://a/v1", probe: {interval: 10s, timeout: 5s, jitter: 0}}
  b: {dialect: openai, base_url: "http://b/v1", probe: {interval: 10s, timeout: 5s, jitter: 0}}
models:
  m: {deployments: [{upstream: a}, {upstream: b}]}
"""


@dataclass
class Slow:
    """A probe result that arrives after a delay."""

    seconds: float
    result: ProbeResult = OK


@dataclass
class Stand:
    """Plays scripted probes, and records when each was made, in seconds since the beginning."""

    config: Config
    sights: dict[str, ProbeResult | Slow | Exception] = field(default_factory=dict)
    """Results by upstream or `upstream/model`; OK for all others."""
    looked: list[tuple[float, str]] = field(default_factory=list)
    under_way: set[str] = field(default_factory=set)
    most_at_once: int = 0
    news: list[ProbeView] = field(default_factory=list)
    heard: list[ProbeView] = field(default_factory=list)
    draws: list[float] = field(default_factory=list)
    found_well: list[str] = field(default_factory=list)
    """Deployments with cooldowns that a probe has ended."""
    clock: SteppedClock = field(default_factory=SteppedClock)
    table: RouteTable = field(init=False)
    prober: Prober = field(init=False)

    def __post_init__(self) -> None:
        self.began_at = self.clock.now()
        self.table = compile_routes(self.config, self.began_at)
        self.prober = Prober(
            lambda subject: _Played(self, subject),
            lambda: self.table.deployments(),
            self.table.pool.down,
            lambda deployments: self.found_well.extend(deployment.label for deployment in deployments),
            self.news.append,
            self.clock,
            lambda: self.draws.pop(0) if self.draws else 0.0,
        )

    def adopt(self, text: str) -> None:
        self.table = compile_routes(parse(text), self.clock.now(), self.table)
        self.prober.adopt(parse(text), self.table.upstreams)

    def looks(self, name: str = "a") -> list[float]:
        return [at for at, whose in self.looked if whose == name]

    def view(self, name: str = "a", model: str | None = None) -> ProbeView:
        view = self.prober.view(name, model)
        assert view is not None
        return view

    def down(self) -> Iterable[tuple[str, str | None]]:
        return set(self.table.pool.down.keys)

    def succeed(self, label: str) -> None:
        """Notes that a call was answered by this deployment just now."""
        for deployment in self.table.deployments():
            if deployment.label == label:
                deployment.last_success_wall = self.clock.wall()


class _Played:
    def __init__(self, stand: Stand, subject: ProbeTarget) -> None:
        self._stand = stand
        self._name = subject.label or subject.upstream.name

    async def look(self) -> ProbeResult:
        stand = self._stand
        stand.looked.append((round(stand.clock.now() - stand.began_at, 6), self._name))
        assert self._name not in stand.under_way, "two looks at one at the same time"
        stand.under_way.add(self._name)
        stand.most_at_once = max(stand.most_at_once, len(stand.under_way))
        try:
            result = stand.sights.get(self._name, OK)
            if isinstance(result, Slow):
                await stand.clock.sleep(result.seconds)
                result = result.result
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            stand.under_way.discard(self._name)


def parse(text: str) -> Config:
    return parse_config(text, "f.yaml", {})


@asynccontextmanager
async def probing(text: str = TWO, draws: Iterable[float] = (), **sights: Any) -> AsyncIterator[Stand]:
    stand = Stand(parse(text), sights, draws=list(draws))
    stand.prober.adopt(stand.config, stand.table.upstreams)
    try:
        with capture_logs():
            yield stand
    finally:
        await stand.prober.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not [alarm for alarm in stand.clock.alarms if not alarm.is_cancelled and not alarm.has_rung]


# schedule


async def test_each_is_probed_repeatedly() -> None:
    async with probing() as stand:
        await stand.clock.pass_s(25)
        assert stand.looks("a") == stand.looks("b") == [0, 10, 20]


async def test_first_probes_are_spread_over_the_interval_and_later_ones_by_the_jitter() -> None:
    text = TWO.replace("jitter: 0", "jitter: 0.1")
    async with probing(text, draws=[0.25, 0.75, 0.0, 1.0]) as stand:
        await stand.clock.pass_s(19)
        assert (stand.looks("a"), stand.looks("b")) == ([2.5, 11.5], [7.5, 18.5])


async def test_interval_begins_when_a_probe_has_ended() -> None:
    async with probing(a=Slow(4)) as stand:
        await stand.clock.pass_s(30)
        assert stand.looks("a") == [0, 14, 28]


async def test_slow_one_holds_up_no_other() -> None:
    async with probing(a=Slow(1e9)) as stand:
        await stand.clock.pass_s(25)
        assert stand.looks("b") == [0, 10, 20]
        assert stand.looks("a") == [0, 15]


async def test_concurrent_probes_are_bounded() -> None:
    names = [f"u{number}" for number in range(9)]
    upstreams = "".join(
        f"  {name}: {{dialect: openai, base_url: 'http://{name}/v1', probe: {{interval: 10s, jitter: 0}}}}\n"
        for name in names
    )
    text = f"probes: {{concurrency: 3}}\nupstreams:\n{upstreams}models: {{m: {{deployments: [{{upstream: u0}}]}}}}\n"
    async with probing(text, **dict[str, Any]((name, Slow(2)) for name in names)) as stand:
        await stand.clock.pass_s(9)
        assert stand.most_at_once == 3
        assert sorted(at for at, _ in stand.looked) == [0, 0, 0, 2, 2, 2, 4, 4, 4]


async def test_stop_cancels_running_probes_and_starts_no_more() -> None:
    async with probing(a=Slow(3)) as stand:
        await stand.clock.pass_s(1)
        assert stand.under_way == {"a"}
        await stand.prober.stop()
        assert stand.under_way == set()
        await stand.clock.pass_s(60)
        assert len(stand.looked) == 2


# results


async def test_results_are_shown() -> None:
    async with probing(b=Slow(2, ANSWERED)) as stand:
        assert stand.view().state == "unknown"
        assert (stand.view().last, stand.view().looked_wall) == (None, None)
        await stand.clock.pass_s(11)
        at = stand.clock.wall() - 1
        assert stand.view() == ProbeView("a", "up", "", 0, at, at, 0.0, "health", "ok")
        assert stand.view("b") == ProbeView("b", "up", "it answered 404", 0, None, at - 8, 2.0, "health", "answered")
        assert stand.prober.views() == [stand.view("a"), stand.view("b")]
        assert stand.prober.view("z") is None


async def test_silence_is_a_failure_after_the_timeout() -> None:
    async with probing(a=Slow(1e9)) as stand:
        await stand.clock.pass_s(4.9)
        assert stand.view().last is None
        await stand.clock.pass_s(0.2)
        assert (stand.view().last, stand.view().why) == ("failed", "it did not respond within 5 s")
        assert (stand.view().took_s, stand.view().last_ok_wall) == (None, None)


@pytest.mark.parametrize(
    ("kind", "finding", "failures"),
    [
        (FailureKind.NETWORK, "failed", 1),
        (FailureKind.MALFORMED, "failed", 1),
        (FailureKind.CERTIFICATE, "failed", 1),
        (FailureKind.OWN_RESOURCES, "unclear", 0),
        (FailureKind.EGRESS, "unclear", 0),
    ],
)
async def test_exchange_that_broke_counts_where_it_is_the_upstreams_doing(
    kind: FailureKind, finding: str, failures: int
) -> None:
    async with probing(a=UpstreamError(kind, "it broke")) as stand:
        await stand.clock.pass_s(1)
        assert (stand.view().last, stand.view().failures, stand.view().why) == (finding, failures, "it broke")


async def test_probe_that_raises_by_a_bug_is_followed_by_the_next() -> None:
    async with probing(a=RuntimeError("a bug")) as stand:
        await stand.clock.pass_s(5)
        stand.sights["a"] = OK
        await stand.clock.pass_s(6)
        assert stand.view().state == "up"


async def test_probes_are_counted_by_result() -> None:
    async with probing(b=FAILED) as stand:
        await stand.clock.pass_s(15)
        assert stand.prober.counts == {("a", "health", "ok"): 2, ("b", "health", "failed"): 2}
        assert {name: sum(distribution.counts) for name, distribution in stand.prober.durations.items()} == {"a": 2}


# subscribers and calls


async def test_change_is_reported_once() -> None:
    async with probing() as stand:
        await stand.clock.pass_s(1)
        stand.sights["a"] = FAILED
        await stand.clock.pass_s(50)
        stand.sights["a"] = OK
        await stand.clock.pass_s(30)
        assert [(new.upstream, new.state, new.why) for new in stand.news] == [
            ("a", "down", "it answered 503"),
            ("a", "up", ""),
        ]


async def test_subscriber_gets_each_probe_until_it_unsubscribes() -> None:
    async with probing() as stand:
        end = stand.prober.subscribe("a", stand.heard.append)
        await stand.clock.pass_s(15)
        stand.adopt(TWO.replace("timeout: 5s", "timeout: 4s"))
        await stand.clock.pass_s(1)
        assert [(probe_view.upstream, probe_view.last) for probe_view in stand.heard] == [("a", "ok")] * 3
        end()
        end()
        await stand.clock.pass_s(20)
        assert len(stand.heard) == 3


async def test_probe_that_finds_an_upstream_well_ends_the_hints_of_its_deployments() -> None:
    async with probing(b=FAILED) as stand:
        await stand.clock.pass_s(1)
        assert set(stand.found_well) == {"a/m"}


async def test_probe_that_is_only_answered_ends_no_hint() -> None:
    async with probing(a=ANSWERED, b=ANSWERED) as stand:
        await stand.clock.pass_s(1)
        assert stand.view().last == "answered"
        assert stand.found_well == []


async def test_calls_avoid_deployments_that_are_down() -> None:
    async with probing(a=FAILED) as stand:
        await stand.clock.pass_s(15)
        assert stand.down() == set()
        await stand.clock.pass_s(10)
        assert stand.down() == {("a", None)}
        [route] = [stand.table.find("m")]
        assert route is not None
        assert [route.down.has(target.deployment) for target in route.targets] == [True, False]
        deployment = route.targets[0].deployment
        assert stand.prober.why_down(deployment) == "it answered 503"
        assert stand.prober.last_ok_wall(deployment) is None
        stand.sights["a"] = OK
        await stand.clock.pass_s(10)
        assert (stand.down(), stand.prober.why_down(deployment)) == (set(), None)
        assert stand.prober.last_ok_wall(deployment) == stand.view().last_ok_wall


async def test_upstream_whose_calls_succeed_is_not_down() -> None:
    async with probing(a=FAILED) as stand:
        for _ in range(8):
            stand.succeed("a/m")
            await stand.clock.pass_s(10)
        assert (stand.down(), stand.news) == (set(), [])
        assert stand.view().why == "calls succeed, although it answered 503"
        await stand.clock.pass_s(30)
        assert stand.down() == {("a", None)}


async def test_calls_that_succeeded_before_the_first_probe_prove_nothing() -> None:
    async with probing(b=FAILED) as stand:
        stand.succeed("b/m")
        stand.adopt(TWO.replace("timeout: 5s", "timeout: 4s"))
        await stand.clock.pass_s(1)
        assert (stand.view("b").state, stand.view("b").failures) == ("unknown", 1)


async def test_calls_that_name_no_model_prove_nothing() -> None:
    async with probing(a=FAILED) as stand:
        for _ in range(4):
            stand.succeed("a")
            await stand.clock.pass_s(10)
        assert stand.down() == {("a", None)}


# deployments


A_M_FAILS: dict[str, Any] = {"a/m": FAILED}
CALLED = TWO.replace("{upstream: a}", "{upstream: a, probe: {interval: 10s, jitter: 0}}")


async def test_deployment_has_probes_of_its_own() -> None:
    async with probing(CALLED, **A_M_FAILS) as stand:
        stand.prober.subscribe("a", stand.heard.append)
        await stand.clock.pass_s(15)
        assert stand.down() == {("a", "m")}
        assert (stand.view("a").state, stand.view("a", "m").state) == ("up", "down")
        assert stand.view("a", "m").deployment == "a/m"
        assert {probe_view.deployment for probe_view in stand.heard} == {None}
        assert [new.deployment for new in stand.news] == ["a/m"]


# effects on breakers


def open_breaker(stand: Stand, label: str, *, of_host: bool = False) -> None:
    deployment = next(each for each in stand.table.deployments() if each.label == label)
    breaker = deployment.host if of_host else deployment.breaker
    breaker.force("forced_closed", stand.clock.now())
    breaker.force("auto", stand.clock.now())
    for _ in range(20):
        permit = breaker.try_acquire(stand.clock.now())
        if permit is not None:
            breaker.settle(permit, Signal.UNHEALTHY, stand.clock.now())
    assert breaker.state == "open"


def states(stand: Stand, label: str) -> tuple[str, str]:
    deployment = next(each for each in stand.table.deployments() if each.label == label)
    return deployment.breaker.state, deployment.host.state


async def test_health_page_that_was_always_well_admits_no_call_early() -> None:
    async with probing() as stand:
        await stand.clock.pass_s(1)
        open_breaker(stand, "a/m")
        await stand.clock.pass_s(20)
        assert states(stand, "a/m")[0] == "open"


async def test_health_page_that_saw_the_outage_admits_a_call_when_it_ends() -> None:
    async with probing(a=FAILED) as stand:
        await stand.clock.pass_s(1)
        open_breaker(stand, "a/m")
        await stand.clock.pass_s(10)
        assert states(stand, "a/m")[0] == "open"
        stand.sights["a"] = OK
        await stand.clock.pass_s(10)
        assert states(stand, "a/m")[0] == "half_open"
        assert states(stand, "b/m")[0] == "closed"


async def test_any_answer_shows_that_the_host_can_be_reached() -> None:
    async with probing(a=ANSWERED) as stand:
        open_breaker(stand, "a/m", of_host=True)
        await stand.clock.pass_s(1)
        assert states(stand, "a/m") == ("closed", "half_open")


async def test_probe_with_one_token_admits_a_call_at_once() -> None:
    async with probing(CALLED) as stand:
        open_breaker(stand, "a/m")
        await stand.clock.pass_s(1)
        assert states(stand, "a/m")[0] == "half_open"


async def test_failed_probe_opens_no_breaker_and_admits_no_call() -> None:
    async with probing(CALLED, a=FAILED, **A_M_FAILS) as stand:
        open_breaker(stand, "a/m")
        open_breaker(stand, "a/m", of_host=True)
        await stand.clock.pass_s(100)
        assert states(stand, "a/m") == ("open", "open")
        assert states(stand, "b/m") == ("closed", "closed")


# probes on request


async def test_probe_on_demand_does_not_wait_for_the_interval() -> None:
    async with probing() as stand:
        await stand.clock.pass_s(2)
        stand.prober.probe_now("a")
        stand.prober.probe_now("z")
        await stand.clock.pass_s(15)
        assert (stand.looks("a"), stand.looks("b")) == ([0, 2, 12], [0, 10])


async def test_request_during_a_probe_gets_the_next_one() -> None:
    async with probing(a=Slow(3, FAILED)) as stand:
        await stand.clock.pass_s(1)
        asking = asyncio.ensure_future(stand.prober.probe_and_wait("a"))
        stand.prober.probe_now("a")
        stand.sights["a"] = Slow(1)
        await stand.clock.pass_s(2.5)
        assert not asking.done()
        await stand.clock.pass_s(1)
        assert [probe_view.last for probe_view in await asking] == ["ok"]
        assert stand.looks("a") == [0, 3]


async def test_all_can_be_probed_at_once() -> None:
    async with probing(CALLED) as stand:
        await stand.clock.pass_s(3)
        found = await stand.prober.probe_and_wait(None)
        assert [(probe_view.upstream, probe_view.deployment) for probe_view in found] == [
            ("a", None),
            ("b", None),
            ("a", "a/m"),
        ]
        assert stand.looks("a/m") == [0, 3]
        assert await stand.prober.probe_and_wait("z") == []


async def test_wait_for_a_probe_ends_when_the_prober_stops() -> None:
    async with probing(a=Slow(3), b=Slow(3)) as stand:
        await stand.clock.pass_s(1)
        asking = [asyncio.ensure_future(stand.prober.probe_and_wait(name)) for name in ("a", "b")]
        await let_run()
        await stand.prober.stop()
        assert [await each for each in asking] == [[], []]


async def test_cancelled_wait_for_a_probe_does_no_harm() -> None:
    async with probing(a=Slow(3)) as stand:
        await stand.clock.pass_s(1)
        asking = asyncio.ensure_future(stand.prober.probe_and_wait("a"))
        await let_run()
        asking.cancel()
        await stand.clock.pass_s(30)
        assert stand.view().last == "ok"


# engines


async def test_engine_that_gave_up_is_tried_last_until_it_is_back() -> None:
    async with probing() as stand:
        await stand.clock.pass_s(1)
        stand.prober.set_failed("a", "it did not start 5 times")
        assert stand.down() == {("a", None)}
        assert stand.prober.why_failed("a") == "it did not start 5 times"
        await stand.clock.pass_s(20)
        assert stand.down() == {("a", None)}
        stand.prober.set_failed("a", None)
        stand.prober.set_failed("b", None)
        assert (stand.down(), stand.prober.why_failed("a")) == (set(), None)


# reload


async def test_reload_preserves_unchanged_probes_and_restarts_changed_ones() -> None:
    async with probing(a=FAILED, b=FAILED) as stand:
        await stand.clock.pass_s(25)
        assert stand.down() == {("a", None), ("b", None)}
        stand.adopt(TWO.replace("http://b/v1", "http://b2/v1"))
        assert stand.down() == {("a", None)}
        assert (stand.view("a").state, stand.view("b").state) == ("down", "unknown")
        await stand.clock.pass_s(1)
        assert (stand.looks("a"), stand.looks("b")) == ([0, 10, 20], [0, 10, 20, 25])


async def test_reload_forgets_removed_probes() -> None:
    async with probing(a=FAILED) as stand:
        await stand.clock.pass_s(25)
        stand.prober.set_failed("b", "it did not start")
        stand.adopt(TWO.replace(", probe: {interval: 10s, timeout: 5s, jitter: 0}}", "}", 1))
        assert (stand.prober.view("a"), stand.down()) == (None, {("b", None)})
        one = TWO.replace("{upstream: a}, {upstream: b}", "{upstream: a}")
        stand.adopt("\n".join(line for line in one.split("\n") if not line.startswith("  b:")))
        assert (stand.down(), stand.prober.why_failed("b")) == (set(), None)
        looks = len(stand.looks("b"))
        await stand.clock.pass_s(30)
        assert len(stand.looks("b")) == looks


async def test_views_are_in_the_order_of_the_config_that_runs() -> None:
    async with probing() as stand:
        assert [view.upstream for view in stand.prober.views()] == ["a", "b"]
        first, a, b, *rest = TWO.split("\n")
        stand.adopt("\n".join((first, b, a, *rest)))
        assert [view.upstream for view in stand.prober.views()] == ["b", "a"]
        assert [subject.key for subject in stand.prober.subjects()] == [("b", None), ("a", None)]


async def test_reload_takes_another_concurrency() -> None:
    async with probing(a=Slow(1), b=Slow(1)) as stand:
        stand.adopt("probes: {concurrency: 1}\n" + TWO)
        await stand.clock.pass_s(5)
        assert stand.most_at_once == 1
