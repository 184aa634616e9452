"""Rules that map the words of an error to a failure kind, and the choice of the one that decides.

Defines what a rule can contain, the statuses under which its kind is believed, and the order of rules. The rules
themselves are in `resilience.classification.vocabulary`, and in the config's `upstreams.X.errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.error_body import Layer
from llm_guard.resilience.classification.error_codes import plain_code
from llm_guard.resilience.classification.phrase_match import Phrase
from llm_guard.resilience.classification.topic_match import TopicPattern, sense, wordings

MAX_PATTERN_CHARS = 300


@dataclass(frozen=True, slots=True)
class ClassificationRule:
    """A rule; all its conditions must hold for one and the same layer of an error."""

    kind: Kind
    code: str = ""
    """The provider's code, type or reason, in any spelling."""
    message: str = ""
    """A `Phrase` pattern."""
    statuses: frozenset[int] = frozenset()
    """HTTP statuses under which the rule is believed; empty: those of its kind."""
    families: frozenset[str] = frozenset()
    """Provider families that it applies to; empty: all."""
    is_weak: bool = False
    """True if it is a word that only repeats the status: any phrase is more specific."""
    is_firm: bool = False
    """True if it is a sentence that outranks other sentences, as a codeword does."""
    soon: Kind | None = None
    """The kind to use instead if the provider says that a short wait is enough: a rolling window."""
    sense: TopicPattern | None = None
    """Subject of the sentence or of a codeword. Less certain than a phrase: it decides only if no phrase matches."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class UserRule:
    """One entry of `upstreams.X.errors`: all given conditions must hold, and it outranks all built-in rules."""

    kind: Kind
    statuses: frozenset[int] = frozenset()
    code: str = ""
    type: str = ""
    message: Phrase | None = None

    def fits(self, layer: Layer, words: str, status: int | None) -> bool:
        """Returns whether the rule matches; `words` is the layer's sentence as returned by `words_of`."""
        return (
            (not self.statuses or status in self.statuses)
            and (not self.code or plain_code(self.code) in layer.codes or self.code.lower() == layer.code.lower())
            and (not self.type or plain_code(self.type) == plain_code(layer.type))
            and (self.message is None or self.message.matches(words))
        )


def user_rule(
    kind: Kind,
    *,
    statuses: frozenset[int] = frozenset(),
    code: str = "",
    type_: str = "",
    message: str = "",
) -> UserRule:
    """Returns a checked rule; raises ValueError if it has no condition, or a pattern without a word."""
    if not (statuses or code or type_ or message):
        raise ValueError("is empty: set status, code, type or message")
    if message and not any(character.isalnum() for character in message):
        raise ValueError("has no word to search for")
    if len(message) > MAX_PATTERN_CHARS:
        raise ValueError(f"is longer than {MAX_PATTERN_CHARS} characters")
    return UserRule(kind, statuses, code, type_, Phrase(message) if message else None)


def said(
    kind: Kind,
    phrases: str,
    *,
    statuses: Iterable[int] = (),
    families: str = "",
    is_firm: bool = False,
    soon: Kind | None = None,
) -> tuple[ClassificationRule, ...]:
    """Returns rules for sentences with one of the phrases, `a phrase | another`, anywhere in them, as whole words."""
    return tuple(
        ClassificationRule(
            kind,
            message=_anywhere(phrase),
            statuses=frozenset(statuses),
            families=frozenset(families.split()),
            is_firm=is_firm,
            soon=soon,
        )
        for phrase in _listed(phrases)
    )


def exactly(kind: Kind, sentences: str, *, statuses: Iterable[int] = ()) -> tuple[ClassificationRule, ...]:
    """Returns rules for messages that are exactly one of these, `a sentence | another`."""
    return tuple(
        ClassificationRule(kind, message=sentence, statuses=frozenset(statuses)) for sentence in _listed(sentences)
    )


def coded(
    kind: Kind,
    codes: str,
    *,
    message: str = "",
    statuses: Iterable[int] = (),
    families: str = "",
    is_weak: bool = False,
) -> tuple[ClassificationRule, ...]:
    """Returns rules for machine-readable words, separated by spaces; `message` is a phrase that must be there too."""
    return tuple(
        ClassificationRule(
            kind,
            plain_code(code),
            _anywhere(message) if message else "",
            frozenset(statuses),
            frozenset(families.split()),
            is_weak,
        )
        for code in codes.split()
    )


def about(
    kind: Kind,
    *groups: str,
    absent: str = "",
    subject: str = "",
    statuses: Iterable[int] = (),
    soon: Kind | None = None,
) -> tuple[ClassificationRule, ...]:
    """Returns a rule for sentences and codewords that have a word of each group, `a word | two words`, in any order."""
    return (ClassificationRule(kind, statuses=frozenset(statuses), soon=soon, sense=sense(groups, absent, subject)),)


def cited(source: str, *groups: tuple[ClassificationRule, ...]) -> tuple[ClassificationRule, ...]:
    """Returns rules with the source in which they were seen."""
    return tuple(replace(rule, source=source) for group in groups for rule in group)


def _anywhere(phrase: str) -> str:
    return f"* {phrase} *" if phrase.isascii() and phrase[0] != "*" else f"*{phrase.strip('*')}*"


def _listed(phrases: str) -> Iterator[str]:
    return (" ".join(phrase.split()) for phrase in phrases.split("|"))


# Which rule decides

IN_BAND = 0
"""Stands for "no HTTP error status" in a set of statuses."""

_CLIENT = frozenset(range(400, 500))
_SERVER = frozenset(range(500, 600))
_ANY = _CLIENT | _SERVER | {IN_BAND}
_BELIEVED_UNDER = {
    Kind.RATE_LIMIT: _SERVER | {403, 408, 425, 429, IN_BAND},
    Kind.OVERLOADED: _SERVER | {408, 424, 429, 498, IN_BAND},
    Kind.SERVER_ERROR: _SERVER | {408, 424, IN_BAND},
    Kind.EDGE_ERROR: _SERVER | {IN_BAND},
    Kind.TIMEOUT: _SERVER | {408, 424, 429, 499, IN_BAND},
    Kind.CONNECT_TIMEOUT: _SERVER | {408, IN_BAND},
    Kind.NETWORK: _SERVER | {424, IN_BAND},
    Kind.MODEL_LOADING: _SERVER | {404, 424, 425, 429, IN_BAND},
    Kind.AUTH: _SERVER | {400, 401, 403, 404, 407, 422, IN_BAND},
    Kind.PERMISSION: _SERVER | {400, 401, 403, 404, 451, IN_BAND},
    Kind.ACCOUNT_BLOCKED: _SERVER | {400, 401, 402, 403, 412, 429, IN_BAND},
    Kind.BLOCKED: _SERVER | {400, 401, 403, 404, 429, 451, IN_BAND},
    Kind.QUOTA_EXHAUSTED: _SERVER | {400, 401, 402, 403, 412, 424, 429, IN_BAND},
    Kind.WINDOW_EXHAUSTED: _SERVER | {400, 402, 403, 429, IN_BAND},
    Kind.NO_QUOTA: _SERVER | {400, 402, 403, 429, IN_BAND},
    Kind.CONTEXT_LENGTH: _SERVER | {400, 403, 413, 422, 424, IN_BAND},
    Kind.DEPLOYMENT_CONTEXT: _SERVER | {400, 403, 413, 422, 424, IN_BAND},
    Kind.CONTENT_POLICY: _SERVER | {400, 403, 406, 422, 424, 446, 451, IN_BAND},
    Kind.MODEL_NOT_FOUND: _SERVER | {400, 401, 403, 404, 410, 422, 424, IN_BAND},
    Kind.WRONG_PATH: frozenset({400, 403, 404, 424, IN_BAND}),
    Kind.CLIENT_CANCELLED: _SERVER | {400, 408, 499, IN_BAND},
}
"""Statuses under which a kind's phrases are believed: "rate limit" under a 400 is part of a prompt."""

_PRECEDENCE = (
    Kind.CLIENT_CANCELLED, Kind.PREEMPTED, Kind.BAD_SAMPLE, Kind.CONTENT_POLICY, Kind.DEPLOYMENT_CONTEXT,
    Kind.CONTEXT_LENGTH, Kind.DEPLOYMENT_PAYLOAD, Kind.OVER_LIMIT, Kind.FETCH_FAILED, Kind.GPU_OOM, Kind.NO_QUOTA,
    Kind.QUOTA_EXHAUSTED, Kind.ACCOUNT_BLOCKED, Kind.WINDOW_EXHAUSTED, Kind.BLOCKED, Kind.SCALING_UP,
    Kind.MODEL_LOADING, Kind.AUTH, Kind.INVALID_REQUEST, Kind.MODEL_NOT_FOUND, Kind.PERMISSION, Kind.WRONG_PATH,
    Kind.OVERLOADED, Kind.RATE_LIMIT, Kind.CONNECT_TIMEOUT, Kind.TIMEOUT, Kind.NETWORK,
)  # fmt: skip
"""Order of kinds if several rules match: the kind with the larger consequences first."""


def _rank(rule: ClassificationRule) -> tuple[bool, bool, bool, int, int]:
    conditions = bool(rule.code) + bool(rule.message) + bool(rule.families) + bool(rule.statuses)
    is_sentence = not rule.code and not rule.is_firm
    return (
        rule.is_weak,
        rule.sense is not None,
        is_sentence,
        0 if is_sentence and not rule.families else -conditions,
        _precedence(rule),
    )


_GENERAL = frozenset({Kind.RATE_LIMIT, Kind.PERMISSION, Kind.SERVER_ERROR})


def _is_general(rule: ClassificationRule) -> bool:
    """Returns whether a phrase is hardly more specific than a status: "too many requests", "access denied"."""
    return rule.kind in _GENERAL and not (rule.code or rule.families or rule.is_firm)


def _outranks(one: ClassificationRule, other: ClassificationRule) -> bool:
    return _is_general(other) and _precedence(one) < _precedence(other)


def _precedence(rule: ClassificationRule) -> int:
    return _PRECEDENCE.index(rule.kind) if rule.kind in _PRECEDENCE else len(_PRECEDENCE)


def _believed_under(rule: ClassificationRule) -> frozenset[int]:
    return rule.statuses or (_ANY if rule.code else _BELIEVED_UNDER.get(rule.kind, _ANY))


class RuleBook:
    """All built-in rules, looked up by their codes, by one word of each phrase, and by the first group of each sense.

    A codeword outranks a sentence, a rule with more conditions one with fewer, a phrase a sense. A weak word outranks
    only the status.
    """

    __slots__ = (
        "_believed_under", "_by_code", "_by_part", "_by_sense", "_by_word", "_first_sense", "_phrases", "_rules",
        "_wordless",
    )  # fmt: skip

    def __init__(self, rules: Sequence[ClassificationRule]) -> None:
        self._rules = tuple(sorted(rules, key=_rank))
        self._phrases = tuple(Phrase(rule.message) if rule.message else None for rule in self._rules)
        self._believed_under = tuple(map(_believed_under, self._rules))
        self._by_code: dict[str, list[int]] = {}
        self._by_word: dict[str, list[int]] = {}
        self._by_part: dict[str, list[int]] = {}
        self._by_sense: dict[str, list[int]] = {}
        self._wordless: list[int] = []
        self._first_sense = next(
            (index for index, rule in enumerate(self._rules) if rule.sense is not None or rule.is_weak),
            len(self._rules),
        )
        often = Counter(word for phrase in self._phrases if phrase for word in set(phrase.anchors))
        for index, (rule, phrase) in enumerate(zip(self._rules, self._phrases, strict=True)):
            if rule.sense is not None:
                for word in rule.sense.groups[0]:
                    self._by_sense.setdefault(word, []).append(index)
            elif rule.code:
                self._by_code.setdefault(rule.code, []).append(index)
            elif phrase is not None and phrase.anchors:
                self._by_word.setdefault(min(phrase.anchors, key=often.__getitem__), []).append(index)
            elif phrase is not None and phrase.pattern.isascii():
                self._by_part.setdefault(phrase.part, []).append(index)
            else:
                self._wordless.append(index)

    def find(self, layers: Sequence[tuple[Layer, str]], status: int | None, family: str) -> ClassificationRule | None:
        """Returns the rule that decides, or None. Each layer comes with its sentence as returned by `words_of`."""
        believed = status if status is not None and status >= 400 else IN_BAND
        best = self._best_by_words(layers, believed, family)
        if best >= self._first_sense or _is_general(self._rules[best]):
            about = min(self._by_senses(layers, believed), default=len(self._rules))
            if about < best or (about < len(self._rules) and _outranks(self._rules[about], self._rules[best])):
                best = about
        return self._rules[best] if best < len(self._rules) else None

    def all_holding(
        self, layers: Sequence[tuple[Layer, str]], status: int | None, family: str
    ) -> Iterator[ClassificationRule]:
        """Yields every rule that matches, including those that another one outranks."""
        believed = status if status is not None and status >= 400 else IN_BAND
        for index in (*self._by_words(layers, believed, family), *self._by_senses(layers, believed)):
            yield self._rules[index]

    def __iter__(self) -> Iterator[ClassificationRule]:
        return iter(self._rules)

    def _by_words(self, layers: Sequence[tuple[Layer, str]], believed: int, family: str) -> Iterator[int]:
        for layer, words in layers:
            for index in chain.from_iterable(self._candidates(layer, words)):
                if self._holds(index, words, believed, family):
                    yield index

    def _best_by_words(self, layers: Sequence[tuple[Layer, str]], believed: int, family: str) -> int:
        """Returns the least that `_by_words` yields, without comparing what cannot be less; or the number of rules."""
        best = len(self._rules)
        for layer, words in layers:
            for candidates in self._candidates(layer, words):
                for index in candidates:
                    if index >= best:
                        break
                    if self._holds(index, words, believed, family):
                        best = index
        return best

    def _by_senses(self, layers: Sequence[tuple[Layer, str]], believed: int) -> Iterator[int]:
        for layer, words in layers:
            for wording in wordings(words, layer.labels):
                for word in wording.words & self._by_sense.keys():
                    for index in self._by_sense[word]:
                        found = self._rules[index].sense
                        if believed in self._believed_under[index] and found is not None and found.holds(wording):
                            yield index

    # A phrase is looked up by its rarest word. A part of a word is looked for in every sentence, and a script without
    # spaces is tried on every sentence that may have it.
    def _candidates(self, layer: Layer, words: str) -> list[list[int]]:
        """Returns lists of rules that may hold, each list in the order of rank."""
        by_code, by_word = self._by_code, self._by_word
        found = [by_code[code] for code in layer.codes if code in by_code]
        found += [by_word[word] for word in set(words.split()) if word in by_word]
        found += [rules for part, rules in self._by_part.items() if part in words]
        if not words.isascii():
            found.append(self._wordless)
        return found

    def _holds(self, index: int, words: str, believed: int, family: str) -> bool:
        if believed not in self._believed_under[index]:
            return False
        families, phrase = self._rules[index].families, self._phrases[index]
        if families and family not in families:
            return False
        return phrase is None or phrase.matches(words)
