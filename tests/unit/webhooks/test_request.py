from __future__ import annotations

import hashlib
import hmac
from typing import Any

from llm_guard.config import WebhookTarget
from llm_guard.webhooks.request import WebhookRequest
from llm_guard.webhooks.signature import signature

WALL = 1_800_000_000.0


def headers(content: bytes = b"", wall: float = WALL, **facts: Any) -> dict[str, str]:
    url = "https://hooks.example.com/x?y=1"
    return WebhookRequest(WebhookTarget.model_validate({"url": url, **facts}), url, content, "d1", wall).headers()


def test_signature_is_checked_as_documented() -> None:
    content = b'{"a":1}'
    sent = headers(content, WALL + 0.9, secret="s3cret")["x-llm-guard-signature"]
    at, signed = (part.partition("=")[2] for part in sent.split(","))
    assert at == "1800000000"
    assert signed == hmac.new(b"s3cret", at.encode() + b"." + content, hashlib.sha256).hexdigest()
    assert sent == signature("s3cret", content, 1_800_000_000)
    assert sent != signature("s3cret", content, 1_800_000_001)


def test_request_has_the_configs_headers_and_its_own() -> None:
    found = headers(headers={"authorization": "Bearer x"})
    assert found["authorization"] == "Bearer x"
    assert found["content-type"] == "application/json"
    assert found["x-llm-guard-delivery"] == "d1"
    assert "x-llm-guard-signature" not in found


def test_log_of_a_request_shows_no_secret() -> None:
    target = WebhookTarget(url="https://hooks.example.com/s3cret", name="team", secret="s3cret")
    assert "s3cret" not in repr(WebhookRequest(target, target.url, b"s3cret", "d1", WALL))
