"""A unit for an engine in a service manager and journal of the test's own.

They see an empty /run: the machine's own systemd, if it has one, stays untouched. Programs that use them must run in
the same mount namespace, through `nsenter`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.engines.commands import WITHIN_S, daemon
from tests.engines.program import Program
from tests.fakes.waiting import eventually
from tests.tools import need

NAME = "engine.service"
_SYSTEMD = "/lib/systemd/systemd"
_JOURNALD = "/lib/systemd/systemd-journald"
_CGROUPS = Path("/sys/fs/cgroup")


@asynccontextmanager
async def in_systemd(program: Program) -> AsyncIterator[tuple[str, ...]]:
    """Yields the command that runs another one beside the service manager."""
    folder = program.folder
    units = folder / "systemd" / "user"
    units.mkdir(parents=True)
    (units / NAME).write_text(f"[Service]\nExecStart={' '.join(program.argv)}\nTimeoutStopSec=5\n")
    # systemd takes a machine for one that runs systemd by the folder /run/systemd/system.
    prepare = f"mount -t tmpfs tmpfs /run && mkdir -p /run/user/0 /run/systemd/system && exec {_JOURNALD}"
    isolated = (need("unshare"), "--mount", "/bin/sh", "-c", prepare)
    async with daemon(folder / "journald.log", *isolated, is_up=lambda: True) as journald:
        seen = Path(f"/proc/{journald}/root/run")
        await eventually((seen / "systemd" / "journal" / "stdout").exists, WITHIN_S)
        within = (
            need("nsenter"), f"--mount=/proc/{journald}/ns/mnt", "env", "XDG_RUNTIME_DIR=/run/user/0",
            f"XDG_CONFIG_HOME={folder}",
        )  # fmt: skip
        join = [f"echo $$ > {cgroup}/cgroup.procs && " for cgroup in _new_cgroups(folder.name)]
        begin = f"{''.join(join)}exec {_SYSTEMD} --user --unit=basic.target"
        try:
            async with daemon(folder / "systemd.log", *within, "/bin/sh", "-c", begin, is_up=lambda: True):
                await eventually((seen / "user" / "0" / "systemd" / "private").exists, WITHIN_S)
                yield within
        finally:
            _remove(folder.name)


def _new_cgroups(name: str) -> list[Path]:
    """Creates cgroups where a login would start a user's service manager: the journal knows by the path to which one
    a unit belongs. Version 1 has a hierarchy for systemd, and maybe one of version 2 beside it."""
    hierarchies = [path for path in (_CGROUPS / "systemd", _CGROUPS / "unified") if path.is_dir()] or [_CGROUPS]
    cgroups = [path / _slice(name) / f"user@{os.getuid()}.service" for path in hierarchies]
    for cgroup in cgroups:
        cgroup.mkdir(parents=True)
    return cgroups


def _slice(name: str) -> str:
    return f"{name.replace('-', '_')}.slice"


def _remove(name: str) -> None:
    """Removes the cgroups of all hierarchies. Those that systemd has removed are gone already."""
    for top in (*_CGROUPS.glob(_slice(name)), *_CGROUPS.glob(f"*/{_slice(name)}")):
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
