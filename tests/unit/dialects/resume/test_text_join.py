from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_guard.dialects.resume.instructed_join import MOST_HEAD
from llm_guard.dialects.resume.text_join import TextJoin, anchor, given_back, instruction_text, seam
from llm_guard.dialects.resume.transcript import ResumeMode

SENT = "The breaker opens when a provider fails, and calls go elsewhere until it is incred"
LONG = SENT + "ibly patient. " + "Nothing else happens in this story, which is a long one. " * 18 + "It was"


def joined(resume_mode: ResumeMode, sent: str, new: str) -> str:
    joint = seam(resume_mode, sent)
    passed = joint.feed(new) + joint.end()
    assert not joint.has_diverged
    assert joint.is_settled
    return sent + passed


def held(joint: TextJoin, text: str) -> bool:
    return joint.feed(text) == "" and not joint.is_settled


# restart


def test_second_run_is_dropped_as_far_as_the_first_came() -> None:
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


@pytest.mark.parametrize("resume_mode", ["restart", "prefill", "instruction"])
def test_nothing_is_held_where_nothing_was_sent(resume_mode: ResumeMode) -> None:
    joint = seam(resume_mode, "")
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
def test_prefilled_text_continues_to_the_character(sent: str, new: str, whole: str) -> None:
    assert joined("prefill", sent, new) == whole


def test_repeated_prefill_is_dropped() -> None:
    assert joined("prefill", "one two three ", "one two three four") == "one two three four"
    assert joined("prefill", "one two three", "one two three four") == "one two three four"


def test_text_that_only_resembles_the_prefill_is_new() -> None:
    assert joined("prefill", "one two three,", "one two four") == "one two three,one two four"
    assert joined("prefill", "one two three,", "one two") == "one two three,one two"


# instruction


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (SENT.index("and calls"), "the anchor"),
        (SENT.index("elsewhere"), "its last words"),
        (SENT.index("a provider"), "earlier words"),
        (SENT.index("rovider"), "within a word"),
        (0, "everything"),
    ],
)
@pytest.mark.parametrize("before", ["", "\n\n", "...", "\u2026 ", "[...] ", '"', "\u201c...", "```\n", "~~~text\n"])
def test_repeated_words_are_left_out(begin: int, why: str, before: str) -> None:
    whole = SENT + "ible."
    assert joined("instruction", SENT, before + whole[begin:]) == whole, why


@pytest.mark.parametrize(
    "preamble",
    [
        "Sure, here is the rest:\n\n", "Sure, here is the rest: ", "Of course! ", "**Continuation**\n", 'Okay...\n"',
        f'I stopped at "{anchor(SENT)}". Here is the rest:\n\n', "\u597d\u7684\uff0c\u6211\u7ee7\u7eed\uff1a",
    ],
)  # fmt: skip
def test_preamble_is_left_out(preamble: str) -> None:
    assert joined("instruction", SENT, preamble + anchor(SENT) + "ible.") == SENT + "ible."


@pytest.mark.parametrize(
    "words",
    [
        str.upper, str.title, lambda text: text.replace(" ", "\n"), lambda text: text.replace(" ", "\u00a0 "),
        lambda text: text.replace(" ", ""),
    ],
)  # fmt: skip
def test_words_that_are_repeated_in_another_form_are_the_same(words: Callable[[str], str]) -> None:
    assert joined("instruction", SENT, words(anchor(SENT)) + "ible.") == SENT + "ible."


@pytest.mark.parametrize(
    ("sent", "repeated"),
    [
        ("He said \u201cna\u00efve caf\u00e9 life\u201d and", 'He said "nai\u0308ve cafe\u0301 life" and'),
        ("Stra\u00dfe und Gru\u00df an alle", "STRASSE UND GRUSS AN ALLE"),
        ("It\u2019s \u2018well\u2019 \u2013 or so", "It's 'well' - or so"),
    ],
)
def test_quotation_marks_and_normal_forms_do_not_matter(sent: str, repeated: str) -> None:
    assert joined("instruction", sent, repeated + " it goes.") == sent + " it goes."


def diverges(sent: str, new: str) -> bool:
    joint = seam("instruction", sent)
    passed = joint.feed(new) + joint.end()
    assert joint.has_diverged == (not joint.is_settled)
    return joint.has_diverged and passed == ""


@pytest.mark.parametrize(
    "new",
    [
        "", " ", "ible.", "ibly patient, and more than that.", "cred", "incredible.", "is incredible.",
        "I'm sorry, but I can't continue that.", "Calls go to another provider then.", " " * 1000, "x" * 1000,
        f'I cannot go on from "{anchor(SENT)}", for I did not write it.',
        f'"{anchor(SENT)}..." is where my message ended.', f"I cannot go on from {anchor(SENT)}ible.",
        f"- {anchor(SENT)}ible.", f"> {anchor(SENT)}ible.", f"**{anchor(SENT)}ible.", f"1. {anchor(SENT)}ible.",
        f"{anchor(SENT)}\nible.", f"{anchor(SENT)}\n\n{anchor(SENT)}ible.",
        f"I stopped at: {anchor(SENT)}. Going on from there:\n{anchor(SENT)}ible.",
        f"Something else happened there. {SENT[:30]}, but then again not. {anchor(SENT)}ible.",
        f"Another story begins here. , which is good. {anchor(SENT)}ible.",
        "Sure: " + anchor(SENT)[-20:] + "ible.", "y" * 400 + ":\n" + anchor(SENT) + "ible.",
    ],
)  # fmt: skip
def test_text_without_a_safe_seam_is_not_joined(new: str) -> None:
    assert diverges(SENT, new)


@pytest.mark.parametrize("behind", ["", ".", "...", "\n\nPlease try again.", ". \nShall I begin anew?"])
def test_words_at_the_end_of_a_remark_are_no_repetition(behind: str) -> None:
    """If they were joined, the text would end there, in the middle, as if it were complete."""
    words = anchor(SENT)
    assert diverges(SENT, f"I can't continue that. The last words were: {words}{behind}")
    assert joined("instruction", SENT, f"Sure, here it is: {words}ibly patient.") == SENT + "ibly patient."


@pytest.mark.parametrize(
    ("sent", "new"),
    [
        ("- [ ] buy milk\n" * 9, "- [ ] buy milk\n- [ ] buy bread"),
        ("|---" * 20, "|---" * 9 + "|"),
        ("Row, row, row your boat.\n" * 2, "Row, row, row your boat.\nGently."),
        ("ha ha ha ha ha ha", "ha ha ha ha ha ha, he said"),
        ("No", "No, never."),
    ],
)
def test_text_that_repeats_itself_proves_nothing(sent: str, new: str) -> None:
    assert diverges(sent, new)


def test_text_may_repeat_itself_before_the_words_that_prove_the_join() -> None:
    sent = "- [ ] buy some milk\n" * 9 + "- [ ] and some bread for the"
    assert joined("instruction", sent, anchor(sent) + " week") == sent + " week"


@pytest.mark.parametrize(
    ("lost", "blank", "between"),
    [
        ("", "", ""), ("", " ", " "), (" ", "", " "), (" ", " ", " "), (" ", "\n\n", None), ("\n", " ", "\n"),
        ("\n\n", "\n", "\n\n"), ("\n", "\n\n  ", "\n\n  "), ("\n  ", "\n    ", "\n    "), ("\n  ", " ", None),
        ("", "\n\n", "\n\n"), ("", "\n", None),
    ],
)  # fmt: skip
def test_whitespace_at_the_join_occurs_once(lost: str, blank: str, between: str | None) -> None:
    sent = "The breaker opens when a provider fails." + lost
    new = sent.rstrip() + blank + "Then it closes."
    if between is None:
        assert diverges(sent, new)
    else:
        assert joined("instruction", sent, new) == sent.rstrip() + between + "Then it closes."


def test_line_may_break_where_the_text_breaks_its_lines() -> None:
    sent = "a = first(the_value)\nb = second(other)"
    assert joined("instruction", sent, sent + "\n# third") == sent + "\n# third"
    assert diverges(sent + "\nc = fourth", sent + "\nc = fourth\nd = fifth")


def test_long_text_that_restarts_is_compared_to_its_end() -> None:
    for before in ("", "Sure, here is the whole of it:\n\n"):
        joint = seam("instruction", LONG)
        assert held(joint, before + LONG[:700])
        assert not joint.is_searching
        assert held(joint, LONG[700:])
        rest = " over" if not before else " over and over, until the text is long enough" + ", and so on" * 20
        assert joint.feed(rest) + joint.end() == rest
        assert not joint.has_diverged


@pytest.mark.parametrize("new", [LONG[:700] + "?", LONG[:700], LONG[:300], LONG[:300] + "?"])
def test_long_text_that_restarts_and_differs_diverges(new: str) -> None:
    assert diverges(LONG, new)


def test_repetition_that_may_have_begun_in_two_places_diverges() -> None:
    words = " ".join(f"word{number}" for number in range(150))
    assert diverges(f"{words} {words}", f"{words} {words} and more")


def test_refrain_after_a_text_without_repetition_is_no_repetition() -> None:
    sent = "A song.\n\nRow, row, row your boat,\nGently d"
    new = "own the stream.\nLife is but a dream.\n\nRow, row, row your boat,\nGently down the creek."
    assert diverges(sent, new)


def test_preamble_is_a_line_or_two() -> None:
    assert joined("instruction", SENT, f"Sure.\n\nHere it is:\n{anchor(SENT)}ible.") == SENT + "ible."
    assert diverges(SENT, f"Sure.\nOkay.\nHere it is:\n{anchor(SENT)}ible.")


def test_line_never_breaks_between_letters() -> None:
    sent = "alpha beta\ngamma delta\nepsilon zeta eta"
    assert diverges(sent, sent + "\ntheta iota")


def test_mark_that_an_earlier_paragraph_may_owe_ends_the_text() -> None:
    sent = 'He said "well.\n\n' + SENT
    joint = seam("instruction", sent)
    assert joint.feed(f'"{anchor(sent)}ible."') + joint.end() == "ible."
    assert joint.has_diverged


def test_anchor_begins_with_a_word_and_no_quotation_mark() -> None:
    assert anchor('He wrote to them all, "calls go elsewhere until it the').startswith("all, ")


def test_text_is_held_no_longer_than_its_head() -> None:
    joint = seam("instruction", LONG)
    assert held(joint, "y" * (MOST_HEAD - 1))
    assert joint.is_searching
    assert joint.feed("y") == ""
    assert joint.has_diverged
    assert not joint.is_searching


# wrappings around the text


@pytest.mark.parametrize(
    ("begin", "rest", "whole"),
    [
        ('"', 'ible."', "ible."),
        ('"', 'ible," he said.', 'ible," he said.'),
        ('"', 'ible, he said "yes." Then', 'ible, he said "yes." Then'),
        ("\u201c", "ible.\u201d\n", "ible."),
        ("\u201c", "ible, \u201cyes\u201d\u201d", "ible, \u201cyes\u201d"),
        ("\u201e", "ible.\u201c", "ible."),
        ("\u00ab", "ible, \u00aboui\u00bb, dit-il.", "ible, \u00aboui\u00bb, dit-il."),
        ("```\n", "ible.\n```", "ible."),
        ("```\n", "ible.\n```\n\n", "ible."),
        ("```\n", "ible:\n```sh\nls\n```\nDone.\n```", "ible:\n```sh\nls\n```\nDone."),
        ("````\n", "ible:\n```\nls\n```\nDone.\n````", "ible:\n```\nls\n```\nDone."),
        ("~~~\n", "ible:\n```\nls\n```\n~~~", "ible:\n```\nls\n```"),
        ("```\n", "ible, ``x``.", "ible, ``x``."),
        ("```\n", "ible\n``x``\n", "ible\n``x``\n"),
        ("```\n", "ible ``` x `\ny``", "ible ``` x `\ny``"),
    ],
)
def test_wrapping_ends_with_the_text(begin: str, rest: str, whole: str) -> None:
    assert joined("instruction", SENT, begin + anchor(SENT) + rest) == SENT + whole


def test_fence_in_which_the_model_repeats_the_texts_own_is_ended() -> None:
    sent = "Do this:\n\n```bash\ndocker build -t registry.example.com"
    for begin in ("```\n", "````\n", "```", "```text\n```"):
        mark = begin.split("\n")[0].rstrip("tex")
        new = f"{begin}bash{sent.partition('bash')[2]}/x .\n```\nThat is it.\n{mark}"
        assert joined("instruction", sent, new) == sent + "/x .\n```\nThat is it."


def test_fence_of_a_block_that_was_open_is_its_own() -> None:
    sent = "Do this:\n\n```python\nimport something_that_is_long"
    for end in ("", "\n```"):
        new = f"```python\n{anchor(sent)}er\n```\nThat is it.{end}"
        assert joined("instruction", sent, new) == sent + "er\n```\nThat is it."


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        ("```\n", "ible.\n```\nI hope this helps."), ("```\n", "ible.\n``` Done."), ("'", "ible.'"),
        ("```\n", "ible.```"), ("```\n", "ible.``` \n\n"), ("~~~\n", "ible.~~~"),
    ],
)  # fmt: skip
def test_mark_that_may_be_the_wrappings_or_the_texts_ends_it(begin: str, rest: str) -> None:
    joint = seam("instruction", SENT)
    passed = joint.feed(begin + anchor(SENT) + rest) + joint.end()
    assert joint.has_diverged
    assert "ible.".startswith(passed)


@pytest.mark.parametrize(
    ("begin", "rest", "passed"),
    [
        ('"', 'ible, he said "yes."', 'ible, he said "yes.'),
        ("\u201c", "ible, he said \u201cyes.\u201d", "ible, he said \u201cyes."),
        ('"', 'ible, and \u201ethen"', "ible, and \u201ethen"),
        ('"', 'ible. He said "', "ible. He said "),
        ('"', 'ible, 7" or 8"', 'ible, 7" or 8'),
    ],
)
def test_last_mark_that_may_end_a_quotation_of_the_text_is_not_passed(begin: str, rest: str, passed: str) -> None:
    """The mark closes either the model's own quotation inside an open one of the text, or the text's."""
    joint = seam("instruction", SENT)
    assert joint.feed(begin + anchor(SENT) + rest) + joint.end() == passed
    assert joint.has_diverged


@pytest.mark.parametrize("mark", ["\u201d", '"'])
def test_mark_after_a_repeated_quotation_may_be_part_of_the_text(mark: str) -> None:
    """The text may end inside its own quotation, and the model may have quoted all of its output."""
    sent = "It began at noon. \u201cThe breaker opens when a provider fails, and calls go elsewhere until it is"
    joint = seam("instruction", sent)
    assert joint.feed(sent[sent.index("\u201c") :] + " well." + mark) + joint.end() == " well."
    assert joint.has_diverged


@pytest.mark.parametrize(
    ("sent", "new"),
    [
        # the text continues without a repetition, with a row that ends like the last one
        ("4,failed,035,orchard,stone,garden\nok,00", "5,orchard,stone,garden\nok,006,orchard,stone,garden"),
        # the last mark is repeated, and the following row is identical
        (
            "| orchard whisper | yes | 9 |\n| lantern whisper harbour | yes | 10 |\n| lantern whisper harbour |",
            "| yes | 10 |\n| lantern whisper harbour | yes | 10 |\n| orchard wh",
        ),
        # a clause occurs twice in a row
        (
            "\u65e5\u5317\u6708\u77f3\u79cb\u82b1\u82b1\u590f\u3002\u91d1\u5c71\u91d1\u65e5\u87f2\u6625\u6cb3\u9ce5\u9b5a",
            "\u3002\u91d1\u5c71\u91d1\u65e5\u87f2\u6625\u6cb3\u9ce5\u9b5a\uff1b\u706b\u65e5\u706b\u91d1",
        ),
        # a text of a few characters is repeated after others
        (
            "\u6cb3\u51ac\u897f\u706b\u96e8",
            "\u6cb3\u51ac\u96e8\u6cb3\u3001\u98a8\u571f\u3002\u6cb3\u51ac\u897f\u706b\u96e8\u6cb3\u51ac\u96e8\u6cb3\u3002"
            * 12,
        ),
        # three words are repeated; the following row contains the whole anchor
        (
            "a | b\n|---:|\n| lantern meadow marble | 10 |\n| lantern m",
            "| lantern meadow marble | 10 |\n| lantern meadow",
        ),
        # a row after a preamble
        (
            "| garden canyon harbour velvet | yes | 1 |\n| signal timber harvest co",
            "Once more.pper | 14 |\n| garden canyon harbour velvet | yes | 1 |\n| signal timber harvest copper",
        ),
        # clauses of a few characters
        ("雨魚西山東夏河西、雨魚", "西山東夏河西、雨魚西山東夏河西；雨金木月。"),
    ],
)
def test_row_that_is_like_the_last_one_is_not_taken_for_a_repetition(sent: str, new: str) -> None:
    joint = seam("instruction", sent)
    assert joint.feed(new) + joint.end() == ""
    assert joint.has_diverged


# anchors


def test_text_that_is_sent_back_ends_in_no_whitespace() -> None:
    assert given_back("\n one \n\t ") == "\n one"
    assert given_back(" \n") == ""


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("", ""),
        ("  \n", ""),
        (" one two ", "one two"),
        (SENT, "and calls go elsewhere until it is incred"),
        ("x" * 300, "x" * 200),
        ("y " + "x" * 60, "y " + "x" * 60),
        ("- [ ] buy some milk\n" * 9 + "- [ ] buy", "- [ ] buy some milk\n" * 9 + "- [ ] buy"),
        ("All of it. " + "- [ ] buy milk\n" * 3 + "and bread", "buy milk\n- [ ] buy milk\nand bread"),
    ],
)
def test_anchor_is_the_last_words(sent: str, words: str) -> None:
    tail = anchor(sent)
    assert len(tail) <= 200
    assert words.endswith(tail)
    assert len(tail) >= min(32, len(words))


def test_instruction_ends_in_the_words_to_be_repeated() -> None:
    assert instruction_text("until it is").endswith("\nuntil it is")


TABLE = "| what it is | is it so | how many |\n|---|---|---:|\n| stone orchard harbour harvest | yes | 17 |"
REFRAIN = "Window harbour meadow whisper harbour copper window,\nWhisper signal copper crystal whisper signal garden,\n"
VERSE = "Garden lantern feather window harbour velvet garden\n"
NEXT_VERSES = (
    "\nCrystal lantern garden garden window harvest crystal\nMarble canyon signal meadow feather anchor feather\n"
)


@pytest.mark.parametrize(
    ("sent", "new"),
    [
        (f"{TABLE}\n", "\n| stone orchard harbour harvest | yes | 17 |\n| anchor meadow velvet | yes | 12 |\n"),
        (TABLE.removesuffix(" |"), " |\n| stone orchard harbour harvest | yes | 17 |\n| anchor | yes | 12 |\n"),
        (
            f"Stone window canyon stone timber thunder whisper\nTimber garden copper river thunder river\n{REFRAIN}",
            f"\n\nMarble anchor thunder window velvet copper copper\n{VERSE}{REFRAIN}{2 * NEXT_VERSES}",
        ),
        ("雨冬水冬魚魚。雲東土夏木鳥", "日雲鳥。雨冬水冬魚魚。雲東土夏木鳥日雲鳥；蟲河山月冬夏。"),
    ],
    ids=["next row", "rest of a row and the next one", "refrain after two verses", "clauses after the end of another"],
)
def test_text_that_naturally_repeats_its_last_words_is_not_joined(sent: str, new: str) -> None:
    joint = seam("instruction", sent)
    assert joint.feed(new) + joint.end() == ""
    assert joint.has_diverged
