"""Finds the description of a class's fields: the docstring below each field, also in the words of a YAML file.

Python does not keep those docstrings, so they are parsed from the source; compiled modules have no descriptions.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

_MODULE = re.compile(r" \(`[a-z_]+(?:\.[A-Za-z_]+)+`\)")
_UNITS = re.compile(
    r"\bDurations in seconds(?:, (?:sizes in bytes|each > 0))?[.]|The names are those of `outcome.Limit`[.]"
)
"""Sentences for programmers; in the file values have units."""
_PYTHON = re.compile(r"\b(?:None|True|False)\b")
_YAML = {"None": "null", "True": "true", "False": "false"}


def yaml_texts(kind: type) -> dict[str, str]:
    """Returns descriptions of a settings class for users of the file: with null and true as in YAML, without names of
    modules. By field name; that of the class is the field "", empty if it has none."""
    about = kind.__doc__ or ""
    if about.startswith(f"{kind.__name__}("):  # a dataclass without a docstring has its signature as one
        about = ""
    return {name: _in_yaml(text) for name, text in {**field_texts(kind), "": about}.items()}


def _in_yaml(text: str) -> str:
    text = _UNITS.sub("", _MODULE.sub("", " ".join(text.split()))).strip()
    return _PYTHON.sub(lambda word: f"`{_YAML[word[0]]}`", text)


def field_texts(kind: type) -> dict[str, str]:
    """Returns descriptions by field name, those of base classes included. Fields without one are left out."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _of_module(base.__module__).get(base.__name__, {})
    return found


def type_text(schema: Mapping[str, Any]) -> str:
    """Returns the description of a field's type, from the field's JSON Schema; "" if there is none."""
    found = (part.get("description") for part in (schema, *schema.get("anyOf", ())))
    return next((text for text in found if text), "")


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the descriptions of a module's fields, by class name."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: _of_class(node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for declared, following in pairwise(node.body):
        match declared, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found
