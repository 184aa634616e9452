"""Finish reasons that are not a proper end.

OpenAI `finish_reason`, Anthropic `stop_reason`, Gemini `finishReason`, Bedrock `stopReason`, Cohere and DeepSeek; the
words are normalized by `error_codes.plain_code`.
"""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.error_codes import plain_code

_WORDS = {
    Kind.CONTENT_POLICY: (
        "content_filter", "content_filtered", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII",
        "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR", "refusal",
        "guardrail_intervened", "sensitive", "ERROR_TOXIC", "moderation", "content_policy",
    ),
    Kind.BAD_SAMPLE: (
        "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "malformed_tool_use",
        "malformed_model_output", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE",
    ),
    Kind.CONTEXT_LENGTH: ("model_context_window_exceeded", "ERROR_LIMIT"),
    Kind.OVERLOADED: ("insufficient_system_resource",),
    Kind.TIMEOUT: ("timeout",),
    Kind.NETWORK: ("network_error",),
    Kind.SERVER_ERROR: ("abort", "aborted", "failed", "internal_error", "server_error", "error_finish"),
}  # fmt: skip

KIND_OF_FINISH = {plain_code(word): kind for kind, words in _WORDS.items() for word in words} | {"": Kind.SERVER_ERROR}
"""`""` is what `plain_code` leaves of "error"."""
