"""Credentials are renewed in the background; calls wait for the first ones only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.upstreams.credentials.source import (
    FETCH_S,
    WAIT_S,
    CloudCredential,
    CredentialSource,
    described,
)
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually

LIFETIME_S = 3600.0


class Cloud:
    """Issues tokens, as a library would: blocking, in a thread."""

    def __init__(self, clock: SteppedClock) -> None:
        self.clock = clock
        self.count = 0
        self.error: Exception | None = None
        self.lifetime_s: float | None = LIFETIME_S
        self.is_fixed = False
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self) -> CloudCredential:
        self.count += 1
        number = self.count
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        expires_at = None if self.lifetime_s is None else self.clock.wall() + self.lifetime_s
        return CloudCredential("fixed" if self.is_fixed else f"token-{number}", expires_at)


class Dialing:
    """Records what an attempt's time limits hear."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


class World:
    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.cloud = Cloud(self.clock)
        self.source = CredentialSource("upstreams.a.auth", "google", self.cloud.fetch, self.clock, lambda: 0.0)

    @property
    def token(self) -> str | None:
        valid = self.source.valid()
        return None if valid is None else valid.token

    async def fetched(self, count: int) -> None:
        """Returns once the cloud has been asked so often, and the answer is in use."""
        await eventually(lambda: self.cloud.count >= count and self.source._ended is not self._seen)
        self._seen = self.source._ended

    _seen: object = None

    async def pass_s(self, seconds: float) -> None:
        self._seen = self.source._ended
        await self.clock.pass_s(seconds)


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    world._seen = world.source._ended
    world.source.start()
    try:
        yield world
    finally:
        world.cloud.gate.set()
        await world.source.stop()


async def test_credentials_are_renewed_ahead_of_their_expiry() -> None:
    async with running() as world:
        await world.fetched(1)
        assert world.token == "token-1"
        await world.pass_s(2699)
        assert world.cloud.count == 1
        await world.pass_s(2)
        await world.fetched(2)
        assert world.token == "token-2"


async def test_thousand_calls_at_the_start_have_the_cloud_asked_once() -> None:
    async with running() as world:
        world.cloud.gate.clear()
        calls = [asyncio.ensure_future(world.source.obtain(None)) for _ in range(1000)]
        await eventually(lambda: world.cloud.count == 1)
        world.cloud.gate.set()
        assert {credential.token for credential in await asyncio.gather(*calls)} == {"token-1"}
        await world.pass_s(1)
        assert world.cloud.count == 1


async def test_time_limits_of_a_call_learn_that_it_waits_for_credentials() -> None:
    async with running() as world:
        dialing = Dialing()
        await world.source.obtain(dialing)
        assert dialing.calls == ["on_authorizing", "on_authorized"]


async def test_dead_cloud_costs_no_call_while_the_old_credentials_are_valid() -> None:
    async with running() as world:
        await world.fetched(1)
        world.cloud.error = OSError("down")
        await world.pass_s(2701)
        await world.fetched(2)
        assert world.source.problem == "OSError: down"
        assert world.token == "token-1"
        await world.pass_s(898)
        assert world.token == "token-1"
        await world.pass_s(2)
        assert world.token is None


async def test_expired_credentials_fail_calls_at_once_with_a_reason_and_without_asking_more() -> None:
    async with running() as world:
        world.cloud.error = OSError("down")
        await world.fetched(1)
        for _ in range(100):
            with pytest.raises(
                UpstreamError, match=r"no valid credentials.*auth: google.*renewing them fails"
            ) as found:
                await world.source.obtain(None)
            assert found.value.kind is FailureKind.CREDENTIALS
        assert world.cloud.count == 1


async def test_failed_renewals_are_repeated_with_longer_and_longer_pauses() -> None:
    async with running() as world:
        world.cloud.error = OSError("down")
        await world.fetched(1)
        for count, pause_s in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0), 2):
            await world.pass_s(pause_s - 0.2)
            assert world.cloud.count == count - 1
            await world.pass_s(0.21)
            await world.fetched(count)
        world.cloud.error = None
        with capture_logs() as log:
            await world.pass_s(30)
            await world.fetched(10)
        assert world.source.problem is None
        assert [line["event"] for line in log] == ["credentials are renewed again"]


async def test_same_problem_is_logged_once() -> None:
    with capture_logs() as log:
        async with running() as world:
            world.cloud.error = OSError("down")
            await world.fetched(1)
            await world.pass_s(0.6)
            await world.fetched(2)
    errors = [line for line in log if line["log_level"] == "error"]
    assert [line["error"] for line in errors] == ["OSError: down"]


async def test_call_waits_a_few_seconds_for_a_slow_cloud() -> None:
    async with running() as world:
        world.cloud.gate.clear()
        call = asyncio.ensure_future(world.source.obtain(None))
        await eventually(lambda: world.cloud.count == 1)
        await world.clock.pass_s(WAIT_S - 0.1)
        assert not call.done()
        await world.clock.pass_s(0.2)
        with pytest.raises(UpstreamError, match="they have not come yet"):
            await call


async def test_cloud_that_does_not_answer_is_given_up_and_asked_again() -> None:
    async with running() as world:
        world.cloud.gate.clear()
        await eventually(lambda: world.cloud.count == 1)
        await world.pass_s(FETCH_S + 0.1)
        await world.fetched(1)
        assert world.source.problem == "no answer within 60 s"
        await world.pass_s(1)
        await eventually(lambda: world.cloud.count == 2)  # in another thread
        world.cloud.gate.set()
        await eventually(lambda: world.token == "token-2")


async def test_cancelled_call_leaves_the_renewal_to_the_others() -> None:
    async with running() as world:
        world.cloud.gate.clear()
        left, stays = (asyncio.ensure_future(world.source.obtain(None)) for _ in range(2))
        await eventually(lambda: world.cloud.count == 1)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        world.cloud.gate.set()
        assert (await stays).token == "token-1"


async def test_stop_does_not_wait_for_a_cloud_that_hangs() -> None:
    async with running() as world:
        world.cloud.gate.clear()
        await eventually(lambda: world.cloud.count == 1)
        async with asyncio.timeout(1):
            await world.source.stop()


async def test_call_after_a_sleep_of_the_machine_has_the_expired_credentials_renewed() -> None:
    async with running() as world:
        await world.fetched(1)
        world.clock.set_wall(2 * LIFETIME_S)
        assert world.token is None
        assert (await world.source.obtain(None)).token == "token-2"


async def test_refused_credentials_are_renewed_early_but_not_for_every_refusal() -> None:
    async with running() as world:
        await world.fetched(1)
        first = world.source.valid()
        assert first is not None
        world.source.note_refusal(first)
        await world.pass_s(59)
        assert world.cloud.count == 1  # they are new: another renewal would not help
        await world.pass_s(2)
        world.source.note_refusal(CloudCredential("another"))
        await world.pass_s(0.1)
        assert world.cloud.count == 1
        world.source.note_refusal(first)
        await world.pass_s(0.1)
        await world.fetched(2)
        world.source.note_refusal(first)
        await world.pass_s(120)
        assert world.cloud.count == 2


async def test_refused_keys_that_never_change_are_not_looked_up_for_every_refusal() -> None:
    async with running() as world:
        world.cloud.lifetime_s = None
        world.cloud.is_fixed = True
        await world.fetched(1)
        await world.pass_s(100)
        for _ in range(5):
            valid = world.source.valid()
            assert valid is not None
            world.source.note_refusal(valid)
            await world.pass_s(1)
            await eventually(lambda: world.cloud.count == 2)


async def test_credentials_without_an_expiry_are_looked_up_again() -> None:
    async with running() as world:
        world.cloud.lifetime_s = None
        await world.fetched(1)
        await world.pass_s(301)
        await world.fetched(2)
        assert world.token == "token-2"


async def test_credentials_that_have_expired_already_are_a_problem() -> None:
    async with running() as world:
        world.cloud.lifetime_s = -1.0
        await world.fetched(1)
        assert world.source.problem == "ValueError: they have expired already"
        assert world.token is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "OSError"),
        ("two\n lines", "OSError: two lines"),
        (f"refused {'s' * 40} here", "OSError: refused *** here"),
        ('{"error":"x","assertion":"' + "s" * 40 + '"}', "OSError: ***"),
        (f"GET http://169.254.169.254/token?secret={'s' * 40}", "OSError: GET http://169.254.169.254/token"),
        ("word " * 200, "OSError: " + ("word " * 60)),
    ],
)
def test_text_of_a_problem_has_no_secrets(text: str, expected: str) -> None:
    assert described(OSError(text)) == expected


def test_credentials_do_not_show_their_secrets() -> None:
    assert "secret" not in repr(CloudCredential("secret-1", 1.0, "secret-2", "secret-3"))
