"""Construction order is dependency order: no collaborator is set on an object after its constructor.

Found are assignments `owner.name = ...` to another object than `self`, where a constructor leaves the public attribute
`name` open (None or a function that does nothing) and its type is a class with behaviour, a protocol or a callable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_files import trees

RECORDS = ("disposition", "line")
"""Names of records that have a field with the name of a collaborator."""


def is_record(node: ast.ClassDef) -> bool:
    marks = [*node.decorator_list, *node.bases]
    return any(name in ast.unparse(mark) for mark in marks for name in ("dataclass", "Struct", "NamedTuple"))


def collaborator_types(modules: list[ast.Module]) -> set[str]:
    """Returns classes that are no records, and aliases of callables."""
    found = {"Callable"}
    for node in (node for module in modules for node in module.body):
        if isinstance(node, ast.ClassDef) and not is_record(node):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable["):
            found |= {ast.unparse(target) for target in node.targets}
    return found


def is_of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"


def is_open(value: ast.expr | None, functions: set[str]) -> bool:
    """Returns whether the value stands for a collaborator that comes later."""
    match value:
        case ast.IfExp():
            return is_open(value.body, functions) or is_open(value.orelse, functions)
        case ast.Constant():
            return value.value is None
        case ast.Name():
            return value.id in functions
        case _:
            return isinstance(value, ast.Lambda)


def open_attributes(modules: list[ast.Module]) -> set[str]:
    """Returns names of public attributes that a constructor leaves open."""
    types, found = collaborator_types(modules), set[str]()
    for module in modules:
        functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        constructors = (
            part
            for node in module.body
            if isinstance(node, ast.ClassDef)
            for part in node.body
            if isinstance(part, ast.FunctionDef) and part.name == "__init__"
        )
        for node in (node for constructor in constructors for node in ast.walk(constructor)):
            if isinstance(node, ast.AnnAssign) and is_of_self(node.target) and is_open(node.value, functions):
                assert isinstance(node.target, ast.Attribute)
                named = {part.id for part in ast.walk(node.annotation) if isinstance(part, ast.Name)}
                if named & types and not node.target.attr.startswith("_"):
                    found.add(node.target.attr)
    return found


def assigned(modules: list[ast.Module]) -> Iterator[ast.Attribute]:
    """Yields the attributes of other objects than `self` that are assigned."""
    for node in (node for module in modules for node in ast.walk(module)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not is_of_self(node):
            yield node


def late_collaborators(modules: list[ast.Module]) -> set[str]:
    names = open_attributes(modules)
    return {
        ast.unparse(node)
        for node in assigned(modules)
        if node.attr in names and ast.unparse(node.value).rpartition(".")[2] not in RECORDS
    }


def test_collaborators_are_set_by_constructors_alone() -> None:
    found = late_collaborators(list(trees().values()))
    assert not found, "pass it to the constructor, and build what it needs first"


@pytest.mark.parametrize("value", ["None", "_nothing", "lambda fact: None", "before.tell if before else _nothing"])
def test_collaborator_set_later_is_found(value: str) -> None:
    source = (
        "Tell = Callable[[str], None]\n"
        "def _nothing(fact): ...\n"
        "class Bell:\n"
        "    def __init__(self, before):\n"
        f"        self.tell: Tell | None = {value}\n"
        "        self.at: float | None = None\n"
        "def ring(bell):\n"
        "    bell.tell = print\n"
        "    bell.at = 7.0\n"
    )
    assert late_collaborators([ast.parse(source)]) == {"bell.tell"}
