"""Images, sound, files and lists of the `openai` SDK through the gateway: binary bodies and calls without a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.e2e.stand import Stand

BYTES = bytes(range(256)) * 4


async def test_images_are_generated(openai: AsyncOpenAI) -> None:
    images = await openai.images.generate(model="gpt-image-1", prompt="a", n=2)
    assert [bool(image.b64_json) for image in images.data or []] == [True, True]


async def test_speech_is_binary_whole_and_streamed(openai: AsyncOpenAI, tmp_path: Path) -> None:
    whole = await openai.audio.speech.create(model="gpt-4o-tts", input="a", voice="alloy")
    assert whole.content.startswith(b"ID3\x04\x00\x00\x01\x02")
    assert whole.response.headers["content-type"] == "audio/mpeg"
    speech = openai.audio.speech.with_streaming_response
    async with speech.create(model="gpt-4o-tts", input="a", voice="alloy") as response:
        await response.stream_to_file(tmp_path / "a.mp3")
    assert (tmp_path / "a.mp3").read_bytes() == whole.content


async def test_transcription_uploads_its_file_unchanged(openai: AsyncOpenAI, stand: Stand) -> None:
    heard = await openai.audio.transcriptions.create(model="gpt-4o-transcribe", file=("a.wav", BYTES))
    assert heard.text == f"heard {len(BYTES)} bytes"
    assert BYTES in stand.provider.last.body


async def test_transcription_as_text_is_not_json(openai: AsyncOpenAI) -> None:
    heard = await openai.audio.transcriptions.create(
        model="gpt-4o-transcribe", file=("a.wav", BYTES), response_format="text"
    )
    assert heard == f"heard {len(BYTES)} bytes\n"


async def test_moderation_needs_no_model(openai: AsyncOpenAI) -> None:
    judged = await openai.moderations.create(input=["a", "b"])
    assert [result.flagged for result in judged.results] == [False, False]


async def test_files_are_stored_listed_read_and_deleted(openai: AsyncOpenAI) -> None:
    file = await openai.files.create(file=("a.jsonl", BYTES), purpose="batch")
    assert (file.bytes, file.filename) == (len(BYTES), "a.jsonl")
    assert [one.id async for one in openai.files.list()] == [file.id]
    assert (await openai.files.retrieve(file.id)).id == file.id
    assert (await openai.files.content(file.id)).content == BYTES
    assert (await openai.files.delete(file.id)).deleted
    with pytest.raises(NotFoundError, match=file.id):
        await openai.files.retrieve(file.id)


async def test_missing_file_is_requested_once(openai: AsyncOpenAI, stand: Stand) -> None:
    with pytest.raises(NotFoundError):
        await openai.files.content("file-nowhere")
    assert stand.upstream_requests == 1


async def test_batches_are_created_and_found(openai: AsyncOpenAI) -> None:
    batch = await openai.batches.create(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h")
    assert (await openai.batches.retrieve(batch.id)).status == "completed"
    assert [one.id async for one in openai.batches.list()] == [batch.id]


async def test_models_are_those_of_the_gateway(openai: AsyncOpenAI) -> None:
    names = [model.id async for model in openai.models.list()]
    assert "gpt-4o" in names
    for name in names:
        assert (await openai.models.retrieve(name)).id == name
    with pytest.raises(NotFoundError, match="no route for the model"):
        await openai.models.retrieve("no such/model")


async def test_models_of_an_upstream_are_the_providers_own(openai: AsyncOpenAI, stand: Stand) -> None:
    root = str(openai.base_url).removesuffix("/v1/")
    openai = openai.with_options(base_url=f"{root}/upstreams/openai/v1")
    assert "gpt-4o" in [model.id async for model in openai.models.list()]
    assert (await openai.models.retrieve("ft:gpt-4o:org/x y")).object == "model"
    assert stand.provider.last.target == "/v1/models/ft:gpt-4o:org%2Fx%20y"
