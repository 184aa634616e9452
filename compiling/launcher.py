"""The command `llm-guard`: checks that the package `llm_guard` is this product's, then runs it.

The distribution llm-guard on PyPI is another product with the same import name. Installed into one environment, each
overwrites files of the other, so the wheel ships this file outside the package, as `llm_guard_launcher`. It imports
nothing from the package before the check.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "llm-guard-proxy"
"""Part of the package's docstring, by which the package is recognised."""

_PACKAGE = "llm_guard"
_REINSTALL = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
_OWN_ENVIRONMENT = (
    "The two cannot share an environment. Install the gateway into one of its own:\n"
    f"  python3 -m venv gateway && gateway/bin/pip install {DISTRIBUTION}\n"
    "or remove the other product from this one:\n"
    f"  pip uninstall llm-guard && {_REINSTALL}"
)


def main() -> None:
    """Entry point of the console script. Exits with 1 if the package is not this product's, or incomplete."""
    if said := problem():
        sys.exit(f"llm-guard cannot start: {said}")
    from llm_guard.cli.main import main as run  # noqa: PLC0415  # only after the check

    run()


def problem() -> str | None:
    """Problem with the package that an import would find, and its remedy; None if it is this product's."""
    spec = find_spec(_PACKAGE)
    if spec is None:
        return f"the Python package {_PACKAGE} is missing. Install it again:\n  {_REINSTALL}"
    if spec.origin is None:  # a folder without __init__.py
        folders = ", ".join(spec.submodule_search_locations or ())
        return f"the Python package {folders} is incomplete. Install it again:\n  {_REINSTALL}"
    source = Path(spec.origin)
    if DISTRIBUTION.encode() in source.read_bytes():
        return None
    return _foreign(source.parent)


def _foreign(package: Path) -> str:
    """Message that `package` is another product's, and how to resolve the conflict."""
    found = f"the Python package {package} belongs to another product{_names_of(package)} of the same import name."
    own = Path(__file__).parent / _PACKAGE
    if package.resolve() != own.resolve() and own.exists():
        return f"{found}\nIt comes before {own}: remove {package.parent} from PYTHONPATH."
    return f"{found}\n{_OWN_ENVIRONMENT}"


def _names_of(package: Path) -> str:
    """` (llm-guard 0.3.16)`, from the metadata beside the package; empty if there is none."""
    versions = [path.name.removesuffix(".dist-info").partition("-")[2] for path in _metadata(package)]
    return f" (llm-guard {versions[0]})" if versions else ""


def _metadata(package: Path) -> list[Path]:
    return sorted(package.parent.glob(f"{_PACKAGE}-*.dist-info"))


if __name__ == "__main__":
    main()
