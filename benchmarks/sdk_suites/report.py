"""The suites' results as `sdk-suites.md` and `sdk-suites.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.provenance import Machine, computed_line
from benchmarks.sdk_suites.run import SuiteResult

_NAME = "sdk-suites"
_MESSAGE_LENGTH = 160
_INTRO = """\
# The official SDKs' own tests behind the gateway

Each SDK's tests of its endpoints (`tests/api_resources`, from the source distribution of the version that
`requirements-dev.lock` pins) run straight at a mock of the API, and again at a gateway with that mock as its upstream.
The mock answers every endpoint in the SDK's list of methods with an example of the type that the method returns; every
field, optional ones too, has a value. Promised: each test ends the same way."""


def write(results: Sequence[SuiteResult], folder: Path, machine: Machine) -> None:
    """Writes both files."""
    content = {"machine": machine, "suites": [asdict(result) for result in results]}
    Path(folder, f"{_NAME}.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(folder, f"{_NAME}.md").write_text("\n".join(_page(results, machine)))


def _page(results: Sequence[SuiteResult], machine: Machine) -> list[str]:
    lines = [_INTRO, "", "| SDK | tests | pass straight | pass behind the gateway | skipped | end otherwise | took |"]
    lines.append("|---|---|---|---|---|---|---|")
    for result in results:
        straight, behind = result.straight, result.behind
        lines.append(
            f"| {result.sdk} {result.version} | {sum(straight.values())} | {straight.get('passed', 0)} "
            f"| {behind.get('passed', 0)} | {straight.get('skipped', 0)} | {len(result.differences)} "
            f"| {result.seconds / 60:.1f} min |"
        )
    for result in results:
        if result.differences:
            lines += ["", f"## {result.sdk}: tests that end otherwise", ""]
            lines += ["| test | straight | behind the gateway | message |", "|---|---|---|---|"]
        for difference in result.differences:
            behind_it = difference.behind
            message = " ".join(behind_it.message.split())[:_MESSAGE_LENGTH].replace("|", "\\|")
            lines.append(f"| `{difference.test}` | {difference.straight.result} | {behind_it.result} | {message} |")
        if result.failed_straight:
            lines += ["", f"## {result.sdk}: tests that fail without the gateway too", ""]
            lines += [f"- `{test}`" for test in result.failed_straight]
    return [*lines, "", computed_line(machine), ""]
