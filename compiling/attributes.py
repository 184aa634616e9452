"""Attributes of a class's instances: slots, fields, and what methods assign to `self`.

The C type of an annotation is determined in `c_types`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from compiling.c_types import OBJECT, c_type, c_type_of_value
from compiling.program import Function, Module, Name, Program, arguments, dataclass_of


def attributes(name: Name, program: Program) -> dict[str, str]:
    """The class's own attributes and their C types: from an annotation, or else from the first value, set in
    `__init__`."""
    module, node = program.modules[name[0]], program.types[name]
    found: dict[str, str] = {}
    for attribute, kind in [*_fields(node, module, program), *_assigned(node, module, program), *_slots(node)]:
        found.setdefault(attribute, kind)
    inherited = _inherited(name, program)
    properties = {each.name for each in node.body if isinstance(each, Function)}
    return {each: kind for each, kind in found.items() if each not in inherited and each not in properties}


def _inherited(name: Name, program: Program) -> set[str]:
    base = program.base(name)
    return set() if base is None else {*attributes(base, program), *_inherited(base, program)}


def _fields(node: ast.ClassDef, module: Module, program: Program) -> Iterator[tuple[str, str]]:
    for each in node.body:
        is_field = isinstance(each, ast.AnnAssign) and (each.value is None or dataclass_of(node) is not None)
        if is_field and isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, c_type(each.annotation, module, program)


def _slots(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if is_slots(each):
            yield from ((slot, OBJECT) for slot in ast.literal_eval(each.value))


def is_slots(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"


def _assigned(node: ast.ClassDef, module: Module, program: Program) -> Iterator[tuple[str, str]]:
    methods = [each for each in node.body if isinstance(each, Function) and each.args.args]
    methods.sort(key=lambda each: each.name != "__init__")
    annotated: list[tuple[str, str]] = []
    inferred: list[tuple[str, str]] = []
    for method in methods:
        for each in ast.walk(method):
            if isinstance(each, ast.AnnAssign) and (attribute := _of_self(each.target)) is not None:
                annotated.append((attribute, _annotated(each, module, program)))
            elif isinstance(each, ast.Assign):
                inferred += _targets(each, method, module, program)
    yield from annotated
    yield from inferred


def _annotated(assignment: ast.AnnAssign, module: Module, program: Program) -> str:
    kind, value = c_type(assignment.annotation, module, program), assignment.value
    # mypy accepts a defaultdict as a dict, C does not.
    is_other = isinstance(value, ast.Call) and ast.unparse(value.func) != kind
    return OBJECT if is_other and kind in ("dict", "list", "set", "tuple") else kind


def _targets(assignment: ast.Assign, method: Function, module: Module, program: Program) -> Iterator[tuple[str, str]]:
    value = assignment.value
    kind = c_type_of_value(value, module, program)
    if isinstance(value, ast.Name):
        annotations = {each.arg: each.annotation for each, _ in arguments(method)}
        kind = c_type(annotations.get(value.id), module, program)
    for target in assignment.targets:
        if isinstance(target, ast.Tuple):
            yield from ((attribute, OBJECT) for each in target.elts if (attribute := _of_self(each)) is not None)
        elif (attribute := _of_self(target)) is not None:
            yield attribute, kind


def _of_self(node: ast.expr) -> str | None:
    """`x` for `self.x`, else None."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
        case _:
            return None
