"""Meaning of providers' error words: one table per family, each row with its source. Data, no decisions.

codes      machine-readable words that many providers share
common     sentences that many providers share
topics     subjects of sentences, in plain English words, if no other table matches
server_topics  the same for sentences about servers
openai     OpenAI and Azure OpenAI
anthropic
google     Gemini and Vertex AI
amazon     Bedrock, API Gateway, load balancers
hosts      Groq, Mistral, Cohere, Cerebras, Together, Fireworks, xAI, Perplexity, DeepSeek, NIM and other hosted models
china      DashScope, Moonshot, Zhipu, MiniMax, Volcengine, SiliconFlow
engines    vLLM, SGLang, TGI, llama.cpp, Ollama, LM Studio
gateways   OpenRouter, LiteLLM, Portkey, Kong, API Management, Databricks, Snowflake
edges      Cloudflare, nginx, Envoy, Kubernetes and other intermediaries
transport  connection errors, in the words of HTTP clients
finishes   finish reasons that are not a proper end
statuses   meaning of an HTTP status alone
families   finds the family of an upstream
"""

from __future__ import annotations

from llm_guard.resilience.classification.rules import RuleBook
from llm_guard.resilience.classification.vocabulary import (
    amazon,
    anthropic,
    china,
    codes,
    common,
    edges,
    engines,
    gateways,
    google,
    hosts,
    openai,
    server_topics,
    topics,
)

RULES = RuleBook((
    *openai.RULES, *anthropic.RULES, *google.RULES, *amazon.RULES, *hosts.RULES, *china.RULES, *engines.RULES,
    *gateways.RULES, *edges.RULES, *codes.RULES, *common.RULES, *topics.RULES, *server_topics.RULES,
))  # fmt: skip
