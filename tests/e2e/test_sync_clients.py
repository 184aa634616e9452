"""The synchronous clients, each in a thread, against a gateway in the test's event loop."""

from __future__ import annotations

import asyncio

import pytest
from anthropic import Anthropic
from anthropic import NotFoundError as AnthropicNotFoundError
from openai import APITimeoutError, NotFoundError, OpenAI

from llm_guard.mock.content import say
from tests.e2e.stand import SAID, TOKENS, Stand
from tests.fakes.waiting import eventually

TEXT = "".join(say(TOKENS))


def _openai(stand: Stand) -> OpenAI:
    return OpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0, timeout=10)


def _anthropic(stand: Stand) -> Anthropic:
    return Anthropic(base_url=stand.url, api_key="k", max_retries=0, timeout=10)


async def test_openai_answers_streams_and_embeds(stand: Stand) -> None:
    def scene() -> None:
        with _openai(stand) as client:
            answer = client.chat.completions.create(model="gpt-4o", messages=SAID)
            assert answer.choices[0].message.content == TEXT
            chunks = list(client.chat.completions.create(model="gpt-4o", messages=SAID, stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
            with client.chat.completions.stream(model="gpt-4o", messages=SAID) as stream:
                assert stream.get_final_completion().choices[0].message.content == TEXT
            with client.responses.stream(model="gpt-4o", input="hi") as responses:
                assert responses.get_final_response().output_text == TEXT
            assert client.embeddings.create(model="text-embedding-3-small", input="a").data[0].embedding

    await asyncio.to_thread(scene)


async def test_openai_moves_files_and_sound(stand: Stand) -> None:
    def scene() -> None:
        with _openai(stand) as client:
            file = client.files.create(file=("a.jsonl", b"\x00\xff"), purpose="batch")
            assert client.files.content(file.id).content == b"\x00\xff"
            assert [one.id for one in client.files.list()] == [file.id]
            assert client.files.delete(file.id).deleted
            speech = client.audio.speech.with_streaming_response
            with speech.create(model="gpt-4o-tts", input="a", voice="alloy") as response:
                assert b"".join(response.iter_bytes()).startswith(b"ID3")

    await asyncio.to_thread(scene)


async def test_anthropic_answers_streams_and_counts(stand: Stand) -> None:
    def scene() -> None:
        with _anthropic(stand) as client:
            message = client.messages.create(model="claude-3-opus", max_tokens=9, messages=SAID)
            assert message.content[0].text == TEXT  # type: ignore[union-attr]  # the first block is text
            with client.messages.stream(model="claude-3-opus", max_tokens=9, messages=SAID) as stream:
                assert list(stream.text_stream) == say(TOKENS)
                assert stream.get_final_message().stop_reason == "end_turn"
            assert client.messages.count_tokens(model="claude-3-opus", messages=SAID).input_tokens > 1
            assert "claude-3-opus" in [model.id for model in client.models.list()]

    await asyncio.to_thread(scene)


async def test_unknown_models_raise_not_found_in_both(stand: Stand) -> None:
    def scene() -> None:
        with _openai(stand) as client, pytest.raises(NotFoundError):
            client.chat.completions.create(model="nowhere", messages=SAID)
        with _anthropic(stand) as other, pytest.raises(AnthropicNotFoundError):
            other.messages.create(model="nowhere", max_tokens=9, messages=SAID)

    await asyncio.to_thread(scene)
    assert stand.upstream_requests == 0


async def test_timeout_of_a_sync_client_closes_the_upstream_exchange(stand: Stand) -> None:
    def scene() -> None:
        unsaid = {"x-stainless-read-timeout": "None"}
        with _openai(stand) as client, pytest.raises(APITimeoutError):
            client.with_options(timeout=0.3).chat.completions.create(
                model="gpt-4o+silence", messages=SAID, extra_headers=unsaid
            )

    await asyncio.to_thread(scene)
    await eventually(lambda: stand.provider.stats().departures)
    assert stand.upstream_requests == 1
