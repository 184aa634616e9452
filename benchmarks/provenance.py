"""Names the commit and the machine of a page's figures, and counts the changes to the path of a call since then."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATH_OF_A_CALL = (
    "llm_guard/proxy",
    "llm_guard/resilience",
    "llm_guard/dialects",
    "llm_guard/routing",
    "llm_guard/clock.py",
    "llm_guard/outcome.py",
)
"""Files that may change any figure when they change."""
EARLIER_PATHS = (
    "llm_guard/gateway",
    "llm_guard/policy",
    "llm_guard/dialect",
    "llm_guard/call.py",
    "llm_guard/deployment.py",
    "llm_guard/routes.py",
)
"""Where the same files were before the packages got their present names, for pages that name an older commit."""

_COMMIT = re.compile(r"^Measured at commit `([0-9a-f]{7,40})`", re.MULTILINE)

Machine = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Age:
    """How current one page is."""

    page: str
    commit: str | None
    """None if the page names no commit."""
    changes: int | None
    """Commits to the path of a call since then; None if the history does not hold the page's commit."""

    def __str__(self) -> str:
        if self.commit is None:
            return f"{self.page}: names no commit; measure it again"
        if self.changes is None:
            return f"{self.page}: commit {self.commit} is not in this history"
        since = f"{self.changes} commits to the path of a call since" if self.changes else "current"
        return f"{self.page}: {self.commit}, {since}"

    @property
    def is_current(self) -> bool:
        return self.changes == 0


def machine() -> dict[str, str | int | None]:
    """The commit of this checkout and the machine it runs on, as JSON pages keep them."""
    return {
        "commit": current_commit(),
        "python": platform.python_version(),
        "system": platform.machine(),
        "processors": os.cpu_count(),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def measured_line(measured_on: Machine) -> str:
    """Last line of a page with figures that depend on the machine."""
    on = f"{measured_on['processors']} shared processors ({measured_on['processor']}, {measured_on['system']})"
    return f"{_measured_at(measured_on)}, on {on}, {measured_on['kernel']}, Python {measured_on['python']}."


def computed_line(measured_on: Machine) -> str:
    """Last line of a page with figures that are the same on every machine."""
    return f"{_measured_at(measured_on)}."


def current_commit(root: Path = ROOT) -> str | None:
    """Short hash of the checkout at `root`, with `+` if tracked files have changed; None without git or a history."""
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *PATH_OF_A_CALL)
    return f"{commit}+" if changes else commit


def age(page: Path, root: Path = ROOT) -> Age:
    """Compares the commit that `page` names with the checkout at `root`."""
    found = _COMMIT.search(page.read_text(encoding="utf-8"))
    if found is None:
        return Age(page.name, None, None)
    count = _git(root, "rev-list", "--count", "--no-merges", f"{found[1]}..HEAD", "--", *PATH_OF_A_CALL, *EARLIER_PATHS)
    return Age(page.name, found[1], None if count is None else int(count))


def _measured_at(measured_on: Machine) -> str:
    commit = measured_on["commit"]
    if commit is None:
        return "Measured outside of a git checkout"
    text = str(commit)
    return f"Measured at commit `{text.rstrip('+')}`" + (" with uncommitted changes" if text.endswith("+") else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    """Model name from /proc/cpuinfo, or what Python knows, which may be an empty string."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
