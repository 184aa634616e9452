"""Mutants: deliberate defects of the product, read from the catalogue."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_guard"
CATALOGUE = Path(__file__).parent / "catalogue"

_MARKS = "#@-+!"
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect in one definition of one module, and the test that must fail because of it."""

    module: str
    """Relative to `llm_guard`, for example `proxy.attempts.first_response`."""
    defect: str
    """The effect in one line."""
    where: str
    """Qualified name of the changed function, class or assignment, for example `Breaker.settle`."""
    old: str
    """Occurs exactly once in that definition, ignoring whitespace and line breaks."""
    new: str
    """Replaces the old text. Indentation is relative to the line where the old text starts."""
    killer: str
    """The test that must fail, as `property/test_x.py::test_y`."""

    @property
    def name(self) -> str:
        return f"{self.module}: {self.defect}"

    @property
    def path(self) -> Path:
        return PACKAGE.joinpath(*self.module.split(".")).with_suffix(".py")

    @property
    def import_name(self) -> str:
        return f"llm_guard.{self.module}".removesuffix(".__init__")

    @property
    def is_in_function(self) -> bool:
        return any(isinstance(node, _FUNCTION) for node in _named(ast.parse(self.path.read_text()), self.where))

    def source(self) -> str:
        """The changed module. Raises ValueError unless the old text occurs exactly once in the definition."""
        source = self.path.read_text()
        found = [
            (start + match.start(), start + match.end())
            for start, end in definitions(source, self.where)
            for match in _loosely(self.old).finditer(source[start:end])
        ]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {len(found)} places in {self.where} of {self.path.name} read\n{self.old}")
        start, end = found[0]
        return source[:start] + _indented(self.new, source[:start]) + source[end:]


def definitions(source: str, name: str) -> list[tuple[int, int]]:
    """Returns start and end of each definition of this qualified name: a property and its setter share one."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return [(offsets[node.lineno - 1], offsets[node.end_lineno or 0]) for node in _named(ast.parse(source), name)]


def names_of(node: ast.stmt) -> list[str]:
    """Returns the names that a statement defines: functions, classes, and targets of assignments."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [ast.unparse(target) for target in targets]
        case ast.AnnAssign(target=target):
            return [ast.unparse(target)]
        case _:
            return []


def _named(scope: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[ast.stmt]:
    first, _, rest = name.partition(".")
    for node in scope.body:
        if first in names_of(node):
            if not rest:
                yield node
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _named(node, rest)


def _loosely(text: str) -> re.Pattern[str]:
    """Builds a pattern that allows any whitespace and comments between the tokens of a text, so that formatting does
    not matter."""
    return re.compile(r"(?:\s|#[^\n]*\n)*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", text)))


def _indented(text: str, before: str) -> str:
    line = before[before.rfind("\n") + 1 :]
    indentation = line[: len(line) - len(line.lstrip())]
    return text.replace("\n", f"\n{indentation}")


def catalogue() -> list[Mutant]:
    """Reads the catalogue: one file per module, in its package's folder, and one paragraph per mutant. Each line starts
    with a mark and a blank: `#` the defect, `@` the definition, `-` the old text, `+` the new text (none: the old text
    is deleted), `!` the killer."""
    return [
        mutant
        for path in sorted(CATALOGUE.rglob("*.txt"))
        for mutant in mutants(".".join(path.relative_to(CATALOGUE).with_suffix("").parts), path.read_text())
    ]


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Parses one file. Raises ValueError for an incomplete paragraph or a line without a mark."""
    for paragraph in text.strip().split("\n\n"):
        parts: dict[str, list[str]] = {mark: [] for mark in _MARKS}
        for line in paragraph.splitlines():
            if line[:1] not in parts or line[1:2] not in ("", " ") or line != line.rstrip():
                raise ValueError(f"{module}: a line needs a mark, and no blank at its end: {line!r}")
            parts[line[0]].append(line[2:])
        if not (all(len(parts[mark]) == 1 for mark in "#@!") and parts["-"]):
            raise ValueError(f"{module}: a paragraph is incomplete:\n{paragraph}")
        old, new = ("\n".join(parts[mark]) for mark in "-+")
        yield Mutant(module, parts["#"][0], parts["@"][0], old, new, parts["!"][0])
