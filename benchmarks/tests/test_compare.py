"""The comparison's arithmetic, verdicts and page, and one small run over real processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import relay
from benchmarks.compare import load, measure, page, result, ways
from benchmarks.compare.result import Compared, Promise, Spread, cpu_s_per_chunk
from benchmarks.compare.ways import DIRECT, ENVOY, GUARDED, PLAIN, envoy_config, find_envoy, parse_peers
from benchmarks.processes import Way
from llm_guard.config import parse_config

NAN = float("nan")
MACHINE: dict[str, str | int | None] = {
    "commit": "abc1234", "python": "3.11.7", "system": "x86_64", "processors": 2, "processor": "EPYC",
    "kernel": "Linux 6.1",
}  # fmt: skip
GOOD: dict[str, dict[str, tuple[float, ...]]] = {
    result.CALLS_PER_S: {
        DIRECT: (70e3, 35e3, 72e3), GUARDED: (18e3, 9e3, 19e3), PLAIN: (8e3, 4e3, 9e3), ENVOY: (28e3, 14e3, 31e3),
    },
    result.CPU_S_PER_CALL: {DIRECT: (NAN,) * 3, GUARDED: (50e-6,) * 3, PLAIN: (110e-6,) * 3, ENVOY: (31e-6,) * 3},
    **{
        figure: {DIRECT: (0.1e-3, 0.2e-3, 0.1e-3), GUARDED: (0.2e-3, 0.3e-3, 0.25e-3), ENVOY: (0.15e-3, 0.2e-3, 0.1e-3)}
        for figure in result.LATENCIES
    },
    cpu_s_per_chunk(50): {GUARDED: (12e-6, 24e-6, 11e-6), ENVOY: (10e-6, 20e-6, 10e-6)},
    result.REST_BYTES: {GUARDED: (70e6,), ENVOY: (60e6,)},
    result.BYTES_PER_STREAM: {GUARDED: (30e3,), ENVOY: (50e3,)},
}  # fmt: skip


def compared(values: Mapping[str, Mapping[str, tuple[float, ...]]] | None = None, *errors: str) -> Compared:
    return Compared(
        (DIRECT, GUARDED, PLAIN, ENVOY), 5000, ((50, 0.01),), {GUARDED: "0.1.0"}, GOOD | dict(values or {}), errors
    )


def verdicts(found: Compared) -> dict[str, str]:
    return {promise.text: promise.verdict for promise in found.promises}


def test_ratios_and_differences_are_taken_round_by_round() -> None:
    """In the second round another load took half of the machine from all proxies."""
    assert compared().spread(result.CALLS_PER_S, GUARDED) == Spread(18e3, 9e3, 19e3)
    ratio = compared().ratio(result.CALLS_PER_S, GUARDED, ENVOY)
    assert ratio is not None
    assert [ratio.median, ratio.low, ratio.high] == pytest.approx([18 / 28, 19 / 31, 18 / 28])
    added = compared().added(result.ALONE_P50_S, GUARDED)
    assert added is not None
    assert [added.median, added.low, added.high] == pytest.approx([0.1e-3, 0.1e-3, 0.15e-3])


def test_round_in_which_calls_failed_makes_the_figure_invalid() -> None:
    failed = compared({result.CALLS_PER_S: {GUARDED: (18e3, NAN, 19e3), ENVOY: (28e3, 14e3, 31e3)}})
    assert failed.spread(result.CALLS_PER_S, GUARDED) is None
    assert failed.ratio(result.CALLS_PER_S, GUARDED, ENVOY) is None
    assert failed.spread(result.CALLS_PER_S, ENVOY) is not None


def test_all_targets_are_judged() -> None:
    assert list(verdicts(compared()).values()) == ["holds"] * 5
    assert compared().broken == []


BAD: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "calls a second, of Envoy's": {result.CALLS_PER_S: {GUARDED: (16e3,), ENVOY: (27e3,), PLAIN: (8e3,)}},
    "calls a second, of the plain aiohttp proxy's": {
        result.CALLS_PER_S: {GUARDED: (18e3,), ENVOY: (28e3,), PLAIN: (9.1e3,)}
    },
    "CPU per chunk at 50 streams, of Envoy's": {cpu_s_per_chunk(50): {GUARDED: (13e-6,), ENVOY: (10e-6,)}},
    "added latency at one connection, p50, in ms": {
        result.ALONE_P50_S: {DIRECT: (0.1e-3,) * 3, GUARDED: (0.31e-3, 0.31e-3, 0.2e-3)}
    },
    "kB per idle stream, at 5000": {result.BYTES_PER_STREAM: {GUARDED: (40.5e3,)}},
}


@pytest.mark.parametrize("broken", BAD)
def test_missed_target_is_reported(broken: str) -> None:
    found = verdicts(compared(BAD[broken]))
    assert [text for text, verdict in found.items() if verdict != "holds"] == [broken]
    assert found[broken] == "does not hold"
    [told] = compared(BAD[broken]).broken
    assert told.startswith(f"{broken}: ")


@pytest.mark.parametrize(("is_least", "is_within", "holds"), [(True, True, True), (False, False, False)])
def test_limit_itself_passes_or_fails_as_declared(is_least: bool, is_within: bool, holds: bool) -> None:
    assert Promise("", 2.0, 2.0, is_least=is_least, is_within=is_within).holds is holds


def test_without_envoy_its_targets_are_neither_measured_nor_missed() -> None:
    alone = {figure: {way: each for way, each in by.items() if way != ENVOY} for figure, by in GOOD.items()}
    found = compared(alone)
    assert [text for text, verdict in verdicts(found).items() if verdict == "not measured"] == [
        "calls a second, of Envoy's", "CPU per chunk at 50 streams, of Envoy's",
    ]  # fmt: skip
    assert found.broken == []
    assert "| calls a second, of Envoy's | at least 0.6 |  | not measured |" in page.page(found, MACHINE)


def test_errors_miss_a_target_and_are_on_the_page() -> None:
    found = compared({}, "llm_guard: 64 connections: 3 of 9000 calls failed (HTTP/1.1 503)")
    assert found.broken == ["llm_guard: 64 connections: 3 of 9000 calls failed (HTTP/1.1 503)"]
    assert "- llm_guard: 64 connections: 3 of 9000 calls failed" in page.page(found, MACHINE)


def test_page_shows_each_figure_of_each_proxy() -> None:
    text = page.page(compared(), MACHINE)
    assert "| calls a second, 64 connections | 70000 (35000, 72000) | 18000 (9000, 19000) | 8000" in text
    assert "| CPU per call |  | 50.0 µs | 110.0 µs | 31.0 µs |" in text
    assert "| added at one connection, p50 | 0.100 ms (0.100, 0.200) | +0.100 ms (+0.100, +0.150) |  | +0.000" in text
    assert "| memory per idle stream, at 5000 |  | 30.0 kB |  | 50.0 kB |" in text
    assert "Measured at commit `abc1234`, on 2 shared processors (EPYC, x86_64), Linux 6.1, Python 3.11.7." in text
    assert "Compared: llm_guard 0.1.0." in text


def test_results_are_written_as_json_page_and_picture(tmp_path: Path) -> None:
    page.write(compared({result.ALONE_P99_S: {}}), tmp_path, MACHINE)
    kept = json.loads((tmp_path / "compare.json").read_text(), parse_constant=pytest.fail)
    assert kept["machine"] == MACHINE
    assert kept["compare"]["rounds"][result.CPU_S_PER_CALL][DIRECT] == [None, None, None]
    assert kept["compare"]["promises"][0]["verdict"] == "holds"
    assert (tmp_path / "compare.png").stat().st_size > 10_000


def test_gateways_config_can_be_read() -> None:
    models = parse_config(ways.CONFIG.replace("{provider}", "http://127.0.0.1:9"), "compare", {}).models
    assert set(models) == {"gpt-4o", "gpt-4o-mini"}


def test_envoys_config_gets_its_ports() -> None:
    text = envoy_config(1234, 5678)
    assert (text.count("port_value: 1234"), text.count("port_value: 5678"), text.count("port_value")) == (1, 1, 2)
    assert "admin" not in text.replace("no admin page", "")


def test_missing_envoy_error_names_the_download() -> None:
    with pytest.raises(FileNotFoundError, match=r"benchmarks/peers/README\.md"):
        find_envoy("no-such-program")


def test_peer_is_described_by_name_url_and_process() -> None:
    [nginx, other] = parse_peers(["nginx=http://127.0.0.1:80", "other=http://127.0.0.1:81"], ["other=1"])
    assert (nginx.name, nginx.url, nginx.process) == ("nginx", "http://127.0.0.1:80", None)
    assert other.process is not None
    assert other.process.pid == 1


@pytest.mark.parametrize(
    ("urls", "pids", "told"),
    [
        (["nginx"], [], "nginx is not NAME=VALUE"),
        (["=http://127.0.0.1:80"], [], "is not NAME=VALUE"),
        (["nginx=127.0.0.1:80"], [], "is not http://HOST:PORT"),
        (["nginx=http://127.0.0.1:80/v1"], [], "is not http://HOST:PORT"),
        (["nginx=https://127.0.0.1:80"], [], "is not http://HOST:PORT"),
        (["nginx=http://127.0.0.1:80"], ["other=1"], "other: a process of nobody who is compared"),
        (["nginx=http://127.0.0.1:80"], ["nginx=999999999"], "there is no process 999999999"),
        (["nginx=http://127.0.0.1:80"], ["nginx=one"], "there is no process one"),
        (["llm_guard=http://127.0.0.1:80"], [], "two have the same name"),
        (["a=http://127.0.0.1:80", "a=http://127.0.0.1:81"], [], "two have the same name"),
    ],
)
def test_peer_that_cannot_be_is_refused(urls: list[str], pids: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_peers(urls, pids)


def test_more_streams_than_descriptors_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: asked.append(limits))
    with pytest.raises(OSError, match="4096 are allowed"):
        ways.allow_descriptors(5000)
    ways.allow_descriptors(100)
    assert asked == []
    ways.allow_descriptors(1000)
    assert asked == [(2200, 4096)]


def test_small_run_over_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every proxy is measured; one that is not reachable is reported and has no figures."""
    monkeypatch.setattr(relay, "SETTLE_S", 0.05)
    monkeypatch.setattr(measure, "SETTLE_S", 0.05)
    monkeypatch.setattr(load, "_WARM_UP_S", 0.02)
    plan = measure.Plan(
        rounds=1, connections=4, fast_s=0.1, alone_s=0.1, busy_per_s=200, busy_connections=4, busy_s=0.1,
        stream_rounds=2, sizes=((5, 0.01),), window_s=0.1, idle_streams=20,
    )  # fmt: skip
    said: list[str] = []
    found = measure.run(said.append, [Way("gone", "http://127.0.0.1:9")], plan=plan)
    assert found.ways == (DIRECT, GUARDED, PLAIN, "gone")
    assert all(error.startswith("gone: ") for error in found.errors), found.errors
    for figure in found.values:
        told = [way for way in (GUARDED, PLAIN) if found.spread(figure, way) is None]
        assert (figure, told, found.spread(figure, "gone")) == (figure, [], None)
    assert verdicts(found)["calls a second, of Envoy's"] == "not measured"
    assert "compare: 5 streams, round 2/2" in said
    assert sum("5 streams" in error for error in found.errors) == 1, "who has failed is not asked again"
