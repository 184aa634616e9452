"""Claude on Vertex AI: `rawPredict` and `streamRawPredict`, as Anthropic's own SDK for Vertex writes them. Streams are
those of Messages."""

from __future__ import annotations

from typing import Any

from llm_guard.dialects.forms.request_form import FormError, RequestForm, model_segment

_VERSION = "vertex-2023-10-16"
_MODELS = "/publishers/anthropic/models"


def _write(path: str, fields: dict[str, Any], betas: list[str]) -> str:
    del betas  # stay a header
    fields["anthropic_version"] = _VERSION
    if path.endswith("/count_tokens"):
        if not isinstance(fields.get("model"), str):
            raise FormError("model", "`model` is missing")
        return f"{_MODELS}/count-tokens:rawPredict"  # the model stays in the body
    method = "streamRawPredict" if fields.get("stream") else "rawPredict"
    return f"{_MODELS}/{model_segment(fields, safe='@')}:{method}"


VERTEX = RequestForm(
    paths=("/v1/messages", "/v1/messages/count_tokens"), has_frames=False, moves_betas=False, write=_write
)
