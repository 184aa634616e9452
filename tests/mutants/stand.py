"""Runs tests against one mutant, in a fork of a process that has already imported the slow libraries.

Requests and responses are one line of JSON each. There are two kinds of stand:

- cold: the fork imports what the test needs of `llm_guard`, with the mutant in place of its module. `__init__.py` is
  replaced as well, because it imports everything. Policies need little, so this takes 0.3 s each.
- warm: the gateway is imported before the fork, which changes the code of one function. Otherwise the imports alone
  would take 1.5 s for each mutant outside `resilience/`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import inspect
import io
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import IO

import hypothesis.stateful
import pytest

from tests.hypothesis_draws import without_constants_of_modules
from tests.mutants.mutant import PACKAGE, ROOT, Mutant

DOES_NOT_RUN = 70
"""Exit code if the mutant cannot be imported."""
MOST_PROCESSOR_S = 60
"""Limits processor time, not wall time: a busy machine must not make a test look endless."""
NEVER_ENDS_S = 110

# Without the project's settings, plugins and `conftest`, which imports the whole gateway: 1.5 s for each mutant.
# Tracebacks without source: looking that up takes longer than a short test.
OPTIONS = (
    "-q", "-x", "-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib", "--assert=plain", "--noconftest",
    "--tb=native",
    "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto",
    "-o", "asyncio_default_fixture_loop_scope=function",
)  # fmt: skip

# Imported before the fork. Nothing of `llm_guard`, which must be imported after the mutant is installed.
LIBRARIES = (
    "aiohttp.web", "click", "cryptography.hazmat.primitives.ciphers.aead", "hypothesis.stateful", "httptools",
    "msgspec", "prometheus_client", "pydantic", "pytest_asyncio.plugin", "sqlite3", "ssl", "structlog", "uvloop",
    "yaml",
)  # fmt: skip
# One in six tests that a warm stand runs takes an SDK, which is slower to import than the gateway.
LIBRARIES_OF_A_WARM_STAND = ("anthropic", "openai", "redis.asyncio", "trustme")


@dataclass(frozen=True, slots=True)
class Verdict:
    exit_code: int
    """Exit code of pytest or `DOES_NOT_RUN`; negative if a signal ended it."""
    failed: Sequence[str] = ()
    """How the test failed, in one line, if it ran at all."""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Stand:
    requests: IO[str]
    answers: IO[str]

    def run(self, tests: Sequence[str], mutant: Mutant | None = None) -> Verdict:
        """Runs tests, named as in `Mutant.killer`, until the first that fails. Without a mutant the package is
        unchanged."""
        self.requests.write(json.dumps([list(tests), None if mutant is None else asdict(mutant)]) + "\n")
        self.requests.flush()
        return Verdict(**json.loads(self.answers.readline()))


@contextlib.contextmanager
def standing(*, is_warm: bool = False) -> Iterator[Stand]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", "LLM_GUARD_TEST_EFFORT": "full"}
    command, pipe = [sys.executable, "-m", "tests.mutants.stand", *(["warm"] if is_warm else [])], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Stand(process.stdin, process.stdout)


def serve(requests: IO[str], answers: IO[str], *, is_warm: bool) -> None:
    # The first failure is enough: shrinking it would take longer than everything else. No deadline, because a slow
    # machine must not look like a killed mutant.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "first failure",
        phases=phases,
        report_multiple_bugs=False,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("first failure")
    without_constants_of_modules()
    for library in LIBRARIES:
        importlib.import_module(library)
    if is_warm:
        for library in LIBRARIES_OF_A_WARM_STAND:
            importlib.import_module(library)
        import_gateway()
    else:
        package = sys.modules["llm_guard"] = types.ModuleType("llm_guard")
        package.__path__ = [str(PACKAGE)]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*OPTIONS, "--version"])  # imports pytest's own plugins
    gc.freeze()
    for request in requests:
        tests, mutant = json.loads(request)
        verdict = in_fork(tests, None if mutant is None else Mutant(**mutant))
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


def in_fork(tests: Sequence[str], mutant: Mutant | None) -> Verdict:
    with tempfile.TemporaryDirectory() as directory:
        output, failed = Path(directory, "output"), Path(directory, "failed")
        failed.write_text("[]")
        child = os.fork()
        if child == 0:
            signal.alarm(NEVER_ENDS_S)
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_S, MOST_PROCESSOR_S))
            os.environ["XDG_STATE_HOME"] = directory
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os._exit(judge(tests, mutant, failed))
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return Verdict(exit_code, json.loads(failed.read_text()), output.read_text())


def judge(tests: Sequence[str], mutant: Mutant | None, failed: Path) -> int:
    if mutant is not None:
        try:
            install(mutant)
        except Exception:  # noqa: BLE001 - whatever a broken module raises
            traceback.print_exc()
            return DOES_NOT_RUN
    failures = Failures()
    # Else pytest lists the folders from the root of the file system down to the test.
    nearest = f"--confcutdir={Path('tests', tests[0].partition('::')[0]).parent}"
    exit_code = pytest.main([*OPTIONS, nearest, *(f"tests/{test}" for test in tests)], plugins=[failures])
    failed.write_text(json.dumps(failures.lines))
    sys.stdout.flush()
    return int(exit_code)


def install(mutant: Mutant) -> None:
    """Changes the function if its module is already imported; otherwise every later import of the module gets the
    mutant. Errors of that import propagate."""
    if (module := sys.modules.get(mutant.import_name)) is not None:
        function = function_in(module, mutant.where)
        function.__code__ = code_in(compile(mutant.source(), str(mutant.path), "exec"), mutant.where)
        return
    sys.meta_path.insert(0, MutantFinder(mutant))
    importlib.import_module(mutant.import_name)


def import_gateway() -> None:
    package = importlib.import_module("llm_guard")
    for module in pkgutil.walk_packages(package.__path__, "llm_guard."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)


def code_in(code: types.CodeType, name: str) -> types.CodeType:
    """Returns the code of the function with this qualified name."""
    nested = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    for each in nested:
        if each.co_qualname == name:
            return each
        if name.startswith(f"{each.co_qualname}."):
            return code_in(each, name)
    raise ValueError(f"no function is called {name}")


def function_in(module: types.ModuleType, name: str) -> types.FunctionType:
    """Returns the plain function under properties, class methods and decorators."""
    found: object = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)  # type: ignore[arg-type]  # raises nothing for what is no function
    if not isinstance(found, types.FunctionType):
        raise ValueError(f"{name} is no function")
    return found


class MutantFinder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._mutant.import_name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._mutant.path, loader=MutantLoader(self._mutant, fullname)
        )


class MutantLoader(SourceFileLoader):
    """Compiles the mutant's source; neither reads nor writes bytecode files."""

    def __init__(self, mutant: Mutant, fullname: str) -> None:
        super().__init__(fullname, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> types.CodeType:
        code: types.CodeType = compile(self._mutant.source(), self.path, "exec", dont_inherit=True)
        return code


class Failures:
    """A pytest plugin that records how tests fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = "" if crash is None else crash.message.partition("\n")[0]
            self.lines.append(f"{said} in {report.nodeid}")


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout, is_warm="warm" in sys.argv)
