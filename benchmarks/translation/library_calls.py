"""Calls a library for each case that comes on standard input, one JSON object a line, and prints what came back.

Runs in the library's own environment: `library_calls.py litellm|any-llm URL`. Nothing of this project is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

Json = dict[str, Any]

_CALL_WITHIN_S = 20.0


class NotOfferedError(Exception):
    """The library has no such endpoint."""


async def of_litellm(litellm: Any, url: str, case: Json) -> Any:
    """Calls litellm. It would send Messages for OpenAI to `/v1/responses`, which compatible servers lack."""
    litellm.use_chat_completions_url_for_anthropic_messages = True
    provider = "openai" if case["upstream"] == "chat" else "anthropic"
    base = f"{url}/{case['name']}" + ("/v1" if provider == "openai" else "")
    fields = {"model": f"{provider}/{case['model']}", "api_base": base, "api_key": "k", **case["request"]}
    fields |= {"drop_params": True, "num_retries": 0, "max_retries": 0}
    if case["client"] == "chat":
        return await litellm.acompletion(**fields)
    if case["client"] == "messages":
        del fields["num_retries"], fields["max_retries"]
        return await litellm.anthropic.messages.acreate(**fields)
    if case["client"] == "responses":
        fields["use_chat_completions_api"] = True
        return await litellm.aresponses(**fields)
    system = case["request"].get("system")
    messages = [*([{"role": "system", "content": system}] if system else []), *case["request"]["messages"]]
    counted = litellm.token_counter(model=case["model"], messages=messages, tools=case["request"].get("tools"))
    return {"input_tokens": counted}


async def of_any_llm(any_llm: Any, url: str, case: Json) -> Any:
    """Calls any-llm."""
    provider = "openai" if case["upstream"] == "chat" else "anthropic"
    base = f"{url}/{case['name']}" + ("/v1" if provider == "openai" else "")
    fields = {"model": case["model"], "provider": provider, "api_base": base, "api_key": "k", **case["request"]}
    fields["client_args"] = {"max_retries": 0}
    if case["client"] == "chat":
        return await any_llm.acompletion(**fields)
    if case["client"] == "messages":
        return await any_llm.amessages(**fields)
    raise NotOfferedError


LIBRARIES: dict[str, tuple[str, Callable[[Any, str, Json], Awaitable[Any]]]] = {
    "litellm": ("litellm", of_litellm),
    "any-llm": ("any_llm", of_any_llm),
}
"""Module and call, by name."""


def plain(value: Any) -> Any:
    """Returns a library's object as JSON."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def from_sse(raw: bytes) -> list[Json]:
    """Returns the events of a stream that a library hands on in bytes."""
    lines = [line[5:].strip() for line in raw.splitlines() if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line and line != b"[DONE]"]


async def called(call: Callable[[Json], Awaitable[Any]], case: Json) -> Json:
    """Returns what a case gives: a body, or the events of a stream up to an exception."""
    events: list[Json] = []
    try:
        async with asyncio.timeout(_CALL_WITHIN_S):
            found = await call(case)
            if not hasattr(found, "__aiter__"):
                return {"body": plain(found)}
            async for event in found:
                if isinstance(event, bytes | str):
                    events += from_sse(event.encode() if isinstance(event, str) else event)
                else:
                    events.append(plain(event))
    except NotOfferedError:
        return {"is_offered": False}
    except Exception as error:  # noqa: BLE001  # any exception counts as the library's response
        raised = f"{type(error).__name__}: {error}".partition("\nTraceback")[0][:2000]
        if not events:
            return {"raised": raised}
        described = {"type": "error", "message": raised}
        events.append({**described, "error": described})
    return {"events": events}


async def main() -> None:
    """Serves cases until standard input ends."""
    name, url = sys.argv[1:3]
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="CRITICAL")
    module, call = LIBRARIES[name]
    bound = partial(call, importlib.import_module(module), url)
    printed = sys.stdout
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        with contextlib.redirect_stdout(io.StringIO()):  # litellm prints advice
            found = await called(bound, json.loads(line))
        print(json.dumps(found, default=str), file=printed, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
