"""The operator's paths: /metrics, /healthz, /readyz.

Owns what is answered there. Never on a call's way; liveness depends on nothing but the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Pages = Mapping[str, Callable[[], tuple[int, str, bytes]]]
"""Status, content type and body by path."""

_TEXT = "text/plain; charset=utf-8"


def operator_pages(is_ready: Callable[[], bool], metrics: Callable[[], bytes], metrics_type: str) -> Pages:
    """`is_ready` says whether new calls are welcome."""
    return {
        "/healthz": lambda: (200, _TEXT, b"ok\n"),
        "/readyz": lambda: (200, _TEXT, b"ready\n") if is_ready() else (503, _TEXT, b"draining\n"),
        "/metrics": lambda: (200, metrics_type, metrics()),
    }
