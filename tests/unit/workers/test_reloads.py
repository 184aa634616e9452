"""All workers use a new config, or none does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from llm_guard.workers.agreement import FOLLOWER
from llm_guard.workers.channel import ChannelClosed
from llm_guard.workers.child import Child
from llm_guard.workers.messages import Agree, Agreed, ConfigRead, Message, Reload, ReloadRefused
from llm_guard.workers.reloads import Reloads
from tests.chaos.process import write
from tests.fakes.waiting import eventually


class Follower:
    """A worker that is told to reload. `digest`: that of the config that it reads; None: it cannot use it."""

    def __init__(self, number: int, digest: str | None = "new", *, has_ended: bool = False) -> None:
        self.number = number
        self.channel = self
        self.world: Reloads
        self.decisions: list[Message] = []
        self.texts: list[Message] = []
        self._digest = digest
        self._has_ended = has_ended

    async def ask(self, message: Message, _within_s: float) -> Message:
        assert message == Reload(FOLLOWER)
        if self._has_ended:
            raise ChannelClosed
        self.texts.append(await self.world.text_for(cast("Child", self)))
        if self._digest is None:
            return ReloadRefused(["models: is missing"])
        self.decisions.append(await self.world.agree(cast("Child", self), Agree(self._digest, is_rollback=False)))
        return self.decisions[-1]


def world(path: Path, *workers: Follower) -> Reloads:
    path.write_text("new text")
    found = Reloads(path, "old text", lambda: cast("Sequence[Child]", workers))
    found.note_ready("old")
    found.note_ready("of a worker that is ready later")
    for worker in workers:
        worker.world = found
    return found


async def reload(found: Reloads, initiator: Follower, digest: str = "new") -> Message:
    assert await found.text_for(cast("Child", initiator)) == ConfigRead("new text")
    return await found.agree(cast("Child", initiator), Agree(digest, is_rollback=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "guard.yaml"


async def test_config_that_all_have_read_is_used(path: Path) -> None:
    first, second, third = Follower(1), Follower(2), Follower(3)
    found = world(path, first, second, third)
    assert found.digest == "old"
    assert await reload(found, first) == Agreed()
    await eventually(lambda: [worker.decisions for worker in (second, third)] == [[Agreed()], [Agreed()]])
    assert second.texts == [ConfigRead("new text")], "the text that the first has read, whatever the file has now"
    assert (found.digest, found.text) == ("new", "new text")


async def test_others_read_what_the_first_has_read(path: Path) -> None:
    first, second = Follower(1), Follower(2)
    found = world(path, first, second)
    assert await found.text_for(cast("Child", first)) == ConfigRead("new text")
    write(path, "newer text")
    await found.agree(cast("Child", first), Agree("new", is_rollback=False))
    assert second.texts == [ConfigRead("new text")]


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (Follower(2, None), "worker 2: models: is missing"),
        (Follower(2, "another"), "worker 2: another reload is running: repeat it"),
    ],
)
async def test_config_that_one_cannot_use_is_used_by_none(path: Path, second: Follower, problem: str) -> None:
    first, third = Follower(1), Follower(3)
    found = world(path, first, second, third)
    assert await reload(found, first) == ReloadRefused([problem])
    await eventually(lambda: third.decisions == [ReloadRefused([problem])])
    assert (found.digest, found.text) == ("old", "old text")


async def test_worker_that_has_ended_is_not_waited_for(path: Path) -> None:
    first = Follower(1)
    found = world(path, first, Follower(2, has_ended=True))
    assert await reload(found, first) == Agreed()


async def test_rollback_uses_the_text_that_was_in_use(path: Path) -> None:
    first, second = Follower(1), Follower(2)
    found = world(path, first, second)
    await reload(found, first)
    second._digest = "old"
    assert await found.agree(cast("Child", first), Agree("old", is_rollback=True)) == Agreed()
    assert (found.digest, found.text) == ("old", "old text")
    assert second.texts[-1] == ConfigRead("old text")
    refused = await found.agree(cast("Child", first), Agree("never used", is_rollback=True))
    assert isinstance(refused, ReloadRefused)


async def test_file_that_cannot_be_read_is_refused(path: Path) -> None:
    first = Follower(1)
    found = world(path, first)
    os.unlink(path)
    reply = await found.text_for(cast("Child", first))
    assert reply == ReloadRefused(["cannot be read: No such file or directory"])


async def test_changed_file_is_due_until_a_worker_reads_it(path: Path) -> None:
    first = Follower(1)
    found = world(path, first)
    assert not found.is_due()
    write(path, "another text")
    assert found.is_due()
    await found.text_for(cast("Child", first))
    assert not found.is_due()
    os.unlink(path)
    assert not found.is_due(), "it may be about to be replaced"
