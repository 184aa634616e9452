from __future__ import annotations

from hashlib import blake2b

from llm_guard.fleet.caller_names import caller_digest


def test_digest_is_the_same_at_all_gateways_with_the_token_and_cannot_be_guessed_without_it() -> None:
    assert caller_digest("t")("team") == caller_digest("t")("team") != caller_digest("t")("other")
    assert caller_digest("t")("team") != caller_digest("u")("team")
    assert caller_digest("t")("team") != blake2b(b"team", digest_size=8).hexdigest()
