"""The changelog of a release: the next version number, and the file with it.

Version numbers follow from the changelog (Keep a Changelog, Semantic Versioning).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNRELEASED = "## Unreleased\n"
_RELEASED = re.compile(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", re.MULTILINE)
_SMALL = frozenset({"Fixed", "Security"})
"""Sections that change no interface."""


class ChangelogError(Exception):
    """Nothing can be released; the text says why."""


@dataclass(frozen=True, slots=True)
class Changelog:
    text: str

    @property
    def last_version(self) -> str | None:
        """The newest released version; None before the first release."""
        found = _RELEASED.search(self.text)
        return None if found is None else found[1]

    @property
    def unreleased(self) -> str:
        """The section with the next release's changes. Raises ChangelogError."""
        _, heading, rest = self.text.partition(_UNRELEASED)
        if not heading:
            raise ChangelogError("the changelog has no section `## Unreleased`")
        found = _RELEASED.search(rest)
        return rest[: found.start()] if found else rest

    def next_version(self, first: str) -> str:
        """The version after `last_version`: a patch if all changes are fixes or about security, else a minor version.
        `first` if nothing is released yet. A major version must be passed to the command. Raises ChangelogError."""
        sections = set(re.findall(r"^### (\w+)$", self.unreleased, re.MULTILINE))
        if not sections:
            raise ChangelogError("the changelog names no change since the last release")
        if self.last_version is None:
            return first
        major, minor, patch = map(int, self.last_version.split("."))
        return f"{major}.{minor}.{patch + 1}" if sections <= _SMALL else f"{major}.{minor + 1}.0"

    def cut(self, version: str, date: str) -> str:
        """Returns the changelog with the unreleased changes under `version` and `date` (2026-01-31), and an empty
        section above. Raises ChangelogError."""
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            raise ChangelogError(f"{version!r} is no version such as 1.2.3")
        if self.last_version is not None and _numbers(version) <= _numbers(self.last_version):
            raise ChangelogError(f"{version} does not follow {self.last_version}")
        if not self.unreleased.strip():
            raise ChangelogError("the changelog names no change since the last release")
        return self.text.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {date}\n", 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
