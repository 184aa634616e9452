"""Streams of Claude on the clouds that fail: exceptions, damage and silence are retried, resumed, or raised."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import openai
import pytest
from aiohttp import web

from tests.e2e.clouds import FORMS, chat, claude, said, standing
from tests.fakes.event_frames import error_frame, exception_frame
from tests.fakes.strict_clouds import PIECES, TEXT, StrictCloud, cut, silent

EXCEPTIONS = [
    ("throttlingException", 429), ("modelTimeoutException", 504), ("modelStreamErrorException", 500),
    ("internalServerException", 500), ("serviceUnavailableException", 529), ("validationException", 400),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status"), EXCEPTIONS)
@pytest.mark.parametrize("frame", [exception_frame, error_frame])
async def test_exception_before_the_first_token_is_an_error_with_its_status(name: str, status: int, frame: Any) -> None:
    async with standing("bedrock-invoke", attempts=1) as (cloud, app), claude(app) as client:
        cloud.faults = [cut(1, frame(name, "It failed."))]
        with pytest.raises(anthropic.APIStatusError, match=r"It failed\.") as caught:
            await said(client, stream=True)
        assert caught.value.status_code == status


@pytest.mark.parametrize("sdk", [claude, chat])
async def test_exception_in_the_middle_is_raised_by_the_sdk(sdk: Any) -> None:
    async with standing("bedrock-invoke", attempts=1) as (cloud, app), sdk(app) as client:
        cloud.faults = [cut(4, exception_frame("modelStreamErrorException", "It failed."))]
        with pytest.raises((anthropic.APIStatusError, openai.APIError), match=r"It failed\."):
            await said(client, stream=True)


@pytest.mark.parametrize("sdk", [claude, chat])
@pytest.mark.parametrize("rest", [b"", b"\0\0\0", b"not a frame at all", exception_frame("throttlingException", "x")])
async def test_broken_stream_is_made_again_before_its_first_token(sdk: Any, rest: bytes) -> None:
    async with standing("bedrock-invoke") as (cloud, app), sdk(app) as client:
        cloud.faults = [cut(1, rest)]
        assert await said(client, stream=True) == TEXT
        assert len(cloud.requests) == 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sdk", [claude, chat])
@pytest.mark.parametrize("rest", [b"", b"\0\0\0", b"\xff" * 40])
async def test_broken_stream_is_never_taken_for_a_whole_one(form: str, sdk: Any, rest: bytes) -> None:
    async with standing(form, attempts=1) as (cloud, app), sdk(app) as client:
        cloud.faults = [cut(4, rest)]
        with pytest.raises((anthropic.APIError, openai.APIError, httpx2.HTTPError)):
            await said(client, stream=True)


FAILED = exception_frame("modelStreamErrorException", "It failed.")


@pytest.mark.parametrize(("form", "end"), [
    ("vertex", b""), ("bedrock-invoke", b""), ("bedrock-invoke", FAILED), ("bedrock-invoke", FAILED[:-1] + b"\0"),
])  # fmt: skip
@pytest.mark.parametrize("sdk", [claude, chat])
async def test_broken_stream_is_continued(form: str, end: bytes, sdk: Any) -> None:
    def rest(cloud: StrictCloud, request: web.Request) -> None:
        del request
        messages = cloud.requests[-1][2]["messages"]
        if messages[-1]["role"] == "assistant":
            assert messages[-1]["content"] == "Once upon"
            cloud.pieces = (" ", *PIECES[2:])
        else:  # the exception came together with the first token
            assert end is FAILED

    async with standing(form, recover="continue", attempts=3) as (cloud, app), sdk(app) as client:
        cloud.faults = [cut(4, end), rest]
        assert await said(client, stream=True) == TEXT
        assert (len(cloud.requests), cloud.refused) == (2, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("events", [0, 4])
async def test_silent_stream_ends_in_time(form: str, events: int) -> None:
    async with standing(form, attempts=1, first_token="200ms", idle="200ms") as (cloud, app), claude(app) as client:
        cloud.faults = [silent(events, 5.0)]
        with pytest.raises((anthropic.APIError, httpx2.HTTPError)):
            await said(client, stream=True)
        assert len(cloud.requests) == 1


@pytest.mark.parametrize("end", [b"", FAILED, FAILED[:-1] + b"\0"])
async def test_stream_that_breaks_while_it_is_held_back_is_made_again(end: bytes) -> None:
    rules: Any = {"attempts": 2, "stream": "prebuffer: {tokens: 4, time: 5s}"}
    async with standing("bedrock-invoke", **rules) as (cloud, app), claude(app) as client:
        cloud.faults = [cut(4, end)]
        assert await said(client, stream=True) == TEXT
        assert len(cloud.requests) == 2
