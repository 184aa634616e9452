"""Becomes an engine's program, after it has asked the kernel for a SIGTERM when the gateway dies.

Run as `python -I -S leash.py GATEWAY_PID PROGRAM ARGUMENT...`. Owns that the kernel is asked at all: between fork and
exec Python must not run in a process that has threads. Imports nothing of ours: it is to be over in no time.

Source: prctl(2), PR_SET_PDEATHSIG. It is sent when the thread ends that forked, which is the event loop's, and survives
exec. Linux alone has it: elsewhere a gateway that is killed leaves its engines behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
CANNOT_BEGIN = 127
"""The exit code where there is no such program, as a shell has it."""


def main(gateway: int, argv: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != gateway:  # it has died before we asked
        return
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # the point of it: no shell
    except OSError as error:
        os.write(2, f"llm-guard: {argv[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
        os._exit(CANNOT_BEGIN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
