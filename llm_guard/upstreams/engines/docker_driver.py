"""Runs an engine as a container, through the part of Docker's HTTP API that Docker and Podman share, on their socket.

Defines the requests to the daemon, their timeouts, and what the responses mean. The container must exist already, and
keeps running when the gateway ends.

Sources: Docker Engine API 1.57, ContainerStart, ContainerStop, ContainerLogs, ContainerInspect, and its ContainerState;
containers/podman, pkg/api/server/register_containers.go, which has the same endpoints under the same paths. Without a
version in the path each daemon uses its own.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import aiohttp
import msgspec

from llm_guard.clock import Clock
from llm_guard.config import ContainerConfig
from llm_guard.upstreams.engines.driver import OUTPUT_S, DriverStatus, EngineError, poll_gone
from llm_guard.upstreams.engines.output import SHOWN_LINES, lines_of, without_headers

_ANSWER_S = 10.0
_START_S = 60.0
"""Long, because the daemon sets up volumes, networks and devices meanwhile."""
_BEYOND_GRACE_S = 15.0
_MOST_BYTES = 1 << 20
_DONE = (204, 304)
"""304: the container was in that state already."""
_RUNS = ("running", "restarting", "stopping")
"""`restarting`: the container's own restart policy brings it back, and the prober finds out whether that works."""


class ContainerDriver:
    """Implements `driver.EngineDriver` for a container."""

    def __init__(self, config: ContainerConfig, daemon: Literal["docker", "podman"], clock: Clock) -> None:
        self._container = config.container
        self._daemon = daemon
        self._socket = config.socket or _usual_socket(daemon)
        self._clock = clock
        self._output: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self._daemon} container {self._container}"

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines of the container's log."""
        return self._output

    async def look(self) -> DriverStatus:
        status, body = await self._ask("GET", "json", _ANSWER_S)
        if status != 200:
            raise self._refusal(f"{self._container} could not be inspected", status, body)
        state = _read(body).get("State")
        if not isinstance(state, dict):
            raise EngineError(
                f"{self._daemon} reports no state of {self._container}: check that {self._socket} is its API"
            )
        if str(state.get("Status", "")).lower() not in _RUNS:
            return DriverStatus(False, why=_ending(state))
        # Includes the start time, because a PID may be reused.
        return DriverStatus(True, f"{state.get('StartedAt')} {state.get('Pid')}")

    async def start(self) -> None:
        status, body = await self._ask("POST", "start", _START_S)
        if status not in _DONE:
            raise self._refusal(f"{self._container} could not be started", status, body)

    async def stop(self, grace_s: float) -> None:
        # The daemon kills the container when that time is over.
        status, body = await self._ask("POST", f"stop?t={max(1, round(grace_s))}", grace_s + _BEYOND_GRACE_S)
        if status not in _DONE:
            raise self._refusal(f"{self._container} could not be stopped", status, body)

    async def read_output(self) -> None:
        try:
            self._output = lines_of(await self._log())
        except EngineError as error:
            self._output = (f"llm-guard: {error}",)

    async def wait_gone(self) -> str:
        return await poll_gone(self, self._clock)

    async def close(self, grace_s: float) -> None:
        """Does nothing: the container keeps running."""

    async def _log(self) -> bytes:
        status, body = await self._ask("GET", f"logs?stdout=1&stderr=1&tail={SHOWN_LINES}", OUTPUT_S)
        if status != 200:
            raise self._refusal(f"the output of {self._container} could not be read", status, body)
        return without_headers(body)

    async def _ask(self, method: str, what: str, within_s: float) -> tuple[int, bytes]:
        url = f"http://localhost/containers/{self._container}/{what}"
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + within_s, "engine")
                async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket)) as session:
                    return await _exchange(session, method, url)
        except TimeoutError:
            raise EngineError(f"{self._daemon} has not responded within {within_s:g} s") from None
        except PermissionError:
            raise EngineError(
                f"{self._socket}: permission denied: allow the gateway's user to use {self._daemon}"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"cannot connect to {self._daemon} at {self._socket}: {_said(error)}") from error

    def _refusal(self, what: str, status: int, body: bytes) -> EngineError:
        if status == 404:
            return EngineError(f"{self._daemon} has no container {self._container}: create it, or correct the name")
        said = str(_read(body).get("message", ""))[:300] or "no reason given"
        return EngineError(f"{what}: {self._daemon} answered {status}: {said}")


async def _exchange(session: aiohttp.ClientSession, method: str, url: str) -> tuple[int, bytes]:
    async with session.request(method, url, allow_redirects=False) as response:
        content = b""
        async for piece in response.content.iter_any():
            content += piece
            if len(content) > _MOST_BYTES:
                raise EngineError("the daemon's response is too large")
        return response.status, content


def _read(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _ending(state: dict[str, Any]) -> str:
    if state.get("OOMKilled") is True:
        return "its container ran out of memory"
    error = str(state.get("Error") or "")[:300]
    return f"its container is {state.get('Status')}, exit code {state.get('ExitCode')}{': ' if error else ''}{error}"


def _said(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _usual_socket(daemon: Literal["docker", "podman"]) -> str:
    """Default socket. podman-system-service(1): the system's for root, for other users the one in XDG_RUNTIME_DIR."""
    if daemon == "docker":
        return "/var/run/docker.sock"
    if os.getuid() == 0:
        return "/run/podman/podman.sock"
    return f"{os.environ.get('XDG_RUNTIME_DIR') or f'/run/user/{os.getuid()}'}/podman/podman.sock"
