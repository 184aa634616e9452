from __future__ import annotations

import pytest

from llm_guard.proxy.call import Call
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.request_body.model_field import check_single_model, inspect


def check(document: bytes) -> None:
    call = Call("lg-1", "openai", "POST", "/v1/chat/completions", "", (), 0.0, document)
    check_single_model(call, inspect(document, "application/json", "", 1 << 20))


@pytest.mark.parametrize(
    "document",
    [
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "\\u006dodel": "b"}',
        b'{"\\u006dodel": "a", "mod\\u0065l": "b"}',
        b'{"model": "a", "models": ["b"]}',
        b'{"model": "a", "fallbacks": ["b"], "n": 1}',
        b'{"model": "a", "MODEL": "b"}',
        b'{"model": "a", "model\xc5\xbf": ["b"]}',
        b'{"models": ["a"], "models": ["b"]}',
    ],
)
def test_call_with_several_models_is_refused(document: bytes) -> None:
    with pytest.raises(BadRequest, match="only one model"):
        check(document)


@pytest.mark.parametrize(
    "document",
    [
        b'{"model": "a", "messages": []}',
        b'{"model": "a", "x": {"model": "b", "models": ["c"]}}',
        b'{"model": "a", "x": "the \\"model\\" of \\u006dany"}',
        b'{"\\u006dodel": "a"}',
        b'{"models": ["a"]}',
        b'{"messages": []}',
    ],
)
def test_call_with_one_model_passes(document: bytes) -> None:
    check(document)
