"""A worker's side of a reload: it gets the config's text from the parent, and uses the config once all have read it."""

from __future__ import annotations

from typing import NoReturn

from llm_guard.config import ConfigError, ConfigProblem
from llm_guard.config_reloader import Adopted
from llm_guard.workers.channel import Channel, ChannelClosed
from llm_guard.workers.messages import Agree, Agreed, ConfigRead, Message, ReadConfig, ReloadRefused

FOLLOWER = "another worker"
"""Initiator of the reloads that another worker has begun."""
AGREE_S = 30.0
"""The longest that a worker waits for the others to read a config."""


class ParentAgreement:
    """Implements `config_reloader.ReloadAgreement`."""

    def __init__(self, channel: Channel, path: str) -> None:
        self._channel = channel
        self._path = path

    async def text(self) -> str:
        reply = await self._ask(ReadConfig())
        return reply.text if isinstance(reply, ConfigRead) else self._refuse(reply)

    async def agree(self, adopted: Adopted) -> None:
        reply = await self._ask(Agree(adopted.digest, adopted.how == "rollback"))
        if not isinstance(reply, Agreed):
            self._refuse(reply)

    async def _ask(self, message: Message) -> Message:
        try:
            return await self._channel.ask(message, AGREE_S)
        except ChannelClosed:
            return ReloadRefused(["the parent of the workers has ended"])
        except TimeoutError:
            return ReloadRefused([f"not all workers have read the config within {AGREE_S:g} s"])

    def _refuse(self, reply: Message) -> NoReturn:
        problems = (
            reply.problems if isinstance(reply, ReloadRefused) else ["the parent of the workers does not know why"]
        )
        raise ConfigError([ConfigProblem(self._path, 0, "", problem) for problem in problems])
