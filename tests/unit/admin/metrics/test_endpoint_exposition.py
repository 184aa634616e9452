from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from llm_guard.admin.metrics.call_metrics import CALL_METRICS
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.exposition import PIECE_SAMPLES, Family, Format, Row, pieces, wanted
from llm_guard.admin.metrics.exposition import Histogram as OurHistogram
from llm_guard.proxy.telemetry.recorder import CallCounters, Distribution
from tests.scrape import Scraped, scraped

FORMS: tuple[Format, ...] = ("text", "openmetrics")
BOUNDS = (0.1, 0.5, 1, 30)
in_each_form = pytest.mark.parametrize("form", FORMS)

# `Accept` headers of Prometheus 2.42 and 3.0.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1"
)

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\\"\n%{}=,'), max_size=8)


def metrics(values: dict[str, list[float]]) -> list[Family | OurHistogram]:
    """Returns a counter, a gauge and a histogram of these values by label."""
    seen: dict[tuple[str, ...], Distribution] = {}
    for label, each in values.items():
        distribution = seen[label, "%d"] = Distribution(BOUNDS)
        for value in each:
            distribution.note(value)

    plain = Distribution(BOUNDS)
    plain.note(0.3)

    def rows() -> list[Row]:
        return [((label, "x%s"), len(each)) for label, each in values.items()]

    return [
        Family("odd", "counter", 'a "quoted" \\ text\nof two lines', ("model", "by"), rows),
        Family("plain", "gauge", "Without labels.", (), lambda: [((), 2.5e-7)]),
        OurHistogram("odd_seconds", "%d of them", ("model", "by"), seen.items),
        OurHistogram("plain_seconds", "Without labels.", (), lambda: [((), plain)]),
    ]


def theirs(values: dict[str, list[float]]) -> CollectorRegistry:
    """Returns the same metrics as built by prometheus_client."""
    registry = CollectorRegistry()
    counter = Counter("odd", 'a "quoted" \\ text\nof two lines', ["model", "by"], registry=registry)
    Gauge("plain", "Without labels.", registry=registry).set(2.5e-7)
    histogram = Histogram("odd_seconds", "%d of them", ["model", "by"], registry=registry, buckets=BOUNDS)
    Histogram("plain_seconds", "Without labels.", registry=registry, buckets=BOUNDS).observe(0.3)
    for label, each in values.items():
        counter.labels(label, "x%s").inc(len(each))
        for value in each:
            histogram.labels(label, "%d").observe(value)
    return registry


@in_each_form
@given(st.dictionaries(names, st.lists(st.floats(0, 1000) | st.sampled_from([0.1, 1.0, 30.0]), min_size=1), max_size=4))
def test_page_equals_that_of_prometheus_client(form: Format, values: dict[str, list[float]]) -> None:
    registry = theirs(values)
    write: Callable[[CollectorRegistry], bytes] = (
        openmetrics.generate_latest if form == "openmetrics" else generate_latest
    )
    page = write(registry)
    expected, found = Scraped(page.decode(), form), scraped(metrics(values), form)

    def facts(one: Scraped) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        kept = (sample for sample in one.samples if not sample.name.endswith("_created"))
        return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in kept}

    assert facts(found) == facts(expected)
    heads = [
        (family.name, family.type, family.documentation) for family in expected.families if "created" not in family.name
    ]
    assert [(family.name, family.type, family.documentation) for family in found.families] == heads


def test_quotes_in_a_help_text_are_escaped_in_openmetrics_alone() -> None:
    lines = {form: "".join(pieces(metrics({}), form)).splitlines()[0] for form in FORMS}
    assert lines["text"] == '# HELP odd_total a "quoted" \\\\ text\\nof two lines'
    assert lines["openmetrics"] == '# HELP odd a \\"quoted\\" \\\\ text\\nof two lines'


@in_each_form
def test_exemplar_follows_its_bucket_in_openmetrics_alone(form: Format) -> None:
    seen = Distribution(BOUNDS)
    seen.note_call(0.3, "lg-1", 0x0BF92F3577B34DA6A3CE929D0E0E4736, 1_800_000_000.125)
    seen.note_call(40.0, "lg-2", 0, 1_800_000_001.0)
    page = "".join(pieces([OurHistogram("odd_seconds", "", ("model",), {("m",): seen}.items)], form))
    found = re.findall(r'le="(.*)"} (\d+) # (.*)', page)
    if form == "text":
        assert found == []
        return
    trace = ',trace_id="0bf92f3577b34da6a3ce929d0e0e4736"'
    assert found == [
        ("0.5", "1", f'{{request_id="lg-1"{trace}}} 0.3 1800000000.125'),
        ("+Inf", "2", '{request_id="lg-2"} 40.0 1800000001.000'),
    ]
    assert len(Scraped(page, form).samples) == len(BOUNDS) + 3


def test_example_may_be_as_long_as_openmetrics_allows() -> None:
    seen = Distribution(BOUNDS)
    seen.note_call(0.3, "lg-" + "f" * 20, 2**128 - 1, 1_800_000_000.0)
    found = scraped([OurHistogram("odd_seconds", "", ("model",), {("m",): seen}.items)], "openmetrics")
    labels = next(sample.exemplar.labels for sample in found.samples if sample.exemplar is not None)
    assert sum(len(name) + len(value) for name, value in labels.items()) <= 128


def test_page_is_written_in_pieces_of_some_hundred_samples() -> None:
    seen = {(f"m{number}",): Distribution(BOUNDS) for number in range(1000)}
    for distribution in seen.values():
        distribution.note(0.3)
    many = Family("many", "gauge", "", ("model",), lambda: [(labels, 1) for labels in seen])
    sizes = [
        sum(not line.startswith("#") for line in piece.splitlines())
        for piece in pieces([many, OurHistogram("odd_seconds", "", ("model",), seen.items)], "text")
    ]
    assert sum(sizes) == 1000 + 1000 * 7
    assert max(sizes) < PIECE_SAMPLES + 7
    assert min(sizes[:-1]) >= PIECE_SAMPLES


def test_numbers_of_a_metric_are_of_one_moment_despite_calls_between_two_pieces() -> None:
    counters = CallCounters()
    for number in range(PIECE_SAMPLES * 2):
        counters.models[f"m{number}"].calls["ok"] = 1
        counters.models[f"m{number}"].call_duration["ok"].note_call(1.0, "lg-1", 0, 1.0)
    page = []
    for piece in pieces(bound(CALL_METRICS, counters), "openmetrics"):
        page.append(piece)
        for number, counts in enumerate(list(counters.models.values())):
            counts.calls["ok"] += 1
            counts.calls[f"new-{len(page)}"] += 1
            counts.call_duration["ok"].note_call(0.1, "lg-2", 0, 2.0)
            counters.models[f"another-{number}-{len(page)}"].calls["ok"] = 7
        if len(page) == 3:
            break
    found = Scraped("".join(page[:2]) + "# EOF\n", "openmetrics")
    assert {sample.value for sample in found.samples if sample.name == "llm_guard_calls_total"} == {1.0}
    counted = [sample for sample in found.samples if sample.name == "llm_guard_calls_total"]
    assert len(counted) == PIECE_SAMPLES * 2


@in_each_form
def test_distributions_are_of_one_moment_despite_calls_between_two_pieces(form: Format) -> None:
    seen = {(f"m{number}",): Distribution(BOUNDS) for number in range(200)}
    for distribution in seen.values():
        distribution.note_call(0.3, "lg-1", 0, 1.0)
    page = []
    for piece in pieces([OurHistogram("odd_seconds", "", ("model",), seen.items)], form):
        page.append(piece)
        for distribution in seen.values():
            distribution.note_call(0.4, "lg-2", 0, 2.0)
    found = Scraped("".join(page), form)
    assert len(page) > 2
    assert {sample.value for sample in found.samples if sample.name == "odd_seconds_count"} == {1.0}
    assert {sample.value for sample in found.samples if sample.name == "odd_seconds_sum"} == {0.3}
    assert {sample.exemplar.value for sample in found.samples if sample.exemplar} <= {0.3}


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text"),
        (PROMETHEUS_2, "openmetrics"),
        (PROMETHEUS_3, "openmetrics"),
        ('Application/OpenMetrics-Text ; Version="1.0.0"', "openmetrics"),
        ("application/openmetrics-text; version=2.0.0, text/plain;q=0.1", "text"),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.7", "text"),
        ("application/openmetrics-text;q=0", "text"),
        ("application/openmetrics-text;q=many", "text"),
        (";;,,=;q", "text"),
    ],
)  # fmt: skip
def test_format_is_the_one_that_the_scraper_prefers(accept: str, form: Format) -> None:
    assert wanted(accept) == form


def test_gateway_without_calls_names_every_metric_and_shows_no_value() -> None:
    page = "".join(pieces(bound(CALL_METRICS, CallCounters()), "text")).splitlines()
    assert all(line.startswith("# ") for line in page)
    assert [line.split()[2].removeprefix("llm_guard_") for line in page if line.startswith("# TYPE")] == [
        "calls_total",
        "in_flight_calls",
        "call_duration_seconds",
        "time_to_first_token_seconds",
        "overhead_seconds",
        "refusals_total",
        "cache_total",
        "deferred_calls_accepted_total",
        "fallback_responses_total",
        "dead_letters_total",
        "queue_wait_seconds",
        "attempts_total",
        "upstream_duration_seconds",
        "timeouts_total",
        "retries_total",
        "retry_delay_seconds",
        "fallbacks_total",
        "hedges_total",
        "stream_resumes_total",
        "translations_total",
        "translation_losses_total",
        "tokens_total",
        "wasted_tokens_total",
        "client_calls_total",
        "client_tokens_total",
        "malformed_events_total",
    ]


def test_only_counted_values_are_shown() -> None:
    counters = CallCounters()
    counters.models["m"].refusals["limit"] += 1
    counters.deployments["a/x"].queue_wait.note(31.0)
    found = scraped(bound(CALL_METRICS, counters))
    assert {sample.name for sample in found.samples if sample.value or sample.name.endswith("_bucket")} == {
        "llm_guard_refusals_total",
        *(f"llm_guard_queue_wait_seconds_{part}" for part in ("bucket", "count", "sum")),
    }
    assert found("refusals_total", model="m", reason="limit") == 1
    assert found("queue_wait_seconds_bucket", deployment="a/x", le="30.0") == 0
    assert found("queue_wait_seconds_bucket", deployment="a/x", le="+Inf") == 1


def test_labels_after_the_first_are_the_key() -> None:
    counters = CallCounters()
    counters.models["m"].stream_resumes["prefill", "ok"] += 2
    counters.models["m"].wasted_tokens[()] += 5
    found = scraped(bound(CALL_METRICS, counters))
    assert found("stream_resumes_total", model="m", mode="prefill", outcome="ok") == 2
    assert found("wasted_tokens_total", model="m") == 5
    assert len([sample for sample in found.samples if sample.value]) == 2


def test_models_without_calls_in_flight_show_none_only_if_they_had_some() -> None:
    counters = CallCounters()
    counters.models["busy"].begun = counters.models["quiet"].begun = counters.models["quiet"].ended = 3
    counters.models["refused"].calls["refused"] += 1
    found = scraped(bound(CALL_METRICS, counters))
    values = {name: found("in_flight_calls", model=name) for name in counters.models}
    assert values == {"busy": 3, "quiet": 0, "refused": None}
