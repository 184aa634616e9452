"""Runs an engine as a unit of systemd, through `systemctl`, and reads its output with `journalctl`.

Defines the commands, their timeouts, and what their output means. The unit must exist already, and keeps running when
the gateway ends.

Source: systemctl(1), journalctl(1), systemd.journal-fields(7), and org.freedesktop.systemd1(5) for the meaning of
ActiveState, Result, InvocationID and ExecMainPID.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE

from llm_guard.clock import Clock
from llm_guard.config import UnitConfig
from llm_guard.upstreams.engines.driver import OUTPUT_S, DriverStatus, EngineError, poll_gone
from llm_guard.upstreams.engines.output import SHOWN_LINES, lines_of
from llm_guard.upstreams.engines.process_driver import environment

_ANSWER_S = 10.0
_START_S = 30.0
_KILLED_S = 15.0
_PROPERTIES = "Id,LoadState,ActiveState,Result,ExecMainPID,ExecMainStatus,InvocationID"
_ENDED = ("inactive", "failed")
"""Excludes `activating`: where the unit restarts itself, the prober finds out whether that works."""
_BUS = ("DBUS_SESSION_BUS_ADDRESS",)
_CORE_DUMP = "MESSAGE_ID=fc2e22bc6ee647b6b90729ab34a250b1"


class SystemdDriver:
    """Implements `driver.EngineDriver` for a systemd unit."""

    def __init__(self, config: UnitConfig, clock: Clock) -> None:
        self._unit = config.unit
        self._options = ("--user",) if config.user else ("--system",)
        self._is_users = config.user
        self._id = config.unit
        """Its full name, which is what the journal knows; `unit` may be an alias, or lack `.service`."""
        self._main_pid = ""
        """PID of the unit's last main process; empty: unknown."""
        self._output: tuple[str, ...] = ()
        self._clock = clock

    @property
    def place(self) -> str:
        return f"unit {self._unit}"

    @property
    def output(self) -> tuple[str, ...]:
        """The journal's last messages of the unit since the machine started, those of systemd included."""
        return self._output

    async def look(self) -> DriverStatus:
        said = await self._run(_ANSWER_S, "show", f"--property={_PROPERTIES}", self._unit)
        facts = dict(line.partition("=")[::2] for line in said.splitlines())
        if (loaded := facts.get("LoadState", "")) not in ("loaded", ""):
            raise EngineError(f"{self._unit} is {loaded}: create or enable it, or correct the name")
        self._id = facts.get("Id", "") or self._unit
        if (pid := facts.get("ExecMainPID", "0")) != "0":
            self._main_pid = pid
        if facts.get("ActiveState", "inactive") not in _ENDED:
            return DriverStatus(True, facts.get("InvocationID", ""))
        return DriverStatus(False, why=_ending(facts))

    async def start(self) -> None:
        # `--no-block`: a unit of Type=notify counts as started only once it is up, and the prober detects that.
        await self._run(_START_S, "start", "--no-block", self._unit)

    async def stop(self, grace_s: float) -> None:
        try:
            await self._run(grace_s, "stop", self._unit)
        except _TooLong:
            await self._run(_ANSWER_S, "kill", "--signal=SIGKILL", self._unit)
            await self._run(_KILLED_S, "stop", self._unit)

    async def read_output(self) -> None:
        # No `--user`: the messages of a user's units may be in the system's journal.
        command = ("--quiet", "--no-pager", "--boot", "--output=cat", f"--lines={SHOWN_LINES}", *self._matches())
        try:
            said = await _run(OUTPUT_S, "journalctl", *command, shown=f"journalctl of {self._unit}", clock=self._clock)
            self._output = lines_of(said)
        except EngineError as error:
            self._output = (f"llm-guard: {error}",)

    def _matches(self) -> list[str]:
        """What `--unit` or `--user-unit` matches, and what the main process has written.

        The journal finds a message's unit by the process that wrote it. Of a process that ended at once, it stores the
        last words without a unit.
        """
        terms: list[tuple[str, ...]]
        if self._is_users:
            own = f"_UID={os.getuid()}"
            terms = [
                (f"_SYSTEMD_USER_UNIT={self._id}", own),
                (f"USER_UNIT={self._id}", own),
                (f"COREDUMP_USER_UNIT={self._id}", _CORE_DUMP, own),
            ]
        else:
            terms = [
                (f"_SYSTEMD_UNIT={self._id}",),
                (f"UNIT={self._id}", "_PID=1"),
                (f"COREDUMP_UNIT={self._id}", _CORE_DUMP, "_UID=0"),
            ]
        if self._main_pid:
            terms.append((f"_PID={self._main_pid}", "_TRANSPORT=stdout"))
        return [part for term in terms for part in ("+", *term)][1:]

    async def wait_gone(self) -> str:
        return await poll_gone(self, self._clock)

    async def close(self, grace_s: float) -> None:
        """Does nothing: the unit keeps running."""

    async def _run(self, within_s: float, verb: str, *arguments: str) -> str:
        """Runs systemctl and returns its output. Raises EngineError; _TooLong on a timeout."""
        command = (*self._options, "--no-ask-password", "--no-pager", verb, *arguments)
        said = await _run(within_s, "systemctl", *command, shown=f"systemctl {verb} {self._unit}", clock=self._clock)
        return said.decode(errors="replace")


async def _run(within_s: float, name: str, *arguments: str, shown: str, clock: Clock) -> bytes:
    """Runs a program of systemd and returns its output. Raises EngineError; _TooLong on a timeout. `shown`: the command
    in error messages."""
    program = shutil.which(name)
    if program is None:
        raise EngineError(f"{name} was not found on PATH: this engine needs systemd")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment(os.environ, _BUS, {})
    )
    try:
        with clock.limit() as limit:
            limit.set(clock.now() + within_s, "engine")
            output, problems = await process.communicate()
    except TimeoutError:
        raise _TooLong(f"{shown} has not finished within {within_s:g} s") from None
    finally:
        if process.returncode is None:  # timed out or cancelled
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    if process.returncode:
        said = problems.decode(errors="replace").strip()[:300] or f"exit code {process.returncode}"
        raise EngineError(f"{shown}: {said}")
    return output


class _TooLong(EngineError):
    """The command did not finish in time."""


def _ending(facts: dict[str, str]) -> str:
    state, result, code = (facts.get(name, "") for name in ("ActiveState", "Result", "ExecMainStatus"))
    return f"its unit is {state or 'unknown'} (result {result or 'unknown'}, exit status {code or 'unknown'})"
