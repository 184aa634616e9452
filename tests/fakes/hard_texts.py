"""Texts in which the end of what was sent is hard to find again: rows that begin alike, refrains, repeated code,
quotations that stay open.

`tests.fakes.continuation_styles` continues them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

_WORDS = (
    "river", "stone", "lantern", "orchard", "window", "copper", "harvest", "signal", "meadow", "anchor", "velvet",
    "timber", "harbour", "crystal", "thunder", "garden", "marble", "whisper", "canyon", "feather",
)  # fmt: skip
_OPENINGS = ('"', "“", "«", "„", "「", "'")
_EMOJI = ("👨‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🇩🇪", "👍🏿", "❤️‍🔥", "🧑‍🚀", "😀")
_RTL = (
    "كان", "البيت", "القديم", "يقف", "على", "التل", "وحده", "والريح", "تمر",
    "بين", "الأشجار", "הבית", "הישן", "עמד", "על", "הגבעה", "והרוח", "עברה",
)  # fmt: skip
_HAN = "山河日月風雨雲霧春夏秋冬東西南北花鳥魚蟲金木水火土石"


def _phrase(dice: random.Random, least: int = 3, most: int = 9) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.randint(least, most)))


def open_quotations(dice: random.Random) -> str:
    """Dialogue in several kinds of quotation marks; the last quotation may stay open."""
    pairs = (('"', '"'), ("“", "”"), ("«", "»"), ("„", "“"), ("「", "」"))
    begin, end = dice.choice(pairs)
    parts = []
    for _ in range(dice.randint(4, 14)):
        said = f"{begin}{_phrase(dice).capitalize()}{dice.choice(',.!?')}{end}"
        parts.append(f"{said} {_phrase(dice)}{dice.choice(('. ', '.' + chr(10) * 2, ': '))}")
    parts.append(f"{begin}{_phrase(dice, 6, 14).capitalize()}{dice.choice(('', end, '.' + end, chr(34), ' ' + begin))}")
    return "".join(parts)


def measures(dice: random.Random) -> str:
    """Inches and feet, apostrophes and empty strings in code: quotation marks without a partner."""
    rows = (f"A {_phrase(dice, 2, 4)} of {dice.randint(2, 9)}'{dice.randint(1, 11)}\"" for _ in range(8))
    return ", ".join(rows) + dice.choice(("", ".", "", ' and the name is ""'))


def rows(dice: random.Random) -> str:
    """CSV rows that share a long part."""
    same = ",".join(dice.choices(_WORDS, k=dice.randint(4, 12)))
    count, places = dice.randint(6, 40), dice.choice((0, 1, 2))
    numbers = [dice.randint(0, 99) if dice.random() < 0.5 else at for at in range(count)]
    lines = []
    for at, number in enumerate(numbers):
        cells = [same, f"{number:0{1 + places}}", dice.choice(("ok", "ok", "failed"))]
        if dice.random() < 0.5:
            cells.reverse()
        lines.append(f"{at}," * dice.choice((0, 1)) + ",".join(cells))
    return "\n".join(lines)


def logs(dice: random.Random) -> str:
    """Log lines with timestamps and repeated messages."""
    messages = [_phrase(dice, 5, 12) for _ in range(dice.choice((1, 2, 3)))]
    clock = dice.choice(("2024-05-01T12:00:{:02}Z", "[12:00:{:02}]", "{}"))
    return "\n".join(
        f"{clock.format(at)} INFO {dice.choice(messages)} id={dice.randint(0, 9)}" for at in range(dice.randint(6, 40))
    )


def table(dice: random.Random) -> str:
    """A Markdown table."""
    cells = [f"| {_phrase(dice, 4, 8)} | yes | {dice.randint(0, 20)} |" for _ in range(3)]
    head = "| what it is | is it so | how many |\n|---|---|---:|\n"
    return head + "\n".join(dice.choice(cells) for _ in range(dice.randint(6, 30)))


def same_prefixes(dice: random.Random) -> str:
    """A list of items that begin with the same sentence."""
    same = _phrase(dice, 6, 16).capitalize()
    mark = dice.choice(("- ", "* ", "{}. ", "{}) "))
    return "\n".join(f"{mark.format(at)}{same} {_phrase(dice, 1, 3)}." for at in range(1, dice.randint(6, 24)))


def code(dice: random.Random) -> str:
    """Functions with repeated lines."""
    body = [f"    if {dice.choice(_WORDS)} is None:", f"        return {dice.choice(_WORDS)}", "    try:"]
    body += [f"        self.{dice.choice(_WORDS)}.append(value)", "    except ValueError:", "        return None", ""]
    lines: list[str] = []
    for at in range(dice.randint(3, 8)):
        lines += [f"def {dice.choice(_WORDS)}_{at}(self, value):", *body[dice.choice((0, 0, 2)) :]]
    return "\n".join(lines).rstrip()


def poem(dice: random.Random) -> str:
    """Stanzas with a refrain."""
    refrain = "\n".join(_phrase(dice, 5, 8).capitalize() + "," for _ in range(dice.choice((1, 2, 4))))
    stanzas = ("\n".join(_phrase(dice, 4, 7).capitalize() for _ in range(2)) for _ in range(dice.randint(3, 8)))
    return "\n\n".join(f"{stanza}\n{refrain}" for stanza in stanzas)


def json_array(dice: random.Random) -> str:
    """A JSON array of similar objects."""
    name = _phrase(dice, 3, 6)
    items = [
        {
            "id": at,
            "name": name,
            "tags": ["a", "b"],
            "state": dice.choice(("open", "closed")),
            "size": dice.randint(0, 9),
        }
        for at in range(dice.randint(5, 25))
    ]
    return json.dumps(items, indent=dice.choice((None, 2)), ensure_ascii=False)


def han(dice: random.Random) -> str:
    """Chinese clauses, some of them repeated."""
    clauses = ["".join(dice.choices(_HAN, k=dice.randint(4, 9))) for _ in range(6)]
    return "".join(dice.choice(clauses) + dice.choice("，。、；") for _ in range(dice.randint(10, 60)))


def emoji(dice: random.Random) -> str:
    """Emoji joined by ZWJ, in rows and between words."""
    return " ".join(dice.choice((*_EMOJI, *_WORDS[:6])) * dice.choice((1, 1, 3)) for _ in range(dice.randint(20, 90)))


def right_to_left(dice: random.Random) -> str:
    """Arabic and Hebrew with numbers and Latin words between them."""
    return " ".join(dice.choice((*_RTL, str(dice.randint(0, 99)), "API")) for _ in range(dice.randint(30, 90)))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "open quotations": open_quotations,
    "measures": measures,
    "rows of a CSV": rows,
    "lines of a log": logs,
    "rows of a table": table,
    "items with one beginning": same_prefixes,
    "repeated code": code,
    "refrains": poem,
    "like objects in JSON": json_array,
    "repeated Chinese": han,
    "joined emoji": emoji,
    "right to left": right_to_left,
}
"""Functions by kind of text; each writes another text for each random generator."""
