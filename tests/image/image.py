"""Builds the image of the Dockerfile without a registry: on a Debian from debootstrap, in place of the image that FROM
names, and with packages that pip has downloaded before.

The Debian is the machine's own release, so its Python may be older than the one in the image that is released. Unless
LLM_GUARD_IMAGE_OPTIMIZED is `true`, its compiler does not optimize, which takes a fifth of the time.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tools import need

ROOT = Path(__file__).parents[2]
IS_OPTIMIZED = os.environ.get("LLM_GUARD_IMAGE_OPTIMIZED") == "true"
NAME = "llm-guard:test"
_LOCKS = ("requirements.lock", "requirements-image.lock", "requirements-build.lock")
_INCLUDE = "python3-venv,libpython3-dev,ca-certificates"
_PIP = "[global]\nno-index = true\nfind-links = /packages\n"
_OLDER_PYTHON = re.compile(r" ; python_full_version [^\\\n]*")


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds in this folder, which it fills with two gigabytes."""

    folder: Path

    def build(self) -> Path:
        """Returns the image as an archive for `docker load`."""
        base, archive = self.folder / "base", self.folder / "image.tar"
        self._bootstrap(base)
        self._download(next((base / "usr" / "lib").glob("python3.*")).name.removeprefix("python"))
        tag = f"docker.io/library/{_from()}"
        recipe = self.folder / "Basefile"
        recipe.write_text("FROM scratch\nADD base.tar /\n")
        _run("tar", "-C", str(base), "-cf", str(self.folder / "base.tar"), ".")
        self._buildah("bud", "--isolation=chroot", f"--file={recipe}", f"--tag={tag}", str(self.folder))
        self._buildah(
            "bud", "--isolation=chroot", "--pull-never", "--format=docker", f"--tag={NAME}",
            f"--volume={self.folder / 'packages'}:/packages:ro", str(ROOT),
        )  # fmt: skip
        self._buildah("push", NAME, f"docker-archive:{archive}:{NAME}")
        return archive

    def _bootstrap(self, base: Path) -> None:
        _run(need("debootstrap"), "--variant=minbase", f"--include={_INCLUDE}", _release(), str(base))
        for package in (base / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            package.unlink()
        (base / "usr" / "bin" / "python").symlink_to("python3")  # as in the image that FROM names
        (base / "etc" / "pip.conf").write_text(_PIP)
        if not IS_OPTIMIZED:
            # Debian's Python calls the compiler by its long name, which is found here first.
            compiler = f"{platform.machine()}-linux-gnu-gcc"
            program = base / "usr" / "local" / "bin" / compiler
            program.write_text(f'#!/bin/sh\nexec /usr/bin/{compiler} "$@" -O0\n')
            program.chmod(0o755)

    def _download(self, python: str) -> None:
        """Also packages that only older versions of this Python need: the base may have one."""
        for name in _LOCKS:
            lock, packages = self.folder / name, self.folder / "packages"
            lock.write_text(_OLDER_PYTHON.sub("", (ROOT / name).read_text()))
            _run(
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                "--only-binary=:all:", f"--python-version={python}", f"--dest={packages}", f"--requirement={lock}",
            )  # fmt: skip

    def _buildah(self, *arguments: str) -> None:
        store = (f"--root={self.folder / 'store'}", f"--runroot={self.folder / 'run'}", "--storage-driver=vfs")
        _run(need("buildah"), *store, *arguments)


def _from() -> str:
    found = re.search(r"^FROM (\S+) AS build$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _release() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}"
