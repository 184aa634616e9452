"""How often a text that was cut and continued by instruction is joined correctly, and how often not at all.

Ten thousand cuts over eight kinds of text and twelve habits of models (`tests.fakes.continuation_styles`); the
continuation is fed in pieces, like a stream.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llm_guard.dialects.resume.text_join import seam
from tests.fakes.continuation_styles import HABITS, OTHERS, REPEATING, TEXTS, UNJOINABLE, Cut, Habit
from tests.fakes.hard_texts import KINDS

CUTS = 105
"""Cuts for each kind of text and habit: 10,080 in all."""
HARD_CUTS = 70
"""Cuts for each kind of hard text and habit, each in a separate text: 10,080 in all."""
PROMISED_ERRORS = 0.05
_SEED = 17
_MOST_PIECE = 12

Verdict = Literal["right", "error", "wrong"]


@dataclass(frozen=True, slots=True)
class Cell:
    """All cuts of one kind of text, continued by models of one habit."""

    kind: str
    habit: str
    right: int
    errors: int
    """Honest errors: not joined, and the client gets the error."""
    wrong: int

    @property
    def cuts(self) -> int:
        return self.right + self.errors + self.wrong


@dataclass(frozen=True, slots=True)
class Joins:
    cells: tuple[Cell, ...]
    hard: tuple[Cell, ...] = ()
    """Texts made to be joined wrongly; the promised share of errors applies to the others."""

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = [
            f"{cell.kind}, {cell.habit}: {cell.wrong} wrong texts" for cell in (*self.cells, *self.hard) if cell.wrong
        ]
        share = self.errors_of_the_repeating
        if share > PROMISED_ERRORS:
            found.append(f"{share:.1%} honest errors where the anchor is repeated, against {PROMISED_ERRORS:.0%}")
        return found

    @property
    def errors_of_the_repeating(self) -> float:
        """Share of honest errors for models that repeat the anchor in any form."""
        cell = self.of(REPEATING)
        return cell.errors / max(1, cell.cuts)

    def of(self, habits: Collection[str]) -> Cell:
        """All kinds of text together, with models of these habits."""
        return _total([cell for cell in self.cells if cell.habit in habits])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


_INTRO = """\
# Streams that an instruction continues

A text is cut, and a model of some habit goes on with it: its text is joined where it repeats the end of what was sent,
and nowhere else. *Right*: the client has the whole text, to the character. *Error*: nothing was joined, or no more than
is right, and the client gets the error event. *Wrong*: anything else."""
_NOTE = """\
Errors where the anchor is repeated: cuts in the first few characters, which prove nothing; cuts at the end of a line,
where a model may have broken the line itself; in a text that repeats itself; where a mark may close the model's own
quotation or fence, or one of the text; behind a preamble, where nothing follows the anchor but a last paragraph, which
may be the end of a refusal. A model that repeats less than 16 letters, or nothing, is never joined."""

_HARD = """\
Quotations that stay open, rows that begin alike, refrains, code and objects that come again: there the same words may
be a repetition or the text itself. Where both are possible nothing is joined, so errors are more frequent here."""


def page(joins: Joins) -> list[str]:
    """The figures as Markdown."""
    lines = [
        _INTRO, "",
        _summary(joins), "",
        "## By habit", "",
        *_table("model", [joins.of([habit]) for habit in HABITS], list(HABITS)), "",
        "## By kind of text and habit", "", "Right / honest errors / wrong.", "",
        f"| model | {' | '.join(TEXTS)} |", f"|---|{'---:|' * len(TEXTS)}",
    ]  # fmt: skip
    for habit in HABITS:
        cells = [cell for cell in joins.cells if cell.habit == habit]
        lines.append(f"| {habit} | {' | '.join(f'{cell.right} / {cell.errors} / {cell.wrong}' for cell in cells)} |")
    return [*lines, "", _NOTE, "", *_hard_section(joins)]


def _hard_section(joins: Joins) -> list[str]:
    """Section about the texts that are hard to join, by kind."""
    groups = {"repeats the anchor in any form": REPEATING, "any other": OTHERS}
    lines = ["## Texts that are hard to join", "", _HARD, "", _hard_summary(joins), ""]
    lines += ["| text | model | cuts | right | honest errors | wrong |", "|---|---|---:|---:|---:|---:|"]
    for kind in KINDS:
        for title, habits in groups.items():
            cell = _total([cell for cell in joins.hard if cell.kind == kind and cell.habit in habits])
            lines.append(f"| {kind} | {title} | {_counts(cell)} |")
    return lines


def _hard_summary(joins: Joins) -> str:
    every = _total(joins.hard)
    repeating = _total([cell for cell in joins.hard if cell.habit in REPEATING])
    share = repeating.errors / max(1, repeating.cuts)
    return (
        f"{every.cuts:,} cuts, each in another text: **{every.wrong} wrong** (promised: 0). Models that repeat the "
        f"anchor in any form: {share:.1%} honest errors."
    )


def _summary(joins: Joins) -> str:
    every = joins.of(HABITS)
    return (
        f"{every.cuts:,} cuts over {len(TEXTS)} kinds of text and {len(HABITS)} habits: **{every.wrong} wrong** "
        "(promised: 0). Models that repeat the anchor in any form: "
        f"**{joins.errors_of_the_repeating:.1%} honest errors** (promised: at most {PROMISED_ERRORS:.0%})."
    )


def _table(title: str, cells: list[Cell], names: list[str]) -> list[str]:
    lines = [f"| {title} | cuts | right | honest errors | wrong |", "|---|---:|---:|---:|---:|"]
    for name, cell in zip(names, cells, strict=True):
        lines.append(f"| {name} | {_counts(cell)} |")
    return lines


def _counts(cell: Cell) -> str:
    return f"{cell.cuts} | {cell.right} | {cell.errors} ({cell.errors / max(1, cell.cuts):.1%}) | {cell.wrong}"


def _total(cells: Collection[Cell]) -> Cell:
    """Several cells together."""
    counts = (sum(getattr(cell, name) for cell in cells) for name in ("right", "errors", "wrong"))
    return Cell("all", ", ".join(dict.fromkeys(cell.habit for cell in cells)), *counts)


def run(say: Callable[[str], None], cuts: int = CUTS, hard_cuts: int = HARD_CUTS) -> Joins:
    """Measures all kinds and habits; the same cuts each time."""
    cells = []
    for place, (kind, text) in enumerate(TEXTS.items(), 1):
        began = time.monotonic()
        cells += [measure(kind, text, habit, cuts) for habit in HABITS]
        say(f"joins {place}/{len(TEXTS)}: {kind}, {len(HABITS) * cuts} cuts in {time.monotonic() - began:.1f} s")
    hard = [measure_hard(kind, habit, hard_cuts) for kind in KINDS for habit in HABITS]
    say(f"joins: {len(hard) * hard_cuts} cuts of hard texts")
    return Joins(tuple(cells), tuple(hard))


def measure_hard(kind: str, habit: str, cuts: int) -> Cell:
    """Measures cuts anywhere, each in a separate text."""
    found = [verdict(dice, cut, HABITS[habit], habit in UNJOINABLE) for dice, cut in _hard_cuts(kind, habit, cuts)]
    return Cell(kind, habit, found.count("right"), found.count("error"), found.count("wrong"))


def _hard_cuts(kind: str, habit: str, cuts: int) -> Iterator[tuple[random.Random, Cut]]:
    for at in range(cuts):
        dice = random.Random(f"{_SEED} {kind} {habit} {at}")
        text = KINDS[kind](dice)
        yield dice, Cut(text, text[: dice.randint(1, len(text) - 1)])


def measure(kind: str, text: str, habit: str, cuts: int) -> Cell:
    """Measures cuts at equal distances, from the first character to the last but one."""
    dice = random.Random(f"{_SEED} {kind} {habit}")
    places = [1 + (len(text) - 2) * at // max(1, cuts - 1) for at in range(cuts)]
    found = [verdict(dice, Cut(text, text[:place]), HABITS[habit], habit in UNJOINABLE) for place in places]
    return Cell(kind, habit, found.count("right"), found.count("error"), found.count("wrong"))


def verdict(dice: random.Random, cut: Cut, habit: Habit, is_unjoinable: bool) -> Verdict:
    """Compares the client's final text with the original."""
    joint = seam("instruction", cut.sent)
    came, told = habit(dice, cut), cut.sent
    while came:
        piece, came = came[: (size := dice.randint(1, _MOST_PIECE))], came[size:]
        told += joint.feed(piece)
    told += joint.end()
    if joint.has_diverged:
        return "error" if cut.whole.startswith(told) else "wrong"
    return "right" if told == cut.whole and not is_unjoinable else "wrong"
