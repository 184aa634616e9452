"""Config reloads: accepted, rejected and rolled back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llm_guard.config import Config, ConfigError, ConfigProblem, load_config
from llm_guard.config_reloader import KEPT, Adopted, ConfigReloader, NothingToDo
from tests.fakes.clock import ManualClock, SteppedClock
from tests.fakes.waiting import eventually


def text(idle_s: int, **server: object) -> str:
    return json.dumps(
        {
            "server": server,
            "upstreams": {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}},
            "defaults": {"timeout": {"idle": f"{idle_s}s"}},
            "models": {"gpt": {"deployments": [{"upstream": "a"}]}},
        }
    )


class World:
    """A config file, and which of its versions were adopted or rejected."""

    def __init__(self, path: Path, clock: ManualClock | None = None) -> None:
        self.path, self.adopted, self.refused = path, list[Adopted](), list[tuple[str, ...]]()
        self.clock = clock or SteppedClock()
        path.write_text(text(1))
        self.reloads = ConfigReloader(
            load_config(path), path, _adapted, self.adopted.append, self.refused.append, self.clock
        )  # fmt: skip

    async def reload(self, idle_s: int) -> Adopted:
        self.path.write_text(text(idle_s))
        return await self.reloads.reload("ann")

    @property
    def idle_s(self) -> float:
        return self.reloads.current.config.defaults.timeout.idle


def _adapted(config: Config) -> Config:
    return config.model_copy(update={"server": config.server.model_copy(update={"port": 9999})})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "guard.yaml")


async def test_reload_reports_its_changes(world: World) -> None:
    adopted = await world.reload(2)
    assert world.adopted == [adopted]
    assert (adopted.how, adopted.by, adopted.at) == ("reload", "ann", 1_800_000_000.0)
    assert ("defaults.timeout.idle", 1.0, 2.0) in [
        (change.key, change.before, change.after) for change in adopted.changes
    ]
    assert adopted.config.server.port == 9999


async def test_only_non_reloadable_changes_need_a_restart(world: World) -> None:
    adopted = await world.reload(2)
    assert adopted.needs_restart == ["server.port"]
    assert (await world.reload(3)).needs_restart == []


async def test_file_that_is_invalid_changes_nothing(world: World) -> None:
    await world.reload(2)
    world.path.write_text("models: []")
    with capture_logs() as log, pytest.raises(ConfigError):
        await world.reloads.reload("file")
    assert world.idle_s == 2.0
    assert len(world.adopted) == len(world.refused) == 1
    assert world.reloads.problems == world.refused[0]
    assert [line["event"] for line in log] == ["reload failed: the new config is invalid, the old one stays in use"]
    await world.reload(3)
    assert world.reloads.problems == ()


async def test_missing_file_changes_nothing(world: World) -> None:
    world.path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        await world.reloads.reload("ann")
    assert world.idle_s == 1.0


async def test_without_a_file_there_is_nothing_to_read(world: World) -> None:
    config = load_config(world.path)
    reloads = ConfigReloader(config, None, _adapted, world.adopted.append, world.refused.append, world.clock)
    with pytest.raises(NothingToDo, match="from a file"):
        await reloads.reload("ann")


# rollback


async def test_each_rollback_goes_one_config_further_back(world: World) -> None:
    for idle_s in (2, 3):
        await world.reload(idle_s)
    seen = []
    for _ in range(2):
        rolled = await world.reloads.rollback("ann")
        seen.append((rolled.how, world.idle_s, [change.after for change in rolled.changes if "idle" in change.key]))
    assert seen == [("rollback", 2.0, [2.0]), ("rollback", 1.0, [1.0])]
    with pytest.raises(NothingToDo, match="no earlier config"):
        await world.reloads.rollback("ann")
    assert [adopted.how for adopted in world.reloads.history] == ["start", "reload", "reload", "rollback", "rollback"]


async def test_after_a_rollback_the_next_reload_can_be_rolled_back_as_well(world: World) -> None:
    await world.reload(2)
    await world.reloads.rollback("ann")
    await world.reload(3)
    await world.reloads.rollback("ann")
    assert world.idle_s == 1.0


async def test_file_that_was_read_twice_is_one_config(world: World) -> None:
    await world.reload(2)
    assert (await world.reload(2)).changes == ()
    await world.reloads.rollback("ann")
    assert world.idle_s == 1.0


async def test_number_of_stored_configs_is_bounded(world: World) -> None:
    for idle_s in range(2, 20):
        await world.reload(idle_s)
    assert len(world.reloads.history) == KEPT
    for _ in range(KEPT - 1):
        await world.reloads.rollback("ann")
    assert world.idle_s == 10.0
    assert world.reloads.rollback_target is None


async def test_config_that_cannot_be_adopted_is_not_the_running_one(world: World) -> None:
    def fail(_adopted: Adopted) -> None:
        raise KeyError("a bug")

    world.reloads._adopt = fail
    with pytest.raises(KeyError):
        await world.reload(2)
    assert world.idle_s == 1.0
    assert world.reloads.rollback_target is None


async def test_two_at_once_follow_each_other(world: World) -> None:
    world.path.write_text(text(2))
    await asyncio.gather(*(world.reloads.reload(by) for by in ("ann", "bob")))
    assert [(adopted.by, bool(adopted.changes)) for adopted in world.adopted] == [("ann", True), ("bob", False)]


# file watching


@asynccontextmanager
async def watching(tmp_path: Path) -> AsyncIterator[tuple[World, SteppedClock]]:
    clock = SteppedClock()
    world = World(tmp_path / "guard.yaml", clock)
    task = asyncio.create_task(world.reloads.watch())
    await asyncio.sleep(0)
    yield world, clock
    task.cancel()
    await asyncio.wait((task,))


async def settled(world: World, count: int) -> None:
    """Waits for `count` results. The file is read in a thread."""
    await eventually(lambda: len(world.adopted) + len(world.refused) >= count and not world.reloads._turn.locked())


async def test_reload_whose_operator_disconnected_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def load_slowly(path: Path) -> Config:
        goes_on.wait(10)
        return load_config(path)

    async with watching(tmp_path) as (world, clock):
        with monkeypatch.context() as slow:
            slow.setattr("llm_guard.config_reloader.load_config", load_slowly)
            leaving = asyncio.create_task(world.reload(2))
            await eventually(world.reloads._turn.locked)
            leaving.cancel()
            await asyncio.wait((leaving,))
            goes_on.set()
        assert world.adopted == []
        await clock.pass_s(1.0)
        await settled(world, 1)
        assert world.idle_s == 2


async def test_changed_file_is_read_within_a_second(tmp_path: Path) -> None:
    async with watching(tmp_path) as (world, clock):
        await clock.pass_s(5.0)
        assert world.adopted == []
        world.path.write_text(text(2))
        await clock.pass_s(1.0)
        await settled(world, 1)
        assert (world.idle_s, world.adopted[0].by) == (2.0, "file")
        await clock.pass_s(5.0)
        assert len(world.adopted) == 1


async def test_requested_reload_happens_at_once_though_the_file_has_not_changed(tmp_path: Path) -> None:
    async with watching(tmp_path) as (world, clock):
        world.reloads.ask()
        await clock.pass_s(0.0)
        await settled(world, 1)
        assert world.adopted[0].by == "signal"


async def test_invalid_file_is_reported_once_and_the_next_change_is_read(tmp_path: Path) -> None:
    async with watching(tmp_path) as (world, clock):
        with capture_logs() as log:
            world.path.write_text("models: []")
            await clock.pass_s(1.0)
            await settled(world, 1)
            await clock.pass_s(5.0)
        assert [line["log_level"] for line in log] == ["error"]
        world.path.write_text(text(3))
        await clock.pass_s(1.0)
        await settled(world, 2)
        assert world.idle_s == 3.0


async def test_bug_in_a_reload_does_not_end_the_watch(tmp_path: Path) -> None:
    async with watching(tmp_path) as (world, clock):
        adopt = world.reloads._adopt

        def fail(adopted: Adopted) -> None:
            adopt(adopted)
            raise KeyError("a bug")

        world.reloads._adopt = fail
        with capture_logs() as log:
            world.reloads.ask()
            await clock.pass_s(0.0)
            await settled(world, 1)
            await clock.pass_s(0.0)
        assert [line["event"] for line in log] == ["unexpected error in a reload"]
        world.reloads._adopt = adopt
        world.reloads.ask()
        await clock.pass_s(0.0)
        await settled(world, 2)
        assert world.reloads.current.how == "reload"


async def test_rolled_back_config_stays_until_the_file_changes(tmp_path: Path) -> None:
    async with watching(tmp_path) as (world, clock):
        await world.reload(2)
        await world.reloads.rollback("ann")
        await clock.pass_s(5.0)
        assert world.idle_s == 1.0
        world.path.write_text(text(30))
        await clock.pass_s(1.0)
        await settled(world, 3)
        assert world.idle_s == 30.0


async def test_file_that_was_read_by_an_operator_is_not_read_again_by_the_watch(tmp_path: Path) -> None:
    clock = SteppedClock()
    world = World(tmp_path / "guard.yaml", clock)
    watch = asyncio.ensure_future(world.reloads.watch())
    await world.reload(2)
    for _ in range(5):
        await clock.pass_s(1.0)
        await asyncio.sleep(0.01)
    watch.cancel()
    assert [adopted.by for adopted in world.adopted] == ["ann"]


# several processes


class Agreement:
    """Other processes, which have this text and refuse it, or do not."""

    def __init__(self, text: str, problem: str | None = None) -> None:
        self.asked: list[Adopted] = []
        self.decided = asyncio.Event()
        self.decided.set()
        self._text = text
        self._problem = problem

    async def text(self) -> str:
        return self._text

    async def agree(self, adopted: Adopted) -> None:
        self.asked.append(adopted)
        await self.decided.wait()
        if self._problem is not None:
            raise ConfigError([ConfigProblem("guard.yaml", 0, "", self._problem)])


def with_others(world: World, others: Agreement) -> ConfigReloader:
    return ConfigReloader(
        load_config(world.path), world.path, _adapted, world.adopted.append, world.refused.append, world.clock, others
    )  # fmt: skip


async def test_text_that_all_processes_have_is_used_in_place_of_the_file(world: World) -> None:
    reloads = with_others(world, Agreement(text(7)))
    world.path.write_text(text(2))
    adopted = await reloads.reload("ann")
    assert adopted.config.defaults.timeout.idle == 7
    assert world.adopted == [adopted]


async def test_config_that_another_process_cannot_use_is_not_used(world: World) -> None:
    others = Agreement(text(7), "worker 2: it does not respond")
    reloads = with_others(world, others)
    with pytest.raises(ConfigError, match="worker 2"):
        await reloads.reload("ann")
    assert (world.adopted, len(others.asked)) == ([], 1)
    assert reloads.problems == ("guard.yaml: worker 2: it does not respond",)


async def test_rollback_that_another_process_cannot_make_is_not_made(world: World) -> None:
    others = Agreement(text(7))
    reloads = with_others(world, others)
    await reloads.reload("ann")
    others._problem = "worker 2: it does not respond"
    with pytest.raises(ConfigError, match="worker 2"):
        await reloads.rollback("ann")
    assert reloads.current.config.defaults.timeout.idle == 7
    assert [adopted.how for adopted in others.asked] == ["reload", "rollback"]


async def test_change_that_other_processes_make_too_goes_on_after_its_request_is_cancelled(world: World) -> None:
    others = Agreement(text(7))
    others.decided.clear()
    reloads = with_others(world, others)
    asked = asyncio.ensure_future(reloads.reload("ann"))
    await eventually(lambda: others.asked)
    asked.cancel()
    await asyncio.wait((asked,))
    others.decided.set()
    await eventually(lambda: world.adopted)
    others.decided.clear()
    asked = asyncio.ensure_future(reloads.rollback("ann"))
    await eventually(lambda: len(others.asked) == 2)
    asked.cancel()
    await asyncio.wait((asked,))
    others.decided.set()
    await eventually(lambda: [adopted.how for adopted in world.adopted] == ["reload", "rollback"])
