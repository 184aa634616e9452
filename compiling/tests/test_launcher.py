"""The command's check of the package that it finds, without an installation (see integration/test_installed)."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from compiling import launcher

ROOT = Path(__file__).parents[2]
TEXTS = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile", "Makefile")
    ),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "config").rglob("*.y*ml"),
    *(ROOT / "llm_guard").rglob("*.py"),
    *ROOT.glob("requirements*.lock"),
]


def test_no_text_has_the_other_product_installed() -> None:
    other = r"pip install [^\n]*\bllm-guard\b(?!-proxy)|via\s+(?:#\s+)?llm-guard \(|\bllm-guard\["
    assert [str(path) for path in TEXTS if re.search(other, path.read_text())] == []


def test_the_package_of_this_clone_is_recognised() -> None:
    assert launcher.problem() is None


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    said = launcher.problem()
    assert said is not None
    assert said.startswith("the Python package llm_guard is missing")
    assert "pip install --force-reinstall --no-deps llm-guard-proxy" in said


def test_a_package_without_init_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llm_guard", None, is_package=True)
    spec.submodule_search_locations = ["/somewhere/llm_guard"]
    monkeypatch.setattr(launcher, "find_spec", lambda name: spec)
    said = launcher.problem()
    assert said is not None
    assert said.startswith("the Python package /somewhere/llm_guard is incomplete")


@pytest.mark.parametrize(("metadata", "named"), [("llm_guard-0.3.16.dist-info", " (llm-guard 0.3.16)"), ("x", "")])
def test_another_package_is_named_with_its_version_if_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metadata: str, named: str
) -> None:
    (tmp_path / metadata).mkdir()
    (tmp_path / "llm_guard").mkdir()
    init = tmp_path / "llm_guard" / "__init__.py"
    init.touch()
    monkeypatch.setattr(launcher, "find_spec", lambda name: ModuleSpec(name, None, origin=str(init)))
    said = launcher.problem()
    assert said is not None
    assert said.startswith(f"the Python package {tmp_path}/llm_guard belongs to another product{named} ")


def test_nothing_of_another_package_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "problem", lambda: "the package is another product's")
    with pytest.raises(SystemExit) as refused:
        launcher.main()
    assert refused.value.code == "llm-guard cannot start: the package is another product's"
