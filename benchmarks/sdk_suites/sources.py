"""An SDK's source distribution, and a separate environment in which its tests run.

The project's lock stays as it is: additional requirements of the tests are installed only there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

_LOCK = Path(__file__).parents[2] / "requirements-dev.lock"
SDKS = ("openai", "anthropic")
_EXTRAS = {"openai": "aiohttp,realtime", "anthropic": "aiohttp,webhooks"}
_NEEDED = (
    "dirty-equals",
    "http-snapshot[httpx]",
    "httpx2",
    "inline-snapshot",
    "packaging",
    "pytest",
    "pytest-asyncio",
    "pytest-xdist",
    "respx",
    "rich",
    "time-machine",
)


class SourceError(Exception):
    """A source could not be downloaded, or an environment not created; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """An unpacked source distribution, and the interpreter that runs its tests."""

    sdk: str
    version: str
    folder: Path
    python: Path


def locked(sdk: str, lock: str) -> tuple[str, str]:
    """The version that a lock file's text pins, and the whole requirement with its hashes; raises SourceError."""
    found = re.search(rf"^{re.escape(sdk)}==(\S+)(?: \\\n +--hash=\S+)+", lock, re.MULTILINE)
    if found is None:
        raise SourceError(f"{_LOCK.name} does not pin {sdk}")
    return found[1], found[0]


def prepare(sdk: str, folder: Path) -> Source:
    """Downloads and installs what `folder` does not have yet; raises SourceError."""
    version, requirement = locked(sdk, _LOCK.read_text())
    root, environment = folder / f"{sdk}-{version}", folder / f"environment-{sdk}-{version}"
    python = environment / "bin" / "python"
    if not root.exists():
        pinned = folder / f"{sdk}.txt"
        pinned.write_text(requirement)
        _pip(Path(sys.executable), "download", "--no-deps", "--no-binary", sdk, "-d", str(folder), "-r", str(pinned))
        with tarfile.open(folder / f"{sdk}-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    ready = environment / "ready"
    if not ready.exists():
        venv.create(environment, with_pip=True, clear=True)
        _pip(python, "install", f"{root}[{_EXTRAS[sdk]}]", *_NEEDED)
        ready.touch()
    return Source(sdk, version, root, python)


def _pip(python: Path, *arguments: str) -> None:
    finished = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SourceError(f"pip {' '.join(arguments)} failed:\n{finished.stdout[-2000:]}")
