"""Engines as containers, through the API of Docker and Podman, with a fake daemon on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llm_guard.clock import Clock, SystemClock
from llm_guard.config import ContainerConfig
from llm_guard.upstreams.engines.docker_driver import ContainerDriver
from llm_guard.upstreams.engines.driver import EngineError
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually

RUNS: dict[str, Any] = {
    "Status": "running", "Running": True, "Paused": False, "Restarting": False, "OOMKilled": False, "Dead": False,
    "Pid": 1234, "ExitCode": 0, "Error": "", "StartedAt": "2026-01-06T09:06:59.461876391Z",
    "FinishedAt": "0001-01-01T00:00:00Z",
}  # fmt: skip
ENDED: dict[str, Any] = {**RUNS, "Status": "exited", "Running": False, "Pid": 0, "ExitCode": 137}
NO_SUCH = (404, {"message": "No such container: vllm"})


@dataclass
class Daemon:
    """Answers each request with the next of `answers`, then repeats the last one; None never answers."""

    path: str
    answers: list[tuple[int, Any] | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.decode().split(" HTTP/")[0])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await reader.read()
        else:
            status, body = answer
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            size = b"" if status in (204, 304) else b"content-length: %d\r\n" % len(sent)
            writer.write(b"HTTP/1.1 %d x\r\n%scontent-type: application/json\r\n\r\n" % (status, size))
            writer.write(b"" if status in (204, 304) else sent)
        writer.close()


@asynccontextmanager
async def daemon(folder: Path, *answers: tuple[int, Any] | None) -> AsyncIterator[Daemon]:
    made = Daemon(str(folder / "d.sock"), list(answers))
    server = await asyncio.start_unix_server(made.serve, made.path)
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def engine(path: str, clock: Clock | None = None) -> ContainerDriver:
    config = ContainerConfig(container="vllm", socket=path)
    return ContainerDriver(config, "docker", clock or SystemClock())


async def test_container_is_started_and_stopped_by_its_name(tmp_path: Path) -> None:
    async with daemon(tmp_path, (204, None)) as there:
        made = engine(there.path)
        await made.start()
        await made.stop(20.0)
        assert there.asked == ["POST /containers/vllm/start", "POST /containers/vllm/stop?t=20"]


async def test_container_that_is_so_already_is_well_so(tmp_path: Path) -> None:
    async with daemon(tmp_path, (304, None)) as there:
        made = engine(there.path)
        await made.start()
        await made.stop(0.1)
        assert there.asked[-1] == "POST /containers/vllm/stop?t=1"  # 0 would leave it no time at all


async def test_running_container_is_distinguished_from_its_next_run(tmp_path: Path) -> None:
    again = {**RUNS, "Pid": 99, "StartedAt": "2026-01-06T10:00:00Z"}
    async with daemon(tmp_path, (200, {"State": RUNS}), (200, {"State": RUNS}), (200, {"State": again})) as there:
        made = engine(there.path)
        first, second, third = [await made.look() for _ in range(3)]
        assert first.is_running
        assert first == second
        assert third.run not in ("", first.run)


@pytest.mark.parametrize(
    ("state", "is_running", "why"),
    [
        (ENDED, False, "its container is exited, exit code 137"),
        ({**ENDED, "OOMKilled": True}, False, "its container ran out of memory"),
        (
            {**ENDED, "Status": "created", "ExitCode": 127, "Error": "exec: not found"},
            False,
            "its container is created, exit code 127: exec: not found",
        ),
        ({**RUNS, "Status": "paused", "Paused": True}, False, "its container is paused, exit code 0"),
        ({**RUNS, "Status": "dead", "Dead": True}, False, "its container is dead, exit code 0"),
        ({**RUNS, "Status": "restarting", "Restarting": True}, True, ""),
        ({**RUNS, "Health": {"Status": "unhealthy", "FailingStreak": 3}}, True, ""),
    ],
)
async def test_state_of_a_container(tmp_path: Path, state: dict[str, Any], is_running: bool, why: str) -> None:
    async with daemon(tmp_path, (200, {"State": state})) as there:
        found = await engine(there.path).look()
        assert (found.is_running, found.why) == (is_running, why)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (NO_SUCH, "docker has no container vllm: create it, or correct the name"),
        (
            (409, {"message": "cannot start a paused container, try unpause instead"}),
            "vllm could not be started: docker answered 409: cannot start a paused container, try unpause instead",
        ),
        (
            (500, {"message": "driver failed: port is already allocated"}),
            "vllm could not be started: docker answered 500: driver failed: port is already allocated",
        ),
        ((500, b"<html>"), "vllm could not be started: docker answered 500: no reason given"),
        ((500, b"[" * 100_000), "vllm could not be started: docker answered 500: no reason given"),
        ((200, b"x" * (1 << 21)), "the daemon's response is too large"),
    ],
)  # fmt: skip
async def test_refusal_is_reported(tmp_path: Path, answer: tuple[int, Any], expected: str) -> None:
    async with daemon(tmp_path, answer) as there:
        with pytest.raises(EngineError) as caught:
            await engine(there.path).start()
        assert str(caught.value) == expected


@pytest.mark.parametrize("body", [{"hello": "world"}, b"hello", b'{"State":"\xff"}', b'{"State":' * 10_000, b"[]"])
async def test_response_of_another_service_is_reported(tmp_path: Path, body: Any) -> None:
    async with daemon(tmp_path, (200, body)) as there:
        with pytest.raises(EngineError, match="docker reports no state of vllm"):
            await engine(there.path).look()


async def test_daemon_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    clock = SteppedClock()
    async with daemon(tmp_path, None) as there:
        starting = asyncio.create_task(engine(there.path, clock).start())
        await eventually(lambda: there.asked)
        await clock.pass_s(59.9)
        assert not starting.done()
        await clock.pass_s(0.1)
        with pytest.raises(EngineError, match="docker has not responded within 60 s"):
            await starting


async def test_missing_daemon_is_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "none.sock")
    with pytest.raises(EngineError) as caught:
        await engine(path).start()
    assert str(caught.value) == f"cannot connect to docker at {path}: No such file or directory"


async def test_daemon_that_is_not_served_is_reported(tmp_path: Path) -> None:
    async with daemon(tmp_path, None) as there:
        path = there.path
    (tmp_path / "d.sock").touch()
    with pytest.raises(EngineError, match="cannot connect to docker at"):
        await engine(path).look()


def part(stream: int, content: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(content).to_bytes(4) + content


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (part(1, b"one\n") + part(2, b"two\n") + part(1, b"thr") + part(1, b"ee\n"), ("one", "two", "three")),
        (b"with a terminal\r\n\x1b[1mbold\r\n", ("with a terminal", "\ufffd[1mbold")),
        (part(1, b"one\n") + part(1, b"cut off")[:-4], ("one", "cut")),
        (b"", ()),
    ],
)
async def test_output_of_a_container_is_read(tmp_path: Path, log: bytes, lines: tuple[str, ...]) -> None:
    async with daemon(tmp_path, (200, log)) as there:
        made = engine(there.path)
        await made.read_output()
        assert made.output == lines
        assert there.asked == ["GET /containers/vllm/logs?stdout=1&stderr=1&tail=20"]


async def test_output_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    refusal = {"message": "configured logging driver does not support reading"}
    async with daemon(tmp_path, (501, refusal), (200, b"x" * (1 << 21))) as there:
        made = engine(there.path)
        await made.read_output()
        (said,) = made.output
        assert said.startswith(
            "llm-guard: the output of vllm could not be read: docker answered 501: configured logging"
        )
        await made.read_output()
        assert made.output == ("llm-guard: the daemon's response is too large",)


async def test_daemon_that_hangs_holds_up_the_output_for_two_seconds(tmp_path: Path) -> None:
    clock = SteppedClock()
    async with daemon(tmp_path, None) as there:
        made = engine(there.path, clock)
        reading = asyncio.create_task(made.read_output())
        await eventually(lambda: there.asked)
        await clock.pass_s(2.0)
        async with asyncio.timeout(5):
            await reading
        assert made.output == ("llm-guard: docker has not responded within 2 s",)


async def test_end_of_a_container_is_noticed_though_the_daemon_is_away_for_a_while(tmp_path: Path) -> None:
    clock = SteppedClock()
    runs, away, ended = (200, {"State": RUNS}), (500, {"message": "not now"}), (200, {"State": ENDED})
    begun, whole = (200, part(1, b"hello\n")), (200, part(1, b"hello\n") + part(2, b"out of memory\n"))
    async with daemon(tmp_path, runs, begun, away, ended, whole) as there:
        made = engine(there.path, clock)
        waiting = asyncio.create_task(made.wait_gone())
        for looks in (1, 2, 3):
            await eventually(partial(_has_slept, clock, looks))
            assert made.output == (() if looks == 1 else ("hello",))
            await clock.pass_s(5.0)
        assert await waiting == "its container is exited, exit code 137"
        assert made.output == ("hello", "out of memory")


def _has_slept(clock: SteppedClock, times: int) -> bool:
    return len(clock.slept) >= times


async def test_container_outlives_the_gateway(tmp_path: Path) -> None:
    async with daemon(tmp_path, (204, None)) as there:
        await engine(there.path).close(1.0)
        assert there.asked == []
