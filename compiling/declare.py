"""Writes Cython's declarations beside a module (.pxd): which classes are C structs, and which functions C can call.

What can be C is decided in `program`; C types are in `c_types` and `attributes`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compiling.attributes import attributes, is_slots
from compiling.c_types import OBJECT, c_type
from compiling.program import Function, Module, Name, Program, arguments, dataclass_of


def declarations(module: Module, program: Program) -> str:
    """The declarations of one module."""
    return "".join(f"{line}\n" for line in _lines(module, program))


def cimports(module: Module, program: Program) -> dict[str, Name]:
    """Names imported from other modules as C, by the local name. Exported names must be Python objects."""
    return {
        local: name
        for local, name in module.names.items()
        if name[0] != module.name
        and (name in program.types or (name in program.functions and local not in module.exports))
    }


def _lines(module: Module, program: Program) -> Iterator[str]:
    for local, (home, name) in cimports(module, program).items():
        yield f"from {home} cimport {name} as {local}"
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and (module.name, node.name) in program.types:
            yield from _class(node, module, program)
        elif isinstance(node, ast.FunctionDef) and (module.name, node.name) in program.functions:
            yield _signature(node, module, program, is_method=False)


def _class(node: ast.ClassDef, module: Module, program: Program) -> Iterator[str]:
    name = (module.name, node.name)
    settings = dataclass_of(node)
    is_frozen = settings is not None and "frozen=True" in ast.unparse(settings)
    base = f"({ast.unparse(node.bases[0])})" if program.base(name) is not None else ""
    yield f"cdef class {node.name}{base}:"
    yield "    pass"
    for attribute, kind in attributes(name, program).items():
        access = "readonly" if is_frozen and not _is_late(node, attribute) else "public"
        yield f"    cdef {access} {kind} {attribute}"
    if not base and settings is None and not any(map(is_slots, node.body)):
        yield "    cdef object __weakref__"
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and (name, each.name) in program.methods:
            yield "    " + _signature(each, module, program, is_method=True)


def _is_late(node: ast.ClassDef, attribute: str) -> bool:
    """True if `__post_init__` sets the attribute, so that it cannot be read-only."""
    return any(
        isinstance(each, ast.AnnAssign)
        and ast.unparse(each.target) == attribute
        and each.value is not None
        and "init=False" in ast.unparse(each.value)
        for each in node.body
    )


def _signature(function: Function, module: Module, program: Program, *, is_method: bool) -> str:
    taken = ["self"] if is_method else []
    for argument, default in arguments(function)[is_method:]:
        kind = c_type(argument.annotation, module, program)
        taken.append(f"{kind} {argument.arg}" + ("=*" if default is not None else ""))
    result = OBJECT if function.returns is None else c_type(function.returns, module, program)
    return f"cpdef {result} {function.name}({', '.join(taken)})"
