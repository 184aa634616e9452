"""Where one text goes on from another: what of a new text a client does not have yet.

Owns how a second stream's text is joined to what was sent, and the words in which a model is asked to go on. Does not
own which texts of a stream there are (`dialect.chat_continuation` and its siblings).
"""

from __future__ import annotations

import re
from typing import Protocol

from llm_guard.dialect.continuation import Manner

LEAST_ECHO = 8
"""Characters. A shorter beginning that comes again may as well be new: `#` and `#` are `##`."""

_ANCHOR_LEAST = 32
_ANCHOR_MOST = 80
_REACH = 400
"""Characters. An overlap is no longer than this, unless the whole text comes again."""
_OVERLAP = 8
_RESTART = 40
"""Characters with which a new text shows that it begins where the old one did."""

# Scripts that put no space between words: Thai to Burmese, Khmer, Chinese, Japanese and their punctuation.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u2e80-\uabff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
# A cut number is no rarer than a number before a number; `example.com` and `12:30` are no ends of sentences.
_APART = re.compile(r"(?!\d\d)[^\W_][^\W_]|[,;:!?][^\W\d_]|\.[A-Z]")
_APOSTROPHES = "'\u2019"


class Seam(Protocol):
    """Takes a new text piece by piece. However it is cut into pieces, what is passed on is the same."""

    is_settled: bool
    """Nothing is held any more: every further text is new."""
    has_diverged: bool
    """The new text repeats something else than what was sent: nothing of it may be passed on any more."""

    def feed(self, text: str) -> str:
        """What is new to the client; "" while that is not known yet: the text is held."""

    def end(self) -> str:
        """No more text comes: what was still held and is new."""


def seam(manner: Manner, sent: str) -> Seam:
    """Joins a text that was asked for in this manner to the one that was sent."""
    if manner == "restart":
        return _Repeated(sent)
    return _Prefilled(sent) if manner == "prefill" else _Instructed(sent)


def given_back(sent: str) -> str:
    """The text as a request gives it back: Anthropic refuses one that ends in whitespace (400, "final assistant
    content cannot end with trailing whitespace"), and models trained on tokens that begin with a space go astray."""
    return sent.rstrip()


def anchor(sent: str) -> str:
    """The last words of what is given back: 32 characters, and those that complete the first word, 80 at most; the
    whole text if it is shorter."""
    text = given_back(sent)
    tail = text[-_ANCHOR_MOST:]
    offset = len(text) - len(tail)
    enough = (at for at in range(len(tail) - _ANCHOR_LEAST, -1, -1) if _begins_word(text, offset + at))
    start = next(enough, None)
    if start is None:
        start = len(tail) - _ANCHOR_LEAST if offset else 0
    return tail[start:].lstrip()


def instruction_text(anchor: str) -> str:
    """What a user says to have the assistant's last message gone on with. The words to be repeated stand on a line of
    their own: quotation marks would come back with them."""
    return (
        "Your last message was cut off. Continue it exactly where it stops, in the same language, style and format. "
        "Do not start over, and do not introduce, explain or comment on anything. "
        f"Begin by repeating verbatim the last words that you wrote, then go on from there. They are:\n{anchor}"
    )


class _Repeated:
    """The new text is all that was sent, and then more."""

    def __init__(self, sent: str) -> None:
        self._sent = sent
        self._at = 0
        self.is_settled = not sent
        self.has_diverged = False

    def feed(self, text: str) -> str:
        if self.is_settled or self.has_diverged:
            return "" if self.has_diverged else text
        known = text[: len(self._sent) - self._at]
        self.has_diverged = not self._sent.startswith(known, self._at)
        self._at += len(known)
        self.is_settled = self._at == len(self._sent) and not self.has_diverged
        return text[len(known) :] if self.is_settled else ""

    def end(self) -> str:
        self.has_diverged = not self.is_settled
        return ""


class _Gap:
    """The whitespace at the end of what was sent, which was not given back and may come again: it is dropped, and so is
    any other that comes in its place."""

    def __init__(self, sent: str) -> None:
        self._lost = sent[len(given_back(sent)) :]
        self._came = ""
        self.is_settled = not self._lost

    def feed(self, text: str) -> str:
        for at, char in enumerate(text):
            if self.is_settled or not self._drops(char):
                self.is_settled = True
                return text[at:]
        return ""

    def _drops(self, char: str) -> bool:
        self._came += char
        if self._lost.startswith(self._came):
            self.is_settled = self._came == self._lost
        elif char.isspace():
            self._lost = self._came = ""
        else:
            return False
        return True


class _Prefilled:
    """The new text goes on behind what was given back. Mistral repeats that first (vercel/ai#3256)."""

    has_diverged = False

    def __init__(self, sent: str) -> None:
        self._given = given_back(sent)
        self._gap = _Gap(sent)
        self._repeated = 0
        self._may_repeat = len(self._given) >= LEAST_ECHO
        self.is_settled = not self._may_repeat and self._gap.is_settled

    def feed(self, text: str) -> str:
        if self._may_repeat:
            known = text[: len(self._given) - self._repeated]
            if self._given.startswith(known, self._repeated):
                self._repeated += len(known)
                self._may_repeat = self._repeated < len(self._given)
                text = text[len(known) :]
            else:
                text = self._unheld() + text
        return "" if self._may_repeat else self._pass(text)

    def end(self) -> str:
        new = self._pass(self._unheld())
        self.is_settled = True
        return new

    def _unheld(self) -> str:
        """What looked like a repetition and is none."""
        held = self._given[: self._repeated] if self._may_repeat else ""
        self._may_repeat = False
        return held

    def _pass(self, text: str) -> str:
        new = self._gap.feed(text)
        self.is_settled = self._gap.is_settled
        return new


class _Instructed:
    """The new text should begin with the anchor. Else the longest end of what was sent with which it begins is the
    overlap; one that begins where the first text did is a second run of it all.

    Only an overlap that begins with a word, or is of 8 characters, counts. A word that was cut is one: `incred` and
    `incredible`. What begins with neither is new; whether `incred` and `ible` belong together cannot be told from
    `cat` and `sat`, and as models rarely begin within a word, a space goes between them.
    """

    def __init__(self, sent: str) -> None:
        self._sent = sent
        self._given = given_back(sent)
        self._first = len(self._given) - len(self._given.lstrip())
        self._anchor = len(self._given) - len(anchor(sent))
        nearby = range(max(self._first, len(self._given) - _REACH), len(self._given))
        self._possible = sorted({self._first, *(at for at in nearby if self._counts(at))})
        """Where in what was sent the new text may begin."""
        self._found: int | None = None
        self._blank = ""
        self._held = ""
        self._rest: _Gap | _Repeated | None = None
        self.is_settled = not self._given
        self.has_diverged = False

    def feed(self, text: str) -> str:
        new = ""
        for at, char in enumerate(text):
            if self._rest is not None:
                return new + self._pass(text[at:])
            if self.is_settled:
                return text
            new += self._take(char)
        return new

    def end(self) -> str:
        new = self._join() if self._rest is None and not self.is_settled else ""
        if isinstance(self._rest, _Repeated):
            self._rest.end()
            self.has_diverged = self._rest.has_diverged
        self.is_settled = not self.has_diverged
        return new

    def _counts(self, at: int) -> bool:
        if self._given[at].isspace():
            return False
        return len(self._given) - at >= _OVERLAP or _begins_word(self._given, at)

    def _take(self, char: str) -> str:
        if not self._held and char.isspace():
            self._blank += char
            return self._join() if len(self._blank) > _REACH else ""
        at = len(self._held)
        self._held += char
        reached = [start for start in self._possible if self._given[start + at] == char]
        self._possible = [start for start in reached if start + at + 1 < len(self._given)]
        if len(self._possible) < len(reached):
            self._found = reached[-1]
        if not self._possible or self._found == self._anchor:
            return self._join()
        if self._possible == [self._first]:
            return self._begin_again()
        return ""

    def _begin_again(self) -> str:
        """What can only be the beginning of the whole text: an overlap as long as this is the likelier of the two."""
        if self._found is not None and len(self._given) - self._found >= _RESTART:
            return self._join()
        if len(self._held) < _RESTART:
            return ""
        self._rest = _Repeated(self._sent[self._first :])
        return self._pass(self._held)

    def _join(self) -> str:
        """It is known where the new text begins: passes on what of it is held."""
        self._rest = _Gap(self._sent)
        if self._found is not None:
            return self._pass(self._held[len(self._given) - self._found :])
        between = " " if not self._blank and self._is_apart(self._held[:1]) else ""
        return self._pass(between + self._blank + self._held)

    def _is_apart(self, char: str) -> bool:
        last = self._sent[-1]
        if _UNSPACED.match(last) or _UNSPACED.match(char) or self._sent.count("```") % 2:
            return False
        return _APART.fullmatch(last + char) is not None

    def _pass(self, text: str) -> str:
        assert self._rest is not None  # noqa: S101  # the callers have set it
        new = self._rest.feed(text)
        self.is_settled = self._rest.is_settled
        self.has_diverged = isinstance(self._rest, _Repeated) and self._rest.has_diverged
        return new


def _begins_word(text: str, at: int) -> bool:
    """Whether an end of the text that begins here begins with a word. Where words are not told apart by spaces, any two
    characters do."""
    char, before = text[at], text[at - 1] if at else " "
    if char.isspace() or before.isspace():
        return not char.isspace()
    if _UNSPACED.match(char):
        return len(text) - at > 1
    return char.isalnum() and not (before.isalnum() or before == "_" or before in _APOSTROPHES)
