"""Reading of request bodies by the operator API."""

from __future__ import annotations

from typing import cast

import pytest

from llm_guard.admin.http.endpoint import Change, Refused
from llm_guard.admin.http.router import _MAX_BODY_BYTES, _body
from llm_guard.proxy.cache.response_buffer import ResponseBuffer
from llm_guard.proxy.http_server.request import Request


class Endless:
    """A request with a body that continues beyond the bound."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.version = "1.1"
        self.read_bytes = 0

    async def read(self) -> bytes:
        assert self.read_bytes <= _MAX_BODY_BYTES, "it is read beyond its bound"
        self.read_bytes += 1 << 16
        return b" " * (1 << 16)


async def test_body_of_an_admin_request_is_bounded() -> None:
    with pytest.raises(Refused) as refused:
        await _body(cast("Request", Endless()), ResponseBuffer().reply(), Change)
    assert refused.value.status == 413
