"""What an annotation means in C.

Owns that alone. mypy has shown that the annotations hold; where one is wrong all the same, what is compiled raises
TypeError where Python would have gone on.
"""

from __future__ import annotations

import ast

from compiling.program import Module, Program

OBJECT = "object"
_PLAIN = {"float": "double", "bool": "bint", "str": "str", "bytes": "bytes"}
_CONTAINERS = frozenset({"list", "dict", "set", "tuple"})
_HAVE_NO_NONE = frozenset({"double", "bint"})
# In the body of a function Cython reads annotations itself, and these as we mean them.
_READ_WELL = frozenset({"double", "str", "bytes"})


def c_type(annotation: ast.expr | None, module: Module, program: Program) -> str:
    """Of an argument, an attribute or a result. `int` has no bounds in Python: it stays an object."""
    match annotation:
        case ast.Name(id=name):
            found = _PLAIN.get(name) or (name if name in _CONTAINERS else None)
            return found or (name if module.names.get(name) in program.types else OBJECT)
        case ast.Subscript(value=ast.Name(id=name)) if name in _CONTAINERS:
            return name
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            found = c_type(left, module, program)
            return OBJECT if found in _HAVE_NO_NONE else found
        case _:
            return OBJECT


def is_read_well(annotation: ast.expr, module: Module, program: Program) -> bool:
    """Whether Cython may read it in the body of a function; what it makes of `float | None` is wrong in a generator."""
    found = c_type(annotation, module, program)
    return found in _READ_WELL or (found not in _PLAIN.values() and found not in _CONTAINERS and found != OBJECT)


def c_type_of_value(value: ast.expr | None, module: Module, program: Program) -> str:
    """What mypy would infer, where an attribute has no annotation but this first value."""
    match value:
        case ast.Constant(value=constant):
            return _PLAIN.get(type(constant).__name__, OBJECT)
        case ast.UnaryOp(op=ast.Not()) | ast.Compare():
            return "bint"
        case ast.Call(func=ast.Name(id=name)) if module.names.get(name) in program.types:
            return name
        case _:
            return OBJECT
