"""Compiles the package's sources into build/compiled/.

Orders the steps, skips what is up to date, and runs the C compiler. Writes nothing beside the sources. What Cython
reads is written in `declare` and `rewrite`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
"""`nonecheck`: an attribute of None raises AttributeError instead of crashing the process."""
_C_OPTIONS = ("-O2", "-g0", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-fPIC", "-w")
_QUICK_OPTIONS = ("-O1",)
"""Half the compiler's time of `-O2`, which it overrides: for tests."""
_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


_PROFILE_OPTIONS = ("-fprofile-correction", "-Wno-missing-profile")
"""Counts of a program with threads may differ slightly, and code that never ran has none."""


_TRAINING_S = 300
"""It usually takes ten seconds."""


class BuildError(Exception):
    """Something cannot be compiled; the text says what, and what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One module to compile."""

    target: Path
    path: Path
    """Path of its source, relative to the root."""
    key: str
    """Hash of all that it depends on."""

    @property
    def c_file(self) -> Path:
        return self.target / "c" / self.path.with_suffix(".c")

    @property
    def notes(self) -> Path:
        """Prefix of the files with its training's counts."""
        return self.target / "objects" / self.path.with_suffix("")

    def extension(self, folder: str) -> Path:
        return self.target / folder / self.path.with_suffix(_SUFFIX)

    def stamp(self, folder: str) -> Path:
        return self.target / "keys" / folder / self.path

    def write_stamp(self, folder: str, text: str) -> None:
        self.stamp(folder).parent.mkdir(parents=True, exist_ok=True)
        self.stamp(folder).write_text(text)

    def is_done(self, folder: str, options: tuple[str, ...]) -> bool:
        """True if the extension is up to date and compiled with these options."""
        stamp = self.stamp(folder)
        return self.extension(folder).exists() and stamp.exists() and stamp.read_text() == repr((self.key, options))


def build(
    root: Path, target: Path, hot: tuple[str, ...] = HOT, *, is_profiled: bool = False, is_quick: bool = False
) -> Path:
    """Compiles what has changed since the last time; returns the folder to put on the path. It holds the whole package:
    its sources, and beside those of `hot` the extensions that Python loads instead. Raises BuildError.

    `is_profiled`: compiles it twice, the first time to count which branches are taken; that saves an eighth of a call.
    `is_quick`: the compiler optimizes less.
    """
    program = read_program(root, hot)
    _lay_out(program, target / "sources")
    # Largest first, so that no large one is started last.
    modules = sorted(program.modules.values(), key=lambda module: -len(module.text))
    keys = [_key(module, program, target / "sources") for module in modules]
    parts = [Part(target, module.path, key) for module, key in zip(modules, keys, strict=True)]
    with ProcessPoolExecutor() as pool:
        _check(pool.map(_to_c, parts))
        options: tuple[str, ...] = _QUICK_OPTIONS if is_quick else ()
        if is_profiled:
            options = ("-fprofile-use", *_PROFILE_OPTIONS)
            if not all(part.is_done("lib", options) for part in parts):
                _train(root, target, program, parts, pool)
        _copy(root / PACKAGE, target / "lib" / PACKAGE, program)
        _check(pool.map(partial(_to_machine_code, folder="lib", options=options), parts))
    return target / "lib"


def _train(root: Path, target: Path, program: Program, parts: list[Part], pool: ProcessPoolExecutor) -> None:
    """Writes the profile that the C compiler uses, beside each object. Raises BuildError."""
    if not _is_gcc():
        raise BuildError("a profile takes gcc: build without one")
    for old in (target / "objects").rglob("*.gcda"):
        old.unlink()
    package = target / "training"
    _copy(root / PACKAGE, package / PACKAGE, program)
    _check(pool.map(partial(_to_machine_code, folder="training", options=("-fprofile-generate",)), parts))
    paths = os.pathsep.join((str(package), str(ROOT)))
    command = [sys.executable, "-P", "-m", "compiling.training"]
    env = {**os.environ, "PYTHONPATH": paths}
    try:
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_TRAINING_S, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BuildError(f"the training has not ended within {_TRAINING_S} s") from None
    if ended.returncode:
        raise BuildError(f"the training failed:\n{ended.stderr}")


def extensions(package: Path) -> Iterator[Path]:
    """Paths of the extensions, relative to `package`, the folder that `build` returned."""
    return (path.relative_to(package) for path in sorted(package.rglob(f"*{_SUFFIX}")))


def _lay_out(program: Program, sources: Path) -> None:
    """Writes the files that Cython reads."""
    shutil.rmtree(sources, ignore_errors=True)
    for module in program.modules.values():
        path = sources / module.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewritten(module, program))
        path.with_suffix(".pxd").write_text(declarations(module, program))
        for folder in path.relative_to(sources).parents[:-1]:
            (sources / folder / "__init__.py").touch()


def _copy(package: Path, target: Path, program: Program) -> None:
    """Copies the sources, which are needed for modules that are not compiled, and for tracebacks."""
    kept = {str(module.path.relative_to(PACKAGE).with_suffix("")) for module in program.modules.values()}
    for path in sorted(target.rglob("*")):
        place = path.relative_to(target)
        if path.is_file() and not (package / place).exists() and str(place).split(".")[0] not in kept:
            path.unlink()
    shutil.copytree(package, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def _key(module: Module, program: Program, sources: Path) -> str:
    """Hash of all that a compiled module depends on: its text, and the declarations of the modules that it uses."""
    known, new = {module.name}, [module]
    while new:
        homes = {name for name, _ in cimports(new.pop(), program).values()} - known
        known |= homes
        new += [program.modules[name] for name in homes]
    declared = [(sources / program.modules[name].path).with_suffix(".pxd").read_text() for name in sorted(known)]
    parts = (version("Cython"), DIRECTIVES, _C_OPTIONS, _SUFFIX, _compiler(), rewritten(module, program), declared)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _check(said: Iterable[str]) -> None:
    if failed := [each for each in said if each]:
        raise BuildError("\n".join(failed))


def _to_c(part: Part) -> str:
    """Runs Cython unless its output is up to date; returns what is wrong, or ""."""
    if part.c_file.exists() and part.stamp("c").exists() and part.stamp("c").read_text() == part.key:
        return ""
    part.c_file.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(part.target / "sources")  # tracebacks name files by the path that Cython was given
    main: Any = importlib.import_module("Cython.Compiler.Main")  # it has no types
    errors: Any = importlib.import_module("Cython.Compiler.Errors")
    errors.LEVEL = 9  # hides warnings about its own handling of dataclasses and about protocols
    options = main.CompilationOptions(
        compiler_directives=DIRECTIVES, include_path=["."], output_file=str(part.c_file)
    )  # fmt: skip
    name = ".".join(part.path.with_suffix("").parts)
    try:
        result = main.compile_single(str(part.path), options, full_module_name=name)
    except errors.CompileError as error:
        return f"{part.path}: {error}"
    if result.num_errors:
        return f"{part.path}: Cython refuses it"
    part.write_stamp("c", part.key)
    return ""


def _to_machine_code(part: Part, folder: str, options: tuple[str, ...]) -> str:
    """Runs the C compiler unless its output is up to date; returns what is wrong, or ""."""
    if part.is_done(folder, options):
        return ""
    target, notes = part.extension(folder), part.notes
    target.parent.mkdir(parents=True, exist_ok=True)
    notes.parent.mkdir(parents=True, exist_ok=True)
    include = f"-I{sysconfig.get_path('include')}"
    # The same name in both builds, by which the compiler finds the counts.
    named = ["-dumpdir", f"{notes}-"] if options else []
    command = [*_compiler(), *_C_OPTIONS, *options, *named, include, str(part.c_file), "-o", str(target)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"{command[0]} is missing: it takes a C compiler (apt-get install gcc libc6-dev)"
    if "Python.h" in ended.stderr:
        return "Python.h is missing: it takes Python's headers (apt-get install python3-dev)"
    if ended.returncode:
        return f"{part.c_file.name}: {ended.stderr}"
    part.write_stamp(folder, repr((part.key, options)))
    return ""


def _is_gcc() -> bool:
    asked = subprocess.run([_compiler()[0], "--version"], capture_output=True, text=True, check=False)
    return "Free Software Foundation" in asked.stdout


def _compiler() -> list[str]:
    """The command with which this Python compiles and links extensions."""
    return shlex.split(str(sysconfig.get_config_var("LDSHARED")))
