"""A refused signature is repeated if AWS's time shows why it was refused."""

from __future__ import annotations

import pytest

from llm_guard.upstreams.credentials.signing import SignedRequests
from llm_guard.upstreams.credentials.sigv4 import SigningScope
from llm_guard.upstreams.credentials.source import CloudCredential, CredentialSource
from tests.fakes.clock import SteppedClock


@pytest.mark.parametrize("date", [
    "", "yesterday", "Mon, 1 Jan 99999999999999999999 00:00:00 GMT", "Mon, 1 Jan 2029 00:00:00 +99999999999999",
])  # fmt: skip
async def test_date_that_is_none_is_no_reason_to_repeat_a_request(date: str) -> None:
    clock = SteppedClock()
    source = CredentialSource("upstreams.a.auth", "aws", lambda: CloudCredential(""), clock, lambda: 0.0)
    assert not SignedRequests(source, SigningScope("r", "s"), clock).note_refusal([("Date", date)])
