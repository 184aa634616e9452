"""A client that waits, and is told now and then that it is not forgotten: load balancers and read timeouts end what is
silent.

Owns when it is told. Does not own the words (`gateway.reply`), nor the settings (`policy.stream`).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from llm_guard.call import Call
from llm_guard.clock import Alarm, Clock
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.reply import Reply
from llm_guard.policy.stream import WaitingSettings

_LOOK_AGAIN_S = 1.0
"""Where nothing may be said yet."""


class Shared(Protocol):
    """A request that is made for several calls: see `gateway.flight`."""

    call: Call
    """Its own."""

    def wait_for(self, call: Call) -> None: ...


class Waiting:
    """`with Waiting(...)`: while its body waits, the client hears a word after each silence.

    The word is written by a task of its own, which is over when the body is: nothing else writes to the client then.
    """

    def __init__(
        self, call: Call, reply: Reply, settings: WaitingSettings | None, clock: Clock, shared: Shared | None = None
    ) -> None:
        """`shared`: the request that the call waits for, where that is not its own."""
        self._call = call
        self._shared = shared
        self._reply = reply
        self._settings = settings
        self._clock = clock
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._settings is not None and self._settings.applies_to(is_stream=self._call.is_stream):
            self._set(self._settings.after)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            # It writes nothing any more. To await its end would be a place to be cancelled in, with what the body has
            # brought in nobody's hands.
            self._task.cancel()

    def _set(self, after_s: float) -> None:
        self._alarm = self._clock.call_at(self._clock.now() + after_s, self._on_silence)

    def _on_silence(self) -> None:
        assert self._settings is not None  # noqa: S101  # else the alarm was not set
        self._alarm = None
        if not self._may_speak(self._settings):
            self._set(min(_LOOK_AGAIN_S, self._settings.after))
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._speak(self._settings.after))
            self._task.add_done_callback(_forget)

    def _may_speak(self, settings: WaitingSettings) -> bool:
        """Whether a head can be sent without harm: once it is, a failure can have no status of its own."""
        call = self._call
        if self._reply.has_begun:
            return True
        if call.method != "POST" or call.is_upgrade or not self._reply.request.has_arrived:
            return False
        if not call.is_stream:  # where the answer may be a stream, its head depends on the answer's form
            return settings.unary and not call.may_stream
        head = call.stream_head if self._shared is None else self._shared.call.stream_head
        return head == "plain" or (settings.before_head and not head)

    async def _speak(self, again_after_s: float) -> None:
        await self._reply.keep_waiting(self._call, header_rules.ours(self._call, None))
        if self._shared is not None:
            self._shared.wait_for(self._call)
        self._set(again_after_s)


def _forget(task: asyncio.Task[None]) -> None:
    """The client was gone: the next to write will say so."""
    if not task.cancelled():
        task.exception()
