"""What a mutant is, and how the catalogue of them is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).parent / "catalogue"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong version of one policy, and the test that must notice it."""

    module: str
    """In `llm_guard.policy`."""
    wrong: str
    """What goes wrong with it."""
    old: str
    """Stands exactly once in the module."""
    new: str
    killer: str
    """A test, as `property/test_x.py::test_y`."""

    @property
    def name(self) -> str:
        return f"{self.module}: {self.wrong}"

    @property
    def path(self) -> Path:
        return ROOT / "llm_guard" / "policy" / f"{self.module}.py"

    def source(self) -> str:
        """The module as it would be; raises ValueError unless the old text stands there once."""
        source = self.path.read_text()
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text stands {count} times in {self.path.name}:\n{self.old}")
        return source.replace(self.old, self.new)


def catalogue() -> list[Mutant]:
    """A file for each policy, a paragraph for each mutant: `#` what goes wrong, `-` the old text, `+` the new one (one
    mark and a blank for each line; no new one: the old one is left out), `!` the killer."""
    return [mutant for path in sorted(CATALOGUE.glob("*.txt")) for mutant in mutants(path.stem, path.read_text())]


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Raises ValueError where something is missing or has no mark."""
    for paragraph in text.strip().split("\n\n"):
        parts: dict[str, list[str]] = {"#": [], "-": [], "+": [], "!": []}
        for line in paragraph.splitlines():
            if line[:1] not in parts or line[1:2] not in ("", " ") or line != line.rstrip():
                raise ValueError(f"{module}: no mark, or a blank at the end: {line!r}")
            parts[line[0]].append(line[2:])
        if not (len(parts["#"]) == len(parts["!"]) == 1 and parts["-"]):
            raise ValueError(f"{module}: incomplete:\n{paragraph}")
        old, new = ("\n".join(parts[mark]) for mark in "-+")
        yield Mutant(module, parts["#"][0], old, new, parts["!"][0])
