"""Joins a text that was requested by an instruction: finds where its beginning repeats the end of what was sent.

Models that are to repeat the last words do so after a preamble, in quotation marks, in a code fence, with dots before
them, or in another case; or they repeat more, or less. Others do not repeat, start over or refuse: such a text cannot
be distinguished from a continuation, and is not joined.

The proof of an overlap is in `dialects.resume.overlap`, what may precede one in `dialects.resume.preamble`, the end of
a wrapping in `dialects.resume.wrapping`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from llm_guard.dialects.resume.overlap import (
    LEAST_WEIGHT,
    QUOTES,
    common_end,
    folded,
    is_at_same_place,
    is_proof,
    is_telling,
    weight,
)
from llm_guard.dialects.resume.preamble import MOST_PREAMBLE, Preamble, lead_of
from llm_guard.dialects.resume.wrapping import FENCE, Bare, Fenced, Quoted, Rest, closers_of

MOST_HEAD = 600
"""Number of characters within which a repetition must end, or be in progress."""
_SHORTEST = 6
"""In folded characters: a shorter overlap proves nothing, and is not examined."""
_COMPARED = 64
"""Folded characters of the repeated words that are compared to detect a second repetition."""
_REMARK = 100
"""In characters. If the words come again this soon after a repetition that follows a preamble, the first was part of a
remark, such as "I stopped at ...".
"""
_TOLD = 20
"""Folded characters of what was sent by which a text that restates it is recognised."""
_STYLE = 4000
"""Characters at the end of the text that show how it breaks its lines."""

_LEAST_PARTIAL_WEIGHT = 20
"""For a repetition that is shorter than the anchor: a text itself may repeat a clause of 16 directly."""
_FEW = 2
_MOST_FEW = 200
"""Maximum folded characters of a repetition that is shorter than the anchor."""
_ROW_MARKS = tuple("|-*+>#\u2022")
"""A line that begins with one of these is a row of a table or a list: the next row may be the same."""
_PUNCTUATION = ".,;:!?\u2026"
_MARKS = '".'
"""Folded characters that may precede words that come again."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A repetition that ends before the character `at` of the head."""

    at: int
    lead: Preamble
    words: str
    """The first of the repeated words, folded."""


@dataclass(slots=True)
class _Following:
    """A repetition that is longer than a head may be."""

    at: int
    """Position in the known text (folded) up to which it has come."""
    lead: Preamble
    words: str


class InstructedJoin:
    """Implements `text_join.TextJoin` for a text that was requested by an instruction."""

    def __init__(self, sent: str, given: str, anchor: str) -> None:
        """`given` is `sent` as the request contains it, `anchor` its end that the model is to repeat."""
        self._sent = sent
        self._lost = sent[len(given) :]
        self._known = folded(given)
        self._anchor = len(folded(anchor))
        line = given[given.rfind("\n") + 1 :]
        self._line = len(folded(line))
        """Folded characters of the last line. If it comes again as a whole, it may be the next one."""
        self._is_row = line.lstrip().startswith(_ROW_MARKS)
        self._head = ""
        self._came = ""
        """The head, folded."""
        self._starts: list[int] = []
        """Index in the head of each character of `_came`."""
        self._found: _Found | None = None
        self._following: _Following | None = None
        self._rest: Rest | None = None
        self.has_diverged = False

    @property
    def is_settled(self) -> bool:
        return self._rest is not None and not self.has_diverged

    @property
    def is_searching(self) -> bool:
        is_over = self._rest is not None or self.has_diverged
        return bool(self._head) and not is_over and self._following is None

    def feed(self, text: str) -> str:
        new = ""
        for at, char in enumerate(text):
            if self.has_diverged and not new:
                return ""
            if self._rest is not None:
                return new + self._pass(self._rest, text[at:])
            new = self._take(char)
        return new

    def end(self) -> str:
        new = "" if self.has_diverged or self._rest is not None else self._consider(is_over=True)
        if self._rest is None:
            self.has_diverged = True
        if self.has_diverged or self._rest is None:
            return ""
        new += self._rest.end()
        self.has_diverged = self._rest.has_diverged
        return new

    # search

    def _take(self, char: str) -> str:
        """Takes a character; returns the text that is now known to be new."""
        came = folded(char)
        if self._following is not None:
            self._follow(self._following, came)
            return ""
        self._head += char
        self._starts += [len(self._head) - 1] * len(came)
        self._came += came
        new = self._consider(is_over=False) if self._found is not None else ""
        if self._found is None and came and self._came.endswith(self._known[-_SHORTEST:]):
            self._found = self._look()
        if self._found is None and len(self._head) >= MOST_HEAD:
            self._following = self._find_under_way()
            self.has_diverged = self._following is None
        return new

    def _look(self) -> _Found | None:
        """The repetition that ends at the current end of the head, if it proves where the text continues."""
        length = common_end(self._came, self._known)
        begin = len(self._known) - length
        if is_at_same_place(self._known, begin):
            return None
        if length != self._anchor and (self._has_come_to_next_row(begin) or (self._is_row and length >= self._line)):
            return None
        marks = _marks_before_a_word(self._came[len(self._came) - length :])
        for words in range(length, length - marks - 1, -1):
            at = len(self._came) - words
            lead = self._lead(at, len(self._known) - words)
            if lead is not None and self._is_safe(lead, at, words) and self._is_proof(words):
                return _Found(len(self._head), lead, self._came[at : at + _COMPARED])
        return None

    def _has_come_to_next_row(self, begin: int) -> bool:
        """In texts with similar rows: True if a text that repeats only the last few characters and continues from there
        would reach the same place of the next row as a repetition that begins at `begin`."""
        repeated = (few for few in range(1, _FEW + 1) if self._known.endswith(self._known[begin : begin + few]))
        return any(is_at_same_place(self._known, begin + few) for few in repeated)

    def _is_proof(self, words: int) -> bool:
        """True if a repetition of this length is a proof. One shorter than the anchor is not if its second half has
        occurred before: such a text may repeat all of it."""
        half = self._known[len(self._known) - words // 2 :]
        end = self._known[len(self._known) - words :]
        is_new = self._known.find(half) == len(self._known) - len(half) and weight(end) >= _LEAST_PARTIAL_WEIGHT
        return (words >= self._anchor or is_new) and is_proof(self._known, words)

    def _is_safe(self, lead: Preamble, at: int, words: int) -> bool:
        """True if a repetition after a preamble is trustworthy: the whole anchor must come, and the preamble must be
        one. A text that says other parts of what was sent, or in another order, restates it; one that begins with the
        last few words is a shorter repetition, after which the text itself may say the anchor once more; and verses may
        look like a preamble before a refrain."""
        if not lead.has_preamble:
            return True
        if _begins_with_end_of(self._came[:at], self._known) or (lead.is_open and words >= self._line):
            return False
        before = self._came[:at].replace(self._came[at:], "")
        windows = (before[start : start + _TOLD] for start in range(len(before) - _TOLD + 1))
        is_whole = words >= self._anchor and weight(self._known[len(self._known) - words :]) >= LEAST_WEIGHT
        return is_whole and not any(window in self._known for window in windows)

    def _lead(self, at: int, begin: int) -> Preamble | None:
        """Lead of a repetition that begins at `at` in the received text, and at `begin` in the known text. A quotation
        mark or a fence at its beginning may be the model's, too: an anchor begins with a word."""
        start = self._starts[at]
        lead = lead_of(self._head[:start])
        if lead is None:
            return None
        if lead.quote:
            is_own = begin != len(self._known) - self._anchor and self._known[:begin].endswith('"')
            return replace(lead, is_own_quote=is_own)
        if lead.fence or begin == len(self._known) - self._anchor:
            return lead
        fence = FENCE.match(self._head, start)
        quote = self._head[start] if self._head[start] in QUOTES else ""
        return replace(lead, quote=quote, is_own_quote=bool(quote), fence=fence[0] if fence is not None else "")

    def _find_under_way(self) -> _Following | None:
        """A repetition of earlier words, or of the whole text, that has not reached its end."""
        for at, start in enumerate(self._starts):
            if start > MOST_PREAMBLE:
                break
            came = self._came[at:]
            place = self._known.find(came)
            lead = self._lead(at, place) if place >= 0 else None
            if lead is not None and self._known.find(came, place + 1) < 0:
                return _Following(place + len(came), lead, came[:_COMPARED])
        return None

    def _follow(self, following: _Following, came: str) -> None:
        self.has_diverged = not self._known.startswith(came, following.at)
        following.at += len(came)
        if following.at == len(self._known) and not self.has_diverged:
            self._head = self._came = ""
            self._starts = []
            self._following = None
            self._found = _Found(0, following.lead, following.words)

    # join

    def _consider(self, *, is_over: bool) -> str:
        """The new text after the repetition that was found; "" while more of the text must be seen."""
        if self._found is None:
            return ""
        found, after = self._found, self._head[self._found.at :]
        if _is_only_quoted(found.lead, after):
            self._found = None
            return ""
        if _comes_again(found, after) or len(after) > MOST_HEAD:
            self.has_diverged = True
            return ""
        if not is_over and _must_wait(found, after):
            return ""
        if found.lead.has_preamble and is_over and _is_over_soon(after):
            self.has_diverged = True
            return ""
        new = behind(self._sent, self._lost, after)
        if new is None:
            self.has_diverged = True
            return ""
        self._rest = _rest_of(found.lead, self._sent)
        return self._pass(self._rest, new)

    def _pass(self, rest: Rest, text: str) -> str:
        new = rest.feed(text)
        self.has_diverged = rest.has_diverged
        return new


def behind(sent: str, lost: str, after: str) -> str | None:
    """The text to append to what was sent, whose trailing whitespace (`lost`) was not part of the request; None if the
    two texts disagree on the whitespace between them in a way that may matter."""
    text = after.lstrip()
    blank = after[: len(after) - len(text)]
    if not text:
        return after.removeprefix(lost) if after.startswith(lost) else ""
    if not lost:
        return after if "\n" not in blank or _may_break(sent, blank, text) else None
    if blank.startswith(lost):
        return after[len(lost) :]
    is_alike = lost.endswith("\n") if "\n" in lost else "\n" not in blank
    return text if is_alike else None


def _may_break(sent: str, blank: str, text: str) -> bool:
    """True if a new line may begin after what was sent. Models put words that they repeat on a line of their own, and
    then break words and sentences in two."""
    last = sent[-1]
    if last.isalnum() and text[0].isalnum():
        return False
    like_it = r"[^\W_]" if last.isalnum() else re.escape(last)
    is_single = blank.count("\n") == 1
    return not is_single or re.search(like_it + r"\r?\n(?!\r?\n)", sent[-_STYLE:]) is not None


def _is_only_quoted(lead: Preamble, after: str) -> bool:
    """True if the quotation ends with the words: what follows is a remark on them, or may be one."""
    return bool(lead.quote) and after.lstrip(_PUNCTUATION).startswith(tuple(closers_of(lead.quote)))


def _comes_again(found: _Found, after: str) -> bool:
    came, words = folded(after), found.words.lstrip(_MARKS)
    return words in came if found.lead.has_preamble else came.lstrip(_MARKS).startswith(words)


def _must_wait(found: _Found, after: str) -> bool:
    """True if the next characters may show that these were not the repeated words, or not the last ones."""
    if found.lead.has_preamble:
        return len(after) < len(found.words) + _REMARK
    if found.lead.quote and not after.lstrip(_PUNCTUATION):
        return True
    return found.words.lstrip(_MARKS).startswith(folded(after).lstrip(_MARKS))


def _is_over_soon(after: str) -> bool:
    """True if all that follows the words after a preamble may be the end of the remark that contained them: nothing, or
    one more paragraph."""
    return not any(map(str.isalnum, after)) or after.lstrip(_PUNCTUATION + " ").startswith("\n")


def _rest_of(lead: Preamble, sent: str) -> Rest:
    if lead.fence:
        return Fenced(sent, lead.fence)
    return Quoted(sent, lead.quote, is_own=lead.is_own_quote) if lead.quote else Bare()


def _begins_with_end_of(came: str, known: str) -> bool:
    """True if a text begins with the end of another, even if it is too short for a proof."""
    text = came.lstrip(_MARKS)
    lengths = range(_FEW, min(len(text), _MOST_FEW) + 1)
    return any(known.endswith(text[:length]) and is_telling(text[:length]) for length in lengths)


def _marks_before_a_word(text: str) -> int:
    """Number of marks before the first word: a preamble may end in the mark with which the repetition begins."""
    return next((at for at, char in enumerate(text) if char.isalnum()), 0)
