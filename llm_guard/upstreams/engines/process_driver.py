"""Runs an engine as a child process of the gateway.

Manages the process, its process group, its environment variables, and the last lines of its output. The process ends
with the gateway: a restarted gateway could neither wait for an orphan nor read from it, and would find its port taken.
To make an engine outlive the gateway, run it under systemd or in a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import structlog

from llm_guard.clock import Clock
from llm_guard.config import CommandConfig
from llm_guard.upstreams.engines.driver import DriverStatus, EngineError
from llm_guard.upstreams.engines.output import Tail

_log = structlog.get_logger("llm_guard.upstreams.engines.process_driver")

_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_KILLED_S = 5.0
"""How long a process may take to end after SIGKILL."""


class ProcessDriver:
    """Implements `driver.EngineDriver` for a child process."""

    def __init__(self, config: CommandConfig, clock: Clock, own: Mapping[str, str] = os.environ) -> None:
        """`own`: the gateway's environment."""
        self._argv = config.argv
        self._folder = config.folder
        self._environment = environment(own, config.pass_env, config.env)
        secrets = (*config.env.values(), *(own.get(name, "") for name in config.pass_env))
        self._tail = Tail(secrets)
        self._clock = clock
        self._child: _Child | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def place(self) -> str:
        return Path(self._argv[0]).name

    @property
    def output(self) -> tuple[str, ...]:
        return self._tail.lines()

    async def look(self) -> DriverStatus:
        child = self._child
        if child is None:
            return DriverStatus(False, why="it was not started")
        return (
            DriverStatus(True, str(child.pid)) if child.code is None else DriverStatus(False, why=_ending(child.code))
        )

    async def start(self) -> None:
        if self._child is not None and self._child.code is None:
            return
        self._check()
        if self._child is not None:
            _bury(self._child.pid)
        # Shielded: a cancelled start must not leave a process without a `_child` that refers to it.
        self._starting = asyncio.get_running_loop().create_task(self._begin())
        await asyncio.shield(self._starting)

    async def stop(self, grace_s: float) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        child = self._child
        if child is None or child.code is not None:
            return
        child.signal(signal.SIGTERM)
        if await self._has_ended(child, grace_s):
            return
        _log.warning("an engine did not stop in time: killing it", program=self.place, pid=child.pid)
        child.signal(signal.SIGKILL)
        if not await self._has_ended(child, _KILLED_S):
            raise EngineError(f"process {child.pid} was killed, and has not ended within {_KILLED_S:g} s")

    async def read_output(self) -> None:
        """Does nothing: the output arrives through a pipe."""

    async def wait_gone(self) -> str:
        child = self._child
        if child is None:
            return "it was not started"
        await child.ended.wait()
        return _ending(child.code or 0)

    async def close(self, grace_s: float) -> None:
        try:
            await self.stop(grace_s)
        except EngineError as error:
            _log.error("an engine could not be stopped", program=self.place, error=str(error))

    def _check(self) -> None:
        """Finds a missing folder or program before a process is created, and raises EngineError."""
        program = self._argv[0]
        if self._folder is not None and not Path(self._folder).is_dir():
            raise EngineError(f"the folder {self._folder} does not exist: correct command.folder")
        beside = Path(self._folder or ".") / program if "/" in program else program
        if shutil.which(beside, path=self._environment.get("PATH")) is None:
            raise EngineError(f"the program {program} was not found: install it, or write its full path in argv")

    async def _begin(self) -> None:
        launcher = (sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()))
        child = _Child(self._tail)
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: child, *launcher, *self._argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT, cwd=self._folder, env=self._environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise EngineError(f"the process could not be started: {error.strerror}") from error
        self._child = child
        _log.info("engine process started", program=self.place, pid=child.pid)

    async def _has_ended(self, child: _Child, within_s: float) -> bool:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + within_s, "engine")
                await child.ended.wait()
        except TimeoutError:
            return False
        return True


class _Child(asyncio.SubprocessProtocol):
    """One run of the program."""

    def __init__(self, tail: Tail) -> None:
        self.ended = asyncio.Event()
        self.code: int | None = None
        """Exit code; negative: the number of the signal that ended it; None: it is running."""
        self.pid = 0
        self._tail = tail

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole process group, like systemd's `KillMode=control-group`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's transport is not a subclass
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002  # asyncio's signature
        self._tail.feed(data)

    def process_exited(self) -> None:
        self.code = self._transport.get_returncode()
        self.signal(signal.SIGKILL)  # its children would keep the port and the memory
        self._transport.close()
        self.ended.set()


def _bury(group: int) -> None:
    """Reaps orphans of an engine that has ended. A gateway that is process 1, as in a container, inherits them, and
    each would stay as a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"it was ended by signal {name}"


_NAMES = frozenset({
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR",
    "TZ", "USER", "VIRTUAL_ENV", "HF_HOME", "LD_LIBRARY_PATH",
})  # fmt: skip
_FAMILIES = (
    "CUDA_", "GGML_", "HF_HUB_", "HIP_", "HSA_", "LC_", "LLAMA_", "NCCL_", "NVIDIA_", "OLLAMA_", "OMP_", "PYTORCH_",
    "RCCL_", "ROCM_", "ROCR_", "TORCH_", "TRANSFORMERS_", "VLLM_", "XDG_",
)  # fmt: skip
_SECRETIVE = ("KEY", "PASSWORD", "SECRET", "TOKEN")
"""A variable of a family with one of these in its name is passed on only if the config names it: VLLM_API_KEY,
HF_HUB_TOKEN.
"""


def environment(own: Mapping[str, str], passed: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child: the harmless part of `own`, the variables of `own` that `passed` names, and `given` on
    top."""
    harmless = {name: value for name, value in own.items() if _is_harmless(name)}
    named = {name: own[name] for name in passed if name in own}
    return {**harmless, **named, **given}


def _is_harmless(name: str) -> bool:
    return name in _NAMES or (name.startswith(_FAMILIES) and not any(word in name for word in _SECRETIVE))
