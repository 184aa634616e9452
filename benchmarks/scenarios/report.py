"""Writes the scenarios' results: scenarios.json, scenarios.md and scenarios*.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.provenance import Machine, measured_line
from benchmarks.scenarios import pictures
from benchmarks.scenarios.catalogue import Promise
from benchmarks.scenarios.clients import GUARDED
from benchmarks.scenarios.measure import Measured, Outage, Row

_INTRO = """\
# What clients get from a misbehaving provider

The same calls at the same time, over real sockets, each client with a provider of its own that misbehaves in the same
way. `make bench` measures it again; `python -m benchmarks scenarios --only outage` one of them.

- **no gateway**: one request, no retries.
- **the SDK's retries**: two, as the official SDKs make them by default: 0.5 s, then 1 s, less up to a quarter, or what
  retry-after says (openai-python 3.52, `_base_client.py`).
- **llm_guard**: a client without retries, through the gateway with the shipped defaults. Rows with a text under
  *settings* are tuned: the text is what their config adds. Where the gateway cannot win, the promise bounds how much
  less often calls may succeed than without it.

Of a stream the whole text must have come, each word once. A stream that dies *midway* has said half of it; where
llm_guard does not recover it, the client must at least be told by an error event, never by a clean end (*silent*).

Without a gateway one attempt may take 1 s, in the slow tail 10 s, in the herd 2 s. *Requests per call* is what the
provider receives.

![calls that succeed, by scenario and client](scenarios.png)
"""
_OUTAGE_COLUMNS = (
    "requests per call", "failing takes", "retry-after off by", "first success after",
    "answered within 10 s of recovery", "and from the first success on", "last answer after",
)  # fmt: skip
_OTHERS = """\
## Another gateway beside them

Start it with `http://127.0.0.1:9009/v1` as its OpenAI-compatible provider and the models `gpt-4o`, `gpt-4o-mini`,
`gpt-4.1` (fallback: `gpt-4.1-mini`) and `gpt-4.1-mini` passed on under their own names, then:

```
python -m benchmarks scenarios --other NAME=http://127.0.0.1:4000 --provider-port 9009
```
"""


def write(rows: Sequence[Row], folder: Path, machine: Machine) -> None:
    """Writes all files into `folder`."""
    folder.mkdir(exist_ok=True)
    content = {"machine": machine, "rows": [row.as_dict() for row in rows]}
    (folder / "scenarios.json").write_text(json.dumps(content) + "\n")
    (folder / "scenarios.md").write_text(page(rows, machine))
    pictures.draw_success(rows, folder / "scenarios.png")
    pictures.draw_outage(rows, folder / "scenarios-outage.png")
    pictures.draw_limits(rows, folder / "scenarios-limit.png")


def page(rows: Sequence[Row], machine: Machine) -> str:
    """Content of scenarios.md."""
    names = list(dict.fromkeys(each.client for row in rows for each in row.measured))
    lines = [_INTRO, *_summary(rows, names), "", *_outages(rows), "", *_limits(rows), "", *_everything(rows)]
    return "\n".join([*lines, "", _OTHERS, measured_line(machine)]) + "\n"


def _summary(rows: Sequence[Row], names: list[str]) -> list[str]:
    own = ("settings", "p50", "p99", "requests per call", "failing takes", "promised", "")
    lines = [
        f"| the provider | {' | '.join(names)} | {' | '.join(own)} |",
        f"|---|{'---:|' * len(names)}---|{'---:|' * 4}---|---|",
    ]
    for row in rows:
        guarded = row.of(GUARDED)
        if guarded is None:
            lines.append(f"| {row.scenario.name} |{' |' * (len(names) + 5)} {_promised(row.scenario.promise)} "
                         f"| not run: {row.not_run} |")  # fmt: skip
            continue
        shares = " | ".join(_share(row.of(name), is_ours=name == GUARDED) for name in names)
        verdict = "; ".join(row.broken) if row.broken else "holds" if row.scenario.promise != Promise() else ""
        verdict = f"**does not hold**: {verdict}" if row.broken else verdict
        name = f"{row.scenario.name} | {shares} | {row.scenario.settings}"
        lines.append(f"| {name} | {_times(guarded)} | {guarded.requests_per_call:.3f} "
                     f"| {_failing(guarded)} | {_promised(row.scenario.promise)} | {verdict} |")  # fmt: skip
    return lines


def _outages(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Down, and back", "",
        "![answers and requests a second through an outage of eight seconds](scenarios-outage.png)", "",
        "*Requests per call* here are those of the calls made during the outage. *Retry-after off by*: 95 % of the",
        "refusals say when the next request will be sent to the provider, no worse than this.", "",
        f"| the provider | client | {' | '.join(_OUTAGE_COLUMNS)} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        lines += [
            _outage_line(row.scenario.name, each, each.outage) for each in row.measured if each.outage is not None
        ]
    return lines


def _outage_line(name: str, each: Measured, outage: Outage) -> str:
    failing = f"{outage.median_failure_s * 1e3:.1f} ms" if each.load.errors else "-"
    off = "-" if outage.retry_after_off_s is None else f"{outage.retry_after_off_s * 1e3:.0f} ms"
    first, last = (
        "never" if found is None else f"{found:.2f} s" for found in (outage.first_success_s, outage.last_success_s)
    )
    shares = ("-" if share is None else f"{share:.1%}" for share in (outage.share_after, outage.share_since_success))
    herd = last if all(at is None for at in (outage.share_after, outage.share_since_success)) else "-"
    return (
        f"| {name} | {each.client} | {outage.requests_per_call:.3f} | {failing} | {off} | {first} "
        f"| {' | '.join(shares)} | {herd} |"
    )


def _limits(rows: Sequence[Row]) -> list[str]:
    if not any(row.scenario.key.startswith("limit") for row in rows):
        return []
    return [
        "## Rate limits", "",
        "60 calls a second for 20 s to a provider that serves 40: all can be answered after 10 s at most, if someone",
        "lets them wait their turn. A call counts when it is answered within 20 s.", "",
        "![answers a second under a rate limit](scenarios-limit.png)",
    ]  # fmt: skip


def _everything(rows: Sequence[Row]) -> list[str]:
    lines = [
        "<details><summary>Every client in every scenario</summary>", "",
        "| the provider | client | calls | succeed | p50 | p99 | requests per call | failing takes | errors |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for row in rows:
        for each in row.measured:
            errors = ", ".join(f"{kind} {count}" for kind, count in sorted(each.load.errors.items())) or "-"
            cells = (
                row.scenario.name, each.client, str(each.load.calls), f"{each.load.success_share:.2%}", _times(each),
                f"{each.requests_per_call:.3f}", _failing(each), errors,
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "</details>"]


def _share(measured: Measured | None, *, is_ours: bool) -> str:
    if measured is None:
        return "-"
    share = f"{measured.load.success_share:.2%}" if is_ours else f"{measured.load.success_share:.1%}"
    return f"**{share}**" if is_ours else share


def _times(measured: Measured) -> str:
    latency = measured.load.latency
    return " | ".join(f"{seconds:.3f} s" if latency.count else "-" for seconds in (latency.p50, latency.p99))


def _failing(measured: Measured) -> str:
    failed = measured.load.failed_latency
    return f"{failed.p50 * 1e3:.1f} ms" if failed.count else "-"


def _promised(promise: Promise) -> str:
    parts = (
        (promise.success, "≥ {:.1%}"),
        (promise.requests_per_call, "≤ {:g} requests"),
        (promise.p99_s, "p99 ≤ {:g} s"),
        (promise.outage_requests_per_call, "≤ {:g} requests in the outage"),
        (promise.median_failure_s and promise.median_failure_s * 1e3, "fails in {:g} ms"),
        (promise.retry_after_off_s and promise.retry_after_off_s * 1e3, "retry-after right to {:g} ms"),
        (promise.first_success_s, "back after {:g} s"),
        (promise.last_success_s, "last answer after {:g} s"),
        (promise.after, "then ≥ {:.0%}"),
        (None if promise.loses is None else promise.loses * 100, "loses ≤ {:g} points"),
        (promise.silent, "{:g} silent ends"),
    )
    return ", ".join(form.format(bound) for bound, form in parts if bound is not None)
