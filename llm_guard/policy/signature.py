"""How what is sent to webhooks is signed.

Owns the form of a signature. Does not own what is sent (`ops.payloads`, `errands.told`).
"""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE_HEADER = "x-llm-guard-signature"


def signature(secret: str, content: bytes, at: int) -> str:
    """`t=UNIX,v1=HEX`, as Stripe signs its webhooks (docs.stripe.com/webhooks/signature): who checks it can refuse
    what is old, and replayed."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + content, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
