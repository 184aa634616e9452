"""Fault plans: how a request is to fail, as its model name and its `x-mock-fault` header specify.

Has the grammar, deterministic draws, and the token bucket of `limit`. `player` carries faults out, `fault_state`
keeps the state of plans, and `errors` writes error bodies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from llm_guard.resilience.units import parse_duration

FaultKind = Literal[
    "status", "quota", "latency", "silence", "headers", "reset", "close",
    "cut", "stall", "error", "truncated", "malformed", "limit", "capacity",
    "noprefill", "overlap", "preamble", "another",
]  # fmt: skip

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529)

GRAMMAR = """\
faults: model `NAME+FAULT+FAULT`, or header `x-mock-fault: FAULT, FAULT`; the first that applies is used
  status:CODE[:RETRY_AFTER]  the dialect's error response; CODE is one of
                             400 401 403 404 408 409 413 422 429 500 502 503 504 529
  quota                      the dialect's error when the quota or credit is used up
  latency:DURATION[~SPREAD]  waits before the response headers, e.g. latency:50ms~20ms
  silence                    reads the request, never responds
  headers                    response headers at once, then nothing
  reset | close              RST | FIN instead of a response
  cut:N                      stream: connection closed after N tokens; unary: after half of the body
  stall:N                    stream: silence after N tokens; unary: after half of the body
  error:N                    stream: error event after N tokens; unary: error body under status 200
  malformed:N                stream: broken JSON after N tokens; unary: broken JSON
  truncated                  unary: JSON cut, content-length right; stream: clean end, no terminal event
  limit:RATE/s[:bare]        token bucket per model, then 429; bare: without Retry-After
  capacity:N                 serves N at once, per model; the rest wait
  noprefill                  400 for a request that ends in an assistant message
  overlap:N                  a continuation first repeats the last N words of the text, whatever the instructions
  preamble                   a continuation begins with "Sure, here is the rest:"
  another                    generates another text, also in JSON output and tool calls
  any of them with @P%       applies to P percent of the requests, e.g. status:503@10%
header `x-mock-call: ID`: which requests get a fault depends only on ID and the number of requests with it"""


class BadFaultError(ValueError):
    """A fault outside the grammar; the message names it and shows the grammar."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"invalid fault {text!r}: {why}\n{GRAMMAR}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; only the fields that its kind needs are set."""

    kind: FaultKind
    share: float = 1.0
    """Probability that it affects a request, 0 to 1."""
    status: int = 0
    retry_after: str | None = None
    """Value of the Retry-After header, sent as it was written."""
    delay_s: float = 0.0
    spread_s: float = 0.0
    after_tokens: int = 0
    rate_per_s: float = 0.0
    is_bare: bool = False
    """True for a 429 without any hint when to retry."""
    places: int = 0
    words: int = 0


@dataclass(frozen=True, slots=True)
class DrawnFaults:
    """The faults drawn for one request."""

    latency_s: float = 0.0
    places: int | None = None
    """Number of requests served at once; None: unlimited."""
    overlap: int | None = None
    """Number of words to repeat after an instruction to continue a text; None: those that the instruction quotes."""
    is_another: bool = False
    """True if the text must differ from the usual one."""
    has_preamble: bool = False
    """True if a continued text begins with a remark to the reader."""
    faults: tuple[Fault, ...] = ()
    """Faults in the order in which they were written, without those that have fields of their own above. The first that
    applies is carried out."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one model text and header text."""

    model: str
    """The model's name without its faults."""
    text: str = ""
    """Model text and header text: the key for draws and buckets."""
    faults: tuple[Fault, ...] = ()

    def draw_for(self, seed: int, call_id: str, attempt: int) -> DrawnFaults:
        """The faults for this attempt of a call, independent of the model and of all other requests."""
        return replace(self, text="\x1e".join((call_id, *map(repr, self.faults)))).draw(seed, attempt)

    def draw(self, seed: int, number: int) -> DrawnFaults:
        """The faults for request `number` of this plan; deterministic."""
        latency_s, places, overlap, is_another, has_preamble = 0.0, None, None, False, False
        struck: list[Fault] = []
        for index, fault in enumerate(self.faults):
            if _uniform(seed, self.text, number, index, "share") >= fault.share:
                continue
            if fault.kind == "latency":
                u = _uniform(seed, self.text, number, index, "spread")
                latency_s += max(0.0, fault.delay_s + (2 * u - 1) * fault.spread_s)
            elif fault.kind == "capacity":
                places = fault.places
            elif fault.kind == "overlap":
                overlap = fault.words
            elif fault.kind == "another":
                is_another = True
            elif fault.kind == "preamble":
                has_preamble = True
            else:
                struck.append(fault)
        return DrawnFaults(latency_s, places, overlap, is_another, has_preamble, tuple(struck))


@lru_cache(maxsize=4096)
def parse_plan(model: str, header: str = "") -> FaultPlan:
    """The plan of a model text such as `gpt-4o+reset@5%` and a header text such as `cut:3, latency:50ms`.

    Raises BadFaultError."""
    name, *texts = model.split("+")
    texts += [text for text in header.split(",") if text.strip()]
    return FaultPlan(name, f"{model}|{header}", tuple(parse_fault(text.strip()) for text in texts))


def parse_fault(text: str) -> Fault:
    """One fault, e.g. `status:503:2@10%`; raises BadFaultError."""
    spec, at, share = text.partition("@")
    kind, colon, argument = spec.partition(":")
    parse = _PARSERS.get(kind)
    try:
        if parse is None:
            raise ValueError("unknown fault")
        fault = parse(argument if colon else None)
        return replace(fault, share=_parse_share(share)) if at else fault
    except ValueError as error:
        raise BadFaultError(text, str(error)) from None


def _parse_share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError("after @ a share from 0% to 100% is needed")
    return float(match[1]) / 100


def _parse_status(argument: str | None) -> Fault:
    code, colon, retry_after = (argument or "").partition(":")
    if not code.isdecimal() or int(code) not in STATUSES:
        raise ValueError("status needs one of the codes below")
    if colon and not retry_after:
        raise ValueError("the Retry-After is empty")
    return Fault("status", status=int(code), retry_after=retry_after or None)


def _parse_latency(argument: str | None) -> Fault:
    delay, tilde, spread = (argument or "").partition("~")
    return Fault("latency", delay_s=parse_duration(delay), spread_s=parse_duration(spread) if tilde else 0.0)


def _parse_limit(argument: str | None) -> Fault:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/s(:bare)?", argument or "")
    if match is None or float(match[1]) <= 0:
        raise ValueError("limit needs a rate > 0 such as 5/s")
    return Fault("limit", rate_per_s=float(match[1]), is_bare=match[2] is not None)


def _parse_capacity(argument: str | None) -> Fault:
    if argument is None or not argument.isdecimal() or int(argument) < 1:
        raise ValueError("capacity needs a number of at least 1 such as capacity:20")
    return Fault("capacity", places=int(argument))


def _parse_overlap(argument: str | None) -> Fault:
    if argument is None or not argument.isdecimal():
        raise ValueError("overlap needs a number of words such as overlap:3")
    return Fault("overlap", words=int(argument))


def _bare(kind: FaultKind) -> Callable[[str | None], Fault]:
    def parse(argument: str | None) -> Fault:
        if argument is not None:
            raise ValueError(f"{kind} takes no argument")
        return Fault(kind)

    return parse


def _counted(kind: FaultKind) -> Callable[[str | None], Fault]:
    def parse(argument: str | None) -> Fault:
        if argument is None or not argument.isdecimal():
            raise ValueError(f"{kind} needs a number of tokens such as {kind}:3")
        return Fault(kind, after_tokens=int(argument))

    return parse


_PARSERS: dict[str, Callable[[str | None], Fault]] = {
    "status": _parse_status,
    "latency": _parse_latency,
    "limit": _parse_limit,
    "capacity": _parse_capacity,
    "overlap": _parse_overlap,
    "quota": _bare("quota"),
    "silence": _bare("silence"),
    "headers": _bare("headers"),
    "reset": _bare("reset"),
    "close": _bare("close"),
    "truncated": _bare("truncated"),
    "noprefill": _bare("noprefill"),
    "preamble": _bare("preamble"),
    "another": _bare("another"),
    "cut": _counted("cut"),
    "stall": _counted("stall"),
    "error": _counted("error"),
    "malformed": _counted("malformed"),
}


def _uniform(*key: object) -> float:
    """A number in [0, 1) that depends only on the key, in every process."""
    digest = blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


class TokenBucket:
    """`limit:RATE/s`: holds one second's worth of requests, at least one."""

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.size = max(1.0, rate_per_s)
        self._level = self.size
        self._at = -math.inf

    def take(self, now: float) -> float:
        """Returns 0.0 if the request passes; else the seconds until the next one may, and takes nothing."""
        self._level = min(self.size, self._level + (now - self._at) * self.rate_per_s)
        self._at = now
        # Refilling in fractions leaves 0.9999999 of a token where one is meant.
        if self._level >= 1 - 1e-9:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self.rate_per_s
