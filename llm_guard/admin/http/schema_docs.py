"""Finds the description of a struct's fields: the docstring below each field.

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
    for each in reversed(kind.__mro__):
        found |= _of_module(each.__module__).get(each.__name__, {})
    return found


def type_text(schema: Mapping[str, Any]) -> str:
    """Returns the description of a field's type, from the field's JSON Schema; "" if there is none."""
    found = (each.get("description") for each in (schema, *schema.get("anyOf", ())))
    return next((each for each in found if each), "")


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the descriptions of a module's fields, by class name."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (KeyError, OSError, TypeError):
        return {}
    return {each.name: _of_class(each) for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for declared, following in pairwise(node.body):
        match declared, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found
