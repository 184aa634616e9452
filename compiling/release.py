"""`make release`: builds a release into dist/release/VERSION, and tries it. Uploads nothing.

- the changelog with the version that follows from it, and the sources of that version (sdist)
- the pure wheel, and the compiled wheel for this Python
- the context of the container image
- the bill of materials (CycloneDX), and the checksums of all of these

Then it installs each wheel into a fresh environment and runs the demo from it. The changelog is read in `changelog`,
the bill of materials written in `sbom`, and the compiled build done in `build` and `hook`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from compiling.build import ROOT
from compiling.changelog import Changelog, ChangelogError
from compiling.sbom import sbom

_VERSION_FILE = Path("llm_guard", "version.py")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_DEMO_S = 300
"""It takes half a minute on an idle machine."""


class ReleaseError(Exception):
    """The release failed; the text says why."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m compiling.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--version", help="instead of the one that follows from the changelog")
    parser.add_argument("--pure", action="store_true", help="without the compiled wheel, which takes a C compiler")
    given = parser.parse_args()
    try:
        folder = release(ROOT, given.version, is_compiled=not given.pure)
    except (ReleaseError, ChangelogError, subprocess.CalledProcessError) as error:
        sys.exit(f"no release: {error}")
    print(f"\n{folder.relative_to(ROOT)} has the release; its CHANGELOG.md and version.py are to be committed:")
    print((folder / "SHA256SUMS").read_text(), end="")


def release(root: Path, version: str | None, *, is_compiled: bool) -> Path:
    """Builds a release from the last commit, tries it, and returns its folder. Raises ReleaseError, ChangelogError and
    CalledProcessError."""
    moment = datetime.fromtimestamp(int(_output(root, "git", "log", "-1", "--format=%ct")), UTC)
    with TemporaryDirectory(prefix="llm-guard-release-") as scratch:
        sources = Path(scratch, "sources")
        _lay_out(root, sources)
        version = cut(sources, version, f"{moment:%Y-%m-%d}")
        folder = root / "dist" / "release" / version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _say(f"{version}: sources and wheels")
        wheels = _build(sources, folder, moment, is_compiled=is_compiled)
        write_image_context(sources, folder / f"llm-guard-proxy-{version}-image.tar.gz", moment)
        lock = (sources / "requirements.lock").read_text()
        (folder / "sbom.cdx.json").write_text(sbom(version, lock, f"{moment:%Y-%m-%dT%H:%M:%SZ}"))
        shutil.copy(sources / "CHANGELOG.md", folder)
        shutil.copy(sources / _VERSION_FILE, folder)
        write_checksums(folder)
        for wheel in wheels:
            _say(f"{version}: trying {wheel.name} in a fresh environment")
            _try(wheel, sources / "requirements.lock", Path(scratch, wheel.stem), version)
    return folder


def cut(sources: Path, version: str | None, date: str) -> str:
    """Writes the next version into the changelog and the package; returns it. Raises ReleaseError and
    ChangelogError."""
    file, changelog = sources / _VERSION_FILE, Changelog((sources / "CHANGELOG.md").read_text())
    now = _VERSION.search(file.read_text())
    if now is None:
        raise ReleaseError(f"{_VERSION_FILE} names no version")
    version = version or changelog.next_version(now[1])
    (sources / "CHANGELOG.md").write_text(changelog.cut(version, date))
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', file.read_text()))
    return version


def image_files(sources: Path) -> list[Path]:
    """The files in the image's build context: what `.dockerignore` admits, and the Dockerfile."""
    lines = (sources / ".dockerignore").read_text().splitlines()
    if lines[:1] != ["*"]:
        raise ReleaseError(".dockerignore is to leave everything out, and then name what is needed")
    kept = ["Dockerfile", *(line[1:] for line in lines if line.startswith("!"))]
    found: set[Path] = set()
    for name in kept:
        path = sources / name
        if not path.exists():
            raise ReleaseError(f".dockerignore names {name}, which is not there")
        found |= {path} if path.is_file() else {each for each in path.rglob("*") if each.is_file()}
    return sorted(each.relative_to(sources) for each in found if "__pycache__" not in each.parts)


def write_image_context(sources: Path, target: Path, moment: datetime) -> None:
    """Writes the image's build context, reproducibly: `docker build - < FILE` builds the image."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in image_files(sources):
            member = archive.gettarinfo(sources / path, str(path))
            member.mtime, member.uid, member.gid, member.uname, member.gname = moment.timestamp(), 0, 0, "", ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO((sources / path).read_bytes()))
    target.write_bytes(gzip.compress(content.getvalue(), mtime=int(moment.timestamp())))


def write_checksums(folder: Path) -> None:
    """Writes checksums in the format of `sha256sum --check SHA256SUMS`."""
    files = sorted(each for each in folder.iterdir() if each.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(sums))


def _lay_out(root: Path, sources: Path) -> None:
    """Extracts the last commit. Raises ReleaseError if there are uncommitted changes."""
    if _output(root, "git", "status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed")
    sources.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True).stdout  # noqa: S607
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(sources, filter="data")


def _build(sources: Path, folder: Path, moment: datetime, *, is_compiled: bool) -> list[Path]:
    """Builds the sdist and the wheels; returns the wheels, the pure one first. Raises CalledProcessError."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(int(moment.timestamp()))}
    hatchling = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*hatchling, "--target", "sdist", "--target", "wheel"], cwd=sources, env=env, check=True)
    wheels = list(folder.glob("*.whl"))
    if is_compiled:
        env["HATCH_BUILD_HOOK_ENABLE_CUSTOM"] = "true"
        subprocess.run([*hatchling, "--target", "wheel"], cwd=sources, env=env, check=True)
        wheels += sorted(set(folder.glob("*.whl")) - set(wheels))
    return wheels


def _try(wheel: Path, lock: Path, environment: Path, version: str) -> None:
    """Installs a wheel with its dependencies, and runs the demo from it. Raises ReleaseError and CalledProcessError."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    command = str(environment / "bin" / "llm-guard")
    says = _output(environment, command, "--version")
    expected = version if wheel.name.endswith("-none-any.whl") else f"{version}+compiled"
    if says != f"llm-guard, version {expected}":
        raise ReleaseError(f"{wheel.name} says {says!r}, not {expected}")
    demo = subprocess.run(
        [command, "demo"], cwd=environment, check=True, capture_output=True, text=True, timeout=_DEMO_S
    )  # fmt: skip
    print(demo.stdout, end="")
    check_demo(demo.stdout)


def check_demo(table: str) -> None:
    """Checks that every row except the one without a fallback shows 100 %. Raises ReleaseError."""
    rows = [line for line in table.splitlines() if "requests for" in line]
    failed = [row for row in rows if "->   100%" not in row and "without a fallback" not in row]
    if failed or not rows:
        raise ReleaseError("the demo does not show what it should:\n" + ("\n".join(failed) or table))


def _output(folder: Path, *command: str) -> str:
    """Returns a command's output. Raises CalledProcessError."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main()
