"""Runs each suite straight at the mock and behind the gateway, and compares the two test by test."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import started
from benchmarks.rig import gateway
from benchmarks.sdk_suites.mock import PREFIX
from benchmarks.sdk_suites.sources import SDKS, Source, prepare

Echo = Callable[[str], None]

_TESTS = "tests/api_resources"
"""The generated tests of every endpoint, which call TEST_API_BASE_URL. Most other tests of a suite replace the
transport.
"""
_MISSING = "not run"
_PASSED = "passed"
# A breaker that opens would fail the tests that follow, and hide which one was the cause.
CONFIG = """
server: {{client_keys: []}}
ops: {{log: {{level: warning}}}}
upstreams:
  openai: {{dialect: openai, base_url: "{{provider}}/v1"}}
  anthropic: {{dialect: anthropic, base_url: "{{provider}}"}}
defaults:
  retry: {{base_delay: 5ms, budget: {{ratio: 1, min_per_second: 1000}}}}
  breaker: {{consecutive_failures: 1000, min_calls: 10000}}
models:
  "*": {{deployments: [{{upstream: {sdk}}}]}}
"""


class SuiteError(Exception):
    """A suite that did not run to its end; the message is what it printed last."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended."""

    result: str
    """passed, failed, skipped or error."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A test that ended in another way behind the gateway."""

    test: str
    straight: Outcome
    behind: Outcome


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite, both ways."""

    sdk: str
    version: str
    straight: Mapping[str, int]
    """Number of tests by result."""
    behind: Mapping[str, int]
    differences: Sequence[Difference]
    seconds: float
    failed_straight: Sequence[str] = field(default=())
    """Tests that fail without the gateway too, so that they show nothing about it."""

    @property
    def broken(self) -> list[str]:
        """The promises that do not hold."""
        if not self.straight.get(_PASSED):
            return [f"{self.sdk} {self.version}: no test passes without the gateway, so nothing was compared"]
        count = len(self.differences)
        return [f"{self.sdk} {self.version}: {count} tests end otherwise behind the gateway"] if count else []


def run(echo: Echo, sdks: Sequence[str] = SDKS, chosen: str = "", folder: Path | None = None) -> list[SuiteResult]:
    """Runs the suites. `chosen`: pytest's -k. `folder` keeps sources and environments for the next time; without
    one they are temporary. Raises SourceError and SuiteError."""
    with _folder(folder) as place:
        results = []
        for sdk in sdks:
            echo(f"{sdk}: source and environment")
            results.append(_run(echo, prepare(sdk, place), chosen))
        return results


def compare(straight: Mapping[str, Outcome], behind: Mapping[str, Outcome]) -> list[Difference]:
    """The tests with different results, sorted by name; includes tests that ran only in one of the two ways."""
    absent = Outcome(_MISSING)
    pairs = [(test, straight.get(test, absent), behind.get(test, absent)) for test in sorted({*straight, *behind})]
    return [Difference(*pair) for pair in pairs if pair[1].result != pair[2].result]


def read_outcomes(junit: str) -> dict[str, Outcome]:
    """The outcome of each test in pytest's JUnit XML."""
    outcomes = {}
    for case in ET.fromstring(junit).iter("testcase"):
        outcome = Outcome(_PASSED)
        for kind, result in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
            if (entry := case.find(kind)) is not None:
                outcome = Outcome(result, entry.get("message", ""))
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _run(echo: Echo, source: Source, chosen: str) -> SuiteResult:
    begun = time.monotonic()
    with started("benchmarks.sdk_suites.mock", source.sdk, str(source.folder)) as mock:
        straight = _outcomes(echo, source, mock.url, "straight", chosen)
        with gateway(CONFIG.format(sdk=source.sdk), mock.url) as running:
            behind = _outcomes(echo, source, running.url, "behind the gateway", chosen)
    failed = [test for test, outcome in straight.items() if outcome.result in ("failed", "error")]
    result = SuiteResult(
        source.sdk,
        source.version,
        _counts(straight),
        _counts(behind),
        compare(straight, behind),
        time.monotonic() - begun,
        failed,
    )
    echo(f"{source.sdk} {source.version}: {dict(result.straight)} straight, {dict(result.behind)} behind the gateway")
    return result


def _counts(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    return dict(sorted(Counter(outcome.result for outcome in outcomes.values()).items()))


def _outcomes(echo: Echo, source: Source, url: str, way: str, chosen: str) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        arguments = ["-n", "0", "--tb", "line", "--durations", "0", "-p", "no:cacheprovider", f"--junitxml={junit}"]
        arguments = [*arguments, "--durations-min", "60", "-q", *(["-k", chosen] if chosen else [])]
        suite = subprocess.Popen(
            [source.python, "-m", "pytest", _TESTS, *arguments],
            cwd=source.folder,
            env=_environment(url + PREFIX if source.sdk == "openai" else url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        last = _follow(suite, lambda share: echo(f"{source.sdk} {way}: {share}"))
        if suite.returncode not in (0, 1) or not junit.exists():
            raise SuiteError(f"{source.sdk} {way}: pytest ended with {suite.returncode}:\n{last}")
        return read_outcomes(junit.read_text())


def _environment(base_url: str) -> dict[str, str]:
    """Variables of the suite's process: no keys, base URLs or proxies of this machine, which the SDKs would read."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return kept | {"TEST_API_BASE_URL": base_url, "DEFER_PYDANTIC_BUILD": "false"}


def _follow(suite: subprocess.Popen[str], echo_share: Echo) -> str:
    """Reports each tenth of the tests; returns the last lines printed, once the process has ended."""
    lines: list[str] = []
    tenth = 0
    assert suite.stdout is not None
    with suite.stdout as output:
        for line in output:
            lines = [*lines[-20:], line]
            share = line.rpartition("[")[2].removesuffix("%]\n").strip()
            if line.endswith("%]\n") and share.isdigit() and int(share) // 10 > tenth:
                tenth = int(share) // 10
                echo_share(f"{share} %")
    suite.wait()
    return "".join(lines)
