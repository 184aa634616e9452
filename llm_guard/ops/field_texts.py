"""What the fields of a struct and their types say of themselves, for whoever describes them to others.

Owns how that is found: what a field says is the docstring below it, which stands in the source alone, for Python does
not keep it; of compiled modules nothing is said. Does not own the texts.
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
    """By the names of the fields, those of its bases included; without those that say nothing."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _of_module(each.__module__).get(each.__name__, {})
    return found


def type_text(schema: Mapping[str, Any]) -> str:
    """What the type of a field says, by the field's JSON Schema; "" where it says nothing."""
    found = (each.get("description") for each in (schema, *schema.get("anyOf", ())))
    return next((each for each in found if each), "")


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """By the names of its classes."""
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
