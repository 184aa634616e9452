"""InvokeModel of Amazon Bedrock with the Messages of Claude (Amazon Bedrock, "Anthropic Claude Messages API")."""

from __future__ import annotations

from typing import Any

from llm_guard.dialects.forms.request_form import RequestForm, model_segment

_VERSION = "bedrock-2023-05-31"


def _write(path: str, fields: dict[str, Any], betas: list[str]) -> str:
    del path  # there is only one
    method = "invoke-with-response-stream" if fields.pop("stream", False) else "invoke"
    fields["anthropic_version"] = _VERSION
    if betas:
        own = fields.get("anthropic_beta")
        fields["anthropic_beta"] = list(dict.fromkeys([*(own if isinstance(own, list) else ()), *betas]))
    return f"/model/{model_segment(fields, safe=':')}/{method}"


BEDROCK_INVOKE = RequestForm(paths=("/v1/messages",), has_frames=True, moves_betas=True, write=_write)
