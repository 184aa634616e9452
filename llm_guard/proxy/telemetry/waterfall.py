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
_NAME_WIDTH = 13
_WHY_CHARS = 60
_FROM_CACHE = {
    "hit": "hit",
    "stale": "stale, revalidated in the background",
    "stale_if_error": "stale, because the provider failed",
    "miss": "miss",
    "coalesced": "shared the response of an identical call",
}
_FALLBACKS = {"static": "static response", "estimate": "estimate"}
_BACKGROUND = {
    "refresh": "background revalidation of a cached response",
    "deferred": "execution of a deferred call",
    "requeue": "execution of a requeued dead letter",
    "fetch": "a client fetches the result of a deferred call",
    "status": "a client reads the state of its models",
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
    total_s = max([call.duration_s, *(attempt.started_s + attempt.duration_s for attempt in attempts)])
    names = [_shortened(attempt.deployment, _LONGEST_NAME) for attempt in attempts]
    places = [
        f"{at}. {name:{_widest(names)}}  {attempt.outcome:{_widest(attempt.outcome for attempt in attempts)}}  "
        for at, (name, attempt) in enumerate(zip(names, attempts, strict=True), 1)
    ]
    room = max(_LEAST_BAR, width - _widest(places) - len(" 999 ms"))
    drawn = [_drawn(place, attempt, total_s, strokes, room) for place, attempt in zip(places, attempts, strict=True)]
    legend = f"{strokes.waited} waiting  {strokes.asked} until the first token or the end  {strokes.answered} streaming"
    picture = ["", *drawn, *_skipped(call), "", legend] if drawn else _skipped(call)
    return "\n".join([*_head(call), *picture])


def table(calls: Iterable[CallLine]) -> str:
    """Returns a table with a line for each call; empty for none."""
    rows = [("time", "id", "model", "outcome", "status", "duration", "attempts", "reason")]
    for call in calls:
        why = "" if call.reason is UNSET else _shortened(call.reason, _WHY_CHARS)
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
    via = f" via route {printable(call.route)}" if call.route not in (None, call.model) else ""
    status = f", status {call.status}" if call.status is not None else ""
    first = f", first token after {took(call.ttft_s)}" if call.ttft_s is not UNSET else ""
    after = "for" if call.outcome == "running" else "after"
    said = f"{printable(call.outcome)}{status} {after} {took(call.duration_s)}{first}"
    own = f"gateway overhead {took(call.overhead_s)}"
    yield f"{_shortened(call.model or 'no model', 200)}{via}: {said}, {own}"
    by = f"by {call.refused_by}: " if call.refused_by not in (UNSET, None) else ""
    for name, text in (
        ("client", call.client),
        ("trace", call.trace_id),
        ("reason", call.reason),
        ("stopped", call.gave_up),
    ):
        if not isinstance(text, UnsetType) and text is not None:
            yield f"{name:{_NAME_WIDTH}}{by if name == 'reason' else ''}{printable(text)}"
    yield from _disposition(call)


def _disposition(call: CallLine) -> Iterator[str]:
    """Yields lines about cache, fallback response, dead letter and deferral."""
    age = f", {took(call.age_s)} old" if call.age_s is not UNSET else ""
    for name, text, words, more in (
        ("cache", call.cache, _FROM_CACHE, age),
        ("fallback", call.fallback_response, _FALLBACKS, ""),
        ("dead letter", call.dead_letter_id, {}, ", can be requeued"),
        ("deferred", call.deferred_id, {}, ", the id under which the client fetches the response"),
        ("origin", call.background_purpose, _BACKGROUND, ""),
        ("injected", _joined(call.injected_faults), {}, ", by an operator (/admin/chaos)"),
    ):
        if text is not UNSET:
            yield f"{name:{_NAME_WIDTH}}{words.get(text, printable(text))}{more}"


def _joined(faults: list[str] | UnsetType) -> str | UnsetType:
    return faults if isinstance(faults, UnsetType) else "; ".join(faults)


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
        "hedge" if attempt.hedge is True else "",
        f"with key {attempt.key}" if attempt.key is not UNSET else "",
        f"resumes a broken stream ({attempt.resume_mode})" if attempt.resume_mode is not UNSET else "",
        f"waited {took(attempt.waited_s)} ({attempt.waited_for})" if attempt.waited_for is not UNSET else "",
        f"its breaker was {attempt.breaker}" if attempt.breaker is not UNSET else "",
        attempt.reason if attempt.reason is not UNSET else "",
    ]
    if any(about):
        yield f"   {printable('; '.join(note for note in about if note))}"
    if attempt.next_step is not UNSET:
        is_told = isinstance(attempt.budget_left, float | int)
        left = f"; {attempt.budget_left:g} left in the retry budget" if is_told else ""
        yield f"   -> {printable(attempt.next_step)}{left}"


def _skipped(call: CallLine) -> Iterator[str]:
    for skipped in call.skipped or ():
        yield f"skipped: {printable(skipped.deployment)}: {printable(skipped.reason)}"


def _when(timestamp: str | UnsetType) -> str:
    """Formats `2026-01-31T23:59:59.123456Z` as `2026-01-31 23:59:59.123 UTC`."""
    return "" if timestamp is UNSET else f"{printable(timestamp)[:23].replace('T', ' ')} UTC"


def _shortened(text: str, most: int) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _widest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
