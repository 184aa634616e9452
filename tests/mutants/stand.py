"""Runs one test file or test against one mutant, in a fork of a process that has imported what is slow to import.

Owns the process and the verdict. Does not own which mutants there are (`mutant`). A line of JSON is one request or
one answer. The mutant is all that differs from the package, but for its own `__init__`, which would import everything.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import hypothesis.stateful
import pytest

from tests.mutants.mutant import ROOT, Mutant

DOES_NOT_RUN = 70
"""The exit code where the mutant cannot even be imported."""
NEVER_ENDS_S = 60

# Neither the project's settings nor its plugins: they cost half a second each time, and no policy needs them.
OPTIONS = (
    "-q", "-x", "-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib", "--assert=plain",
    "-p", "no:cacheprovider",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    exit_code: int
    """Pytest's; `DOES_NOT_RUN`; or below 0 the signal that ended it."""
    failed: Sequence[str] = ()
    """How the test failed, in one line, if it ran at all."""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Stand:
    requests: IO[str]
    answers: IO[str]

    def run(self, tests: Sequence[str], mutant: Mutant | None = None) -> Verdict:
        """Until the first that fails; tests as in `Mutant.killer`. Without a mutant: the package as it is."""
        self.requests.write(json.dumps([list(tests), None if mutant is None else asdict(mutant)]) + "\n")
        self.requests.flush()
        return Verdict(**json.loads(self.answers.readline()))


@contextlib.contextmanager
def standing() -> Iterator[Stand]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    command, pipe = [sys.executable, "-m", "tests.mutants.stand"], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Stand(process.stdin, process.stdout)


def serve(requests: IO[str], answers: IO[str]) -> None:
    # The first failure tells enough: to shrink it would take the most time of all.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("first failure", phases=phases, report_multiple_bugs=False)
    hypothesis.settings.load_profile("first failure")
    package = sys.modules["llm_guard"] = types.ModuleType("llm_guard")
    package.__path__ = [str(ROOT / "llm_guard")]
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
    exit_code = pytest.main([*OPTIONS, *(f"tests/{test}" for test in tests)], plugins=[failures])
    failed.write_text(json.dumps(failures.lines))
    sys.stdout.flush()
    return int(exit_code)


def install(mutant: Mutant) -> None:
    """Whoever imports the policy from now on gets the mutant."""
    name = f"llm_guard.policy.{mutant.module}"
    assert name not in sys.modules, f"{name} was imported before"
    policies = importlib.import_module("llm_guard.policy")
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(mutant.source(), str(mutant.path), "exec"), vars(module))
    setattr(policies, mutant.module, module)


class Failures:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = "" if crash is None else crash.message.partition("\n")[0]
            self.lines.append(f"{said} in {report.nodeid}")


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
