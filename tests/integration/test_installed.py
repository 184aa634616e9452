"""The installed command beside another product with the same import name."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
DEPENDENCIES = sysconfig.get_path("purelib")
REINSTALL = "pip install --force-reinstall --no-deps llm-guard-proxy"
FOREIGN = {
    "llm_guard/__init__.py": 'raise RuntimeError("the other product was imported")\n',
    "llm_guard/evaluate.py": "",
    "llm_guard-0.3.16.dist-info/METADATA": "Metadata-Version: 2.1\nName: llm-guard\nVersion: 0.3.16\n",
    "llm_guard-0.3.16.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


class Environment:
    """A virtual environment with this product's dependencies, into which pip installs wheels."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "llm-guard"
        [self.packages] = folder.glob("lib/python*/site-packages")
        (self.packages / "dependencies.pth").write_text(DEPENDENCIES)

    def pip(self, *arguments: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        subprocess.run([*pip, *arguments], check=True, capture_output=True, timeout=100)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-index", "--no-deps", "--ignore-installed", "--no-compile", str(wheel))

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.command), "--version"]
        return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)


def foreign_wheel(folder: Path) -> Path:
    """Builds a wheel that pip installs under the other product's name."""
    path = folder / "llm_guard-0.3.16-py3-none-any.whl"
    record = "llm_guard-0.3.16.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        lines = [f"{record},,"]
        for name, text in FOREIGN.items():
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(text)}")
        wheel.writestr(record, "\n".join(lines))
    return path


@pytest.fixture(scope="module")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, own_wheel: Path) -> Environment:
    """Shared by the tests that change nothing in it."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.install(own_wheel)
    return environment


def test_the_wheel_has_the_name_of_the_distribution(own_wheel: Path) -> None:
    assert own_wheel.name.startswith("llm_guard_proxy-")


def test_the_command_runs_in_an_environment_of_its_own(installed: Environment) -> None:
    ended = installed.run()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("llm-guard, version ")


def test_another_package_earlier_on_the_search_path_is_named(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "llm_guard").mkdir()
    (tmp_path / "llm_guard" / "__init__.py").write_text(FOREIGN["llm_guard/__init__.py"])
    ended = installed.run(PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert f"{tmp_path / 'llm_guard'} belongs to another product" in ended.stderr
    assert f"remove {tmp_path} from PYTHONPATH" in ended.stderr


def test_another_product_installed_over_the_package_is_named_and_its_removal_leaves_an_incomplete_package(
    own_wheel: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(own_wheel)
    environment.install(foreign_wheel(tmp_path))
    ended = environment.run()
    assert ended.returncode == 1
    assert f"{environment.packages / 'llm_guard'} belongs to another product (llm-guard 0.3.16)" in ended.stderr
    assert f"pip uninstall llm-guard && {REINSTALL}" in ended.stderr
    assert "Traceback" not in ended.stderr
    environment.pip("uninstall", "--yes", "llm-guard")
    ended = environment.run()
    assert ended.returncode == 1
    assert "is incomplete" in ended.stderr
    assert REINSTALL in ended.stderr
