"""Removes the end of what a model puts around a text that it was to continue: a quotation or a code fence.

How such a wrapping begins is recognised in `dialects.resume.instructed_join`.
"""

from __future__ import annotations

import re
from typing import Protocol

_ENDS = {
    "\u201c": "\u201d", "\u201e": "\u201c\u201d", "\u00ab": "\u00bb", "\u2039": "\u203a",
    "\u300c": "\u300d", "\u300e": "\u300f",
}  # fmt: skip
_MARKS = frozenset("".join([*_ENDS, *_ENDS.values()]))
_INCHES = re.compile(r"\d[\"\u201d]")
FENCE = re.compile(r"`{3,}|~{3,}")
"""The marks of a code fence."""
_FENCE_LINE = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)")
_MAYBE_FENCE = re.compile(r" {0,3}(?:`{0,2}|~{0,2}|(?:`{3,}|~{3,})[ \t\r]*)")


class Rest(Protocol):
    """The text after a join."""

    has_diverged: bool
    """True if the last characters may or may not belong to the wrapping: nothing more may be passed on."""

    def feed(self, text: str) -> str: ...
    def end(self) -> str: ...


class Bare:
    """A text without a wrapping."""

    has_diverged = False

    def feed(self, text: str) -> str:
        return text

    def end(self) -> str:
        return ""


def closers_of(quote: str) -> str:
    """The marks that may end a quotation which begins with this one."""
    return _ENDS.get(quote, quote) + '"'


class Quoted:
    """A text after an opening quotation mark. Drops the mark at its end, unless it may be the text's own: then it is
    unclear whether the wrapping was closed, and the end of the text is unknown."""

    def __init__(self, sent: str, quote: str, *, is_own: bool) -> None:
        """`is_own`: the sent text has the opening mark before the same words as well."""
        self._closers = closers_of(quote)
        self._text = sent
        self._is_own = is_own
        self._held = ""
        self.has_diverged = False

    def feed(self, text: str) -> str:
        passed = ""
        for char in text:
            if char in self._closers:
                passed, self._held = passed + self._held, char
            elif self._held and char.isspace():
                self._held += char
            else:
                passed, self._held = passed + self._held + char, ""
        self._text += passed
        return passed

    def end(self) -> str:
        held, self._held = self._held, ""
        self.has_diverged = bool(held) and (self._is_own or _may_belong_to(self._text, held[0]))
        return ""


def _may_belong_to(text: str, mark: str) -> bool:
    """True if a mark after the text may be the text's own: one of its quotations is open, or the mark may be an
    apostrophe, inches, or the beginning of another quotation."""
    before = text[-1:]
    if mark in "'`" or before.isspace() or before in "([{=" or (before.isdigit() and _INCHES.search(text) is not None):
        return True
    return _has_open(text) or _has_open(text.rpartition("\n\n")[2])


def _has_open(text: str) -> bool:
    """True if any quotation in the text has not been closed."""
    if text.count('"') % 2 == 1:
        return True
    opened: list[str] = []
    for char in filter(_MARKS.__contains__, text):
        if opened and char in _ENDS[opened[-1]]:
            opened.pop()
        elif char in _ENDS:
            opened.append(char)
    return bool(opened)


class Fenced:
    """A text after an opening code fence. Drops the fence that ends it, but not one that ends a block of the text.

    Where a fence may be either, and text follows it, the text ends. It also ends at a fence in the line of its last
    words.
    """

    def __init__(self, sent: str, mark: str) -> None:
        self._mark = mark
        *lines, self._line = sent.split("\n")
        self._open = ""
        """The fence of the text's own open block; "" if none."""
        for line in lines:
            self._note(line)
        self._held = ""
        self._is_ended = False
        self.has_diverged = False

    def feed(self, text: str) -> str:
        return "".join(map(self._take, text))

    def end(self) -> str:
        held = self._release("")
        if self._may_end():
            return ""
        self.has_diverged = self._is_mark(held)
        return "" if self.has_diverged else held

    def _take(self, char: str) -> str:
        """Takes a character; returns the text that can now be passed on."""
        if self._is_ended or (self._line[-1:].isspace() and self._may_end()):
            self.has_diverged = not char.isspace()
        if self._is_ended or self.has_diverged:
            return ""
        if char == "\n":
            return self._end_line()
        self._line += char
        is_mark = char == self._mark[0] or (char.isspace() and self._held.strip() != "")
        return self._hold(char) if is_mark or _MAYBE_FENCE.fullmatch(self._line) else self._release(char)

    def _end_line(self) -> str:
        self._is_ended = self._may_end()
        if self._is_ended:
            return ""
        self._note(self._line)
        self._line = ""
        if self._is_mark(self._held):
            return self._hold("\n")
        passed = self._release("")
        self._held = "\n"
        return passed

    def _hold(self, char: str) -> str:
        self._held += char
        return ""

    def _release(self, char: str) -> str:
        held, self._held = self._held, ""
        return held + char

    def _may_end(self) -> bool:
        """True if the last line is a fence that does not end a block of the text itself."""
        found = _FENCE_LINE.fullmatch(self._line.rstrip())
        return found is not None and not self._open and found[1].startswith(self._mark) and not found[2]

    def _is_mark(self, held: str) -> bool:
        """Whether what is held may be the fence that ends the text, behind words in its line."""
        mark = held.strip()
        return not self._open and mark.startswith(self._mark) and not mark.strip(self._mark[0])

    def _note(self, line: str) -> None:
        found = _FENCE_LINE.fullmatch(line)
        if found is None:
            return
        if not self._open:
            self._open = found[1]
        elif found[1].startswith(self._open) and not found[2].strip():
            self._open = ""
