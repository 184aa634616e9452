"""C types of annotations.

mypy has checked the annotations; where one is wrong nevertheless, compiled code raises TypeError where Python would go
on.
"""

from __future__ import annotations

import ast

from compiling.program import Module, Program

OBJECT = "object"
_PLAIN = {"float": "double", "bool": "bint", "str": "str", "bytes": "bytes"}
_CONTAINERS = frozenset({"list", "dict", "set", "tuple"})
_HAVE_NO_NONE = frozenset({"double", "bint"})
# In the body of a function Cython reads annotations itself, and reads these correctly.
_READ_WELL = frozenset({"double", "str", "bytes"})


def c_type(annotation: ast.expr | None, module: Module, program: Program) -> str:
    """C type of an argument, an attribute or a result. `int` is unbounded in Python, so it stays an object."""
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
    """True if Cython reads this annotation correctly in the body of a function; it misreads `float | None` in a
    generator."""
    found = c_type(annotation, module, program)
    return found in _READ_WELL or (found not in _PLAIN.values() and found not in _CONTAINERS and found != OBJECT)


def c_type_of_value(value: ast.expr | None, module: Module, program: Program) -> str:
    """C type that mypy would infer for an attribute without an annotation, from its first value."""
    match value:
        case ast.Constant(value=constant):
            return _PLAIN.get(type(constant).__name__, OBJECT)
        case ast.UnaryOp(op=ast.Not()) | ast.Compare():
            return "bint"
        case ast.Call(func=ast.Name(id=name)) if module.names.get(name) in program.types:
            return name
        case _:
            return OBJECT
