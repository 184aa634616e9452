"""Words a YAML parser's error: line, column, what is wrong and what to do. Quotes no text of the file that may be a
secret."""

from __future__ import annotations

import re

import yaml

_OPENED = re.compile("while (?:parsing a flow|scanning a quoted)")
_NAMED = re.compile("(alias|anchor|tag handle) (?:'.*'|\".*\")")
_CLOSING = {"[": ", or ]", "{": ", or }"}
_PLAIN = {
    "expected <block end>": "wrong indentation, or an entry of a list without its dash: align it with the lines above",
    "found character '\\t'": "a tab: indent with spaces",
    "mapping values are not allowed": "unexpected colon: put text with a colon in quotes, or start a new line",
    "could not find expected ':'": "a key without a colon",
    "found character '@'": "put text that begins with @ in quotes",
    "found character '`'": "put text that begins with ` in quotes",
    "found character '%'": "put text that begins with % in quotes",
}
"""Beginning of the parser's text -> this project's wording."""


def syntax_problem(text: str, error: yaml.MarkedYAMLError) -> tuple[int, int, str]:
    """Returns line, column and reason. For a bracket or a quote that is not closed, they are those of its beginning."""
    found, begun = error.problem_mark, error.context_mark
    if found is None:
        return 1, 0, f"not YAML: {error.problem}"
    line, column = found.line + 1, found.column + 1
    if "'{'" in (error.problem or "") and "${" in _line_of(text, line):
        return line, column, f'{_parsers_reason(error)}; between {{ }} or [ ] put a variable in quotes: "${{NAME}}"'
    if begun is not None and _OPENED.match(error.context or ""):
        at = "the end of the file" if found.index >= len(text.rstrip()) else f"line {line}, column {column}"
        return begun.line + 1, begun.column + 1, _unclosed(text, begun, at)
    for beginning, words in _PLAIN.items():
        if (error.problem or "").startswith(beginning):
            return line, column, f"not YAML: {words}"
    return line, column, _parsers_reason(error)


def _unclosed(text: str, begun: yaml.Mark, at: str) -> str:
    opening = _line_of(text, begun.line + 1)[begun.column : begun.column + 1]
    return f"not YAML: this {opening} is not closed: {_CLOSING.get(opening, opening)} is missing before {at}"


def _parsers_reason(error: yaml.MarkedYAMLError) -> str:
    """Returns the parser's text without quoted names: an API key that begins with *, & or ! is parsed as an alias, an
    anchor or a tag."""
    reason = "not YAML: " + ", ".join(part for part in (error.context, error.problem) if part)
    if _NAMED.search(reason) is None:
        return reason
    return _NAMED.sub(r"\1", reason) + "; put text that begins with *, & or ! in quotes"


def _line_of(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1] if line <= len(lines) else ""
