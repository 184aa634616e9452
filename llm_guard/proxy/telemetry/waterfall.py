"""Draws a call as a waterfall of its attempts, and calls as a table, for a terminal.

Terminal control characters in the providers' texts are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from llm_guard.log import printable
from llm_guard.proxy.telemetry.access_log import AttemptLine, CallLine

_LONGEST_NAME = 40
_LEAST_BAR = 10
_WHY_CHARS = 60
_FROM_CACHE = {
    "hit": "an answer from before",
    "stale": "an answer from before, while a new one was asked for",
    "stale_if_error": "an answer from before, as nobody gave one",
    "miss": "none; it was asked for",
    "coalesced": "what another call was asking for already",
}
_INSTEAD = {"static": "the static answer of its route"}
_ERRANDS = {
    "refresh": "the gateway's own, behind an answer from before",
    "later": "the gateway's own, for what was promised",
    "requeue": "the gateway's own, for a letter that is asked for again",
    "fetch": "a client that looks for what it was promised",
}


@dataclass(frozen=True, slots=True)
class BarCharacters:
    """Characters that bars are drawn with."""

    waited: str
    asked: str
    """Until the first token, or the end."""
    answered: str
    instant: str
    """For what is too short to be seen."""


UNICODE = BarCharacters("░", "▓", "█", "▏")
PLAIN = BarCharacters(".", "=", "#", "|")


def waterfall(call: CallLine, strokes: BarCharacters, width: int) -> str:
    """Returns the drawing. `width` in characters, which long names may exceed."""
    attempts = call.attempts
    total_s = max([call.duration_s, *(each.started_s + each.duration_s for each in attempts)])
    names = [_shortened(each.deployment, _LONGEST_NAME) for each in attempts]
    places = [
        f"{at}. {name:{_widest(names)}}  {each.outcome:{_widest(each.outcome for each in attempts)}}  "
        for at, (name, each) in enumerate(zip(names, attempts, strict=True), 1)
    ]
    room = max(_LEAST_BAR, width - _widest(places) - len(" 999 ms"))
    drawn = [_drawn(place, each, total_s, strokes, room) for place, each in zip(places, attempts, strict=True)]
    legend = f"{strokes.waited} waited  {strokes.asked} until its first token or its end  {strokes.answered} streamed"
    picture = ["", *drawn, *_skipped(call), "", legend] if drawn else _skipped(call)
    return "\n".join([*_head(call), *picture])


def table(calls: Iterable[CallLine]) -> str:
    """Returns a table with a line for each call; empty for none."""
    rows = [("when", "id", "model", "outcome", "status", "took", "tries", "why")]
    for call in calls:
        why = "" if call.why is UNSET else _shortened(call.why, _WHY_CHARS)
        model = _shortened(call.model or "-", _LONGEST_NAME)
        rows.append(
            (_when(call.timestamp)[11:19], printable(call.request_id), model, printable(call.outcome),
             str(call.status or "-"), took(call.duration_s), str(len(call.attempts)), why)
        )  # fmt: skip
    if len(rows) == 1:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def took(seconds: float) -> str:
    """Formats a duration: `600 us`, `48 ms`, `1.2 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 99.95 else f"{seconds:.0f} s"


def _head(call: CallLine) -> Iterator[str]:
    yield f"{printable(call.request_id)}  {_when(call.timestamp)}  {call.method} {_shortened(call.path, 200)}".rstrip()
    via = f" by the route {printable(call.route)}" if call.route not in (None, call.model) else ""
    status = f", status {call.status}" if call.status is not None else ""
    first = f", first token after {took(call.ttft_s)}" if call.ttft_s is not UNSET else ""
    after = "for" if call.outcome == "running" else "after"
    said = f"{printable(call.outcome)}{status} {after} {took(call.duration_s)}{first}"
    own = f"of which the gateway's own {took(call.overhead_s)}"
    yield f"{_shortened(call.model or 'no model', 200)}{via}: {said}, {own}"
    by = f"by {call.refused_by}: " if call.refused_by not in (UNSET, None) else ""
    for name, text in (("client", call.client), ("trace", call.trace_id), ("why", call.why), ("gave up", call.gave_up)):
        if not isinstance(text, UnsetType) and text is not None:
            yield f"{name:9}{by if name == 'why' else ''}{printable(text)}"
    yield from _beyond(call)


def _beyond(call: CallLine) -> Iterator[str]:
    """Yields lines about cache, fallback response, dead letter and deferral."""
    age = f", {took(call.age_s)} old" if call.age_s is not UNSET else ""
    for name, text, words, more in (
        ("cache", call.cache, _FROM_CACHE, age),
        ("got", call.lesser, _INSTEAD, ""),
        ("letter", call.letter, {}, ": kept, to be asked for again"),
        ("promise", call.promise, {}, ": its client fetches the answer under this id"),
        ("errand", call.errand, _ERRANDS, ""),
    ):
        if text is not UNSET:
            yield f"{name:9}{words.get(text, printable(text))}{more}"


def _drawn(place: str, attempt: AttemptLine, total_s: float, strokes: BarCharacters, room: int) -> str:
    bar = _bar(attempt, total_s, strokes, room)
    return "\n".join([f"{printable(place)}{bar:{room}} {took(attempt.duration_s)}", *_notes(attempt)])


def _bar(attempt: AttemptLine, total_s: float, strokes: BarCharacters, room: int) -> str:
    def cells(until_s: float) -> int:
        return round(max(0.0, min(1.0, until_s / total_s)) * room) if total_s > 0 else 0

    start_s, end_s = attempt.started_s, attempt.started_s + attempt.duration_s
    answered_s = end_s if attempt.answered_s is UNSET else min(end_s, start_s + attempt.answered_s)
    is_instant = cells(end_s) == cells(start_s)
    begun = min(cells(start_s), room - 1) if is_instant else cells(start_s)
    before = min(cells(start_s - attempt.waited_s), begun)
    asked, answered = cells(answered_s) - begun, cells(end_s) - cells(answered_s)
    exchange = strokes.instant if is_instant else strokes.asked * asked + strokes.answered * answered
    return " " * before + strokes.waited * (begun - before) + exchange


def _notes(attempt: AttemptLine) -> Iterator[str]:
    about = [
        "beside the one before" if attempt.hedge is True else "",
        f"with key {attempt.key}" if attempt.key is not UNSET else "",
        f"asked to go on by {attempt.resumed_by}" if attempt.resumed_by is not UNSET else "",
        f"waited {took(attempt.waited_s)} ({attempt.waited_for})" if attempt.waited_for is not UNSET else "",
        f"its breaker was {attempt.breaker}" if attempt.breaker is not UNSET else "",
        attempt.why if attempt.why is not UNSET else "",
    ]
    if any(about):
        yield f"   {printable('; '.join(each for each in about if each))}"
    if attempt.then is not UNSET:
        is_told = isinstance(attempt.budget_left, float | int)
        left = f"; {attempt.budget_left:g} more retries could have been made" if is_told else ""
        yield f"   -> {printable(attempt.then)}{left}"


def _skipped(call: CallLine) -> Iterator[str]:
    for each in call.skipped or ():
        yield f"not asked: {printable(each.deployment)}: {printable(each.why)}"


def _when(timestamp: str | UnsetType) -> str:
    """Formats `2026-01-31T23:59:59.123456Z` as `2026-01-31 23:59:59.123 UTC`."""
    return "" if timestamp is UNSET else f"{printable(timestamp)[:23].replace('T', ' ')} UTC"


def _shortened(text: str, most: int) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _widest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
