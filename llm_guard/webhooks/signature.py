"""Signature of webhook payloads."""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE_HEADER = "x-llm-guard-signature"


def signature(secret: str, content: bytes, at: int) -> str:
    """Returns `t=UNIX,v1=HEX`, as Stripe signs its webhooks (docs.stripe.com/webhooks/signature): with the time a
    receiver can refuse old, replayed payloads."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + content, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
