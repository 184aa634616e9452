"""Compares a provider's sentence with known phrases, in time linear in the sentence.

A phrase is words and `*`, never a regular expression: no rule can make the gateway hang.
"""

from __future__ import annotations

import re

MAX_MESSAGE_CHARS = 2000
"""Only this much of a sentence is compared: providers put their point first, and echo the caller's text last."""

_WORD = re.compile(r"\w+")
# Each alternative begins with its quotation mark: a search for a set of characters is many times faster.
_QUOTED = re.compile(r"""'(?<!\w')[^']*'(?!\w)|"(?<!\w")[^"]*"(?!\w)|`(?<!\w`)[^`]*`(?!\w)""")


def words_of(sentence: str, *, without_quotes: bool = False) -> str:
    """Returns the sentence in lower case, with single spaces between its words and at both ends; "" without words.

    `without_quotes` removes quotations of more than one word: in the response to a bad request they are mostly the
    caller's own text.
    """
    sentence = sentence[:MAX_MESSAGE_CHARS]
    if without_quotes:
        sentence = _QUOTED.sub(_unquoted, sentence)
    words = _WORD.findall(sentence.lower())
    return f" {' '.join(words)} " if words else ""


def _unquoted(match: re.Match[str]) -> str:
    quoted = match[0]
    return " " if " " in quoted.strip("'\"` ") else quoted


class Phrase:
    """Words with `*` for any text or none; case, punctuation and the number of spaces do not matter.

    Without a `*` at its ends a phrase must be the whole sentence. A `*` that touches a word also stands for the rest of
    that word: `*limit*` finds "limits", `* limit *` does not.
    """

    __slots__ = ("_ends_open", "_is_part", "_pieces", "_starts_open", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        raw = pattern.split("*")
        pieces = [_piece(part, index == 0, index == len(raw) - 1) for index, part in enumerate(raw)]
        self._starts_open = not pieces[0]
        self._ends_open = not pieces[-1]
        self._pieces = tuple(piece for piece in pieces if piece)
        self._is_part = self._starts_open and self._ends_open and len(self._pieces) == 1

    def matches(self, words: str) -> bool:
        """Returns whether a sentence, as returned by `words_of`, matches this phrase."""
        if self._is_part:  # as most are
            return self._pieces[0] in words
        at = 0
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            if index == 0 and not self._starts_open:
                found = 0 if words.startswith(piece) else -1
                if last == 0 and not self._ends_open and words != piece:
                    return False
            elif index == last and not self._ends_open:
                found = len(words) - len(piece) if words.endswith(piece) else -1
            else:
                found = words.find(piece, at)
            if found < at:
                return False
            at = found + len(piece) - (piece[-1] == " ")
        return True

    @property
    def anchors(self) -> tuple[str, ...]:
        """Whole words that every matching sentence must have; empty if there is none."""
        found = []
        for piece in self._pieces:
            # A script without spaces has no whole words to look up.
            if piece.isascii():
                words = piece.strip().split(" ")
                found += words[piece[0] != " " : len(words) - (piece[-1] != " ")]
        return tuple(found)

    @property
    def part(self) -> str:
        """The longest text that every matching sentence must have; "" for a phrase without words."""
        return max(self._pieces, key=len, default="")


def _piece(raw: str, is_first: bool, is_last: bool) -> str:
    words = _WORD.findall(raw.lower())
    if not words:
        return ""
    text = " ".join(words)
    left = " " if is_first or not _touches(raw[0]) else ""
    right = " " if is_last or not _touches(raw[-1]) else ""
    return f"{left}{text}{right}"


def _touches(edge: str) -> bool:
    return edge.isalnum() or edge == "_"
