"""The engine of these tests: a mock provider in a process of its own, started by a script that can be made to fail."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
CANNOT_START = "the weights are missing"


@dataclass(frozen=True, slots=True)
class Program:
    """A script that runs a server on `port`. Once `broken` exists it ends with exit code 3 instead."""

    folder: Path
    """Short, because sockets lie in it."""
    port: int

    @property
    def argv(self) -> list[str]:
        return ["/bin/sh", str(self.folder / "engine.sh")]

    @property
    def broken(self) -> Path:
        return self.folder / "broken"

    @property
    def folders(self) -> list[str]:
        """What the server reads: a container needs them at the same paths."""
        system = ["/usr", "/lib", "/lib64", "/bin"]
        python = [
            sys.base_prefix,
            sys.prefix,
            *os.environ.get("PYTHONPATH", "").split(":"),
            str(ROOT),
            str(self.folder),
        ]
        own = [path for path in python if path and not path.startswith("/usr")]
        return [path for path in dict.fromkeys(system + own) if Path(path).exists()]

    def run(self) -> tuple[int, float] | None:
        """PID and start time of the process that listens; None: there is none."""
        process = self.process()
        return None if process is None else (process.pid, process.create_time())

    def process(self) -> psutil.Process | None:
        pids = [connection.pid for connection in psutil.net_connections("tcp") if self._is_own(connection)]
        return psutil.Process(pids[0]) if pids else None

    def _is_own(self, connection: Any) -> bool:
        is_listening = connection.status == psutil.CONN_LISTEN and connection.pid is not None
        return is_listening and int(connection.laddr.port) == self.port


@contextmanager
def program() -> Iterator[Program]:
    """Writes the script into a new folder, and removes the folder at the end."""
    made = Program(Path(tempfile.mkdtemp(prefix="engine-")), free_port())
    (made.folder / "engine.sh").write_text(_script(made))
    try:
        yield made
    finally:
        shutil.rmtree(made.folder)


def _script(made: Program) -> str:
    # A Python that is not the system's may find its own library through the loader's cache, which a container lacks.
    library = sysconfig.get_config_var("LIBDIR")
    return f"""
export PYTHONPATH={os.environ.get("PYTHONPATH", ROOT)} LD_LIBRARY_PATH={library} PYTHONDONTWRITEBYTECODE=1
if [ -e {made.broken} ]; then echo "{CANNOT_START}"; exit 3; fi
exec {sys.executable} -m llm_guard mock --port {made.port}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
