"""Parses a config file into plain data and the line of every value.

Handles YAML syntax and `${VAR}`, and collects problems. The keys are defined in `config.models`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Self

import yaml
from yaml.composer import Composer

from llm_guard.config.syntax_errors import syntax_problem

KeyPath = tuple[str | int, ...]
"""Location of a value: `("models", "gpt-4", "deployments", 0, "upstream")`."""
Finding = tuple[KeyPath, str]
"""A key, and what is wrong with its value."""

_MAX_NODES = 200_000
_MAX_DEPTH = 20
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "null"))
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}|\$\{|\$(?=[A-Za-z_])")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem in a file. `line` and `column` count from 1; line 0 is the file as a whole, column 0 the whole line;
    `key` is dotted, or empty."""

    file: str
    line: int
    key: str
    reason: str
    column: int = 0

    def __str__(self) -> str:
        place = ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])
        return _on_one_line(": ".join(part for part in (place, self.key, self.reason) if part))


class ConfigError(Exception):
    """A config file is invalid. Holds every problem found; one line each as text."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(map(str, self.problems)))


class Interpolated(str):
    """Text with a variable's value inserted. It may be a secret: messages show `raw`, the text of the file."""

    __slots__ = ("raw",)

    raw: str

    def __new__(cls, value: str, raw: str) -> Self:
        text = super().__new__(cls, value)
        text.raw = raw
        return text


@dataclass(slots=True)
class Document:
    """A parsed file and the problems found so far."""

    file: str
    data: object = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: dict[ConfigProblem, None] = field(default_factory=dict)
    unread: set[KeyPath] = field(default_factory=set)
    """Values that could not be read; no further problems are reported for their placeholders."""

    def report(self, path: KeyPath, reason: str, line: int | None = None) -> None:
        """Reports a problem once per key and reason; `line` if it is not the key's."""
        if path not in self.unread:
            problem = ConfigProblem(self.file, line or self.line(path), dotted(path), reason)
            self.problems[problem] = None

    def line(self, path: KeyPath) -> int:
        """Line of the key; for a missing key, the line of the section where it is missing."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def raise_problems(self) -> None:
        """Raises ConfigError if anything was reported."""
        if self.problems:
            raise ConfigError(self.problems)


def read_document(text: str, file: str, env: Mapping[str, str]) -> Document:
    """Raises ConfigError if the text is not YAML at all; smaller problems are reported in the document."""
    root = _compose(text, file)
    document = Document(file)
    document.lines[()] = _line(root)
    document.data = _Walk(document, env).value(root, ())
    return document


def plain_scalar(text: str) -> object:
    """Value of an unquoted YAML 1.2 scalar; integers and floats are decimal."""
    try:
        return _scalar(_resolve(text), text)
    except ValueError:  # more digits than Python converts to an int (sys.set_int_max_str_digits)
        return text


def dotted(path: KeyPath) -> str:
    """Formats a path as `models.gpt-4.deployments[0].upstream`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class _Loader(yaml.SafeLoader):
    """YAML 1.2: `off`, `yes`, `1:30`, `2024-01-01` are text. In 1.1 a model named `off` is a boolean."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_TAG + "bool", re.compile(r"(?:[tT]rue|TRUE|[fF]alse|FALSE)\Z"), list("tTfF"))
_Loader.add_implicit_resolver(_TAG + "int", re.compile(r"[-+]?[0-9]+\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"),
    list("-+.0123456789"),
)


def _libyaml_loader() -> type[yaml.CSafeLoader] | None:
    """Loader that takes its events from libyaml; None where PyYAML was built without it. Nodes are composed in Python:
    PyYAML's composer in C recurses without a limit."""
    if not yaml.__with_libyaml__:
        return None

    class Loader(Composer, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    Loader.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
    return Loader


_LibyamlLoader = _libyaml_loader()
_READ_DIFFERENTLY = re.compile("[\t?!]|^ %")
"""libyaml 0.2.5 and PyYAML read these differently outside comments: tabs between tokens, `?` in braces, tags and
directives."""


_HALF = re.compile("[\ud800-\udfff]")


def _root(text: str) -> yaml.Node | None:
    """Composes with libyaml, forty times as fast, if it reads a mapping; else with PyYAML's own parser, which gives the
    same nodes, and which decides what is an error and how it is worded. Raises what PyYAML raises."""
    if _LibyamlLoader is not None and _is_read_alike(text):
        with contextlib.suppress(yaml.YAMLError, RecursionError, ValueError, OverflowError):
            root = yaml.compose(text, Loader=_LibyamlLoader)
            if isinstance(root, yaml.MappingNode):
                return root
    return yaml.compose(text, Loader=_Loader)


def _is_read_alike(text: str) -> bool:
    """Checks a line with a quote as a whole: what follows ` #` need not be a comment there."""
    for line in text.splitlines():
        code = f" {line}" if '"' in line or "'" in line else f" {line}".partition(" #")[0]
        if _READ_DIFFERENTLY.search(code):
            return False
    return "\ufeff" not in text


def _compose(text: str, file: str) -> yaml.Node:
    line, column, root = 1, 0, None
    try:
        root = _root(text)
        reason = "the file is empty"
    except yaml.MarkedYAMLError as error:
        line, column, reason = syntax_problem(text, error)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"not text: character U+{error.character:04X} is not allowed"
    except RecursionError:
        reason = f"nested deeper than {_MAX_DEPTH} levels"
    except (ValueError, OverflowError):  # raised by PyYAML: an escape beyond Unicode, a version of 5,000 digits
        reason = "not YAML: a number in an escape or in a directive is out of range"
    if root is None:
        _fail(file, line, reason, column)
    return root


class _Walk:
    """Converts nodes. Counts an alias's content at every use, so that small files cannot expand without limit."""

    def __init__(self, document: Document, env: Mapping[str, str]) -> None:
        self._document = document
        self._env = env
        self._nodes = 0

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self._count(node, path)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._read_scalar(node, path)
        # Does not quote the tag: it may be an API key that begins with !.
        self._unreadable(path, "tags are not supported; put text that begins with ! in quotes")
        return None

    def _count(self, node: yaml.Node, path: KeyPath) -> None:
        self._nodes += 1
        if isinstance(node, yaml.ScalarNode) and _HALF.search(node.value):
            _fail(self._document.file, _line(node), "not text: half of a surrogate pair")
        if self._nodes > _MAX_NODES:
            _fail(self._document.file, _line(node), f"more than {_MAX_NODES} values")
        if len(path) > _MAX_DEPTH:
            _fail(self._document.file, _line(node), f"nested deeper than {_MAX_DEPTH} levels")

    def _item(self, node: yaml.Node, path: KeyPath) -> object:
        self._document.lines[path] = _line(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in node.value:
            self._count(key, path)
            name, reason = _key(key)
            if " " in name and value.start_mark.index == value.end_mark.index:
                # Quotes only the first word: the text after the blank may be a secret.
                self._document.report(path, f"{name.split()[0]} has no value: a colon is missing", _line(key))
                continue
            if name in values:
                reason = f"duplicate key; first on line {self._document.lines[*path, name]}"
            if reason is not None:
                self._document.report((*path, name), reason, _line(key))
                continue
            self._document.lines[*path, name] = _line(key)
            values[name] = self.value(value, (*path, name))
        return values

    def _read_scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        kind = node.tag.removeprefix(_TAG)
        if kind == "str":
            return self._interpolate(node.value, path)
        try:
            return _scalar(kind, node.value)
        except (KeyError, ValueError):
            self._unreadable(path, f"not a valid !!{kind}")
            return None

    def _interpolate(self, raw: str, path: KeyPath) -> str:
        try:
            value = _VARIABLE.sub(self._variable, raw)
        except _NotAVariableError as error:
            self._unreadable(path, str(error))
            return raw
        return raw if value == raw else Interpolated(value, raw)

    def _variable(self, match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match.groups()
        if name is None:
            raise _NotAVariableError("a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$")
        if default is None and name not in self._env:
            raise _NotAVariableError(
                f"the environment variable {name} is not set; set it, or allow that: ${{{name}:-}}"
            )
        return self._env.get(name) or default or ""

    def _unreadable(self, path: KeyPath, reason: str) -> None:
        self._document.report(path, reason)
        self._document.unread.add(path)


class _NotAVariableError(ValueError):
    pass


def _key(node: yaml.Node) -> tuple[str, str | None]:
    """A key, and what is wrong with it. Numbers and booleans are taken as written: a model may be named 4."""
    if not isinstance(node, yaml.ScalarNode):
        return "?", "a key must be text"
    name = str(node.value)
    if node.tag == _TAG + "null":
        return name or "?", "a key must be text"
    if name == "<<" and not node.style:  # None in PyYAML, empty in libyaml
        return name, "merge keys are not supported; put settings that all models share under defaults"
    if "${" in name:
        return name, "variables are only supported in values, not in keys"
    return name, None


def _fail(file: str, line: int, reason: str, column: int = 0) -> NoReturn:
    raise ConfigError([ConfigProblem(file, line, "", reason, column)])


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _resolve(text: str) -> str:
    for tag, pattern in _Loader.yaml_implicit_resolvers.get(text[:1], []):
        if pattern.match(text):
            return str(tag).removeprefix(_TAG)
    return "str"


def _scalar(kind: str, text: str) -> object:
    """Raises ValueError or KeyError for text that is not of the kind, which is one of `_SCALARS`."""
    match kind:
        case "str":
            return text
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return {"true": True, "false": False}[text.lower()]
        case _:
            return None


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
