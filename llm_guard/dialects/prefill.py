"""Which providers accept the beginning of a response in a request, and how it is written.

Has the defaults by family and address; the config overrides them. Models differ (Anthropic's refuse it with a 400 from
Claude 4.6 on): after a refusal another way to resume is tried.
"""

from __future__ import annotations

import urllib.parse

from llm_guard.dialects.resume.transcript import Prefill

# Excludes families where it depends on the provider behind (OpenRouter, Bedrock, Vertex), and LM Studio, which doubles
# the beginning with some of its engines (lmstudio-ai/lmstudio-bug-tracker#2041). A server that answers a beginning with
# a new message would do unnoticed harm, and an instruction to continue works everywhere.
_BY_FAMILY: dict[str, Prefill] = {
    "anthropic": "plain",  # Anthropic, "Prefill Claude's response"
    "groq": "plain",  # Groq, "Assistant Message Prefilling"
    "ollama": "plain",  # ollama/ollama#6778
    "llamacpp": "plain",  # ggml-org/llama.cpp#13174
    "mistral": "prefix",  # Mistral, chat API, AssistantMessage.prefix
    "moonshot": "partial",  # Kimi, "Use Kimi API's Partial Mode"
    "dashscope": "partial",  # Alibaba Cloud Model Studio, "Partial mode"
    "vllm": "continue_final_message",  # vllm-project/vllm#8942
    "sglang": "continue_final_message",  # sgl-project/sglang#4226
}


QUESTION = "Count from 1 to 9, separated by commas."
BEGINNING = "1, 2, 3, 4,"
REST = "5"
"""A question, the beginning of its answer, and the first word of the rest, to try whether a model continues one."""
QUESTION_TOKENS = 3
"""Limit for the rest, of which a space may be a token of its own."""


def prefill_of(family: str, base_url: str) -> Prefill:
    """How the upstreams of this family (`resilience.classification.vocabulary.families`) at this address accept the
    beginning of a response; "none" if unknown."""
    path = urllib.parse.urlsplit(base_url).path.rstrip("/") + "/"
    if family == "deepseek":
        return "prefix" if path.startswith("/beta/") else "none"  # DeepSeek, "Chat Prefix Completion (Beta)"
    if family != "anthropic" and "/anthropic/" in path:
        return "none"  # another model behind the Messages API: what its own API accepts says nothing
    return _BY_FAMILY.get(family, "none")
