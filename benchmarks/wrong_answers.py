"""Wrong responses with status 200, by endpoint and form, with a real gateway: what the client gets, whether the second
deployment is tried, and what the breaker records.

Includes streams that hang behind keep-alives. Right responses must pass byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import first_bytes
from benchmarks.first_bytes import Delays
from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import END, Respond, ScriptedProvider, chunk, stream_head, whole
from tests.fakes.wrong_answers import ENDPOINTS, Case, Endpoint, good_cases, hang_cases, wrong_cases

_STREAMS = Path(__file__).parent.parent / "tests" / "data" / "streams"
_FAULTS = (
    "cut", "error", "overloaded", "abort", "html", "comments", "failed", "web_search", "speech", "transcription",
)  # fmt: skip
"""Parts of the names of recorded streams that are faulty, incomplete, or of other endpoints."""
_FORMS = {"chat": CHAT, "completions": LEGACY, "responses": RESPONSES, "messages": MESSAGES}


_HANG = {"first_token": "150ms", "stall": "150ms"}
"""Limits that detect a stream which hangs behind keep-alives; short, so that the benchmark is quick."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """Result for one wrong response."""

    case: Case
    status: int
    is_right: bool
    """True if the client got the second deployment's response, or an error: not a byte of the wrong response. After a
    first token: if it got an error event, and the response was broken off."""
    is_second_tried: bool
    found: str
    """Failure kind of the first attempt."""
    failures: int
    closes: int
    """Counts of the first deployment's breaker: failures and successes."""

    @property
    def is_held(self) -> bool:
        """True if all of it is as promised."""
        is_evidence = self.case.kind in ("truncated", "timeout")
        is_tried = self.is_second_tried == (self.case.endpoint.is_repeatable and not self.case.has_begun)
        return self.is_right and is_tried and self.found == self.case.kind and (is_evidence or not self.failures)


@dataclass(frozen=True, slots=True)
class Judged:
    """All results."""

    wrong: list[Wrong]
    right: dict[str, bool]
    """For each right response: whether it passed unmodified."""
    first_bytes: list[Delays]
    """For responses that are relayed without validation."""

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = [f"{each.case}: {each.status}, {each.found}" for each in self.wrong if not each.is_held]
        found += [f"{each.case} closed the breaker" for each in self.wrong if each.closes]
        found += [f"{name} did not pass" for name, is_passed in self.right.items() if not is_passed]
        return found + [promise for first_byte in self.first_bytes for promise in first_byte.broken]


def run(say: Callable[[str], None]) -> Judged:
    """Plays every case; takes about a minute."""
    logging.disable(logging.CRITICAL)
    judged = asyncio.run(_play())
    passed = sum(not each.is_right for each in judged.wrong)
    refused = sum(not is_passed for is_passed in judged.right.values())
    say(f"{len(judged.wrong)} wrong answers, {passed} passed as right")
    say(f"{len(judged.right)} right answers, {refused} refused")
    latest_s = max(first_byte.through[-1] for first_byte in judged.first_bytes)
    say(f"first bytes of {len(judged.first_bytes)} kinds of other answers: {1000 * latest_s:.1f} ms at the latest")
    return judged


def page(judged: Judged) -> list[str]:
    """The lines of wrong-answers.md."""
    passed = sum(not each.is_right for each in judged.wrong)
    refused = sum(not is_passed for is_passed in judged.right.values())
    lines = [
        "# Wrong answers with status 200",
        "",
        "A provider answers 200 with something that is not what the endpoint returns; a second deployment is well.",
        "",
        f"- wrong answers passed as right: **{passed}** of {len(judged.wrong)}",
        f"- right answers refused: **{refused}** of {len(judged.right)}, the recorded streams among them",
        "- files are not repeatable: their client gets the error, and no second file is created",
        "- a stream that hangs behind keep-alives is found by `first_token` or `stall`; a client that has a token by",
        "  then gets an error event (`stream.recover: off`)",
        "",
        "| endpoint | form | the client gets | second deployment | failure | breaker learns |",
        "|---|---|---|---|---|---|",
    ]
    for each in judged.wrong:
        got = "the second's answer" if each.status == 200 else f"{each.status}"
        got = "an error event" if each.case.has_begun else got
        tried = "tried" if each.is_second_tried else "not tried"
        learned = "a failure" if each.failures else "a success" if each.closes else "nothing"
        got = got if each.is_right else "THE WRONG ANSWER"
        lines.append(f"| {each.case.endpoint.name} | {each.case.form} | {got} | {tried} | {each.found} | {learned} |")
    return [*lines, "", *first_bytes.section(judged.first_bytes)]


async def _play() -> Judged:
    wrong = [await _wrong(case) for case in (*wrong_cases(), *hang_cases())]
    right = {str(case): await _is_passed(case) for case in good_cases()}
    for name, case, sent in _recorded():
        async with ScriptedProvider(case.script) as provider, standing(config_of(provider.url)) as stand:
            reply = await _call(stand, case)
            right[name] = reply.status == 200 and reply.is_whole and reply.body.startswith(sent.rstrip())
    return Judged(wrong, right, await first_bytes.measure())


async def _wrong(case: Case) -> Wrong:
    good = whole(200, case.endpoint.answer, {"content-type": case.endpoint.content_type})
    form = _FORMS.get(case.endpoint.name, CHAT)
    expected = form.stream_bytes if case.is_stream else case.endpoint.answer
    async with (
        ScriptedProvider(case.script) as first,
        ScriptedProvider(form.good_stream if case.is_stream else (good,)) as second,
        _two_deployments(first.url, second.url) as stand,
    ):
        reply = await _call(stand, case)
        (call,) = await stand.calls()
        tried = [attempt["deployment"] for attempt in call["attempts"]]
        deployment = next(each for each in stand.app.gateway.deployments() if each.label == tried[0])
        seen = deployment.breaker.snapshot(asyncio.get_running_loop().time())
        is_right = reply.body == expected if reply.status == 200 else b'"error"' in reply.body
        if case.has_begun:
            is_right = not reply.is_whole and b"event: error" in reply.body
        return Wrong(
            case,
            reply.status,
            is_right,
            bool(second.requests),
            call["attempts"][0]["outcome"],
            seen.failures,
            seen.calls - seen.failures,
        )


async def _is_passed(case: Case) -> bool:
    async with ScriptedProvider(case.script) as provider, standing(config_of(provider.url)) as stand:
        reply = await _call(stand, case)
        sent = b"".join(step.data for step in case.script if isinstance(step, Respond))
        is_same = reply.body == case.endpoint.answer or (len(case.script) == 1 and sent.endswith(reply.body))
        return (reply.status, reply.is_whole, is_same, len(provider.requests)) == (200, True, True, 1)


def _recorded() -> Iterator[tuple[str, Case, bytes]]:
    """Yields every good stream of the test data."""
    by_name = {endpoint.name: endpoint for endpoint in ENDPOINTS}
    for file in sorted(_STREAMS.glob("*.sse")):
        if any(fault in file.stem for fault in _FAULTS) or file.stem == "anthropic_complete":
            continue
        sent = file.read_bytes()
        steps = (stream_head(), chunk(sent), END)
        yield f"recorded {file.stem}", Case("recorded", _endpoint_of(file.stem, by_name), steps, "", True), sent


def _endpoint_of(stem: str, by_name: dict[str, Endpoint]) -> Endpoint:
    if stem.startswith("anthropic"):
        return by_name["messages"]
    if stem.startswith("responses"):
        return by_name["responses"]
    return by_name["completions" if stem.endswith("completions") else "chat"]


async def _call(stand: Stand, case: Case) -> Reply:
    request = case.request
    if "two_choices" in case.form:
        request = request.replace(b'"stream"', b'"n":2,"stream"')
    return await ask(stand.url, case.endpoint.path, request, case.endpoint.headers)


@asynccontextmanager
async def _two_deployments(first: str, second: str) -> AsyncIterator[Stand]:
    upstreams = {
        "other": {"dialect": "openai", "base_url": f"{second}/v1"},
        "another": {"dialect": "anthropic", "base_url": second},
    }
    models = {
        "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "other", "priority": 1}]},
        "claude": {"deployments": [{"upstream": "two"}, {"upstream": "another", "priority": 1}]},
    }
    config = config_of(
        first, retry={"max_attempts": 2}, upstreams=upstreams, models=models, timeout=_HANG, stream={"recover": "off"}
    )
    async with standing(config) as stand:
        yield stand
