"""Admin tokens of the gateways that tests start, and the headers that carry them.

`tests.chaos.stand.config_text` puts these tokens into `ops` unless a test sets its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = "ops-token-of-all-these-tests"
NAMED = {"ann": "ops-token-of-ann-in-tests", "anna": "ops-token-of-anna-in-tests"}
VIEWER = "ops-token-of-a-viewer-in-tests"

OPS: Mapping[str, Any] = {
    "token": SHARED,
    "tokens": [
        *({"name": name, "token": token, "role": "operator"} for name, token in NAMED.items()),
        {"name": "vic", "token": VIEWER, "role": "viewer"},
    ],
}


def bearer(token: str = SHARED) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


BEARER = bearer()
