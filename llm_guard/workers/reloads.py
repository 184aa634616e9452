"""Reloads of all workers: each reads the same text, and none uses it before all could read it.

Whichever worker begins (`config_reloader` requests the text, then the agreement), the others are told to reload,
too. A worker that fails afterwards, or that was starting meanwhile, is found by its digest (`supervisor`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from llm_guard.config import ConfigError, config_text
from llm_guard.config_reloader import KEPT
from llm_guard.worker_thread import WorkerThread
from llm_guard.workers.agreement import AGREE_S, FOLLOWER
from llm_guard.workers.channel import ChannelClosed
from llm_guard.workers.child import Child
from llm_guard.workers.messages import Agree, Agreed, ConfigRead, Message, Reload, ReloadRefused

_log = structlog.get_logger("llm_guard.workers.reloads")

_FOLLOW_S = AGREE_S - 5.0
"""The others have less time than the worker that has begun."""


class _Round:
    """One reload."""

    def __init__(self, initiator: Child, digest: str, text: str) -> None:
        self.initiator = initiator
        self.digest = digest
        self.text = text
        self.has_read: dict[Child, asyncio.Event] = {}
        self.decided: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class Reloads:
    """The config that all workers use, and its changes."""

    def __init__(self, path: Path, text: str, children: Callable[[], Iterable[Child]]) -> None:
        """`children` returns the workers that are ready."""
        self.text = text
        """Text of the config in use, for a worker that starts."""
        self.digest = ""
        """Its digest; empty until the first worker is ready."""
        self._path = path
        self._children = children
        self._thread = WorkerThread("config file")
        self._read: dict[Child, str] = {}
        """The text that each worker is about to use."""
        self._texts: dict[str, str] = {}
        """Texts that were in use, by digest: for rollbacks."""
        self._round: _Round | None = None
        self._stamp = _stamp(path)

    def is_due(self) -> bool:
        """Returns whether the file has changed since a worker last requested its text."""
        now = _stamp(self._path)
        return now is not None and now != self._stamp

    def note_ready(self, digest: str) -> None:
        """Notes the digest of the first worker's config."""
        if not self.digest:
            self._use(digest, self.text)

    async def text_for(self, child: Child) -> Message:
        """Returns the text that a worker should read."""
        if self._round is not None and child is not self._round.initiator:
            return ConfigRead(self._round.text)
        self._stamp = _stamp(self._path) or self._stamp
        try:
            text = await self._thread.run(config_text, self._path)
        except ConfigError as error:
            return ReloadRefused([problem.reason for problem in error.problems])
        self._read[child] = text
        return ConfigRead(text)

    async def agree(self, child: Child, message: Agree) -> Message:
        """Returns once all workers have read the config that this one has read."""
        if self._round is None:
            text = self._texts.get(message.digest) if message.is_rollback else self._read.pop(child, None)
            if text is None:
                return ReloadRefused(["its text is not known to the other workers: reload the file"])
            return await self._lead(_Round(child, message.digest, text))
        current = self._round
        event = current.has_read.get(child)
        if event is None or message.digest != current.digest:
            return ReloadRefused(["another reload is running: repeat it"])
        event.set()
        return await asyncio.shield(current.decided)

    async def _lead(self, current: _Round) -> Message:
        self._round = current
        try:
            others = [child for child in self._children() if child is not current.initiator]
            current.has_read = {child: asyncio.Event() for child in others}
            found = await asyncio.gather(*(self._follow(current, child) for child in others))
            problems = [problem for problem in found if problem is not None]
            decision: Message = ReloadRefused(problems) if problems else Agreed()
            if not problems:
                self._use(current.digest, current.text)
            else:
                _log.error("the config stays as it was: not all workers can use the new one", problems=problems)
            current.decided.set_result(decision)
            return decision
        finally:
            current.decided.cancel()
            self._round = None

    async def _follow(self, current: _Round, child: Child) -> str | None:
        """Tells a worker to reload; returns why it cannot, None once it has read the config, or has ended."""
        reply = asyncio.ensure_future(child.channel.ask(Reload(FOLLOWER), 2 * AGREE_S))
        reading = asyncio.ensure_future(current.has_read[child].wait())
        reply.add_done_callback(_retrieve)
        await asyncio.wait((reply, reading), timeout=_FOLLOW_S, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        if current.has_read[child].is_set():
            return None
        if not reply.done():
            return f"worker {child.number} has not read it within {_FOLLOW_S:g} s"
        if isinstance(reply.exception(), ChannelClosed):
            return None
        refusal = reply.result() if reply.exception() is None else None
        why = "; ".join(refusal.problems) if isinstance(refusal, ReloadRefused) else "it does not respond"
        return f"worker {child.number}: {why}"

    def _use(self, digest: str, text: str) -> None:
        self.digest, self.text = digest, text
        self._texts.pop(digest, None)
        self._texts[digest] = text
        while len(self._texts) > KEPT:
            del self._texts[next(iter(self._texts))]


def _retrieve(reply: asyncio.Future[Message]) -> None:
    """Takes the exception of a reply that none waits for any more."""
    if not reply.cancelled():
        reply.exception()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns the file's time, size and inode; None if there is no file, or it is being replaced."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
