"""Finds the non-Python programs that some tests need and installs them from Debian packages.

`python -m tests.tools` installs what is missing if it runs as root and apt-get is available. The test command runs it
before the tests, so that no test waits for an installation. `python -m tests.tools engines` installs what only
`make engine-tests` needs, and `python -m tests.tools image` what only `make image-tests` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import NoReturn

import pytest

PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "chromium-headless-shell": "chromium-headless-shell",
    "nginx": "nginx",
    "redis-server": "redis-server",
    "bash": "bash",
    "zsh": "zsh",
    "fish": "fish",
}
"""Debian package of each program."""
ENGINE_PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "podman": "podman",
    "conmon": "conmon",
    "runc": "runc",
    "systemctl": "systemd",
    "journalctl": "systemd",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""The same for the tests of engines in containers and units."""
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap", "dockerd": "docker.io", "docker": "docker.io"}
"""The same for the tests of the container image."""
_GROUPS = {"tests": PACKAGES, "engines": ENGINE_PACKAGES, "image": IMAGE_PACKAGES}

_MUST_HAVE = "LLM_GUARD_TEST_TOOLS"
"""Set to `required` where no test may be skipped (.ci/run)."""
_QUIETLY = {
    "DEBIAN_FRONTEND": "noninteractive",
    "RUNLEVEL": "1",  # keeps invoke-rc.d from starting installed services
    "SYSTEMD_OFFLINE": "1",  # the same for systemctl
}


def need(program: str) -> str:
    """Returns the program's path. Without it, skips the test, or fails it where every test must run."""
    path = _found(program)
    if path is None:
        group = next(name for name, packages in _GROUPS.items() if program in packages)
        refuse(
            f"there is no {program}: `python -m tests.tools {group}` as root on Debian, "
            f"or apt-get install {_GROUPS[group][program]}"
        )
    return path


def need_root() -> None:
    """Without root's rights, skips the test, or fails it where every test must run."""
    if os.geteuid() != 0:
        refuse("only root can run containers and mount file systems")


def refuse(why: str) -> NoReturn:
    """Skips the test, or fails it where every test must run."""
    if _is_must():
        pytest.fail(why)
    pytest.skip(why)


def install(packages: Mapping[str, str] = PACKAGES) -> list[str]:
    """Installs missing programs and returns the names of those still missing."""
    wanted = sorted({packages[name] for name in _missing(packages)})
    if wanted and os.geteuid() == 0 and shutil.which("apt-get") is not None and not _apt("install", *wanted):
        _apt("update")
        _apt("install", *wanted)
    return _missing(packages)


def _found(program: str) -> str | None:
    """Also searches /usr/sbin, where nginx is and which is not on every user's PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin")


def _missing(packages: Mapping[str, str]) -> list[str]:
    return [name for name in packages if _found(name) is None]


def _is_must() -> bool:
    return os.environ.get(_MUST_HAVE) == "required"


def _apt(command: str, *packages: str) -> bool:
    """Runs apt-get and returns whether it succeeded; on failure prints its output."""
    options = ["--yes", "--no-install-recommends"] if packages else []
    line = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", command, *options, *packages]
    done = subprocess.run(line, env={**os.environ, **_QUIETLY}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n")
    return done.returncode == 0


def main(group: str = "tests") -> int:
    missing = install(_GROUPS[group])
    if missing:
        sys.stderr.write(
            f"missing: {', '.join(missing)}; the tests that need them {'fail' if _is_must() else 'are skipped'}\n"
        )
    return int(bool(missing) and _is_must())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
