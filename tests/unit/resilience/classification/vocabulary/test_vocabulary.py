from __future__ import annotations

from collections import defaultdict

import pytest

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.error_body import Layer
from llm_guard.resilience.classification.error_codes import plain_code
from llm_guard.resilience.classification.phrase_match import words_of
from llm_guard.resilience.classification.rules import (
    ClassificationRule,
    RuleBook,
    cited,
    coded,
    exactly,
    said,
    user_rule,
)
from llm_guard.resilience.classification.vocabulary import RULES
from llm_guard.resilience.classification.vocabulary.families import family_of_headers, family_of_name, family_of_url
from llm_guard.resilience.classification.vocabulary.finishes import KIND_OF_FINISH
from llm_guard.resilience.classification.vocabulary.statuses import OF_STATUS, STATUS_OF

BUILT_IN = list(RULES)


# the tables


def test_every_row_states_where_it_was_seen() -> None:
    assert all(rule.source for rule in BUILT_IN)


def test_every_row_has_something_to_hold_on_to() -> None:
    assert all(rule.code or rule.message or rule.sense for rule in BUILT_IN)
    assert all(words_of(rule.message) for rule in BUILT_IN if rule.message)


def test_no_two_rows_contradict_each_other() -> None:
    kinds = defaultdict(set)
    for rule in BUILT_IN:
        row = (rule.code, rule.message.lower(), rule.sense, rule.statuses, rule.families, rule.is_weak, rule.is_firm)
        kinds[row].add(rule.kind)
    assert {row: found for row, found in kinds.items() if len(found) > 1} == {}


def test_no_plain_word_decides_by_itself() -> None:
    """Identifiers may: no prompt contains `internal_server_error` by chance, but it may contain "Timeout" and "429"."""
    lone = {
        rule.message.strip("* ").lower()
        for rule in BUILT_IN
        if rule.message.startswith("* ") and rule.message.endswith(" *") and " " not in rule.message.strip("* ")
        if not (rule.code or rule.families or rule.statuses == {401} or rule.statuses == {401, 403})
    }
    plain = {word for word in lone if "_" not in word and word.isascii()}
    assert plain <= {
        "ratelimit", "outofmemoryerror", "enginedeaderror", "asyncenginedeaderror", "exceededbudget", "jwks",
        "econnrefused", "econnreset", "enotfound", "getaddrinfo", "userbymodelbyday",
    }  # fmt: skip


def test_statuses_have_a_meaning_that_leads_back_to_them() -> None:
    for kind, status in STATUS_OF.items():
        assert OF_STATUS.get(status, Kind.INVALID_REQUEST).is_retriable == kind.is_retriable or status == 429


def test_every_reason_to_stop_is_spelled_as_it_is_looked_up() -> None:
    assert all(plain_code(word) == word for word in KIND_OF_FINISH)
    assert KIND_OF_FINISH[plain_code("MALFORMED_FUNCTION_CALL")] is Kind.BAD_SAMPLE
    assert not {"stop", "length", "toolcalls", "endturn", "maxtokens", "pauseturn"} & set(KIND_OF_FINISH)


# precedence of rules


def decided(
    rules: tuple[ClassificationRule, ...], message: str = "", status: int | None = 429, family: str = "", **layer: str
) -> Kind:
    found = RuleBook(rules).find(
        [(Layer(codes=frozenset(layer.values()), message=message), words_of(message))], status, family
    )
    assert found is not None
    return found.kind


def test_codeword_outweighs_a_sentence_and_a_sentence_a_weak_word() -> None:
    rules = (
        *coded(Kind.RATE_LIMIT, "weak_one", is_weak=True),
        *said(Kind.QUOTA_EXHAUSTED, "no money"),
        *coded(Kind.AUTH, "firm_one"),
    )
    assert decided(rules, "no money", a="weakone", b="firmone") is Kind.AUTH
    assert decided(rules, "no money", a="weakone") is Kind.QUOTA_EXHAUSTED
    assert decided(rules, "nothing", a="weakone") is Kind.RATE_LIMIT


def test_order_of_the_rows_does_not_decide() -> None:
    rules = (*said(Kind.RATE_LIMIT, "rate limit"), *said(Kind.QUOTA_EXHAUSTED, "no money"))
    for ordered in (rules, rules[::-1]):
        assert decided(ordered, "a rate limit and no money") is Kind.QUOTA_EXHAUSTED


def test_rule_with_more_conditions_outweighs_one_with_fewer() -> None:
    rules = (*coded(Kind.QUOTA_EXHAUSTED, "x"), *coded(Kind.RATE_LIMIT, "x", message="per minute"))
    assert decided(rules, "so many per minute", a="x") is Kind.RATE_LIMIT
    assert decided(rules, "so many", a="x") is Kind.QUOTA_EXHAUSTED


def test_sentence_is_believed_only_where_its_kind_can_be() -> None:
    rules = said(Kind.RATE_LIMIT, "rate limit")
    book = RuleBook(rules)
    layer = Layer(message="rate limit")
    for status, believed in (
        (429, True),
        (500, True),
        (None, True),
        (200, True),
        (400, False),
        (401, False),
        (404, False),
    ):
        assert (book.find([(layer, " rate limit ")], status, "") is not None) is believed


def test_row_of_one_family_holds_for_it_alone() -> None:
    rules = (*coded(Kind.OVERLOADED, "3505", families="mistral"), *exactly(Kind.RATE_LIMIT, "so it is"))
    assert decided(rules, "so it is", family="mistral", a="3505") is Kind.OVERLOADED
    assert decided(rules, "so it is", family="other", a="3505") is Kind.RATE_LIMIT


def test_sentence_of_one_family_does_not_outweigh_a_codeword() -> None:
    rules = (*coded(Kind.AUTH, "x"), *said(Kind.RATE_LIMIT, "so many", families="groq", statuses=[429]))
    assert decided(rules, "so many", family="groq", a="x") is Kind.AUTH


def test_sentence_that_is_firm_outweighs_the_others() -> None:
    rules = (*said(Kind.QUOTA_EXHAUSTED, "no money"), *said(Kind.RATE_LIMIT, "a firm word", is_firm=True))
    assert decided(rules, "no money but a firm word") is Kind.RATE_LIMIT


def test_part_of_a_word_and_a_script_without_spaces_are_found() -> None:
    rules = (*said(Kind.RATE_LIMIT, "*_per_minute*"), *said(Kind.QUOTA_EXHAUSTED, "余额不足"))
    assert decided(rules, "metric requests_per_minute_per_project") is Kind.RATE_LIMIT
    assert decided(rules, "您的余额不足，请充值") is Kind.QUOTA_EXHAUSTED


def test_source_is_stored_in_each_row() -> None:
    (rule,) = cited("somewhere", said(Kind.AUTH, "no key"))
    assert rule.source == "somewhere"


# rules in the config


def test_rule_of_the_config_needs_all_that_it_names() -> None:
    rule = user_rule(Kind.OVERLOADED, statuses=frozenset({400}), code="drain_now", type_="Odd", message="*pool is*")
    fitting = Layer(code="drain_now", type="odd_error", codes=frozenset({"drainnow"}))
    words = words_of("the pool is empty")
    assert rule.fits(fitting, words, 400)
    assert not rule.fits(fitting, words, 401)
    assert not rule.fits(fitting, words_of("no"), 400)
    assert not rule.fits(Layer(type="odd"), words, 400)
    assert not rule.fits(Layer(code="DRAIN_NOW", type="other"), words, 400)


@pytest.mark.parametrize(
    ("given", "reason"),
    [({}, "is empty"), ({"message": "***"}, "no word"), ({"message": "x" * 301}, "longer than")],
)
def test_rule_that_can_never_mean_anything_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        user_rule(Kind.AUTH, **given)  # type: ignore[arg-type]


# provider families


@pytest.mark.parametrize(
    ("url", "family"),
    [
        ("https://api.openai.com/v1", "openai"), ("https://x.openai.azure.com/openai/v1", "azure"),
        ("https://api.anthropic.com", "anthropic"), ("https://api.groq.com/openai/v1", "groq"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "bedrock"), ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://127.0.0.1:8000/v1", "local"), ("http://10.0.0.7:8000/v1", "local"), ("http://vllm:8000/v1", "local"),
        ("http://localhost:11434/v1", "ollama"), ("http://[::1]:1234/v1", "lmstudio"), ("http://8.8.8.8/v1", ""),
        ("https://gateway.example.com/v1", ""), ("https://notopenai.com", ""), ("http://[bad", ""), ("", ""),
    ],
)  # fmt: skip
def test_family_is_found_from_the_base_url(url: str, family: str) -> None:
    assert family_of_url(url) == family


def test_family_is_found_from_a_name_and_from_headers() -> None:
    assert family_of_name("Azure OpenAI") == "azure"
    assert family_of_name("llama.cpp") == "llamacpp"
    assert family_of_name("edge") == ""
    assert family_of_headers({"x-groq-region": "us"}) == "groq"
    assert family_of_headers({}) == ""
