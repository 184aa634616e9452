"""A container for an engine in a Docker or Podman of the test's own, with folders of its own.

Needs no image from outside and no network of its own: the image is a tar of empty folders, on which the machine's own
are mounted. Needs neither iptables nor overlay file systems, so that it runs in containers and small machines, too.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.engines.commands import daemon, output_of, unmount
from tests.engines.program import Program
from tests.fakes.waiting import eventually
from tests.tools import need

NAME = "engine"
_FOLDERS = ("usr", "lib", "lib64", "bin", "proc", "sys", "dev", "etc", "tmp", "run")
_LIMITS = ("--ulimit", "nofile=1024:4096", "--ulimit", "nproc=4096:4096")
"""Podman's defaults may exceed what a restricted root may set."""


@asynccontextmanager
async def docker(folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """Runs a daemon with its socket, docker.sock, and everything else in this folder. Yields the client's command."""
    socket = folder / "docker.sock"
    options = (
        "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
        f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'pid'}",
        f"--host=unix://{socket}",
    )  # fmt: skip
    try:
        async with daemon(folder / "dockerd.log", need("dockerd"), *options, is_up=socket.exists):
            yield (need("docker"), f"--host=unix://{socket}")
    finally:
        unmount(folder / "exec" / "netns" / "default")


@asynccontextmanager
async def in_docker(program: Program) -> AsyncIterator[dict[str, Any]]:
    """Yields the engine's config."""
    async with docker(program.folder) as client:
        await _create(client, program)
        try:
            yield {"docker": {"container": NAME, "socket": str(program.folder / "docker.sock")}}
        finally:
            await output_of(*client, "rm", "--force", NAME)


@asynccontextmanager
async def in_podman(program: Program) -> AsyncIterator[dict[str, Any]]:
    """Yields the engine's config."""
    folder, socket = program.folder, program.folder / "podman.sock"
    need("conmon")
    client = (
        need("podman"), f"--root={folder / 'data'}", f"--runroot={folder / 'run'}", f"--tmpdir={folder / 'tmp'}",
        "--storage-driver=vfs", f"--runtime={need('runc')}", "--cgroup-manager=cgroupfs", "--events-backend=none",
    )  # fmt: skip
    await _create(client, program, *_LIMITS)
    service = ("system", "service", "--time=0", f"unix://{socket}")
    async with daemon(folder / "podman.log", *client, *service, is_up=socket.exists):
        try:
            yield {"podman": {"container": NAME, "socket": str(socket)}}
        finally:
            await output_of(*client, "rm", "--force", "--time=0", NAME)
    await eventually(lambda: not _is_in_use(folder), 20)  # conmon cleans up later, in a process of its own


def _is_in_use(folder: Path) -> bool:
    """Returns whether a process was started for this folder."""
    commands = [process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])]
    return any(str(folder) in argument for command in commands for argument in command)


async def _create(client: tuple[str, ...], program: Program, *options: str) -> None:
    image = program.folder / "image.tar"
    with tarfile.open(image, "w") as tar:
        for name in _FOLDERS:
            tar.addfile(_folder(name))
    await output_of(*client, "import", str(image), f"{NAME}:1")
    mounts = [f"--volume={path}:{path}:ro" for path in program.folders]
    await output_of(
        *client, "create", f"--name={NAME}", "--network=host", *options, *mounts, f"{NAME}:1", *program.argv
    )


def _folder(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = tarfile.DIRTYPE, 0o755
    return made
