"""Compares texts that a model has repeated in its own way (case, whitespace, quotation marks, Unicode normal form), and
decides when an overlap proves where a text continues.

The search for an overlap is in `dialects.resume.instructed_join`.
"""

from __future__ import annotations

import re
import unicodedata

LEAST_WEIGHT = 16
"""Minimum weight of the repeated end of a text: about three words. Fewer come again by chance."""
LEAST_WHOLE_WEIGHT = 8
"""Minimum weight of a text that is repeated as a whole, which is less likely to be chance."""

UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u2e80-\uabff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Scripts that put no space between words: Thai to Burmese, Khmer, Chinese, Japanese and their punctuation."""

QUOTES = "\"'\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u300c\u300d\u300e\u300f"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
_SAME = {**dict.fromkeys(map(ord, QUOTES), '"'), **dict.fromkeys(map(ord, _DASHES), "-")}
_PLACE = 4
"""Weight of the words that identify the place in a row."""
_PLACE_WITH_MARKS = 2
"""Folded characters that identify the place if they are not only letters; each number counts as one."""
_PLACE_READ = 40
_NUMBERS = re.compile(r"\d+")
_LEAST_BORDER = 2
_MOST_BORDER = 200
"""Folded characters in which a text may end as it begins."""
_CACHED_MOST = 1 << 16


class _Folding(dict[int, str]):
    """A table for `str.translate`. Works character by character, so that a text is folded the same in one piece and in
    many."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        compatible = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
        same = "".join(compatible.split()).translate(_SAME)
        folded = "" if char.isspace() else same or char
        if len(self) < _CACHED_MOST:
            self[code] = folded
        return folded


_FOLDING = _Folding()


def folded(text: str) -> str:
    """The text without whitespace, in lower case and decomposed, all quotation marks and dashes alike."""
    return text.translate(_FOLDING)


def weight(text: str) -> int:
    """Amount of information in a folded text: 1 for a letter, 2 for an emoji or a character that stands for a syllable
    or more, 0 for punctuation."""
    return sum(map(_weight_of, text))


def is_proof(text: str, length: int) -> bool:
    """True if a text that begins with the last `length` characters of `text` must be a repetition of them. Both are
    folded.

    False if these characters occur in `text` before, repeat themselves, or end as they begin: there the text itself may
    continue with them once more, after a repetition of only its last few characters."""
    end = text[len(text) - length :]
    enough = LEAST_WHOLE_WEIGHT if length == len(text) else LEAST_WEIGHT
    return (
        weight(end) >= enough and text.find(end) == len(text) - length and not (_is_periodic(end) or _has_border(end))
    )


def _weight_of(char: str) -> int:
    category = unicodedata.category(char)
    if category == "So" or UNSPACED.match(char):
        return 0 if category[0] == "P" else 2
    return category[0] in "LMN"


def _is_periodic(text: str) -> bool:
    """True if the text consists of one period at least twice in a row, the last time perhaps in part."""
    half = text[: (len(text) + 1) // 2]
    period = text.find(half, 1)
    while 0 < period <= len(text) // 2:
        if text.startswith(text[period:]):
            return True
        period = text.find(half, period + 1)
    return False


def _has_border(text: str) -> bool:
    """True if the text ends as it begins."""
    lengths = range(_LEAST_BORDER, min(len(text), _MOST_BORDER + 1))
    return any(text.endswith(text[:length]) and is_telling(text[:length]) for length in lengths)


def is_telling(text: str) -> bool:
    """True if folded characters that two places share show that the places are alike: three of any kind, or two that
    stand for a syllable or more."""
    return len(text) > _LEAST_BORDER or weight(text) >= 2 * _LEAST_BORDER


def is_at_same_place(known: str, begin: int) -> bool:
    """True if the text before `begin` ends like the whole, ignoring numbers. In similar rows, a text that continues
    without any repetition has then reached the same place of the next row."""
    end, before = (_NUMBERS.sub("0", text[-_PLACE_READ:]) for text in (known, known[:begin]))
    common = end[len(end) - common_end(end, before) :]
    return weight(common) >= _PLACE or (len(common) >= _PLACE_WITH_MARKS and not common[-_PLACE:].isalpha())


def common_end(one: str, other: str) -> int:
    """Number of last characters that two texts have in common."""
    length = 0
    for ours, theirs in zip(reversed(one), reversed(other), strict=False):
        if ours != theirs:
            break
        length += 1
    return length
