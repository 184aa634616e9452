"""However a cooperative model continues a text, the client has each character once, and the output is the same for
any split of the model's text."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llm_guard.dialects.resume.overlap import folded, is_proof
from llm_guard.dialects.resume.text_join import LEAST_ECHO, TextJoin, anchor, given_back, seam
from llm_guard.dialects.resume.transcript import ResumeMode
from tests.effort import repeated
from tests.fakes.continuation_styles import HABITS, TEXTS, Cut, Habit
from tests.fakes.hard_texts import KINDS

MOST_HELD = 700
WORD_CHARS = "abcdefgh\u00e9\u00df\u4eca\u5929\U0001f600.,-"
GAPS = [" ", " ", " ", "\n", "\n\n", "  ", " \n\t"]
BOTH: list[ResumeMode] = ["prefill", "instruction"]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Words in any script, none a prefix of another; a number makes each of them unique."""
    stems = draw(st.lists(st.text(WORD_CHARS, max_size=4), min_size=1, max_size=60))
    first = draw(st.sampled_from(["", "", "\n\n", " "]))
    words = [f"{chr(ord('k') + at % 16)}{at:02}{stem}" for at, stem in enumerate(stems)]
    gaps = draw(st.lists(st.sampled_from(GAPS), min_size=len(words), max_size=len(words)))
    return first + "".join(word + gap for word, gap in zip(words, gaps, strict=True))


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, str]:
    text = draw(texts())
    sent = text[: draw(st.integers(1, len(text)))]
    assume(given_back(sent))
    return text, sent


def word_starts(text: str) -> list[int]:
    return [at for at, (before, char) in enumerate(pairwise(" " + text)) if before.isspace() and not char.isspace()]


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


def fed(joint: TextJoin, pieces: list[str]) -> str:
    return "".join(joint.feed(piece) for piece in pieces) + joint.end()


@settings(max_examples=120, deadline=None)
@given(cut=cut_texts(), data=st.data())
def test_prefill_is_resumed(cut: tuple[str, str], data: st.DataObject) -> None:
    text, sent = cut
    rest = text[len(given_back(sent)) :]
    if len(given_back(sent)) >= LEAST_ECHO and data.draw(st.booleans(), label="repeats it first"):
        rest = text
    joint = seam("prefill", sent)
    assert sent + fed(joint, pieces_of(data, rest)) == text
    assert not joint.has_diverged


@settings(max_examples=repeated(150), deadline=None)
@given(cut=cut_texts(), data=st.data())
def test_instruction_is_followed_from_the_anchor_or_an_earlier_word(cut: tuple[str, str], data: st.DataObject) -> None:
    """The text is joined, or the join is given up if the words are too weak a proof."""
    text, sent = cut
    end = len(given_back(sent))
    nearby = [at for at in word_starts(text) if end - 400 <= at < end]
    begin = data.draw(st.sampled_from([end - len(anchor(sent)), 0, *nearby]))
    blank = data.draw(st.sampled_from(["", "", " ", "\n\n"]))
    joint = seam("instruction", sent)
    passed = fed(joint, pieces_of(data, blank + text[begin:]))
    assert joint.has_diverged or sent + passed == text
    # After the end of a line it may be undecidable whether the text or the model has ended the line.
    rest = text[end:]
    is_at_a_line_end = "\n" in rest[: len(rest) - len(rest.lstrip())]
    has_proof = is_proof(folded(given_back(sent)), len(folded(anchor(sent))))
    assert not joint.has_diverged or begin > end - len(anchor(sent)) or not has_proof or is_at_a_line_end


@settings(max_examples=120, deadline=None)
@given(cut=cut_texts(), data=st.data())
def test_restart_repeats_and_continues(cut: tuple[str, str], data: st.DataObject) -> None:
    text, sent = cut
    joint = seam("restart", sent)
    assert sent + fed(joint, pieces_of(data, text)) == text
    assert (joint.is_settled, joint.has_diverged) == (True, False)


@settings(max_examples=120, deadline=None)
@given(cut=cut_texts(), data=st.data())
def test_restart_with_different_text_diverges(cut: tuple[str, str], data: st.DataObject) -> None:
    text, sent = cut
    at = data.draw(st.integers(0, len(sent) - 1))
    other = text[:at] + data.draw(st.sampled_from(["", "?" + text[at + 1 :], "?"]))
    joint = seam("restart", sent)
    assert fed(joint, pieces_of(data, other)) == ""
    assert joint.has_diverged


@pytest.mark.parametrize("resume_mode", ["prefill", "instruction", "restart"])
@settings(max_examples=repeated(150), deadline=None)
@given(sent=st.text("ab \n`.", max_size=60), new=st.text("ab \n`.", max_size=120), data=st.data())
def test_any_split_of_any_text_gives_the_same(
    resume_mode: ResumeMode, sent: str, new: str, data: st.DataObject
) -> None:
    whole, cut, single = (seam(resume_mode, sent) for _ in range(3))
    passed = fed(whole, [new])
    assert fed(cut, pieces_of(data, new)) == passed
    assert fed(single, list(new)) == passed
    assert whole.has_diverged == cut.has_diverged == single.has_diverged


@pytest.mark.parametrize("resume_mode", BOTH)
@settings(max_examples=repeated(150), deadline=None)
@given(sent=st.text("ab .", max_size=60), new=st.text("ab .", max_size=90), tail=st.text("cd ", max_size=9))
def test_nothing_after_the_join_is_lost(resume_mode: ResumeMode, sent: str, new: str, tail: str) -> None:
    joint = seam(resume_mode, sent)
    passed = fed(joint, [new, tail])
    assert joint.has_diverged or passed.endswith(tail.lstrip())
    # The omitted part of the new text is a beginning that the client already has; dots may precede it.
    left_out = (new + tail).removesuffix(passed)
    assert joint.has_diverged or folded(left_out).lstrip(".") in folded(sent)


@st.composite
def real_cuts(draw: st.DrawFn) -> Cut:
    """Prose, code, markdown, lists, emoji and nine scripts, cut after any byte: half a character is not sent."""
    text = draw(st.sampled_from(list(TEXTS.values())))
    at = draw(st.integers(1, len(text.encode()) - 1))
    sent = text.encode()[:at].decode("utf-8", "ignore")
    assume(sent)
    return Cut(text, sent)


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
@settings(max_examples=60, deadline=None)
@given(cut=real_cuts(), seed=st.integers(0, 1 << 30), data=st.data())
def test_text_of_any_model_joins_right_or_not_at_all(
    habit: Habit, cut: Cut, seed: int, data: st.DataObject
) -> None:  # fmt: skip
    joint = seam("instruction", cut.sent)
    told = cut.sent + fed(joint, pieces_of(data, habit(random.Random(seed), cut)))
    assert cut.whole.startswith(told) if joint.has_diverged else told == cut.whole


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 30), data=st.data())
def test_text_with_repeated_words_joins_right_or_not_at_all(
    kind: Callable[[random.Random], str], habit: Habit, seed: int, data: st.DataObject
) -> None:
    dice = random.Random(seed)
    text = kind(dice)
    cut = Cut(text, text[: dice.randint(1, len(text) - 1)])
    joint = seam("instruction", cut.sent)
    told = cut.sent + fed(joint, pieces_of(data, habit(dice, cut)))
    assert cut.whole.startswith(told) if joint.has_diverged else told == cut.whole


@pytest.mark.parametrize("kind", TEXTS)
def test_text_joins_after_almost_every_character(kind: str) -> None:
    """The model follows the instruction exactly; the text is cut at every seventh character."""
    text = TEXTS[kind]
    cuts = [Cut(text, text[:at]) for at in range(20, len(text), 7)]
    joints = [seam("instruction", cut.sent) for cut in cuts]
    told = [cut.sent + fed(joint, [cut.anchor + cut.rest]) for cut, joint in zip(cuts, joints, strict=True)]
    assert all(joint.has_diverged or text == whole for joint, whole in zip(joints, told, strict=True))
    assert sum(joint.has_diverged for joint in joints) <= 0.05 * len(cuts)


@settings(max_examples=repeated(150), deadline=None)
@given(text=st.text(max_size=60), other=st.text(max_size=60))
def test_text_is_folded_alike_in_one_piece_and_in_many(text: str, other: str) -> None:
    assert folded(text + other) == folded(text) + folded(other) == "".join(map(folded, text + other))
    assert not any(map(str.isspace, folded(text)))


@settings(max_examples=repeated(150), deadline=None)
@given(text=st.text("ab c", max_size=80) | st.text(max_size=80), data=st.data())
def test_end_that_proves_a_join_occurs_once_in_the_text(text: str, data: st.DataObject) -> None:
    known = folded(text)
    length = data.draw(st.integers(1, max(1, len(known))))
    if is_proof(known, length):
        end = known[-length:]
        assert sum(known.startswith(end, at) for at in range(len(known))) == 1
        assert all(end[:-period] != end[period:] for period in range(1, length // 2 + 1))


@pytest.mark.parametrize("resume_mode", BOTH)
@settings(max_examples=100, deadline=None)
@given(sent=st.text("ab ", min_size=1, max_size=2000), new=st.text("ab ", min_size=600, max_size=900))
def test_little_is_held(resume_mode: ResumeMode, sent: str, new: str) -> None:
    joint = seam(resume_mode, sent)
    passed = joint.feed(new)
    is_repeating = sent.strip().startswith(new.strip()[:MOST_HELD])
    assert joint.is_settled or joint.has_diverged or is_repeating or not new.strip()
    assert joint.has_diverged or is_repeating or len(passed) >= len(new) - MOST_HELD


@settings(max_examples=120, deadline=None)
@given(sent=texts() | st.text(max_size=200))
def test_anchor_is_a_bounded_end_of_the_sent_text(sent: str) -> None:
    words = anchor(sent)
    assert given_back(sent).endswith(words)
    assert len(words) >= min(32, len(sent.strip())) or not words
    assert len(words) <= 200
    assert words == words.strip()
    assert bool(words) == bool(sent.strip())
