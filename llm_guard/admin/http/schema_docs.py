"""Finds the description of a class's fields: the docstring below each field.

Python does not keep those docstrings, so they are parsed from the source; compiled modules have no descriptions.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any


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
