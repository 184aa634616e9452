"""Engines as systemd units, with a fake `systemctl` on PATH that answers like the real one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from llm_guard.clock import SystemClock
from llm_guard.config import UnitConfig
from llm_guard.upstreams.engines.driver import EngineError
from llm_guard.upstreams.engines.systemd_driver import SystemdDriver
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually

ACTIVE = (
    "LoadState=loaded\nActiveState=active\nResult=success\nExecMainPID=4711\nExecMainStatus=0\n"
    "InvocationID=7d2c1e6f0b9a4c3d8e5f6a7b8c9d0e1f\n"
)  # fmt: skip
FAILED = "LoadState=loaded\nActiveState=failed\nResult=oom-kill\nExecMainPID=4711\nExecMainStatus=9\nInvocationID=\n"


class Systemctl:
    """Also journalctl. Prints `say`, writes `complain` to standard error and exits with `code`; hangs on the verbs in
    `hangs_on`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reset()

    def reset(self, say: str = "", complain: str = "", code: int = 0, hangs_on: str = "-") -> None:
        (self._folder / "said").write_text(say)
        (self._folder / "complaint").write_text(complain)
        for name in ("systemctl", "journalctl"):
            program = self._folder / name
            program.write_text(
                f'#!/bin/sh\necho "$@" >> {self._folder}/asked\n'
                f'case "$*" in *" {hangs_on} "*) exec sleep 60;; esac\n'
                f"cat {self._folder}/said\ncat {self._folder}/complaint >&2\nexit {code}\n"
            )  # fmt: skip
            program.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        path = self._folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Systemctl(tmp_path)


def engine(user: bool = False) -> SystemdDriver:
    return SystemdDriver(UnitConfig(unit="vllm.service", user=user), SystemClock())


async def test_unit_is_started_without_waiting_and_stopped_with(systemctl: Systemctl) -> None:
    made = engine()
    await made.start()
    await made.stop(20.0)
    assert systemctl.asked == [
        "--system --no-ask-password --no-pager start --no-block vllm.service",
        "--system --no-ask-password --no-pager stop vllm.service",
    ]


async def test_unit_of_the_users_own_manager(systemctl: Systemctl) -> None:
    await engine(user=True).start()
    assert systemctl.asked[0].startswith("--user ")


@pytest.mark.parametrize(
    ("said", "is_running", "run", "why"),
    [
        (ACTIVE, True, "7d2c1e6f0b9a4c3d8e5f6a7b8c9d0e1f", ""),
        (ACTIVE.replace("=active", "=activating"), True, "7d2c1e6f0b9a4c3d8e5f6a7b8c9d0e1f", ""),
        (FAILED, False, "", "its unit is failed (result oom-kill, exit status 9)"),
        (FAILED.replace("failed", "inactive"), False, "", "its unit is inactive (result oom-kill, exit status 9)"),
        ("", False, "", "its unit is unknown (result unknown, exit status unknown)"),
    ],
)
async def test_state_of_a_unit(systemctl: Systemctl, said: str, is_running: bool, run: str, why: str) -> None:
    systemctl.reset(say=said)
    found = await engine().look()
    assert (found.is_running, found.run, found.why) == (is_running, run, why)


@pytest.mark.parametrize("state", ["not-found", "masked", "bad-setting"])
async def test_missing_unit_is_reported(systemctl: Systemctl, state: str) -> None:
    systemctl.reset(say=FAILED.replace("loaded", state))
    with pytest.raises(EngineError, match=f"vllm.service is {state}: create or enable it, or correct the name"):
        await engine().look()


async def test_error_of_systemctl_is_reported(systemctl: Systemctl) -> None:
    systemctl.reset(complain="Failed to start vllm.service: Interactive authentication required.\n", code=1)
    with pytest.raises(EngineError) as caught:
        await engine().start()
    assert str(caught.value) == (
        "systemctl start vllm.service: Failed to start vllm.service: Interactive authentication required."
    )


async def test_failure_without_output_is_reported_by_its_code(systemctl: Systemctl) -> None:
    systemctl.reset(code=4)
    with pytest.raises(EngineError, match=r"systemctl start vllm.service: exit code 4"):
        await engine().start()


async def test_machine_without_systemd_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="systemctl was not found on PATH"):
        await engine().start()


async def test_unit_that_does_not_stop_in_time_is_killed(systemctl: Systemctl, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    (tmp_path / "systemctl").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        f'case "$*" in *kill*) touch {marker};; *stop*) [ -e {marker} ] || exec sleep 60;; esac\n'
    )  # fmt: skip
    await engine().stop(0.2)
    assert [line.split(" ", 3)[3] for line in systemctl.asked] == [
        "stop vllm.service",
        "kill --signal=SIGKILL vllm.service",
        "stop vllm.service",
    ]


OF_A_SYSTEM_UNIT = "_SYSTEMD_UNIT=vllm.service + UNIT=vllm.service _PID=1 + COREDUMP_UNIT=vllm.service "
OF_A_USERS_UNIT = (
    "_SYSTEMD_USER_UNIT=vllm.service _UID={uid} + USER_UNIT=vllm.service _UID={uid} + COREDUMP_USER_UNIT=vllm.service "
)


@pytest.mark.parametrize(("user", "which"), [(False, OF_A_SYSTEM_UNIT), (True, OF_A_USERS_UNIT)])
async def test_output_of_a_unit_is_read_from_the_journal(systemctl: Systemctl, user: bool, which: str) -> None:
    systemctl.reset(say="Started vllm.service.\nout of memory\n")
    made = engine(user)
    await made.read_output()
    assert made.output == ("Started vllm.service.", "out of memory")
    (asked,) = systemctl.asked
    begin = "--quiet --no-pager --boot --output=cat --lines=20 "
    assert asked.startswith(begin + which.format(uid=os.getuid()))


async def test_last_words_that_the_journal_has_stored_without_a_unit_are_read_too(systemctl: Systemctl) -> None:
    made = engine()
    await made.read_output()
    assert "TRANSPORT" not in systemctl.asked[-1]
    systemctl.reset(say=FAILED)
    await made.look()
    systemctl.reset(say=FAILED.replace("4711", "0"))  # the unit was unloaded in between
    await made.look()
    await made.read_output()
    assert systemctl.asked[-1].endswith(" + _PID=4711 _TRANSPORT=stdout")


async def test_journal_is_read_by_the_full_name_of_a_unit(systemctl: Systemctl) -> None:
    made = SystemdDriver(UnitConfig(unit="vllm"), SystemClock())
    systemctl.reset(say=f"Id=vllm@3.service\n{ACTIVE}")
    await made.look()
    await made.read_output()
    assert " _SYSTEMD_UNIT=vllm@3.service + UNIT=vllm@3.service _PID=1 + " in systemctl.asked[-1]


async def test_output_that_cannot_be_read_says_why(systemctl: Systemctl) -> None:
    systemctl.reset(complain="Failed to open the journal: Permission denied\n", code=1)
    made = engine()
    await made.read_output()
    assert made.output == ("llm-guard: journalctl of vllm.service: Failed to open the journal: Permission denied",)


async def test_journal_that_hangs_holds_up_the_output_for_two_seconds(systemctl: Systemctl) -> None:
    systemctl.reset(hangs_on="--no-pager")
    clock = SteppedClock()
    made = SystemdDriver(UnitConfig(unit="vllm.service"), clock)
    reading = asyncio.create_task(made.read_output())
    await eventually(lambda: systemctl.asked)
    await clock.pass_s(2.0)
    async with asyncio.timeout(5):
        await reading
    assert made.output == ("llm-guard: journalctl of vllm.service has not finished within 2 s",)


async def test_systemctl_that_hangs_is_not_waited_for_and_leaves_no_process(systemctl: Systemctl) -> None:
    systemctl.reset(hangs_on="show")
    clock = SteppedClock()
    looking = asyncio.create_task(SystemdDriver(UnitConfig(unit="vllm.service"), clock).look())
    await eventually(lambda: systemctl.asked)
    await clock.pass_s(10.0)
    with pytest.raises(EngineError, match=r"systemctl show vllm.service has not finished within 10 s"):
        await looking
