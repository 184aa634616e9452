"""Plays the corpus through the gateway and through libraries, and judges each result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.translation import corpus
from benchmarks.translation.checks import problem
from benchmarks.translation.corpus import CLASSES, Case
from benchmarks.translation.replies import reply_of
from benchmarks.translation.stand_in import Received, StandIn
from benchmarks.translation.ways import LIBRARIES, Response, through_gateway, through_library

Json = dict[str, Any]
Echo = Callable[[str], None]

GATEWAY = "llm_guard"
PROMISED_SHARE = 0.97
PROMISED_OF_A_CLASS = 0.9
_DROPPED = "x-llm-guard-dropped"


@dataclass(frozen=True, slots=True)
class Judged:
    """One case in one way."""

    name: str
    number: int
    """Class of the case."""
    problems: Sequence[str] = ()
    is_5xx: bool = False

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Score:
    """All cases that a way offers."""

    way: str
    judged: Sequence[Judged]
    not_offered: int = 0

    def share(self, number: int | None = None) -> float | None:
        """Returns the share of passed cases, of a class or of all; None if none is offered."""
        found = [each.passed for each in self.judged if number in (None, each.number)]
        return sum(found) / len(found) if found else None

    @property
    def broken(self) -> list[str]:
        """The promises that do not hold."""
        share = self.share() or 0.0
        found = [] if share >= PROMISED_SHARE else [f"{share:.1%} of the corpus"]
        for number, name in CLASSES.items():
            share = self.share(number) or 0.0
            if share < PROMISED_OF_A_CLASS:
                found.append(f"class {number}, {name}: {share:.0%}")
        return found + [f"{each.name}: answered by a 5xx" for each in self.judged if each.is_5xx]


def run(echo: Echo, libraries: Sequence[str] = tuple(LIBRARIES), folder: Path | None = None) -> list[Score]:
    """Returns the scores, the gateway's first. `folder` keeps the environments of libraries. Raises LibraryError."""
    cases = corpus.read()
    with _folder(folder) as place, StandIn(cases) as stand_in:
        scores = [_score(GATEWAY, through_gateway(cases, stand_in), stand_in)]
        echo(_line(scores[0]))
        asked = [case for case in cases if case.only != "gateway"]
        for name in libraries:
            echo(f"{name}: environment")
            scores.append(_score(name, through_library(name, asked, stand_in, place), stand_in))
            echo(_line(scores[-1]))
    return scores


def _line(score: Score) -> str:
    passed = sum(each.passed for each in score.judged)
    return f"{score.way}: {passed} of {len(score.judged)}, {score.not_offered} not offered"


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _score(way: str, responses: Iterator[tuple[Case, Response]], stand_in: StandIn) -> Score:
    judged, not_offered = [], 0
    for case, response in responses:
        received = stand_in.taken(case.name)
        if response.is_offered:
            judged.append(judge(case, response, received))
        else:
            not_offered += 1
    return Score(way, judged, not_offered)


def judge(case: Case, response: Response, received: Received) -> Judged:
    """Compares one result with what must be true of it."""
    is_5xx = response.status >= 500
    if case.refused:
        return Judged(case.name, case.number, _problems_of_refusal(case, response, received), is_5xx)
    problems = [f"the provider refused it: {why}" for why in _unrepaired(received, response)]
    if response.raised:
        return Judged(case.name, case.number, [*problems, f"an error: {_first_line(response.raised)}"], is_5xx)
    reply = reply_of(case.client, response.body, response.events)
    if "wrong" in reply:
        problems.append(f"the response cannot be read: {reply['wrong']}")
    problems += filter(None, (problem(_seen(response, received, reply), list(check)) for check in case.checks))
    return Judged(case.name, case.number, [*problems, *_untold(case, response)], is_5xx)


def _seen(response: Response, received: Received, reply: Json) -> Mapping[str, Any]:
    sent = with_plain_texts(received.bodies[-1]) if received.bodies else None
    headers = received.headers[-1] if received.headers else None
    return {"sent": sent, "sent_headers": headers, "reply": reply, "status": response.status}


def with_plain_texts(sent: Json) -> Json:
    """Returns a request in which a content that is one text is that text, which means the same."""
    messages = [{**message, "content": _plain(message.get("content"))} for message in sent.get("messages", ())]
    return {**sent, "messages": messages}


def _plain(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1 and content[0].keys() == {"type", "text"}:
        return content[0]["text"]
    return content


def _unrepaired(received: Received, response: Response) -> Sequence[str]:
    """Returns the refusals, unless another request after them was accepted."""
    return received.refused if response.raised else ()


def _problems_of_refusal(case: Case, response: Response, received: Received) -> list[str]:
    """A request that cannot be expressed is refused with the name of what is in the way: a library raises, and the
    gateway answers 400 before the provider has it."""
    found = [] if response.raised else [f"not refused for {case.refused}"]
    if received.bodies and response.headers is not None:
        found.append("sent to the provider")
    if response.raised and case.refused not in response.raised:
        found.append(f"the refusal does not name {case.refused}: {_first_line(response.raised)}")
    if response.headers is not None and response.status != 400:
        found.append(f"status {response.status}")
    return found


def _first_line(raised: str) -> str:
    return raised.partition("\n")[0][:300]


def _untold(case: Case, response: Response) -> list[str]:
    """Returns the losses that the client is not told of. A library has no place to say it."""
    if response.headers is None:
        return []
    told = {name.strip() for name in response.headers.get(_DROPPED, "").split(",")}
    return [f"not said to be dropped: {name}" for name in case.dropped if name not in told]
