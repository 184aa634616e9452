"""One set of credentials, kept valid in the background, so that no call waits for a renewal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import structlog

from llm_guard.clock import Clock
from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.interfaces import Dialing
from llm_guard.upstreams.credentials.renewal_schedule import backoff_s, renewal_delay_s
from llm_guard.worker_thread import WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.upstreams.credentials")

FETCH_S = 60.0
"""The longest that one renewal may take; its thread is then left to itself."""
WAIT_S = 5.0
"""The longest that a call waits for credentials that are on their way: the first ones, at the start."""
_REFUSED_S = 60.0
"""Refused credentials are renewed early, but not more often than this."""
_WORD = re.compile(r"[^\s]{32,}")
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class CloudCredential:
    """A token, or a key of AWS with its session token."""

    token: str = field(repr=False)
    expires_at: float | None = None
    """Seconds since the epoch; None: unknown."""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)


class CredentialSource:
    """Credentials from one place. `start` begins to obtain them, `stop` ends that. Belongs to one event loop."""

    def __init__(
        self,
        purpose: str,
        auth: str,
        fetch: Callable[[], CloudCredential],
        clock: Clock,
        draw: Callable[[], float],
        *,
        is_logged: bool = True,
    ) -> None:
        """`purpose` is the config's key, `auth` the cloud. `fetch` obtains credentials, may block, and may raise
        anything. `is_logged`: problems are written to the log."""
        self.purpose = purpose
        self.auth = auth
        self.problem: str | None = None
        """Why the last renewal failed, without secrets; None: it did not."""
        self._fetch = fetch
        self._is_logged = is_logged
        self._clock = clock
        self._draw = draw
        self._current: CloudCredential | None = None
        self._renewed_at = -inf
        self._lifetime_s = 0.0
        self._failures = 0
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        """Set at the end of the renewal that is running or comes next, and then replaced."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Stops at once; a renewal that is running goes on in its thread, and its result is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def valid(self) -> CloudCredential | None:
        """Returns the present credentials; None if there are none, or they have expired."""
        current = self._current
        if current is None or (current.expires_at is not None and current.expires_at <= self._clock.wall()):
            return None
        return current

    async def obtain(self, dialing: Dialing | None) -> CloudCredential:
        """Returns valid credentials, waiting for `WAIT_S` at most. After a failed renewal it does not wait. Raises
        UpstreamError (CREDENTIALS)."""
        if self.problem is None:
            if dialing is not None:
                dialing.on_authorizing()
            # The first ones are on their way; or the machine has slept, and the renewal is late.
            self._wake.set()
            await self._await_renewal()
            if dialing is not None:
                dialing.on_authorized()
        credential = self.valid()
        if credential is None:
            raise UpstreamError(FailureKind.CREDENTIALS, f"has no valid credentials (auth: {self.auth}): {self._why()}")
        return credential

    def note_refusal(self, credential: CloudCredential) -> None:
        """Renews credentials that the cloud refuses, in the background."""
        if credential is self._current and self._clock.now() - self._renewed_at >= _REFUSED_S:
            self._wake.set()

    def _why(self) -> str:
        return "they have not come yet" if self.problem is None else "renewing them fails, see the log"

    async def _await_renewal(self) -> None:
        ended, limit = self._ended, self._clock.limit()
        try:
            with limit:
                limit.set(self._clock.now() + WAIT_S, "credentials")
                await ended.wait()
        except TimeoutError:
            pass

    async def _keep(self) -> None:
        while True:
            delay_s = await self._renew()
            self._wake.clear()  # calls that wait for the first credentials have set it
            self._ended.set()
            self._ended = asyncio.Event()
            await self._pause(delay_s)

    async def _renew(self) -> float:
        """Obtains credentials. Returns after how many seconds to do so again."""
        self._renewed_at = self._clock.now()
        try:
            fetched = await wait_at_most(FETCH_S, WorkerThread("credentials").run(self._fetch), self._clock)
            left_s = None if fetched.expires_at is None else fetched.expires_at - self._clock.wall()
            if left_s is not None and left_s <= 0:
                raise ValueError("they have expired already")
        except TimeoutError:
            return self._note_failure(f"no answer within {FETCH_S:g} s")
        except Exception as error:  # noqa: BLE001  # the libraries raise many types, and the next try may succeed
            return self._note_failure(described(error))
        return self._adopt(fetched, left_s)

    def _adopt(self, fetched: CloudCredential, left_s: float | None) -> float:
        before, self._current = self._current, fetched
        self._failures = 0
        if before != fetched:
            self._lifetime_s = left_s or 0.0
        if self.problem is not None:
            self.problem = None
            _log.info("credentials are renewed again", purpose=self.purpose)
        return renewal_delay_s(left_s, self._lifetime_s, self._draw())

    def _note_failure(self, problem: str) -> float:
        self._failures += 1
        if problem != self.problem and self._is_logged:
            is_urgent = self.valid() is None
            effect = "calls fail until they are" if is_urgent else "the last ones stay in use until they expire"
            _log.error("credentials could not be renewed", purpose=self.purpose, error=problem, effect=effect)
        self.problem = problem
        return backoff_s(self._failures, self._draw())

    async def _pause(self, seconds: float) -> None:
        """Waits until the next renewal is due, or needed."""
        alarm = self._clock.call_at(self._clock.now() + seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()


def described(error: BaseException) -> str:
    """Returns an error's type and the beginning of its text. Long words may be secrets that a library or a server
    quotes, and are masked, apart from the beginning of a URL."""
    text = " ".join(str(error).split())
    masked = _WORD.sub(lambda found: _masked(found[0]), text)[:_MOST_CHARS]
    return f"{type(error).__name__}: {masked}" if masked else type(error).__name__


def _masked(word: str) -> str:
    is_url = word.startswith(("http://", "https://"))
    return f"{word.partition('?')[0][:80]}" if is_url else "***"
