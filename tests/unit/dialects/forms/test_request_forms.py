"""The requests of Messages in the forms of Vertex AI and Amazon Bedrock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects import FORM_DIALECTS, FORM_FAMILIES, FormName
from llm_guard.dialects.forms import FORMS
from llm_guard.dialects.forms.request_form import FormError

SAID = [{"role": "user", "content": "hi"}]
HEADERS = [
    ("Authorization", "Bearer k"), ("anthropic-version", "2023-06-01"), ("Anthropic-Beta", "a, b"),
    ("anthropic-beta", "c,"), ("Accept", "text/event-stream"), ("Accept-Encoding", "gzip"), ("User-Agent", "sdk"),
]  # fmt: skip
VERSIONS: dict[FormName, str] = {"vertex": "vertex-2023-10-16", "bedrock-invoke": "bedrock-2023-05-31"}


def written(form: FormName, sent: str | None = "m", path: str = "/v1/messages", **fields: Any) -> tuple[str, Any]:
    """Returns path and body of a request in a form."""
    body = json.dumps({"model": "front", "messages": SAID, "max_tokens": 9, **fields}).encode()
    request = FORMS[form].request(path, HEADERS, body, sent)
    return request.path, json.loads(request.body)


def test_every_form_is_known() -> None:
    assert FORMS.keys() == FORM_DIALECTS.keys() == FORM_FAMILIES.keys() == VERSIONS.keys()


@pytest.mark.parametrize(("form", "stream", "path"), [
    ("vertex", None, "/publishers/anthropic/models/m:rawPredict"),
    ("vertex", False, "/publishers/anthropic/models/m:rawPredict"),
    ("vertex", True, "/publishers/anthropic/models/m:streamRawPredict"),
    ("bedrock-invoke", None, "/model/m/invoke"),
    ("bedrock-invoke", False, "/model/m/invoke"),
    ("bedrock-invoke", True, "/model/m/invoke-with-response-stream"),
])  # fmt: skip
def test_path_says_model_and_stream(form: FormName, stream: bool | None, path: str) -> None:
    fields: dict[str, Any] = {} if stream is None else {"stream": stream}
    found, body = written(form, **fields)
    assert found == path
    kept = {"stream": stream} if stream is not None and form == "vertex" else {}
    betas = {"anthropic_beta": ["a", "b", "c"]} if form == "bedrock-invoke" else {}
    version = {"anthropic_version": VERSIONS[form]}
    assert body == {"messages": SAID, "max_tokens": 9, **version, **betas, **kept}


def test_tokens_are_counted_by_a_model_of_their_own() -> None:
    path, body = written("vertex", "claude@1", "/v1/messages/count_tokens")
    assert path == "/publishers/anthropic/models/count-tokens:rawPredict"
    assert body["model"] == "claude@1"
    assert body["anthropic_version"] == "vertex-2023-10-16"


def test_version_of_another_service_is_replaced() -> None:
    assert written("vertex", anthropic_version="bedrock-2023-05-31")[1]["anthropic_version"] == "vertex-2023-10-16"


def test_betas_of_header_and_body_are_joined() -> None:
    assert written("bedrock-invoke", anthropic_beta=["x", "b"])[1]["anthropic_beta"] == ["x", "b", "a", "c"]
    assert written("bedrock-invoke", anthropic_beta="x")[1]["anthropic_beta"] == ["a", "b", "c"]


@pytest.mark.parametrize(("form", "model", "segment"), [
    ("vertex", "claude-sonnet-4-5@20250929", "claude-sonnet-4-5@20250929"),
    ("vertex", "a:predict", "a%3Apredict"), ("vertex", "../x", "..%2Fx"), ("vertex", "a?b#c", "a%3Fb%23c"),
    ("bedrock-invoke", "us.anthropic.claude-3-v1:0", "us.anthropic.claude-3-v1:0"),
    ("bedrock-invoke", "arn:aws:bedrock:us-east-1:1:profile/x", "arn:aws:bedrock:us-east-1:1:profile%2Fx"),
    ("bedrock-invoke", "ä b", "%C3%A4%20b"), ("bedrock-invoke", "\ud800", "%3F"),
])  # fmt: skip
def test_model_is_one_segment_of_the_path(form: FormName, model: str, segment: str) -> None:
    assert f"/{segment}{':' if form == 'vertex' else '/'}" in written(form, model)[0]


@pytest.mark.parametrize("model", ["", ".", "..", "..;x", ";", "m" * 513, 5, None])
@pytest.mark.parametrize("form", [*FORMS])
def test_other_models_are_refused(form: FormName, model: Any) -> None:
    with pytest.raises(FormError, match="is not the id of a model") as caught:
        written(form, None, model=model)
    assert caught.value.param == "model"


def test_model_is_that_of_the_body_without_a_deployments() -> None:
    assert written("bedrock-invoke", None)[0] == "/model/front/invoke"


def test_count_without_a_model_is_refused() -> None:
    with pytest.raises(FormError, match="missing"):
        written("vertex", None, "/v1/messages/count_tokens", model=None)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("form", [*FORMS])
def test_body_that_is_no_object_is_refused(form: FormName, body: bytes) -> None:
    with pytest.raises(FormError, match="not a JSON object"):
        FORMS[form].request("/v1/messages", [], body, "m")


def test_headers_of_vertex_keep_the_betas() -> None:
    assert FORMS["vertex"].headers(HEADERS) == [
        ("Authorization", "Bearer k"), ("Anthropic-Beta", "a, b"), ("anthropic-beta", "c,"), ("User-Agent", "sdk"),
        ("Accept", "application/json"), ("Accept-Encoding", "identity"),
    ]  # fmt: skip


def test_headers_of_bedrock_have_no_betas() -> None:
    assert FORMS["bedrock-invoke"].headers(HEADERS) == [
        ("Authorization", "Bearer k"), ("User-Agent", "sdk"), ("Accept", "application/json"),
        ("Accept-Encoding", "identity"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["X-Api-Key", "api-key"])
@pytest.mark.parametrize("form", [*FORMS])
def test_key_of_a_caller_becomes_a_bearer_token(form: FormName, name: str) -> None:
    found = dict(FORMS[form].headers([(name, "k")]))
    assert found == {"Authorization": "Bearer k", "Accept": "application/json", "Accept-Encoding": "identity"}


def test_bearer_token_is_preferred_to_another_key() -> None:
    found = FORMS["vertex"].headers([("x-api-key", "other"), ("Authorization", "Bearer k")])
    assert [value for name, value in found if name == "Authorization"] == ["Bearer k"]


@pytest.mark.parametrize(("form", "method", "path", "is_served"), [
    ("vertex", "POST", "/v1/messages", True), ("vertex", "POST", "/v1/messages/count_tokens", True),
    ("vertex", "GET", "/v1/messages", False), ("vertex", "POST", "/v1/messages/batches", False),
    ("vertex", "GET", "/v1/models", False), ("bedrock-invoke", "POST", "/v1/messages", True),
    ("bedrock-invoke", "POST", "/v1/messages/count_tokens", False), ("bedrock-invoke", "POST", "/v1/files", False),
])  # fmt: skip
def test_endpoints_of_a_form(form: FormName, method: str, path: str, is_served: bool) -> None:
    assert FORMS[form].serves(method, path) is is_served
