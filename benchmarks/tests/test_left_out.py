"""Leave-one-provider-out: which rows and words are removed with a provider, and that its name is, too."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.classification import COLLECTIONS, LEFT_OUT_PROMISED, Score
from benchmarks.left_out import NAMES, Taught, group_of, measurable, read_unknown
from llm_guard.resilience.classification.vocabulary import RULES

WALL = 1_800_000_000.0
RECORDS = [json.loads(line) for file in COLLECTIONS for line in file.read_text("utf-8").splitlines()]


def record(provider: str, status: int, message: str) -> dict[str, Any]:
    body = json.dumps({"error": {"message": message}})
    return {"id": f"{provider}-1", "provider": provider, "transport": "http", "status": status, "body": body}


def rows(taught: Taught, group: str) -> set[str]:
    return {rule.message for rule in taught.without(group)}


def test_row_leaves_with_the_only_provider_that_it_holds_for() -> None:
    phrase = "* no space left on device memory *"
    one = record("one", 500, "no space left on device memory")
    other = record("other", 500, "no space left on device memory")
    alone, both = Taught([one], WALL), Taught([one, other], WALL)
    assert phrase not in rows(alone, "one")
    assert phrase in rows(alone, "other") & rows(both, "one") & rows(both, "other")


def test_error_that_a_gateway_quotes_is_no_second_source() -> None:
    phrase = "* no space left on device memory *"
    one = record("one", 500, "no space left on device memory")
    quoted = record("litellm_proxy", 500, "no space left on device memory")
    assert phrase not in rows(Taught([one, quoted], WALL), "one")


def test_row_without_an_error_leaves_with_the_provider_that_its_table_names() -> None:
    nothing = Taught([], WALL)
    left = {rule.source for rule in nothing.without("groq")}
    assert {rule.source for rule in RULES} - left == {
        rule.source for rule in RULES if "Groq" in rule.source
    }  # fmt: skip


def test_every_name_of_a_group_is_in_a_source() -> None:
    sources = {rule.source for rule in RULES}
    assert [name for names in NAMES.values() for name in names if not any(name in source for source in sources)] == []


def test_evidence_word_of_a_sense_is_left_out_of_the_stricter_figure() -> None:
    one = record("one", 503, "the backlog is full")
    taught = Taught([one, record("other", 503, "the queue is full")], WALL)
    found = {strict: dict_of(read_unknown([one], taught, WALL, words_too=strict)) for strict in (False, True)}
    assert (found[False], found[True]) == ("overloaded", "server_error")


def dict_of(answers: Any) -> str:
    ((_, found),) = answers
    return str(found["category"])


def test_group_is_a_provider_and_each_intermediary_has_a_name() -> None:
    assert group_of({"provider": "vertex"}) == group_of({"provider": "gemini"}) == "google"
    assert group_of({"provider": "edge", "id": "x-1", "headers": {"server": "Envoy"}}) == "envoy"
    assert group_of({"provider": "edge", "id": "kong-429"}) == "kong"
    assert group_of({"provider": "mistral"}) == "mistral"


def test_unknown_providers_are_read_as_well_as_is_published() -> None:
    score = Score("left out", promised=LEFT_OUT_PROMISED)
    for each, found in read_unknown(RECORDS, Taught(RECORDS, WALL), WALL):
        score.add(each, found, group_of(each))
    assert score.cases == len(measurable(RECORDS)) > 700
    assert score.broken == []
