"""Programs that some tests need and no Python package has: found, and installed from Debian beforehand.

Owns which package each comes from. `python -m tests.tools` installs what is missing, where it is root and there is
apt-get; the test command runs it before the tests, so that none of them waits for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "chromium": "chromium",
    "nginx": "nginx",
}
"""Which Debian package a program is in."""

_MUST_HAVE = "LLM_GUARD_TEST_TOOLS"
"""Set to `required` where no test may be skipped (.ci/run)."""
_QUIETLY = {
    "DEBIAN_FRONTEND": "noninteractive",
    "RUNLEVEL": "1",  # what is installed does not start as a service: invoke-rc.d,
    "SYSTEMD_OFFLINE": "1",  # and systemctl
}


def need(program: str) -> str:
    """Its path. Without it the test is skipped, or fails where every test must run."""
    if (path := _found(program)) is not None:
        return path
    why = f"there is no {program}: `python -m tests.tools` as root on Debian, or apt-get install {PACKAGES[program]}"
    if _is_must():
        pytest.fail(why)
    pytest.skip(why)


def install() -> list[str]:
    """Brings what is missing. Returns the names of the programs that are missing still."""
    wanted = sorted({PACKAGES[name] for name in _missing()})
    if wanted and os.geteuid() == 0 and shutil.which("apt-get") is not None and not _apt("install", *wanted):
        _apt("update")
        _apt("install", *wanted)
    return _missing()


def _found(program: str) -> str | None:
    """Also where servers are that users do not start."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin")


def _missing() -> list[str]:
    return [name for name in PACKAGES if _found(name) is None]


def _is_must() -> bool:
    return os.environ.get(_MUST_HAVE) == "required"


def _apt(command: str, *packages: str) -> bool:
    """Whether it succeeded; what it had to say is shown if not."""
    options = ["--yes", "--no-install-recommends"] if packages else []
    line = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", command, *options, *packages]
    done = subprocess.run(line, env={**os.environ, **_QUIETLY}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n")
    return done.returncode == 0


def main() -> int:
    missing = install()
    if missing:
        sys.stderr.write(
            f"missing: {', '.join(missing)}; the tests that need them {'fail' if _is_must() else 'are skipped'}\n"
        )
    return int(bool(missing) and _is_must())


if __name__ == "__main__":
    sys.exit(main())
