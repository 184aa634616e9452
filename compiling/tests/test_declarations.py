"""The declarations of a module for Cython."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.call_path import walk
from compiling.attributes import attributes
from compiling.declare import declarations
from compiling.program import HOT, PACKAGE, Program, read_program

ROOT = Path(__file__).parents[2]
FUTURE = "from __future__ import annotations\n"


def program(folder: Path, **texts: str) -> Program:
    """Builds a program of modules with these texts."""
    package = folder / "llm_guard"
    package.mkdir(exist_ok=True)
    for name, text in texts.items():
        (package / f"{name}.py").write_text(FUTURE + text)
    return read_program(folder, tuple(texts))


def declared(folder: Path, text: str) -> str:
    found = program(folder, one=text)
    return declarations(found.modules["llm_guard.one"], found)


def held(folder: Path, text: str) -> dict[str, str]:
    """Returns the declared attributes of class C."""
    return attributes(("llm_guard.one", "C"), program(folder, one=text))


def test_every_module_is_there_and_has_much_to_be_compiled() -> None:
    found = read_program(ROOT)
    assert len(found.modules) == len(HOT) == len(set(HOT))
    assert len(found.types) > 90
    assert len(found.methods) > 250


NOT_COMPILED = {"log.writer", "resilience.capacity.rate_limit_headers"}
"""`tests.sweep` replaces a class of `log.writer`; gateways exchange classes of `rate_limit_headers`."""


def test_no_dataclass_that_is_compiled_is_extended_in_python() -> None:
    """Python's dataclass does not know the fields of a C type: they would stay without values."""
    compiled = {name for (_, name), node in read_program(ROOT).types.items() if "dataclass" in _decorators(node)}
    for node in _python_classes():
        if "dataclass" in _decorators(node):
            assert not compiled & {ast.unparse(base) for base in node.bases}, node.name


def test_no_method_that_c_calls_is_overridden_with_keyword_only_arguments() -> None:
    """C passes all arguments by position."""
    program = read_program(ROOT)
    compiled, methods = {name for _, name in program.types}, {method for _, method in program.methods}
    for node in _python_classes():
        if compiled & {ast.unparse(base) for base in node.bases}:
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name in methods:
                    assert not each.args.kwonlyargs, (node.name, each.name)


def _python_classes() -> Iterator[ast.ClassDef]:
    """Yields the classes that are not compiled."""
    for path in (ROOT / PACKAGE).rglob("*.py"):
        if ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts) not in HOT:
            yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))


def _decorators(node: ast.ClassDef) -> str:
    return " ".join(map(ast.unparse, node.decorator_list))


async def test_every_module_of_a_calls_path_is_compiled() -> None:
    """When modules were split, 18 of them had been left behind."""
    path = await walk()
    on_the_path = {file.removesuffix(".py").replace("/", ".") for file in path.files}
    assert on_the_path - set(HOT) == NOT_COMPILED


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ("float", "double"),
        ("float | None", "object"),
        ("bool", "bint"),
        ("bool | None", "object"),
        ("int", "object"),
        ("str | None", "str"),
        ("bytes", "bytes"),
        ("dict[str, int]", "dict"),
        ("list[int] | None", "list"),
        ("Sequence[int]", "object"),
        ("C", "C"),
        ("C | None", "C"),
        ("C | D", "object"),
        ("C | D | None", "object"),
        ("'C'", "object"),
        ("P", "object"),
    ],
)
def test_annotation_has_its_type(tmp_path: Path, annotation: str, kind: str) -> None:
    text = f"class C: ...\nclass D: ...\nclass P(Protocol): ...\ndef act(x: {annotation}) -> {annotation}: ...\n"
    assert f"cpdef {kind} act({kind} x)\n" in declared(tmp_path, text)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("0.0", "double"),
        ("0", "object"),
        ("True", "bint"),
        ("None", "object"),
        ("b''", "bytes"),
        ("given", "str"),
        ("C()", "C"),
        ("not given", "bint"),
        ("len(given)", "object"),
        ("elsewhere", "object"),
    ],
)
def test_attribute_without_an_annotation_has_the_type_of_its_first_value(tmp_path: Path, first: str, kind: str) -> None:
    text = f"class C:\n    def late(self): self.x = 1\n    def __init__(self, given: str): self.x = {first}\n"
    assert held(tmp_path, text) == {"x": kind}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("__slots__ = ('a', '_b')", {"a": "object", "_b": "object"}),
        ("def act(self): self.a, self.b = 1, 2", {"a": "object", "b": "object"}),
        ("def act(self): self.a = self.b = 0.5", {"a": "double", "b": "double"}),
        ("def act(self): self.a: dict[str, int] = {}", {"a": "dict"}),
        ("def act(self): self.a: dict[str, int] = defaultdict(int)", {"a": "object"}),
        ("def act(self): other.a = 1", {}),
        ("a: float", {"a": "double"}),
        ("a: float = 0.0", {}),
        ("@property\n    def a(self): ...\n    def act(self): self.a = 1", {}),
    ],
)
def test_instance_has_the_attributes_that_its_class_declares_and_its_methods_assign(
    tmp_path: Path, body: str, found: dict[str, str]
) -> None:
    assert held(tmp_path, f"class C:\n    {body}\n") == found


def test_fields_of_a_frozen_dataclass_are_read_alone_but_for_those_that_are_computed(tmp_path: Path) -> None:
    text = "@dataclass(frozen=True, slots=True)\nclass C:\n    a: float\n    b: str = field(init=False)\n"
    assert "cdef readonly double a\n    cdef public str b\n" in declared(tmp_path, text)


@pytest.mark.parametrize("head", ["class C(Enum)", "class C(Struct, frozen=True)", "class C(A, B)", "class CSettings"])
def test_class_that_has_to_be_pythons_stays_it(tmp_path: Path, head: str) -> None:
    text = f"class A: ...\nclass B: ...\n{head}:\n    def act(self): ...\n@final\nclass D: ...\n"
    found = declared(tmp_path, text)
    assert "class C" not in found
    assert "class D" not in found
    assert "class A" in found


def test_class_that_inherits_declares_its_own_attributes(tmp_path: Path) -> None:
    base = "class B:\n    def __init__(self): self.a = 0.0\n"
    text = base + "class C(B):\n    def act(self):\n        self.a = 1.0\n        self.b = 2.0\n"
    assert held(tmp_path, text) == {"b": "double"}
    assert "cdef class C(B):" in declared(tmp_path, text)


@pytest.mark.parametrize(
    "function",
    [
        "async def act(self): ...",
        "def act(self): yield 1",
        "def act(self): return (x for x in y)",
        "def act(self): return lambda: 1",
        "def act(self, draw=lambda: 1): ...",
        "def act(self, *names): ...",
        "def act(self, **names): ...",
        "@property\n    def act(self): ...",
        "@staticmethod\n    def act(self): ...",
        "def __len__(self): ...",
        "def act(self, a=1, *, b): ...",
        "def act(): ...",
    ],
)
def test_code_that_c_cannot_call_is_called_as_before(tmp_path: Path, function: str) -> None:
    assert "cpdef" not in declared(tmp_path, f"class C:\n    {function}\n")


def test_arguments_have_their_types_and_their_defaults(tmp_path: Path) -> None:
    text = "def act(a: float, b: int = 1, *, c: bool = False, d=None) -> bytes | None: ...\n"
    assert declared(tmp_path, text) == "cpdef bytes act(double a, object b=*, bint c=*, object d=*)\n"


def test_method_that_one_class_of_a_family_has_otherwise_is_pythons_in_all(tmp_path: Path) -> None:
    """C would call the base's method for an instance of the subclass."""
    text = (
        "class B:\n    def act(self): ...\n    def go(self): ...\n"
        "class C(B): ...\nclass D(C):\n    def act(self): return (x for x in y)\n    def go(self): ...\n"
        "class E:\n    def act(self): ...\n"
    )
    one = program(tmp_path, one=text)
    assert {(name, method) for (_, name), method in one.methods} == {("B", "go"), ("D", "go"), ("E", "act")}


def test_names_of_other_modules_are_c_as_well(tmp_path: Path) -> None:
    imported = "from llm_guard.one import C, SOME, act\nfrom llm_guard.three import E\ndef go(c: C): ...\n"
    found = program(tmp_path, one="SOME = 1\nclass C: ...\ndef act(): ...\n", two=imported)
    assert declarations(found.modules["llm_guard.two"], found) == (
        "from llm_guard.one cimport C as C\nfrom llm_guard.one cimport act as act\ncpdef object go(C c)\n"
    )


def test_exports_of_a_module_stay_python_objects(tmp_path: Path) -> None:
    imported = "from llm_guard.one import C, act\n__all__ = ['C', 'act']\n"
    found = program(tmp_path, one="class C: ...\ndef act(): ...\n", two=imported)
    assert declarations(found.modules["llm_guard.two"], found) == "from llm_guard.one cimport C as C\n"


def test_module_that_reads_its_annotations_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "llm_guard").mkdir()
    (tmp_path / "llm_guard" / "one.py").write_text("def act(): ...\n")
    with pytest.raises(ValueError, match=r"one\.py has no `from __future__ import annotations`"):
        read_program(tmp_path, ("one",))
