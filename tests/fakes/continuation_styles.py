"""The ways in which models continue a text when an instruction asks them to.

Cuts the texts of `tests/data/texts` anywhere and writes what a model with each habit would answer.
`dialects.resume.text_join` joins the results.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_guard.dialects.resume.overlap import folded
from llm_guard.dialects.resume.text_join import anchor, given_back

_DATA = Path(__file__).parent.parent / "data" / "texts"
TEXTS = {path.stem: path.read_text(encoding="utf-8").rstrip("\n") for path in sorted(_DATA.glob("*.txt"))}
"""Texts by kind."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A text of which the client has received the beginning."""

    whole: str
    sent: str

    @property
    def anchor(self) -> str:
        return anchor(self.sent)

    @property
    def rest(self) -> str:
        """The text that follows what the request gives back to the model."""
        return self.whole[len(given_back(self.sent)) :]


Habit = Callable[[random.Random, Cut], str]
"""Writes a model's continuation of a cut text."""

_PREAMBLES = (
    "Sure, here is the rest:\n\n", "Sure, here is the rest: ", "Of course! ",
    "Certainly! Continuing from where I left off:\n",
    "Here's the continuation...\n\n", "I apologize for the interruption. ", "**Continuation:**\n\n",
    "Natürlich, hier geht es weiter:\n\n", "Bien sûr, voici la suite : ", "好的，我继续：\n\n", "Конечно, продолжаю: ",
    'I stopped at "{words}". Here is the rest:\n\n', "Continuing from “{words}”:\n\n", "Sure!\n\n...",
    'Okay — here goes:\n\n"',

)  # fmt: skip
_QUOTES = (('"', '"'), ("“", "”"), ("«", "»"), ("「", "」"), ("„", "“"), ('"...', '"'))
_FENCES = ("```\n", "```text\n", "```markdown\n", "```python\n", "~~~\n", "````\n")
_DOTS = ("...", "... ", "…", "… ", "[...] ", "[…]", "(...) ", "....", "...\n")
_REFUSALS = (
    "I'm sorry, but I can't continue that text.", "I apologize, but I'm unable to help with this request.",
    'I\'m sorry, I cannot go on from "{words}", because I have no memory of writing it.',
    'Sorry, the text "{words}" seems to be incomplete. Could you send me the whole of it?',
    "Es tut mir leid, aber dabei kann ich nicht helfen.", "抱歉，我无法继续这段内容。",
    "I'm sorry, there is nothing to continue. Is there anything else that I can help you with today?", "",
    '"{words}" is where my message ended, and I have nothing to add.',
    "I'm sorry, I can't continue that. The last words were: {words}", "I can't help with that.\n\n{words}.",
)  # fmt: skip
_ANEW = (
    "Let me start over. There are several ways to look at this, and the first of them is the simplest: ",
    "Once upon a time there was quite another story, and it began like this. ",
    "# Introduction\n\nThis document describes something else.\n\n",
    "import sys\n\n\ndef run() -> int:\n    return 0\n",
    "Zunächst einmal: es gibt mehrere Möglichkeiten, die wir der Reihe nach betrachten. ", "首先，让我们从头开始。",
    "{",
)  # fmt: skip


def exactly(dice: random.Random, cut: Cut) -> str:
    """Repeats the anchor as instructed."""
    return dice.choice(("", "", "", " ", "\n", "\n\n")) + cut.anchor + cut.rest


def with_preamble(dice: random.Random, cut: Cut) -> str:
    preamble = dice.choice(_PREAMBLES).format(words=cut.anchor)
    return preamble + cut.anchor + cut.rest + ('"' if preamble.endswith('"') else "")


def quoted(dice: random.Random, cut: Cut) -> str:
    """Begins with an opening quotation mark, with or without a closing one."""
    begin, end = dice.choice(_QUOTES)
    return begin + cut.anchor + cut.rest + dice.choice(("", end))


def fenced(dice: random.Random, cut: Cut) -> str:
    """Wraps the text in a code fence, with or without its end."""
    begin = dice.choice(_FENCES)
    mark = re.match(r"[`~]+", begin)
    return begin + cut.anchor + cut.rest + dice.choice(("", f"\n{mark[0] if mark else ''}"))


def with_dots(dice: random.Random, cut: Cut) -> str:
    return dice.choice(_DOTS) + cut.anchor + cut.rest


def otherwise_written(dice: random.Random, cut: Cut) -> str:
    """Writes the anchor in another case, another Unicode normal form, or with other quotation marks."""
    changes: list[Callable[[str], str]] = [
        str.upper, str.lower, str.title, str.swapcase, str.capitalize,
        lambda text: unicodedata.normalize("NFD", text), lambda text: unicodedata.normalize("NFC", text),
        lambda text: text.translate(str.maketrans("\"'“”‘’„«»", "“’\"\"''\"\"\"")),
    ]  # fmt: skip
    return dice.choice(changes)(cut.anchor) + cut.rest


def otherwise_spaced(dice: random.Random, cut: Cut) -> str:
    other = dice.choice((" ", "  ", "\n", "\u00a0", "\n\n", "\t"))
    return dice.choice(("", "\n")) + re.sub(r"\s+", other, cut.anchor) + cut.rest


def more(dice: random.Random, cut: Cut) -> str:
    """Repeats the last sentence, the last paragraph, or everything."""
    given = given_back(cut.sent)
    before = given[: len(given) - len(cut.anchor)]
    starts = [0]
    for pattern in (r"[.!?。！？]\s*(?=\S)", r"\n\s*(?=\S)", r"\n\n\s*(?=\S)"):
        found = [match.end() for match in re.finditer(pattern, before)]
        starts += found[-1:]
    return dice.choice(("", "", "\n", "Sure:\n\n")) + cut.whole[dice.choice(starts) :]


def less(dice: random.Random, cut: Cut) -> str:
    """Repeats only the last words or the last characters."""
    given = given_back(cut.sent)
    words = [match.start() for match in re.finditer(r"\S+", given)]
    by_words = words[-min(len(words), dice.randint(1, 4))] if words else 0
    start = max(0, dice.choice((by_words, len(given) - dice.randint(1, 31))))
    return cut.whole[start:]


def not_at_all(dice: random.Random, cut: Cut) -> str:
    """Writes the rest without the anchor."""
    return dice.choice((cut.rest, cut.rest.lstrip()))


def anew(dice: random.Random, cut: Cut) -> str:
    """Writes another answer, or this one in another order and without its last words."""
    sentences = re.split(r"(?<=[.!?。])\s*", cut.whole)
    dice.shuffle(sentences)
    mixed = " ".join(sentences)
    other = dice.choice([text for text in TEXTS.values() if text != cut.whole])
    has_last_words = folded(cut.sent)[-8:] in folded(mixed)
    return dice.choice((dice.choice(_ANEW) + dice.choice(("", cut.rest)), other if has_last_words else mixed, other))


def refuses(dice: random.Random, cut: Cut) -> str:
    return dice.choice(_REFUSALS).format(words=cut.anchor) + dice.choice(("", " ", "\n\nPlease try again."))


REPEATING: dict[str, Habit] = {
    "repeats the anchor exactly": exactly,
    "with a preamble before it": with_preamble,
    "in quotation marks": quoted,
    "in a code fence": fenced,
    "with dots before it": with_dots,
    "in another case or normal form": otherwise_written,
    "with other whitespace": otherwise_spaced,
    "repeats more than the anchor": more,
}
"""Models that repeat the anchor in some form."""
OTHERS: dict[str, Habit] = {
    "repeats less than the anchor": less,
    "does not repeat, but goes on": not_at_all,
    "begins anew in other words": anew,
    "apologises and refuses": refuses,
}
HABITS = REPEATING | OTHERS
UNJOINABLE = frozenset({"begins anew in other words", "apologises and refuses"})
"""Habits after which no join is right."""
