"""Uploads of the official `openai` SDK, run in a thread: the gateway sends them on while the SDK still reads its
file."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest
from openai import AuthenticationError, OpenAI

from tests.chaos.stand import Stand, config_of, standing
from tests.fakes.eager_provider import Act, EagerProvider, early, resetting, store
from tests.fakes.provider import whole
from tests.fakes.waiting import eventually

CONTENT = bytes(range(256)) * 8192
HALF = len(CONTENT) // 2
MODEL = {"gpt-4o-transcribe": {"deployments": [{"upstream": "one", "model": "whisper"}]}}


class SlowFile(io.BytesIO):
    """A file that yields its second half only once the test allows it."""

    name = "batch.jsonl"

    def __init__(self) -> None:
        super().__init__(CONTENT)
        self.may_go_on = threading.Event()
        self.is_halfway = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= HALF:
            self.is_halfway = True
            assert self.may_go_on.wait(10)
        return super().read(size)


def _client(stand: Stand) -> OpenAI:
    return OpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0, timeout=10)


@pytest.mark.parametrize("acts", [(store,), (resetting(HALF // 2), store)], ids=["at once", "retried"])
async def test_file_reaches_the_provider_while_it_is_read(acts: tuple[Act, ...]) -> None:
    file = SlowFile()

    def scene(stand: Stand) -> str:
        with _client(stand) as client:
            return client.files.create(file=file, purpose="batch").id

    async with (
        EagerProvider(*acts) as provider,
        standing(config_of(provider.url, retry={"max_attempts": 3})) as stand,
    ):
        uploading = asyncio.create_task(asyncio.to_thread(scene, stand))
        await eventually(lambda: len(provider.uploads) == len(acts) and len(provider.uploads[-1].body) >= HALF)
        assert file.is_halfway
        file.may_go_on.set()
        assert await uploading == "file-1"
        assert CONTENT in provider.uploads[-1].body


async def test_transcription_begins_while_its_file_is_read() -> None:
    """The Python SDK writes the fields of a form before its files."""
    file = SlowFile()

    def scene(stand: Stand) -> None:
        with _client(stand) as client:
            client.audio.transcriptions.create(model="gpt-4o-transcribe", file=file)

    async with (
        EagerProvider(store) as provider,
        standing(config_of(provider.url, models=MODEL, answers="off")) as stand,
    ):
        uploading = asyncio.create_task(asyncio.to_thread(scene, stand))
        await eventually(lambda: provider.uploads and len(provider.uploads[0].body) >= HALF)
        file.may_go_on.set()
        await uploading
        assert b"\r\n\r\nwhisper\r\n" in provider.uploads[0].body
        assert CONTENT in provider.uploads[0].body


async def test_key_that_the_provider_refuses_early_is_an_exception_of_the_sdk() -> None:
    refusal = whole(401, b'{"error":{"message":"no","type":"invalid_request_error","code":"invalid_api_key"}}')
    file = SlowFile()

    def scene(stand: Stand) -> None:
        with _client(stand) as client, pytest.raises(AuthenticationError, match="no"):
            client.files.create(file=file, purpose="batch")

    async with EagerProvider(early(HALF // 2, refusal)) as provider, standing(config_of(provider.url)) as stand:
        uploading = asyncio.create_task(asyncio.to_thread(scene, stand))
        await stand.calls()
        file.may_go_on.set()
        await uploading
