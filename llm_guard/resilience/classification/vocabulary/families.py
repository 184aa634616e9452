"""Finds the family of an upstream's error words, from its address and its headers, without configuration.

A family only matters if the same word has two meanings: a number as a code, a context window that is a setting.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping

_BY_DOMAIN = {
    "openai.com": "openai",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "models.ai.azure.com": "azure",
    "anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "vertex",
    "amazonaws.com": "bedrock",
    "groq.com": "groq",
    "mistral.ai": "mistral",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "cerebras.ai": "cerebras",
    "together.xyz": "together",
    "together.ai": "together",
    "fireworks.ai": "fireworks",
    "openrouter.ai": "openrouter",
    "deepseek.com": "deepseek",
    "x.ai": "xai",
    "perplexity.ai": "perplexity",
    "nvidia.com": "nim",
    "huggingface.co": "huggingface",
    "huggingface.cloud": "huggingface",
    "aliyuncs.com": "dashscope",
    "moonshot.ai": "moonshot",
    "moonshot.cn": "moonshot",
    "kimi.com": "moonshot",
    "bigmodel.cn": "zhipu",
    "z.ai": "zhipu",
    "minimax.io": "minimax",
    "minimax.chat": "minimax",
    "minimaxi.com": "minimax",
    "volces.com": "volcengine",
    "siliconflow.cn": "siliconflow",
    "siliconflow.com": "siliconflow",
    "sambanova.ai": "sambanova",
    "databricks.com": "databricks",
    "azuredatabricks.net": "databricks",
    "snowflakecomputing.com": "snowflake",
    "digitalocean.com": "digitalocean",
    "do-ai.run": "digitalocean",
    "replicate.com": "replicate",
    "ollama.com": "ollama",
    "opencode.ai": "opencode",
    "portkey.ai": "portkey",
    "github.ai": "github",
}

_BY_PORT = {11434: "ollama", 1234: "lmstudio"}
"""Default ports of two engines."""

_ALIASES = {
    "azureopenai": "azure",
    "nvidianim": "nim",
    "vertexai": "vertex",
    "googlevertex": "vertex",
    "google": "gemini",
    "litellmproxy": "litellm",
    "portkeygateway": "portkey",
    "opencodezen": "opencode",
    "qwen": "dashscope",
    "alibaba": "dashscope",
    "zai": "zhipu",
    "glm": "zhipu",
    "bigmodel": "zhipu",
    "kimi": "moonshot",
    "awsbedrock": "bedrock",
    "amazonbedrock": "bedrock",
    "hf": "huggingface",
    "textgenerationinference": "tgi",
}

_BETWEEN = frozenset({"edge", "othergateway", "network", "unknown", ""})
"""Names that do not identify the provider."""

_BY_HEADER = {
    "anthropic-organization-id": "anthropic",
    "openai-organization": "openai",
    "openai-processing-ms": "openai",
    "apim-request-id": "azure",
    "x-amzn-requestid": "bedrock",
    "x-groq-region": "groq",
    "x-kong-request-id": "kong",
    "nvcf-reqid": "nim",
}


def family_of_url(base_url: str) -> str:
    """Returns the family of an upstream by its URL; "local" for an address that no provider has, "" for an unknown
    host."""
    try:
        parts = urllib.parse.urlsplit(base_url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return ""
    if _is_local(host):
        return _BY_PORT.get(port or 0, "local")
    domain = host
    while "." in domain:
        if domain in _BY_DOMAIN:
            return _BY_DOMAIN[domain]
        domain = domain.partition(".")[2]
    return ""


def family_of_name(provider: str) -> str:
    """Returns the family by a provider's name as a person writes it."""
    plain = "".join(filter(str.isalnum, provider.lower()))
    return "" if plain in _BETWEEN else _ALIASES.get(plain, plain)


def family_of_headers(headers: Mapping[str, str]) -> str:
    """Returns the family identified by a response's own headers (lower-case names), or ""."""
    return next((family for name, family in _BY_HEADER.items() if name in headers), "")


def _is_local(host: str) -> bool:
    if host == "localhost" or "." not in host:
        return bool(host)
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host.endswith((".local", ".internal", ".localhost"))
