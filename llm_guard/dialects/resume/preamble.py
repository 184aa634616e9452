"""Recognises what a model puts before the words that it repeats: a preamble, dots, a quotation mark, a code fence.

The repetition itself is found in `dialects.resume.instructed_join`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_guard.dialects.resume.overlap import QUOTES

MOST_PREAMBLE = 300
"""Maximum length in characters."""
_MOST_LINES = 2
"""Maximum number of lines of a preamble, without empty ones."""

_DOTS = re.compile(r"(?:\s|\.{2,}|\u2026|\[(?:\.{3}|\u2026)\]|\((?:\.{3}|\u2026)\))*\Z")
_FENCE = re.compile(r"(?:\A|\n)[ \t]*(`{3,}|~{3,})[\w.+#-]*[ \t]*\Z")
_ENDS = tuple(".!?:\u2026\u3002\uff01\uff1a\uff1f\u0964\u061f")
"""A preamble ends in one of these, or before a new line."""
_ENDS_UNCASED = (":", "\uff1a", "\u2026")
"""In scripts without capital letters: there the end of the sentence that was cut looks like a sentence of its own."""
_GO_ON = frozenset("|,;{}<>=+\\/&\t\u3001\uff0c\uff1b")
"""A line that ends in one of these is a table row or code, not a remark to the reader."""
_CONTINUED = re.compile("[.!?\u2026\u3002\uff01\uff1f]\\s*[,;\u3001\uff0c\uff1b]")
"""A sentence of a remark does not begin with a comma: the rest of a sentence that was cut does."""
_MARKUP = "*_#([\u00a1\u00bf" + QUOTES
"""A preamble may begin with one of these."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """The text before a repetition."""

    has_preamble: bool = False
    quote: str = ""
    """The quotation mark that was opened before it."""
    is_own_quote: bool = False
    """True if the sent text has a quotation mark there as well."""
    fence: str = ""
    """The marks of the code fence that was opened before it."""
    is_open: bool = False
    """True if only a new line ends the preamble, as it ends a verse."""


def lead_of(text: str) -> Preamble | None:
    """Parses `text` as the lead of a repetition; None if it stops in the middle of a sentence, or in a mark that would
    have to be closed again."""
    core, dots = _without_dots(text)
    quote = core[-1:] if core[-1:] in QUOTES and "\n" not in dots else ""
    if quote:
        core, before = _without_dots(core[:-1])
        dots = before + dots
    fence = "" if quote or "\n" not in dots else _fence_at_the_end(core)
    if fence:
        core, dots = core[: core.rindex("\n") if "\n" in core else 0].rstrip(), "\n"
    if not core:
        return Preamble(quote=quote, fence=fence)
    begin = core.lstrip()[0]
    ends = _ENDS_UNCASED if begin.isalpha() and begin.lower() == begin.upper() else _ENDS
    is_open = not (core.endswith(ends) or dots.strip())
    if (is_open and ("\n" not in dots or core[-1] in _GO_ON)) or not _is_preamble(core):
        return None
    return Preamble(True, quote, fence=fence, is_open=is_open)


def _is_preamble(text: str) -> bool:
    """True if the text may be a remark to the reader: a few lines that start a new sentence. The rest of a sentence
    continues what was sent, and a last line without a word is a mark that would have to be closed again."""
    lines = [line for line in text.split("\n") if line.strip()]
    begin = lines[0].lstrip()[0]
    is_new = begin in _MARKUP or (begin.isalpha() and not begin.islower())
    is_short = len(text) <= MOST_PREAMBLE and len(lines) <= _MOST_LINES
    is_remark = "```" not in text and _CONTINUED.search(text) is None
    return is_new and is_short and is_remark and any(map(str.isalpha, lines[-1]))


def _without_dots(text: str) -> tuple[str, str]:
    """Splits the text before the dots and whitespace at its end."""
    found = _DOTS.search(text)
    at = found.start() if found is not None else len(text)
    return text[:at], text[at:]


def _fence_at_the_end(text: str) -> str:
    found = _FENCE.search(text)
    return found[1] if found is not None else ""
