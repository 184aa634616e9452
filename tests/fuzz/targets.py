"""The list of fuzz targets: each has a harness, its seeds, and the number of examples that the test command runs.

A target's name is the folder of its regression cases in `tests/data/fuzz`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import configs, continuations, errors, fleets, proxied, requests, seeds, streams


@dataclass(frozen=True, slots=True)
class Target:
    """`run` takes an input (four bytes of random seed, then the data) and raises if an invariant does not hold."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    examples: int
    """Number of examples in the bounded run."""
    words: tuple[bytes, ...] = ()
    """Tokens to insert, in addition to those that suit every text."""
    is_timed: bool = False
    """True if it measures time: the long run must not slow it down by tracing."""

    def cases(self, name: str) -> list[Path]:
        """Returns the inputs that broke this target in the past."""
        return sorted((seeds.DATA / "fuzz" / name).glob("*"))


_STREAMS = tuple(seeds.STREAMS.values())
_EVENT_WORDS = (
    b"data: ", b"data:[DONE]\n\n", b"event: error\n", b"event:", b"error: x", b": ping\n\n", b"id: 1\n", b"retry: 1\n",
    b'"finish_reason":"stop"', b'"index":1', b'"usage":{"prompt_tokens":1}', b'"type":"message_stop"',
    b'"type":"content_block_stop"', b'"type":"response.completed"', b'"type":"response.output_item.done"',
    b'"error":{}',
    b'"output_index":9999', b'"content_index":9999', b"\n: c\n",
)  # fmt: skip
_ERROR_WORDS = (
    b"Error code: 429 - {'error': ", b'{"error":{"message":"', b'"headers":{"retry-after":{}}', b"try again in 5s",
    b"\nretry-after: 1\n", b"\nx-reset: 1\n", b"<title>", b"&amp;", b"True", b"None", b"\\\\", b"<EOF>",
    b":message-type=error", b"\n\ndata: ", b'"metadata":{"raw":"', b'"details":[', b'"code":',
)  # fmt: skip
_YAML_WORDS = (
    b"&a ", b"*a", b"*u", b"<<: *u", b"!!int ", b"!!python/object:os.system ", b"!x ", b"${KEY}", b"${OTHER}", b"${",
    b"$$", b"${NUMBER}", b"|\n ", b">\n ", b"? ", b"- ", b"---\n", b"...\n", b"%YAML 1.9\n", b"1e999", b".nan",
    b"0x1f", b"2024-01-01", b"-1s", b"0s", b"99999999999h", b"null",
    b"adaptive", b"[{}]", b"*: 1", b"\xc2\x85", b"[*a,*a,*a,*a,*a,*a,*a,*a]",
)  # fmt: skip
_HEADER_WORDS = (
    b"Connection: close, x-custom\n", b"X-LLM-Guard-A: 1\n", b"x_llm_guard_a: 1\n", b": ", b"\n\r",
    b"Content-Length: 1\n", b"Transfer-Encoding: chunked\n", b"TRANSFER-ENCODING : x\n",
    b"authorization: Bearer b\n", b"Set-Cookie: a\n",
)  # fmt: skip
_FORM_WORDS = (
    b"--b", b"--b--", b"\r\n\r\n", b'content-disposition: form-data; name="model"', b"; filename=", b'"model":',
    b'"model"', b"name*=utf-8''model", b'"stream":true', b'"n":3', b'\\u006dodel":', b'"model":"a"',
)  # fmt: skip
_FLEET_WORDS = (
    b'"open"', b'"half_open"', b'"closed"', b"1e300", b"1e12", b"1e-300", b'"counted":1000', b'"calls":0',
    b'"latest_sent_s":[]', b'"ok_sent_s":null', b'"ok_sent_s":1e9', b'"recovered_s":0',
)  # fmt: skip
_BODIES = tuple(answer.partition(b"\n\n")[2] for answer in seeds.ANSWERS)

TARGETS = {
    "events": Target(streams.fuzz_events, _STREAMS, 100, _EVENT_WORDS),
    "watch": Target(streams.fuzz_watch, _STREAMS, 150, _EVENT_WORDS),
    "watch_cost": Target(streams.fuzz_watch_cost, _STREAMS, 5, _EVENT_WORDS, is_timed=True),
    "view": Target(streams.fuzz_view, _STREAMS, 100, _EVENT_WORDS),
    "view_cost": Target(streams.fuzz_view_cost, _STREAMS, 5, _EVENT_WORDS, is_timed=True),
    "classify": Target(errors.fuzz_classify, seeds.ANSWERS, 150, _ERROR_WORDS),
    "classify_cost": Target(errors.fuzz_classify_cost, seeds.ANSWERS, 15, _ERROR_WORDS, is_timed=True),
    "loose_json": Target(errors.fuzz_loose_json, _BODIES, 150, _ERROR_WORDS),
    "limits": Target(errors.fuzz_limits, seeds.LIMIT_HEADERS, 150, _ERROR_WORDS),
    "headers": Target(proxied.fuzz_headers, seeds.CLIENT_HEADERS, 150, _HEADER_WORDS),
    "model": Target(requests.fuzz_model, seeds.REQUESTS, 150, _FORM_WORDS),
    "form": Target(requests.fuzz_form, seeds.FORMS, 100, _FORM_WORDS),
    "config": Target(configs.fuzz_config, seeds.CONFIGS, 15, _YAML_WORDS),
    "seam": Target(continuations.fuzz_text_join, tuple(text.encode() for text in seeds.TEXTS), 120),
    "continuation": Target(continuations.fuzz_continuation, _STREAMS, 200, _EVENT_WORDS),
    "fleet_content": Target(fleets.fuzz_fleet_content, fleets.CONTENTS, 150, _FLEET_WORDS),
    "stored_call": Target(fleets.fuzz_stored_call, fleets.CALLS, 150),
}
