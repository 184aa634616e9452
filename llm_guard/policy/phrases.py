"""Whether a provider's sentence says a known thing.

Owns how a sentence and a phrase are made comparable, and their comparison, in time linear to the sentence. Does not own
the phrases. A phrase is words and `*`, never a regular expression: nobody's rule can make the gateway hang.
"""

from __future__ import annotations

import re

MAX_MESSAGE_CHARS = 2000
"""No more of a sentence is compared: what a provider means it says first, what a caller wrote is echoed last."""

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)""")


def words_of(sentence: str, *, without_quotes: bool = False) -> str:
    """The sentence in lower case, its words one space apart, a space at either end; "" where there is no word.

    `without_quotes` leaves out what stands in quotes and has more than one word: in the answer to a bad request
    that is mostly the caller's own text.
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
    """Words with `*` for any text, also none; case, punctuation and the number of spaces do not matter.

    Without a `*` at its ends a phrase is the whole sentence. A `*` that touches a word stands for the rest of it too:
    `*limit*` finds "limits", `* limit *` does not.
    """

    __slots__ = ("_ends_open", "_pieces", "_starts_open", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        raw = pattern.split("*")
        pieces = [_piece(part, index == 0, index == len(raw) - 1) for index, part in enumerate(raw)]
        self._starts_open = not pieces[0]
        self._ends_open = not pieces[-1]
        self._pieces = tuple(piece for piece in pieces if piece)

    def matches(self, words: str) -> bool:
        """Whether a sentence, as `words_of` gives it, says this."""
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
        """Words that every matching sentence has, whole; empty where none is sure."""
        found = []
        for piece in self._pieces:
            # A script without spaces has no whole words to look up.
            if piece.isascii():
                words = piece.strip().split(" ")
                found += words[piece[0] != " " : len(words) - (piece[-1] != " ")]
        return tuple(found)


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
