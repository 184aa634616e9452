"""The comparison of the SDKs' own tests, and the mock that they run against."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import anthropic
import httpx2
import openai
import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.beta import AgentSessionEvent
from openai.types.chat import ChatCompletion
from openai.types.fine_tuning import FineTuningJob

from benchmarks.sdk_suites import report
from benchmarks.sdk_suites.mock import MockApi, read_endpoints, read_listing
from benchmarks.sdk_suites.run import CONFIG, Difference, Outcome, SuiteResult, compare, read_outcomes
from benchmarks.sdk_suites.samples import NoSampleError, events, sample
from benchmarks.sdk_suites.sources import SDKS, SourceError, locked
from llm_guard.config import parse_config

PASSED, FAILED = Outcome("passed"), Outcome("failed", "no | answer")
LISTING = """
- <code title="post /fine_tuning/jobs">client.fine_tuning.jobs.<a href="./x.py">create</a>() -> FineTuningJob</code>
- <code title="post /chat/completions">client.chat.completions.<a href="./x.py">create</a>() -> ChatCompletion</code>
- <code title="get /models/{model}">client.models.<a href="./x.py">retrieve</a>(model) -> Model</code>
- <code title="get /files/{file_id}/content">client.files.<a href="./x.py">content</a>(file_id) -> Binary</code>
"""
LISTING_OF_MESSAGES = """
- <code title="post /v1/messages">client.messages.<a href="./x.py">create</a>() -> Message</code>
- <code title="get /v1/user_profiles/{id}">client.user_profiles.<a href="./x.py">retrieve</a>() -> UserProfile</code>
- <code title="get /v1/user_profiles/{id}">client.beta.user_profiles.<a href="./x.py">retrieve</a>() -> Beta</code>
"""


def result(*differences: Difference, passed: int = 2) -> SuiteResult:
    counts = {"passed": passed, "skipped": 1}
    return SuiteResult("openai", "1.2", counts, counts, differences, 60.0)


# comparison


def test_compares_test_by_test() -> None:
    """Equal counts are not enough: one test may fail instead of another."""
    straight = {"a": PASSED, "b": FAILED, "c": PASSED, "d": FAILED}
    behind = {"a": FAILED, "b": PASSED, "c": PASSED, "d": Outcome("failed", "other words")}
    assert compare(straight, behind) == [Difference("a", PASSED, FAILED), Difference("b", FAILED, PASSED)]


def test_test_that_ran_on_one_side_only_differs() -> None:
    found = compare({"a": PASSED}, {"b": PASSED})
    assert [(entry.test, entry.straight.result, entry.behind.result) for entry in found] == [
        ("a", "passed", "not run"),
        ("b", "not run", "passed"),
    ]


def test_reads_every_kind_of_outcome() -> None:
    cases = '<testcase classname="m.T" name="{}">{}</testcase>'
    xml = "".join(
        [
            cases.format("good", ""),
            cases.format("bad", '<failure message="said why"/>'),
            cases.format("broken", '<error message="in a fixture"/>'),
            cases.format("left", '<skipped message="not here"/>'),
        ]
    )
    assert read_outcomes(f"<testsuites><testsuite>{xml}</testsuite></testsuites>") == {
        "m.T::good": PASSED,
        "m.T::bad": Outcome("failed", "said why"),
        "m.T::broken": Outcome("error", "in a fixture"),
        "m.T::left": Outcome("skipped", "not here"),
    }


def test_difference_or_empty_comparison_misses_the_target() -> None:
    assert result().broken == []
    assert result(Difference("a", PASSED, FAILED)).broken == ["openai 1.2: 1 tests end otherwise behind the gateway"]
    assert "nothing was compared" in result(passed=0).broken[0]


def test_page_names_each_test_that_differs(tmp_path: Path) -> None:
    report.write([result(Difference("m.T::a", PASSED, FAILED))], tmp_path, {"commit": "abc1234"})
    page = (tmp_path / "sdk-suites.md").read_text()
    assert "| openai 1.2 | 3 | 2 | 2 | 1 | 1 | 1.0 min |" in page
    assert "| `m.T::a` | passed | failed | no \\| answer |" in page
    assert json.loads((tmp_path / "sdk-suites.json").read_text())["suites"][0]["differences"][0]["test"] == "m.T::a"


def test_pinned_version_has_its_hashes() -> None:
    entry = "openai==3.52.0 \\\n    --hash=sha256:a1 \\\n    --hash=sha256:b2"
    assert locked("openai", f"openai-extra==9\n{entry}\n    # via\nother==1\n") == ("3.52.0", entry)
    with pytest.raises(SourceError, match="does not pin"):
        locked("openai", "openai-extra==9\nopenai==3.52.0\n")


@pytest.mark.parametrize("sdk", SDKS)
def test_config_is_valid(sdk: str) -> None:
    parse_config(CONFIG.format(sdk=sdk).replace("{provider}", "http://127.0.0.1:1"))


# samples


class Node(pydantic.BaseModel):
    kind: Literal["node", "leaf"]
    made_at: datetime
    from_: str = pydantic.Field(alias="from")
    words: dict[str, Annotated[int, "of each"]]
    parent: Optional[Node] = None  # noqa: UP045
    children: list[Node]


def test_sample_has_every_field_and_ends_where_a_type_contains_itself() -> None:
    value = sample(Node)
    assert value["parent"]["parent"]["from"] == "string"
    assert value["words"] == {"name": 1}
    Node.model_validate(value)


@pytest.mark.parametrize("kind", [ChatCompletion, FineTuningJob, Message])
def test_sample_is_right_by_the_sdks_own_model(kind: type[pydantic.BaseModel]) -> None:
    value = sample(kind)
    assert kind.model_validate(value, strict=False).model_fields_set == set(kind.model_fields)


def test_no_sample_of_a_type_that_is_no_json() -> None:
    with pytest.raises(NoSampleError, match="complex"):
        sample(complex)


def test_stream_of_a_model_is_in_order_and_other_streams_have_every_kind() -> None:
    kinds = [event["type"] for event in events(RawMessageStreamEvent)]
    assert (kinds[0], kinds[-1], len(kinds)) == ("message_start", "message_stop", 6)
    logged = [event["type"] for event in events(AgentSessionEvent)]
    assert "error" in logged
    assert len(logged) == len(set(logged)) > 10


# the mock


@contextmanager
def serving(sdk: str, listing: str) -> Iterator[str]:
    server = MockApi(read_endpoints(sdk, listing))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_openai_sdk_takes_the_mocks_answers() -> None:
    with (
        serving("openai", LISTING) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, _strict_response_validation=True) as client,
    ):
        job = client.fine_tuning.jobs.create(model="m", training_file="f")
        assert job.error is not None, "optional members are there, those named `error` too"
        assert client.models.retrieve("a-name").id == "string"
        assert len(client.files.content("f").read()) == 256
        said: Any = [{"role": "user", "content": "hi"}]
        assert len(list(client.chat.completions.create(model="m", messages=said, stream=True))) == 1
        with pytest.raises(openai.NotFoundError, match="no such endpoint: GET /v1/batches"):
            client.batches.list()


def test_anthropic_sdk_takes_the_mocks_answers() -> None:
    with (
        serving("anthropic", LISTING_OF_MESSAGES) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, _strict_response_validation=True) as client,
    ):
        said: Any = [{"role": "user", "content": "hi"}]
        streamed = client.messages.create(model="m", max_tokens=1, messages=said, stream=True)
        assert [event.type for event in streamed][-1] == "message_stop"
        assert client.user_profiles.retrieve("u").id == "string"
        assert client.beta.user_profiles.retrieve("u").trust_grants


EVENT_LISTING = """
- <code title="get /v1/sessions/{id}/events/stream">client.beta.sessions.events.<a href="./x.py">stream</a>-> X</code>
"""


def test_stream_whose_events_have_a_member_event() -> None:
    """`event` is a member of some events of a session; only a thread's event is an envelope around its data."""
    (endpoint,) = read_endpoints("anthropic", EVENT_LISTING)
    answer = endpoint.answer(is_streamed=False)
    assert answer.content_type == "text/event-stream"
    assert b"event: session.error\n" in answer.body


def test_mock_reads_chunked_bodies_and_keeps_the_connection() -> None:
    with serving("openai", LISTING) as url, httpx2.Client(base_url=url) as client:
        for _ in range(2):
            answer = client.post("/v1/chat/completions", content=iter([b'{"stream"', b": true}"]))
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.text.endswith("data: [DONE]\n\n")


def test_listing_is_that_of_all_folders(tmp_path: Path) -> None:
    (tmp_path / "src" / "webhooks").mkdir(parents=True)
    (tmp_path / "api.md").write_text("one")
    (tmp_path / "src" / "webhooks" / "api.md").write_text("two")
    assert read_listing(tmp_path).split() == ["one", "two"]
