"""Successful responses and errors of a provider, in both dialects, as bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

from benchmarks.virtual.provider import Answer
from llm_guard.dialects import DialectName
from llm_guard.mock.errors import error_reply, limit_reply, quota_reply
from llm_guard.mock.exchange import MockResponse
from llm_guard.proxy.call import Headers

ErrorName = Literal["429", "503", "529", "quota"]

_JSON: Headers = (("content-type", "application/json"),)
_EVENTS: Headers = (("content-type", "text/event-stream; charset=utf-8"),)


@cache
def right(dialect: DialectName, model: str, delay_s: float) -> Answer:
    """A unary response."""
    if dialect == "anthropic":
        body = (
            f'{{"id":"msg_1","type":"message","role":"assistant","model":"{model}","content":[{{"type":"text",'
            '"text":"word"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}'
        )
    else:
        body = (
            f'{{"id":"chatcmpl-1","object":"chat.completion","created":1800000000,"model":"{model}","choices":[{{'
            '"index":0,"message":{"role":"assistant","content":"word","refusal":null},"logprobs":null,"finish_reason":'
            '"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}'
        )
    return Answer(200, _JSON, body.encode(), delay_s)


@cache
def right_stream(
    model: str,
    *,
    head_s: float,
    first_token_s: float,
    tokens: int = 5,
    gap_s: float = 0.05,
    opens_with_role: bool = True,
) -> Answer:
    """A stream of OpenAI's: its head after `head_s`, the first token `first_token_s` after that."""
    head = f'{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1800000000,"model":"{model}","choices":'
    opening = '"delta":{"role":"assistant","content":""}'
    role = f'data: {head}[{{"index":0,{opening},"finish_reason":null}}]}}\n\n'.encode()
    token = f'data: {head}[{{"index":0,"delta":{{"content":"w "}},"finish_reason":null}}]}}\n\n'.encode()
    end = f'data: {head}[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\ndata: [DONE]\n\n'.encode()
    pieces = [(first_token_s, token), *[(gap_s, token)] * (tokens - 1), (gap_s, end)]
    if opens_with_role:
        pieces.insert(0, (0.0, role))
    return Answer(200, _EVENTS, b"", head_s, tuple(pieces))


@cache
def error(dialect: DialectName, name: ErrorName, model: str, retry_after: str | None, delay_s: float = 0.0) -> Answer:
    """An error with this Retry-After as its only hint."""
    if name == "quota":
        reply = quota_reply(dialect)
    elif name == "429":
        reply = limit_reply(dialect, model, 1.0, 0.0, is_bare=True)
    else:
        reply = error_reply(dialect, int(name), model)
    hint: Headers = () if retry_after is None else (("retry-after", retry_after),)
    answer = _answer(reply, delay_s)
    return replace(answer, headers=(*answer.headers, *hint))


def _answer(reply: MockResponse, delay_s: float) -> Answer:
    return Answer(reply.status, (*_JSON, *reply.headers.items()), reply.body, delay_s)
