"""From the package's sources to the package compiled, under build/compiled/.

Owns the order of the work, what of it is done already, and the commands of the C compiler. Nothing is written beside
the sources. Does not own what Cython reads (`declare`, `rewrite`).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compiling.declare import cimports, declarations
from compiling.program import HOT, PACKAGE, Module, Program, read_program
from compiling.rewrite import rewritten

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "compiled"
DIRECTIVES = {"language_level": 3, "annotation_typing": True, "binding": True, "nonecheck": True}
"""`nonecheck`: an attribute of None is an AttributeError, not the end of the process."""
_C_OPTIONS = ("-O2", "-g0", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-fPIC", "-w")
_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


class BuildError(Exception):
    """Something cannot be compiled; the text says what, and what to do."""


def build(root: Path, target: Path, hot: tuple[str, ...] = HOT) -> Path:
    """Compiles what has changed since the last time; returns the folder to be put on the path, which holds the whole
    package: its sources, and beside those of `hot` what Python takes in their place. Raises BuildError."""
    sources, package = target / "sources", target / "lib"
    program = read_program(root, hot)
    _lay_out(program, sources)
    _copy(root / PACKAGE, package / PACKAGE, program)
    # The largest first: nobody waits for one that was begun last.
    modules = sorted(program.modules.values(), key=lambda module: -len(module.text))
    paths = [module.path for module in modules]
    keys = [_key(module, program, sources) for module in modules]
    with ProcessPoolExecutor() as pool:
        said = list(pool.map(partial(_compiled, target), paths, keys))
    if failed := [each for each in said if each]:
        raise BuildError("\n".join(failed))
    return package


def extensions(package: Path) -> Iterator[Path]:
    """What was compiled, from the folder that `build` returned."""
    return (path.relative_to(package) for path in sorted(package.rglob(f"*{_SUFFIX}")))


def _lay_out(program: Program, sources: Path) -> None:
    """What Cython reads, and nothing else."""
    shutil.rmtree(sources, ignore_errors=True)
    for module in program.modules.values():
        path = sources / module.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewritten(module, program))
        path.with_suffix(".pxd").write_text(declarations(module, program))
        for folder in path.relative_to(sources).parents[:-1]:
            (sources / folder / "__init__.py").touch()


def _copy(package: Path, target: Path, program: Program) -> None:
    """The sources as they are, for whatever is not compiled, and for tracebacks."""
    kept = {str(module.path.relative_to(PACKAGE).with_suffix("")) for module in program.modules.values()}
    for path in sorted(target.rglob("*")):
        place = path.relative_to(target)
        if path.is_file() and not (package / place).exists() and str(place).split(".")[0] not in kept:
            path.unlink()
    shutil.copytree(package, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def _key(module: Module, program: Program, sources: Path) -> str:
    """Of all that a compiled module depends on: its text, and what is declared in those that it knows of."""
    known, new = {module.name}, [module]
    while new:
        homes = {name for name, _ in cimports(new.pop(), program).values()} - known
        known |= homes
        new += [program.modules[name] for name in homes]
    declared = [(sources / program.modules[name].path).with_suffix(".pxd").read_text() for name in sorted(known)]
    parts = (version("Cython"), DIRECTIVES, _C_OPTIONS, _SUFFIX, _compiler(), rewritten(module, program), declared)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _compiled(target: Path, path: Path, key: str) -> str:
    """One module, unless that is done; returns what is wrong with it, or nothing."""
    source, extension = target / "sources" / path, target / "lib" / path.with_suffix(_SUFFIX)
    stamp = target / "keys" / path
    if extension.exists() and stamp.exists() and stamp.read_text() == key:
        return ""
    stamp.unlink(missing_ok=True)
    said = _to_c(path, target / "sources") or _to_machine_code(source.with_suffix(".c"), extension)
    if not said:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
    return said


def _to_c(path: Path, sources: Path) -> str:
    os.chdir(sources)  # a traceback names files as Cython was told them
    main: Any = importlib.import_module("Cython.Compiler.Main")  # it has no types
    errors: Any = importlib.import_module("Cython.Compiler.Errors")
    errors.LEVEL = 9  # its warnings are of what it makes of dataclasses, and of protocols that it need not know
    options = main.CompilationOptions(compiler_directives=DIRECTIVES, include_path=["."])
    try:
        result = main.compile_single(str(path), options, full_module_name=".".join(path.with_suffix("").parts))
    except errors.CompileError as error:
        return f"{path}: {error}"
    return f"{path}: Cython refuses it" if result.num_errors else ""


def _to_machine_code(source: Path, target: Path) -> str:
    command = [*_compiler(), *_C_OPTIONS, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(target)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"{command[0]} is missing: it takes a C compiler (apt-get install gcc libc6-dev)"
    if "Python.h" in ended.stderr:
        return "Python.h is missing: it takes Python's headers (apt-get install python3-dev)"
    return f"{source.name}: {ended.stderr}" if ended.returncode else ""


def _compiler() -> list[str]:
    """What this Python says that its extensions are compiled and linked with."""
    return shlex.split(str(sysconfig.get_config_var("LDSHARED")))
