"""Extracts prose from source and Markdown files: comments, docstrings, text outside of code blocks, and messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|ruff:|pragma|!)")
_COMMENT = re.compile(r"(?:\s*|.*\S  )(#.*)")
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of a statement that hold statements, or their handlers and cases."""
_CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each comment block and docstring, or of each line of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        without_code = _CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        yield from ((number, line) for number, line in enumerate(without_code.splitlines(), 1) if line[:1] != "#")
        return
    yield from _docstrings(ast.parse(text))
    yield from _comments(text)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each string literal that is not a docstring. The constant parts of an f-string
    are one text, with `{}` for each value."""
    statements = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            statements.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
            yield node.lineno, "".join(parts)
            nodes += [value.value for value in node.values if isinstance(value, ast.FormattedValue)]
            continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements:
            yield node.lineno, node.value
        nodes += ast.iter_child_nodes(node)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields every string that stands as a statement: docstrings, and the texts under fields and constants. Visits
    statements only: nine of ten nodes are expressions."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows meanwhile
        for statement in getattr(node, "body", ()):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value
        for block in _BLOCKS:
            nodes += getattr(node, block, ())


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yields comments; those on consecutive lines are one. Lines of a string that look like comments count too, because
    tokenizing all files takes twenty times as long."""
    begun_at, ended_at, lines = 0, -1, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        comment = _COMMENT.match(line) if "#" in line else None
        if comment is None or _DIRECTIVE.match(comment[1]):
            continue
        if number != ended_at + 1:
            if lines:
                yield begun_at, " ".join(lines)
            begun_at, lines = number, []
        lines.append(comment[1].lstrip("# "))
        ended_at = number
    if lines:
        yield begun_at, " ".join(lines)
