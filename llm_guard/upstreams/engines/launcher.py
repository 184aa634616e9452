"""Launcher: asks the kernel for a SIGTERM when the gateway dies, then replaces itself with the engine's program.

Run as `python -I -S launcher.py GATEWAY_PID PROGRAM ARGUMENT...`. A separate program, because no Python code may run
between fork and exec in a process that has threads. Imports nothing of llm_guard, so that it starts fast.

Source: prctl(2), PR_SET_PDEATHSIG. The signal is sent when the thread that forked ends (here the event loop's), and the
setting survives exec. Only Linux has it: elsewhere a gateway that is killed leaves its engines running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
CANNOT_BEGIN = 127
"""Exit code if the program cannot be started, like a shell's."""


def main(gateway: int, argv: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != gateway:  # the gateway died before prctl
        return
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # on purpose without a shell
    except OSError as error:
        os.write(2, f"llm-guard: {argv[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
        os._exit(CANNOT_BEGIN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
