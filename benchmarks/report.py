"""Writes the results of relay, ops, lasting, uploads, soak, joins and classification as JSON and as pages in
`benchmarks/results/`.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks import (
    classification,
    classification_page,
    fleet,
    fleet_limits,
    fleet_store,
    joins,
    lasting,
    ops,
    ops_size,
    since,
    uploads,
    wrong_answers,
)
from benchmarks.provenance import computed_line, machine, measured_line
from benchmarks.relay import PROMISED_RATIO, RelayCost, WayCost
from benchmarks.soak import FAULTS, FAULTY_SHARE, Soak
from benchmarks.soak_picture import draw_soak

RESULTS = Path(__file__).parent / "results"

_LASTING_INTRO = """# What it costs to keep answers and calls

Three gateways on one processor, in turns, fresh in each round: one with all of it off; one on which another model has a
cache, dead letters, deferred calls, fallback responses and a probed upstream, none of which these calls use; and one
that answers all of these calls from its cache, in memory."""
_SINCE_INTRO = """# What a call costs beside an earlier version

The earlier version ({commit}), this one, and this one with client keys, in turns on one processor, fresh in each
round. Every policy is on."""
_OPS_INTRO = """\
# What the operator's side costs

Two gateways on one processor, in turns. Who looks at one scrapes it every 5 s, has the dashboard open and reads events.
Alerts, timelines and all else are as by default; metrics are counted, and a line is written for each call, in both."""


def write_relay(cost: RelayCost) -> None:
    """Writes relay.json and relay.md."""
    _write_json("relay", {"machine": machine(), "relay": cost.as_dict()})
    lines = ["# What a streamed chunk costs", ""]
    lines.append(
        "A relay of aiohttp's server and client, and nothing else, against the gateway, on one processor and in turns; "
        f"the provider and the clients share another. Medians of {cost.rounds} rounds, each taken from the middle of "
        f"streams that all run. Promised: at most {PROMISED_RATIO} times the plain relay's CPU per chunk. A delay is "
        "from the provider's write to the client's read, with all that lies between."
    )
    for size in cost.sizes:
        lines += ["", f"## {size.streams} streams at once, a chunk every {size.pace_s * 1e3:.0f} ms", ""]
        lines += ["| | CPU per chunk | of the plain relay's (lowest, highest) | delay p50 | p99 | chunks per write |"]
        lines += ["|---|---:|---:|---:|---:|---:|", *map(_relay_line, size.ways)]
    (RESULTS / "relay.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def _relay_line(way: WayCost) -> str:
    ratio = f"**{way.ratio:.2f}** ({way.lowest_ratio:.2f}, {way.highest_ratio:.2f})" if way.ratio != 1 else "1"
    return (
        f"| {way.name} | {way.cpu_s_per_chunk * 1e6:.1f} µs | {ratio} | {way.delay_p50_s * 1e3:.2f} ms | "
        f"{way.delay_p99_s * 1e3:.2f} ms | {way.chunks_per_write:.2f} |"
    )


def write_ops(operated: ops.Operated, sized: ops_size.Sized) -> None:
    """Writes ops.json and ops.md."""
    _write_json("ops", {"machine": machine(), "ops": operated.as_dict(), "size": sized.as_dict()})
    share, low, high = operated.ratio(operated.calls_per_s, ops.WATCHED)
    lines = [_OPS_INTRO, ""]
    lines.append(
        f"Calls a second with all of it on, and looked at: **{share:.3f}** of those with as much of it off as can be "
        f"({low:.3f} to {high:.3f} over {operated.rounds} rounds). Promised: at least {ops.PROMISED_SHARE}."
    )
    lines += ["", *_costs(operated)]
    seen = ", ".join(f"{path} {count} times" for path, count in operated.answers.items())
    lines += ["", f"Looked at: {seen}.", *(f"- Failed: {error}" for error in operated.errors)]
    lines += ["", *_sizes(sized)]
    (RESULTS / "ops.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def _sizes(sized: ops_size.Sized) -> list[str]:
    promised = {"scrape": ops_size.PROMISED_SCRAPE_S, "paint": ops_size.PROMISED_PAINT_S}
    rows = (
        (f"/metrics, {sized.page_bytes / 1e3:.0f} kB", sized.scrapes_s, promised["scrape"]),
        ("/metrics beside 200 calls a second", sized.busy_scrapes_s, promised["scrape"]),
        ("the dashboard's first paint", sized.paints_s, promised["paint"]),
        ("the dashboard's list of models", sized.rows_s, promised["paint"]),
    )
    return [
        f"## With {sized.deployments} deployments",
        "",
        "Each scrape comes a second after the last one, each dashboard from a browser without a cache.",
        "",
        "| | median | longest | promised |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {statistics.median(found) * 1e3:.0f} ms | {max(found) * 1e3:.0f} ms | {most * 1e3:.0f} ms |"
            for name, found, most in rows
        ),
        *(f"- Failed: {error}" for error in sized.broken),
    ]


def write_fleet(ran: fleet.FleetRun, stored: fleet_store.StoreRun) -> None:
    """Writes fleet.json and fleet.md."""
    _write_json("fleet", {"machine": machine(), "fleet": ran.as_dict(), "store": stored.as_dict()})
    notices = ", ".join(f"{count} {name}" for name, count in ran.notices.items()) or "none"
    rows = (
        (f"requests that the provider got in {ran.outage_s:.0f} s", f"{ran.requests}", f"{fleet.PROMISED_REQUESTS}"),
        ("until all gateways refused calls", f"{ran.open_after_s:.1f} s", f"{fleet.PROMISED_OPEN_S:.0f} s"),
        ("until an operator's change held everywhere", f"{ran.force_s:.2f} s", f"{fleet.PROMISED_FORCE_S} s"),
        ("notices that a webhook got", notices, "one of each state and severity"),
        ("until no gateway refused calls any more", f"{ran.closed_after_s:.1f} s", ""),
    )
    how = (
        f"{ran.gateways} gateways, each a process of its own, and one redis-server on the same machine; a call a "
        "second in all, at random, without retries, to one gateway after the other. The provider answers 503 to each."
    )
    lines = [
        "# Gateways of a fleet, and their store",
        "",
        "## An outage that ten gateways notice together",
        "",
        how,
        "",
        "| | measured | promised at most |",
        "|---|---:|---:|",
        *(f"| {name} | {measured} | {promised} |" for name, measured, promised in rows),
        *(f"- Failed: {error}" for error in ran.broken),
        "",
        *_store_lines(stored),
    ]
    (RESULTS / "fleet.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def write_fleet_limits(ran: fleet_limits.LimitsRun) -> None:
    """Writes fleet-limits.json and fleet-limits.md."""
    _write_json("fleet-limits", {"machine": machine(), "limits": ran.as_dict()})
    most, low, high = fleet_limits.CONCURRENCY, ran.gateways, f"at most {fleet_limits.PROMISED_RATE}"
    rows = (
        (f"calls at once (`concurrency: {most}`)", f"{ran.most}", f"at most {most}"),
        ("slots in use on average", f"{ran.used:.0%}", ""),
        (f"calls at once in {fleet_limits.LOST_S:.0f} s around the loss", f"{ran.most_after_loss}", f"{most + low}"),
        ("calls at once later, without the store", f"{ran.most_alone}", f"{most}"),
        (f"calls of a key with `rate: {fleet_limits.RATE:g}`, of that", f"{ran.rate:.2f}", high),
        ("the same without the store", f"{ran.rate_alone:.2f}", high),
    )
    lines = [
        "# Limits that gateways have together",
        "",
        f"{ran.gateways} gateways, each a process of its own, and one redis-server, which is killed in the middle; 60",
        f"clients call random gateways. Each part takes {ran.seconds:.0f} s.",
        "",
        "| | measured | promised |",
        "|---|---:|---:|",
        *(_row(*cells) for cells in rows),
        "",
        *(f"- Failed: {error}" for error in ran.broken),
    ]
    (RESULTS / "fleet-limits.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def _store_lines(stored: fleet_store.StoreRun) -> list[str]:
    cost, most = stored.cost, stored.baseline_p99_s + fleet_store.PROMISED_FAILING_P99_S
    p99, promised = [seconds * 1e3 for seconds in cost.added_p99_s], fleet_store.PROMISED_P99_S * 1e3
    costs = (
        ("CPU per call, of that alone", *(f"{ratio:.3f}" for ratio in cost.cpu), f"{fleet_store.PROMISED_CPU}"),
        ("added p99 (ms)", *(f"{ms:.2f}" for ms in p99), f"{promised:.1f}"),
        ("requests to the store, per gateway and second", f"{cost.commands_per_s:.1f}", "", "", "11"),
    )
    failing = (
        "the store", "for", "calls", "failed", "p99", "loop lag up to", "growth of a gateway", "shared again after",
    )  # fmt: skip
    limits = (
        "promised at most", "", "", "0", f"{most * 1e3:.1f} ms", f"{fleet_store.PROMISED_LAG_S * 1e3:.0f} ms",
        f"{fleet_store.PROMISED_GROWTH / 1024**2:.0f} MiB", f"{fleet_store.PROMISED_BACK_S} s",
    )  # fmt: skip
    return [
        "## What the store costs while it is well",
        "",
        "A gateway with a store that two others use, beside one alone, in turns, fresh in each round;",
        f"{cost.calls} calls, 1,000 a second.",
        "",
        _row("", "median of the rounds", "lowest", "highest", "promised at most"),
        "|---|---:|---:|---:|---:|",
        *(_row(*cells) for cells in costs),
        "",
        "## What calls notice while it fails",
        "",
        f"Three gateways, 200 calls/s in all. Without a fleet their p99 is {stored.baseline_p99_s * 1e3:.1f} ms.",
        "",
        _row(*failing),
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(*_failure_cells(one)) for one in stored.failures),
        _row(*limits),
        "",
        *(f"- Failed: {error}" for error in stored.broken),
    ]


def _failure_cells(one: fleet_store.Failure) -> tuple[str, ...]:
    return (
        one.name, f"{one.seconds:.0f} s", f"{one.calls}", f"{one.failed}", f"{one.p99_s * 1e3:.1f} ms",
        f"{one.lag_s * 1e3:.1f} ms", f"{one.growth_bytes / 1024**2:.1f} MiB", f"{one.back_s:.2f} s",
    )  # fmt: skip


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def write_lasting(lasted: lasting.Lasted) -> None:
    """Writes lasting.json and lasting.md."""
    _write_json("lasting", {"machine": machine(), "lasting": lasted.as_dict()})
    cost, low, high = lasted.ratio(lasted.cpu_s_per_call, lasting.ELSEWHERE)
    lines = [_LASTING_INTRO, ""]
    lines.append(
        f"CPU of a call that uses none of it, while others do: **{cost:.3f}** of one where all is off ({low:.3f} to "
        f"{high:.3f} over {lasted.rounds} rounds). Promised: at most {lasting.PROMISED_CPU}."
    )
    lines += ["", *_costs(lasted), *(f"- Failed: {error}" for error in lasted.errors)]
    (RESULTS / "lasting.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def _costs(measured: ops.Operated | lasting.Lasted | since.Since) -> list[str]:
    """A table row for each way; the others are compared with the first."""
    lines = ["| | calls/s | of the first | CPU per call | of the first |", "|---|---:|---:|---:|---:|"]
    first = next(iter(measured.calls_per_s))
    for way in measured.calls_per_s:
        cells = []
        for figure, scale, unit in ((measured.calls_per_s, 1, ""), (measured.cpu_s_per_call, 1e6, " µs")):
            ratio, least, most = measured.ratio(figure, way)
            cells.append(f"{statistics.median(figure[way]) * scale:,.{0 if scale == 1 else 1}f}{unit}")
            cells.append("" if way == first else f"{ratio:.3f} ({least:.3f}, {most:.3f})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def write_since(measured: since.Since) -> None:
    """Writes since.json and since.md."""
    _write_json("since", {"machine": machine(), "since": measured.as_dict()})
    cost, low, high = measured.ratio(measured.cpu_s_per_call, since.NOW)
    keys, keys_low, keys_high = measured.keys_ratio
    lines = [_SINCE_INTRO.format(commit=measured.commit), ""]
    lines.append(
        f"CPU per call: **{cost:.3f}** of the earlier version ({low:.3f} to {high:.3f} over {measured.rounds} rounds). "
        f"Promised: at most {since.PROMISED_CPU}. With client keys, a scope and every limit: **{keys:.3f}** of that "
        f"without ({keys_low:.3f} to "
        f"{keys_high:.3f}). Promised: at most {since.PROMISED_KEYS}."
    )
    lines += ["", *_costs(measured), *(f"- Failed: {error}" for error in measured.errors)]
    (RESULTS / "since.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def write_soak(soak: Soak) -> None:
    """Writes soak.json, soak.md and soak.png."""
    _write_json("soak", {"machine": machine(), "soak": soak.as_dict()})
    draw_soak(soak, RESULTS / "soak.png")
    hows = sorted({how for each in soak.ended.values() for how in each})
    lines = ["# A thousand streams for minutes", ""]
    lines.append(
        f"{soak.streams} streams at once for {soak.minutes:g} minutes, each followed by another: "
        f"{soak.ended_count} streams, {soak.events} events. {FAULTY_SHARE:.0%} of the requests meet one of these "
        f"faults: {', '.join(FAULTS)}. Some clients leave in the middle, read slowly or stop reading."
    )
    lines += ["", "![memory and streams over time](soak.png)", "", _memory(soak)]
    lines.append(f"- Left {soak.back_after_s:.0f} s after the end of the load: {_left_over(soak)}")
    lines.append(f"- {_untold(soak) or 'Every end was told: no stream was silent, none hung.'}")
    lines += ["", "| the client | " + " | ".join(hows) + " |", "|---|" + "---:|" * len(hows)]
    for habit, found in soak.ended.items():
        lines.append(f"| {habit} | " + " | ".join(str(found.get(how, "")) for how in hows) + " |")
    lines += ["", f"Routes: {', '.join(soak.models)}. What the columns mean: `benchmarks/stream_client.py`."]
    (RESULTS / "soak.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))


def _memory(soak: Soak) -> str:
    first, last = soak.samples[0].rss_bytes / 1e6, soak.samples[-1].rss_bytes / 1e6
    return (
        f"- Memory: {first:.0f} MB in the first second, {last:.0f} MB in the last. In the second half it moves by "
        f"**{soak.slope_mb_per_hour:+.1f} MB an hour** (median of the slopes between all pairs of samples), which is "
        f"{soak.bytes_per_stream:+.0f} bytes for each stream that ended. Promised: at most "
        f"{soak.promised_mb_per_hour:.0f}{'' if soak.is_judged else '; this run was too short to tell'}."
    )


def _left_over(soak: Soak) -> str:
    if soak.left_over:
        return ", ".join(f"**{count} {name}**" for name, count in soak.left_over.items()) + "."
    return f"nothing (looked at: {', '.join(soak.after.holds)})."


def _untold(soak: Soak) -> str:
    counts = {how: sum(each.get(how, 0) for each in soak.ended.values()) for how in ("silent", "hung")}
    return ", ".join(f"**{count} streams {how}**" for how, count in counts.items() if count)


def write_joins(joined: joins.Joins) -> None:
    """Writes joins.json and joins.md."""
    _write_json("joins", {"machine": machine(), "joins": joined.as_dict()})
    (RESULTS / "joins.md").write_text("\n".join([*joins.page(joined), "", measured_line(machine()), ""]))


def write_uploads(done: list[uploads.Uploaded]) -> None:
    """Writes uploads.json and uploads.md."""
    _write_json("uploads", {"machine": machine(), "uploads": [each.as_dict() for each in done]})
    (RESULTS / "uploads.md").write_text("\n".join([*uploads.page(done), "", measured_line(machine()), ""]))


def write_wrong_answers(judged: wrong_answers.Judged) -> None:
    """Writes wrong-answers.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "wrong-answers.md").write_text(
        "\n".join([*wrong_answers.page(judged), "", computed_line(machine()), ""])
    )


def write_classification(measured: classification.Measured) -> None:
    """Writes classification.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "classification.md").write_text(
        "\n".join([*classification_page.page(measured), measured_line(machine()), ""])
    )


def _write_json(name: str, content: object) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
