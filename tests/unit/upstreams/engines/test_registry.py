"""Supervision of engines, with a fake engine on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_guard.config import EngineConfig
from llm_guard.resilience.health.engine_state import EngineEvent
from llm_guard.upstreams.engines.docker_driver import ContainerDriver
from llm_guard.upstreams.engines.process_driver import ProcessDriver
from llm_guard.upstreams.engines.registry import Engines, strategy_of
from llm_guard.upstreams.engines.systemd_driver import SystemdDriver
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.engine import FakeEngine, FakeProbing

SCHEDULE = {"base_delay": "2s", "jitter": 0.0, "max_attempts": 2, "reset_after": "60s"}


def config(**own: Any) -> EngineConfig:
    said = {"upstreams": ("local",), "docker": {"container": "a"}, "start_timeout": "30s", "restart": SCHEDULE, **own}
    return EngineConfig.model_validate(said)


class World:
    """A supervisor of one or more fake engines."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.probing = FakeProbing()
        self.made: list[FakeEngine] = []
        self.told: list[tuple[str, str, str]] = []
        self.engines = Engines(self.probing, self.clock, lambda: 0.5, self._hear, self._make)
        self.hurry = asyncio.Event()

    @property
    def engine(self) -> FakeEngine:
        """Returns the latest engine."""
        return self.made[-1]

    def state(self, name: str = "e") -> str:
        supervisor = self.engines.find(name)
        assert supervisor is not None
        return supervisor.seen().now.state

    def whats(self) -> list[str]:
        return [what for _, what, _ in self.told]

    async def come_up(self) -> None:
        await let_run()
        self.probing.up()
        await let_run()
        assert self.state() == "running"

    def _make(self, _config: EngineConfig, _clock: object) -> FakeEngine:
        self.made.append(FakeEngine())
        return self.engine

    def _hear(self, name: str, turn: EngineEvent) -> None:
        self.told.append((name, turn.what, turn.after))


@asynccontextmanager
async def world(**engines: EngineConfig) -> AsyncIterator[World]:
    found = World()
    found.engines.adopt(engines or {"e": config()})
    await let_run()
    try:
        yield found
    finally:
        found.hurry.set()
        await found.engines.stop(found.hurry)


# lifecycle


async def test_engine_is_started_with_the_gateway_and_runs_once_its_probe_is_good() -> None:
    async with world() as here:
        assert here.engine.done == ["start"]
        assert here.state() == "starting"
        assert "local" in here.probing.asked
        here.probing.up()
        assert here.state() == "running"
        assert here.told == [("e", "start", "starting"), ("e", "started", "running")]


async def test_spare_engine_waits_to_be_started() -> None:
    async with world(e=config(standby=True)) as here:
        assert (here.state(), here.engine.done) == ("stopped", [])
        supervisor = here.engines.find("e")
        assert supervisor is not None
        assert supervisor.start()
        await let_run()
        assert here.engine.done == ["start"]
        assert not supervisor.start()


async def test_engine_that_died_is_back_after_its_wait() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.asked.clear()
        here.engine.die("it was ended by signal SIGKILL")
        await let_run()
        assert here.state() == "unhealthy"
        assert here.probing.asked == ["local"]  # the probe makes calls go elsewhere
        await here.clock.pass_s(1.9)
        assert here.state() == "unhealthy"
        await here.clock.pass_s(0.1)
        assert here.state() == "restarting"
        assert here.engine.done == ["start", "stop 20", "start"]
        here.probing.up()
        assert here.whats() == ["start", "started", "health_failed", "auto_restart", "auto_restart_success"]


async def test_engine_that_could_not_be_started_is_not_watched() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.die("it was ended by signal SIGKILL")
        await let_run()
        here.engine.problems = ["no"]
        here.probing.asked.clear()
        await here.clock.pass_s(2)
        assert here.state() == "restart_failed"
        assert here.probing.asked == ["local"]  # a watch would have found it gone, and have had it probed again


async def test_engine_that_was_stopped_is_watched_no_more() -> None:
    async with world() as here:
        await here.come_up()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.stop()
        await let_run()
        here.probing.asked.clear()
        here.engine.die("it was ended by signal SIGTERM")
        await let_run()
        assert (here.state(), here.probing.asked) == ("stopped", [])


async def test_engine_that_hangs_is_restarted_when_its_probes_have_failed_so_often() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.slip()
        assert here.state() == "running"
        here.probing.down()
        assert here.state() == "unhealthy"
        await here.clock.pass_s(2)
        assert here.engine.done == ["start", "stop 20", "start"]


async def test_engine_is_probed_often_while_it_starts() -> None:
    async with world() as here:
        here.probing.asked.clear()
        await here.clock.pass_s(10)
        assert here.probing.asked == ["local"] * 20
        here.probing.up()
        here.probing.asked.clear()
        await here.clock.pass_s(10)
        assert here.probing.asked == []


async def test_probe_that_failed_once_does_not_show_that_it_is_up() -> None:
    async with world() as here:
        here.probing.slip()
        assert here.state() == "starting"


async def test_engine_is_up_once_all_its_upstreams_are() -> None:
    async with world(e=config(upstreams=("local", "other"))) as here:
        here.probing.up("local")
        assert here.state() == "starting"
        here.probing.up("other")
        assert here.state() == "running"
        here.probing.down("other")
        assert here.state() == "unhealthy"


async def test_engine_that_cannot_start_is_given_up_after_the_computed_time() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.die("it ended with exit code 1")
        await let_run()
        began_at = here.clock.now()
        here.engine.problems = ["no", "no", "no", "no"]
        await here.clock.pass_s(5.9)
        assert here.state() == "restart_failed"
        assert here.probing.failed == {}
        await here.clock.pass_s(0.1)
        assert here.state() == "failed"
        assert here.clock.now() - began_at == pytest.approx(6.0)
        assert here.probing.failed == {"local": "no"}
        assert here.whats()[-1] == "auto_restart_gave_up"
        here.engine.done.clear()
        await here.clock.pass_s(100_000)
        assert here.engine.done == []


async def test_engine_that_never_starts_is_given_up_after_its_boots_too() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.down()
        await here.clock.pass_s(2 + 30 + 4 + 29.9)
        assert here.state() == "restarting"
        await here.clock.pass_s(0.1)
        assert here.state() == "failed"
        assert here.probing.failed == {"local": "it was not up within 30 s"}


async def test_engine_that_was_given_up_and_recovers_is_no_longer_failed() -> None:
    async with world(e=config(restart={**SCHEDULE, "max_attempts": 1})) as here:
        await here.come_up()
        here.engine.problems = ["no"]
        here.probing.down()
        await here.clock.pass_s(2)
        assert here.probing.failed == {"local": "no"}
        here.probing.up()
        assert (here.state(), here.probing.failed) == ("running", {})


async def test_failure_of_another_kind_does_not_end_the_care() -> None:
    async with world() as here:
        await here.come_up()

        async def fall_over(grace_s: float) -> None:
            raise RuntimeError("a mistake")

        here.engine.stop = fall_over  # type: ignore[method-assign]
        here.probing.down()
        await here.clock.pass_s(2)
        supervisor = here.engines.find("e")
        assert supervisor is not None
        assert (here.state(), supervisor.seen().now.why) == ("restart_failed", "RuntimeError: a mistake")


# restarts by another gateway


async def test_engine_that_another_gateway_has_restarted_is_only_waited_for() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.down()
        here.engine.begin()
        await here.clock.pass_s(2)
        assert here.state() == "restarting"
        assert here.engine.done == ["start"]
        here.probing.up()
        assert here.whats()[-1] == "auto_restart_success"


async def test_engine_that_another_gateway_has_restarted_is_watched_once() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.down()
        here.engine.begin()
        await here.clock.pass_s(2)
        here.probing.up()
        assert here.state() == "running"
        here.probing.asked.clear()
        here.engine.die("it was ended by signal SIGKILL")
        await let_run()
        assert (here.state(), here.probing.asked) == ("unhealthy", ["local"])


async def test_engine_that_was_restarted_and_is_no_better_is_restarted_after_all() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.down()
        here.engine.begin()
        await here.clock.pass_s(2 + 30 + 4)
        assert here.engine.done == ["start", "stop 20", "start"]


async def test_second_restart_by_an_operator_is_refused_while_one_runs() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.begin()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        assert supervisor.restart()
        assert not supervisor.restart()
        await let_run()
        assert here.engine.done == ["start", "stop 20", "start"]


# stops during a restart


async def test_stop_waits_for_the_running_action() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.gate = asyncio.Event()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.restart()
        await let_run()
        assert supervisor.stop()
        assert (supervisor.seen().now.state, supervisor.seen().now.doing) == ("stopped", "stop")
        here.engine.gate.set()
        await let_run()
        assert here.engine.done == ["start", "stop 20", "start", "stop 20"]
        assert supervisor.seen().now.doing is None


async def test_output_of_an_engine_that_was_stopped_is_shown() -> None:
    async with world() as here:
        await here.come_up()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        assert supervisor.seen().output == ("hello",)
        supervisor.stop()
        await let_run()
        assert supervisor.seen().output == ("after stop 20",)


async def test_gateway_that_stops_during_a_restart_closes_its_own_resources() -> None:
    async with world() as here:
        await here.come_up()
        gate = here.engine.gate = asyncio.Event()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.restart()
        await let_run()
        stopping = asyncio.create_task(here.engines.stop(here.hurry))
        await let_run()
        gate.set()
        await stopping
        assert here.engine.done == ["start", "stop 20", "close 20"]
        assert here.probing.hearers == {"local": []}


async def test_gateway_that_ends_watches_no_engine() -> None:
    async with world() as here:
        await here.come_up()
        await here.engines.stop(here.hurry)
        here.probing.asked.clear()
        here.engine.die("it ended with its container")
        await let_run()
        assert (here.whats(), here.probing.asked) == (["start", "started"], [])


async def test_forced_shutdown_skips_the_stop_timeout() -> None:
    async with world() as here:
        here.engine.gate = asyncio.Event()
        stopping = asyncio.create_task(here.engines.stop(here.hurry))
        await let_run()
        assert not stopping.done()
        here.hurry.set()
        await let_run()
        assert here.engine.done == ["start", "close 20", "close 0"]
        here.engine.gate.set()
        await stopping


async def test_forced_shutdown_skips_the_stop_timeout_of_an_engine_removed_from_the_config() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.gate = asyncio.Event()
        here.engines.adopt({})
        await let_run()
        stopping = asyncio.ensure_future(here.engines.stop(here.hurry))
        await let_run()
        assert here.engine.done == ["start", "close 20"]
        here.hurry.set()
        await let_run()
        assert here.engine.done == ["start", "close 20", "close 0"]
        here.engine.gate.set()
        await stopping


# reloads


async def test_reload_that_changes_nothing_does_nothing() -> None:
    async with world() as here:
        await here.come_up()
        here.engines.adopt({"e": config()})
        await let_run()
        assert (here.state(), here.engine.done, len(here.made)) == ("running", ["start"], 1)


async def test_reload_with_another_schedule_leaves_running_actions() -> None:
    async with world() as here:
        await here.come_up()
        here.engines.adopt({"e": config(restart={**SCHEDULE, "base_delay": "7s"})})
        await let_run()
        assert here.engine.done == ["start"]
        here.probing.down()
        await here.clock.pass_s(6.9)
        assert here.state() == "unhealthy"
        await here.clock.pass_s(0.1)
        assert here.state() == "restarting"


async def test_reload_with_another_driver_stops_the_old_engine_and_starts_the_new() -> None:
    async with world() as here:
        await here.come_up()
        old = here.engine
        here.engines.adopt({"e": config(docker={"container": "b"})})
        await let_run()
        assert old.done == ["start", "stop 20"]
        assert here.engine.done == ["start"]
        assert here.state() == "restarting"
        here.probing.up()
        assert here.state() == "running"


async def test_reload_with_another_driver_during_a_restart_ends_with_the_new_engine() -> None:
    async with world() as here:
        await here.come_up()
        old = here.engine
        old.gate = asyncio.Event()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.restart()
        await let_run()
        here.engines.adopt({"e": config(docker={"container": "b"})})
        old.gate.set()
        await let_run()
        assert old.done == ["start", "stop 20"]
        assert here.engine is not old
        assert here.engine.is_running


async def test_reload_with_another_driver_is_followed_though_the_old_engine_cannot_be_stopped() -> None:
    async with world() as here:
        await here.come_up()
        here.engine.problems = ["docker cannot be reached"] * 9
        here.engines.adopt({"e": config(command={"argv": ["/opt/bin/vllm"]}, docker=None)})
        await let_run()
        assert [each.done for each in here.made] == [["start", "stop 20"], ["start"]]
        here.probing.up()
        assert here.state() == "running"


async def test_reload_that_makes_a_standby_engine_permanent_starts_it() -> None:
    async with world(e=config(standby=True)) as here:
        here.engines.adopt({"e": config()})
        await let_run()
        assert here.engine.done == ["start"]


async def test_reload_leaves_an_engine_that_an_operator_has_stopped() -> None:
    async with world() as here:
        await here.come_up()
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.stop()
        here.engines.adopt({"e": config(start_timeout="31s")})
        await let_run()
        assert here.engine.done == ["start", "stop 20"]


async def test_reload_with_another_driver_leaves_a_stopped_engine_stopped() -> None:
    async with world(e=config(standby=True)) as here:
        here.engines.adopt({"e": config(standby=True, docker={"container": "b"})})
        await let_run()
        assert [each.done for each in here.made] == [[], []]
        supervisor = here.engines.find("e")
        assert supervisor is not None
        supervisor.start()
        await let_run()
        assert [each.done for each in here.made] == [[], ["start"]]


async def test_reload_with_other_upstreams_observes_those() -> None:
    async with world() as here:
        await here.come_up()
        here.engines.adopt({"e": config(upstreams=("other",))})
        here.probing.down("local")
        assert here.state() == "running"
        here.probing.down("other")
        assert here.state() == "unhealthy"


async def test_engine_that_was_given_up_leaves_no_mark_on_upstreams_that_it_no_longer_serves() -> None:
    async with world() as here:
        here.engine.problems = ["no such container"] * 10
        await here.clock.pass_s(300)
        assert here.state() == "failed"
        assert here.probing.failed.keys() == {"local"}
        here.engines.adopt({"e": config(upstreams=("other",))})
        await let_run()
        assert here.probing.failed.keys() == {"other"}


async def test_engine_that_a_reload_removes_leaves_no_mark() -> None:
    async with world() as here:
        here.engine.problems = ["no such container"] * 10
        await here.clock.pass_s(300)
        assert here.probing.failed.keys() == {"local"}
        here.engines.adopt({})
        await let_run()
        assert not here.probing.failed


async def test_reload_that_removes_one_in_the_middle_of_a_restart_forgets_it() -> None:
    async with world() as here:
        await here.come_up()
        here.probing.down()
        await here.clock.pass_s(2)
        here.engines.adopt({})
        await let_run()
        assert here.engine.is_closed
        assert here.engines.seen() == []
        assert here.told[-1] == ("e", "stop", "stopped")  # this ends the alert of the removed engine
        here.engine.done.clear()
        await here.clock.pass_s(1000)
        assert here.engine.done == []


# drivers


@pytest.mark.parametrize(
    ("way", "kind", "place"),
    [
        ({"command": {"argv": ("/opt/bin/vllm", "serve")}}, ProcessDriver, "vllm"),
        ({"docker": {"container": "x"}}, ContainerDriver, "docker container x"),
        ({"podman": {"container": "x"}}, ContainerDriver, "podman container x"),
        ({"systemd": {"unit": "vllm.service"}}, SystemdDriver, "unit vllm.service"),
    ],
)
def test_each_type_has_its_driver(way: dict[str, Any], kind: type, place: str) -> None:
    made = strategy_of(EngineConfig.model_validate({"upstreams": ("local",), **way}), SteppedClock())
    assert isinstance(made, kind)
    assert made.place == place
