"""Recognizes what a sentence is about without a known phrase: words of several groups, in any order.

Splits sentences and codewords into words and pairs of words, and tests senses against them. Which words mean what is in
`resilience.classification.vocabulary.topics`. Bounded: only the first words of a sentence are compared, by set
operations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from llm_guard.resilience.memo import Memo

MAX_WORDS = 48
"""Providers put their point first; further on a message quotes the caller."""
_MAX_LABEL_CHARS = 80
_SUBJECT_WORDS = 4
_LABEL_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


@dataclass(frozen=True, slots=True)
class Wording:
    """Words and pairs of neighbouring words of a sentence, and the words that it begins with."""

    words: frozenset[str]
    subject: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Matches a wording with a word or pair of words of each group, and none of `absent`."""

    groups: tuple[frozenset[str], ...]
    absent: frozenset[str] = frozenset()
    subject: frozenset[str] = frozenset()
    """One of these must be among the first words; empty: no condition."""

    def holds(self, wording: Wording) -> bool:
        words = wording.words
        for group in self.groups:
            if words.isdisjoint(group):
                return False
        return words.isdisjoint(self.absent) and (not self.subject or not wording.subject.isdisjoint(self.subject))


def sense(groups: Iterable[str], absent: str = "", subject: str = "") -> TopicPattern:
    """Returns a sense; each group is a list, `a word | two words | another`."""
    return TopicPattern(tuple(_listed(group) for group in groups), _listed(absent), _listed(subject))


def wordings(words: str, labels: Iterable[str]) -> Iterator[Wording]:
    """Yields the wording of a sentence, as returned by `words_of`, and of each codeword by itself."""
    spoken = words.split()[:MAX_WORDS]
    if len(spoken) == 1 and "_" in spoken[0]:
        labels = (*labels, spoken[0])
    elif spoken:
        yield Wording(_with_pairs(spoken), frozenset(spoken[:_SUBJECT_WORDS]))
    yield from filter(None, map(_of_label.__getitem__, labels))


def _wording_of_label(label: str) -> Wording | None:
    parts = [part.lower() for part in _LABEL_WORD.findall(label[:_MAX_LABEL_CHARS])]
    return Wording(_with_pairs(parts)) if len(parts) > 1 else None


_of_label = Memo(_wording_of_label)


def _with_pairs(words: list[str]) -> frozenset[str]:
    return frozenset([*words, *map(" ".join, pairwise(words))])


def _listed(words: str) -> frozenset[str]:
    return frozenset(filter(None, (" ".join(word.split()) for word in words.split("|"))))
