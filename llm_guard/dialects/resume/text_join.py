"""Finds where one text continues another: the part of a new text that a client does not have yet.

Also words the instruction to continue. Which texts a stream has is in `dialects.resume.chat` and its siblings.
"""

from __future__ import annotations

from typing import Protocol

from llm_guard.dialects.resume.instructed_join import InstructedJoin
from llm_guard.dialects.resume.overlap import UNSPACED, folded, is_at_same_place, is_proof
from llm_guard.dialects.resume.transcript import ResumeMode

LEAST_ECHO = 8
"""In characters. A shorter beginning that comes again may be new text: `#` and `#` are `##`."""

_ANCHOR_LEAST = 32
_ANCHOR_MOST = 200
_APOSTROPHES = "'\u2019"


class TextJoin(Protocol):
    """Takes a new text piece by piece. The result does not depend on how it is cut into pieces."""

    has_diverged: bool
    """True if the new text repeats nothing, or something else than what was sent: nothing more of it may be passed on.
    """

    @property
    def is_settled(self) -> bool:
        """True if the join is known: all further text is new, except for the end of a wrapping."""

    @property
    def is_searching(self) -> bool:
        """True while text is buffered that may or may not join. The caller must limit how long that lasts."""

    def feed(self, text: str) -> str:
        """Takes a piece of text and returns what is new to the client; "" while that is undecided and the text is
        buffered."""

    def end(self) -> str:
        """Ends the text and returns the buffered part that is new."""


def seam(resume_mode: ResumeMode, sent: str) -> TextJoin:
    """Joins a text that was requested in this mode to the text that was sent."""
    if resume_mode == "restart":
        return _Repeated(sent)
    given = given_back(sent)
    return _Prefilled(sent) if resume_mode == "prefill" or not given else InstructedJoin(sent, given, anchor(sent))


def given_back(sent: str) -> str:
    """The text as a request contains it, without trailing whitespace: Anthropic refuses that (400, "final assistant
    content cannot end with trailing whitespace"), and models trained on tokens that begin with a space produce nonsense
    after it."""
    return sent.rstrip()


def anchor(sent: str) -> str:
    """The words that the model is to repeat: the last 32 characters of `given_back`, completed to whole words, and more
    until they prove where the text continues, 200 at most; the whole text if it is shorter."""
    text = given_back(sent)
    known = folded(text)
    tail = text[-_ANCHOR_MOST:]
    offset = len(text) - len(tail)
    starts = range(len(tail) - _ANCHOR_LEAST, -1, -1)
    begins = [at for at in starts if tail[at].isalnum() and _begins_word(text, offset + at)]
    proofs = (at for at in begins if _is_unmistakable(known, len(folded(tail[at:]))))
    start = next(proofs, 0 if len(begins) == 0 or not offset else begins[-1])
    return tail[start:].lstrip()


def _is_unmistakable(known: str, length: int) -> bool:
    """True if only a repetition can begin with the last `length` folded characters, even in similar rows."""
    return is_proof(known, length) and not is_at_same_place(known, len(known) - length)


def instruction_text(anchor: str) -> str:
    """The user message that asks the model to continue the assistant's last message. The words to be repeated stand on
    a line of their own: quotation marks would be repeated with them."""
    return (
        "Your last message was cut off. Continue it exactly where it stops, in the same language, style and format. "
        "Do not start over, and do not introduce, explain or comment on anything. "
        "Begin by repeating verbatim the last words that you wrote, with nothing before them (no quotation marks, no "
        f"dots, no code fence), then go on from there. They are:\n{anchor}"
    )


class _Repeated:
    """Joins a text that starts over: it must repeat all that was sent, and then continues."""

    is_searching = False

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
    """Drops the whitespace at the end of what was sent, which was not part of the request, if the new text begins with
    it or with other whitespace."""

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
    """Joins a text that continues after a prefill. Mistral repeats the prefill first (vercel/ai#3256)."""

    has_diverged = False
    is_searching = False

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
        """Returns the buffered text that looked like a repetition and is none."""
        held = self._given[: self._repeated] if self._may_repeat else ""
        self._may_repeat = False
        return held

    def _pass(self, text: str) -> str:
        new = self._gap.feed(text)
        self.is_settled = self._gap.is_settled
        return new


def _begins_word(text: str, at: int) -> bool:
    """True if a word begins at this place of the text. In scripts without spaces, any two characters count as one."""
    char, before = text[at], text[at - 1] if at else " "
    if char.isspace() or before.isspace():
        return not char.isspace()
    if UNSPACED.match(char):
        return len(text) - at > 1
    return char.isalnum() and not (before.isalnum() or before == "_" or before in _APOSTROPHES)
