from __future__ import annotations

import pytest

from llm_guard.resilience.classification.phrase_match import MAX_MESSAGE_CHARS, Phrase, words_of


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("rate limit", "Rate-limit!"),
        ("* rate limit *", "You hit the RATE   LIMIT today"),
        ("* rate limit *", "rate limit"),
        ("* model * not found *", 'model "llama-3.3:70b" not found, try pulling it first'),
        ("* model * not found *", "model not found"),
        ("*limit*", "two limits"),
        ("limit*", "limits were hit"),
        ("*limits", "two rate limits"),
        ("*余额不足*", "您的余额不足，请充值"),
        ("* you ve *", "Sorry: you've had enough"),
    ],
)
def test_phrase_is_found_in_any_case_and_punctuation(pattern: str, sentence: str) -> None:
    assert Phrase(pattern).matches(words_of(sentence))


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("* limit *", "two limits"),
        ("rate limit", "your rate limit"),
        ("rate limit", "rate limit reached"),
        ("* model * not found *", "not found: the model"),
        ("* a b *", "b a"),
        ("* terminated", "terminated for abuse"),
        ("rate*limit", "the rate limit"),
    ],
)
def test_phrase_is_whole_words_in_their_order(pattern: str, sentence: str) -> None:
    assert not Phrase(pattern).matches(words_of(sentence))


def test_wildcard_alone_finds_anything() -> None:
    assert Phrase("*").matches(words_of("anything"))


def test_same_word_is_not_used_twice() -> None:
    assert not Phrase("* limit * limit *").matches(words_of("the limit"))
    assert Phrase("* limit * limit *").matches(words_of("the limit of the limit"))
    assert not Phrase("a*a").matches(words_of("a"))


def test_quoted_text_can_be_left_out() -> None:
    said = "Invalid value: 'the model is overloaded'. `max_tokens` and \"one two\" don't count, it's so"
    assert words_of(said, without_quotes=True) == " invalid value max_tokens and don t count it s so "


def test_anchors_are_whole_words_of_the_phrase() -> None:
    assert Phrase("* model * not found *").anchors == ("model", "not", "found")
    assert Phrase("*limit reached today*").anchors == ("reached",)
    assert Phrase("*余额不足*").anchors == ()


def test_no_more_than_the_beginning_of_a_sentence_is_read() -> None:
    assert "late" not in words_of("x" * MAX_MESSAGE_CHARS + " late")
    assert words_of("") == words_of("!?") == ""
