"""Fuzz harnesses for resumed streams: the text join, and transcripts and splices of each format."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.resume.base import index_in, mapping
from llm_guard.dialects.resume.overlap import folded
from llm_guard.dialects.resume.text_join import anchor, given_back, instruction_text, seam
from llm_guard.dialects.resume.transcript import Prefill, ResumeMode, Transcript
from llm_guard.dialects.sse import SseEvent, events_in
from tests.fuzz.mutation import Step, mutated, rolled

RESUME_MODES: tuple[ResumeMode, ...] = ("prefill", "instruction", "restart")
PREFILLS: tuple[Prefill, ...] = ("none", "plain", "prefix", "partial", "continue_final_message")
_PATHS = {
    "/v1/chat/completions": "openai", "/v1/completions": "openai", "/v1/responses": "openai",
    "/v1/messages": "anthropic",
}  # fmt: skip
_MOST_BYTES_FOR_ONE = 20
_MOST_BYTES_FOR_NONE = 20_000
"""Allowance for added bytes: final events repeat all of a response's texts, and missing parts of its items are filled
in."""
_MARKER = {"recovered": "x", "deployment": "y"}


def fuzz_text_join(data: bytes) -> None:
    """The join is the same for any split of the input; its output is a suffix of the input, and is everything that the
    client does not have yet."""
    dice, raw = rolled(data)
    text = raw.decode("utf-8", "replace")
    sent = text[: (at := dice.randrange(len(text) + 1))]
    new = text[dice.choice((at, 0, max(0, at - dice.randrange(60)), dice.randrange(len(text) + 1))) :]
    assert given_back(sent).endswith(anchor(sent))
    instruction_text(anchor(sent)).encode("utf-8", "surrogatepass")
    for resume_mode in RESUME_MODES:
        whole, cut = seam(resume_mode, sent), seam(resume_mode, sent)
        passed = whole.feed(new) + whole.end()
        pieces = [piece.decode("utf-32-le") for piece in _cut_chars(dice, new)]
        assert "".join(map(cut.feed, pieces)) + cut.end() == passed
        assert cut.has_diverged == whole.has_diverged
        if resume_mode == "restart":
            assert whole.has_diverged is not new.startswith(sent)
            assert passed == ("" if whole.has_diverged else new[len(sent) :])
        elif resume_mode == "prefill":
            assert new.endswith(passed)
            dropped = new[: len(new) - len(passed)].strip()
            assert whole.has_diverged or dropped in sent
        else:
            assert passed in new
            at = new.rindex(passed)
            assert whole.has_diverged or not given_back(sent) or folded(sent)[-6:] in folded(new[:at])


def fuzz_continuation(data: bytes) -> None:
    """A stream is cut and another one resumes it: the text that the client has read is kept and continues as in the
    second stream."""
    dice, raw = rolled(data)
    path = dice.choice(list(_PATHS))
    events = [event + b"\n\n" for event in raw.replace(b"\r\n", b"\n").split(b"\n\n")]
    cut = dice.randrange(len(events) + 1)
    first, rest = b"".join(events[:cut]), b"".join(events[cut:])
    transcript = DIALECTS["anthropic" if _PATHS[path] == "anthropic" else "openai"].transcript(path)
    assert transcript is not None
    for block in cuts_of_events(dice, events[:cut]):
        transcript.feed(block)
    request = _request(dice, path)
    told = first
    for _ in range(dice.choice((1, 1, 2))):
        resume_mode = _resume_mode(dice, transcript, request)
        if resume_mode is None:
            break
        asked = transcript.request(request, resume_mode, dice.choice(PREFILLS))
        json.dumps(asked).encode()
        before = told
        second = _second(dice, resume_mode, rest, first + rest, raw) + b"\n\n"
        splice = transcript.splice(resume_mode, dict(_MARKER))
        for block in cuts_of_events(dice, [event + b"\n\n" for event in second.split(b"\n\n")]):
            has_diverged = splice.has_diverged
            new = splice.feed(block)
            assert len(new) <= _MOST_BYTES_FOR_ONE * (len(told) + len(second)) + _MOST_BYTES_FOR_NONE
            assert not (has_diverged and new), "it had diverged"
            told += new
        _is_readable(told[len(before) :])
        if resume_mode == "restart":
            _is_repeated(path, before, told, second, splice.has_diverged)
        _is_sane(transcript)
        if splice.has_diverged or transcript.has_ended:
            break


def cuts_of_events(dice: random.Random, events: list[bytes]) -> list[bytes]:
    """Groups the events into random blocks."""
    bounds = sorted(dice.randrange(len(events) + 1) for _ in range(dice.randrange(6)))
    return [b"".join(events[start:end]) for start, end in pairwise([0, *bounds, len(events)])]


def texts_of(path: str, stream: bytes, before: bytes = b"") -> dict[object, str]:
    """Returns the texts that a plain SDK reads in a stream, by key; blocks may have begun in the stream `before` it."""
    texts: dict[object, str] = {}
    begun = {index_in(body, "index") for event in events_in(before) if (body := _begins_block(event))}
    for event in events_in(stream):
        body = _object(event)
        if _begins_block(event):
            begun.add(index_in(body, "index"))
        for key, text in _texts_in(path, event, body):
            if path != "/v1/messages" or key in begun:  # SDKs ignore deltas of a block that has not begun
                texts[key] = texts.get(key, "") + text
    return texts


def _object(event: SseEvent) -> dict[str, Any]:
    try:
        body = json.loads(event.data)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _begins_block(event: SseEvent) -> dict[str, Any]:
    body = _object(event)
    return body if body.get("type", event.name) == "content_block_start" else {}


def _texts_in(path: str, event: SseEvent, body: dict[str, Any]) -> list[tuple[object, str]]:
    if path == "/v1/messages":
        delta, at = mapping(body.get("delta")), index_in(body, "index")
        is_text = body.get("type", event.name) == "content_block_delta" and delta.get("type") == "text_delta"
        return [(at, delta["text"])] if is_text and isinstance(delta.get("text"), str) else []
    if path == "/v1/responses":
        is_text = body.get("type", event.name) == "response.output_text.delta" and isinstance(body.get("delta"), str)
        return [((index_in(body, "output_index"), index_in(body, "content_index")), body["delta"])] if is_text else []
    found: list[tuple[object, str]] = []
    for choice in body["choices"] if isinstance(body.get("choices"), list) else ():
        if isinstance(choice, dict):
            delta = mapping(choice.get("delta"))
            for key, holder in (("content", delta), ("text", choice)):
                if isinstance(text := holder.get(key), str):
                    found.append(((max(0, index_in(choice, "index")), key), text))
    return found


def _cut_chars(dice: random.Random, text: str) -> list[bytes]:
    raw = text.encode("utf-32-le")
    bounds = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(8)))
    return [raw[start * 4 : end * 4] for start, end in pairwise([0, *bounds, len(text)])]


def _request(dice: random.Random, path: str) -> dict[str, Any]:
    odd: Any = dice.choice((None, "text", 7, [], {}, [None], [{"role": "assistant", "content": "Once"}], [{"role": 1}]))
    asks: dict[str, Any] = {"model": "m", "stream": True, dice.choice(("max_tokens", "max_output_tokens")): dice.choice(
        (1, 64, None, "x", -1, 10**400)
    )}  # fmt: skip
    if path == "/v1/completions":
        return {**asks, "prompt": dice.choice(("Once", odd))}
    if path == "/v1/responses":
        return {**asks, "input": dice.choice(("Hi", odd))}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": dice.choice(("Once", odd))}]
    return {**asks, "messages": dice.choice((messages, messages[:1], messages, odd))}


def _resume_mode(dice: random.Random, transcript: Transcript, request: dict[str, Any]) -> ResumeMode | None:
    """Returns any resume mode that the transcript allows."""
    possible: list[ResumeMode] = [*transcript.resume_modes(request, dice.choice(PREFILLS))]
    if transcript.can_restart(request):
        possible.append("restart")
    return dice.choice(possible) if possible else None


def _second(dice: random.Random, resume_mode: ResumeMode, rest: bytes, whole: bytes, raw: bytes) -> bytes:
    """Returns the next provider's stream: the rest, all of it again, something else, or a mutation of these."""
    stream = dice.choice((whole, whole, rest, raw) if resume_mode == "restart" else (rest, whole, raw))
    steps: list[Step] = [(dice.getrandbits(8), dice.getrandbits(16), dice.getrandbits(32)) for _ in range(3)]
    return mutated(stream, steps[: dice.choice((0, 0, 1, 1, 3))], [whole])


def _is_readable(told: bytes) -> None:
    """Checks that the output consists of complete events, each of them an object or `[DONE]`."""
    found = list(events_in(told))
    assert not told or told.endswith(b"\n\n")
    for event in found:
        assert event.data == b"[DONE]" or isinstance(json.loads(event.data), dict)


def _is_repeated(path: str, before: bytes, told: bytes, second: bytes, has_diverged: bool) -> None:
    """Checks that a restart repeats each text: the client's text is a prefix of the second run's, if any of that was
    passed on."""
    had, has, said = texts_of(path, before), texts_of(path, told), texts_of(path, second, before)
    for key, text in has.items():
        assert text.startswith(had.get(key, ""))
        if text != had.get(key, ""):
            assert said.get(key, "").startswith(text), "the client was told what the second run did not say"


def _is_sane(transcript: Transcript) -> None:
    for count in (transcript.usage.input, transcript.usage.output):
        assert count is None or count >= 0
    assert transcript.wasted_tokens >= 0
