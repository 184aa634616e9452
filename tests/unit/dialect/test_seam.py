from __future__ import annotations

import pytest

from llm_guard.dialect.continuation import Manner
from llm_guard.dialect.seam import Seam, anchor, given_back, instruction_text, seam

SENT = "The breaker opens when a provider fails, and calls go elsewhere until it is incred"
LONG = SENT + "ibly patient. " + "Nothing else happens in this story, which is a long one. " * 9 + "It was"


def joined(manner: Manner, sent: str, new: str) -> str:
    joint = seam(manner, sent)
    passed = joint.feed(new) + joint.end()
    assert not joint.has_diverged
    assert joint.is_settled
    return sent + passed


def held(joint: Seam, text: str) -> bool:
    return joint.feed(text) == "" and not joint.is_settled


# restart


def test_second_run_is_swallowed_as_far_as_the_first_came() -> None:
    joint = seam("restart", "one two ")
    assert held(joint, "one ")
    assert joint.feed("two three") == "three"
    assert joint.is_settled
    assert joint.feed(" four") + joint.end() == " four"


@pytest.mark.parametrize("new", ["one too", "one two", "", " one two "])
def test_second_run_that_differs_or_ends_early_diverges(new: str) -> None:
    joint = seam("restart", "one two ")
    assert joint.feed(new) + joint.end() == ""
    assert joint.has_diverged
    assert not joint.is_settled
    assert joint.feed("more") == ""


@pytest.mark.parametrize("manner", ["restart", "prefill", "instruction"])
def test_nothing_is_held_where_nothing_was_sent(manner: Manner) -> None:
    joint = seam(manner, "")
    assert joint.is_settled
    assert joint.feed(" new") == " new"
    assert joint.end() == ""


# prefill


@pytest.mark.parametrize(
    ("sent", "new", "whole"),
    [
        ("one two", " three", "one two three"),
        ("one tw", "o three", "one two three"),
        ("one ", " two", "one two"),
        ("one ", "two", "one two"),
        ("one\n", "\n\n- two", "one\n\n- two"),
        ("one\n\n", "\ntwo", "one\n\ntwo"),
        ("one\n\n", " \n two", "one\n\ntwo"),
        ("def f():\n", "\n    return", "def f():\n    return"),
        ("#", "# Title", "## Title"),
    ],
)
def test_prefilled_text_goes_on_to_the_character(sent: str, new: str, whole: str) -> None:
    assert joined("prefill", sent, new) == whole


def test_prefill_that_comes_again_is_swallowed() -> None:
    assert joined("prefill", "one two three ", "one two three four") == "one two three four"
    assert joined("prefill", "one two three", "one two three four") == "one two three four"


def test_prefill_that_only_seems_to_come_again_is_new() -> None:
    assert joined("prefill", "one two three,", "one two four") == "one two three,one two four"
    assert joined("prefill", "one two three,", "one two") == "one two three,one two"


# instruction


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (SENT.index("elsewhere"), "the anchor or near it"),
        (SENT.index("a provider"), "earlier words"),
        (SENT.index("incred"), "the partial last word, complete"),
        (SENT.index("rovider"), "eight characters, though within a word"),
        (0, "everything"),
    ],
)
def test_overlap_is_swallowed(begin: int, why: str) -> None:
    whole = SENT + "ible."
    assert joined("instruction", SENT, whole[begin:]) == whole, why
    assert joined("instruction", SENT, "\n\n" + whole[begin:]) == whole, why


@pytest.mark.parametrize(
    ("sent", "new", "whole"),
    [
        ("the cat", "sat", "the cat sat"),
        ("the cat ", "sat", "the cat sat"),
        ("the cat", " sat", "the cat sat"),
        ("the cat.", "Then it", "the cat. Then it"),
        ("the cat,", "which", "the cat, which"),
        ("the caf\u00e9", "noir", "the caf\u00e9 noir"),
        ("example.", "com", "example.com"),
        ("costs 1", "00 dollars", "costs 100 dollars"),
        ("snake_", "case", "snake_case"),
        ("f(", "x)", "f(x)"),
        ("we don't", "the other", "we don't the other"),
        ("```\nlet cat", "sat", "```\nlet catsat"),
        ("```\nx\n``` the cat", "sat", "```\nx\n``` the cat sat"),
        ("\u4eca\u5929\u5929\u6c14", "\u5f88\u597d", "\u4eca\u5929\u5929\u6c14\u5f88\u597d"),
        ("the cat", "\n\nThe dog", "the cat\n\nThe dog"),
    ],
)
def test_text_without_overlap_is_passed_on_and_words_stay_apart(sent: str, new: str, whole: str) -> None:
    assert joined("instruction", sent, new) == whole


def test_two_characters_overlap_where_words_have_no_spaces() -> None:
    assert joined("instruction", "\u4eca\u5929\u5929\u6c14", "\u5929\u6c14\u5f88\u597d") == (
        "\u4eca\u5929\u5929\u6c14\u5f88\u597d"
    )


def test_longest_overlap_counts() -> None:
    assert joined("instruction", "and so on, and so", "and so on, and so forth") == "and so on, and so forth"


def test_long_text_that_begins_again_is_compared_to_its_end() -> None:
    joint = seam("instruction", LONG)
    assert held(joint, LONG[:300])
    assert joint.feed(LONG[300:] + " over") == " over"
    assert joint.is_settled
    assert not joint.has_diverged


@pytest.mark.parametrize("new", [LONG[:300] + "?", LONG[:300]])
def test_long_text_that_begins_again_and_differs_diverges(new: str) -> None:
    joint = seam("instruction", LONG)
    assert joint.feed(new) + joint.end() == ""
    assert joint.has_diverged


def test_text_that_shares_but_a_few_words_with_the_beginning_is_new() -> None:
    assert joined("instruction", LONG, "The breaker closes.") == LONG + " The breaker closes."


def test_refrain_that_may_be_the_end_or_the_beginning_is_the_end() -> None:
    refrain = "Breakers open when providers fail, and calls go on and on. "
    sent = refrain * 2
    assert joined("instruction", sent, refrain + "Then they close.") == sent + "Then they close."


def test_anchor_counts_at_once_though_a_longer_overlap_may_follow() -> None:
    refrain = "Breakers open when providers fail, and calls go on and on. "
    begun = refrain * 2
    again = anchor(begun) + " " + refrain * 2
    assert joined("instruction", begun, again + "The end.") == refrain * 4 + "The end."


def test_whitespace_for_ever_is_not_held_for_ever() -> None:
    joint = seam("instruction", "one two")
    assert len(joint.feed(" " * 1000)) > 500
    assert joint.is_settled


# words


def test_what_is_given_back_ends_in_no_whitespace() -> None:
    assert given_back("\n one \n\t ") == "\n one"
    assert given_back(" \n") == ""


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("", ""),
        ("  \n", ""),
        (" one two ", "one two"),
        (SENT, "and calls go elsewhere until it is incred"),
        ("x" * 300, "x" * 32),
        ("y " + "x" * 60, "x" * 60),
    ],
)
def test_anchor_is_the_last_words(sent: str, words: str) -> None:
    tail = anchor(sent)
    assert len(tail) <= 80
    assert words.endswith(tail)
    assert len(tail) >= min(32, len(words))


def test_instruction_ends_in_the_words_to_be_repeated() -> None:
    assert instruction_text("until it is").endswith("\nuntil it is")
