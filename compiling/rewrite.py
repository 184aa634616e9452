"""Rewrites a module for Cython, without what its declarations express better.

Line numbers stay the same, so that tracebacks show the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compiling.attributes import is_slots
from compiling.c_types import is_read_well
from compiling.declare import cimports
from compiling.program import INTERFACES, Function, Module, Program, arguments, dataclass_of

Place = tuple[int, int]
"""Line, from 1, and byte in it."""
Edit = tuple[Place, Place, str]


def rewritten(module: Module, program: Program) -> str:
    """The module's text with the same lines, and one more for its exports."""
    lines = module.text.encode().split(b"\n")
    for begin, end, new in sorted(_edits(module, program), reverse=True):
        _apply(lines, begin, end, new.encode())
    exported = [name for name in cimports(module, program) if name in module.exports]
    last = f"globals().update({', '.join(f'{name}={name}' for name in exported)})\n" if exported else ""
    return b"\n".join(lines).decode() + last


def _apply(lines: list[bytes], begin: Place, end: Place, new: bytes) -> None:
    """Replaces text from `begin` to `end`. Lines of a longer text stay as empty lines."""
    (first, left), (last, right) = begin, end
    rest = lines[last - 1][right:]
    lines[first - 1] = lines[first - 1][:left] + new + (rest if first == last else b"")
    for between in range(first, last):
        lines[between] = b"" if between < last - 1 else rest


def _edits(module: Module, program: Program) -> Iterator[Edit]:
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield _end(node), _end(node), "; import cython"
        elif isinstance(node, ast.ImportFrom) and node.module in program.modules:
            yield from _import(node, module, program)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield _end(node.target), _end(node.annotation), ""  # globals stay Python objects: tests replace some
    for function, owner in _functions(module):
        yield from _function(function, owner, module, program)
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and (module.name, node.name) in program.types:
            yield from _class(node)


def _import(node: ast.ImportFrom, module: Module, program: Program) -> Iterator[Edit]:
    """Drops C functions from an import; keeps the import of the module for its side effects."""
    taken = cimports(module, program)
    left = [name for name in node.names if taken.get(name.asname or name.name) not in program.functions]
    if len(left) < len(node.names):
        names = ", ".join(ast.unparse(each) for each in left)
        yield _begin(node), _end(node), f"from {node.module} import {names}" if names else f"import {node.module}"


def _class(node: ast.ClassDef) -> Iterator[Edit]:
    settings = dataclass_of(node)
    if settings is not None:
        options = settings.keywords if isinstance(settings, ast.Call) else []
        said = ", ".join(ast.unparse(option) for option in options if option.arg != "slots")
        yield _begin(settings), _end(settings), f"cython.dataclasses.dataclass({said})"
    for base in node.bases:
        if ast.unparse(base) in INTERFACES:
            yield _begin(base), _end(base), ""
    for each in node.body:
        if is_slots(each):
            yield _begin(each), _end(each), "pass"


def _functions(module: Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    for node in module.tree.body:
        if isinstance(node, Function):
            yield node, None
        elif isinstance(node, ast.ClassDef):
            yield from ((each, node) for each in node.body if isinstance(each, Function))


def _function(function: Function, owner: ast.ClassDef | None, module: Module, program: Program) -> Iterator[Edit]:
    if owner is None:
        is_c = (module.name, function.name) in program.functions
    else:
        is_c = ((module.name, owner.name), function.name) in program.methods
    if is_c:
        yield from _c_signature(function, module)
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and not is_read_well(node.annotation, module, program):
            yield _end(node.target), _end(node.annotation), "" if node.value is not None else ": object"
        elif isinstance(node, Function) and not is_c:
            for argument, _ in arguments(node):
                if argument.annotation is not None and not is_read_well(argument.annotation, module, program):
                    yield _after_name(argument), _end(argument.annotation), ""
        elif is_c and owner is not None and ast.unparse(node) == "super()":
            yield _begin(node), _end(node), f"super({owner.name}, self)"


def _c_signature(function: Function, module: Module) -> Iterator[Edit]:
    """Removes annotations, which are in the declarations, and the `*`, since C has no keyword-only arguments."""
    for argument, _ in arguments(function):
        if argument.annotation is not None:
            yield _after_name(argument), _end(argument.annotation), ""
    if function.returns is not None:
        line, byte = _begin(function.returns)
        before = module.text.split("\n")[line - 1].encode()[:byte]
        yield (line, before.rindex(b"->")), _end(function.returns), ""
    if function.args.kwonlyargs:
        yield _star(function, module)


def _star(function: Function, module: Module) -> Edit:
    """Removes the `*, ` before the first keyword-only argument."""
    lines = module.text.split("\n")
    line, byte = _begin(function.args.kwonlyargs[0])
    while (at := lines[line - 1].encode()[:byte].rfind(b"*,")) < 0:
        line, byte = line - 1, len(lines[line - 2].encode())
    return (line, at), (line, at + len(b"*,")), ""


def _begin(node: ast.AST) -> Place:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]  # only called for nodes with a position


def _end(node: ast.AST) -> Place:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]  # likewise


def _after_name(argument: ast.arg) -> Place:
    return argument.lineno, argument.col_offset + len(argument.arg.encode())
