"""Engines as child processes: the processes are real, and each test ends those it has started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_guard.clock import SystemClock
from llm_guard.config import CommandConfig
from llm_guard.upstreams.engines.driver import EngineError
from llm_guard.upstreams.engines.process_driver import ProcessDriver
from tests.fakes.waiting import eventually

SLEEPER = ("/bin/sleep", "60")
DEAF = ("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
PARENT = ("/bin/sh", "-c", "sleep 60 & sleep 60 & echo $!; wait")


@asynccontextmanager
async def engine(*argv: str, own: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[ProcessDriver]:
    config = CommandConfig(argv=argv, **settings)
    made = ProcessDriver(config, SystemClock(), {"PATH": os.environ["PATH"], **(own or {})})
    try:
        yield made
    finally:
        await made.close(0.0)


async def pid_of(made: ProcessDriver) -> int:
    return int((await made.look()).run)


async def is_exec(made: ProcessDriver, program: str) -> None:
    """Waits until the launcher has been replaced by the program."""
    process = psutil.Process(await pid_of(made))
    await eventually(lambda: Path(process.exe()).name.startswith(program) or process.name().startswith(program))


async def test_engine_runs_in_its_own_process_group_and_ends_with_the_first_signal() -> None:
    async with engine(*SLEEPER) as made:
        await made.start()
        pid = await pid_of(made)
        assert os.getpgid(pid) == os.getsid(pid) == pid
        await is_exec(made, "sleep")
        await made.stop(5.0)
        found = await made.look()
        assert (found.is_running, found.why) == (False, "it was ended by signal SIGTERM")
        assert not psutil.pid_exists(pid)


async def test_start_of_one_that_runs_begins_no_other() -> None:
    async with engine(*SLEEPER) as made:
        await made.start()
        pid = await pid_of(made)
        await made.start()
        assert await pid_of(made) == pid


async def test_stop_of_one_that_does_not_run_is_nothing() -> None:
    async with engine(*SLEEPER) as made:
        await made.stop(1.0)
        assert (await made.look()).why == "it was not started"


async def test_engine_that_is_deaf_is_killed_after_its_grace() -> None:
    async with engine(*DEAF) as made:
        await made.start()
        await eventually(lambda: made.output == ("ready",))
        await made.stop(0.05)
        assert (await made.look()).why == "it was ended by signal SIGKILL"


async def test_children_of_an_engine_end_with_it() -> None:
    async with engine(*PARENT) as made:
        await made.start()
        await eventually(lambda: made.output)
        child = psutil.Process(int(made.output[0]))
        os.kill(await pid_of(made), signal.SIGKILL)
        assert await made.wait_gone() == "it was ended by signal SIGKILL"
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2)")
async def test_orphan_of_an_engine_is_reaped_before_the_next_run() -> None:
    with inheriting():
        async with engine("/bin/sh", "-c", "sleep 60 & echo $!; exit 3") as made:
            await made.start()
            assert await made.wait_gone() == "it ended with exit code 3"
            await eventually(lambda: bool(made.output))
            orphan = psutil.Process(int(made.output[0]))
            await eventually(lambda: orphan.status() == psutil.STATUS_ZOMBIE)
            await made.start()
            assert not psutil.pid_exists(orphan.pid)


@contextmanager
def inheriting() -> Iterator[None]:
    """Makes this process inherit orphans, as process 1 of a container does: PR_SET_CHILD_SUBREAPER."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(36, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(36, 0, 0, 0, 0)


async def test_end_of_an_engine_is_noticed_with_its_exit_code_and_last_output() -> None:
    async with engine("/bin/sh", "-c", "echo out of memory >&2; exit 3") as made:
        await made.start()
        assert await made.wait_gone() == "it ended with exit code 3"
        await eventually(lambda: made.output == ("out of memory",))


async def test_argv_is_passed_to_the_program_unchanged(tmp_path: Path) -> None:
    evil = f"; touch {tmp_path}/pwned #"
    async with engine("/bin/echo", evil, "$(id)", "`id`", "$HOME", "*") as made:
        await made.start()
        await made.wait_gone()
        await eventually(lambda: made.output == (f"{evil} $(id) `id` $HOME *",))
        assert not (tmp_path / "pwned").exists()


async def test_engine_gets_no_provider_keys(tmp_path: Path) -> None:
    own = {"OPENAI_API_KEY": "sk-provider", "HF_TOKEN": "hf-hush-hush", "HOME": "/root"}
    given = {"env": {"OWN_KEY": "mine-hush-hush"}, "pass_env": ("HF_TOKEN",), "folder": str(tmp_path)}
    script = "import os; print(sorted(os.environ), os.getcwd(), os.environ['HF_TOKEN'], os.environ['OWN_KEY'])"
    async with engine(sys.executable, "-I", "-c", script, own=own, **given) as made:
        await made.start()
        await made.wait_gone()
        await eventually(lambda: made.output)
        (line,) = made.output
        assert "OPENAI_API_KEY" not in line
        assert all(word in line for word in ("'HF_TOKEN'", "'OWN_KEY'", "'HOME'", "'PATH'", str(tmp_path)))
        assert "hush" not in line
        assert line.endswith("*** ***")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"argv": ("no-such-program",)},
            "the program no-such-program was not found: install it, or write its full path in argv",
        ),
        ({"argv": ("./engine",), "folder": "/"}, "the program ./engine was not found"),
        (
            {"argv": SLEEPER, "folder": "/no/such"},
            "the folder /no/such does not exist: correct command.folder",
        ),
    ],
)  # fmt: skip
async def test_command_that_cannot_be_started_is_reported_before_it_is_tried(
    settings: dict[str, Any], expected: str
) -> None:
    argv = settings.pop("argv")
    async with engine(*argv, **settings) as made:
        with pytest.raises(EngineError) as caught:
            await made.start()
        assert expected in str(caught.value)


async def test_program_that_the_system_refuses_to_run_is_reported_by_its_output(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    async with engine(str(program)) as made:
        await made.start()
        assert await made.wait_gone() == "it ended with exit code 127"
        await eventually(lambda: made.output == (f"llm-guard: {program} cannot be started: Exec format error",))


async def test_start_that_is_cancelled_leaves_no_process() -> None:
    async with engine(*SLEEPER) as made:
        starting = asyncio.create_task(made.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await made.close(1.0)
        assert not (await made.look()).is_running
        mine = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
        assert not [each for each in mine if "60" in each.cmdline()]


async def test_unread_output_does_not_block_an_engine() -> None:
    async with engine(sys.executable, "-I", "-c", "print('x' * 5_000_000); print('end')") as made:
        await made.start()
        assert await made.wait_gone() == "it ended with exit code 0"
        await eventually(lambda: made.output[-1] == "end")


async def test_engine_ends_when_the_gateway_is_killed() -> None:
    script = (
        "import asyncio, sys\n"
        "from llm_guard.clock import SystemClock\n"
        "from llm_guard.config import CommandConfig\n"
        "from llm_guard.upstreams.engines.process_driver import ProcessDriver\n"
        "async def main():\n"
        "    made = ProcessDriver(CommandConfig(argv=('/bin/sleep', '60')), SystemClock())\n"
        "    await made.start()\n"
        "    print('pid', (await made.look()).run, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert gateway.stdout is not None
    try:
        while not (said := await gateway.stdout.readline()).startswith(b"pid "):
            pass
        pid = int(said.split()[1])
        await eventually(lambda: psutil.Process(pid).name() == "sleep")
    finally:
        gateway.kill()
        await gateway.wait()
    await eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
