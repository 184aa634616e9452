"""Parts of a release that can be checked quickly; `make release` itself builds the wheels and tests them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compiling.changelog import Changelog, ChangelogError
from compiling.release import ReleaseError, check_demo, cut, image_files, write_checksums, write_image_context
from compiling.sbom import sbom
from llm_guard.version import __version__

ROOT = Path(__file__).parents[2]
HEAD = "# Changelog\n\n## Unreleased\n\n"
OLD = "\n## 0.3.1 - 2026-01-31\n\n### Added\n\n- A thing.\n"
MOMENT = datetime(2026, 2, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("new", "version"),
    [
        ("### Fixed\n\n- A bug.\n", "0.3.2"),
        ("### Security\n\n- A hole.\n\n### Fixed\n\n- A bug.\n", "0.3.2"),
        ("### Added\n\n- More.\n\n### Fixed\n\n- A bug.\n", "0.4.0"),
        ("### Changed\n\n- Other.\n", "0.4.0"),
    ],
)
def test_version_follows_the_changelog(new: str, version: str) -> None:
    assert Changelog(HEAD + new + OLD).next_version("0.1.0") == version


def test_first_release_has_the_version_of_the_package() -> None:
    assert Changelog(f"{HEAD}### Added\n\n- All.\n").next_version("0.1.0") == "0.1.0"


@pytest.mark.parametrize("text", [HEAD + OLD, "# Changelog\n"])
def test_nothing_is_released_where_nothing_has_changed(text: str) -> None:
    with pytest.raises(ChangelogError):
        Changelog(text).next_version("0.1.0")


def test_released_changelog_has_an_empty_section_for_the_next_version() -> None:
    done = Changelog(f"{HEAD}### Fixed\n\n- A bug.\n{OLD}").cut("0.3.2", "2026-02-01")
    assert done == f"{HEAD}## 0.3.2 - 2026-02-01\n\n### Fixed\n\n- A bug.\n{OLD}"
    assert Changelog(done).last_version == "0.3.2"
    assert Changelog(done).unreleased.strip() == ""


@pytest.mark.parametrize("version", ["0.3.1", "0.2.9", "1.0", "1.0.0rc1"])
def test_version_that_does_not_follow_is_refused(version: str) -> None:
    with pytest.raises(ChangelogError):
        Changelog(f"{HEAD}### Fixed\n\n- A bug.\n{OLD}").cut(version, "2026-02-01")


def test_changelog_of_this_clone_can_be_cut() -> None:
    changelog = Changelog((ROOT / "CHANGELOG.md").read_text())
    version = changelog.next_version(__version__)
    assert Changelog(changelog.cut(version, "2026-02-01")).last_version == version


def test_package_has_the_version_that_is_released(tmp_path: Path) -> None:
    (tmp_path / "llm_guard").mkdir()
    (tmp_path / "llm_guard" / "version.py").write_text((ROOT / "llm_guard" / "version.py").read_text())
    (tmp_path / "CHANGELOG.md").write_text(f"{HEAD}### Fixed\n\n- A bug.\n{OLD}")
    assert cut(tmp_path, None, "2026-02-01") == "0.3.2"
    assert '\n__version__ = "0.3.2"\n' in (tmp_path / "llm_guard" / "version.py").read_text()
    assert "## 0.3.2 - 2026-02-01" in (tmp_path / "CHANGELOG.md").read_text()


def test_image_context_has_what_the_dockerfile_copies_and_is_the_same_each_time(tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"
    for target in (one, other):
        write_image_context(ROOT, target, MOMENT)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        names = set(archive.getnames())
    assert {
        "Dockerfile",
        "pyproject.toml",
        "compiling/launcher.py",
        "llm_guard/cli/main.py",
        "config/docker.yaml",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", ".", "benchmarks/")) or "__pycache__" in name]


def test_image_context_without_one_of_its_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*\n!llm_guard\n")
    (tmp_path / "Dockerfile").touch()
    with pytest.raises(ReleaseError, match="names llm_guard"):
        image_files(tmp_path)


def test_bill_of_materials_names_every_pinned_distribution_and_what_is_bundled() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    document = json.loads(sbom("0.3.2", lock, "2026-02-01T12:00:00Z"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/llm-guard-proxy@0.3.2"
    components = {each["name"]: each for each in document["components"]}
    assert len(components) == len(document["components"]) == lock.count("==") - lock.count("== ") + 2
    assert components["aiohttp"]["purl"].startswith("pkg:pypi/aiohttp@3.")
    assert components["aiohttp"]["externalReferences"][0]["hashes"][0]["alg"] == "SHA-256"
    hashes = sum(len(component.get("externalReferences", ())) for component in components.values())
    assert hashes == lock.count("--hash=sha256:")
    assert "sys_platform" in components["uvloop"]["properties"][0]["value"]
    assert {"uplot", "inter"} <= components.keys()
    assert document["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in document["components"]]


def test_bundled_versions_are_those_in_the_package() -> None:
    document = sbom("0.3.2", "", "2026-02-01T12:00:00Z")
    dashboard = ROOT / "llm_guard" / "admin" / "dashboard"
    assert "uPlot (v1.6.32)" in (dashboard / "uplot" / "uPlot.iife.min.js").read_text()[:80]
    assert '"pkg:npm/uplot@1.6.32"' in document
    assert "Inter 4.1" in (dashboard / "font.css").read_text()
    assert '"version": "4.1"' in document


def test_checksums_are_of_all_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    for _ in range(2):
        write_checksums(tmp_path)
    sums = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in "ab"]
    assert (tmp_path / "SHA256SUMS").read_text() == "".join(sums)


def test_demo_whose_calls_fail_blocks_the_release() -> None:
    good = (
        "20 % answer 503   82% ->   100%   73 requests for 60 calls\nx, without a fallback 0% -> 0% 9 requests for 60"
    )
    check_demo(good)
    for bad in ("", good.replace("  100%", "   98%")):
        with pytest.raises(ReleaseError, match="does not show"):
            check_demo(bad)
