from __future__ import annotations

import pytest

from llm_guard.dialects.prefill import prefill_of
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.classification.vocabulary.families import family_of_url


@pytest.mark.parametrize(
    ("base_url", "prefill"),
    [
        ("https://api.anthropic.com", "plain"),
        ("https://api.groq.com/openai/v1", "plain"),
        ("http://127.0.0.1:11434/v1", "plain"),
        ("https://api.mistral.ai/v1", "prefix"),
        ("https://api.deepseek.com/beta", "prefix"),
        ("https://api.deepseek.com/beta/", "prefix"),
        ("https://api.deepseek.com/v1", "none"),
        ("https://api.deepseek.com", "none"),
        ("https://api.deepseek.com/betaversion", "none"),
        ("https://api.moonshot.ai/v1", "partial"),
        ("https://api.moonshot.ai/anthropic/", "none"),
        ("https://api.moonshot.ai/anthropic", "none"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "partial"),
        ("https://dashscope-intl.aliyuncs.com/apps/anthropic", "none"),
        ("https://api.openai.com/v1", "none"),
        ("https://openrouter.ai/api/v1", "none"),
        ("http://127.0.0.1:1234/v1", "none"),
        ("http://127.0.0.1:8000/v1", "none"),
        ("https://llm.example.com/v1", "none"),
    ],
)
def test_address_decides_how_a_prefill_is_sent(base_url: str, prefill: Prefill) -> None:
    assert prefill_of(family_of_url(base_url), base_url) == prefill


@pytest.mark.parametrize(
    ("family", "prefill"),
    [("vllm", "continue_final_message"), ("sglang", "continue_final_message"), ("llamacpp", "plain"), ("", "none")],
)
def test_named_engine_decides_how_a_prefill_is_sent(family: str, prefill: Prefill) -> None:
    assert prefill_of(family, "http://10.0.0.1:8000/v1") == prefill
